"""The remoting client of Apache RocketMQ 5.3.3 against our servers."""

from __future__ import annotations

import pathlib

import pytest
import trio

from tests.interop.five import client_of, in_thread, take
from tests.interop.rocketmq import Process, Processes, wait_until

pytestmark = pytest.mark.interop


@pytest.fixture
def ours(five: Processes, tmp_path: pathlib.Path) -> str:
    """Our name server and broker: the name server's address."""
    names = five.rmq_namesrv()
    settings = {"enablePropertyFilter": "true", "traceTopicEnable": "true"}
    five.rmq_broker(names, tmp_path / "store", **settings)
    return names


def rows_of(process: Process, key: str, count: int) -> list[dict[str, object]]:
    wait_until(lambda: len([one for one in process.rows if key in one]) >= count, 60, f"{count} rows")
    return [one for one in process.rows if key in one]


@pytest.mark.parametrize(
    ("mode", "size"), [("sync", 0), ("async", 0), ("oneway", 0), ("batch", 0), ("sync", 20_000)]
)
def test_java_sends_and_consumes(five: Processes, ours: str, mode: str, size: int) -> None:
    five.program("Produce", ours, "Kinds", mode, "60", "m", str(size)).finish()
    consumer = five.program("Consume", ours, "Kinds", "kinds")
    assert {one["body"] for one in rows_of(consumer, "body", 60)} == {f"m-{number}" for number in range(60)}


async def test_javas_traces(five: Processes, ours: str) -> None:
    """A client of RocketMQ drops a trace whose send fails, as the first may: so it sends until one comes."""

    def send() -> None:
        five.program("Produce", ours, "Traced", "sync", "3", "m", "0", options=("-Dtrace=true",)).finish()

    await in_thread(send)
    async with (
        client_of(ours, seconds=180) as client,
        client.consumer("traces", {"RMQ_SYS_TRACE_TOPIC": "*"}, consume_from="first") as consumer,
    ):
        while True:
            with trio.move_on_after(10):
                (trace,) = await take(consumer, 1)
                if b"Traced" in trace.body:
                    break
            await in_thread(send)
