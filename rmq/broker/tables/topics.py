"""Topics of the broker: names, numbers of queues, permissions.

The table is `config/topics.json`, in RocketMQ's form. Its data version tells name servers and slaves whether
their copy is current.

A master gives each new topic a creation (`TopicCreation`): the name alone does not tell a topic from a topic
that was deleted and created again, and offsets, queues and positions belong to a topic, not to a name. The
creation stays for as long as the topic does and travels to slaves with its row. A deleted topic that had
messages leaves a trace (`Deletions`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from rmq.broker.tables.deletions import Deletions, deletion_of
from rmq.broker.tables.versioned import VersionedTable
from rmq.errors import InvalidName, ResponseError, for_code
from rmq.message import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_EVENT,
    REPLY_TOPIC_POSTFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    validate_topic,
)
from rmq.protocol.bodies import (
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicCreation,
    TopicDeletion,
)
from rmq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, ResponseCode
from rmq.protocol.fields import Body
from rmq.shares import NOBODY, Holders, Shares
from rmq.store.config import BrokerRole

if TYPE_CHECKING:
    from rmq.broker.config import BrokerConfig, Settings

SCHEDULE_QUEUES: Final = 18
BENCHMARK_QUEUES: Final = 1024
TRACE_PLUGIN: Final = "trace"
UNSAVED_MAX: Final = 1_000
"""Topics made for clients that wait to be saved. Without a bound such sends are soon all that may wait."""
ENDS_KEPT: Final = 10_000
"""Deleted topics whose ends are remembered, for the case that they are made again."""

log = logging.getLogger("rmq.broker")


def reply_topic(cluster: str) -> str:
    """The topic that stands for the cluster's request-reply messages."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that every broker has from its start, as RocketMQ 4.9.7 makes them."""
    read_write = PERM_READ | PERM_WRITE
    default = config.default_topic_queue_nums
    cluster_perm = PERM_INHERIT | (read_write if config.cluster_topic_enable else 0)
    broker_perm = PERM_INHERIT | (read_write if config.broker_topic_enable else 0)
    made = [TopicConfig(SELF_TEST_TOPIC, 1, 1)]
    if config.auto_create_topic_enable:
        made.append(TopicConfig(AUTO_CREATE_TOPIC, default, default, PERM_INHERIT | read_write))
    made += [
        TopicConfig(BENCHMARK_TOPIC, BENCHMARK_QUEUES, BENCHMARK_QUEUES),
        TopicConfig(config.broker_cluster_name, perm=cluster_perm),
        TopicConfig(config.broker_name, 1, 1, broker_perm),
        TopicConfig(OFFSET_MOVED_EVENT, 1, 1),
        TopicConfig(SCHEDULE_TOPIC, SCHEDULE_QUEUES, SCHEDULE_QUEUES),
    ]
    if config.trace_topic_enable or TRACE_PLUGIN in config.plugins:
        made.append(TopicConfig(config.msg_trace_topic_name, 1, 1))
    made.append(TopicConfig(reply_topic(config.broker_cluster_name), 1, 1))
    return made


def check_name(topic: str | None) -> str:
    """The topic's name if it is well formed; else raises ResponseError(SYSTEM_ERROR), as RocketMQ answers."""
    if not topic or not topic.strip():
        raise for_code(ResponseCode.SYSTEM_ERROR, "The specified topic is blank.")
    try:
        validate_topic(topic)
    except InvalidName as error:
        raise for_code(ResponseCode.SYSTEM_ERROR, f"The specified topic is not usable: {error}") from None
    return topic


