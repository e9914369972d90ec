"""One task that reads many sockets: who is called, who waits, what ends it."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from rmq.errors import RequestTimeout
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.remoting import Connection, Limits, TcpNetwork, serve
from rmq.remoting.connection import QUIET_SECONDS
from rmq.remoting.limits import MemoryBudget
from rmq.remoting.poller import ALONE_AFTER, SLICE_SECONDS, Poller
from rmq.remoting.serving.acceptor import Acceptor

from .peers import Echo, RawPeer, request

pytestmark = pytest.mark.skipif(not hasattr(__import__("select"), "epoll"), reason="the system has no epoll")

MIB = 1 << 20


class Pair:
    """Two sockets; `near` is attended, and reads what `far` sends."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.read: list[bytes] = []
        self.wants_more = True

    def on_readable(self) -> bool:
        self.read.append(self.near.recv(100))
        return self.wants_more

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture(params=["inline", "in a task"], autouse=True)
def is_inline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Pollers serve where the loop waits, or in a task, as where trio is made otherwise."""
    if request.param != "inline":
        monkeypatch.setattr("rmq.remoting.poller.begin_inline_reads", lambda *_: None)
    return bool(request.param == "inline")


@asynccontextmanager
async def polling(clock: itertools.count[float] | None = None) -> AsyncIterator[tuple[Poller, list[Pair]]]:
    poller = Poller() if clock is None else Poller(lambda: next(clock))
    pairs = [Pair() for _ in range(4)]
    async with trio.open_nursery() as nursery:
        await nursery.start(poller.run)
        yield poller, pairs
        nursery.cancel_scope.cancel()
    for pair in pairs:
        pair.close()
    assert not poller.is_running


async def test_whoever_can_be_read_is_called_until_it_wants_no_more() -> None:
    async with polling() as (poller, pairs), trio.open_nursery() as nursery:
        for pair in pairs:
            nursery.start_soon(poller.attend, pair.near.fileno(), pair.on_readable)
        await wait_all_tasks_blocked()
        for text in (b"one", b"two"):
            for pair in pairs[:2]:
                pair.far.send(text)
            await trio.sleep(0)
            await wait_all_tasks_blocked(0.01)
        assert [pair.read for pair in pairs] == [[b"one", b"two"]] * 2 + [[], []]
        for pair in pairs:
            pair.wants_more = False
            pair.far.send(b"end")
    assert [pair.read[-1] for pair in pairs] == [b"end"] * 4


async def test_an_error_reaches_who_attends_and_no_other() -> None:
    async with polling() as (poller, pairs):
        broken, whole, *_ = pairs

        def fail() -> bool:
            raise ValueError("broken")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.attend, whole.near.fileno(), whole.on_readable)
            broken.far.send(b"x")
            with pytest.raises(ValueError, match="broken"):
                await poller.attend(broken.near.fileno(), fail)
            whole.wants_more = False
            whole.far.send(b"y")
        assert whole.read == [b"y"]


async def test_who_is_cancelled_is_not_called_any_more() -> None:
    async with polling() as (poller, pairs):
        pair = pairs[0]
        with trio.move_on_after(0) as scope:
            await poller.attend(pair.near.fileno(), pair.on_readable)
        assert scope.cancelled_caught
        pair.far.send(b"late")
        await wait_all_tasks_blocked(0.01)
        assert pair.read == []
        pair.wants_more = False
        await poller.attend(pair.near.fileno(), pair.on_readable)
        assert pair.read == [b"late"]


async def test_tasks_have_their_turn_in_a_long_round_and_its_length_is_known() -> None:
    async with polling(itertools.count(0.0, 2 * SLICE_SECONDS)) as (poller, pairs):
        lengths: list[float] = []

        async def measure() -> None:
            while not lengths:
                await trio.lowlevel.checkpoint()
                if poller.is_serving:
                    lengths.append(await poller.round_end())

        assert await poller.round_end() == 0
        async with trio.open_nursery() as nursery:
            for pair in pairs:
                pair.wants_more = False
                nursery.start_soon(poller.attend, pair.near.fileno(), pair.on_readable)
                pair.far.send(b"x")
            nursery.start_soon(measure)
        # Each of four looks costs two ticks of the clock: before and after the call; the last one its end.
        assert lengths == [pytest.approx(7 * 2 * SLICE_SECONDS)]


async def test_no_task_has_a_turn_for_a_chunk_where_the_loop_itself_serves(is_inline: bool) -> None:
    steps: list[str] = []

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            steps.append(task.name)

    async with polling() as (poller, pairs), trio.open_nursery() as nursery:
        pair = pairs[0]
        nursery.start_soon(poller.attend, pair.near.fileno(), pair.on_readable)
        await wait_all_tasks_blocked()
        pair.far.send(b"chunk")
        steps_of = Steps()
        trio.lowlevel.add_instrument(steps_of)
        await wait_all_tasks_blocked(0.01)
        trio.lowlevel.remove_instrument(steps_of)
        assert pair.read == [b"chunk"]
        assert any("run" in name for name in steps) is not is_inline, steps
        nursery.cancel_scope.cancel()


async def test_tasks_deadlines_and_threads_have_their_turn_beside_sockets_that_never_rest() -> None:
    """A peer that sends without end holds up nobody: what wakes a task ends the wait for sockets."""
    async with polling() as (poller, pairs), trio.open_nursery() as nursery:
        busy, done = pairs[0], list[str]()

        def on_readable() -> bool:
            busy.near.recv(100)
            busy.far.send(b"more")
            return True

        async def sleeps() -> None:
            await trio.sleep(0.001)
            done.append("a deadline")

        async def asks_a_thread() -> None:
            await trio.to_thread.run_sync(lambda: None)
            done.append("a thread")

        async def waits_for_a_socket() -> None:
            await trio.lowlevel.wait_readable(pairs[1].near)
            done.append("a socket of a task")

        nursery.start_soon(poller.attend, busy.near.fileno(), on_readable)
        busy.far.send(b"first")
        async with trio.open_nursery() as others:
            for one in (sleeps, asks_a_thread, waits_for_a_socket):
                others.start_soon(one)
            await trio.sleep(0.002)
            pairs[1].far.send(b"x")
        assert len(done) == 3
        nursery.cancel_scope.cancel()


async def test_a_task_that_a_chunk_wakes_has_its_turn_at_once() -> None:
    async with polling() as (poller, pairs), trio.open_nursery() as nursery:
        woken, pair = trio.Event(), pairs[0]

        def on_readable() -> bool:
            pair.near.recv(100)
            woken.set()
            return True

        nursery.start_soon(poller.attend, pair.near.fileno(), on_readable)
        await wait_all_tasks_blocked()
        nursery.start_soon(woken.wait)
        pair.far.send(b"x")
        await woken.wait()
        nursery.cancel_scope.cancel()


async def test_a_deadline_that_a_chunk_moves_is_kept() -> None:
    async with polling() as (poller, pairs), trio.open_nursery() as nursery:
        pair, scope = pairs[0], trio.CancelScope()

        def on_readable() -> bool:
            pair.near.recv(100)
            scope.deadline = trio.current_time() + 0.001
            return True

        nursery.start_soon(poller.attend, pair.near.fileno(), on_readable)
        await wait_all_tasks_blocked()
        pair.far.send(b"x")
        with scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        nursery.cancel_scope.cancel()


async def test_a_second_poller_of_a_loop_serves_beside_the_first() -> None:
    async with polling() as (poller, pairs), polling() as (second, others), trio.open_nursery() as nursery:
        for one, pair in ((poller, pairs[0]), (second, others[0])):
            pair.wants_more = False
            nursery.start_soon(one.attend, pair.near.fileno(), pair.on_readable)
            pair.far.send(b"x")
    assert pairs[0].read == others[0].read == [b"x"]


async def test_another_trio_serves_in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio._core._run", None)
    async with polling() as (poller, pairs), trio.open_nursery() as nursery:
        pairs[0].wants_more = False
        nursery.start_soon(poller.attend, pairs[0].near.fileno(), pairs[0].on_readable)
        pairs[0].far.send(b"x")
    assert pairs[0].read == [b"x"]


async def test_trio_is_left_as_it_was(is_inline: bool) -> None:
    def waits() -> str:
        from trio._core import _run

        return type(_run.GLOBAL_RUN_CONTEXT.runner.io_manager).__name__

    before = waits()
    async with polling():
        assert (waits() == "InlineReads") is is_inline, "trio is made otherwise: see trio_loop.InlineReads"
    assert waits() == before == "EpollIOManager"


async def test_a_round_ends_though_its_peers_go_on_sending() -> None:
    """The length of a round shows the load of the broker: it must not grow for as long as a peer sends."""
    async with (
        polling(itertools.count(0.0, 2 * SLICE_SECONDS)) as (poller, pairs),
        trio.open_nursery() as nursery,
    ):
        for pair in pairs:
            nursery.start_soon(poller.attend, pair.near.fileno(), pair.on_readable)
            pair.far.send(bytes(10_000))  # it has more each time
        await poller.round_end()
        while not poller.is_serving:
            await trio.lowlevel.checkpoint()
        for _ in range(20):
            if not poller.is_serving:
                break
            await trio.lowlevel.checkpoint()
        assert not poller.is_serving or poller.round_seconds
        assert poller.round_seconds <= 8 * 2 * SLICE_SECONDS
        assert all(pair.read for pair in pairs)
        nursery.cancel_scope.cancel()


class Rounds(Echo):
    """Keeps what the poller tells, and what is read, in `seen`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def begin_round(self) -> None:
        self.seen.append("begin")

    def end_round(self) -> None:
        self.seen.append("end")

    def read(self, pair: Pair) -> bool:
        self.seen.append("read")
        return pair.on_readable()


