"""The drawings of docs/design/paths.md, compared with real messages that are followed from function to
function."""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

import rmq
from rmq.message import Message
from rmq.store.config import BrokerRole
from rmq.testing.cluster import Cluster
from tests.sim.real_brokers.brokers import controlled_set

from .traffic import take

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "design" / "paths.md"
LONGEST = {"client": 4, "broker": 7}
"""Frames that a send passes: from the application to the connection, from the connection to the file."""


@define
class Step:
    """A line of a drawing: a function, and which one further left is to be on the stack."""

    name: str
    caller: str | None


@define
class Followed:
    """The calls of our functions in a block: each with the names of those that it was called from."""

    calls: list[tuple[str, tuple[str, ...]]] = field(factory=list)

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """The hook for `sys.setprofile`."""
        if event != "call" or not frame.f_globals.get("__name__", "").startswith("rmq."):
            return
        stack: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            module = at.f_globals.get("__name__", "")
            if module.startswith("rmq."):
                stack.append(f"{module.removeprefix('rmq.')}:{at.f_code.co_qualname}")
            at = at.f_back
        self.calls.append((stack[0], tuple(stack[1:])))

    @contextmanager
    def followed(self) -> Iterator[None]:
        sys.setprofile(self.see)
        try:
            yield
        finally:
            sys.setprofile(None)


def drawn(name: str) -> list[Step]:
    """The steps of a drawing of the page."""
    (block,) = re.findall(rf"^```path {name}\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    steps: list[Step] = []
    above: list[tuple[int, str]] = []
    for line in block.splitlines():
        if not line:
            above = []
            continue
        depth, function = len(line) - len(line.lstrip()), line.split()[0]
        above = [one for one in above if one[0] < depth]
        steps.append(Step(function, above[-1][1] if above else None))
        above.append((depth, function))
    return steps


def check(name: str, calls: list[tuple[str, tuple[str, ...]]]) -> None:
    """Each step was called after the one before it, from where it is drawn. Names the first that was not."""
    at = 0
    for step in drawn(name):
        while at < len(calls) and not (calls[at][0] == step.name and step.caller in (None, *calls[at][1])):
            at += 1
        known = {function for function, _ in calls}
        why = "not in this order, or from elsewhere" if step.name in known else "never"
        assert at < len(calls), (
            f"{PAGE.name}, {name}: {step.name} was called {why} (drawn below {step.caller})"
        )
        at += 1


def commit(message: rmq.StoredMessage) -> rmq.client.produce.transactional.Decision:
    return rmq.COMMIT


async def test_a_send(clock: MockClock) -> None:
    found = Followed()
    async with Cluster("a") as made, made.connect() as client, client.producer("p") as producer:
        await producer.send(Message("T", b"makes the topic"))
        await trio.sleep(1)
        with found.followed():
            await producer.send(Message("T", b"x"))
    check("send", found.calls)
    depths = {
        "client": depth_of("remoting.connection:Connection.call", found, "Producer.send"),
        "broker": depth_of("store.files.segments:Segments.write", found, "Broker.handle"),
    }
    assert all(depths[place] <= LONGEST[place] for place in LONGEST), depths


def depth_of(function: str, found: Followed, outermost: str) -> int:
    """The number of frames from `outermost` to the first call of `function`, both counted."""
    for name, stack in found.calls:
        if name == function and any(one.endswith(outermost) for one in stack):
            return next(at for at, one in enumerate(stack) if one.endswith(outermost)) + 2
    raise AssertionError(f"{function} was not called below {outermost}")


async def test_a_send_that_waits_for_its_slave(clock: MockClock) -> None:
    found = Followed()
    async with Cluster() as made:
        await made.start("m", store={"broker_role": BrokerRole.SYNC_MASTER}, broker_name="pair")
        await made.start("s", store={"broker_role": BrokerRole.SLAVE}, broker_name="pair", broker_id=1)
        await trio.sleep(15)
        async with made.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"makes the topic"))
            await trio.sleep(1)
            with found.followed():
                sent = await producer.send(Message("T", b"x"))
    assert sent.status == "SEND_OK"
    check("replicated", found.calls)


async def test_the_end_of_a_transaction(clock: MockClock) -> None:
    found = Followed()
    async with (
        Cluster("a") as made,
        made.connect() as client,
        client.transactional_producer("p", commit) as producer,
    ):
        await trio.sleep(1)
        with found.followed():
            async with producer.transaction(Message("T", b"x")):
                pass
            await trio.sleep(1)
    check("transaction", found.calls)


async def test_a_pull(clock: MockClock) -> None:
    found = Followed()
    async with Cluster("a") as made, made.connect() as client:
        async with client.producer("p") as producer:
            await producer.send(Message("T", b"1"))
        with found.followed():
            async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                assert await take(consumer, 1) == [1]
                await trio.sleep(10)
    check("pull", found.calls)


async def test_the_commit_of_an_offset(clock: MockClock) -> None:
    found = Followed()
    async with Cluster("a") as made, made.connect() as client:
        async with client.producer("p") as producer:
            await producer.send(Message("T", b"1"))
        async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
            assert await take(consumer, 1) == [1]
            with found.followed():
                await trio.sleep(10)
    check("commit", found.calls)


async def test_a_start(clock: MockClock) -> None:
    found = Followed()
    async with Cluster() as made:
        with found.followed():
            await made.start("a")
    check("start", found.calls)


async def test_a_hand_over_and_an_election(autojump_clock: MockClock) -> None:
    found = Followed()
    async with controlled_set(2) as (made, client):
        first = await made.begin(client, queues=1)
        (second,) = (node for node in made.nodes if node is not first)
        with trio.fail_after(60), found.followed():
            assert await made.want(second.number())
            while await made.master() is not second:
                await trio.sleep(0.05)
        check("handover", found.calls)
        await made.until(inSync=[1, 2])
        found.calls.clear()
        with trio.fail_after(60), found.followed():
            await made.kill(second)
            while await made.master() is not first:
                await trio.sleep(0.05)
        check("election", found.calls)


def test_the_check_sees_what_is_drawn_wrong() -> None:
    calls = [(step.name, (step.caller,) if step.caller else ()) for step in drawn("send")]
    check("send", calls)
    for wrong in (calls[::-1], calls[:-1], [(name, ()) for name, _ in calls]):
        with pytest.raises(AssertionError, match=r"paths\.md"):
            check("send", wrong)
