"""RocketMQ's official 5.x clients on `rmq proxy` before two brokers, as processes.

The scenarios of test_grpc_clients.py run there too, with RMQ_INTEROP_DOOR=proxy. At the end the proxy stands
before brokers of RocketMQ: 5.3.3, which know per-message delivery, and 4.9.7, which do not.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

import rmq
from rmq.remoting.network import TcpNetwork
from tests.interop.clients5 import Client, Jobs, client_for
from tests.interop.proxied5 import Proxied
from tests.interop.rocketmq import PYTHON_PATH, Processes, free_port, wait_for_port, wait_until

pytest.importorskip("h2")
pytestmark = pytest.mark.interop

BODIES = [f"m{number}" for number in range(20)]


@pytest.fixture(scope="module", params=["java", "python"])
def client(request: pytest.FixtureRequest) -> Client:
    """A client's driver."""
    return client_for(request)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """Two brokers and a proxy."""
    made = Proxied(tmp_path_factory.mktemp("proxied"))
    yield made
    made.close()


@pytest.fixture
def jobs(client: Client, proxied: Proxied) -> Iterator[Jobs]:
    """Start the client."""
    made = Jobs(client, proxied.env)
    yield made
    made.close()


async def brokers_of(proxied: Proxied, topic: str) -> set[str]:
    """The brokers that have messages of a topic."""
    async with rmq.connect(proxied.names) as ours:
        stats = await ours.admin.topic_stats(topic)
        return {queue.broker_name for queue, one in stats.items() if one.max_offset}


def test_messages_of_both_brokers_come_once(proxied: Proxied, client: Client, jobs: Jobs) -> None:
    topic = proxied.wide_topic(f"Wide-{client.language}")
    jobs(proxied.address, "send", topic=topic, bodies=",".join(BODIES)).done()
    assert trio.run(brokers_of, proxied, topic) == {"a", "b"}
    job = jobs(proxied.address, "simple", topic=topic, consumer=f"g-{topic}", seconds=60, count=len(BODIES))
    assert sorted(job.done().attempts()) == sorted([body, "1"] for body in BODIES)


def test_a_push_consumer_of_both_brokers_retries(proxied: Proxied, client: Client, jobs: Jobs) -> None:
    topic = proxied.wide_topic(f"Push-{client.language}")
    group = proxied.group(f"g-{topic}", delay_ms=2_000)
    job = jobs(proxied.address, "push", topic=topic, consumer=group, seconds=80, fails="m3").started()
    jobs(proxied.address, "send", topic=topic, bodies=",".join(BODIES)).done()
    job.until(lambda job: len(job.bodies()) == len(BODIES) + 1)
    assert sorted(job.attempts()) == sorted([*([body, "1"] for body in BODIES), ["m3", "2"]])


def test_a_killed_proxy_loses_nothing(proxied: Proxied, client: Client, jobs: Jobs) -> None:
    topic = proxied.wide_topic(f"Killed-{client.language}")
    job = jobs(
        proxied.address, "simple", topic=topic, consumer=f"g-{topic}", seconds=80, retry="yes"
    ).started()
    sender = jobs(proxied.address, "send", topic=topic, bodies=",".join(BODIES), every=300, retry="yes")
    sender.until(lambda job: len(job.told("sent")) >= 5)
    proxied.kill()
    proxied.start()
    sender.done()
    wait_until(lambda: set(job.bodies()) == set(BODIES), 80, "all messages")


# ---- before brokers of RocketMQ ----

TOPIC = "Orders"


@contextmanager
def proxy_before(names: str, folder: pathlib.Path) -> Iterator[str]:
    """The address of a proxy, as a process."""
    port = free_port()
    command = [sys.executable, "-m", "rmq.proxy", "-n", names, "--port", str(port)]
    with (folder / "proxy.log").open("ab") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env={"PYTHONPATH": PYTHON_PATH})
    try:
        wait_for_port(port)
        yield f"127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(30)


async def test_it_sends_and_takes_at_brokers_of_5x(five: Processes, tmp_path: pathlib.Path) -> None:
    from tests.unit.grpc import channel
    from tests.unit.grpc import test_grpc as calls

    names = five.java_namesrv()
    five.java_broker(names, tmp_path / "store")
    five.make_topic(names, TOPIC, 2)
    with proxy_before(names, tmp_path) as address, trio.fail_after(150):
        async with channel.channel(TcpNetwork(), address) as one:
            await _sent(one, calls, 4)
            found: list[Any] = []
            while len(found) < 4:
                _, some = await calls.received(one, calls.receiving(seconds=10))
                found += some
            handles = [each.system_properties.receipt_handle for each in found]
            assert {each.system_properties.delivery_attempt for each in found} == {1}
            assert calls.word(await one.one("AckMessage", calls.acking(*handles[:2]))) == "OK"
            change = calls.request(
                "ChangeInvisibleDuration",
                group="G",
                topic=TOPIC,
                receipt_handle=handles[2],
                invisible_duration=12,
            )
            changed = await one.one("ChangeInvisibleDuration", change)
            assert calls.word(changed) == "OK"
            assert calls.word(await one.one("AckMessage", calls.acking(changed.receipt_handle))) == "OK"
            again: list[Any] = []
            while not again:  # RocketMQ's revival comes late
                _, again = await calls.received(one, calls.receiving(seconds=10))
            (late,) = again
            assert late.body == found[3].body
            assert late.system_properties.delivery_attempt == 2
            acked = calls.acking(late.system_properties.receipt_handle)
            assert calls.word(await one.one("AckMessage", acked)) == "OK"
            await trio.sleep(25)
            assert (await calls.received(one, calls.receiving(seconds=10)))[0] == "MESSAGE_NOT_FOUND"


async def test_brokers_of_4x_take_messages_and_refuse_receives(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    from tests.unit.grpc import channel
    from tests.unit.grpc import test_grpc as calls

    names = processes.java_namesrv()
    processes.java_broker(names, tmp_path / "store")
    processes.make_topic(names, TOPIC, 2)
    with proxy_before(names, tmp_path) as address, trio.fail_after(90):
        async with channel.channel(TcpNetwork(), address) as one:
            await _sent(one, calls, 2)
            status, _ = await calls.received(one, calls.receiving())
            assert status == "NOT_IMPLEMENTED"


async def _sent(one: Any, calls: Any, count: int) -> None:
    """Send messages, from when the topic is known."""
    for number in range(count):
        while calls.word(await one.one("SendMessage", calls.sending(calls.message(b"%d" % number)))) != "OK":
            await trio.sleep(0.5)
