"""The append under all: a plug-in's message keeps every rule of a send, and the broker's own records go to
queues that their topics have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rmq.broker
from rmq.broker.plugin_host import plugin_host
from rmq.broker.produce.append import OwnWrites
from rmq.errors import ResponseError, StoreError
from rmq.message import PROPERTY_CLUSTER, PROPERTY_WAIT_STORE, SCHEDULE_TOPIC, TIMER_TOPIC, Message
from rmq.plugin import Appended, Plugin, StoredEvent, hooks_of
from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq.protocol.codes import PERM_READ, SYS_COMMIT, SYS_PREPARED, RequestCode, ResponseCode
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader, EndTransactionRequestHeader
from rmq.protocol.record import Record
from rmq.store.config import BrokerRole, FlushDiskType
from tests.unit.broker.rig import Rig, send


def refused(rig: Rig, message: Message) -> ResponseError:
    """The refusal of a plug-in's message; no part of the message is stored."""
    end = rig.store.max_physical_offset
    with pytest.raises(ResponseError) as raised:
        plugin_host(rig.broker).put(message)
    assert rig.store.max_physical_offset == end
    return raised.value


# ---- the rules of a send ----


def test_a_plugin_s_message_over_max_message_size_is_refused_as_a_send_is() -> None:
    rig = Rig(store={"max_message_size": 1000})
    assert rig.one(send("T", b"x" * 2000)).code == ResponseCode.MESSAGE_ILLEGAL
    error = refused(rig, Message("T", b"x" * 2000))
    assert error.code == ResponseCode.MESSAGE_ILLEGAL
    assert "2000 bytes" in str(error)
    assert "maxMessageSize" in str(error)


def test_a_plugin_s_message_is_refused_by_a_broker_that_closes_as_a_send_is() -> None:
    rig = Rig()
    rig.broker.flow.close("it stops")
    assert rig.one(send("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    error = refused(rig, Message("T", b"x"))
    assert (error.code, "it stops" in str(error)) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TIMER_TOPIC])
def test_a_plugin_s_message_to_a_reserved_topic_is_refused_as_a_send_is(topic: str) -> None:
    rig = Rig()
    assert rig.one(send(topic)).code == ResponseCode.NO_PERMISSION
    assert refused(rig, Message(topic, b"x")).code == ResponseCode.NO_PERMISSION


def test_a_plugin_s_delayed_message_is_delayed() -> None:
    rig = Rig()
    rig.topic("T", 1)
    plugin_host(rig.broker).put(Message("T", b"x", delay_level=3))
    assert (rig.bodies("T"), rig.store.max_offset(SCHEDULE_TOPIC, 2)) == ([], 1)
    rig.let_pass(10_000)
    rig.broker.steps.schedule()
    assert rig.bodies("T") == [b"x"]


@pytest.mark.parametrize("times", [{"delay_ms": 5000}, {"deliver_at_ms": 1_700_000_005_000}])
def test_a_plugin_s_message_with_a_time_waits_for_it(times: dict[str, int]) -> None:
    rig = Rig()
    rig.topic("T", 1)
    plugin_host(rig.broker).put(Message("T", b"x", **times))  # type: ignore[arg-type]
    assert rig.bodies("T") == []
    rig.let_pass(5000)
    rig.broker.steps.schedule()
    assert rig.bodies("T") == [b"x"]


def test_a_plugin_s_message_to_a_topic_that_may_not_be_written_is_refused() -> None:
    rig = Rig()
    rig.topic("T", 2, perm=PERM_READ)
    assert refused(rig, Message("T", b"x")).code == ResponseCode.NO_PERMISSION
    assert (
        refused(Rig(auto_create_topic_enable=False), Message("U", b"x")).code == ResponseCode.TOPIC_NOT_EXIST
    )


def test_a_plugin_s_message_lies_in_the_log_as_a_sent_one_does() -> None:
    rig = Rig()
    rig.topic("T", 1)
    plugin_host(rig.broker).put(Message("T", b"x", tags="a", properties={"REAL_TOPIC": "U"}))
    (message,) = rig.messages("T")
    assert message.properties[PROPERTY_CLUSTER] == "WireCluster"
    assert PROPERTY_WAIT_STORE not in message.properties
    assert "REAL_TOPIC" not in message.properties
    assert [row[:2] for row in rig.stats.totals_in()] == [("T", 1)]


# ---- the outcome ----


