"""The cost of one peer for the other peers: turns, bodies, waiting bytes, peers that take no bytes."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from functools import partial

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.remoting import Connection, Limits, TcpNetwork, serve
from rmq.remoting.limits import MemoryBudget, turn_is_over
from rmq.testing import MemoryNetwork

from ..peers import Echo, RawPeer, Silent, linked, request

KIB, MIB = 1024, 1024 * 1024

# --- turns ---------------------------------------------------------------------------------------


class Slow(Echo):
    """Takes two requests at a time."""

    def handle(self, requests: list[Command], connection: Connection) -> int:
        super().handle(requests[:2], connection)
        return 2


@pytest.mark.parametrize(
    ("seconds", "count", "over"),
    [
        (0.0001, 1, False),
        (0.003, 1, True),
        (0.003, 200, False),
        (0.005, 200, True),
        (0.001, 1023, False),
        (0.001, 1024, True),
        (0.003, 1024, True),
        (0.0045, 600, False),
        (0.0051, 600, True),
    ],
)
def test_when_a_turn_is_over(seconds: float, count: int, over: bool) -> None:
    assert turn_is_over(seconds, count) is over


async def test_the_rest_of_a_chunk_comes_in_order_after_others_had_their_turn(
    autojump_clock: MockClock,
) -> None:
    network, slow = MemoryNetwork(), Slow()
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(serve, network, ["127.0.0.1:0"], slow))
        greedy, other = [RawPeer(await network.dial(address)) for _ in range(2)]
        for peer in (greedy, other):
            await peer.send(request(b"first"))
            await peer.receive()
        slow.chunks.clear()
        bodies = [b"%d" % number for number in range(21)]
        await greedy.send(*map(request, bodies))
        await other.send(request(b"other"))
        assert [answer.body for answer in await greedy.receive(21)] == bodies
        assert [body for body in slow.bodies if body != b"other"] == bodies
        assert slow.bodies.index(b"other") < 10  # not after all of them
        assert (await other.receive())[0].body == b"other"
        nursery.cancel_scope.cancel()


async def test_the_rest_of_a_turn_comes_before_what_is_not_decoded_yet(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with linked(slow, limits=Limits(decoded_frames=5)) as link:
        bodies = [b"%d" % number for number in range(33)]
        await link.peer.send(*map(request, bodies))
        with trio.fail_after(60):
            assert [answer.body for answer in await link.peer.receive(33)] == bodies
        assert slow.bodies == bodies


async def test_tiny_frames_are_decoded_so_many_at_a_time(autojump_clock: MockClock) -> None:
    async with linked(limits=Limits(decoded_frames=10)) as link:
        bodies = [b"%d" % number for number in range(35)]
        await link.peer.send(*map(request, bodies))
        assert [answer.body for answer in await link.peer.receive(35)] == bodies
        assert [len(chunk) for chunk in link.endpoint.chunks] == [10, 10, 10, 5]


@pytest.mark.parametrize("cut", [1, 7, 100, 10_000])
def test_a_decoder_that_stops_goes_on(cut: int) -> None:
    decoder, found = Decoder(most=3), []
    frames = [request(b"%d" % number) for number in range(20)]
    data = b"".join(map(encode, frames))
    for at in range(0, len(data), cut):
        found += decoder.feed(data[at : at + cut])
        while decoder.has_more:
            few = decoder.feed(b"")
            assert len(few) <= 3
            found += few
    assert [command.opaque for command in found] == [frame.opaque for frame in frames]
    assert decoder.buffered == 0


# --- headers and bodies --------------------------------------------------------------------------


def java_header(opaque: int, characters: int) -> bytes:
    """A send's as Java writes it, with properties of so many Chinese characters."""
    fields = {"code": 310, "extFields": {"i": "性" * characters}, "flag": 0, "language": "JAVA"}
    return json.dumps({**fields, "opaque": opaque, "version": 407}, ensure_ascii=False).encode()


