"""Requests of administrators to the broker: topics, groups, settings, metrics, cleaning."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from rmq.broker.admin.unread import hidden_by, hidden_now, kept_beyond, unread
from rmq.broker.tables.groups import check_group
from rmq.broker.tables.topic_attributes import changed_attributes
from rmq.broker.tables.topics import check_name
from rmq.config import canonical, dump_properties, evolve, knows, parse_properties, properties_text
from rmq.errors import ConfigError, CorruptRecord, ResponseError, for_code
from rmq.files import settings_saver
from rmq.message import SYSTEM_TOPICS, retry_topic
from rmq.protocol import bodies, engine
from rmq.protocol.codes import (
    HIDE_UNREAD,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    VERSION,
    RequestCode,
    ResponseCode,
    TopicFilterType,
)
from rmq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetBrokerConfigResponseHeader,
    ViewBrokerStatsDataRequestHeader,
)
from rmq.protocol.record import decode_record
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.admin.pending_changes import PendingChanges
    from rmq.broker.config import BrokerConfig, Settings
    from rmq.broker.role import Role
    from rmq.broker.state import Tables
    from rmq.protocol.command import Command
    from rmq.server.deferred import DeferredSaves
    from rmq.store.config import StoreConfig
    from rmq.store.store import Store

QUEUES_MAX: Final = 65_536
VERSION_NAME: Final = "V4_9_7"
"""RocketMQ's name for `VERSION`, which its tools show."""

log = logging.getLogger("rmq.broker")


