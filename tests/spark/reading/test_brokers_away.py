"""A broker that is away is waited for and never taken for gone: plans over two brokers, one of which stops.

No Spark runs here: the readers are called as it does.
"""

from __future__ import annotations

import json
import logging
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rmq.client import blocking
from rmq.errors import ConfigError
from rmq.message import MessageQueue
from rmq.protocol.bodies import TopicConfig
from rmq.spark import cluster, ranges
from rmq.spark.cluster import BrokersAway
from rmq.spark.offsets import DataLoss, offsets_of, offsets_tree, places_of
from rmq.spark.options import read_options
from rmq.spark.pipelines.lag import record_lag
from rmq.spark.source import BatchReader, StreamReader, UnpositionedStreamReader
from tests.spark.cluster import Pair, another_broker, running
from tests.spark.reading.streams import SCHEMA, count, latest, rows

OTHER = "broker-b"
EACH = 50


class Two:
    """Two brokers of one name server, the second of which can be stopped and started."""

    def __init__(self, pair: Pair, folder: pathlib.Path) -> None:
        self.pair = pair
        self.folder = folder
        self._stack = ExitStack()

    def start(self) -> None:
        """Start the second broker, over the folder that it had."""
        self._stack.enter_context(another_broker(self.pair, self.folder, OTHER))

    def stop(self) -> None:
        """Stop it: the name server forgets it at once."""
        self._stack.close()

    def make_topic(self, topic: str, queues: int = 2, *, broker: str = "") -> None:
        """Make a topic on both brokers, or one; or change its number of queues."""
        with blocking.connect(self.pair.names) as client:
            config = TopicConfig(topic, queues, queues)
            client.admin.put_topic(config, broker=broker, hide_unread=True)

    def fill(self, topic: str) -> None:
        """EACH messages to each broker."""
        for broker in ("embedded", OTHER):
            self.pair.send(topic, EACH, broker=broker)

    @contextmanager
    def away(self) -> Iterator[Callable[[], None]]:
        """The second broker is away in the block, or until some time after what this gives was called."""
        returning: list[threading.Thread] = []

        def come_back() -> None:
            returning.append(threading.Thread(target=self.start))
            returning[0].start()

        self.stop()
        try:
            yield come_back
        finally:
            if not returning:
                come_back()
            returning[0].join()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with running(tmp_path_factory.mktemp("names")) as pair:
        made = Two(pair, tmp_path_factory.mktemp("other"))
        made.start()
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def topic(two: Two, request: pytest.FixtureRequest) -> str:
    name = "T-" + request.node.name.replace("[", "-").replace("]", "")
    two.make_topic(name)
    two.fill(name)
    return name


def options(two: Two, topic: str, **more: object) -> dict[str, str]:
    return two.pair.options(topic, **{"pullTimeoutMs": 1500, **more})


def batch(two: Two, topic: str, **more: object) -> BatchReader:
    return BatchReader(read_options(options(two, topic, **more), streaming=False), SCHEMA)


def stream(two: Two, topic: str, **more: object) -> StreamReader:
    given = options(two, topic, **{"startingOffsets": "earliest", **more})
    return StreamReader(read_options(given, streaming=True), SCHEMA)


# --- batches ---


def test_a_batch_that_knows_its_brokers_fails_without_one(two: Two, topic: str) -> None:
    reader = batch(two, topic, requireBrokers=f"embedded, {OTHER}")
    assert count(reader) == 2 * EACH
    with two.away(), pytest.raises(BrokersAway, match=OTHER):
        count(reader)
    assert count(reader) == 2 * EACH


def test_a_batch_waits_for_a_broker_that_comes_back(two: Two, topic: str) -> None:
    reader = batch(two, topic, requireBrokers=OTHER, pullTimeoutMs=60_000)
    with two.away() as come_back:
        come_back()
        assert count(reader) == 2 * EACH


def test_a_batch_remembers_the_brokers_that_it_had(two: Two, topic: str, tmp_path: pathlib.Path) -> None:
    reader = batch(two, topic, stateLocation=tmp_path / "state")
    assert count(reader) == 2 * EACH
    assert json.loads((tmp_path / "state" / "brokers.json").read_text())["brokers"] == [OTHER, "embedded"]
    with two.away(), pytest.raises(BrokersAway, match=f"{OTHER}.*brokers.json"):
        count(batch(two, topic, stateLocation=tmp_path / "state"))


