"""rmq.broker.offsets: where groups go on, and what is kept of it."""

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

from rmq.broker.offsets import decode_offsets, encode_offsets
from rmq.broker.tables import drain
from rmq.errors import RemoteProtocolError, ResponseError
from rmq.message import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from rmq.protocol import json
from rmq.protocol.bodies import ConsumerOffsetSerializeWrapper
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import UpdateConsumerOffsetRequestHeader

from .desk import Desk, Line, aged, session
from .rig import Rig, send

NOT_FOUND = 22


def filled(count: int = 10, topic: str = "T", **settings: Any) -> Desk:
    """A desk with `count` messages in queue 0 of a topic with 4 queues."""
    desk = Desk(**settings)
    desk.topic(topic)
    for _ in range(count):
        desk.put(topic)
    return desk


# --- the table ---


def test_what_is_committed_is_kept_for_each_group_topic_and_queue() -> None:
    desk = filled(3)
    desk.topic("U")
    desk.offsets.commit("g", "T", 0, 3)
    desk.offsets.commit("g", "T", 1, 0)
    desk.offsets.commit("h", "T", 0, 2)
    assert desk.offsets.get("g", "T", 0) == 3
    assert desk.offsets.get("g", "T", 1) == 0
    assert desk.offsets.get("h", "T", 0) == 2
    assert [desk.offsets.get(*key) for key in (("g", "T", 2), ("x", "T", 0), ("g", "U", 0))] == [-1, -1, -1]
    assert desk.offsets.of("g", "T") == {0: 3, 1: 0}
    assert desk.offsets.topics_of("g") == {"T"}
    assert desk.offsets.groups_of("T") == {"g", "h"}


def test_an_offset_above_the_end_becomes_the_end(caplog: pytest.LogCaptureFixture) -> None:
    desk = filled(5)
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        desk.offsets.commit("g", "T", 0, 9, "10.0.0.1:1")
    assert desk.offsets.get("g", "T", 0) == 5
    assert "10.0.0.1:1 commits 9 of T@g queue 0, which ends at 5" in caplog.text


def test_a_slave_keeps_what_its_master_says() -> None:
    desk = filled(5)
    desk.become_slave()
    desk.offsets.commit("g", "T", 0, 9)
    assert desk.offsets.get("g", "T", 0) == 9
    desk.offsets.load(b'{"offsetTable":{"T@h":{0:7}}}')
    assert desk.offsets.get("h", "T", 0) == 7


def test_an_offset_may_go_back_but_not_below_zero(caplog: pytest.LogCaptureFixture) -> None:
    desk = filled(5)
    desk.offsets.commit("g", "T", 0, 5)
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        desk.offsets.commit("g", "T", 0, 2)
        assert desk.offsets.get("g", "T", 0) == 2
        desk.offsets.commit("g", "T", 0, -1)
    assert desk.offsets.get("g", "T", 0) == 2
    assert "from 5 back to 2" in caplog.text
    assert "from 2 back to -1" in caplog.text


def test_deleted_topics_and_groups_are_forgotten() -> None:
    desk = filled(1)
    for topic, group in (("T", "g"), ("TT", "g"), ("T", "gg")):
        desk.offsets.put(group, topic, {0: 1})
    desk.offsets.delete_topic("T")
    assert desk.offsets.groups_of("T") == set()
    assert desk.offsets.of("g", "TT") == {0: 1}
    desk.offsets.put("gg", "T", {0: 1})
    desk.offsets.delete_group("g")
    assert desk.offsets.topics_of("g") == set()
    assert desk.offsets.of("gg", "T") == {0: 1}


def test_clone_copies() -> None:
    desk = filled(3)
    desk.offsets.put("g", "T", {0: 1, 1: 2})
    desk.offsets.clone("g", "h", "T")
    desk.offsets.commit("g", "T", 0, 3)
    assert desk.offsets.of("h", "T") == {0: 1, 1: 2}
    desk.offsets.clone("nobody", "h", "T")
    assert desk.offsets.of("h", "T") == {0: 1, 1: 2}


# --- the file ---