@pytest.mark.parametrize("is_long", [False, True])
async def test_the_endpoint_is_told_of_rounds_of_several_and_each_ends_before_tasks_have_their_turn(
    is_long: bool,
) -> None:
    ticks = itertools.count(0.0, 2 * SLICE_SECONDS if is_long else 0.0)
    async with polling(ticks) as (poller, pairs), trio.open_nursery() as nursery:
        endpoint = Rounds()
        poller.attach(endpoint)
        for pair in pairs:
            pair.wants_more = False
            nursery.start_soon(poller.attend, pair.near.fileno(), partial(endpoint.read, pair))
        await wait_all_tasks_blocked()
        pairs[0].far.send(b"x")
        await wait_all_tasks_blocked(0.01)
        assert endpoint.seen == ["read"], "one is no round"
        endpoint.seen.clear()
        for pair in pairs[1:]:
            pair.far.send(b"x")
        await wait_all_tasks_blocked(0.01)
    one = ["begin", "read", "end"]
    assert endpoint.seen == (one * 3 if is_long else ["begin", *["read"] * 3, "end"])


def test_who_is_alone_for_a_while_is_told_so() -> None:
    poller = Poller()
    for _ in range(ALONE_AFTER):
        poller.note(3)
        assert poller.alone == -1
    poller.note(3)
    assert poller.alone == 3
    poller.note(4)
    assert poller.alone == -1
    poller.note(3)
    assert poller.alone == -1


