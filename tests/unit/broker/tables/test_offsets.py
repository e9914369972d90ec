"""rmq.broker.tables.offsets: where groups go on, and what is kept of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.tables.offsets import FLOORS, decode_offsets, encode_offsets, log_losses
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import RemoteProtocolError, ResponseError
from rmq.message import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from rmq.protocol import json
from rmq.protocol.bodies import ConsumerOffsetSerializeWrapper, SubscriptionGroupConfig
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import UpdateConsumerOffsetRequestHeader

from ..rig import START, Rig, Wire, aged, send
from ..sessions import session

NOT_FOUND = 22


def filled(count: int = 10, topic: str = "T", **settings: Any) -> Rig:
    """A rig with `count` messages in queue 0 of a topic with 4 queues."""
    rig = Rig(store=settings)
    rig.topic(topic)
    for _ in range(count):
        rig.put(topic)
    return rig


# --- the table ---


def test_what_is_committed_is_kept_for_each_group_topic_and_queue() -> None:
    rig = filled(3)
    rig.topic("U")
    rig.offsets.commit("g", "T", 0, 3)
    rig.offsets.commit("g", "T", 1, 0)
    rig.offsets.commit("h", "T", 0, 2)
    assert rig.offsets.get("g", "T", 0) == 3
    assert rig.offsets.get("g", "T", 1) == 0
    assert rig.offsets.get("h", "T", 0) == 2
    assert [rig.offsets.get(*key) for key in (("g", "T", 2), ("x", "T", 0), ("g", "U", 0))] == [-1, -1, -1]
    assert rig.offsets.of("g", "T") == {0: 3, 1: 0}
    assert rig.offsets.topics_of("g") == {"T"}
    assert rig.offsets.groups_of("T") == {"g", "h"}


def test_a_slave_takes_the_rows_that_its_master_tells_but_those_of_transactions() -> None:
    """Rows of transactions may be ahead of the slave's log: if it were elected with them, it would count ends
    as done that its log lacks. The progress of transactions comes with the log."""
    rig = Rig()
    rig.become_slave()
    halves = f"{TRANS_HALF_TOPIC}@{TRANSACTION_GROUP}"
    rig.offsets.put(TRANSACTION_GROUP, TRANS_HALF_TOPIC, {0: 3})
    rig.offsets.apply_delta({halves: {0: 9}, "T@g": {0: 5}}, None, None)
    assert rig.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == 3
    assert rig.offsets.get("g", "T", 0) == 5
    assert not rig.offsets.apply_delta({halves: {0: 9}}, None, [halves])
    rig.offsets.apply_delta({}, None, None)
    assert rig.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == 3
    assert rig.offsets.get("g", "T", 0) == -1


def test_an_offset_that_the_queue_never_reached_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled(5)
    rig.offsets.commit("g", "T", 0, 2)
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        rig.offsets.commit("g", "T", 0, 9, "10.0.0.1:1")
        rig.offsets.commit("h", "T", 0, 9)
    assert rig.offsets.get("g", "T", 0) == 2
    assert rig.offsets.pairs() == [("T", "g")]
    assert "10.0.0.1:1 commits 9 beyond the end of T@g queue 0: it is dropped" in caplog.text


def test_an_offset_behind_lost_messages_becomes_the_one_at_which_they_were() -> None:
    rig = filled(5)
    rig.store.may_have_lost()
    rig.put("T")
    rig.offsets.commit("g", "T", 0, 9)
    assert rig.offsets.get("g", "T", 0) == 5  # the message that is new there is not skipped
    rig.offsets.commit("g", "T", 0, 6)
    rig.offsets.commit("g", "T", 0, 9)
    assert rig.offsets.get("g", "T", 0) == 6  # nor is one that was consumed consumed again


def test_a_slave_keeps_what_its_master_says() -> None:
    rig = filled(5)
    rig.become_slave()
    rig.offsets.commit("g", "T", 0, 9)
    assert rig.offsets.get("g", "T", 0) == 9
    rig.offsets.load(b'{"offsetTable":{"T@h":{0:7}}}')
    assert rig.offsets.get("h", "T", 0) == 7


def test_an_offset_may_go_back_but_not_below_zero(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled(5)
    rig.offsets.commit("g", "T", 0, 5)
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        rig.offsets.commit("g", "T", 0, 2)
        assert rig.offsets.get("g", "T", 0) == 2
        rig.offsets.commit("g", "T", 0, -1)
    assert rig.offsets.get("g", "T", 0) == 2
    assert "from 5 back to 2" in caplog.text
    assert "from 2 back to -1" in caplog.text


def test_deleted_topics_and_groups_are_forgotten() -> None:
    rig = filled(1)
    for topic, group in (("T", "g"), ("TT", "g"), ("T", "gg")):
        rig.offsets.put(group, topic, {0: 1})
    rig.offsets.delete_topic("T")
    assert rig.offsets.groups_of("T") == set()
    assert rig.offsets.of("g", "TT") == {0: 1}
    rig.offsets.put("gg", "T", {0: 1})
    rig.offsets.delete_group("g")
    assert rig.offsets.topics_of("g") == set()
    assert rig.offsets.of("gg", "T") == {0: 1}


def test_clone_copies() -> None:
    rig = filled(3)
    rig.offsets.put("g", "T", {0: 1, 1: 2})
    rig.offsets.clone("g", "h", "T")
    rig.offsets.commit("g", "T", 0, 3)
    assert rig.offsets.of("h", "T") == {0: 1, 1: 2}
    rig.offsets.clone("nobody", "h", "T")
    assert rig.offsets.of("h", "T") == {0: 1, 1: 2}


# --- the file ---


def test_a_captured_file_loads_and_comes_back(golden: Path) -> None:
    text = (golden / "store" / "config" / "consumerOffset.json").read_bytes()
    rig = Rig()
    rig.become_slave()  # the queues of that store are not here
    rig.offsets.load(text)
    assert rig.offsets.of("golden_group", "TopicTest") == {0: 20, 1: 8, 2: 2, 3: 62}
    assert rig.offsets.get("golden_retry_group", "%RETRY%golden_retry_group", 0) == 1
    assert json.loads(rig.offsets.to_json()) == json.loads(text)


def test_saved_only_when_changed() -> None:
    rig = filled(3)
    assert not rig.offsets.is_changed
    rig.offsets.commit("g", "T", 0, 1)
    assert rig.offsets.is_changed
    assert run_to_end(rig.offsets.text()) == b'{"offsetTable":{"T@g":{0:1}},"lastCreationMs":%d}' % START
    assert not rig.offsets.is_changed
    rig.offsets.commit("g", "T", 0, 1)
    assert not rig.offsets.is_changed
    rig.offsets.delete_group("g")
    assert rig.offsets.is_changed
    assert run_to_end(rig.offsets.text()) == b'{"offsetTable":{},"lastCreationMs":%d}' % START


def test_the_text_is_made_in_slices_and_is_that_of_the_moment_at_which_it_was_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rmq.broker.tables.offsets.SLICE_OFFSETS", 2)
    rig = filled(9)
    for group in "abcdef":
        rig.offsets.commit(group, "T", 0, 3)
        rig.offsets.commit(group, "T", 1, 0)
    before = run_to_end(rig.offsets.text())
    work = rig.offsets.text()
    for group in "ab":  # behind the slice, and before it
        next(work)
        rig.offsets.commit(group, "T", 0, 4)
        rig.offsets.commit("e", "T", 0, 5 + (group == "b"))
    rig.offsets.put("f", "T", {2: 1})
    rig.offsets.commit("new", "T", 0, 1)
    rig.offsets.delete_group("d")
    rig.offsets.clone("e", "c", "T")
    assert run_to_end(work) == before
    assert rig.offsets.is_changed
    after = json.loads(run_to_end(rig.offsets.text()))["offsetTable"]
    assert {key[-1]: queues["0"] for key, queues in after.items()} == {
        "a": 4, "b": 4, "c": 6, "e": 6, "f": 3, "w": 1
    }  # fmt: skip


def test_a_slave_takes_a_table_in_slices_and_knows_whether_it_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rmq.broker.tables.offsets.SLICE_OFFSETS", 2)
    rig = Rig()
    rig.become_slave()
    text = b'{"offsetTable":{"T@a":{0:1,1:2},"T@b":{0:1},"T@c":{}}}'
    assert run_to_end(rig.offsets.replace(text))
    assert rig.offsets.is_changed
    rig.offsets.is_changed = False
    assert not run_to_end(rig.offsets.replace(text))
    assert not rig.offsets.is_changed
    assert run_to_end(rig.offsets.replace(text.replace(b"1:2", b"1:3")))
    assert rig.offsets.of("a", "T") == {0: 1, 1: 3}
    assert len(list(rig.offsets.replace(text))) >= 2


def test_a_slice_is_a_few_thousand_offsets() -> None:
    rig = filled()
    for number in range(100):
        rig.offsets.put(f"g{number}", "T", dict.fromkeys(range(400), number))
    text = rig.offsets.to_json()
    assert len(list(rig.offsets.text())) >= 10
    other = Rig()
    other.become_slave()
    assert len(list(other.offsets.replace(text))) >= 10
    assert other.offsets.of("g99", "T") == rig.offsets.of("g99", "T")


def test_a_large_table_is_told_as_it_was_saved_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.broker.tables.offsets.COPY_FRESH", 1)
    rig = filled(3)
    for group in "ab":
        rig.offsets.commit(group, "T", 0, 1)
    assert b"T@b" in rig.call(RequestCode.GET_ALL_CONSUMER_OFFSET).body
    saved = run_to_end(rig.offsets.text())
    rig.offsets.commit("b", "T", 0, 2)
    assert rig.call(RequestCode.GET_ALL_CONSUMER_OFFSET).body == saved
    rig.offsets.delete_group("a")
    run_to_end(rig.offsets.text())
    assert rig.call(RequestCode.GET_ALL_CONSUMER_OFFSET).body == b'{"offsetTable":{"T@b":{0:2}}}'


tables = st.dictionaries(
    st.text(max_size=8), st.dictionaries(st.integers(-1, 1 << 31 - 1), st.integers(-(2**63), 2**63 - 1))
)


@given(tables)
def test_any_table_survives_its_text(table: dict[str, dict[int, int]]) -> None:
    text = run_to_end(encode_offsets(table))
    assert text == json.dumps_java({"offsetTable": table})
    assert run_to_end(decode_offsets(text)) == ConsumerOffsetSerializeWrapper.from_json(text).offset_table


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"offsetTable":null}',
        b'{"offsetTable":{}}',
        b'{"offsetTable":{,}}',
        b'{"offsetTable":{"T@g":5}}',
        b' {\n\t"offsetTable" : {\n\t\t"T@g":{0:5,1:7\n\t\t}\n\t}\n}\n',
        b'{"offsetTable":{"T@g":{"0":5}},"dataVersion":{"counter":1}}',
        b'{"dataVersion":null,"offsetTable":{"a":{0:1}}}',
        b'{"offsetTable":{"T\\u0040g":{0:5}}}',
        b'{"offsetTable":{"T@g":{0:5}}',
        b'{"offsetTable":{"T@g":{0:5}}}}',
        b'{"offsetTable":{"T@g":{0:5},}}',
        b'{"offsetTable":{"T@g":{0:5,}}}',
        b'{"offsetTable":{"T@g":{0:x}}}',
        b'{"offsetTable":{"T@g":{0:99999999999999999999}}}',
    ],
)
def test_any_text_is_read_as_the_general_reader_does(text: bytes) -> None:
    def outcome(read: Callable[[], dict[str, dict[int, int]]]) -> object:
        try:
            return read()
        except RemoteProtocolError:
            return RemoteProtocolError

    general = outcome(lambda: ConsumerOffsetSerializeWrapper.from_json(text).offset_table)
    assert outcome(lambda: run_to_end(decode_offsets(text))) == general


@pytest.mark.parametrize(("lost", "at"), [(True, 4), (False, 0)])
def test_saved_offsets_beyond_the_end_go_where_messages_were_lost_else_to_the_start(
    caplog: pytest.LogCaptureFixture, lost: bool, at: int
) -> None:
    """A table that was copied beside another log is no progress in that log."""
    rig = filled(4)
    if lost:
        rig.store.may_have_lost()
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        rig.offsets.load(b'{"offsetTable":{"T@g":{"0":9,"1":2},"T@h":{"0":4}}}')
        rig.offsets.check_ends()
    assert rig.offsets.of("g", "T") == {0: at, 1: 0}
    assert rig.offsets.of("h", "T") == {0: 4}
    assert caplog.text.count("it goes on at") == 2
    assert rig.offsets.is_changed


@pytest.mark.parametrize(("lost", "at"), [(True, 4), (False, 0)])
@pytest.mark.parametrize(("topic", "group"), [(TRANS_HALF_TOPIC, TRANSACTION_GROUP), ("T", FLOORS)])
def test_progress_of_the_broker_s_own_beyond_the_end_takes_no_message(
    topic: str, group: str, lost: bool, at: int
) -> None:
    """An old store beside a newer table: its half messages were never checked again, and its messages were
    those that the limits of their topic had given up."""
    rig = filled(4, topic)
    if lost:
        rig.store.may_have_lost()
        rig.put(topic)  # came after the loss
    rig.offsets.load(b'{"offsetTable":{"%b@%b":{"0":9}}}' % (topic.encode(), group.encode()))
    rig.offsets.check_ends()
    assert rig.offsets.of(group, topic) == {0: at}


def test_offsets_within_the_log_load_unchanged() -> None:
    rig = filled(4)
    rig.offsets.load(b'{"offsetTable":{"T@g":{"0":4}}}')
    rig.offsets.load(None)
    assert rig.offsets.of("g", "T") == {0: 4}
    assert not rig.offsets.is_changed


# --- requests ---


def query(rig: Rig, queue_id: int = 0, topic: str = "T") -> tuple[int, str | None]:
    header = {"consumerGroup": "g", "topic": topic, "queueId": str(queue_id)}
    reply = rig.call(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return reply.code, reply.ext.get("offset")


def test_a_kept_offset_is_told() -> None:
    rig = filled(3)
    rig.offsets.commit("g", "T", 0, 2)
    assert query(rig) == (0, "2")


def test_a_new_group_reads_a_young_queue_from_its_start() -> None:
    rig = filled(3)
    assert query(rig) == (0, "0")
    assert query(rig, queue_id=2) == (0, "0")
    assert query(rig, topic="Unknown") == (0, "0")


def test_a_queue_that_lost_its_first_messages_is_not_young() -> None:
    rig = aged()
    assert query(rig) == (0, "0")
    assert rig.store.clean(rig.now_ms).log_files > 0
    assert rig.store.min_offset("T", 0) > 0
    assert query(rig) == (NOT_FOUND, None)


def test_a_group_that_consumed_before_all_of_a_queue_begins_with_what_is_kept() -> None:
    """The queue was added while its members were away; Java's begin at the end where none is found."""
    rig = aged()
    rig.offsets.commit("g", "T", 0, 3)
    rig.let_pass(1000)
    for _ in range(10):
        rig.put("T", 1, body=bytes(1000))
    rig.let_pass(100 * 3_600_000)
    rig.put("T")
    assert rig.store.clean(rig.now_ms).log_files > 0
    first = rig.store.min_offset("T", 1)
    assert first > 0
    assert query(rig, queue_id=1) == (0, str(first))
    rig.offsets.delete_group("g")
    assert query(rig, queue_id=1) == (NOT_FOUND, None)


