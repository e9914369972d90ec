"""Answers of a stream's reader to Spark, over brokers whose queues are a table."""

from __future__ import annotations

import json
import pathlib
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from rmq.message import MessageQueue
from rmq.spark import source
from rmq.spark.formats.schema import arrow_schema
from rmq.spark.offsets import DataLoss, Offsets, Places, QueueRange, keep, offsets_of, offsets_tree, places_of
from rmq.spark.options import read_options
from rmq.spark.pull import _clients, _consumer
from rmq.spark.ranges import FILE_NAME
from rmq.spark.source import StreamReader, UnpositionedStreamReader

A, B, C = (MessageQueue("T", "broker-a", number) for number in (0, 1, 2))
ALL = ReadAllAvailable()


class Stage:
    """A reader, the queues that it sees, and the time that it is."""

    skipped = frozenset[str]()
    has_old_secret = False

    def __init__(self, kind: type[StreamReader] = StreamReader, **options: object) -> None:
        given = {"nameServer": "h:1", "topic": "T", "startingOffsets": "earliest"}
        more = {key: str(value) for key, value in options.items()}
        self.bounds = {A: (0, 10), B: (0, 20)}
        self.now = 1000.0
        self.reader = kind(read_options({**given, **more}, streaming=True), arrow_schema(["body"]))
        self.made_at = 5000
        self.asked: list[Offsets] = []
        self.reader._open = lambda: self  # type: ignore[method-assign, assignment, return-value]
        self.reader._bounds = lambda *_, **__: dict(self.bounds)  # type: ignore[method-assign]
        if isinstance(self.reader, UnpositionedStreamReader):
            self.reader._whole_bounds = lambda: dict(self.bounds)  # type: ignore[method-assign]

    def places(self, offsets: Offsets) -> Places:
        """Places as in a cluster: each message has a place of its own, and another place after the topic was
        created again."""
        self.asked.append(offsets)
        return {queue: (self.made_at + 100 * at, self.made_at) for queue, at in offsets.items()}

    def is_of_slave(self, queue: MessageQueue) -> bool:
        return False

    def at_time(self, queues: list[MessageQueue], timestamp_ms: int) -> Offsets:
        """All messages of a queue have one store time."""
        return {queue: self.bounds[queue][0 if timestamp_ms <= self.made_at else 1] for queue in queues}

    def latest(self, start: Offsets, limit: Any = ALL) -> Offsets:
        return offsets_of(self.reader.latestOffset(offsets_tree(start), limit))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    def make(kind: type[StreamReader] = StreamReader, **options: object) -> Stage:
        made = Stage(kind, **options)
        # Of this module alone: threads of a Spark session in the same process sleep, too.
        clock = SimpleNamespace(monotonic=lambda: made.now, sleep=lambda seconds: None)
        monkeypatch.setattr(source, "time", clock)
        return made

    return make


def test_without_news_the_text_is_the_same(stage: Callable[..., Stage]) -> None:
    reader = stage().reader
    start = reader.latestOffset(offsets_tree({B: 1, A: 2}), ALL)
    again = reader.latestOffset(json.loads(json.dumps(start)), ALL)
    assert json.dumps(again) == json.dumps(start)
    assert reader.reportLatestOffset() == offsets_tree({A: 10, B: 20})


def test_a_topic_that_was_made_anew_is_loss_also_when_it_is_longer(stage: Callable[..., Stage]) -> None:
    made = stage()
    first = made.reader.latestOffset(offsets_tree({}), ALL)
    assert places_of(first) == {A: (6000, 5000), B: (7000, 5000)}
    made.bounds[A] = (0, 15)
    again = made.reader.latestOffset(first, ALL)
    assert places_of(again) == {A: (6500, 5000), B: (7000, 5000)}
    made.made_at, made.bounds[B] = 9000, (0, 30)
    with pytest.raises(DataLoss, match=r"queue.*made again: message 19 .*\(7000, 5000\).*\(11000, 9000\)"):
        made.reader.latestOffset(again, ALL)