def raw_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_request_with_a_long_header_fails_alone(autojump_clock: MockClock, pieces: int) -> None:
    """In an earlier version the connection ended, which all senders of a JVM share: their sends failed with
    it, three times."""
    async with linked() as link:
        before, after = request(b"before"), request(b"after")
        data = encode(before) + raw_frame(java_header(7, 90_000), b"x" * 5000) + encode(after)
        for at in range(0, len(data), len(data) // pieces + 1):
            await link.peer.stream.send_all(data[at : at + len(data) // pieces + 1])
        answers = {answer.opaque: answer for answer in await link.peer.receive(3)}
        assert set(answers) == {before.opaque, 7, after.opaque}
        assert answers[7].code == ResponseCode.MESSAGE_ILLEGAL
        assert not link.connection.is_closed
    assert [body for chunk in link.endpoint.chunks for body in chunk] == [b"before", b"after"]


async def test_a_request_that_is_no_json_fails_alone(autojump_clock: MockClock) -> None:
    async with linked() as link:
        for header in (b'{"code":310,"opaque":7,"extFields":', b'{"opaque":8}'):
            await link.peer.stream.send_all(raw_frame(header, b"body"))
        await link.peer.send(last := request(b"last"))
        answers = {answer.opaque: answer.code for answer in await link.peer.receive(3)}
        assert answers == {7: ResponseCode.SYSTEM_ERROR, 8: ResponseCode.SYSTEM_ERROR, last.opaque: 0}
        assert not link.connection.is_closed


class Choosy(Echo):
    """Takes no large body but those of code 1."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    def on_head(self, head: Command, body_bytes: int, connection: Connection) -> Command | None:
        self.asked.append((head.code, body_bytes))
        return None if head.code == 1 else head.reply(13, "too large")


@pytest.mark.parametrize("piece", [MIB, 5000, 100_001])
async def test_a_large_body_is_asked_about_before_it_comes(autojump_clock: MockClock, piece: int) -> None:
    large, good = request(b"x" * (3 * MIB)), request(b"y" * (2 * MIB))
    good.code = 1
    small = request(b"z")
    async with linked(choosy := Choosy()) as link, trio.open_nursery() as nursery:
        data = b"".join(map(encode, (small, large, good, small)))

        async def send() -> None:
            for at in range(0, len(data), piece):
                await link.peer.stream.send_all(data[at : at + piece])

        nursery.start_soon(send)
        answers = await link.peer.receive(4)
        assert [(answer.opaque, answer.code) for answer in answers] == [
            (small.opaque, 0),
            (large.opaque, 13),
            (good.opaque, 0),
            (small.opaque, 0),
        ]
        assert choosy.asked == [(large.code, 3 * MIB), (1, 2 * MIB)]
        assert choosy.bodies == [b"z", good.body, b"z"]


async def test_a_refused_body_is_not_kept(autojump_clock: MockClock) -> None:
    async with linked(Choosy()) as link:
        data = encode(request(b"x" * (3 * MIB)))
        await link.peer.stream.send_all(data[: 2 * MIB])
        await link.peer.receive()
        await wait_all_tasks_blocked()
        assert link.connection._decoder.buffered == 0
        await link.peer.stream.send_all(data[2 * MIB :])
        await link.peer.send(request(b"next"))
        assert (await link.peer.receive())[0].body == b"next"


async def test_a_response_that_a_call_waits_for_is_not_asked_about(autojump_clock: MockClock) -> None:
    async with linked(choosy := Choosy()) as link, trio.open_nursery() as nursery:
        bodies = []

        async def call() -> None:
            bodies.append((await link.connection.call(request(), 60)).body)

        nursery.start_soon(call)
        (asked,) = await link.peer.receive()
        unknown = asked.reply(body=b"y" * (2 * MIB))
        unknown.opaque += 1
        await link.peer.send(unknown, asked.reply(body=b"x" * (2 * MIB)))
        await wait_all_tasks_blocked()
        assert bodies == [b"x" * (2 * MIB)]
        assert len(choosy.asked) == 1


# --- bytes that wait -----------------------------------------------------------------------------


class Part:
    """A holder that notes its end."""

    def __init__(self) -> None:
        self.ended = ""
        self.wasted = 0.0

    def abort(self, reason: str) -> None:
        self.ended = reason

    def expire(self, now: float) -> None: ...

    def waste(self, now: float) -> float:
        return self.wasted


def test_those_who_have_held_most_for_longest_are_cut_off_when_a_budget_is_used_up() -> None:
    budget, parts = MemoryBudget(1000, lambda: 0.0), [Part() for _ in range(4)]
    parts[1].wasted = 2.0
    parts[2].wasted = 1.0
    for part, size in zip(parts, (100, 500, 200, 200), strict=True):
        budget.hold(part, size)
    assert (budget.held, budget.is_tight, budget.cuts) == (1000, True, 0)
    budget.hold(parts[0], 101)
    assert [bool(part.ended) for part in parts] == [False, True, False, False]
    assert "500 bytes" in parts[1].ended
    assert (budget.held, budget.is_tight, budget.cuts) == (501, True, 1)
    budget.hold(parts[1], 0)  # who was cut off says so too
    budget.hold(parts[0], 0)
    assert (budget.held, budget.is_tight) == (400, False)
    assert budget.holders() == parts[2:]


async def test_unfinished_frames_of_many_count_together(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network, budget = MemoryNetwork(), MemoryBudget(4 * MIB)
    async with trio.open_nursery() as nursery:
        start = partial(serve, network, ["127.0.0.1:0"], Echo(), budget=budget)
        (address,) = await nursery.start(start)
        half = encode(request(b"x" * MIB))[:-1000]
        peers = [RawPeer(await network.dial(address)) for _ in range(10)]

        async def send(peer: RawPeer) -> None:
            with suppress(trio.BrokenResourceError):
                await peer.stream.send_all(half)

        began = trio.current_time()
        for peer in peers:
            nursery.start_soon(send, peer)
        await trio.sleep(2)
        assert budget.held <= 4 * MIB
        assert budget.cuts > 0
        honest = RawPeer(await network.dial(address))
        for _ in range(20):  # who holds little is served as ever
            await honest.send(request(b"honest" * 1000))
            await honest.receive()
        assert trio.current_time() - began == 2
        await trio.sleep(3)
        assert budget.held <= 2 * MIB  # those that are left hold less than half of it
        await trio.sleep(60)
        assert budget.held == 0  # none of them finished in its 60 s
        await honest.send(request())
        await honest.receive()
        nursery.cancel_scope.cancel()
    assert "the budget of 4194304 is used up" in caplog.text


async def test_the_part_of_a_frame_behind_a_whole_one_counts_from_when_it_came(
    autojump_clock: MockClock,
) -> None:
    """In an earlier version this part had no time, and a full budget cut peers that had just not been
    answered."""
    budget = MemoryBudget(MIB)
    async with linked(Echo(), budget=budget) as link:
        half = encode(request(b"x" * MIB))[: 40 * KIB]
        await link.peer.stream.send_all(encode(request(b"whole")) + half)  # one chunk
        await link.peer.receive()
        await trio.sleep(5)
        assert link.connection.waste(trio.current_time()) > 4.9 / 1000
        link.connection.expire(trio.current_time() + 60)
        assert "not complete after" in link.connection.reason


@pytest.mark.parametrize("proves", [False, True])
@pytest.mark.parametrize("mib", [32, 64])
async def test_a_large_request_is_not_held_up_by_unfinished_ones(
    autojump_clock: MockClock, mib: int, proves: bool
) -> None:
    """150 of less than 1 MiB each held it up for 18 to 50 s, by 5 s for each chunk."""
    network, budget = MemoryNetwork(), MemoryBudget(mib * MIB)
    async with trio.open_nursery() as nursery:
        start = partial(serve, network, ["127.0.0.1:0"], Echo(), budget=budget)
        (address,) = await nursery.start(start)
        half = encode(request(b"x" * (900 * KIB)))[:-1000]

        async def send() -> None:
            while True:
                with suppress(trio.BrokenResourceError):
                    peer = RawPeer(await network.dial(address))
                    if proves:
                        await peer.send(request())
                        await peer.receive()
                    await peer.stream.send_all(half)
                    await peer.stream.receive_some()
                await trio.sleep(1)

        for _ in range(40):
            nursery.start_soon(send)
        await trio.sleep(5)
        waited = []
        for _ in range(10):
            began = trio.current_time()
            honest = RawPeer(await network.dial(address))
            large = encode(request(b"y" * (3 * MIB)))
            with trio.fail_after(5):
                for at in range(0, len(large), 256 * KIB):  # over some 0.2 s
                    await honest.stream.send_all(large[at : at + 256 * KIB])
                    await trio.sleep(0.015)
                assert len((await honest.receive())[0].body) == 3 * MIB
            waited.append(trio.current_time() - began)
            await honest.stream.aclose()
            await trio.sleep(1)
        assert max(waited) < 0.5
        nursery.cancel_scope.cancel()


async def test_a_header_is_asked_about_early_where_it_tells_strangers(autojump_clock: MockClock) -> None:
    choosy = Choosy()
    choosy.asks_early = True
    async with linked(choosy) as link:
        data = encode(request(b"x" * (900 * KIB)))
        await link.peer.stream.send_all(data[: 200 * KIB])
        assert (await link.peer.receive())[0].code == 13
        assert choosy.asked == [(request().code, 900 * KIB)]
        await wait_all_tasks_blocked()
        assert link.connection._decoder.buffered == 0
        await link.peer.stream.send_all(data[200 * KIB :])
        await link.peer.send(request(b"next"))
        assert (await link.peer.receive())[0].body == b"next"


async def test_headers_are_asked_about_early_while_the_budget_is_tight(autojump_clock: MockClock) -> None:
    network, choosy = MemoryNetwork(), Choosy()
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(
            partial(serve, network, ["127.0.0.1:0"], choosy, budget=MemoryBudget(400 * KIB))
        )
        peer = RawPeer(await network.dial(address))
        data = encode(request(b"x" * (900 * KIB)))
        await peer.stream.send_all(data[: 100 * KIB])
        await trio.sleep(0.1)
        assert choosy.asked == []
        await peer.stream.send_all(data[100 * KIB : 300 * KIB])
        assert (await peer.receive())[0].code == 13
        nursery.cancel_scope.cancel()


async def test_answers_that_nobody_takes_count_together(autojump_clock: MockClock) -> None:
    network, budget, silent = MemoryNetwork(window=1000), MemoryBudget(2 * MIB), Silent()
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(serve, network, ["127.0.0.1:0"], silent, budget=budget))
        connections = []
        peers = [RawPeer(await network.dial(address)) for _ in range(3)]
        for peer in peers:
            await peer.send(request())
            await wait_all_tasks_blocked()
            connections.append(silent.connection)
        for connection, size in zip(connections, (600 * KIB, 900 * KIB, 700 * KIB), strict=True):
            assert connection is not None
            connection.write(b"x" * size)
        assert [connection.is_closed for connection in connections if connection] == [False, True, False]
        assert "for longest" in (connections[1].reason if connections[1] else "")
        assert budget.held == 1300 * KIB
        nursery.cancel_scope.cancel()
    assert budget.held == 0


async def test_what_is_held_is_forgotten_at_the_end(autojump_clock: MockClock) -> None:
    network, budget = MemoryNetwork(), MemoryBudget()
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(serve, network, ["127.0.0.1:0"], Echo(), budget=budget))
        peer = RawPeer(await network.dial(address))
        await peer.stream.send_all(encode(request(b"x" * 1000))[:-1])
        await wait_all_tasks_blocked()
        assert budget.held > 1000
        await peer.stream.aclose()
        await trio.sleep(1)
        assert (budget.held, budget.holders()) == (0, [])
        nursery.cancel_scope.cancel()


# --- peers that take nothing ---------------------------------------------------------------------


async def test_a_peer_that_takes_nothing_is_cut_off(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network, silent = MemoryNetwork(window=1000), Silent()
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(serve, network, ["127.0.0.1:0"], silent))
        peer = RawPeer(await network.dial(address))
        await peer.send(request())
        await wait_all_tasks_blocked()
        assert silent.connection is not None
        silent.connection.write(b"x" * 100_000)
        for _ in range(10):  # slow, but it takes some
            await trio.sleep(10)
            await peer.stream.receive_some(500)
        assert not silent.connection.is_closed
        began = trio.current_time()
        while not silent.connection.is_closed:
            await trio.sleep(0.5)
        assert 15 <= trio.current_time() - began <= 18
        assert "took nothing for 15 s" in caplog.text
        nursery.cancel_scope.cancel()


async def test_what_the_system_still_sends_counts_as_taken() -> None:
    """A socket's buffer is large: it is not writable again for long while a slow peer empties it."""
    listener = await TcpNetwork().listen("127.0.0.1:0")
    client = await TcpNetwork().dial(listener.address)
    server = await listener.accept()
    limits = evolve(Limits(), stall_seconds=15.0)
    connection = Connection(server, Echo(), limits=limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await trio.testing.wait_all_tasks_blocked()
        connection.write(b"x" * (32 * MIB))
        await trio.testing.wait_all_tasks_blocked(0.01)
        now = trio.current_time()
        before = server.unsent()
        if before < 0:
            pytest.skip("this system does not tell")
        assert before > 0
        left = before
        while left >= before and not connection.is_closed:  # takes less than makes the socket writable
            await client.receive_some(64 * KIB)
            left = server.unsent()
        connection.expire(now + 16)
        assert not connection.is_closed
        connection.expire(now + 40)
        assert connection.is_closed
        assert "took nothing" in connection.reason
        await client.aclose()
    await listener.aclose()