def test_a_group_that_has_just_begun_with_other_queues_reads_no_history() -> None:
    rig = aged()
    for _ in range(10):
        rig.put("T", 1, body=bytes(1000))
    assert rig.store.clean(rig.now_ms).log_files > 0
    rig.offsets.commit("g", "T", 1, 10)
    assert 0 < rig.store.min_offset("T", 0) < rig.store.max_offset("T", 0)
    assert query(rig) == (NOT_FOUND, None)


def test_groups_that_lost_messages_unread_are_named(caplog: pytest.LogCaptureFixture) -> None:
    rig = aged()
    end = rig.store.max_offset("T", 0)
    for group, offset in {"slow": 2, "far": end, "new": -1}.items():
        if offset >= 0:
            rig.offsets.commit(group, "T", 0, offset)
    rig.store.clean(rig.now_ms)
    first = rig.store.min_offset("T", 0)
    assert 2 < first < end

    run_to_end(log_losses(rig.offsets, rig.store))
    run_to_end(log_losses(rig.offsets, rig.store))
    told = [record.getMessage() for record in caplog.records if "unread" in record.getMessage()]
    assert told == [
        f"group slow has lost {first - 2} messages of topic T unread: their file of the log is gone"
    ]


def test_a_queue_whose_first_messages_left_memory_is_not_young() -> None:
    rig = Rig(memory_bytes=1 << 20)
    rig.topic("T")
    rig.put("T")
    rig.topic("U")
    answers = []
    for _ in range(5):
        rig.put("U", body=bytes(100_000))
        answers.append(query(rig))
    assert answers == [(0, "0")] * 4 + [(NOT_FOUND, None)]


