"""KnownSubscriptions: what consumer groups subscribe to, beyond the connections over which they said so.

Consumers announce it by heartbeat every 30 s, and a pull of a group that has announced nothing is refused. So
RocketMQ's consumers read nothing for up to 30 s from a broker that has just started or has another role, or
when their connection was cut. Here what a group has announced holds for a while when its last connection
ends, goes to a broker's next role, and is told to slaves of ours, as rows of a table in the replication
stream: a replica that comes back serves the consumers whose routes are old.

It is for reading only. Who the members of a group are, only their connections say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from attrs import evolve

from rmq.broker.membership.members import ConsumerGroup
from rmq.broker.tables.versioned import Changes
from rmq.protocol.bodies import ConsumerData, HeartbeatData

FORMER_MS: Final = 60_000
"""For so long what a group announced holds without its connections: two heartbeats of Java."""
FORMER_BYTES_MAX: Final = 32 << 20
"""What is kept so, about; of more, what was kept first is forgotten."""
TOLD_BYTES_MAX: Final = 256 << 10
"""A group that has announced more is not told to slaves."""

log = logging.getLogger("rmq.broker")


class KnownSubscriptions:
    """What is known of all groups; a `StreamedTable`, whose rows are groups. `groups` are those that have
    members here, which come first; then come those that the master knows, then former ones. `clock` (seconds)
    only goes forward.
    """

    def __init__(self, groups: Mapping[str, ConsumerGroup], clock: Callable[[], float]) -> None:
        self.changes = Changes()
        self._groups = groups
        self._clock = clock
        self._followed: dict[str, ConsumerGroup] = {}
        self._former: dict[str, tuple[ConsumerGroup, int]] = {}  # until when, in ms; the first to end first
        self._former_bytes = 0

    def of(self, group: str) -> ConsumerGroup | None:
        """What a group has announced, or None."""
        known = self._groups.get(group) or self._followed.get(group)
        if known is None and group in self._former:
            former, until = self._former[group]
            return former if self._ms() < until else None
        return known

    def all(self) -> dict[str, ConsumerGroup]:
        """What all groups have announced, without their members."""
        now = self._ms()
        former = {name: group for name, (group, until) in self._former.items() if now < until}
        own = {name: evolve(group, members={}) for name, group in self._groups.items()}
        return former | self._followed | own

    def restore(self, known: Mapping[str, ConsumerGroup]) -> None:
        """Know for a while what this broker knew when it had another role."""
        for group in known.values():
            self._keep(group)

    def left(self, group: ConsumerGroup) -> None:
        """The last connection of a group has ended, without a word."""
        self._keep(evolve(group, members={}))

    def changed(self, group: str) -> None:
        """A group has members, or announces something else; or has no members any more."""
        self.changes.add((group,))

    def expire(self, now: int) -> None:
        """Forget what does not hold any more; `now` is in ms of `clock`."""
        over = [name for name, (_, until) in self._former.items() if until <= now]
        self._forget(over)

    # ---- rows for slaves ----

    def names(self) -> list[str]:
        """The names of all rows, one for each group."""
        return list(self.all())

    def text_of(self, names: Collection[str]) -> bytes:
        """What those of these groups that are there announce, as a heartbeat would."""
        texts = []
        for name in names:
            group = self.of(name)
            if group is None:
                continue
            text = _announced(group).to_json()
            if len(text) <= TOLD_BYTES_MAX:
                texts.append(text)
            else:
                log.warning("slaves are not told what group %s announces: it is %d bytes", name, len(text))
        return b'{"consumerDataSet":[%b]}' % b",".join(texts)

    def missing(self, names: Collection[str]) -> list[str]:
        """Those of these names that no group has."""
        return [name for name in names if self.of(name) is None]

    def rows_of(self, text: bytes) -> tuple[dict[str, ConsumerGroup], None]:
        """The rows of such a text. Raises RemoteProtocolError."""
        return {
            data.group_name: _group(data) for data in HeartbeatData.from_json(text).consumer_data_set
        }, None

    def apply_delta(
        self, rows: Mapping[str, ConsumerGroup], version: None, gone: Collection[str] | None
    ) -> bool:
        """A slave's: know these groups of the master's, and for a while only those that are gone; with None,
        all others are."""
        for name in self._followed.keys() - rows.keys() if gone is None else gone:
            former = self._followed.pop(name, None)
            if former is not None:
                self._keep(former)
        self._followed |= rows
        return bool(rows or gone)

    def _keep(self, group: ConsumerGroup) -> None:
        if group.name in self._former:
            self._forget((group.name,))
        self._former[group.name] = group, self._ms() + FORMER_MS
        self._former_bytes += _size(group)
        self.changes.add((group.name,))
        while self._former_bytes > FORMER_BYTES_MAX:
            self._forget((next(iter(self._former)),))

    def _forget(self, names: Collection[str]) -> None:
        for name in names:
            group, _ = self._former.pop(name)
            self._former_bytes -= _size(group)
        self.changes.add(names)

    def _ms(self) -> int:
        return round(self._clock() * 1000)


def _size(group: ConsumerGroup) -> int:
    """About how many bytes it takes, if its tags are as short as they may be."""
    return 500 + sum(500 + 60 * len(wanted.sub_string) for wanted in group.subscriptions.values())


def _announced(group: ConsumerGroup) -> ConsumerData:
    return ConsumerData(
        group.name,
        group.consume_type,
        group.message_model,
        group.consume_from_where,
        list(group.subscriptions.values()),
    )


def _group(data: ConsumerData) -> ConsumerGroup:
    wanted = {subscription.topic: subscription for subscription in data.subscription_data_set}
    return ConsumerGroup(
        data.group_name, data.consume_type, data.message_model, data.consume_from_where, wanted
    )
