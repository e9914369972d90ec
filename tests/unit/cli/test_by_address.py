"""Commands for one broker that is named by its address (-b HOST:PORT): no name server needs to answer."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from rmq.testing.cluster import Cluster
from tests.system.shell import Shell
from tests.unit.client.world import served_in_a_thread


class Alone(Shell):
    """A shell whose name server is gone."""

    broker = ""


@pytest.fixture
def at(tmp_path: pathlib.Path) -> Iterator[Alone]:
    """At a terminal beside a broker with the topic A; the name server that is asked is not there."""
    with served_in_a_thread(Cluster("a", "b", topics={"A": 2})) as world:
        shell = Alone(tmp_path, "127.0.0.1:1")
        object.__setattr__(shell, "broker", world.cluster.brokers["a"].address)
        yield shell


def test_topics_of_one_broker_are_made_changed_and_deleted(at: Alone) -> None:
    place = ("-b", at.broker)
    assert at.broker in at.ok("topic", "create", "New", "--queues", "3", *place)
    assert at.run("topic", "create", "New", *place).exit_code == 1
    at.ok("topic", "create", "New", "--if-missing", *place)
    at.ok("topic", "update", "New", "--write-queues", "2", *place)
    at.ok("topic", "perm", "New", "r", *place)
    (row,) = [one for one in at.rows("topic", "list", *place) if one["topic"] == "New"]
    assert (row["read_queues"], row["write_queues"], row["perm"]) == (3, 2, "r")
    at.ok("topic", "delete", "New", "--yes", *place)
    assert "New" not in [one["topic"] for one in at.rows("topic", "list", *place)]
    assert at.run("topic", "delete", "New", "--yes", *place).exit_code == 1


def test_groups_of_one_broker_are_made_and_deleted(at: Alone) -> None:
    place = ("-b", at.broker)
    at.ok("group", "create", "Few", "--retry-max", "3", *place)
    assert "Few" in [one["group"] for one in at.rows("group", "list", *place)]
    at.ok("group", "delete", "Few", "--yes", *place)
    assert at.run("group", "delete", "Few", "--yes", *place).exit_code == 1


def test_a_broker_is_looked_at_and_changed(at: Alone) -> None:
    at.ok("broker", "status", at.broker)
    at.ok("broker", "config", "set", "fileReservedTime=48", "-b", at.broker)
    assert at.rows("broker", "config", "get", at.broker, "fileReservedTime")
    at.ok("broker", "connections", at.broker)
    at.ok("broker", "clean", "--queues", "--yes", "-b", at.broker)


@pytest.mark.parametrize(
    "arguments",
    [
        ("updateTopic", "-t", "New"),
        ("updateTopicPerm", "-t", "A", "-p", "4"),
        ("updateSubGroup", "-g", "Few"),
        ("deleteSubGroup", "-g", "Few"),
        ("brokerStatus",),
        ("getBrokerConfig",),
        ("updateBrokerConfig", "-k", "fileReservedTime", "-v", "48"),
        ("cleanExpiredCQ",),
    ],
)
def test_commands_of_mqadmin_too(at: Alone, arguments: tuple[str, ...]) -> None:
    at.ok("admin", *arguments, "-b", at.broker)
