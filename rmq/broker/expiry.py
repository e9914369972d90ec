"""Groups that were made on first use and that nobody uses: they go again, with their retry topics.

A group is unused when it has no member, no offset in any topic and no message to be consumed again, and when
nothing about it was ever set. Whoever uses it later has it made anew, as on the first use. What was set by an
administrator stays, and so does everything where groups are not made on first use.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from rmq.message import SYSTEM_GROUP_PREFIX, dlq_topic, retry_topic
from rmq.protocol.bodies import SubscriptionGroupConfig

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig
    from rmq.broker.tables import Tables
    from rmq.store.store import Store

GROUPS_OF_A_STEP: Final = 1_000
STEP_MS: Final = 1_000
PASS_MS: Final = 600_000
"""Between two looks at a group."""

log = logging.getLogger("rmq.broker")


class Expiry:
    """Looks at all groups every ten minutes, at a thousand a second. Times are in ms."""

    def __init__(self, config: BrokerConfig, store: Store, tables: Tables) -> None:
        self.config = config
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._offsets = tables.offsets
        self._left: list[str] = []  # of the running pass, the next is the last
        self._unused: dict[str, int] = {}  # since when
        self._next_ms = 0

    def step(self, now: int) -> int:
        """Look at the next groups; returns when to come again."""
        if now < self._next_ms:
            return self._next_ms
        if not self._left:
            self._left = list(self._groups.table)
            self._unused = {
                group: since for group, since in self._unused.items() if group in self._groups.table
            }
        looked = [self._left.pop() for _ in range(min(GROUPS_OF_A_STEP, len(self._left)))]
        span = self.config.unused_group_time_mills
        if span and self.config.auto_create_subscription_group and not self._groups.slave:
            self._remove([group for group in looked if self._is_over(group, now, span)])
        self._next_ms = now + (STEP_MS if self._left else PASS_MS)
        return self._next_ms

    def _is_over(self, group: str, now: int, span: int) -> bool:
        if not self._is_unused(group):
            self._unused.pop(group, None)
            return False
        return now - self._unused.setdefault(group, now) >= span

    def _is_unused(self, group: str) -> bool:
        config = self._groups.table.get(group)
        return (
            config == SubscriptionGroupConfig(group)
            and group not in self._groups.from_start
            and not group.startswith(SYSTEM_GROUP_PREFIX)
            and self._clients.consumer_group(group) is None
            and not self._offsets.topics_of(group)
            and not self._has_messages(retry_topic(group))
            and not self._has_messages(dlq_topic(group))
        )

    def _has_messages(self, topic: str) -> bool:
        config = self._topics.get(topic)
        queues = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
        return any(self._store.max_offset(topic, queue_id) > 0 for queue_id in range(queues))

    def _remove(self, groups: list[str]) -> None:
        if not groups:
            return
        topics = [retry_topic(group) for group in groups if self._topics.get(retry_topic(group)) is not None]
        self._groups.forget(groups)
        if topics:
            self._topics.forget(topics)
        for group in groups:
            del self._unused[group]
        log.info(
            "%d groups that nobody used for %d s are removed, and %d retry topics: %s%s",
            len(groups),
            self.config.unused_group_time_mills // 1000,
            len(topics),
            ", ".join(groups[:5]),
            ", ..." if len(groups) > 5 else "",
        )