class _Unsaved:
    """The topics made for clients that wait to be saved, and the shares of their makers."""

    def __init__(self) -> None:
        self._makers: dict[str, Holders] = {}
        self._shares = Shares(UNSAVED_MAX)

    def full(self, maker: Holders) -> str:
        """Why no further topic of a maker may wait; empty when one may. A maker without any may have one
        beyond the bound, as long as all are at most twice as many."""
        shares = self._shares
        reason = shares.full(maker)
        is_first = bool(maker) and not shares.held(maker[0]) and shares.used < 2 * shares.most
        return "" if is_first else reason

    def foreseen_full(self, maker: Holders) -> bool:
        """True if no further topic of a maker may wait that no message needs yet: these take half of the
        places at most."""
        shares = self._shares
        return bool(shares.used * 2 >= shares.most or shares.full(maker))

    def add(self, topic: str, maker: Holders) -> None:
        """Count a topic that was made just now."""
        self._makers[topic] = maker
        self._shares.add(maker)

    def keep(self, unsaved: Collection[str]) -> None:
        """Forget all topics but the unsaved."""
        for topic in self._makers.keys() - set(unsaved):
            self._shares.give(self._makers.pop(topic))


class Topics(VersionedTable[TopicConfig]):
    """The table of topics. `save` writes topics.json and raises StoreError; `now_ms` stamps data versions.

    A topic's first message, which has it made, is acknowledged when the topic is saved (see acknowledgement),
    so that none lies in a topic that a restart would not know.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        save: Callable[[bytes], None],
        now_ms: Callable[[], int],
        on_change: Callable[[], None],
        log_end: Callable[[], int] = lambda: 0,
        log_start: Callable[[], int] = lambda: 0,
        first_record: Callable[[str], int | None] = lambda topic: None,
    ) -> None:
        """`log_start` is the physical offset at which the log begins, `log_end` that at which the next record
        will lie, `first_record` that of a topic's first record; None when its queues have none.
        """
        from_start = {made.topic_name: made for made in system_topics(settings.broker)}
        super().__init__(
            "topic", "topicConfigTable", from_start, save=save, now_ms=now_ms, on_change=on_change
        )
        self._on_made: Callable[[TopicConfig], None] = lambda made: None
        """Called when a send has made a topic."""
        self._settings = settings
        self._system = SYSTEM_TOPICS.union(from_start)
        self._log_end = log_end
        self._first_record = first_record
        self._ends: dict[str, int] = {}  # of deleted topics: the highest end of their queues
        self._leaving: dict[str, TopicCreation | None] = {}  # of topics that are being deleted
        self._created_ms = 0  # the last creation's
        self.deletions = Deletions(log_start)
        self._waiting = _Unsaved()

    def load(self, data: bytes | None) -> None:
        super().load(data)
        if self._settings.store.broker_role is not BrokerRole.SLAVE:
            self._log_cut(self._log_end())

    @property
    def last_creation_ms(self) -> int:
        """The latest creation of a topic that was ever here, as far as is known; 0 for none."""
        return max(self._created_ms, self.deletions.latest_ms)

    def is_later(self, topic: str, creation_ms: int) -> bool:
        """True if a topic was made after that was the latest creation, or is deleted."""
        known = self.table.get(topic)
        if known is None:
            return self.deletions.get(topic) is not None
        return known.creation is not None and known.creation.time_ms > creation_ms

    def watch_made(self, on_made: Callable[[TopicConfig], None]) -> None:
        """Call `on_made` when a send has made a topic."""
        self._on_made = on_made

    def get(self, topic: str) -> TopicConfig | None:
        """The topic's configuration, or None."""
        return self.table.get(topic)

    def is_system(self, topic: str) -> bool:
        """True if the name is reserved: no administrator may make, change or delete it."""
        return topic in self._system or topic.startswith(SYSTEM_TOPIC_PREFIX)

    def create_for_send(
        self,
        topic: str,
        default_topic: str,
        queue_nums: int,
        address: str,
        *,
        sys_flag: int = 0,
        maker: Holders = NOBODY,
    ) -> TopicConfig | None:
        """The topic, created with the settings of `default_topic` if it is missing and `default_topic` allows
        that (PERM_INHERIT).

        A new topic gets the requested number of queues, at most the default topic's. None when it may not be
        created; raises ResponseError when the limits on topics are reached, and while it is being deleted.
        """
        known = self.table.get(topic)
        if known is not None:
            return known
        self._check_deletion(topic)
        model = self._model(default_topic)
        if model is None:
            log.warning("topic %s is not made: %s of %s does not allow it", topic, default_topic, address)
            return None
        full = self._full(topic, self._settings.broker.max_auto_created_topics, maker)
        if full and topic.startswith(RETRY_PREFIX):
            return None
        if full:
            raise for_code(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, and is not made: {full}")
        if not self.is_system(topic) and (over := self._waiting.full(maker)):
            remark = (
                f"topic[{topic}] is not made: of the topics that wait to be saved {over}, try again later"
            )
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        queues = max(0, min(queue_nums, model.write_queue_nums))
        perm = model.perm & ~PERM_INHERIT
        made = TopicConfig(topic, queues, queues, perm, model.topic_filter_type, sys_flag)
        log.info("topic %s made like %s, %d queues, for producer %s", topic, default_topic, queues, address)
        made = self._add_for(maker, made)
        if not topic.startswith(RETRY_PREFIX):  # consumers have these made at each broker
            self._on_made(made)
        return made

    def _add_for(self, maker: Holders, topic: TopicConfig) -> TopicConfig:
        self.quota.made(topic.topic_name, maker)
        self._waiting.add(topic.topic_name, maker)
        return self._add(topic.topic_name, topic)

    def adopt(self, topic: TopicConfig) -> None:
        """Create a topic that a send has created at another broker of this service, unless the topic exists
        or the limit is reached. It is saved like topics that sends create at this broker."""
        name = topic.topic_name
        if (
            name in self.table
            or name in self._leaving
            or self._full(name, self._settings.broker.max_auto_created_topics, NOBODY)
        ):
            return
        log.info(
            "topic %s made, %d queues, as at another broker of this service", name, topic.write_queue_nums
        )
        self._add(name, topic)

    def foresee_retry(
        self, topic: str, queue_nums: int, sys_flag: int = 0, *, maker: Holders = NOBODY
    ) -> TopicConfig | None:
        """The topic of a group's retries, made before its first retry as long as the broker has few topics:
        RocketMQ's tools find the brokers of a group by the route of this topic. None when it is not made yet,
        as while many topics of the same maker wait to be saved.
        """
        known = self.table.get(topic)
        if (
            known is not None
            or topic in self._leaving
            or self._full(topic, self._settings.broker.max_auto_created_topics // 2, maker)
        ):
            return known
        if self._waiting.foreseen_full(maker):
            return None
        perm = PERM_READ | PERM_WRITE
        return self._add_for(maker, TopicConfig(topic, queue_nums, queue_nums, perm, topic_sys_flag=sys_flag))

    def create_retry(self, topic: str, perm: int, queue_nums: int, sys_flag: int = 0) -> TopicConfig:
        """The topic of a group's retries or dead letters, made when it does not exist.

        Raises ResponseError when no more are made, and while it is being deleted.
        """
        known = self.table.get(topic)
        if known is not None:
            return known
        self._check_deletion(topic)
        full = self._full(topic, self._settings.broker.max_auto_created_topics * 3 // 2, NOBODY)
        if full:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] is not made: {full}")
        made = TopicConfig(topic, queue_nums, queue_nums, perm, topic_sys_flag=sys_flag)
        log.info("topic %s made, %d queues", topic, queue_nums)
        return self._add(topic, made)

    def _full(self, topic: str, most: int, maker: Holders) -> str:
        """Why no topic is made any more; empty when one may be. The broker's own always are."""
        if self.is_system(topic):
            return ""
        most_of_account = self._settings.broker.max_auto_created_topics_of_account
        if len(self.table) >= most:
            reason = f"this broker has {len(self.table)} topics, see maxAutoCreatedTopics"
        elif over := self.quota.over_account(maker, most_of_account):
            reason = f"{over}, see maxAutoCreatedTopicsOfAccount"
        elif over := self.quota.over_share(maker, most, len(self.table)):
            reason = f"{over}, see maxAutoCreatedTopics"
        else:
            return ""
        if not self._is_full:
            log.warning("no topic is made for a first use any more: %s", reason)
        self._is_full = True
        return f"{reason}; an administrator may make more"

    def update(self, topic: TopicConfig, now: int | None = None) -> None:
        """Put or replace a topic. Raises StoreError, and ResponseError while it is being deleted, and then
        nothing has changed."""
        self._set(topic.topic_name, self._identified(topic), now)

    def delete(self, name: str, now: int | None = None) -> bool:
        self._note_deletion(name)
        return super().delete(name, now)

    def _place(self, name: str, row: TopicConfig | None, now: int | None) -> None:
        if row is None:
            self._note_deletion(name)
        else:
            self.deletions.forget(self.deleted_among({name: row}))
        super()._place(name, row, now)

    def _note_deletion(self, name: str) -> None:
        """Leave a trace of a topic that is about to be deleted, if it has messages."""
        known = self.table.get(name)
        if known is not None and self._first_record(name) is not None:
            self.deletions.note(name, deletion_of(known, self._log_end()))

    def is_another(self, row: TopicConfig) -> bool:
        """True if a master's topic is another one than that of its name which is, or was last, here."""
        if row.creation is None:
            return False
        known, deletion = self.table.get(row.topic_name), self.deletions.get(row.topic_name)
        if known is not None:
            return known.creation != row.creation
        return deletion is not None and deletion.time_ms != row.creation.time_ms

    def deleted_among(self, rows: Mapping[str, TopicConfig]) -> dict[str, int]:
        """The creations (ms) of these topics that were deleted at this broker, if they are the very same
        topics."""
        found = {}
        for name, row in rows.items():
            deletion = self.deletions.get(name)
            if deletion is not None and row.creation is not None and row.creation.time_ms == deletion.time_ms:
                found[name] = deletion.time_ms
        return found

    def take_deletions(self, deletions: Mapping[str, TopicDeletion]) -> bool:
        """A slave's: have the master's deletions, too, which are `unsaved` then; whether any is new."""
        is_new = self.deletions.take(deletions)
        if is_new:
            self._text.outdate()
            self.made += 1
            self.unsaved |= dict.fromkeys(deletions, self.made)
        return is_new

    def clean(self, names: Collection[str]) -> Callable[[], None]:
        """Leave traces of topics that have queues and no row, as of deleted topics; their queues may be
        removed once the traces are saved. Return the function that reverts this."""
        known = {name: self.deletions.get(name) for name in names}
        self._leaving |= dict.fromkeys(names)
        for name in names:
            self.deletions.note(name, TopicDeletion(self._log_end(), 0))
        self._grown(names)
        self._text.outdate()

        def undo() -> None:
            for name in names:
                self.stays(name)
            self.deletions.forget(names)
            self.deletions.take({name: one for name, one in known.items() if one is not None})

        return undo

    def change(self, name: str, row: TopicConfig | None, now: int | None = None) -> Callable[[], None]:
        """Change a row, as in each table; a deleted topic is not made again before `ended`. Raises
        ResponseError."""
        if row is not None:
            return super().change(name, self._identified(row), now)
        known = self.table.get(name)
        revert = super().change(name, None, now)
        if known is None:
            return revert
        self._leaving[name] = known.creation

        def undo() -> None:
            self.stays(name)
            revert()

        return undo

    def stays(self, topic: str) -> None:
        """The topic is not being deleted any more: the deletion is taken back, or a master has it again."""
        self._leaving.pop(topic, None)

    def _check_deletion(self, topic: str) -> None:
        """Raise ResponseError while a topic is being deleted: slaves that have heard of it have removed its
        queues, and this broker has them until the deletion is saved. As the same topic it would have other
        messages there than here, and as another one the first one's messages here."""
        if topic in self._leaving:
            remark = f"topic[{topic}] is being deleted: make it again, or send to it, in a moment"
            raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def saved(self, made: int) -> None:
        super().saved(made)
        self._waiting.keep(self.unsaved)

    def _put(self, table: dict[str, TopicConfig], now: int | None, changed: Collection[str]) -> None:
        super()._put(table, now, changed)
        self._waiting.keep(self.unsaved)

    def _add(self, name: str, row: TopicConfig) -> TopicConfig:
        return super()._add(name, self._identified(row))

    def ended(self, topic: str, end: int) -> None:
        """Remember how far the queues of a deleted topic went, which are removed now: of at most `ENDS_KEPT`
        topics of this run.
        """
        if (deletion := self.deletions.get(topic)) is not None:  # a message may have come since
            self.deletions.note(topic, attrs.evolve(deletion, log_offset=self._log_end()))
            self._text.outdate()
        self.remember_end(topic, end)

    def remember_end(self, topic: str, end: int) -> None:
        """Same as `ended`, of a slave: its deletions are its master's."""
        creation = self._leaving.pop(topic, None)
        end = max(end, self._ends.pop(topic, 0), 0 if creation is None else creation.earlier_end)
        if end:
            self._ends[topic] = end
        if len(self._ends) > ENDS_KEPT:
            del self._ends[next(iter(self._ends))]

    def _log_cut(self, end: int) -> None:
        """Take the log's end: a topic that was created behind `end` has lost its records, and its next
        records come from `end` on. Not for a slave, whose log may still arrive."""
        if late := self.deletions.cut(end):
            self._grown(late)
        for name, topic in list(self.table.items()):
            creation = topic.creation
            if creation is not None and creation.log_offset > end:
                self.table[name] = attrs.evolve(topic, creation=attrs.evolve(creation, log_offset=end))
                self._grown({name})

    def _identified(self, topic: TopicConfig) -> TopicConfig:
        """The topic with its creation in the table, or with a new creation, which only a master gives. Raises
        ResponseError while it is being deleted."""
        known = self.table.get(topic.topic_name)
        if known is not None:
            creation = known.creation
        elif self._settings.store.broker_role is BrokerRole.SLAVE:
            creation = None
        else:
            self._check_deletion(topic.topic_name)
            self._created_ms = max(self._now_ms(), self.last_creation_ms + 1)
            earlier_end = self._ends.get(topic.topic_name, 0)
            # Queues that are there without a row, as where topics.json was lost, are the topic's own.
            first = self._first_record(topic.topic_name)
            begin = self._log_end() if first is None else first
            creation = TopicCreation(self._created_ms, begin, earlier_end)
        return topic if topic.creation == creation else attrs.evolve(topic, creation=creation)

    def set_ordered(self, ordered: Collection[str]) -> None:
        """Take over from a name server which topics are ordered. Raises as `update`."""
        if any(topic.order != (name in ordered) for name, topic in self.table.items()):
            table = {name: attrs.evolve(kept, order=name in ordered) for name, kept in self.table.items()}
            self._put(table, None, table)

    def _differs(self, name: str, row: TopicConfig) -> bool:
        known = self.table.get(name)
        return known is None or known != row or known.creation != row.creation

    def _body(self, rows: dict[str, TopicConfig]) -> Body:
        return TopicConfigSerializeWrapper(rows, self.data_version)

    def _file_body(self) -> Body:
        return TopicConfigSerializeWrapper({}, self.data_version, self.deletions.all() or None)

    def _parsed(self, data: bytes) -> tuple[dict[str, TopicConfig], DataVersion]:
        saved = TopicConfigSerializeWrapper.from_json(data)
        self.deletions.take(saved.deleted_topics or {})
        for topic in saved.topic_config_table.values():
            if topic.creation is not None:
                self._created_ms = max(self._created_ms, topic.creation.time_ms)
        return saved.topic_config_table, saved.data_version

    def _model(self, default_topic: str) -> TopicConfig | None:
        if default_topic == AUTO_CREATE_TOPIC and not self._settings.broker.auto_create_topic_enable:
            return None
        model = self.table.get(default_topic)
        return model if model is not None and model.perm & PERM_INHERIT else None


def unknown_topic(topic: str) -> ResponseError:
    """The response for an unknown topic, with the remedy."""
    return for_code(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic[{topic}] not exist, apply first please! "
        f"Create it with `mqadmin updateTopic -t {topic}` or set autoCreateTopicEnable=true on the broker.",
    )