def test_a_captured_file_loads_and_comes_back(golden: Path) -> None:
    text = (golden / "store" / "config" / "consumerOffset.json").read_bytes()
    desk = Desk()
    desk.become_slave()  # the queues of that store are not here
    desk.offsets.load(text)
    assert desk.offsets.of("golden_group", "TopicTest") == {0: 20, 1: 8, 2: 2, 3: 62}
    assert desk.offsets.get("golden_retry_group", "%RETRY%golden_retry_group", 0) == 1
    assert json.loads(desk.offsets.to_json()) == json.loads(text)


def test_saved_only_when_changed() -> None:
    desk = filled(3)
    assert not desk.offsets.is_changed
    desk.offsets.commit("g", "T", 0, 1)
    assert desk.offsets.is_changed
    assert drain(desk.offsets.text()) == b'{"offsetTable":{"T@g":{0:1}}}'
    assert not desk.offsets.is_changed
    desk.offsets.commit("g", "T", 0, 1)
    assert not desk.offsets.is_changed
    desk.offsets.delete_group("g")
    assert desk.offsets.is_changed
    assert drain(desk.offsets.text()) == b'{"offsetTable":{}}'


def test_the_text_is_made_in_slices_and_is_that_of_the_moment_at_which_it_was_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rmq.broker.offsets.SLICE_OFFSETS", 2)
    desk = filled(9)
    for group in "abcdef":
        desk.offsets.commit(group, "T", 0, 3)
        desk.offsets.commit(group, "T", 1, 0)
    before = desk.offsets.to_json()
    work = desk.offsets.text()
    for group in "ab":  # behind the slice, and before it
        next(work)
        desk.offsets.commit(group, "T", 0, 4)
        desk.offsets.commit("e", "T", 0, 5 + (group == "b"))
    desk.offsets.put("f", "T", {2: 1})
    desk.offsets.commit("new", "T", 0, 1)
    desk.offsets.delete_group("d")
    desk.offsets.clone("e", "c", "T")
    assert drain(work) == before
    assert desk.offsets.is_changed
    after = json.loads(drain(desk.offsets.text()))["offsetTable"]
    assert {key[-1]: queues["0"] for key, queues in after.items()} == {
        "a": 4, "b": 4, "c": 6, "e": 6, "f": 3, "w": 1
    }  # fmt: skip


def test_a_slave_takes_a_table_in_slices_and_knows_whether_it_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rmq.broker.offsets.SLICE_OFFSETS", 2)
    desk = Desk()
    desk.become_slave()
    text = b'{"offsetTable":{"T@a":{0:1,1:2},"T@b":{0:1},"T@c":{}}}'
    assert drain(desk.offsets.replace(text))
    assert desk.offsets.is_changed
    desk.offsets.is_changed = False
    assert not drain(desk.offsets.replace(text))
    assert not desk.offsets.is_changed
    assert drain(desk.offsets.replace(text.replace(b"1:2", b"1:3")))
    assert desk.offsets.of("a", "T") == {0: 1, 1: 3}
    assert len(list(desk.offsets.replace(text))) >= 2


def test_a_slice_is_a_few_thousand_offsets() -> None:
    desk = filled()
    for number in range(100):
        desk.offsets.put(f"g{number}", "T", dict.fromkeys(range(400), number))
    text = desk.offsets.to_json()
    assert len(list(desk.offsets.text())) >= 10
    other = Desk()
    other.become_slave()
    assert len(list(other.offsets.replace(text))) >= 10
    assert other.offsets.of("g99", "T") == desk.offsets.of("g99", "T")


def test_a_large_table_is_told_as_it_was_saved_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.broker.offsets.COPY_FRESH", 1)
    desk = filled(3)
    for group in "ab":
        desk.offsets.commit(group, "T", 0, 1)
    assert b"T@b" in desk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body
    saved = drain(desk.offsets.text())
    desk.offsets.commit("b", "T", 0, 2)
    assert desk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body == saved
    desk.offsets.delete_group("a")
    drain(desk.offsets.text())
    assert desk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET).body == b'{"offsetTable":{"T@b":{0:2}}}'


tables = st.dictionaries(
    st.text(max_size=8), st.dictionaries(st.integers(-1, 1 << 31 - 1), st.integers(-(2**63), 2**63 - 1))
)


@given(tables)
def test_any_table_survives_its_text(table: dict[str, dict[int, int]]) -> None:
    text = drain(encode_offsets(table))
    assert text == json.dumps_java({"offsetTable": table})
    assert drain(decode_offsets(text)) == ConsumerOffsetSerializeWrapper.from_json(text).offset_table


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
    assert outcome(lambda: drain(decode_offsets(text))) == general


