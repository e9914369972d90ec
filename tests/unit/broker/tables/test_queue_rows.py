"""Bodies written as text are the same as those that are made of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.admin import consume_stats as progress
from rmq.broker.admin.consume_stats import (
    QueueRows,
    consume_stats,
    consume_stats_list,
    offset_wrapper,
    time_spans,
    topic_offset,
    topic_stats,
)
from rmq.message import MessageQueue
from rmq.protocol import bodies
from rmq.protocol.codes import RequestCode

from ..rig import Rig

words = st.text(max_size=5)
longs = st.integers(-1, 2**63 - 1)


@given(words, words, st.lists(st.tuples(longs, longs, longs), max_size=4))
def test_topic_stats(topic: str, broker: str, ends: list[tuple[int, int, int]]) -> None:
    rows = QueueRows(broker)
    rows.add(topic, [topic_offset(*end) for end in ends])
    table = {MessageQueue(topic, broker, at): bodies.TopicOffset(*end) for at, end in enumerate(ends)}
    assert topic_stats(rows) == bodies.TopicStatsTable(table).to_json()
    assert rows.size >= len(rows.text()) - 2


@given(words, st.floats(0, 1e9), st.lists(st.tuples(longs, longs, longs), max_size=3), longs)
def test_consume_stats(broker: str, tps: float, lags: list[tuple[int, int, int]], diff: int) -> None:
    rows = QueueRows(broker)
    table = {}
    for topic in ("T", "U"):
        rows.add(topic, [offset_wrapper(*lag) for lag in lags])
        for at, lag in enumerate(lags):
            table[MessageQueue(topic, broker, at)] = bodies.OffsetWrapper(*lag)
    one = bodies.ConsumeStats(table, tps)
    text = consume_stats(rows, tps)
    assert text == one.to_json()
    whole = bodies.ConsumeStatsList([{"g": [one, one]}, {broker: []}], "a:1", diff)
    assert consume_stats_list([("g", [text, text]), (broker, [])], "a:1", diff) == whole.to_json()


@given(words, words, st.lists(st.tuples(longs, longs, longs, longs), max_size=3))
def test_time_spans(topic: str, broker: str, spans: list[tuple[int, int, int, int]]) -> None:
    rows = [bodies.QueueTimeSpan(MessageQueue(topic, broker, at), *span) for at, span in enumerate(spans)]
    made = time_spans(topic, broker, 0, spans)
    assert b'{"consumeTimeSpanSet":[%b]}' % made == bodies.QueryConsumeTimeSpanBody(rows).to_json()


def counted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the store's methods, as they are called."""
    calls: list[str] = []

    def watch(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: calls.append(name) or method(*given)  # type: ignore[func-returns-value]

    for name in ("max_offset", "min_offset", "message_time", "earliest_time"):
        monkeypatch.setattr(rig.store, name, watch(name, getattr(rig.store, name)))
    return calls


def test_topic_stats_of_many_queues_are_made_once_while_nothing_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """240 kB of these requests for BenchmarkTest, with 1,024 queues, stopped everybody for 22 s."""
    rig = Rig()
    calls = counted(rig, monkeypatch)
    answers = {rig.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "BenchmarkTest"}).body for _ in range(50)}
    assert len(answers) == 1
    assert calls == ["max_offset"] * 1024
    rig.put("BenchmarkTest", 3)
    calls.clear()
    body = rig.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "BenchmarkTest"}).body
    table = bodies.TopicStatsTable.from_json(body).offset_table
    assert table[MessageQueue("BenchmarkTest", rig.config.broker_name, 3)].max_offset == 1
    assert len(calls) == 1024 + 2
    rig.topic("T", 2)
    assert (
        len(
            bodies.TopicStatsTable.from_json(
                rig.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body
            ).offset_table
        )
        == 2
    )
    rig.topic("T", 5)
    assert (
        len(
            bodies.TopicStatsTable.from_json(
                rig.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body
            ).offset_table
        )
        == 5
    )


def test_time_spans_of_queues_without_messages_cost_one_look_each(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    calls = counted(rig, monkeypatch)
    rig.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "BenchmarkTest", "group": "g"})
    assert calls == ["max_offset"] * 1024


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "ANSWER_SIZE", 1_000)
    rig = Rig()
    for name in ("T", "U", "V"):
        rig.topic(name, 4)
        rig.offsets.put("g", name, {0: 0})
    refused = rig.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
    assert refused.code == 1
    assert "one topic of it at a time" in (refused.remark or "")
    assert rig.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"}).code == 0
    rig.groups.exists("g")
    refused = rig.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert "one group at a time" in (refused.remark or "")
    rig.topic("Wide", 40)
    for code in (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.QUERY_CONSUME_TIME_SPAN):
        refused = rig.call(code, {"topic": "Wide", "group": "g"})
        assert "of the 40 queues of Wide" in (refused.remark or "")
