"""Known subscriptions of consumer groups, kept after their last connection closed, and replicated to slaves.

Consumers send their subscriptions by heartbeat every 30 s, and a pull of a group without a known subscription
is refused. So RocketMQ's consumers read nothing for up to 30 s from a broker that has just started or has
another role, or when their connection was cut. This table keeps a group's subscriptions for a while after its
last connection ended, hands them to the broker's next role, and replicates them to slaves of rmq as rows of a
table: a replica that comes back serves the consumers whose routes are old.

The table is for reading only. The members of a group are known by their connections alone.
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
"""Approximate bytes of former subscriptions that are kept; above it, the oldest are forgotten."""
TOLD_BYTES_MAX: Final = 256 << 10
"""A group that has announced more is not told to slaves."""

log = logging.getLogger("rmq.broker")


class KnownSubscriptions:
    """Subscriptions of all groups; a `StreamedTable`, whose rows are groups. `groups` are the groups with
    members at this broker, which take precedence; after them come the groups that the master knows, and last
    former groups. `clock` (seconds) only goes forward."""

    def __init__(self, groups: Mapping[str, ConsumerGroup], clock: Callable[[], float]) -> None:
        self.changes = Changes()
        self._groups = groups
        self._clock = clock
        self._followed: dict[str, ConsumerGroup] = {}
        self._former: dict[str, tuple[ConsumerGroup, int]] = {}  # until when, in ms; the first to end first
        self._former_bytes = 0

    def of(self, group: str) -> ConsumerGroup | None:
        """The subscriptions of a group, or None."""
        known = self._groups.get(group) or self._followed.get(group)
        if known is None and group in self._former:
            former, until = self._former[group]
            return former if self._ms() < until else None
        return known

    def all(self) -> dict[str, ConsumerGroup]:
        """The subscriptions of all groups, without members."""
        now = self._ms()
        former = {name: group for name, (group, until) in self._former.items() if now < until}
        own = {name: evolve(group, members={}) for name, group in self._groups.items()}
        return former | self._followed | own

    def restore(self, known: Mapping[str, ConsumerGroup]) -> None:
        """Keep for a while the groups that this broker knew in another role."""
        for group in known.values():
            self._keep(group)

    def left(self, group: ConsumerGroup) -> None:
        """The last connection of a group has ended, without a word."""
        self._keep(evolve(group, members={}))

    def changed(self, group: str) -> None:
        """A group has members, or announces something else; or has no members any more."""
        self.changes.add((group,))

    def expire(self, now: int) -> None:
        """Forget expired groups; `now` is in ms of `clock`."""
        over = [name for name, (_, until) in self._former.items() if until <= now]
        self._forget(over)

    # ---- rows for slaves ----

    def names(self) -> list[str]:
        """The names of all rows, one for each group."""
        return list(self.all())

    def text_of(self, names: Collection[str]) -> bytes:
        """The subscriptions of these groups, as a heartbeat."""
        texts = []
        for name in names:
            group = self.of(name)
            if group is None:
                continue
            text = _announced(group).to_json()
            if len(text) <= TOLD_BYTES_MAX:
                texts.append(text)
            else:
                log.warning(
                    "the subscriptions of group %s are not replicated: %d bytes is too much", name, len(text)
                )
        return b'{"consumerDataSet":[%b]}' % b",".join(texts)

    def missing(self, names: Collection[str]) -> list[str]:
        """The names without a group, of these names."""
        return [name for name in names if self.of(name) is None]

    def rows_of(self, text: bytes) -> tuple[dict[str, ConsumerGroup], None]:
        """The rows of such a text. Raises RemoteProtocolError."""
        return {
            data.group_name: _group(data) for data in HeartbeatData.from_json(text).consumer_data_set
        }, None

    def apply_delta(
        self, rows: Mapping[str, ConsumerGroup], version: None, deleted: Collection[str] | None
    ) -> bool:
        """A slave's: take these groups of the master, and keep former groups for a while: `deleted`, or with
        None all other groups."""
        for name in self._followed.keys() - rows.keys() if deleted is None else deleted:
            former = self._followed.pop(name, None)
            if former is not None:
                self._keep(former)
        self._followed |= rows
        return bool(rows or deleted)

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
    """Approximate size in bytes, if the tags are as short as possible."""
    return 500 + sum(500 + 60 * len(subscribed.sub_string) for subscribed in group.subscriptions.values())


def _announced(group: ConsumerGroup) -> ConsumerData:
    return ConsumerData(
        group.name,
        group.consume_type,
        group.message_model,
        group.consume_from_where,
        list(group.subscriptions.values()),
    )


def _group(data: ConsumerData) -> ConsumerGroup:
    subscribed = {subscription.topic: subscription for subscription in data.subscription_data_set}
    return ConsumerGroup(
        data.group_name, data.consume_type, data.message_model, data.consume_from_where, subscribed
    )
