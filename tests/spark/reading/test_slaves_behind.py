"""A slave that is behind answers for a master that is away: messages that it lacks are not lost, nor left out
without a word.

No Spark runs here: the readers are called as it does.
"""

from __future__ import annotations

import logging
import pathlib
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from rmq.client import blocking
from rmq.protocol.bodies import TopicConfig
from rmq.spark import cluster
from rmq.spark.cluster import BrokersAway
from rmq.spark.offsets import offsets_of, offsets_tree
from rmq.spark.options import read_options
from rmq.spark.source import BatchReader, StreamReader, UnpositionedStreamReader
from tests.spark.cluster import Pair, another_broker, running
from tests.spark.reading.streams import SCHEMA, SLAVE, count, latest, rows

NAME = "pair-b"
EACH = 50


class Replicated:
    """A master and its slave at a name server; the slave has the first half of the messages only."""

    def __init__(self, pair: Pair, folder: pathlib.Path) -> None:
        self.pair = pair
        self._folder = folder

    @contextmanager
    def master(self) -> Iterator[None]:
        """Run the master."""
        with another_broker(self.pair, self._folder / "master", NAME):
            yield

    @contextmanager
    def slave(self) -> Iterator[None]:
        """Run the slave."""
        with another_broker(self.pair, self._folder / "slave", NAME, SLAVE):
            yield

    def ends(self, topic: str) -> int:
        """The messages of the topic, according to whichever replica answers."""
        with blocking.connect(self.pair.names) as client, client.pull_consumer("tests") as consumer:
            return sum(consumer.max_offset(queue) for queue in consumer.message_queues(topic))


@pytest.fixture
def behind(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Replicated, str]]:
    monkeypatch.setattr(cluster, "ROUTES_MS", 100)
    with running(tmp_path / "names") as pair:
        made, topic = Replicated(pair, tmp_path), "Orders"
        with made.master():
            with blocking.connect(pair.names) as client:
                client.admin.put_topic(TopicConfig(topic, 2, 2), broker=NAME)
            pair.send(topic, EACH, broker=NAME)
        shutil.copytree(tmp_path / "master", tmp_path / "slave")  # the slave has this, and does not follow
        with ExitStack() as slave:
            with made.master():
                slave.enter_context(made.slave())
                pair.send(topic, EACH, first=EACH, broker=NAME)
            yield made, topic


def batch(made: Replicated, topic: str, **more: object) -> BatchReader:
    given = made.pair.options(topic, **{"pullTimeoutMs": 1500, **more})
    return BatchReader(read_options(given, streaming=False), SCHEMA)


def stream(made: Replicated, topic: str, **more: object) -> StreamReader:
    given = made.pair.options(topic, **{"pullTimeoutMs": 1500, "startingOffsets": "earliest", **more})
    return StreamReader(read_options(given, streaming=True), SCHEMA)


def test_a_batch_that_requires_the_broker_fails_while_only_a_slave_answers(
    behind: tuple[Replicated, str],
) -> None:
    made, topic = behind
    assert made.ends(topic) == EACH, "the slave answers, and is behind"
    with pytest.raises(BrokersAway, match=f"masters waited for.*{NAME}"):
        count(batch(made, topic, requireBrokers=NAME))
    assert count(batch(made, topic, requireBrokers=NAME, requireMasters=False)) == EACH
    with made.master():
        assert count(batch(made, topic, requireBrokers=NAME)) == 2 * EACH


def test_a_batch_of_no_required_broker_says_what_may_be_missing(
    behind: tuple[Replicated, str], caplog: pytest.LogCaptureFixture
) -> None:
    made, topic = behind
    with pytest.raises(BrokersAway, match="masters waited for"), caplog.at_level(logging.WARNING):
        count(batch(made, topic))
    assert count(batch(made, topic, onBrokerAway="skip")) == EACH
    assert f"no master of {NAME} is registered" in caplog.text


def test_a_stream_neither_goes_back_nor_calls_it_loss(behind: tuple[Replicated, str]) -> None:
    made, topic = behind
    with made.master():
        reader = stream(made, topic)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert sum(offsets_of(end).values()) == 2 * EACH
        reader.stop()
    for loss in (True, False):
        reader = stream(made, topic, failOnDataLoss=loss)
        assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
        parts = reader.partitions(start, end)
        with pytest.raises(BrokersAway):
            rows(parts, reader.read)
        with made.master():
            assert rows(reader.partitions(start, end), reader.read) == 2 * EACH
            assert latest(reader, offsets_of(end)) == offsets_of(offsets_tree(offsets_of(end)))
        reader.stop()


def test_a_slave_that_a_new_look_at_the_route_finds_is_known_as_one(
    behind: tuple[Replicated, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader's route names the master that was stopped, until the request for its bounds looks again."""
    monkeypatch.setattr(cluster, "ROUTES_MS", 3_600_000)
    made, topic = behind
    with made.master():
        reader = stream(made, topic, onBrokerAway="skip")
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    for _ in range(3):
        assert latest(reader, offsets_of(end)) == offsets_of(end), "messages would be read again"
    with pytest.raises(BrokersAway):
        count(batch(made, topic))
    reader.stop()


@pytest.mark.parametrize(
    ("option", "value"), [("failOnDataLoss", "false"), ("onBrokerAway", "skip"), ("requireMasters", "false")]
)
def test_a_stream_of_an_older_spark_does_not_go_back(
    behind: tuple[Replicated, str], option: str, value: str
) -> None:
    """Spark 4.0 and 4.1 do not tell the position: the slave's end would become the next one."""
    made, topic = behind
    given = {"pullTimeoutMs": 300, "startingOffsets": "earliest", option: value}
    options = read_options(made.pair.options(topic, **given), streaming=True)
    reader = UnpositionedStreamReader(options, SCHEMA)
    with pytest.raises(BrokersAway, match=f"masters waited for.*{NAME}"):
        reader.latestOffset()
    with made.master():
        assert sum(offsets_of(reader.latestOffset()).values()) == 2 * EACH
    reader.stop()
