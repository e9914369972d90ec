"""RocketMQ 4.9.7 opens a store in which transactions of the AMQP door were committed, and gives it back."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Awaitable, Callable

import pytest
import trio

pytest.importorskip("proton", reason="needs the extra amqp: pip install 'rmq[amqp]'")

from rmq.remoting.network import TcpNetwork
from tests.interop.conftest import Servers
from tests.interop.rocketmq import Processes, wait_for_port
from tests.interop.servers.ending import end
from tests.ports import free_ports
from tests.unit.amqp.client import ACCEPTED, Client, Consumer, connected
from tests.unit.amqp.messages import bodies, text
from tests.unit.amqp.transactional import TRANSACTIONAL, accept_within, coordinator, send_within

pytestmark = pytest.mark.interop

COUNT = 14
MOVED = 10
"""By transactions that are committed, two messages each; of the next one the commit never comes."""
SECONDS = 120.0


def at_the_door(port: int, work: Callable[[Client], Awaitable[None]]) -> None:
    """Work as a client of AMQP."""

    async def main() -> None:
        with trio.fail_after(SECONDS):
            async with connected(TcpNetwork(), f"127.0.0.1:{port}", "mover") as one:
                await work(one)

    trio.run(main)


async def move(one: Client) -> None:
    """Fill In, and move messages to Out."""
    session = await one.session()
    fill = await one.producer(session, "In", "fill")
    for number in range(COUNT):
        assert (await fill.send(text(f"m{number}"))).remote_state == ACCEPTED
    control = await coordinator(one, session)
    consumer = await one.consumer(session, "In", credit=2)
    producer = await one.producer(session, "Out")
    for _ in range(MOVED // 2):
        await _move_two(control, consumer, producer, commits=True)
        consumer.link.flow(2)
        await one.flush()
    await _move_two(control, consumer, producer, commits=False)


async def _move_two(control: object, consumer: Consumer, producer: object, *, commits: bool) -> None:
    name = await control.declare()  # type: ignore[attr-defined]
    for _ in range(2):
        body = await accept_within(consumer, name)
        sent = await send_within(producer, name, text(body))  # type: ignore[arg-type]
        assert sent.remote_state == TRANSACTIONAL
    if commits:
        assert (await control.discharge(name)).remote_state == ACCEPTED  # type: ignore[attr-defined]


def bodies_of(processes: Processes, namesrv: str, topic: str) -> list[str]:
    """The bodies of a topic's messages, as the Java client reads them."""
    rows = processes.program("ReadAll", namesrv, topic).finish()
    return sorted(base64.b64decode(row["body"]).decode() for row in rows if "body" in row)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_java_broker_opens_a_store_with_commits(
    processes: Processes, tmp_path: pathlib.Path, how: str
) -> None:
    store, (port,) = tmp_path / "store", free_ports(1)
    ours, java = Servers(processes, "rmq"), Servers(processes, "java")
    door = {"plugins": "amqp", "amqpPort": str(port)}
    broker = ours.broker(store, flushDiskType="SYNC_FLUSH", **door)
    for topic in ("In", "Out"):
        processes.make_topic(ours.namesrv, topic, 2)
    wait_for_port(port)
    at_the_door(port, move)
    end(broker, how)

    broker = java.broker(store)
    moved = sorted(f"m{number}" for number in range(MOVED))
    assert bodies_of(processes, java.namesrv, "Out") == moved
    assert len(bodies_of(processes, java.namesrv, "In")) == COUNT
    for topic in ("In", "Out"):
        processes.program("Produce", java.namesrv, topic, "sync", "3", "new").finish()
    assert len(bodies_of(processes, java.namesrv, "Out")) == MOVED + 3
    end(broker, how)

    broker = ours.broker(store, flushDiskType="SYNC_FLUSH", **door)
    wait_for_port(port)
    left: list[str] = []

    async def take(one: Client) -> None:
        consumer = await one.consumer(await one.session(), "In")
        some = await bodies(consumer, COUNT - MOVED + 3)
        left.extend(body if isinstance(body, str) else bytes(body).decode() for body in some)

    at_the_door(port, take)
    expected = [f"m{number}" for number in range(MOVED, COUNT)] + [f"new-{number}" for number in range(3)]
    assert sorted(left) == sorted(expected), "what was acknowledged by a commit does not come again"
    assert bodies_of(processes, ours.namesrv, "Out") == sorted([*moved, *(f"new-{n}" for n in range(3))])