class Admin:
    """Handles requests of administrators: changes of topics, groups and settings, state and metrics, and
    removal of files.

    `changes` answers changes of topics and groups when they are saved, `deferred_saves` changes of settings.
    `commit_pending()` commits the messages of the running chunk, `gauges()` gives more rows of the runtime
    metrics, and `delay_offsets()` the table of delayOffset.json. `on_deleted(topic, queue_ids)` is called
    when a topic is deleted, with its queues that had messages.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        tables: Tables,
        *,
        role: Role,
        changes: PendingChanges,
        deferred_saves: DeferredSaves,
        commit_pending: Callable[[], None],
        gauges: Callable[[], Mapping[str, str]],
        delay_offsets: Callable[[], Mapping[int, int]],
        on_deleted: Callable[[str, Collection[int]], None] = lambda topic, queue_ids: None,
        wake_clean: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self.config_version = bodies.DataVersion(tables.stats.boot_ms, 0)
        self._role = role
        self._changes = changes
        self._deferred_saves = deferred_saves
        self._commit_pending = commit_pending
        self._gauges = gauges
        self._delay_offsets = delay_offsets
        self._on_deleted = on_deleted
        self._wake_clean = wake_clean
        self._store = store
        self._tables = tables
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._stats = tables.stats

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """Request codes and their handlers."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._on_update_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._on_delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._on_all_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._on_system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self._on_update_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._on_all_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self._on_delete_group,
            RequestCode.GET_BROKER_CONFIG: self._on_get_config,
            RequestCode.UPDATE_BROKER_CONFIG: self._on_update_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._on_runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self._on_stats,
            RequestCode.GET_ALL_DELAY_OFFSET: self._on_delay_offsets,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self._on_clean_queues,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self._on_clean_log,
            RequestCode.CLEAN_UNUSED_TOPIC: self._on_clean_topics,
        }

    # --- topics ---

    def _on_update_topic(self, request: Command, connection: Any, now: int) -> Command | None:
        self._check_change("topics", connection)
        header = request.read(CreateTopicRequestHeader)
        self._check_topic(header.topic)
        _check_shape(header)
        made = bodies.TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            header.order,
            attributes=self._attributes(header.topic, request.ext.get("attributes")),
        )
        if request.ext.get(HIDE_UNREAD) != "true":
            self._check_hidden(made)
        log.info("topic %s is set by %s", header.topic, connection.peer_address)
        undo = self._topics.change(header.topic, made, now)
        return self._changes.answer("topics", request, connection, undo)

    def _attributes(self, topic: str, text: str | None) -> dict[str, str] | None:
        """The attributes of a topic after a change; without a text they stay."""
        before = self._topics.get(topic)
        return changed_attributes(None if before is None else before.attributes, text)

    def _check_hidden(self, made: bodies.TopicConfig) -> None:
        """Raises ResponseError when a topic is cut by queues that hold unread messages."""
        before = self._topics.get(made.topic_name)
        if before is None or made.read_queue_nums >= before.read_queue_nums:
            return
        self._commit_pending()
        hidden = hidden_by(self._store, self._tables, made.topic_name, made.read_queue_nums)
        if hidden:
            raise _refused(
                f"readQueueNums of topic {made.topic_name} stays {before.read_queue_nums}, with "
                f"{made.read_queue_nums} it would hide {hidden}: lower writeQueueNums first, and "
                "readQueueNums when they are consumed, or have them hidden (rmq topic update --yes)"
            )

    def _on_delete_topic(self, request: Command, connection: Any, now: int) -> Command | None:
        self._check_change("topics", connection)
        topic = request.read(DeleteTopicRequestHeader).topic
        self._check_topic(topic)
        log.info("topic %s is deleted by %s", topic, connection.peer_address)
        self._commit_pending()  # a message of the same chunk must not write into files that are gone
        if self._topics.get(topic) is None:
            self._forget_topic(topic)
            return self._changes.agreed("topics", request, connection, request.reply())
        undo, then = self._topics.change(topic, None, now), partial(self._forget_topic, topic)
        # Slaves that have heard of it have removed the queues: it is taken back nowhere then.
        is_written = self._topics.changes.is_followed
        return self._changes.answer("topics", request, connection, None if is_written else undo, then)

    def deleted_elsewhere(self, topics: Mapping[str, int]) -> None:
        """Delete topics that a replica of the set knows as deleted, if creation times (ms) are equal. The
        former master died after it had sent the deletion to that replica and before it sent it to this
        broker."""
        self._commit_pending()
        for topic, created_ms in topics.items():
            known = self._topics.get(topic)
            if known is None or known.creation is None or known.creation.time_ms != created_ms:
                continue
            log.warning("topic %s is deleted: the former master had begun the deletion", topic)
            self._topics.change(topic, None)
            self._changes.later("topics", None, partial(self._forget_topic, topic))

    def _forget_topic(self, topic: str) -> None:
        if self._topics.get(topic) is not None:
            log.warning("topic %s exists again at the master: its messages stay", topic)
            self._topics.stays(topic)
            return
        self._commit_pending()  # as above
        queue_ids = [queue_id for name, queue_id in self._store.queues() if name == topic]
        ends = [self._store.max_offset(topic, queue_id) for queue_id in queue_ids]
        self._topics.ended(topic, max(ends, default=0))
        self._remove_queues(topic)
        self._offsets.delete_topic(topic)
        self._stats.delete_topic(topic)
        self._on_deleted(topic, queue_ids)

    def _check_topic(self, topic: str) -> None:
        check_name(topic)
        if self._topics.is_system(topic):
            raise _refused(f"The topic[{topic}] is conflict with system topic.")

    def _check_change(self, what: str, connection: Any) -> None:
        """Raises ResponseError at a slave, at a master that may be none any more, and when too many changes
        wait."""
        if self._settings.store.broker_role is BrokerRole.SLAVE:
            raise _refused(f"a slave's {what} are its master's: send this to the master broker")
        if self._role.refuses_commits():
            remark = f"{what} are not changed: another master takes over, change them there"
            raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        self._changes.check(connection)

    def _on_all_topics(self, request: Command, connection: Any, now: int) -> Command:
        return request.reply(header={}, body=self._topics.to_json())

    def _on_system_topics(self, request: Command, connection: Any, now: int) -> Command:
        names = SYSTEM_TOPICS.union(filter(self._topics.is_system, self._topics.table))
        return request.reply(body=bodies.TopicList(sorted(names)).to_json())

    def _on_clean_topics(self, request: Command, connection: Any, now: int) -> Command | None:
        """Remove the queues of topics that do not exist, except the broker's own topics. On a slave such
        queues go with its master's: mqadmin asks all brokers of a cluster, and takes a single refusal for a
        failure."""
        if self._settings.store.broker_role is BrokerRole.SLAVE:
            return request.reply()
        self._commit_pending()
        found = {topic for topic, _ in self._store.queues()} - self._topics.table.keys()
        unused = sorted(topic for topic in found if not self._topics.is_system(topic))
        if not unused:
            return self._changes.agreed("topics", request, connection, request.reply())

        def then() -> None:
            for topic in unused:
                log.warning("removed the queues of topic %s, which does not exist", topic)
                self._forget_topic(topic)

        undo = self._topics.clean(unused)
        return self._changes.answer("topics", request, connection, undo, then)

    def _remove_queues(self, topic: str) -> None:
        self._store.remove_topic(topic)
        if self._wake_clean is not None:
            self._wake_clean()

    # --- groups ---

    def _on_update_group(self, request: Command, connection: Any, now: int) -> Command | None:
        self._check_change("groups", connection)
        config = bodies.SubscriptionGroupConfig.from_request(request.body)
        check_group(config)
        undo_topic = self._fit_retry_topic(config, now)  # first: tables are saved in this order
        undo_group = self._groups.change(config.group_name, config, now)

        def undo() -> None:
            undo_group()
            undo_topic()

        return self._changes.answer("subscriptionGroup", request, connection, undo)

    def _fit_retry_topic(self, config: bodies.SubscriptionGroupConfig, now: int) -> Callable[[], None]:
        """Give the group's retry topic as many queues as the group has; removed queues are read until they
        are empty. Return the function that reverts this."""
        group, queues = config.group_name, config.retry_queue_nums
        known = self._topics.get(retry_topic(group))
        if known is None or queues <= 0:
            return _nothing
        name, offsets = known.topic_name, self._offsets.of(group, known.topic_name)
        read = queues
        for queue_id in kept_beyond(self._store, name, queues):
            if unread(self._store, name, queue_id, offsets.get(queue_id, 0)):
                read = queue_id + 1
        if (known.read_queue_nums, known.write_queue_nums) == (read, queues):
            return _nothing
        return self._topics.change(
            name, attrs.evolve(known, read_queue_nums=read, write_queue_nums=queues), now
        )

    def _on_all_groups(self, request: Command, connection: Any, now: int) -> Command:
        return request.reply(body=self._groups.to_json())

    def _on_delete_group(self, request: Command, connection: Any, now: int) -> Command | None:
        self._check_change("groups", connection)
        header = request.read(DeleteSubscriptionGroupRequestHeader)
        group = header.group_name
        if group not in self._groups.table:
            log.warning("group %s is to be deleted but does not exist", group)
            self._forget_group(group, header.remove_offset)
            return self._changes.agreed("subscriptionGroup", request, connection, request.reply())
        undo, then = (
            self._groups.change(group, None, now),
            partial(self._forget_group, group, header.remove_offset),
        )
        return self._changes.answer("subscriptionGroup", request, connection, undo, then)

    def _forget_group(self, group: str, removes_offsets: bool) -> None:
        if removes_offsets:
            self._offsets.delete_group(group)
        self._stats.delete_group(group)

    # --- settings ---

    def _on_get_config(self, request: Command, connection: Any, now: int) -> Command:
        version = self.config_version.to_json().decode()
        text = dump_properties(self._settings.broker, self._settings.store)
        text += properties_text(_of_java())
        text = text.replace("durability=\n", f"durability={self._settings.store.level}\n")  # when not given
        return request.reply(header=GetBrokerConfigResponseHeader(version), body=text.encode())

    def _on_update_config(self, request: Command, connection: Any, now: int) -> Command | None:
        changes = parse_properties(request.body.decode("utf-8", "replace"))

        def take(_: None) -> Command:
            self._take(changes, now)
            log.info("settings are changed by %s: %s", connection.peer_address, ", ".join(changes))
            return request.reply()

        self._changed(changes)  # what may not be is refused at once
        return self._deferred_saves.answer(request, connection, partial(self._keep, changes), take)

    def _keep(self, changes: Mapping[str, str]) -> None:
        """Write new values of settings into the file of settings. In any thread. Raises ResponseError for
        refused values and for a file that cannot be written."""
        config, _ = self._changed(changes)
        if changes and (save := settings_saver(config.config_store_path)) is not None:
            try:
                save(canonical(changes, type(self._settings.broker), type(self._settings.store)))
            except OSError as error:
                raise _refused(f"nothing was changed: it cannot be kept: {error}") from None

    def _take(self, changes: Mapping[str, str], now: int) -> None:
        """Set new values, all or none: other values may have changed while the file was written."""
        config, store_config = self._changed(changes)
        self.config_version = self.config_version.following(now)
        self._settings.replace(config, store_config)

    def _changed(self, changes: Mapping[str, str]) -> tuple[BrokerConfig, StoreConfig]:
        """The settings with new values. Raises ResponseError for a setting that may not change at run
        time."""
        of_store = {key: text for key, text in changes.items() if knows(type(self._settings.store), key)}
        of_broker = {
            key: text
            for key, text in changes.items()
            if key not in of_store or knows(type(self._settings.broker), key)
        }
        try:
            return evolve(self._settings.broker, of_broker), evolve(self._settings.store, of_store)
        except ConfigError as error:
            raise _refused(f"nothing was changed: {error}") from None

    # --- metrics ---

    def _on_runtime_info(self, request: Command, connection: Any, now: int) -> Command:
        return request.reply(body=bodies.KVTable(self.runtime(now)).to_json())

    def runtime(self, now: int) -> dict[str, str]:
        """The rows that brokerStatus shows, under RocketMQ's names; thread pools, which this broker lacks,
        are idle."""
        config, idle = self._settings.broker, dict.fromkeys(("send", "pull", "query"), "0")
        rows = hidden_now(self._store, self._tables)
        hidden = "; ".join(f"{topic}: {text}" for topic, text in rows.items())
        return {
            "brokerVersionDesc": VERSION_NAME,
            "brokerVersion": str(VERSION),
            "engine": engine.NAME,
            "durability": self._settings.store.level,
            **{f"{name}ThreadPoolQueueSize": zero for name, zero in idle.items()},
            **{f"{name}ThreadPoolQueueHeadWaitTimeMills": zero for name, zero in idle.items()},
            "sendThreadPoolQueueCapacity": str(config.send_thread_pool_queue_capacity),
            "pullThreadPoolQueueCapacity": str(config.pull_thread_pool_queue_capacity),
            "queryThreadPoolQueueCapacity": "20000",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "100000",
            "pageCacheLockTimeMills": "0",
            "dispatchMaxBuffer": "0",
            "remainTransientStoreBufferNumbs": str(2**31 - 1),  # RocketMQ's answer without such a pool
            "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
            **self._store_counts(),
            **self._stats.runtime(now),
            **self._gauges(),
            **({"hiddenMessages": hidden} if hidden else {}),
        }

    def _store_counts(self) -> dict[str, str]:
        store = self._store
        state = store.disk_state()
        ratio = f"{state.ratio:.4f}"
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{self._settings.store.commit_log_path}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_size(state.total_bytes)}, Free : {_size(state.free_bytes)}.",
            "commitLogMinOffset": str(store.min_physical_offset),
            "commitLogMaxOffset": str(store.max_physical_offset),
            "dispatchBehindBytes": str(store.dispatch_behind_bytes),
            "remainHowManyDataToFlush": _size(store.max_physical_offset - store.flushed_offset),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
        }

    def _earliest_ms(self) -> int:
        """The store time of the log's first message; -1 for an empty log."""
        record = self._store.read(self._store.min_physical_offset)
        if record is None:
            return -1
        try:
            return decode_record(record, check_crc=False, decompressed=False).store_timestamp
        except CorruptRecord:
            return -1

    def _on_stats(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(ViewBrokerStatsDataRequestHeader)
        windows = self._stats.windows(header.stats_name, header.stats_key, now)
        if windows is None:
            raise _refused(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        items = (bodies.BrokerStatsItem(window.sum, window.tps, window.average) for window in windows)
        return request.reply(body=bodies.BrokerStatsData(*items).to_json())

    def _on_delay_offsets(self, request: Command, connection: Any, now: int) -> Command:
        return request.reply(body=bodies.DelayOffsetSerializeWrapper(dict(self._delay_offsets())).to_json())

    # --- cleaning ---

    def _on_clean_log(self, request: Command, connection: Any, now: int) -> Command:
        """Remove the files of the log that are older than fileReservedTime, whatever deleteWhen says."""
        start = self._store.min_physical_offset
        if self._wake_clean is None:
            self._store.clean(now, asked=True)
        else:  # out of the log now; the disk takes its time
            while self._store.retention.take(self._store.config, now, asked=True):
                pass
            self._wake_clean()
        files = (self._store.min_physical_offset - start) // self._store.config.mapped_file_size_commit_log
        log.info("%d expired files of the log are removed for %s", files, connection.peer_address)
        return request.reply()

    def _on_clean_queues(self, request: Command, connection: Any, now: int) -> Command:
        """Remove the queue files of messages that the log has no more."""
        removed = self._store.clean_queues()
        log.info("%d expired queue files are removed for %s", removed, connection.peer_address)
        return request.reply()


def _of_java() -> dict[str, str]:
    """Settings that only RocketMQ has and that its exportConfigs and exportMetrics cannot do without."""
    return {
        "filterServerNums": "0",
        "useTLS": "false",
        "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
    }


def _nothing() -> None:
    return


def _refused(remark: str) -> ResponseError:
    return for_code(ResponseCode.SYSTEM_ERROR, remark)


def _check_shape(header: CreateTopicRequestHeader) -> None:
    for name, count in (("read", header.read_queue_nums), ("write", header.write_queue_nums)):
        if not 1 <= count <= QUEUES_MAX:
            raise _refused(f"{name}QueueNums of topic {header.topic} is {count}: expected 1 to {QUEUES_MAX}")
    if not 0 <= header.perm <= PERM_READ | PERM_WRITE | PERM_INHERIT:
        raise _refused(
            f"perm of topic {header.topic} is {header.perm}: "
            f"expected {PERM_WRITE} (write), {PERM_READ} (read) or {PERM_READ | PERM_WRITE} (both)"
        )
    if header.topic_filter_type not in TopicFilterType.__members__:
        kinds = " or ".join(TopicFilterType.__members__)
        raise _refused(f"filter type of topic {header.topic} is {header.topic_filter_type}: expected {kinds}")


def _size(count: int) -> str:
    """Bytes as RocketMQ shows them: 512 B, 1.5 KiB, 67.3 GiB."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 6)
    return f"{count / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"