def update(rig: Rig, offset: int, queue_id: int = 0, topic: str = "T") -> tuple[int, str]:
    header = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    reply = rig.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    return reply.code, reply.remark or ""


def test_an_update_is_kept() -> None:
    rig = filled(3)
    assert update(rig, 2) == (0, "")
    assert rig.offsets.get("g", "T", 0) == 2


@pytest.mark.parametrize(
    ("offset", "queue_id", "topic", "reason"),
    [
        (1, 0, "Unknown", "no such topic"),
        (1, 4, "T", "the topic has 4 queues"),
        (1, -1, "T", "the topic has 4 queues"),
        (-1, 0, "T", "negative"),
    ],
)
def test_impossible_updates_are_refused(offset: int, queue_id: int, topic: str, reason: str) -> None:
    rig = filled(3)
    code, remark = update(rig, offset, queue_id, topic)
    assert code == 1
    assert reason in remark
    assert rig.offsets.to_json() == b'{"offsetTable":{}}'


def test_all_offsets_are_told() -> None:
    rig = filled(3)
    rig.offsets.commit("g", "T", 0, 2)
    reply = rig.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert reply.body == b'{"offsetTable":{"T@g":{0:2}}}'


@pytest.mark.parametrize("name", ["2_ordered_consumer", "3_push_consumer"])
def test_the_captured_sessions_are_answered_alike(name: str) -> None:
    rig, group = Rig(), "wire_order_group" if name.startswith("2") else "wire_push_group"
    for topic, counts in (("WireTopic", (3, 2, 4, 1)), (f"%RETRY%{group}", (1,))):
        rig.topic(topic, len(counts))
        for queue_id, count in enumerate(counts):
            for _ in range(count):
                rig.put(topic, queue_id)
    seen = set()
    for exchange in session(name):
        if exchange.code not in (14, 15):
            continue
        answers = rig.ask(exchange.command())
        seen.add(exchange.code)
        if exchange.code == 14:
            assert exchange.response is not None
            assert [(answer.code, dict(answer.ext)) for answer in answers] == [(0, exchange.response["ext"])]
        else:
            assert answers == []  # it is a one-way request
            wanted = exchange.request["ext"]
            key = (wanted["consumerGroup"], wanted["topic"], int(wanted["queueId"]))
            assert rig.offsets.get(*key) == int(wanted["commitOffset"])
    assert seen == {14, 15}


