"""The broker's consumer groups: which may consume, from where, and how often a message is tried again.

The table is `config/subscriptionGroup.json`, in RocketMQ's form. What an administrator sets is saved before
it is acknowledged. A group made on first use is saved with the next offsets: lost with the process, it is
made again by its next heartbeat, and a thousand groups that appear together cost one file, not a thousand.

Groups that were made on first use and that nobody uses are removed, with their retry topics. A group is
unused when it has no member, no offset in any topic and no message to be consumed again, and when nothing
about it was ever set. Whoever uses it later has it made anew, as on the first use. What was set by an
administrator stays, and so does everything where groups are not made on first use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.broker.tables.versioned import VersionedTable
from rmq.errors import InvalidName, ResponseError, for_code
from rmq.message import SYSTEM_GROUP_PREFIX, dlq_topic, retry_topic, validate_group
from rmq.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmq.protocol.codes import ResponseCode
from rmq.protocol.fields import Body
from rmq.shares import NOBODY, Holders
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.tables.versioned import Tables
    from rmq.store.store import Store


SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that every broker has from its start, as RocketMQ 4.9.7 makes them."""

RETRY_QUEUES_MAX: Final = 1024

log = logging.getLogger("rmq.broker")


class Groups(VersionedTable[SubscriptionGroupConfig]):
    """The table of groups.

    `save(data)` replaces the file and raises StoreError; `now_ms` stamps data versions.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        save: Callable[[bytes], None],
        now_ms: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        from_start = {name: SubscriptionGroupConfig(name) for name in SYSTEM_GROUPS}
        super().__init__(
            "group", "subscriptionGroupTable", from_start, save=save, now_ms=now_ms, on_change=on_change
        )
        self._settings = settings

    def get(
        self, group: str, maker: Holders = NOBODY, *, says: bool = True
    ) -> SubscriptionGroupConfig | None:
        """The group's configuration, made on first use where that is allowed; else None. With `says` the log
        tells of one that is made.
        """
        known = self.table.get(group)
        if known is not None:
            return known
        if not (
            self._settings.broker.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX)
        ):
            return None
        try:
            made = SubscriptionGroupConfig(validate_group(group))
        except InvalidName as error:
            log.warning("group is not made: %s", error)
            return None
        full = self._full(maker)
        if full:
            if not self._is_full:
                log.warning("no group is made on first use any more: %s", full)
            self._is_full = True
            return None
        self.quota.made(group, maker)
        if says:
            log.info("group %s made on first use", group)
        return self._add(group, made)

    def exists(self, group: str, maker: Holders = NOBODY) -> bool:
        """Whether the group is there, or has been made just now."""
        return self.get(group, maker) is not None

    def unknown(self, group: str, maker: Holders = NOBODY) -> ResponseError:
        """The answer about a group that is not there; it says why and what to do."""
        if self._settings.broker.auto_create_subscription_group and (full := self._full(maker)):
            reason = f"and is not made: {full}"
        else:
            reason = "or set autoCreateSubscriptionGroup=true on the broker"
        return for_code(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{group}] does not exist; "
            f"create it with `mqadmin updateSubGroup -g {group}` {reason}",
        )

    def _full(self, maker: Holders) -> str:
        """Why no group is made any more; empty when one may be."""
        config = self._settings.broker
        if len(self.table) >= config.max_auto_created_groups:
            return f"this broker has {len(self.table)} groups, see maxAutoCreatedGroups"
        if over := self.quota.over_account(maker, config.max_auto_created_groups_of_account):
            return f"{over}, see maxAutoCreatedGroupsOfAccount"
        over = self.quota.over_share(maker, config.max_auto_created_groups, len(self.table))
        return f"{over}, see maxAutoCreatedGroups" if over else ""

    def update(self, config: SubscriptionGroupConfig, now: int | None = None) -> None:
        """Put or replace a group. Raises StoreError, and then nothing has changed."""
        self._set(config.group_name, config, now)
        self._is_full = False

    def _body(self, rows: dict[str, SubscriptionGroupConfig]) -> Body:
        return SubscriptionGroupWrapper(rows, self.data_version)

    def _parsed(self, data: bytes) -> tuple[dict[str, SubscriptionGroupConfig], DataVersion]:
        saved = SubscriptionGroupWrapper.from_json(data)
        return saved.subscription_group_table, saved.data_version


def check_group(config: SubscriptionGroupConfig) -> None:
    """Raises ResponseError for values that no group may have."""
    try:
        validate_group(config.group_name)
    except InvalidName as error:
        raise for_code(ResponseCode.SYSTEM_ERROR, str(error)) from None
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
        raise for_code(
            ResponseCode.SYSTEM_ERROR,
            f"retryQueueNums of group {config.group_name} is {config.retry_queue_nums}: "
            f"expected 0 to {RETRY_QUEUES_MAX}",
        )


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
            "%d groups that nobody used for %d s are removed, and %d retry topics: %s%s",
            len(groups),
            self._settings.broker.unused_group_time_mills // 1000,
            len(topics),
            ", ".join(groups[:5]),
            ", ..." if len(groups) > 5 else "",
        )
