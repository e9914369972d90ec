"""Promises of our client beyond sending and consuming, on the Java servers and on ours."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from itertools import pairwise

import pytest
import trio

import rmq
from tests.interop.conftest import Servers
from tests.interop.rocketmq import Process, Processes, wait_until

pytestmark = pytest.mark.interop

EXAMPLES = sorted((pathlib.Path(__file__).parents[3] / "examples").glob("*.py"))
SETTINGS = {
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "1000",
}


@pytest.fixture(params=["java", "rmq"])
def servers(request: pytest.FixtureRequest, processes: Processes) -> Servers:
    return Servers(processes, request.param)


@pytest.fixture
def broker(servers: Servers, tmp_path: pathlib.Path) -> Process:
    return servers.broker(tmp_path / "store", **SETTINGS)


async def take(consumer: rmq.Consumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    async for delivery in consumer:
        async with delivery as message:
            bodies.append(message.body)
        if len(bodies) == count:
            break
    return bodies


async def test_examples(servers: Servers, broker: Process) -> None:
    outputs: dict[str, tuple[int, str]] = {}
    limiter = trio.CapacityLimiter(3)

    async def run(example: pathlib.Path) -> None:
        command = [sys.executable, str(example), servers.namesrv]
        async with limiter:
            done = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
        outputs[example.stem] = (done.returncode, done.stdout.decode())

    with trio.fail_after(150):
        async with trio.open_nursery() as nursery:
            for example in EXAMPLES:
                nursery.start_soon(run, example)
    assert {name: text for name, (code, text) in outputs.items() if code} == {}
    assert "4 created paid packed shipped" in outputs["ordered"][1]
    assert "sh 23" in outputs["request_reply"][1]


async def test_the_check_back_decides_what_was_cut_short(servers: Servers, broker: Process) -> None:
    asked = []

    async def check_back(message: rmq.StoredMessage) -> rmq.Decision:
        asked.append(message.body)
        return rmq.COMMIT if message.keys == ("good",) else rmq.ROLLBACK

    with trio.fail_after(60):
        async with (
            rmq.connect(servers.namesrv) as client,
            client.transactional_producer("checked", check_back) as producer,
        ):
            for key in ("bad", "good"):
                with trio.move_on_after(1):
                    async with producer.transaction(rmq.Message("Checked", key.encode(), keys=[key])):
                        await trio.sleep_forever()
            async with client.consumer("c", {"Checked": "*"}, consume_from="first") as consumer:
                assert await take(consumer, 1) == [b"good"]
    assert set(asked) == {b"good", b"bad"}


async def test_an_ordered_message_past_its_retries_is_a_dead_letter(
    servers: Servers, broker: Process
) -> None:
    tried = []

    async def handle(message: rmq.StoredMessage) -> None:
        tried.append((message.body, message.reconsume_times))
        if message.body == b"bad":
            raise ValueError("bad")
        done.set()

    done = trio.Event()
    with trio.fail_after(90):
        config = rmq.ClientConfig(suspend_queue_ms=100)
        async with rmq.connect(servers.namesrv, config=config) as client:
            async with client.producer("p") as producer:
                for body in (b"bad", b"good"):
                    await producer.send(rmq.Message("Steps", body), sharding_key="k")
            async with (
                client.consumer(
                    "steps", {"Steps": "*"}, consume_from="first", ordered=True, max_reconsume_times=2
                ) as consumer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(consumer.run, handle)
                await done.wait()
                nursery.cancel_scope.cancel()
            async with client.consumer("dead", {"%DLQ%steps": "*"}, consume_from="first") as consumer:
                assert await take(consumer, 1) == [b"bad"]
    assert tried == [(b"bad", 0), (b"bad", 1), (b"bad", 2), (b"good", 0)]


async def test_mqadmin_reads_our_traces(servers: Servers, broker: Process) -> None:
    with trio.fail_after(90):
        async with rmq.connect(servers.namesrv, plugins=[rmq.MessageTrace()]) as client:
            async with client.producer("traced") as producer:
                result = await producer.send(rmq.Message("Traced", b"x", keys=["k"]))
            async with client.consumer("tracing", {"Traced": "*"}, consume_from="first") as consumer:
                await take(consumer, 1)

    def told() -> str:
        arguments = ("queryMsgTraceById", "-n", servers.namesrv, "-i", result.message_id)
        said = servers.processes.mqadmin(*arguments)
        return said if "tracing" in said else ""

    said = await trio.to_thread.run_sync(wait_until, told, 60, "the trace")
    assert "Pub" in said
    assert "traced" in said
    assert "success" in said


async def test_a_message_comes_again_in_any_time(servers: Servers, broker: Process) -> None:
    """RocketMQ's brokers take the next longer of their levels, 5 s, and ours the seconds."""
    at: list[float] = []
    with trio.fail_after(60):
        async with rmq.connect(servers.namesrv) as client, client.producer("p") as producer:
            await producer.send(rmq.Message("AnyRetry", b"x"))
            async with client.consumer("any-retry", {"AnyRetry": "*"}, consume_from="first") as consumer:
                for _ in range(3):
                    async with await anext(consumer) as message:
                        at.append(trio.current_time())
                        raise rmq.Retry(after=2.5)
    assert message.reconsume_times == 2
    waits = [later - sooner for sooner, later in pairwise(at)]
    least = 5 if servers.kind == "java" else 2.5
    assert all(least - 0.1 < wait < least + 2 for wait in waits), waits