async def test_who_is_alone_is_called_once_by_its_own_task_unless_the_loop_itself_serves(
    is_inline: bool,
) -> None:
    async with polling() as (poller, pairs):
        if is_inline:
            for _ in range(ALONE_AFTER + 1):
                poller.note(pairs[0].near.fileno())
            assert poller.alone == -1
            return
        alone, other = pairs[0], pairs[1]
        for _ in range(ALONE_AFTER + 1):
            poller.note(alone.near.fileno())
        alone.far.send(b"x")
        await poller.attend(alone.near.fileno(), alone.on_readable)
        assert alone.read == [b"x"]
        with trio.move_on_after(0.01) as scope:
            await poller.attend(alone.near.fileno(), alone.on_readable)
        assert scope.cancelled_caught, "nothing came"
        assert alone.read == [b"x"]
        poller.note(other.near.fileno())
        alone.wants_more = False
        alone.far.send(b"y")
        await poller.attend(alone.near.fileno(), alone.on_readable)
        assert alone.read == [b"x", b"y"]


# --- connections of a server ---


class Counting(Echo):
    """Knows its connections."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[Connection] = []

    def on_open(self, connection: Connection) -> None:
        self.connections.append(connection)


@asynccontextmanager
async def serving(endpoint: Echo, peers: int, **settings: object) -> AsyncIterator[list[RawPeer]]:
    network = TcpNetwork()
    async with trio.open_nursery() as nursery:
        start = partial(serve, network, ["127.0.0.1:0"], endpoint, **settings)  # type: ignore[arg-type]
        (address,) = await nursery.start(start)
        yield [RawPeer(await network.dial(address)) for _ in range(peers)]
        nursery.cancel_scope.cancel()


async def test_several_connections_are_answered_in_turns_and_alone() -> None:
    endpoint = Counting()
    async with serving(endpoint, 3) as peers:
        for round_number in range(3):
            for peer in peers:
                await peer.send(request(b"%d" % round_number))
            for peer in peers:
                (answer,) = await peer.receive(1)
                assert answer.body == b"%d" % round_number
        for _ in range(ALONE_AFTER + 3):
            await peers[0].send(request(b"more"))
            await peers[0].receive(1)
        await peers[1].send(request(b"again"))
        assert (await peers[1].receive(1))[0].body == b"again"
        await peers[1].stream.aclose()
        while len(endpoint.closed) < 1:
            await trio.sleep(0)
        assert [connection.reason for connection in endpoint.closed] == ["closed by the peer"]


async def test_answers_larger_than_the_system_takes_come_whole() -> None:
    body = bytes(3 * MIB)
    async with serving(Counting(), 2, limits=Limits(outbox_bytes=64 * MIB)) as peers:

        async def ask(peer: RawPeer) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.send, *(request(body) for _ in range(3)))
                answers = await peer.receive(3)
            assert [len(answer.body) for answer in answers] == [len(body)] * 3

        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer)


async def test_a_bug_and_a_broken_frame_end_one_connection() -> None:
    class Broken(Counting):
        def handle(self, requests: list[Command], connection: Connection) -> None:
            if requests[0].body == b"bug":
                raise ZeroDivisionError
            super().handle(requests, connection)

    endpoint = Broken()
    async with serving(endpoint, 3) as peers:
        for peer in peers:
            await peer.send(request(b"hello"))
            await peer.receive(1)
        await peers[0].send(request(b"bug"))
        await peers[1].stream.send_all(b"\x00\x00\x00\x01")
        while len(endpoint.closed) < 2:
            await trio.sleep(0)
        assert sorted(connection.reason[:22] for connection in endpoint.closed) == [
            "a frame of 1 bytes can",
            "an unexpected error: Z",
        ]
        await peers[2].send(request(b"still here"))
        assert (await peers[2].receive(1))[0].body == b"still here"


async def test_unfinished_frames_count_against_the_budget() -> None:
    budget, endpoint = MemoryBudget(1 * MIB), Counting()
    async with serving(endpoint, 2, budget=budget) as peers:
        for peer in peers:
            await peer.send(request(b"hello"))
            await peer.receive(1)
        frame = encode(request(bytes(200_000)))
        await peers[0].stream.send_all(frame[:150_000])
        while budget.held < 150_000:
            await trio.sleep(0)
        await peers[0].stream.send_all(frame[150_000:])
        assert len((await peers[0].receive(1))[0].body) == 200_000
        while budget.held:
            await trio.sleep(0)


async def test_late_answers_of_a_turn_leave_by_one_task_and_wait_only_for_their_own_peer() -> None:
    class Holding(Counting):
        """Answers later, when it is told to."""

        def __init__(self) -> None:
            super().__init__()
            self.held: list[tuple[Command, Connection]] = []

        def handle(self, requests: list[Command], connection: Connection) -> None:
            self.held += [(request, connection) for request in requests]

    endpoint, large = Holding(), bytes(8 * MIB)
    async with serving(endpoint, 4, limits=Limits(outbox_bytes=64 * MIB)) as peers:
        for number, peer in enumerate(peers):
            await peer.send(request(b"%d" % number), request(b"again"))
        while len(endpoint.held) < 8:
            await trio.sleep(0)
        tasks = trio.lowlevel.current_statistics().tasks_living
        for held, connection in endpoint.held:
            slow = connection is endpoint.held[0][1]
            connection.write(encode(held.reply(body=large if slow else held.body)))
        for peer in peers[1:]:  # the first reads nothing, and holds nobody up
            assert [answer.body for answer in await peer.receive(2)][1] == b"again"
        while trio.lowlevel.current_statistics().tasks_living < tasks + 2:
            await trio.sleep(0)
        assert trio.lowlevel.current_statistics().tasks_living == tasks + 2, "two of a peer that is behind"
        assert [len(answer.body) for answer in await peers[0].receive(2)] == [len(large)] * 2
        endpoint.connections[1].notify(request(b"once more", oneway=True))
        assert (await peers[1].receive(1))[0].body == b"once more"


def groups(task: trio.lowlevel.Task) -> Iterator[tuple[str, int]]:
    """The tasks below a task, and how many groups of tasks each has opened."""
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child.name.rpartition(".")[2], len(child.child_nurseries)
            yield from groups(child)


def groups_of_connections() -> list[int]:
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return sorted(count for name, count in groups(root) if name in ("_serve", "_go_on"))


async def test_an_idle_connection_has_no_task_until_a_call_needs_a_group() -> None:
    """Ten thousand idle connections took 13 KiB each, of which a group of tasks was 3 and the task 5."""
    endpoint = Counting()
    async with serving(endpoint, 3) as peers:
        for peer in peers:
            await peer.send(request(b"hello"))
            assert (await peer.receive(1))[0].body == b"hello"
        assert groups_of_connections() == []

        with pytest.raises(RequestTimeout):
            await endpoint.connections[1].call(request(b"unanswered"), 0.01)
        assert groups_of_connections() == [1], "of the connection whose call has a deadline"
        assert (await peers[1].receive(1))[0].body == b"unanswered"
        async with trio.open_nursery() as nursery:
            answers: list[bytes] = []

            async def call() -> None:
                answers.append((await endpoint.connections[2].call(request(b"asked"), 20)).body)

            nursery.start_soon(call)
            (asked,) = await peers[2].receive(1)
            await peers[2].send(asked.reply(body=b"told"))
        assert answers == [b"told"]
        for peer in peers:
            await peer.send(request(b"again"))
            assert (await peer.receive(1))[0].body == b"again"


async def test_connections_without_a_group_end_with_their_server_and_by_themselves() -> None:
    endpoint = Counting()
    async with serving(endpoint, 3) as peers:
        for peer in peers:
            await peer.send(request(b"hello"))
            await peer.receive(1)
        first, second, third = endpoint.connections
        first.close("not wanted")
        await peers[1].stream.aclose()
        while len(endpoint.closed) < 2:
            await trio.sleep(0)
        assert set(endpoint.closed) == {first, second}
        assert (first.reason, second.reason) == ("not wanted", "closed by the peer")
    assert endpoint.closed[2:] == [third]
    assert third.reason == "cancelled"


async def test_a_connection_that_is_closed_meanwhile_leaves_others_their_late_answers() -> None:
    endpoint = Counting()
    async with serving(endpoint, 2) as peers:
        for peer in peers:
            await peer.send(request(b"hello"))
            await peer.receive(1)
        gone, kept = endpoint.connections
        for connection in (gone, kept):
            connection.notify(request(b"late", oneway=True))
        gone.close()
        for peer in peers:  # what waits is sent at the end, too
            assert (await peer.receive(1))[0].body == b"late"


async def test_a_connection_that_needed_a_task_gives_it_back_when_it_is_quiet() -> None:
    """Some chunks of a busy connection need a task: one for each of them costs more than one that stays."""
    endpoint = Counting()
    async with serving(endpoint, 1, limits=Limits(decoded_frames=1)) as (peer,):
        await peer.send(request(b"proved"))
        await peer.receive(1)
        (connection,) = endpoint.connections
        assert connection.is_parked
        await peer.send(request(b"one"), request(b"two"))
        assert [answer.body for answer in await peer.receive(2)] == [b"one", b"two"]
        assert groups_of_connections() == [0], "it may need its task again"
        connection.expire(connection.active_at + QUIET_SECONDS)
        await wait_all_tasks_blocked()
        assert not connection.is_parked
        connection.expire(connection.active_at + QUIET_SECONDS + 1)
        await wait_all_tasks_blocked()
        assert (connection.is_parked, groups_of_connections()) == (True, [])
        await peer.send(request(b"three"))
        assert (await peer.receive(1))[0].body == b"three"


async def test_a_connection_without_a_task_gives_its_place_back_however_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strict(Counting):
        def handle(self, requests: list[Command], connection: Connection) -> None:
            if requests[0].body == b"bug":
                raise LookupError("a bug")
            if requests[0].body == b"both":
                connection.close("not wanted")
                raise LookupError("another bug")
            if requests[0].body == b"unwanted":
                connection.close("not wanted")
            super().handle(requests, connection)

    endpoint, acceptor = Strict(), Acceptor.of(Limits())
    async with serving(endpoint, 5, acceptor=acceptor) as peers:
        for peer in peers:
            await peer.send(request(b"hello"))
            await peer.receive(1)
        assert [connection.is_parked for connection in endpoint.connections] == [True] * 5
        assert acceptor.open == 5
        for peer, body in zip(peers, (b"bug", b"both", b"unwanted"), strict=False):
            await peer.send(request(body))
        await peers[3].stream.aclose()
        while len(endpoint.closed) < 4 or acceptor.open > 1:
            await trio.sleep(0)
        assert sorted(connection.reason for connection in endpoint.closed) == [
            "an unexpected error: LookupError: a bug",
            "closed by the peer",
            "not wanted",
            "not wanted",
        ]
        errors = [str(one.exc_info[1]) for one in caplog.records if one.exc_info]
        assert sorted(errors) == ["a bug", "another bug"]
        await peers[4].send(request(b"again"))
        assert (await peers[4].receive(1))[0].body == b"again"
    assert len(endpoint.closed) == 5
    assert acceptor.open == 0


async def test_a_peer_whose_frame_is_not_whole_keeps_its_task_and_can_be_cut_off() -> None:
    endpoint, acceptor = Counting(), Acceptor(2, 2)
    async with serving(endpoint, 2, acceptor=acceptor) as peers:
        await peers[0].stream.send_all(encode(request(b"half"))[:20])
        await peers[1].send(request(b"hello"))
        await peers[1].receive(1)
        while len(endpoint.connections) < 2:
            await trio.sleep(0)
        assert groups_of_connections() == [0]
        newcomer = RawPeer(await TcpNetwork().dial(peers[0].stream.peer))
        await newcomer.send(request(b"hello"))
        assert (await newcomer.receive(1))[0].body == b"hello"
        assert await peers[0].stream.receive_some(1) == b""
        assert acceptor.open == 2
        await newcomer.stream.aclose()
