"""Answers that take long to make: in slices, in a line in which a connection has a few places."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.admin import consume_stats
from rmq.broker.admin.consume_stats import SLICE_QUEUES
from rmq.broker.tables.versioned import Slices
from rmq.broker.wakeups import Wakeups
from rmq.errors import StoreError
from rmq.protocol.bodies import ConsumeStats, ConsumeStatsList, QueryConsumeTimeSpanBody, TopicStatsTable
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command

from ..rig import Rig, Wire, send


class Lagging:
    """A broker whose group `readers` is in some topics of 8 queues, and a line that nobody works off."""

    def __init__(self, topics: int) -> None:
        self.rings = 0
        self.rig = Rig(given={"wake": Wakeups(sliced_answers=self._ring)})
        self.progress = self.rig.broker.progress
        self.rig.broker.groups.get("readers")
        for number in range(topics):
            topic = f"T{number}"
            self.rig.broker.topics.create_retry(topic, 6, 8)
            self.rig.ask(send(topic, queue_id=number % 8))
            self.rig.broker.offsets.commit("readers", topic, number % 8, 1)

    def _ring(self) -> None:
        self.rings += 1

    def ask(self, code: int = RequestCode.GET_CONSUME_STATS, wire: Wire | None = None) -> list[Command]:
        return self.rig.ask(question(code), wire=wire)


def question(code: int = RequestCode.GET_CONSUME_STATS) -> Command:
    return Command.request(code, {"consumerGroup": "readers", "isOrder": "false"})


def test_a_short_answer_comes_at_once() -> None:
    lagging = Lagging(2)
    (answer,) = lagging.ask()
    assert len(ConsumeStats.from_json(answer.body).offset_table) == 16
    (answer,) = lagging.ask(RequestCode.GET_BROKER_CONSUME_STATS)
    assert answer.code == 0
    assert lagging.rings == 0


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUME_STATS, RequestCode.GET_BROKER_CONSUME_STATS])
def test_a_long_answer_is_made_in_slices_and_is_whole(code: int) -> None:
    """70 groups with 1,024 queues each took 0.3 s in one go."""
    topics = SLICE_QUEUES
    lagging = Lagging(topics)
    assert lagging.ask(code) == []
    assert lagging.rings == 1
    slices = sum(1 for _ in lagging.rig.broker.sliced_answers.finish())
    assert slices >= 8
    (answer,) = lagging.rig.wire.take()
    if code == RequestCode.GET_CONSUME_STATS:
        found = [ConsumeStats.from_json(answer.body)]
    else:
        groups = ConsumeStatsList.from_json(answer.body).consume_stats_list
        found = next(group["readers"] for group in groups if "readers" in group)
    rows = {queue: row for stats in found for queue, row in stats.offset_table.items()}
    assert len(rows) == 8 * topics
    assert sum(row.consumer_offset for row in rows.values()) == topics


def test_many_groups_without_offsets_are_slices_too() -> None:
    lagging = Lagging(0)
    for number in range(5 * SLICE_QUEUES):
        lagging.rig.broker.groups.get(f"g{number}")
    assert lagging.ask(RequestCode.GET_BROKER_CONSUME_STATS) == []
    assert sum(1 for _ in lagging.rig.broker.sliced_answers.finish()) >= 5
    (answer,) = lagging.rig.wire.take()
    assert len(ConsumeStatsList.from_json(answer.body).consume_stats_list) > 5 * SLICE_QUEUES


def test_an_answer_that_grows_too_long_is_refused_later_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.broker.admin.consume_stats.ANSWER_SIZE", 100_000)
    lagging = Lagging(200)
    assert lagging.ask() == []
    for _ in lagging.rig.broker.sliced_answers.finish():
        pass
    (answer,) = lagging.rig.wire.take()
    assert (answer.code, "ask for one topic" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


def slices(count: int, fails: bool = False) -> Slices[bytes]:
    for _ in range(count):
        yield
    if fails:
        raise StoreError("the disk is away")
    return b"made"


def test_a_connection_has_a_few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_stats, "LINE_MAX", 8)
    rig = Rig(given={"wake": Wakeups(sliced_answers=lambda: None)})
    line = rig.broker.sliced_answers
    first, second = Wire(), Wire("10.0.0.2:1")

    def ask(wire: Wire) -> int | None:
        def handler(request: Command, connection: object, now: int) -> Command | None:
            return line.answer(request, connection, slices(3))  # type: ignore[arg-type]

        rig.broker.handlers[208] = handler
        answers = rig.ask(question(), wire=wire)
        return answers[0].code if answers else None

    assert [ask(first) for _ in range(5)] == [None] * 4 + [ResponseCode.SYSTEM_BUSY]
    assert [ask(second) for _ in range(3)] == [None] * 2 + [ResponseCode.SYSTEM_BUSY]
    first.is_closed = True
    for _ in line.finish():
        pass
    assert first.take() == []
    assert [answer.body for answer in second.take()] == [b"made"] * 2
    assert ask(second) is None


def test_one_that_fails_is_told_and_the_others_get_theirs() -> None:
    line = consume_stats.SlicedAnswers(lambda: None)
    wire = Wire()
    notice = Command(208, 9, 2)
    for request, work in (
        (question(), slices(1, fails=True)),
        (notice, slices(1)),
        (question(), slices(2)),
    ):
        assert line.answer(request, wire, work) is None  # type: ignore[arg-type]
    for _ in line.finish():
        pass
    codes = [answer.code for answer in wire.take()]
    assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE, 0]


@pytest.mark.parametrize(
    ("code", "body", "table"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, TopicStatsTable, "offset_table"),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanBody, "consume_time_span_set"),
    ],
)
def test_each_queue_of_a_large_topic_has_its_row(code: int, body: type[Any], table: str) -> None:
    """65,536 queues took 94 ms and 45 MiB in one go."""
    queues = 5 * SLICE_QUEUES + 7
    rig = Rig(given={"wake": Wakeups(sliced_answers=lambda: None)})
    rig.broker.topics.create_retry("Large", 6, queues)
    rig.ask(send("Large", queue_id=queues - 1))
    line = rig.broker.sliced_answers
    assert rig.ask(Command.request(code, {"topic": "Large", "group": "readers"})) == []
    assert sum(1 for _ in line.finish()) >= 5
    (answer,) = rig.wire.take()
    rows = getattr(body.from_json(answer.body), table)
    assert len(rows) == queues
    if code == RequestCode.GET_TOPIC_STATS_INFO:
        assert [queue.queue_id for queue, row in rows.items() if row.max_offset] == [queues - 1]
        (again,) = rig.ask(Command.request(code, {"topic": "Large"}))  # the same text, at once
        assert again.body == answer.body
        rig.ask(send("Large", queue_id=0))
        assert rig.ask(Command.request(code, {"topic": "Large"})) == []
    else:
        assert [row.message_queue.queue_id for row in rows if row.max_time_stamp > 0] == [queues - 1]


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUME_STATS, RequestCode.GET_BROKER_CONSUME_STATS])
def test_the_progress_in_a_large_topic_is_made_in_slices(code: int) -> None:
    lagging, queues = Lagging(0), 5 * SLICE_QUEUES + 7
    lagging.rig.broker.topics.create_retry("Large", 6, queues)
    lagging.rig.broker.offsets.put("readers", "Large", {queues - 1: 1})
    assert lagging.ask(code) == []
    assert sum(1 for _ in lagging.rig.broker.sliced_answers.finish()) >= 5
    (answer,) = lagging.rig.wire.take()
    if code == RequestCode.GET_CONSUME_STATS:
        stats = ConsumeStats.from_json(answer.body)
    else:
        groups = ConsumeStatsList.from_json(answer.body).consume_stats_list
        (stats,) = next(group["readers"] for group in groups if "readers" in group)
    assert sorted(queue.queue_id for queue in stats.offset_table) == list(range(queues))