def test_a_plugin_is_told_where_its_message_lies() -> None:
    rig, outcomes = Rig(), list[Appended]()
    rig.topic("T", 2)
    host = plugin_host(rig.broker)
    for _ in range(3):
        host.put(Message("T", b"x"), outcomes.append)
    assert [(one.queue_id, one.queue_offset, one.error) for one in outcomes] == [
        (0, 0, None),
        (1, 0, None),
        (0, 1, None),
    ]
    assert outcomes[2].message_id == rig.messages("T", 0)[1].offset_message_id


def test_a_plugin_is_told_once_the_disk_has_its_message() -> None:
    rig, outcomes = Rig(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}), list[Appended]()
    rig.topic("T", 1)
    host = plugin_host(rig.broker)
    host.put(Message("T", b"x"), outcomes.append)
    assert outcomes == []
    assert rig.broker.acknowledgement.waiting == 1
    rig.broker.on_synced(rig.store.max_physical_offset)
    assert [one.error for one in outcomes] == [None]
    host.put(Message("T", b"y"), outcomes.append)
    rig.let_pass(rig.store_config.sync_flush_timeout)
    rig.broker.steps.deadlines(rig.seconds)
    error = outcomes[1].error
    assert error is not None
    assert error.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert outcomes[1].message_id


def test_a_plugin_is_told_that_its_message_could_not_be_written() -> None:
    rig, outcomes = Rig(), list[Appended]()
    rig.topic("T", 1)
    host = plugin_host(rig.broker)
    rig.disk.fail("write", "commitlog")
    host.put(Message("T", b"x"), outcomes.append)
    (outcome,) = outcomes
    assert outcome.error is not None
    assert (outcome.queue_offset, outcome.message_id) == (-1, "")
    rig.disk.fail("write", "commitlog")
    with pytest.raises(StoreError):
        host.put(Message("T", b"x"))


def test_a_plugin_is_told_once_its_new_topic_is_saved() -> None:
    from rmq.broker.wakeups import Wakeups

    rig, outcomes = Rig(given={"wake": Wakeups(new_topics=lambda: None)}), list[Appended]()
    plugin_host(rig.broker).put(Message("New", b"x"), outcomes.append)
    assert outcomes == []
    rig.broker.group_commit.save_topics()
    assert [one.error for one in outcomes] == [None]


def test_an_error_of_a_plugin_s_own_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    rig, outcomes = Rig(), list[Appended]()
    rig.topic("T", 1)

    def broken(outcome: Appended) -> None:
        raise RuntimeError("mine")

    plugin_host(rig.broker).put(Message("T", b"x"), broken)
    plugin_host(rig.broker).put(Message("T", b"x"), outcomes.append)
    assert "mine" in caplog.text
    assert len(outcomes) == 1


def test_a_message_of_a_plugin_that_answers_a_stored_event_ends() -> None:
    rig = Rig()

    class Echo(Plugin):
        def on_stored(self, event: StoredEvent) -> None:
            self.host.put(Message("Echoes", b"x"))

    rig.broker.use_plugins(hooks_of([("echo", Echo({}, plugin_host(rig.broker)))]))
    rig.topic("T", 1)
    rig.topic("Echoes", 1)
    assert rig.one(send("T")).code == 0
    assert rig.bodies("Echoes") == [b"x"]


# ---- the broker's own records ----


def shrunk(rig: Rig, name: str, queues: int) -> None:
    rig.topics.update(TopicConfig(name, queues, queues))


def test_a_delayed_message_for_a_queue_that_is_gone_goes_to_one_that_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    rig.topic("T", 8)
    for _ in range(3):
        assert rig.one(send("T", queue_id=7, properties="DELAY\x011")).code == 0
    shrunk(rig, "T", 2)
    rig.let_pass(1000)
    rig.broker.steps.schedule()
    assert [len(rig.bodies("T", queue_id)) for queue_id in (0, 1, 7)] == [0, 3, 0]
    lines = [line for line in caplog.messages if "queue 7" in line]
    assert len(lines) == 1
    assert "topic T" in lines[0]
    assert "queue 1" in lines[0]


def test_a_timed_message_for_a_queue_that_is_gone_goes_to_one_that_is_there() -> None:
    rig = Rig()
    rig.topic("T", 8)
    rig.one(send("T", b"timed", queue_id=7, properties="TIMER_DELAY_MS\x015000"))
    shrunk(rig, "T", 2)
    rig.let_pass(5000)
    rig.broker.steps.schedule()
    assert (rig.bodies("T", 1), rig.bodies("T", 7)) == ([b"timed"], [])


