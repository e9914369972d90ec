"""rmq.broker.admin.topics_and_groups: topics, settings and figures."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import attrs
import pytest

from rmq.broker.config import BrokerConfig
from rmq.config import load_all, parse_properties
from rmq.message import SYSTEM_TOPICS, MessageQueue
from rmq.protocol import bodies
from rmq.protocol.bodies import TopicConfig
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.json import loads as lenient
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.files.disk import DiskUsage
from rmq.testing.disk import MemoryDisk

from ..rig import START, Rig, Wire, aged, send
from ..sessions import body_of, session

GONE = 17


def update_topic(rig: Rig, topic: str = "T", **more: object) -> Command:
    header = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 3,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    } | more
    return rig.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {key: str(value) for key, value in header.items()})


# --- topics ---


def test_a_topic_is_made_and_saved_before_the_answer() -> None:
    rig = Rig()
    reply = update_topic(rig, perm=4, topicSysFlag=1, order="true", topicFilterType="MULTI_TAG")
    assert reply.code == 0
    made = TopicConfig("T", 4, 3, 4, "MULTI_TAG", 1, True)
    assert rig.topics.get("T") == made
    saved = bodies.TopicConfigSerializeWrapper.from_json(rig.saved("topics") or b"")
    assert saved.topic_config_table["T"] == made
    assert saved.data_version.timestamp == START


def test_a_topic_that_cannot_be_saved_is_not_made() -> None:
    rig = Rig()
    rig.fill_disk()
    refused = update_topic(rig)
    assert (refused.code, "disk is full" in (refused.remark or "")) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        True,
    )
    assert rig.topics.get("T") is None


@pytest.mark.parametrize(
    ("topic", "more", "reason"),
    [
        ("../../etc/x", {}, "characters"),
        ("a b", {}, "characters"),
        ("", {}, "blank"),
        ("x" * 128, {}, "128"),
        ("SCHEDULE_TOPIC_XXXX", {}, "conflict with system topic"),
        ("TBW102", {}, "conflict with system topic"),
        ("rmq_sys_x", {}, "conflict with system topic"),
        ("wire-a", {}, "conflict with system topic"),
        ("T", {"readQueueNums": 0}, "readQueueNums of topic T is 0: expected 1 to"),
        ("T", {"writeQueueNums": -1}, "writeQueueNums of topic T is -1"),
        ("T", {"writeQueueNums": 65537}, "writeQueueNums of topic T is 65537"),
        ("T", {"perm": 8}, "perm of topic T is 8"),
        ("T", {"perm": -1}, "perm of topic T is -1"),
        ("T", {"topicFilterType": "OTHER"}, "SINGLE_TAG or MULTI_TAG"),
    ],
)
def test_impossible_topics_are_refused(topic: str, more: dict[str, object], reason: str) -> None:
    rig = Rig()
    before = rig.topics.to_json()
    reply = update_topic(rig, topic, **more)
    assert reply.code == 1
    assert reason in (reply.remark or "")
    assert rig.topics.to_json() == before


def test_deleting_a_topic_takes_its_queues_offsets_and_counters() -> None:
    rig = Rig()
    rig.topic("T")
    rig.topic("Other")
    rig.put("T")
    rig.put("Other")
    rig.stats.put("T", 1, 1)
    rig.offsets.put("g", "T", {0: 1})
    delete = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    sent, deleted = rig.ask(send("T"), delete)  # of one chunk: committed before anything goes
    assert (sent.code, sent.ext["queueOffset"], deleted.code) == (0, "1", 0)
    assert rig.topics.get("T") is None
    assert list(rig.store.queues()) == [("Other", 0)]
    assert rig.offsets.get("g", "T", 0) == -1
    assert rig.stats.windows("TOPIC_PUT_NUMS", "T") is None
    rig.topic("T")
    rig.put("T")
    assert rig.store.max_offset("T", 0) == 1


def test_deleting_what_is_not_there_and_what_may_not_go() -> None:
    rig = Rig()
    assert rig.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Unknown"}).code == 0
    for topic in ("TBW102", "../x"):
        assert rig.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 1
    assert rig.topics.get("TBW102") is not None


def test_a_slave_refuses_changes() -> None:
    rig = Rig(store={"broker_role": BrokerRole.SLAVE})
    rig.topic("T")
    assert "master" in (update_topic(rig, "U").remark or "")
    assert "master" in (rig.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).remark or "")
    assert rig.topics.get("T") is not None


def test_all_topics_are_told() -> None:
    rig = Rig()
    assert rig.call(RequestCode.GET_ALL_TOPIC_CONFIG).body == rig.topics.to_json()


def test_the_ends_of_a_topics_queues() -> None:
    rig = Rig()
    rig.topic("T", 2)
    rig.put("T", 1)
    rig.let_pass(5)
    rig.put("T", 1)
    reply = rig.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    assert bodies.TopicStatsTable.from_json(reply.body).offset_table == {
        MessageQueue("T", "wire-a", 0): bodies.TopicOffset(0, 0, 0),
        MessageQueue("T", "wire-a", 1): bodies.TopicOffset(0, 2, START + 5),
    }
    refused = rig.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "U"})
    assert (refused.code, refused.remark) == (GONE, "topic[U] not exist")


def test_system_topics_are_told() -> None:
    rig = Rig()
    rig.topic("T")
    names = bodies.TopicList.from_json(
        rig.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body
    ).topic_list
    assert SYSTEM_TOPICS | {"wire-a", "WireCluster", "WireCluster_REPLY_TOPIC"} <= set(names)
    assert "T" not in names


def test_queues_of_unknown_topics_are_removed() -> None:
    rig = Rig()
    rig.topic("T")
    for topic in ("T", "Unknown", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
        rig.put(topic)
    assert rig.call(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    kept = {topic for topic, _ in rig.store.queues()}
    assert kept == {"T", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"}


# --- settings ---


def test_settings_are_told_under_rocketmqs_keys() -> None:
    rig = Rig()
    reply = rig.call(RequestCode.GET_BROKER_CONFIG)
    shown = parse_properties(reply.body.decode())
    assert shown["brokerName"] == "wire-a"
    assert shown["mappedFileSizeCommitLog"] == str(1 << 20)
    assert (shown["durability"], shown["flushDiskType"]) == ("memory", "ASYNC_FLUSH")
    assert json.loads(reply.ext["version"]) == {"counter": 0, "timestamp": START}


def configure(rig: Rig, text: str) -> tuple[int, str]:
    reply = rig.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
    return reply.code, reply.remark or ""


def test_settings_change_while_the_broker_runs() -> None:
    rig, given = Rig(), list[tuple[BrokerConfig, StoreConfig]]()
    rig.settings.derive(lambda: given.append((rig.settings.broker, rig.settings.store)))
    given.clear()
    rig.let_pass(7)
    assert configure(rig, "brokerPermission=4\nfileReservedTime=5\n") == (0, "")
    ((broker, store),) = given
    assert (broker.broker_permission, broker.broker_name, store.file_reserved_time) == (4, "wire-a", 5)
    reply = rig.call(RequestCode.GET_BROKER_CONFIG)
    assert b"fileReservedTime=5\n" in reply.body
    assert json.loads(reply.ext["version"]) == {"counter": 1, "timestamp": START + 7}
    assert configure(rig, "brokerPermission=6\n") == (0, "")
    assert given[-1][1].file_reserved_time == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("listenPort=1", "restart"),
        ("mappedFileSizeCommitLog=4096", "restart"),
        ("noSuchKey=1", "not known"),
        ("fileReservedTime=soon", "a whole number"),
        ("brokerPermission=9", "from 0 to 7"),
    ],
)
def test_settings_that_cannot_change_are_refused_whole(text: str, reason: str) -> None:
    rig = Rig()
    code, remark = configure(rig, f"diskMaxUsedSpaceRatio=50\n{text}\n")
    assert code == 1
    assert reason in remark
    assert (rig.settings.broker, rig.settings.store) == (rig.config, rig.store.config)


# --- figures ---


def figures(rig: Rig) -> dict[str, str]:
    return bodies.KVTable.from_json(rig.call(RequestCode.GET_BROKER_RUNTIME_INFO).body).table


def test_the_figures_of_a_broker() -> None:
    rig = Rig()
    assert figures(rig)["earliestMessageTimeStamp"] == "-1"
    rig.topic("T")
    rig.put("T")
    rig.let_pass(1_000)
    rig.put("T")
    rig.stats.put("T", 2, 200)
    shown = figures(rig)
    assert shown["earliestMessageTimeStamp"] == str(START)
    assert shown["commitLogMaxOffset"] == str(rig.store.max_physical_offset)
    assert shown["durability"] == "memory"
    assert shown["remainHowManyDataToFlush"] == f"{rig.store.max_physical_offset} B"
    assert (shown["brokerVersionDesc"], shown["brokerVersion"]) == ("V4_9_7", "407")
    assert (shown["putTps"].split()[0], shown["msgPutTotalTodayNow"]) == ("2.0", "2")
    assert (shown["pullThreadPoolQueueSize"], shown["heldPulls"]) == ("0", "0")
    rig.store.flush()
    assert figures(rig)["remainHowManyDataToFlush"] == "0 B"


def test_the_figures_of_a_broker_whose_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryDisk, "usage", lambda disk, path: DiskUsage(1.0, 480 << 10, 85 << 20))
    answer = Rig().one(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = bodies.KVTable.from_json(answer.body).table
    assert table["commitLogDiskRatio"] == "1.0000"
    assert table["commitLogDirCapacity"] == "Total : 85.0 MiB, Free : 480.0 KiB."


def test_all_rows_that_the_administrators_tools_read() -> None:
    """The rows of a captured answer; those of thread pools and buffers that only a JVM has are idle."""
    shown = figures(Rig()).keys()
    for exchange in session("6_mqadmin"):
        if exchange.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            captured = bodies.KVTable.from_json(body_of(exchange.response or {})).table
            ours_elsewhere = ("EndTransaction", "commitLogDiskRatio_", "scheduleMessageOffset_")
            wanted = {name for name in captured if not name.startswith(ours_elsewhere)}
            assert not wanted - shown


def test_one_counter_over_its_windows() -> None:
    rig = Rig()
    rig.stats.put("T", 10, 100)
    rig.stats.step(START + 10_000)
    rig.let_pass(START + 10_000 - rig.now_ms)
    header = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    body = rig.call(RequestCode.VIEW_BROKER_STATS_DATA, header).body
    data = bodies.BrokerStatsData.from_json(body)
    assert data.stats_minute == bodies.BrokerStatsItem(10, 1.0, 10.0)
    assert data.stats_day.sum == 10
    rig.stats.put("T", 10, 100)
    rig.let_pass(10_000)
    moved = bodies.BrokerStatsData.from_json(rig.call(RequestCode.VIEW_BROKER_STATS_DATA, header).body)
    assert moved.stats_minute == bodies.BrokerStatsItem(20, 1.0, 10.0)  # without waiting for a sample
    refused = rig.call(RequestCode.VIEW_BROKER_STATS_DATA, header | {"statsKey": "U"})
    assert (refused.code, refused.remark) == (1, "The stats <TOPIC_PUT_NUMS> <U> not exist")


def changed(rig: Rig, body: bytes) -> Command:
    return rig.call(RequestCode.UPDATE_BROKER_CONFIG, None, body)


def test_changed_settings_are_kept_in_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# ours\ntransactionCheckMax = 3\n")
    rig = Rig(config=BrokerConfig(broker_name="wire-a", config_store_path=str(file)))
    assert changed(rig, b"transactionCheckMax=9\nfileReservedTime=48").code == 0
    assert file.read_text() == "# ours\ntransactionCheckMax=9\nfileReservedTime=48\n"
    config, store_config = load_all((BrokerConfig, StoreConfig), file)
    assert (config.transaction_check_max, store_config.file_reserved_time) == (9, 48)


def test_settings_that_cannot_be_kept_are_not_changed(tmp_path: Path) -> None:
    rig = Rig(config=BrokerConfig(config_store_path=str(tmp_path / "broker.conf" / "x")))
    (tmp_path / "broker.conf").write_text("a file where a folder is wanted")
    refused = changed(rig, b"transactionCheckMax=9")
    assert (refused.code, refused.remark[:46]) == (1, "nothing was changed: it cannot be kept: [Errno")
    assert rig.settings.broker.transaction_check_max == 15


def test_the_settings_hold_what_only_rocketmqs_exports_read() -> None:
    shown = parse_properties(Rig().call(RequestCode.GET_BROKER_CONFIG).body.decode())
    assert (shown["filterServerNums"], shown["useTLS"]) == ("0", "false")
    assert int(shown["clientCallbackExecutorThreads"]) > 0


def test_delay_offsets_come_from_their_owner() -> None:
    rig = Rig()
    rig.broker.schedule.load(b'{"offsetTable":{1:5}}')
    told = lenient(rig.call(RequestCode.GET_ALL_DELAY_OFFSET).body)
    assert told == {"offsetTable": {"1": 5} | {str(level): 0 for level in range(2, 19)}}


def test_expired_files_of_the_log_go_at_any_hour_when_asked() -> None:
    rig = aged()
    hour = time.localtime(rig.now_ms // 1000).tm_hour
    rig.store.configure(attrs.evolve(rig.store.config, delete_when=f"{(hour + 5) % 24:02}"))
    assert rig.store.clean(rig.now_ms).log_files == 0
    assert rig.call(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    assert rig.disk.list("/store/commitlog") == ["00000000000000012288"]
    rig.put("T")
    assert rig.call(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
    assert rig.store.max_offset("T", 0) == 11


def test_expired_files_of_queues_go_when_asked() -> None:
    rig = aged(mapped_file_size_consume_queue=40)
    folder = "/store/consumequeue/T/0"
    rig.store._queues.write_all(rig.now_ms)
    before = rig.disk.list(folder)
    rig.store._log.segments.remove_first()
    assert rig.disk.list(folder) == before
    assert rig.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    assert len(rig.disk.list(folder)) < len(before)
    assert rig.store.min_offset("T", 0) > 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (270_582_939_648, "252.0 GiB")],
)
def test_sizes_are_shown_as_rocketmq_shows_them(count: int, text: str) -> None:
    from rmq.broker.admin.topics_and_groups import _size

    assert _size(count) == text


def test_the_captured_session_of_an_administrator() -> None:
    rig = Rig()
    rig.topic("WireTopic")
    seen: dict[int, Any] = {}
    for exchange in session("6_mqadmin"):
        if exchange.code in rig.admin.handlers() or exchange.code == RequestCode.GET_TOPIC_STATS_INFO:
            expected = exchange.response
            assert expected is not None
            response = rig.answer(exchange.command(), Wire())
            assert (response.code, bool(response.body)) == (expected["code"], expected["body_len"] > 0)
            seen[exchange.code] = (body_of(expected), response.body)
            if exchange.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
                assert rig.topics.get("AdminTopic") == TopicConfig("AdminTopic", 4, 4)
    assert rig.topics.get("AdminTopic") is None
    theirs, ours = map(bodies.TopicStatsTable.from_json, seen[RequestCode.GET_TOPIC_STATS_INFO])
    assert ours.offset_table.keys() == theirs.offset_table.keys()
    assert set(seen) == {17, 28, 202, 215}


@pytest.mark.parametrize("code", [21, 43, 45, 201])
def test_a_captured_slave_copies_the_tables(code: int) -> None:
    """The responses for a slave have the shape of a Java master's."""
    rig = Rig()
    rig.offsets.put("g", "T", {0: 1})
    rig.broker.schedule.load(b'{"offsetTable":{1:5}}')
    exchanges = [one for one in session("7_master_slave_remoting") if one.code == code]
    assert exchanges
    for exchange in exchanges:
        assert exchange.response is not None
        response = rig.answer(exchange.command(), Wire())
        assert (response.code, response.remark) == (0, None)
        theirs, ours = lenient(body_of(exchange.response)), lenient(response.body)
        assert ours.keys() == theirs.keys()
        table = next(name for name in ours if name.endswith("Table"))
        assert fields_of(ours[table]) >= fields_of(theirs[table])


def fields_of(table: dict[str, Any]) -> set[str]:
    """The fields of a table's rows, where they have any names."""
    return {field for row in table.values() if isinstance(row, dict) for field in row if not field.isdigit()}