def test_a_log_that_lost_its_end_takes_the_saved_offsets_back(caplog: pytest.LogCaptureFixture) -> None:
    desk = filled(4)
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        desk.offsets.load(b'{"offsetTable":{"T@g":{"0":9,"1":2},"T@h":{"0":4}}}')
    assert desk.offsets.of("g", "T") == {0: 4, 1: 0}
    assert desk.offsets.of("h", "T") == {0: 4}
    assert caplog.text.count("which ends at") == 2
    assert desk.offsets.is_changed


def test_offsets_within_the_log_load_unchanged() -> None:
    desk = filled(4)
    desk.offsets.load(b'{"offsetTable":{"T@g":{"0":4}}}')
    desk.offsets.load(None)
    assert desk.offsets.of("g", "T") == {0: 4}
    assert not desk.offsets.is_changed


# --- requests ---


def query(desk: Desk, queue_id: int = 0, topic: str = "T") -> tuple[int, str | None]:
    header = {"consumerGroup": "g", "topic": topic, "queueId": str(queue_id)}
    reply = desk.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    return reply.code, reply.ext.get("offset")


def test_a_kept_offset_is_told() -> None:
    desk = filled(3)
    desk.offsets.commit("g", "T", 0, 2)
    assert query(desk) == (0, "2")


def test_a_new_group_reads_a_young_queue_from_its_start() -> None:
    desk = filled(3)
    assert query(desk) == (0, "0")
    assert query(desk, queue_id=2) == (0, "0")
    assert query(desk, topic="Unknown") == (0, "0")


def test_a_queue_that_lost_its_first_messages_is_not_young() -> None:
    desk = aged()
    assert query(desk) == (0, "0")
    assert desk.store.clean(desk.clock.now).log_files > 0
    assert desk.store.min_offset("T", 0) > 0
    assert query(desk) == (NOT_FOUND, None)


def test_groups_that_lost_messages_unread_are_named(caplog: pytest.LogCaptureFixture) -> None:
    desk = aged()
    end = desk.store.max_offset("T", 0)
    for group, offset in {"slow": 2, "far": end, "new": -1}.items():
        if offset >= 0:
            desk.offsets.commit(group, "T", 0, offset)
    desk.store.clean(desk.clock.now)
    first = desk.store.min_offset("T", 0)
    assert 2 < first < end

    drain(desk.offsets.log_losses())
    drain(desk.offsets.log_losses())
    told = [record.getMessage() for record in caplog.records if "unread" in record.getMessage()]
    assert told == [
        f"group slow has lost {first - 2} messages of topic T unread: their file of the log is gone"
    ]


def test_a_queue_whose_first_messages_left_memory_is_not_young() -> None:
    desk = filled(1)
    desk.topic("U")
    answers = []
    for _ in range(5):
        desk.put("U", body=bytes(100_000))
        answers.append(query(desk))
    assert answers == [(0, "0")] * 4 + [(NOT_FOUND, None)]


def update(desk: Desk, offset: int, queue_id: int = 0, topic: str = "T") -> tuple[int, str]:
    header = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    reply = desk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    return reply.code, reply.remark or ""


def test_an_update_is_kept() -> None:
    desk = filled(3)
    assert update(desk, 2) == (0, "")
    assert desk.offsets.get("g", "T", 0) == 2


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
    desk = filled(3)
    code, remark = update(desk, offset, queue_id, topic)
    assert code == 1
    assert reason in remark
    assert desk.offsets.to_json() == b'{"offsetTable":{}}'


def test_all_offsets_are_told() -> None:
    desk = filled(3)
    desk.offsets.commit("g", "T", 0, 2)
    reply = desk.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert reply.body == b'{"offsetTable":{"T@g":{0:2}}}'


