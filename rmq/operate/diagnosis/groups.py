"""Findings about consumer groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmq.operate.diagnosis.facts import Facts, Finding, GroupFacts, Level
from rmq.printable import counted

LEASE_MS: Final = 3_600_000
"""Age of a lease from which a message gets a note."""
TAKEN_SHARE: Final = 0.9
"""Share of its greatest number of messages in flight at which a group soon gets no more."""


def findings_of_group(group: GroupFacts, facts: Facts) -> Iterator[Finding]:
    """Judge the lag, the members, the dead letters and the messages in flight of a group."""
    limit = facts.lag_limit
    where = f"group {group.name}"
    if group.error:
        yield Finding("wrong", where, f"not checked in full: {group.error}", "see the brokers first")
    left = f"has {counted(group.lag, 'message')} left"
    if group.lag and group.members == 0 and not group.polls:
        todo = (
            f"start a consumer, or delete an unused group: `rmq group delete {group.name}` if nobody needs it"
        )
        level: Level = "wrong" if group.lag > limit else "note"
        yield Finding(level, where, f"{left}, and no member is connected", todo)
    elif group.lag > limit:
        todo = f"add members, or see why they wait: `rmq group members {group.name} --stack`"
        yield Finding("wrong", where, left, todo)
    if len({tuple(sorted(subscribed.items())) for subscribed in group.subscriptions.values()}) > 1:
        what = "; ".join(
            f"{member}: {dict(subscribed)}" for member, subscribed in sorted(group.subscriptions.items())
        )
        todo = "let all members subscribe to the same: messages are lost until then"
        yield Finding("wrong", where, f"members subscribe differently: {what}", todo)
    if group.dead_letters:
        todo = f"`rmq tail %DLQ%{group.name} --from earliest` shows them"
        what = f"gave up {counted(group.dead_letters, 'message')} after all retries"
        yield Finding("note", where, what, todo)
    yield from _taking_findings(group, facts)


def _taking_findings(group: GroupFacts, facts: Facts) -> Iterator[Finding]:
    """Judge the messages that a group has taken and not acknowledged: their number and the oldest lease."""
    where = f"group {group.name}"
    limits = [one.config.get("maxTakenMessagesOfGroup", "") for one in facts.brokers if one.is_master]
    most = min((int(limit) for limit in limits if limit.isdigit()), default=0)
    if most and group.taken >= TAKEN_SHARE * most:
        what = f"has taken {counted(group.taken, 'message')} without acknowledgement, of at most {most}"
        todo = (
            "see that consumers acknowledge or give back; maxTakenMessagesOfGroup of the broker is the limit"
        )
        yield Finding("wrong", where, what, todo)
    if group.oldest_ms > LEASE_MS:
        what = f"a message was taken {group.oldest_ms // 60_000} min ago, and is not acknowledged"
        todo = f"see its consumer (`rmq group members {group.name}`); it is redelivered when its lease ends"
        yield Finding("note", where, what, todo)
