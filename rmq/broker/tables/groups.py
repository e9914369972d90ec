"""Consumer groups of the broker: which may consume, from which offset, and how often a message is retried.

The table is `config/subscriptionGroup.json`, in RocketMQ's form. A change of an administrator is saved before
it is acknowledged. A group created on first use is saved with the next offsets: if the process dies earlier,
the group's next heartbeat creates the group again, and a thousand groups that appear together cost a single
file write.

Unused groups that were created on first use are removed, with their retry topics. A group is unused when it
has no member, no offset in any topic and no message to be retried, and when no setting of it was ever
changed. A later use creates it again, as the first use did. Groups set by an administrator stay, and so do
all groups when groups are not created on first use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.broker.tables.versioned import VersionedTable
from rmq.errors import InvalidName, ResponseError, for_code
from rmq.message import SYSTEM_GROUP_PREFIX, validate_group
from rmq.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmq.protocol.codes import ResponseCode
from rmq.protocol.fields import Body
from rmq.shares import NOBODY, Holders

if TYPE_CHECKING:
    from rmq.broker.config import Settings


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
        self, group: str, maker: Holders = NOBODY, *, logs: bool = True
    ) -> SubscriptionGroupConfig | None:
        """The group's configuration, made on first use where that is allowed; else None. `logs`: log a new
        group.
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
        if logs:
            log.info("group %s made on first use", group)
        return self._add(group, made)

    def exists(self, group: str, maker: Holders = NOBODY) -> bool:
        """True if the group is there, or has been made just now."""
        return self.get(group, maker) is not None

    def unknown(self, group: str, maker: Holders = NOBODY) -> ResponseError:
        """The response for an unknown group; it says why and what to do."""
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
