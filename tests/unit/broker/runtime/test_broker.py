"""The whole core: captured sessions of Java clients played to it, faults, restarts, plugins."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.admin import registration as registration_module
from rmq.broker.plugin_host import plugin_host
from rmq.broker.wakeups import Wakeups
from rmq.errors import ResponseError, StoreError
from rmq.message import Message
from rmq.plugin import AccessDenied, Hooks, Plugin, PulledEvent, StoredEvent, hooks_of
from rmq.protocol.bodies import RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import MAX_FRAME, Command
from rmq.protocol.record import decode_records
from rmq.testing.disk import MemoryDisk
from tests.unit.broker.wire import Session, command_of, wire_rig

from ..rig import Rig, Wire, batch, pull, send

# --- sessions that a Java client had with a Java broker ---


def test_a_java_producers_session(golden: Path) -> None:
    """Codes, remarks and header fields equal the Java broker's; ids differ by the address in them."""
    session = Session(golden / "wire_sessions" / "1_producer_send.jsonl")
    rig = wire_rig()
    for line in session.lines:
        if line["dir"] != "c2s":
            continue
        rig.now_ms = int((line.get("ext") or {}).get("g", rig.now_ms))
        got = rig.ask(command_of(line))
        if line["kind"] == "oneway":
            assert got == []
            continue
        java = session.answers()[line["opaque"]]
        (answer,) = got
        assert (answer.opaque, answer.code, answer.remark) == (
            java["opaque"],
            java["code"],
            java.get("remark"),
        )
        assert _without_place(dict(answer.ext), line["code"]) == _without_place(
            java.get("ext") or {}, line["code"]
        )
    assert [message.body for message in rig.messages("WireTopic", 2)[:2]] == [b"sync send", b"async send"]
    assert len(rig.messages("WireTopic", 0)) == 3
    assert len(rig.messages("SCHEDULE_TOPIC_XXXX", 0)) == 1


def _without_place(ext: dict[str, str], code: int) -> dict[str, str]:
    """Header fields without what depends on the address, on record sizes and on the clock."""
    kept = dict(ext)
    if "msgId" in kept:
        kept["msgId"] = str(len(kept["msgId"]))
    if code in (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_EARLIEST_MSG_STORETIME):
        kept.clear()
    return kept


def test_a_java_push_consumers_session(golden: Path) -> None:
    """Start, rebalance, pulls, long polls with and without an arrival, one message sent back, offsets."""
    session = Session(golden / "wire_sessions" / "3_push_consumer.jsonl")
    rig = wire_rig()
    producer = Session(golden / "wire_sessions" / "1_producer_send.jsonl")
    for line in producer.lines:
        if line["dir"] == "c2s" and line["code"] in (310, 320):
            rig.ask(command_of(line), wire=Wire())
    rig.now_ms += 1000
    rig.broker.steps.schedule()  # the delayed one is there when the consumer starts
    got: dict[int, Command] = {}
    sent: set[int] = set()
    start_ms, start = rig.now_ms, rig.seconds
    for line in session.lines:
        rig.now_ms, rig.seconds = start_ms + line["t"], start + line["t"] / 1000
        rig.broker.steps.schedule()
        rig.broker.steps.deadlines(rig.seconds)
        if line["dir"] != "c2s":
            continue
        sent.add(line["opaque"])
        request = command_of(line)
        if line["code"] == RequestCode.CONSUMER_SEND_MSG_BACK:
            # The captured broker's log had other sizes before this message, so it lies elsewhere here.
            last = rig.messages("WireTopic", 0)[-1]
            request = Command(36, line["opaque"], 0, {**line["ext"], "offset": str(last.physical_offset)})
        if line["code"] == RequestCode.PULL_MESSAGE:
            _arrive(rig, line["ext"])
        got |= {answer.opaque: answer for answer in rig.ask(request) if answer.is_response}
    rig.broker.parked_pulls.finish_where(lambda pull: True)
    got |= {answer.opaque: answer for answer in rig.wire.take() if answer.is_response}
    java = {opaque: line for opaque, line in session.answers().items() if opaque in sent}
    assert got.keys() >= java.keys()  # those that still waited at the end were not answered there
    for opaque, line in java.items():
        if line["answers"] == "PULL_MESSAGE" and line["code"] == ResponseCode.SUBSCRIPTION_NOT_LATEST:
            continue  # there two threads raced; here the heartbeat before the pull has been handled
        assert got[opaque].code == line["code"], line
        assert got[opaque].remark == line.get("remark")
        assert dict(got[opaque].ext) == (line.get("ext") or {}), line


