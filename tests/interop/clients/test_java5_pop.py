"""RocketMQ 5.3.3's push consumer that pops (clientRebalance=false, request mode POP) on our brokers."""

from __future__ import annotations

import pathlib

import pytest

from tests.interop.rocketmq import Processes, wait_until

pytestmark = pytest.mark.interop

TOPIC, GROUP, COUNT = "Popped", "poppers", 40


def bodies(process: object) -> list[str]:
    return [str(row["body"]) for row in process.rows if "body" in row]  # type: ignore[attr-defined]


def test_its_pop_consumer_gets_the_messages_of_two_brokers_once(
    five: Processes, tmp_path: pathlib.Path
) -> None:
    names = five.rmq_namesrv()
    for name in ("a", "b"):
        five.rmq_broker(names, tmp_path / name, brokerName=name)
    made = five.mqadmin("updateTopic", "-n", names, "-c", "DefaultCluster", "-t", TOPIC, "-r", "2", "-w", "2")
    assert "success" in made
    made = five.mqadmin("updateSubGroup", "-n", names, "-c", "DefaultCluster", "-g", GROUP)
    assert "success" in made
    words = ("-n", names, "-c", "DefaultCluster", "-t", TOPIC, "-g", GROUP, "-m", "POP")
    told = five.mqadmin("setConsumeMode", *words)
    assert told.count("success") >= 2, told
    consumers = [five.program("Consume", names, TOPIC, GROUP, options=("-Dask=true",)) for _ in range(2)]
    five.program("Produce", names, TOPIC, "sync", str(COUNT), "m").finish()
    wanted = {f"m-{number}" for number in range(COUNT)}
    wait_until(lambda: set(bodies(consumers[0]) + bodies(consumers[1])) == wanted, 120, "all messages")
    assert len(bodies(consumers[0]) + bodies(consumers[1])) == COUNT
    brokers = {str(row["broker"]) for one in consumers for row in one.rows if "body" in row}
    assert brokers == {"a", "b"}
    progress = five.mqadmin("consumerProgress", "-n", names, "-g", GROUP)
    assert "Popped" in progress or TOPIC in progress, progress
