"""A broker that is killed and started again under load: no send fails, on either event loop."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from attrs import define

import rmq
from tests.ports import free_ports
from tests.system.shell import SMALL, service

OUTAGE_SECONDS = 6.0
TOGETHER = 50_000


@define
class Broker:
    """A broker at a port of its own, which can be killed."""

    arguments: list[str]
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the broker, and wait until it is ready."""
        self.process = subprocess.Popen(self.arguments, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.search("is ready", line):
                return
        raise AssertionError("the broker did not start")

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def servers(folder: pathlib.Path) -> Iterator[tuple[str, Broker]]:
    """A name server, and a broker that has started."""
    (port,) = free_ports(1)
    settings = [f"kvConfigPath={folder}/kv.json", "listenPort=0"]
    told = [word for one in settings for word in ("--set", one)]
    with service(folder, r"listens on (\S+)", "namesrv", *told) as names:
        broker = [f"listenPort={port}", f"storePathRootDir={folder}/store", "brokerName=a", *SMALL]
        broker += [f"namesrvAddr={names}", "autoCreateTopicEnable=true"]
        told = [word for one in broker for word in ("--set", one)]
        running = Broker([sys.executable, "-m", "rmq", "broker", *told])
        running.start()
        try:
            yield names, running
        finally:
            running.end(signal.SIGTERM)


async def read(names: str, group: str, count: int) -> Counter[bytes]:
    """The bodies of the topic, at least so many."""
    got: Counter[bytes] = Counter()
    topics = {"Patience": "*"}
    async with (
        rmq.connect(names) as client,
        client.consumer(group, topics, consume_from="first") as consumer,
    ):
        with anyio.move_on_after(30):
            async for delivery in consumer:
                async with delivery as message:
                    got[message.body] += 1
                if len(got) >= count:
                    break
    return got


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_restart_of_six_seconds_fails_no_send(
    tmp_path: pathlib.Path, loop: str, how: signal.Signals
) -> None:
    sent: list[bytes] = []
    failures: list[Exception] = []

    over = False

    async def send_on(producer: rmq.Producer, name: int) -> None:
        number = 0
        while not over:
            number += 1
            body = b"%d-%d" % (name, number)
            try:
                await producer.send(rmq.Message("Patience", body))
                sent.append(body)
            except rmq.RmqError as error:
                failures.append(error)
            await anyio.sleep(0.01)

    async def scenario(names: str, broker: Broker) -> None:
        nonlocal over
        async with rmq.connect(names) as client, client.producer("p") as producer:
            await producer.send(rmq.Message("Patience", b"first"))
            async with anyio.create_task_group() as tasks:
                for name in range(32):
                    tasks.start_soon(send_on, producer, name)
                await anyio.sleep(1)
                await anyio.to_thread.run_sync(broker.end, how)
                before = len(sent)
                await anyio.sleep(OUTAGE_SECONDS)
                assert len(sent) == before
                await anyio.to_thread.run_sync(broker.start)
                with anyio.fail_after(30):
                    while len(sent) <= before + 2 * 32:
                        await anyio.sleep(0.05)
                over = True
        got = await read(names, "g", len(sent) + 1)
        assert not set(sent) - got.keys()

    with servers(tmp_path) as (names, broker):
        anyio.run(scenario, names, broker, backend=loop)
    assert failures == []


@pytest.mark.parametrize("loop", ["asyncio", pytest.param("trio", marks=pytest.mark.long)])
def test_many_sends_at_once_are_stored_once_each(tmp_path: pathlib.Path, loop: str) -> None:
    results: list[rmq.SendResult] = []

    async def send(producer: rmq.Producer, number: int) -> None:
        results.append(await producer.send(rmq.Message("Patience", b"%d" % number)))

    async def scenario(names: str) -> None:
        config = rmq.ClientConfig(send_queue_ms=180_000)  # on a machine with much else to do
        async with rmq.connect(names, config=config) as client, client.producer("p") as producer:
            began = time.process_time()
            async with anyio.create_task_group() as tasks:
                for number in range(TOGETHER):
                    tasks.start_soon(send, producer, number)
            print(f"{(time.process_time() - began) / TOGETHER * 1e6:.1f} µs a send")
        assert await read(names, "g", TOGETHER) == Counter(b"%d" % number for number in range(TOGETHER))

    with servers(tmp_path) as (names, _):
        anyio.run(scenario, names, backend=loop)
    places = {(one.message_queue, one.queue_offset) for one in results}
    assert len(results) == len(places) == TOGETHER