def _arrive(rig: Rig, ext: dict[str, str]) -> None:
    """Store what was produced meanwhile, so that the queue holds what the consumer has read already."""
    topic, queue_id, offset = ext["topic"], int(ext["queueId"]), int(ext["queueOffset"])
    while rig.store.max_offset(topic, queue_id) < offset:
        assert rig.ask(send(topic, queue_id=queue_id), wire=Wire())[0].code == 0


# --- the chunk ---


def test_an_unknown_request_is_refused_and_the_others_are_not(rig: Rig) -> None:
    unknown, sent = rig.ask(Command.request(4711), send())
    assert (unknown.code, unknown.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        " request type 4711 not supported",
    )
    assert sent.code == 0


def test_a_header_without_a_needed_field_is_refused_by_name(rig: Rig) -> None:
    answer = rig.one(Command.request(RequestCode.PULL_MESSAGE, {"topic": "x"}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup" in (answer.remark or "")


def test_an_error_that_nobody_expected_is_answered_and_logged(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(rig.broker.handlers, 33, broken)
    bad, good = rig.ask(Command.request(33, {"offset": "0"}), send())
    assert (bad.code, bad.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug")
    assert good.code == 0
    assert "broken" in caplog.text


def test_a_transaction_that_ends_in_the_middle_of_a_chunk_leaves_no_sender_without_answer(rig: Rig) -> None:
    """The end of the transaction commits the pending sends, including the sends before it."""
    half = rig.one(send(properties="TRAN_MSG\x01true\x02PGROUP\x01pay", sys_flag=4, body=b"half"))
    header = {
        "producerGroup": "pay",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": half.ext["msgId"],
    }
    end = Command.request(RequestCode.END_TRANSACTION, header)
    answers = rig.ask(send(body=b"1"), end, send(body=b"2"))
    assert sorted(answer.code for answer in answers) == [0, 0, 0]
    assert rig.bodies("Orders") == [b"1", b"half", b"2"]


def test_a_failed_write_in_the_middle_of_a_chunk_refuses_the_senders_before_it(rig: Rig) -> None:
    half = rig.one(send(properties="TRAN_MSG\x01true\x02PGROUP\x01pay", sys_flag=4, body=b"half"))
    header = {
        "producerGroup": "pay",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "msgId": half.ext["msgId"],
    }
    end = Command.request(RequestCode.END_TRANSACTION, header)
    rig.disk.fail("write", "commitlog")
    first, last = send(body=b"1"), send()
    answers = {answer.opaque: answer.code for answer in rig.ask(first, end, last)}
    assert answers[first.opaque] == answers[end.opaque] == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answers[last.opaque] == 0
    assert rig.one(end).code == 0
    assert rig.bodies("Orders") == [b"hello", b"half"]


# --- restarts ---


def reopened(rig: Rig, disk: MemoryDisk) -> Rig:
    return Rig(disk=disk, store={"flush_disk_type": rig.store_config.flush_disk_type})


def test_after_a_clean_stop_everything_is_there(rig: Rig) -> None:
    rig.ask(send(), batch(queue_id=1))
    rig.ask(pull(sys_flag=4 | 1, commit_offset=1))
    for name, data in rig.broker.saves().items():
        rig.store.save_config(name, data)
    rig.store.close()
    again = reopened(rig, rig.disk)
    assert again.bodies("Orders") == [b"hello"]
    assert again.bodies("Orders", 1) == [b"a", b"b", b"c"]
    assert again.broker.offsets.get("readers", "Orders", 0) == 1
    assert "readers" in again.broker.groups.table


def test_after_a_kill_every_acknowledged_message_is_there_in_a_known_topic(rig: Rig) -> None:
    """No loop flushed or saved: only the acknowledgement itself has made the message and its topic safe."""
    for number in range(5):
        assert rig.one(send(f"Topic{number}", b"%d" % number)).code == 0
    again = reopened(rig, rig.disk.copy())
    for number in range(5):
        assert again.bodies(f"Topic{number}") == [b"%d" % number]
        assert again.broker.topics.get(f"Topic{number}") is not None


def test_offsets_that_cannot_be_saved_are_saved_later(rig: Rig) -> None:
    rig.one(send())
    rig.ask(pull(sys_flag=4 | 1, commit_offset=1))
    assert list(rig.broker.saves()) == ["subscriptionGroup", "consumerOffset"]
    rig.ask(send(), pull(sys_flag=4 | 1, commit_offset=0), pull(sys_flag=4 | 1, commit_offset=2))
    saves = rig.broker.saves()
    assert list(saves) == ["consumerOffset"]
    rig.broker.files.not_saved(saves)
    assert rig.broker.saves() == saves
    assert rig.broker.saves() == {}


# --- registration ---


def test_what_name_servers_are_told(rig: Rig) -> None:
    registration = rig.broker.registration
    request = registration.register()
    assert request.code == RequestCode.REGISTER_BROKER
    assert request.ext["brokerAddr"] == "10.0.0.9:10911"
    assert request.ext["haServerAddr"] == "10.0.0.9:10912"
    assert b'"TBW102"' in request.body
    told = registration.register().body
    rig.one(send("New"))
    assert b'"New"' in registration.register().body
    assert registration.register().body != told
    wrapper = TopicConfigSerializeWrapper(rig.broker.topics.table, registration.version)
    assert registration.register().body == RegisterBrokerBody(wrapper).encode()


def test_a_name_server_that_has_this_version_need_not_be_told_again(rig: Rig) -> None:
    registration = rig.broker.registration
    version = registration.version.to_json()
    question = registration.query_version()
    assert not registration.is_stale(question.reply(0, None, {"changed": "false"}, version))
    assert registration.is_stale(question.reply(0, None, {"changed": "true"}, version))
    assert registration.is_stale(question.reply(0, None, {"changed": "false"}, b'{"counter":99}'))
    assert registration.is_stale(question.reply(1, "no"))
    rig.one(send("New"))
    assert registration.is_stale(question.reply(0, None, {"changed": "false"}, version))


def test_a_broker_that_may_not_be_written_tells_that_for_all_topics() -> None:
    rig = Rig(broker_permission=4)
    body = json.loads(rig.broker.registration.register().body)
    table = body["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert {topic["perm"] for topic in table.values()} == {4}


def test_many_topics_are_told_compressed_as_rocketmq_reads_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60,000 retry topics made a frame that no name server takes: the broker was off it for good."""
    monkeypatch.setattr(registration_module, "PLAIN_BYTES", 20_000)
    registration = rig.broker.registration
    assert registration.register().ext["compressed"] == "false"
    rig.ask(*(send(f"Topic-{number}") for number in range(200)))
    request = registration.register()
    assert request.ext["compressed"] == "true"
    assert len(request.body) < 10_000
    assert request.ext["bodyCrc32"] == str(zlib.crc32(request.body) & 0x7FFF_FFFF)
    wrapper = RegisterBrokerBody.decode(request.body, compressed=True).topic_config_serialize_wrapper
    assert wrapper.topic_config_table.keys() == rig.broker.topics.table.keys()
    assert wrapper.data_version == registration.version
    for number in range(200):
        rig.broker.topics.delete(f"Topic-{number}")
    assert registration.register().ext["compressed"] == "false"


def test_as_many_topics_as_are_made_unasked_fit_a_registration() -> None:
    assert Rig().config.max_auto_created_topics == 20_000  # and half as many for retries and dead letters
    rig = Rig(max_auto_created_topics=2_000)
    topics = rig.broker.topics
    name = "x" * 118
    made = (f"%RETRY%{number:05}{name}"[:127] for number in range(3_000))
    topics.table = {topic: TopicConfig(topic, 1, 1) for topic in made}
    with pytest.raises(ResponseError, match="maxAutoCreatedTopics"):
        topics.create_retry("%RETRY%one-more", 6, 1)
    assert 10 * len(topics.to_json()) < MAX_FRAME * 0.9  # a slave copies it


def test_registrations_of_many_topics_are_told_together(rig: Rig) -> None:
    registration = rig.broker.registration
    registration.register()
    assert registration.pause == 0
    rig.broker.topics.table |= {f"T{number}": TopicConfig(f"T{number}") for number in range(15_000)}
    rig.one(send("New"))
    registration.register()
    assert 1 < registration.pause <= 10


# --- plugins ---


class Recorder(Plugin):
    """Sees everything; refuses what comes from 6.6.6.6."""

    def __init__(self, host: Any) -> None:
        super().__init__({}, host)
        self.events: list[Any] = []

    def on_request(self, peer: Any, command: Command) -> None:
        if peer.peer_address.startswith("6.6.6.6"):
            raise AccessDenied(remark="not you")

    def on_response(self, peer: Any, command: Command, response: Command) -> None:
        self.events.append((command.code, response.code))

    def on_stored(self, event: StoredEvent) -> None:
        self.events.append((event.topic, event.count))

    def on_pulled(self, event: PulledEvent) -> None:
        self.events.append((event.group, event.count))


def test_plugins_see_and_refuse(rig: Rig) -> None:
    plugin = Recorder(plugin_host(rig.broker))
    rig.broker.use_plugins(hooks_of([("recorder", plugin)]))
    answer = rig.one(send(), wire=Wire("6.6.6.6:1"))
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")
    assert rig.one(send()).code == 0
    rig.ask(pull())
    assert plugin.events == [(310, 16), ("Orders", 1), ("readers", 1)]
    rig.broker.use_plugins(Hooks())
    assert rig.one(send(), wire=Wire("6.6.6.6:1")).code == 0


def test_a_gate_that_breaks_refuses_and_an_observer_that_breaks_does_not(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Plugin):
        def on_stored(self, event: StoredEvent) -> None:
            raise RuntimeError("observer")

    class Worse(Plugin):
        def on_request(self, peer: Any, command: Command) -> None:
            raise RuntimeError("gate")

    host = plugin_host(rig.broker)
    rig.broker.use_plugins(hooks_of([("broken", Broken({}, host))]))
    assert rig.one(send()).code == 0
    assert "observer" in caplog.text
    rig.broker.use_plugins(hooks_of([("worse", Worse({}, host))]))
    answer = rig.one(send())
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "gate" not in (answer.remark or "")


def test_a_plugin_can_store_messages(rig: Rig) -> None:
    host = plugin_host(rig.broker)
    reader = Wire()
    host.put(Message("Traces", b"first", tags="t", keys=("k",)))
    queue_id = next(queue_id for topic, queue_id in rig.store.queues() if topic == "Traces")
    (message,) = rig.messages("Traces", queue_id)
    assert (message.body, message.tags, message.keys) == (b"first", "t", ("k",))
    waiting = pull("Traces", 1, queue_id=queue_id, sys_flag=6)
    assert rig.ask(waiting, wire=reader) == []
    for _ in range(rig.config.default_topic_queue_nums):
        host.put(Message("Traces", b"next"))
    (answer,) = reader.take()
    assert [message.body for message in decode_records(answer.body)] == [b"next"]
    assert host.stats()["heldPulls"] == "0"
    rig.disk.fail("write", "commitlog")
    with pytest.raises(StoreError):
        host.put(Message("Traces", b"lost"))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_full_disk_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.one(send())
    with caplog.at_level("WARNING", "rmq.broker"):
        for capacity, rounds in ((100, 3), (1 << 40, 3)):
            rig.disk.capacity = capacity
            rig.let_pass(2_000)
            for _ in range(rounds):
                rig.broker.flow.round_took(0.0)
    said = [one.getMessage() for one in caplog.records if one.levelname != "INFO"]
    assert len(said) == 2
    assert said[0].startswith("NO MESSAGES ARE TAKEN: ")
    assert said[1].startswith("messages are taken again: the disk is ")


def test_an_overload_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level("WARNING", "rmq.broker"):
        for seconds in (0.3, 0.3, 0.3, 0.15, 0.05, 0.0):
            rig.broker.flow.round_took(seconds)
    said = [one.getMessage() for one in caplog.records if one.levelname != "INFO"]
    assert said == [
        "the broker is overloaded: sends would wait for 300 ms and are refused",
        "the broker is no longer overloaded: it takes sends again",
    ]


def test_a_permission_that_changes_is_told_to_name_servers_as_another_version() -> None:
    rang: list[bool] = []
    rig = Rig(given={"wake": Wakeups(register=lambda: rang.append(True))})
    rig.one(send("Orders"))
    registration = rig.broker.registration
    before, rings = registration.version, len(rang)

    def allowed() -> set[int]:
        table = RegisterBrokerBody.decode(registration.register().body, compressed=False)
        return {topic.perm for topic in table.topic_config_serialize_wrapper.topic_config_table.values()}

    assert 6 in allowed()
    answer = rig.one(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4"))
    assert (answer.code, registration.version != before, len(rang) > rings) == (0, True, True)
    assert allowed() == {4}
    rig.one(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6"))
    assert 6 in allowed()
    assert rig.one(send("Orders")).code == 0