def test_a_query_that_begins_again_looks_at_all_places(stage: Callable[..., Stage]) -> None:
    first = stage().reader.latestOffset(offsets_tree({}), ALL)
    made = stage()
    made.made_at = 9000
    with pytest.raises(DataLoss, match="made again"):
        made.reader.latestOffset(first, ALL)
    planned = stage()
    planned.made_at = 9000
    with pytest.raises(DataLoss, match="made again"):
        planned.reader.partitions(offsets_tree({}), first)


def test_a_topic_that_was_made_again_is_read_from_its_beginning_if_loss_is_allowed(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    first = stage().reader.latestOffset(offsets_tree({}), ALL)
    made = stage(failOnDataLoss=False)
    made.made_at, made.bounds = 9000, {A: (0, 30), B: (0, 5)}  # one longer than before, the other shorter
    end = made.reader.latestOffset(first, ALL)
    assert (offsets_of(end), places_of(end)) == ({A: 30, B: 5}, {A: (12000, 9000), B: (9500, 9000)})
    (tasks,) = ([task.value[0] for task in reader.partitions(first, end)] for reader in [made.reader])
    assert tasks == [QueueRange(A, 0, 30), QueueRange(B, 0, 5)]
    assert "is read from message 0 on" in caplog.text
    assert made.reader.latestOffset(end, ALL) == end, "and goes on as ever"
    # Another process plans the same batch, from the checkpoint.
    again = stage(failOnDataLoss=False)
    again.made_at, again.bounds = 9000, dict(made.bounds)
    assert [task.value[0] for task in again.reader.partitions(first, end)] == tasks


def test_a_topic_that_was_made_again_with_as_many_messages_is_read_in_parts(
    stage: Callable[..., Stage],
) -> None:
    first = stage().reader.latestOffset(offsets_tree({}), ALL)
    made = stage(failOnDataLoss=False)
    made.made_at = 9000
    start, found = first, []
    for _ in range(4):
        end = made.reader.latestOffset(start, ReadMaxRows(10))
        found += [one for task in made.reader.partitions(start, end) for one in task.value]
        start = end
    read = {queue: sum(len(one) for one in found if one.queue == queue) for queue in (A, B)}
    assert read == {A: 10, B: 20}, "each message of the new ones once"


def test_a_queue_that_lost_its_end_goes_on_with_what_comes(stage: Callable[..., Stage]) -> None:
    first = stage().reader.latestOffset(offsets_tree({}), ALL)
    made = stage(failOnDataLoss=False)
    made.bounds[B] = (0, 15)  # the same messages, without the last five
    end = made.reader.latestOffset(first, ALL)
    assert (offsets_of(end), places_of(end)[B]) == ({A: 10, B: 15}, (6500, 5000))
    assert made.reader.partitions(first, end) == []
    assert made.reader.latestOffset(end, ALL) == end, "no batches of nothing"


def test_a_planned_batch_whose_topic_was_made_again_is_skipped(stage: Callable[..., Stage]) -> None:
    first = stage().reader.latestOffset(offsets_tree({}), ALL)
    made = stage(failOnDataLoss=False)
    made.made_at = 9000
    assert made.reader.partitions(offsets_tree({}), first) == []
    later = made.reader.latestOffset(first, ALL)
    assert [task.value[0] for task in made.reader.partitions(first, later)] == [
        QueueRange(A, 0, 10),
        QueueRange(B, 0, 20),
    ]


def test_a_checkpoint_of_version_1_goes_on_and_a_pause_costs_no_look_at_places(
    stage: Callable[..., Stage],
) -> None:
    made = stage()
    old = offsets_tree({A: 10, B: 20})
    assert made.reader.latestOffset(old, ALL) == old
    assert made.asked == []
    made.bounds[A] = (0, 12)
    later = made.reader.latestOffset(old, ALL)
    assert (offsets_of(later), places_of(later)) == ({A: 12, B: 20}, {A: (6200, 5000)})
    asked = len(made.asked)
    assert made.reader.latestOffset(later, ALL) == later
    assert len(made.asked) == asked


def test_places_of_what_retention_removed_are_not_looked_at(stage: Callable[..., Stage]) -> None:
    made = stage()
    first = made.reader.latestOffset(offsets_tree({}), ALL)
    again = stage()
    again.made_at, again.bounds = 9000, {A: (10, 12), B: (20, 20)}
    assert again.latest(offsets_of(first)) == {A: 12, B: 20}
    assert offsets_of(again.reader.latestOffset(first, ALL)) == {A: 12, B: 20}


def test_many_queues_are_few_tasks(stage: Callable[..., Stage]) -> None:
    """A task costs as much to start as 20,000 messages to read."""

    def tasks(each: int, count: int = 1000, **options: object) -> int:
        made = stage(**options)
        made.bounds = {MessageQueue("T", "broker-a", at): (0, each) for at in range(count)}
        end = dict.fromkeys(made.bounds, each)
        return len(made.reader.partitions(offsets_tree({}), offsets_tree(end)))

    assert [tasks(1), tasks(1000), tasks(50_000), tasks(1, count=16)] == [16, 50, 1000, 16]
    assert [tasks(1, maxPartitions=3), tasks(1, minPartitions=40), tasks(50_000, minPartitions=2)] == [
        3,
        40,
        2,
    ]
    assert tasks(1, maxPartitions=3, maxRecordsPerPartition=100) == 12


def test_a_stream_without_news_asks_ever_less(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage()
    pauses: list[float] = []
    monkeypatch.setattr(source.time, "sleep", pauses.append)  # of the stage's own clock
    start = made.reader.latestOffset(offsets_tree({}), ALL)
    for _ in range(7):
        made.reader.latestOffset(start, ALL)
    made.bounds[A] = (0, 11)
    start = made.reader.latestOffset(start, ALL)
    made.reader.latestOffset(start, ALL)
    assert [round(seconds, 3) for seconds in pauses] == [0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6, 1.6, 0.1]


def test_a_stream_of_an_older_spark_goes_on_from_its_last_answer(stage: Callable[..., Stage]) -> None:
    """4.0 and 4.1 do not say from where on."""
    first = offsets_tree({A: 1, B: 2})
    made = stage(UnpositionedStreamReader, maxOffsetsPerTrigger=9)
    reader: Any = made.reader
    reader._first = offsets_of(first)
    assert reader.initialOffset() == first
    ends = [offsets_of(reader.latestOffset()) for _ in range(4)]
    assert [sum(end.values()) for end in ends] == [12, 21, 30, 30]
    again: Any = stage(UnpositionedStreamReader).reader
    end = again.latestOffset()
    assert (offsets_of(end), places_of(end)) == ({A: 10, B: 20}, {A: (6000, 5000), B: (7000, 5000)})
    assert sum(len(one) for task in again.partitions(first, end) for one in task.value) == 27
    assert again.latestOffset() == end
    gone = stage(UnpositionedStreamReader)
    del gone.bounds[B]
    anew: Any = gone.reader
    with pytest.raises(DataLoss, match="the batch to plan does not know it"):
        anew.partitions(first, anew.latestOffset())
    assert type(pickle.loads(pickle.dumps(anew))) is UnpositionedStreamReader


def test_a_stream_of_an_older_spark_keeps_its_limit_by_its_folder(
    stage: Callable[..., Stage], tmp_path: pathlib.Path
) -> None:
    given: dict[str, Any] = {"maxOffsetsPerTrigger": 9, "stateLocation": tmp_path}

    def begin() -> Any:
        reader: Any = stage(UnpositionedStreamReader, **given).reader
        reader._first = keep(tmp_path / FILE_NAME, {A: 1, B: 2}) if reader._at is None else None
        return reader

    reader: Any = stage(UnpositionedStreamReader, **given).reader
    reader.initialOffset = lambda: reader.__setattr__("_at", begin().initialOffset()) or reader._at
    end = reader.latestOffset()  # a new query: asked for the end before it is asked for the begin
    assert sum(offsets_of(end).values()) == 12
    reader.partitions(offsets_tree({A: 1, B: 2}), end)
    again = begin()  # a query that goes on after a batch that was done
    assert sum(offsets_of(again.latestOffset()).values()) == 21
    (tmp_path / FILE_NAME).unlink()
    keep(tmp_path / FILE_NAME, {A: 0, B: 0})  # begun anew: what was kept is another query's
    anew: Any = stage(UnpositionedStreamReader, **given).reader
    assert sum(offsets_of(anew.latestOffset()).values()) == 30


def test_a_secret_that_was_changed_is_read_again(tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("one")
    given = {"nameServer": "127.0.0.1:9", "topic": "T", "accessKey": "a", "secretKeyFile": str(secret)}
    options = read_options({**given, "startingOffsets": "earliest"}, streaming=True)
    reader = StreamReader(options, arrow_schema(["body"]))
    first = reader._open()
    assert reader._open() is first
    with _consumer(options, is_kept=True) as (_, kept):
        pass
    secret.write_text("two")
    assert reader._open() is not first
    reader.stop()
    with _consumer(options, is_kept=True) as (_, other):
        assert other is not kept
    while _clients:
        _clients.popitem()[1][0].__exit__(None, None, None)


def test_a_limit_is_sparks_to_give(stage: Callable[..., Stage]) -> None:
    made = stage(maxOffsetsPerTrigger=9)
    limit = made.reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(9)
    found = made.latest({A: 0, B: 0}, limit)
    assert sum(found.values()) == 9
    assert made.latest({A: 0, B: 0}) == {A: 10, B: 20}


def test_a_batch_waits_for_enough_but_not_for_ever(stage: Callable[..., Stage]) -> None:
    made = stage(minOffsetsPerTrigger=5, maxTriggerDelay="30s")
    start = made.latest({A: 0, B: 0})  # the first does not wait
    made.bounds[A] = (0, 13)
    assert made.latest(start) == start
    made.now += 29
    assert made.latest(start) == start
    made.now += 2
    assert made.latest(start) == {A: 13, B: 20}
    made.bounds[B] = (0, 25)
    assert made.latest({A: 13, B: 20}) == {A: 13, B: 25}


def test_available_now_ends_at_what_was_there(stage: Callable[..., Stage]) -> None:
    made = stage(minOffsetsPerTrigger=1000)
    made.reader.prepareForTriggerAvailableNow()
    made.bounds |= {A: (0, 99), C: (0, 7)}
    assert made.latest({A: 0, B: 0}) == {A: 10, B: 20}
    assert made.latest({A: 10, B: 20}) == {A: 10, B: 20}
    assert made.latest({A: 15, B: 20, C: 1}) == {A: 15, B: 20, C: 1}  # first offsets younger than the target


def test_a_queue_that_joins_begins_at_its_oldest_message(stage: Callable[..., Stage]) -> None:
    made = stage()
    made.bounds[C] = (0, 5)
    assert made.latest({A: 10, B: 20}) == {A: 10, B: 20, C: 5}
    (task,) = made.reader.partitions(offsets_tree({A: 10, B: 20}), offsets_tree({A: 10, B: 20, C: 5}))
    assert task.value == (QueueRange(C, 0, 5),)


def test_a_queue_that_is_gone_is_loss_or_keeps_its_place(stage: Callable[..., Stage]) -> None:
    made = stage()
    del made.bounds[B]
    with pytest.raises(DataLoss, match="is gone, it was read up to 17"):
        made.latest({A: 1, B: 17})
    made = stage(failOnDataLoss=False)
    del made.bounds[B]
    assert made.latest({A: 1, B: 17}) == {A: 10, B: 17}
    made.bounds[B] = (0, 20)  # its broker is back
    assert made.latest({A: 10, B: 17}) == {A: 10, B: 20}


def test_a_batch_that_begins_after_its_end_is_never_read(stage: Callable[..., Stage]) -> None:
    """First offsets that were not kept: 100 messages came between two looks at `latest`."""
    made = stage()
    made.bounds = {A: (0, 200)}
    with pytest.raises(DataLoss, match="begins at 100 but ends at 10"):
        made.reader.partitions(offsets_tree({A: 100}), offsets_tree({A: 10}))


def test_a_copy_has_nothing_but_the_options(stage: Callable[..., Stage]) -> None:
    made = stage()
    made.reader._first = {A: 1}
    copy = pickle.loads(pickle.dumps(made.reader))
    assert (copy._options, copy._schema.names, copy._first) == (made.reader._options, ["body"], None)
    assert list(copy.read(source.InputPartition(None))) == []
