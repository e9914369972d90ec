"""A call at the end of a round: behind all outcomes of the round, once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rmq import Message
from rmq.broker.chunk.steps import RoundEnd
from rmq.broker.membership.door_peers import ALONE_AFTER
from rmq.plugin import Appended, Door, DoorHost, DoorStream, Plugin
from rmq.testing.cluster import Cluster
from rmq.testing.network import MemoryNetwork
from tests.unit.broker.rig import Rig

from .lines import Line

PORT = 7070
COUNT = 5


class OneDoor(Plugin):
    """A plug-in with a door of its own."""

    def doors(self) -> list[Door]:
        return [Door(name="one", port=PORT, serve=self.serve)]

    async def serve(self, stream: DoorStream, host: DoorHost) -> None:
        raise NotImplementedError


class Gathering(OneDoor):
    """Stores each line several times, and answers by a line for each outcome and a full stop."""

    async def serve(self, stream: DoorStream, host: DoorHost) -> None:
        parts: list[bytes] = []

        def flush() -> None:
            stream.send(b"".join(parts) + b".\n")
            parts.clear()

        def stored(outcome: Appended) -> None:
            parts.append(b"stored ")
            host.soon(flush)

        while (line := await stream.receive_until(b"\n", 100)) is not None:
            if line == b"x":
                for _ in range(COUNT):
                    host.append(Message("Orders", line), stored)
                continue
            host.soon(flush)
            if line == b"last":
                stream.close()


def test_calls_are_made_though_the_round_fails() -> None:
    rig, calls, woken = Rig(), [], []
    steps = rig.broker.steps
    steps.round_end = RoundEnd(lambda: woken.append(True))

    def fail() -> None:
        steps.round_end.add(later, lambda call: call())
        raise OSError("the disk hangs")

    def later() -> None:
        calls.append("made")

    steps._commit_pending = fail
    with pytest.raises(OSError, match="hangs"):
        steps.deadlines(rig.seconds)
    assert (calls, woken) == (["made"], [])
    steps.round_end.add(later, lambda call: call())
    assert woken, "outside of a round the loop is woken"


def test_a_turn_commits_without_a_look_at_all_who_wait() -> None:
    rig, done = Rig(), list[str]()
    broker, steps = rig.broker, rig.broker.steps
    steps._waiting = [lambda now: done.append("looked") or now + 60]  # type: ignore[func-returns-value]
    steps._commit_pending = lambda: done.append("committed")
    steps.turn(broker.commit_soon)
    assert done == ["committed"]
    done.clear()
    broker.commit_soon()  # not in a turn: by a deadline that is over
    steps.turn(lambda: None)
    assert done == ["committed", "looked", "committed"]


def test_a_turn_that_fails_commits_what_it_has_put() -> None:
    rig, done = Rig(), list[str]()
    steps = rig.broker.steps
    steps._commit_pending = lambda: done.append("committed")

    def fail() -> None:
        rig.broker.commit_soon()
        raise RuntimeError("a bug of the door")

    with pytest.raises(RuntimeError, match="bug"):
        steps.turn(fail)
    assert done == ["committed"]


class Turning(OneDoor):
    """Stores each line in a turn, and answers by whether it was stored when the turn ended."""

    async def serve(self, stream: DoorStream, host: DoorHost) -> None:
        stored: list[Appended] = []

        def work() -> None:
            host.append(Message("Orders", b"x"), stored.append)
            host.defer(0.0, lambda: None)

        while await stream.receive_until(b"\n", 100) is not None:
            stored.clear()
            host.turn(work)
            stream.write(b"stored\n" if stored else b"later\n")


@pytest.fixture(params=[Gathering])
def running(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Cluster:
    monkeypatch.setattr("rmq.plugin._installed", lambda: {"plugin": lambda: request.param})
    return Cluster("a", topics={"Orders": 2}, plugins=("plugin",))


async def line_to(running: Cluster) -> Line:
    assert isinstance(running.network, MemoryNetwork)
    address = f"{running['a'].address.partition(':')[0]}:{PORT}"
    return await Line.dial(running.network.host("10.0.9.1"), address)


async def test_the_answers_to_all_messages_of_a_round_leave_together(
    running: Cluster, autojump_clock: MockClock
) -> None:
    async with running:
        line = await line_to(running)
        await line.send("x")
        assert await line.until(bool) == ["stored " * COUNT + "."]


async def test_a_call_outside_of_a_round_is_made_soon(running: Cluster, autojump_clock: MockClock) -> None:
    async with running:
        line = await line_to(running)
        with trio.fail_after(1):
            await line.send("now")
            assert await line.until(bool) == ["."]


async def test_no_call_is_made_after_the_end_of_the_connection(
    running: Cluster, autojump_clock: MockClock
) -> None:
    async with running:
        line = await line_to(running)
        await line.send("last")
        while await line.read():
            pass
        assert not line.said


@pytest.mark.parametrize("running", [Turning], indirect=True)
async def test_a_connection_that_is_alone_has_its_outcomes_at_the_end_of_its_turn(
    running: Cluster, autojump_clock: MockClock
) -> None:
    async with running:
        one, two = await line_to(running), await line_to(running)
        for _ in range(ALONE_AFTER + 4):
            await ask(one)
        assert one.said == ["later"] * ALONE_AFTER + ["stored"] * 4
        for _ in range(ALONE_AFTER + 4):
            await ask(two)
            await ask(one)
        assert two.said == ["later"] * (ALONE_AFTER + 4)
        assert one.said[ALONE_AFTER + 4 :] == two.said
        await trio.sleep(1)
        assert len(running.sent("Orders")) == 3 * (ALONE_AFTER + 4)


async def ask(line: Line) -> None:
    """Send a line, and wait for its answer."""
    wanted = len(line.said) + 1
    await line.send("x")
    await line.until(lambda said: len(said) == wanted)