@pytest.mark.parametrize("name", ["2_ordered_consumer", "3_push_consumer"])
def test_the_captured_sessions_are_answered_alike(name: str) -> None:
    desk, group = Desk(), "wire_order_group" if name.startswith("2") else "wire_push_group"
    for topic, counts in (("WireTopic", (3, 2, 4, 1)), (f"%RETRY%{group}", (1,))):
        desk.topic(topic, len(counts))
        for queue_id, count in enumerate(counts):
            for _ in range(count):
                desk.put(topic, queue_id)
    seen = set()
    for exchange in session(name):
        if exchange.code not in (14, 15):
            continue
        response = desk.answer(exchange.command(), Line())
        seen.add(exchange.code)
        assert response.code == 0
        if exchange.code == 14:
            assert exchange.response is not None
            assert dict(response.ext) == exchange.response["ext"]
        else:
            wanted = exchange.request["ext"]
            key = (wanted["consumerGroup"], wanted["topic"], int(wanted["queueId"]))
            assert desk.offsets.get(*key) == int(wanted["commitOffset"])
    assert seen == {14, 15}


commits = st.lists(st.tuples(st.sampled_from("gh"), st.integers(0, 3), st.integers(-3, 12)), max_size=20)


@given(commits)
def test_offsets_stay_within_their_queues_and_survive_the_file(script: list[tuple[str, int, int]]) -> None:
    desk = filled(6)
    for group, queue_id, offset in script:
        desk.offsets.commit(group, "T", queue_id, offset)
        kept = desk.offsets.get(group, "T", queue_id)
        if offset >= 0:
            assert kept == min(offset, desk.store.max_offset("T", queue_id))
        assert -1 <= kept <= desk.store.max_offset("T", queue_id)
    text = desk.offsets.to_json()
    desk.offsets.load(text)
    assert desk.offsets.to_json() == text


# --- limits ---


def commit(desk: Desk, group: str, topic: str = "T", line: Line | None = None) -> Any:
    header = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "1"}
    return desk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header, line=line)


def test_groups_that_are_not_there_keep_no_offsets() -> None:
    """500,000 of them took 171 MB, and stopped everybody for 6 s each time the table was saved."""
    desk = filled()
    desk.absent = {"stranger"}
    assert commit(desk, "g").code == 0
    refused = commit(desk, "stranger")
    assert refused.code == 1
    assert "no such group" in refused.remark
    assert desk.offsets.pairs() == [("T", "g")]
    desk.absent.add("g")
    assert commit(desk, "g").code == 0  # it has offsets already


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
    desk = filled()
    desk.settings.replace(evolve(desk.config, max_consumer_offsets=2), desk.store.config)
    desk.topic("U")
    desk.topic("V")
    answers = [commit(desk, "g", topic) for topic in ("T", "U", "V", "T")]
    assert [answer.code for answer in answers] == [0, 0, 1, 0]
    assert "maxConsumerOffsets" in answers[2].remark
    desk.offsets.delete_topic("U")
    assert commit(desk, "g", "V").code == 0


def test_the_progress_of_transactions_is_kept_however_many_pairs_there_are() -> None:
    """Or a full table ends each pass of the check-back that finds an ended transaction."""
    desk = filled()
    desk.settings.replace(evolve(desk.config, max_consumer_offsets=1), desk.store.config)
    assert commit(desk, "g").code == 0
    for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
        desk.offsets.put(TRANSACTION_GROUP, topic, {0: 5})
        assert desk.offsets.get(TRANSACTION_GROUP, topic, 0) == 5
    for group, topic in ((TRANSACTION_GROUP, "T"), ("h", TRANS_HALF_TOPIC)):
        with pytest.raises(ResponseError, match="maxConsumerOffsets"):
            desk.offsets.put(group, topic, {0: 5})


def test_a_negative_offset_leaves_no_row() -> None:
    desk = filled()
    desk.offsets.commit("g", "T", 0, -1)
    assert desk.offsets.pairs() == []


@hypothesis.settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "clone", "topic", "group", "load"]), *[st.sampled_from("ABC")] * 3)
    )
)
def test_what_a_group_has_and_who_has_a_topic_is_always_as_in_the_table(steps: list[tuple[str, ...]]) -> None:
    offsets = Desk().offsets
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
    desk = filled()
    for number in range(50):
        desk.offsets.put(f"g{number}", f"T{number}", {0: 0})
    assert desk.offsets.groups_of("T7") == {"g7"}
    monkeypatch.setattr(desk.offsets, "_keys", None)
    assert desk.offsets.groups_of("T8") == {"g8"}
    assert desk.offsets.topics_of("g9") == {"T9"}