def test_a_batch_by_topic_is_not_silently_half(
    two: Two, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with two.away(), caplog.at_level(logging.WARNING):
        with pytest.raises(BrokersAway, match=f"{OTHER}.*without a drain"):
            count(batch(two, topic))
        assert count(batch(two, topic, onBrokerAway="skip")) == EACH
        assert f"skipped for now (onBrokerAway=skip): {OTHER}" in caplog.text
    assert count(batch(two, topic)) == 2 * EACH


def test_a_batch_says_that_name_servers_like_rocketmqs_know_no_broker_that_is_away(
    two: Two, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.client.admin.cluster.WITH_MISSING", "unknown")  # they answer as RocketMQ's
    ranges._warn_of_unknown.cache_clear()
    given = options(two, topic, assign=json.dumps({topic: {"embedded": [0, 1]}}))
    del given["topic"]
    warning = "do not tell whether a broker is away"
    with two.away(), caplog.at_level(logging.WARNING):
        assert count(BatchReader(read_options(given, streaming=False), SCHEMA)) == EACH
        assert count(batch(two, topic, requireBrokers="embedded")) == EACH
        assert warning not in caplog.text
        for _ in range(2):
            assert count(batch(two, topic)) == EACH
        assert [warning in line and "messages of embedded;" in line for line in caplog.messages] == [True]


@pytest.fixture
def session_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder of a Spark session, as its planning processes see it, with name servers like RocketMQ's."""
    folder = tmp_path / "blockmgr-5b1c"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{folder},{tmp_path}/blockmgr-77aa")
    monkeypatch.setattr("rmq.client.admin.cluster.WITH_MISSING", "unknown")
    ranges._warn_of_unknown.cache_clear()
    return folder


def pattern(two: Two, topic: str) -> BatchReader:
    given = options(two, topic, topicPattern=f"{topic}.*")
    del given["topic"]
    return BatchReader(read_options(given, streaming=False), SCHEMA)


def test_a_session_remembers_the_brokers_that_its_batches_have_read(
    two: Two, topic: str, session_folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert count(batch(two, topic)) == 2 * EACH
    caplog.clear()
    with two.away(), caplog.at_level(logging.WARNING):
        for one in (batch(two, topic), batch(two, f"{topic},{topic}"), pattern(two, topic)):
            with pytest.raises(BrokersAway, match=f"{OTHER}.*this Spark session has read"):
                count(one)
        assert caplog.text == ""
        for _ in range(2):
            assert count(batch(two, topic, onBrokerAway="skip")) == EACH
        assert f"skipped for now (onBrokerAway=skip): {OTHER}" in caplog.text
        with pytest.raises(BrokersAway, match=OTHER):
            count(batch(two, topic))
    assert count(batch(two, topic)) == 2 * EACH


def test_a_broker_that_lost_a_topic_is_not_waited_for_by_the_session(
    two: Two, topic: str, session_folder: pathlib.Path
) -> None:
    assert count(batch(two, topic)) == 2 * EACH
    with blocking.connect(two.pair.names) as client:
        client.admin.delete_topic(topic, broker=OTHER)
    assert count(batch(two, topic)) == EACH
    with two.away():
        assert count(batch(two, topic)) == EACH


def test_a_topic_that_the_session_has_not_read_is_warned_of(
    two: Two, topic: str, session_folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{topic}-2"
    two.make_topic(other)
    two.fill(other)
    assert count(batch(two, topic, requireBrokers="embedded")) == 2 * EACH
    with caplog.at_level(logging.WARNING):
        assert count(batch(two, f"{topic},{other}")) == 4 * EACH
    assert "do not tell whether a broker is away" in caplog.text


def test_a_session_remembers_a_bounded_number_of_topics_and_no_damage_fails_a_read(
    two: Two, topic: str, session_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SESSION_TOPICS", 2)
    session = ranges.SessionBrokers.of(two.pair.names)
    assert session is not None
    for name in ("A", "B", "C", "B"):
        session.note([MessageQueue(name, OTHER, 0)], keeps=False)
    assert list(json.loads(session.path.read_text())) == ["B", "C"]
    session.path.write_text("[1")
    assert count(batch(two, topic)) == 2 * EACH
    assert json.loads(session.path.read_text()) == {topic: [OTHER, "embedded"]}
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(session_folder / "gone"))
    assert ranges.SessionBrokers.of(two.pair.names) is None


def test_offsets_and_queues_that_are_named_are_waited_for(two: Two, topic: str) -> None:
    named = {topic: {broker: {"0": -2, "1": -2} for broker in ("embedded", OTHER)}}
    assigned = {topic: {"embedded": [0], OTHER: [1]}}
    by_offsets = batch(two, topic, startingOffsets=json.dumps(named))
    given = options(two, topic, assign=json.dumps(assigned))
    del given["topic"]
    by_queues = BatchReader(read_options(given, streaming=False), SCHEMA)
    assert (count(by_offsets), count(by_queues)) == (2 * EACH, EACH)
    with two.away():
        for reader in (by_offsets, by_queues):
            with pytest.raises(BrokersAway, match=OTHER):
                count(reader)


def test_what_is_chosen_and_not_there_is_an_error(two: Two, topic: str) -> None:
    given = {**options(two, topic, assign=json.dumps({topic: {"embedded": [0, 7]}}))}
    del given["topic"]
    with pytest.raises(ConfigError, match=f"{topic}/embedded/7"):
        count(BatchReader(read_options(given, streaming=False), SCHEMA))
    given = options(two, topic, topicPattern="Nothing.*")
    del given["topic"]
    with pytest.raises(ConfigError, match=r"topicPattern = 'Nothing\.\*'"):
        count(BatchReader(read_options(given, streaming=False), SCHEMA))
    given["requireTopics"] = "false"
    assert count(BatchReader(read_options(given, streaming=False), SCHEMA)) == 0


def test_what_a_stream_chooses_and_is_not_there_is_an_error(
    two: Two, topic: str, tmp_path: pathlib.Path
) -> None:
    for state in ({}, {"stateLocation": str(tmp_path)}):
        given = {**options(two, topic, startingOffsets="earliest", **state)}
        del given["topic"]
        pattern = {**given, "topicPattern": "Nothing.*"}
        queues = {**given, "assign": json.dumps({topic: {"embedded": [7]}})}
        for wrong, what in ((pattern, "topicPattern"), (queues, f"{topic}/embedded/7")):
            reader = StreamReader(read_options(wrong, streaming=True), SCHEMA)
            with pytest.raises(ConfigError, match=what):
                reader.initialOffset()
            reader.stop()
        reader = StreamReader(read_options({**pattern, "requireTopics": "false"}, streaming=True), SCHEMA)
        assert offsets_of(reader.initialOffset()) == {}
        reader.stop()


# --- streams ---


def test_a_stream_waits_for_a_broker_that_comes_back(
    two: Two, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ROUTES_MS", 100)
    reader = stream(two, topic, pullTimeoutMs=60_000)
    start = offsets_of(reader.initialOffset())
    end = latest(reader, start)
    assert sum(end.values()) == 2 * EACH
    with two.away() as come_back:
        until_forgotten(reader)
        come_back()
        assert latest(reader, end) == end
    with two.away() as come_back:
        until_forgotten(reader)
        come_back()
        assert rows(reader.partitions(offsets_tree(start), offsets_tree(end)), reader.read) == 2 * EACH
    reader.stop()


def until_forgotten(reader: StreamReader) -> None:
    """Return when the reader's client has heard that the broker is not registered."""
    while any(queue.broker_name == OTHER for queue in reader._open().queues()):
        pass


def test_a_stream_whose_broker_stays_away_says_so(two: Two, topic: str) -> None:
    reader = stream(two, topic)
    start = offsets_of(reader.initialOffset())
    end = latest(reader, start)
    reader.stop()
    with two.away():
        with pytest.raises(BrokersAway, match=OTHER):
            latest(reader, end)
        with pytest.raises(BrokersAway, match=OTHER):
            reader.partitions(offsets_tree(start), offsets_tree(end))
        reader.stop()
        lenient = stream(two, topic, failOnDataLoss=False)
        assert latest(lenient, end) == end, "its place is kept"
        lenient.stop()


def test_a_stream_that_skips_a_broker_reads_its_queues_later(
    two: Two, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "ROUTES_MS", 100)
    reader = stream(two, topic, onBrokerAway="skip")
    end = latest(reader, offsets_of(reader.initialOffset()))
    two.fill(topic)
    with two.away():
        until_forgotten(reader)
        later = latest(reader, end)
        assert sum(later.values()) == 3 * EACH, "the broker that is there is read on"
        assert latest(reader, later) == later
        assert {q: at for q, at in later.items() if q.broker_name == OTHER} == {
            q: at for q, at in end.items() if q.broker_name == OTHER
        }
    assert caplog.text.count(f"skipped for now (onBrokerAway=skip): {OTHER}") == 1
    until_known(reader)
    assert sum(latest(reader, later).values()) == 4 * EACH
    reader.stop()


@pytest.mark.parametrize(("option", "value"), [("failOnDataLoss", "false"), ("onBrokerAway", "skip")])
def test_a_stream_of_an_older_spark_does_not_forget_a_broker_that_is_away(
    two: Two, topic: str, option: str, value: str
) -> None:
    """Spark 4.0 and 4.1 do not tell the position: an end without the broker's queues would become the next
    one, and all their messages would come again."""

    def older(patience_ms: int) -> UnpositionedStreamReader:
        given = options(two, topic, startingOffsets="earliest", pullTimeoutMs=patience_ms, **{option: value})
        return UnpositionedStreamReader(read_options(given, streaming=True), SCHEMA)

    reader = older(300)
    with two.away(), pytest.raises(BrokersAway, match=f"{OTHER}.*without a drain"):
        reader.latestOffset()
    reader.stop()
    again = older(60_000)
    assert sum(offsets_of(again.latestOffset()).values()) == 2 * EACH
    again.stop()


def until_known(reader: StreamReader) -> None:
    """Return when the reader's client has heard that the broker is registered again."""
    while not any(queue.broker_name == OTHER for queue in reader._open().queues()):
        pass


def test_a_topic_with_fewer_queues_is_no_loss_when_they_were_read(two: Two, topic: str) -> None:
    reader = stream(two, topic)
    end = latest(reader, offsets_of(reader.initialOffset()))
    reader.stop()
    two.make_topic(topic, 1)
    later = latest(reader, end)
    assert later == end, "the places stay, should the queues come back"
    assert reader.partitions(offsets_tree(end), offsets_tree(later)) == []
    unread = {queue: offset - (queue.queue_id == 1) for queue, offset in end.items()}
    with pytest.raises(DataLoss, match="is gone, it was read up to 24"):
        latest(reader, unread)
    reader.stop()


def test_a_topic_that_was_deleted_and_made_again_is_not_read_on(two: Two, topic: str) -> None:
    reader = stream(two, topic)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()
    assert all(time_ms > 1_600_000_000_000 for _, time_ms in places_of(start).values())
    with blocking.connect(two.pair.names) as client:
        client.admin.delete_topic(topic)
    two.make_topic(topic)
    for _ in range(2):
        two.fill(topic)
    with pytest.raises(DataLoss, match="made again"):
        reader.latestOffset(start, ReadAllAvailable())
    assert sum(latest(reader, offsets_of(start)).values()) == 4 * EACH, "version 1 does not know"
    reader.stop()
    lenient = stream(two, topic, failOnDataLoss=False)
    end = lenient.latestOffset(start, ReadAllAvailable())
    planned = lenient.partitions(start, end)
    lenient.stop()
    assert sum(len(one) for task in planned for one in task.value) == 4 * EACH, "all of the new topic"


def test_lag_is_not_sampled_without_a_broker(two: Two, topic: str, tmp_path: pathlib.Path) -> None:
    committing = read_options(options(two, topic, groupId=topic, startingOffsets="group"), streaming=False)
    with cluster.Cluster(committing) as opened:
        opened.commit(dict.fromkeys(opened.queues(), 1))
    given = {"nameServer": two.pair.names, "pullTimeoutMs": "1000"}

    def stop_it(seconds: float) -> None:
        two.stop()

    try:
        with pytest.raises(BrokersAway, match=OTHER):
            record_lag(given, tmp_path, [topic], times=2, pause=stop_it)
        with pytest.raises(BrokersAway, match=OTHER):
            record_lag({**given, "requireBrokers": OTHER}, tmp_path, [topic])
    finally:
        two.start()
    assert len(list((tmp_path / "samples").iterdir())) == 1
    assert record_lag({**given, "requireBrokers": OTHER}, tmp_path, [topic]) == 4


def test_a_deleted_topic_is_loss_and_no_broker_that_is_away(two: Two, topic: str) -> None:
    reader = stream(two, topic)
    end = latest(reader, offsets_of(reader.initialOffset()))
    reader.stop()
    with blocking.connect(two.pair.names) as client:
        client.admin.delete_topic(topic, broker=OTHER)
    began = time.monotonic()
    with pytest.raises(DataLoss, match=OTHER):
        latest(reader, end)
    assert time.monotonic() - began < 30
    reader.stop()