commits = st.lists(st.tuples(st.sampled_from("gh"), st.integers(0, 3), st.integers(-3, 12)), max_size=20)


@given(commits)
def test_offsets_stay_within_their_queues_and_survive_the_file(script: list[tuple[str, int, int]]) -> None:
    rig = filled(6)
    for group, queue_id, offset in script:
        rig.offsets.commit(group, "T", queue_id, offset)
        kept = rig.offsets.get(group, "T", queue_id)
        if 0 <= offset <= rig.store.max_offset("T", queue_id):
            assert kept == offset
        assert -1 <= kept <= rig.store.max_offset("T", queue_id)
    text = rig.offsets.to_json()
    rig.offsets.load(text)
    assert rig.offsets.to_json() == text


# --- limits ---


def commit(rig: Rig, group: str, topic: str = "T", line: Wire | None = None) -> Any:
    header = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
    return rig.call(RequestCode.UPDATE_CONSUMER_OFFSET, header, wire=line)


def test_groups_that_are_not_there_keep_no_offsets() -> None:
    """500,000 of them took 171 MB, and stopped everybody for 6 s each time the table was saved."""
    rig = filled()
    rig.groups.update(SubscriptionGroupConfig("g"))
    made_by_hand = evolve(rig.config, auto_create_subscription_group=False)
    rig.settings.replace(made_by_hand, rig.store.config)
    assert commit(rig, "g").code == 0
    refused = commit(rig, "stranger")
    assert refused.code == 1
    assert "no such group" in refused.remark
    assert rig.offsets.pairs() == [("T", "g")]
    rig.groups.delete("g")
    assert commit(rig, "g").code == 0  # it has offsets already


