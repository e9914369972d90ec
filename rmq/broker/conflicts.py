"""Members of one consumer group that do not fit together, which loses messages without any error.

Each queue of a topic is given to one member, so a member that does not want what the others want skips it
for all of them; and two clients with one id take themselves for one and consume the same queues. Neither is
an error of the protocol. Both are found here when a member's heartbeat comes, logged once for as long as
they last, counted, and told to the client in the answer to its heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rmq.broker.members import ConsumerGroup, Member
    from rmq.remoting.connection import Connection

    Table = dict[tuple[str, str], set[Connection]]

REFUSED_MAX: Final = 1_000
"""Refused clients that are remembered; of more, some are logged again."""

log = logging.getLogger("rmq.broker")


class Conflicts:
    """The conflicts of the connected groups.

    `reject`: a member that would be in conflict is not let in. `found` counts all that there ever were.
    """

    def __init__(self, *, reject: bool) -> None:
        self.reject = reject
        self.found = 0
        # (group, "") or (group, client id) -> the connections that are told so
        self._subscriptions: Table = {}
        self._ids: Table = {}
        self._refused: set[tuple[str, Connection]] = set()

    @property
    def subscriptions(self) -> int:
        """Groups whose members subscribe differently now."""
        return len(self._subscriptions)

    @property
    def client_ids(self) -> int:
        """Client ids that are used by two connections of a group now."""
        return len(self._ids)

    def refusal(self, group: ConsumerGroup, member: Member) -> str | None:
        """Why a member may not join or stay, where such are rejected; of two, the one that came first may."""
        if not self.reject:
            return None
        text, key = self._refusal(group, member), (group.name, member.connection)
        if text is None:
            self._refused.discard(key)
        elif key not in self._refused:
            if len(self._refused) >= REFUSED_MAX:
                self._refused.clear()
            self._refused.add(key)
            self.found += 1
            log.warning("%s; %s is not let in", text, member.client_id)
        return text

    def _refusal(self, group: ConsumerGroup, member: Member) -> str | None:
        other = _other_wants(group, member)
        if other is not None:
            return _differs(group, member, other)
        twin = _twin(group, member)
        return None if twin is None or member.since_ms < twin.since_ms else _is_twice(group, member, twin)

    def look(self, group: ConsumerGroup, member: Member) -> str:
        """Look at a member whose heartbeat has come; what it is to be told, empty when all is well."""
        other, twin = _other_wants(group, member), _twin(group, member)
        texts = []
        if other is None:
            _forget(self._subscriptions, (group.name, ""), member)
        else:
            texts.append(_differs(group, member, other))
            self._note(self._subscriptions, (group.name, ""), member, texts[-1])
        if twin is None:
            _forget(self._ids, (group.name, member.client_id), member)
        else:
            texts.append(_is_twice(group, member, twin))
            self._note(self._ids, (group.name, member.client_id), member, texts[-1])
        return "; ".join(texts)

    def left(self, group: str, member: Member) -> None:
        """A member has gone, and its part in a conflict with it."""
        _forget(self._subscriptions, (group, ""), member)
        _forget(self._ids, (group, member.client_id), member)

    def _note(self, table: Table, key: tuple[str, str], member: Member, text: str) -> None:
        if key not in table:
            self.found += 1
            log.warning("%s", text)
        table.setdefault(key, set()).add(member.connection)


def _forget(table: Table, key: tuple[str, str], member: Member) -> None:
    told = table.get(key)
    if told is not None:
        told.discard(member.connection)
        if not told:
            del table[key]
            log.info("group %s %s: the conflict is over", *key)


def _other_wants(group: ConsumerGroup, member: Member) -> Member | None:
    """A member that wants something else, or by another model; None without one."""
    return next((other for other in _others(group, member) if other.terms != member.terms), None)


def _others(group: ConsumerGroup, member: Member) -> Iterator[Member]:
    return (other for other in group.members.values() if other.connection is not member.connection)


def _twin(group: ConsumerGroup, member: Member) -> Member | None:
    """A living member with the same id; None without one.

    A client that has lost its connection comes again while the broker still knows the old one, so the older
    of the two must have been heard since the newer one came.
    """
    for other in _others(group, member):
        if other.client_id == member.client_id:
            older, newer = sorted((other, member), key=lambda one: one.since_ms)
            if older.heard_ms > newer.since_ms:
                return other
    return None


def _differs(group: ConsumerGroup, member: Member, other: Member) -> str:
    return (
        f"group {group.name}: {member.client_id} and {other.client_id} subscribe differently, "
        f"messages will be missed: {_text(member)} and {_text(other)}"
    )


def _text(member: Member) -> str:
    model, wants = member.terms
    return f"{dict(wants)} {model or ''}".rstrip()


def _is_twice(group: ConsumerGroup, member: Member, twin: Member) -> str:
    places = f"{member.connection.peer_address} and {twin.connection.peer_address}"
    return (
        f"group {group.name}: client id {member.client_id} is used by two clients, at {places}: they will "
        "consume the same queues; give each its own instance name"
    )