def test_a_committed_message_for_a_queue_that_is_gone_goes_to_one_that_is_there() -> None:
    rig = Rig()
    rig.topic("T", 8)
    properties = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01K"
    answer = rig.one(send("T", b"half", queue_id=7, sys_flag=SYS_PREPARED, properties=properties))
    shrunk(rig, "T", 2)
    offset = int(answer.ext["msgId"][-16:], 16)
    header = EndTransactionRequestHeader("producers", 0, offset, SYS_COMMIT, msg_id="K")
    assert rig.call(RequestCode.END_TRANSACTION, header).code == 0
    assert (rig.bodies("T", 1), rig.bodies("T", 7)) == ([b"half"], [])


def test_retries_go_to_queues_that_the_retry_topic_has() -> None:
    rig = Rig()
    rig.topic("T", 1)
    rig.topics.create_retry("%RETRY%readers", 6, 1)
    rig.groups.update(SubscriptionGroupConfig("readers", retry_queue_nums=2))
    for _ in range(20):
        at = rig.put("T")
        header = ConsumerSendMsgBackRequestHeader(at, "readers", 1)
        assert rig.call(RequestCode.CONSUMER_SEND_MSG_BACK, header).code == 0
    rig.let_pass(1000)
    rig.broker.steps.schedule()
    config = rig.topics.get("%RETRY%readers")
    assert config is not None
    found = [len(rig.bodies("%RETRY%readers", queue_id)) for queue_id in range(config.read_queue_nums)]
    assert sum(found) == 20


@pytest.mark.parametrize(
    ("write", "read", "queue_id", "chosen"),
    [(4, 4, 3, 3), (4, 4, 5, 1), (2, 8, 7, 1), (8, 2, 7, 1), (0, 4, 3, 3), (0, 0, 3, 0), (4, 4, -1, 3)],
)
def test_the_queue_is_one_that_senders_write_and_consumers_read(
    write: int, read: int, queue_id: int, chosen: int
) -> None:
    rig = Rig()
    rig.topics.update(TopicConfig("T", read, write))
    assert rig.broker.own_writes.queue_of("T", queue_id) == chosen


def test_a_record_of_a_topic_that_is_gone_goes_to_the_queue_that_every_topic_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    assert rig.broker.own_writes.queue_of("Gone", 7) == 0
    assert "topic Gone" in caplog.text
    assert "does not exist" in caplog.text


def test_the_broker_s_own_topics_keep_their_queues() -> None:
    rig = Rig(store={"message_delay_level": " ".join(f"{n}s" for n in range(1, 41))})
    assert rig.broker.own_writes.queue_of(SCHEDULE_TOPIC, 39) == 39


def test_moved_records_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    own = OwnWrites(rig.store, rig.topics, lambda: rig.seconds)
    for number in range(1000):
        own.queue_of(f"Gone{number}", 1)
        own.queue_of("Gone0", 1)
    assert len(caplog.messages) == 101
    rig.let_pass(60_000)
    own.queue_of("Gone0", 1)
    assert "last line: 1001)" in caplog.messages[-1]
    assert own.moved == 2001


def test_a_moved_record_keeps_the_order_of_its_queue() -> None:
    rig = Rig()
    rig.topic("T", 3)
    own = rig.broker.own_writes
    assert {queue_id: own.queue_of("T", queue_id) for queue_id in range(3, 9)} == {
        3: 0,
        4: 1,
        5: 2,
        6: 0,
        7: 1,
        8: 2,
    }


def test_only_the_append_puts_into_the_store() -> None:
    """Another part would write where no reader looks, or past the rules of a send."""
    folder = Path(rmq.broker.__file__).parent
    found = {
        path.name
        for path in folder.rglob("*.py")
        if re.search(r"store\.(put|put_batch)\(", path.read_text("utf-8"))
    }
    assert found == {"append.py"}


def test_a_slave_stores_no_message_of_a_plugin() -> None:
    rig = Rig(store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
    with pytest.raises(ResponseError, match="slave"):
        plugin_host(rig.broker).put(Message("T", b"x"))
    with pytest.raises(StoreError, match="slave"):
        rig.broker.own_writes.put(Record("T", 0, b"x"))
