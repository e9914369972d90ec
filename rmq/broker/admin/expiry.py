"""Expiry of unused groups: removed, with their retry topics, once they were unused for long enough."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from rmq.message import SYSTEM_GROUP_PREFIX, dlq_topic, retry_topic
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.state import Tables
    from rmq.store.store import Store


log = logging.getLogger("rmq.broker")

GROUPS_OF_A_STEP: Final = 1_000
STEP_MS: Final = 1_000
PASS_MS: Final = 600_000
"""Between two looks at a group."""


class Expiry:
    """Looks at all groups every ten minutes, at a thousand a second. Times are in ms."""

    def __init__(self, settings: Settings, store: Store, tables: Tables) -> None:
        self._settings = settings
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
        self._next_ms = min(self._next_ms, now + PASS_MS)  # the clock may have been set back
        if now < self._next_ms:
            return self._next_ms
        if not self._left:
            self._left = list(self._groups.table)
            self._unused = {
                group: since for group, since in self._unused.items() if group in self._groups.table
            }
        looked = [self._left.pop() for _ in range(min(GROUPS_OF_A_STEP, len(self._left)))]
        span = self._settings.broker.unused_group_time_mills
        if (
            span
            and self._settings.broker.auto_create_subscription_group
            and self._settings.store.broker_role is not BrokerRole.SLAVE
        ):
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
        queues = self._store.queue_end(topic)  # with those that the topic lost when it was cut
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
            "removed %d groups unused for %d s, and %d retry topics: %s%s",
            len(groups),
            self._settings.broker.unused_group_time_mills // 1000,
            len(topics),
            ", ".join(groups[:5]),
            ", ..." if len(groups) > 5 else "",
        )
