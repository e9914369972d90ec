"""rmq.broker.offsets: where groups go on, and what is kept of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.errors import DiskFull
from rmq.protocol import json
from rmq.protocol.codes import RequestCode

from .desk import Desk, Line, aged, session

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
    desk.offsets.slave = True
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
    desk.offsets.slave = True  # the queues of that store are not here
    desk.offsets.load(text)
    assert desk.offsets.of("golden_group", "TopicTest") == {0: 20, 1: 8, 2: 2, 3: 62}
    assert desk.offsets.get("golden_retry_group", "%RETRY%golden_retry_group", 0) == 1
    assert json.loads(desk.offsets.to_json()) == json.loads(text)


def test_saved_only_when_changed() -> None:
    desk = filled(3)
    saved = desk.saved["offsets"].texts
    desk.offsets.persist()
    assert saved == []
    desk.offsets.commit("g", "T", 0, 1)
    desk.offsets.persist()
    desk.offsets.persist()
    assert saved == [b'{"offsetTable":{"T@g":{0:1}}}']
    desk.offsets.commit("g", "T", 0, 1)
    desk.offsets.persist()
    assert len(saved) == 1
    desk.offsets.delete_group("g")
    desk.offsets.persist()
    assert saved[-1] == b'{"offsetTable":{}}'


def test_a_failed_save_is_tried_again() -> None:
    desk = filled(3)
    desk.offsets.commit("g", "T", 0, 1)
    desk.saved["offsets"].broken = DiskFull("full")
    with pytest.raises(DiskFull):
        desk.offsets.persist()
    desk.saved["offsets"].broken = None
    desk.offsets.persist()
    assert len(desk.saved["offsets"].texts) == 1


def test_a_log_that_lost_its_end_takes_the_saved_offsets_back(caplog: pytest.LogCaptureFixture) -> None:
    desk = filled(4)
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        desk.offsets.load(b'{"offsetTable":{"T@g":{"0":9,"1":2},"T@h":{"0":4}}}')
    assert desk.offsets.of("g", "T") == {0: 4, 1: 0}
    assert desk.offsets.of("h", "T") == {0: 4}
    assert caplog.text.count("which ends at") == 2
    desk.offsets.persist()
    assert len(desk.saved["offsets"].texts) == 1


def test_offsets_within_the_log_load_unchanged() -> None:
    desk = filled(4)
    desk.offsets.load(b'{"offsetTable":{"T@g":{"0":4}}}')
    desk.offsets.load(None)
    assert desk.offsets.of("g", "T") == {0: 4}
    desk.offsets.persist()
    assert desk.saved["offsets"].texts == []


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