def test_a_broker_asks_its_groups_and_makes_those_that_may_be() -> None:
    rig = Rig(max_auto_created_groups=8)
    rig.one(send())
    codes = []
    for group in ("a", "b"):
        header = UpdateConsumerOffsetRequestHeader(group, "Orders", 0, 1)
        codes.append(rig.one(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code)
    assert codes == [0, 1]
    assert "a" in rig.broker.groups.table


def test_pairs_of_a_topic_and_a_group_have_a_limit() -> None:
    rig = filled()
    rig.settings.replace(evolve(rig.config, max_consumer_offsets=4), rig.store.config)
    for topic in ("U", "V"):
        rig.topic(topic)
        rig.put(topic)
    answers = [commit(rig, "g", topic) for topic in ("T", "U", "V", "T")]
    assert [answer.code for answer in answers] == [0, 0, 1, 0]
    assert "maxConsumerOffsets" in answers[2].remark
    rig.offsets.delete_topic("U")
    assert commit(rig, "g", "V").code == 0


def test_the_progress_of_transactions_is_kept_however_many_pairs_there_are() -> None:
    """Or a full table ends each pass of the check-back that finds an ended transaction."""
    rig = filled()
    rig.settings.replace(evolve(rig.config, max_consumer_offsets=1), rig.store.config)
    assert commit(rig, "g").code == 0
    for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
        rig.offsets.put(TRANSACTION_GROUP, topic, {0: 5})
        assert rig.offsets.get(TRANSACTION_GROUP, topic, 0) == 5
    for group, topic in ((TRANSACTION_GROUP, "T"), ("h", TRANS_HALF_TOPIC)):
        with pytest.raises(ResponseError, match="maxConsumerOffsets"):
            rig.offsets.put(group, topic, {0: 5})


def test_a_negative_offset_leaves_no_row() -> None:
    rig = filled()
    rig.offsets.commit("g", "T", 0, -1)
    assert rig.offsets.pairs() == []


@hypothesis.settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "clone", "topic", "group", "load"]), *[st.sampled_from("ABC")] * 3)
    )
)
def test_what_a_group_has_and_who_has_a_topic_is_always_as_in_the_table(steps: list[tuple[str, ...]]) -> None:
    offsets = Rig().offsets
    for what, topic, group, other in steps:
        if what == "put":
            offsets.put(group, topic, {0: 0})
        elif what == "clone":
            offsets.clone(group, other, topic)
        elif what == "topic":
            offsets.delete_topic(topic)
        elif what == "group":
            offsets.delete_group(group)
        else:
            offsets.load(offsets.to_json())
        pairs = offsets.pairs()
        for name in "ABC":
            assert offsets.topics_of(name) == {topic for topic, group in pairs if group == name}
            assert offsets.groups_of(name) == {group for topic, group in pairs if topic == name}


def test_who_consumes_a_topic_is_told_without_a_look_at_the_whole_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = filled()
    for number in range(50):
        rig.offsets.put(f"g{number}", f"T{number}", {0: 0})
    assert rig.offsets.groups_of("T7") == {"g7"}
    monkeypatch.setattr(rig.offsets, "_keys", None)
    assert rig.offsets.groups_of("T8") == {"g8"}
    assert rig.offsets.topics_of("g9") == {"T9"}
