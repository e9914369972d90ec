"""None"""

import logging
import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.errors import ConnectionLost, LocalProtocolError, RequestTimeout
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.remoting import Connection, Limits
from rmq.remoting.pending_requests import PendingRequest, timed_out
from rmq.remoting.transports.stream import Stream
from rmq.testing import MemoryNetwork

from ..peers import CODE, Echo, Silent, linked, request

# --- calls ---------------------------------------------------------------------------------------


async def test_responses_find_their_calls_in_any_order(autojump_clock: MockClock) -> None:
    async with linked() as link:
        answers = {}

        async def call(name: bytes) -> None:
            answers[name] = (await link.connection.call(request(name), 3)).body

        async with trio.open_nursery() as calls:
            for name in (b"a", b"b", b"c"):
                calls.start_soon(call, name)
            for asked in reversed(await link.peer.receive(3)):
                await link.peer.send(asked.reply(body=asked.body * 2))
        assert answers == {b"a": b"aa", b"b": b"bb", b"c": b"cc"}


async def test_a_refusal_is_a_response_like_others(autojump_clock: MockClock) -> None:
    async with linked() as link, trio.open_nursery() as nursery:

        async def refuse() -> None:
            (asked,) = await link.peer.receive()
            await link.peer.send(asked.reply(17, "no such topic"))

        nursery.start_soon(refuse)
        response = await link.connection.call(request(), 3)
        assert (response.code, response.remark) == (17, "no such topic")


async def test_each_call_times_out_at_its_own_time(autojump_clock: MockClock) -> None:
    ended = {}

    async def call(connection: Connection, seconds: float) -> None:
        with pytest.raises(RequestTimeout) as error:
            await connection.call(request(), seconds)
        assert (error.value.address, error.value.code) == (connection.peer_address, CODE)
        assert error.value.seconds == seconds
        ended[seconds] = trio.current_time() - began

    async with linked() as link:
        began = trio.current_time()
        async with trio.open_nursery() as calls:
            for seconds in (0.8, 0.3, 0.5, 0.1, 0.8):  # earlier ones after later ones too
                calls.start_soon(call, link.connection, seconds)
        assert ended == {seconds: pytest.approx(seconds) for seconds in (0.1, 0.3, 0.5, 0.8)}


async def test_a_loop_that_was_busy_gives_a_call_its_time_again_once(autojump_clock: MockClock) -> None:
    """Fifty thousand sends that begin at once keep the loop busy in this way: the response is in the buffer
    when the time is over."""
    answers: list[Command] = []
    async with linked() as link, trio.open_nursery() as nursery:

        async def call() -> None:
            answers.append(await link.connection.call(request(b"x"), 3))

        nursery.start_soon(call)
        (asked,) = await link.peer.receive()
        autojump_clock.jump(5)  # in one step of the loop
        await trio.sleep(2)
        await link.peer.send(asked.reply(body=b"y"))
        await wait_all_tasks_blocked()
        assert [answer.body for answer in answers] == [b"y"]

        began = trio.current_time()
        nursery.start_soon(call_that_times_out, link.connection)
        await link.peer.receive()
        autojump_clock.jump(5)
        await trio.sleep(2.9)
        autojump_clock.jump(5)
        await wait_all_tasks_blocked()
        assert trio.current_time() - began == pytest.approx(12.9)


async def call_that_times_out(connection: Connection) -> None:
    with pytest.raises(RequestTimeout):
        await connection.call(request(), 3)


@pytest.mark.parametrize(
    ("late", "over", "earliest"), [(0.0, [1, 2], 9.0), (0.1, [1, 2], 9.0), (0.2, [2], 8.0)]
)
def test_only_a_timer_that_was_late_spares_calls_and_not_for_long(
    late: float, over: list[int], earliest: float
) -> None:
    pending: dict[int, PendingRequest] = {
        1: (None, 5.0, CODE, 30.0, 0),
        2: (None, 4.0, CODE, 3.0, 0),
        3: (None, 9.0, CODE, 3.0, 0),
    }
    spared = {2, 7}
    assert timed_out(pending, 5.0, late, spared) == (over, earliest)
    assert spared == ({1, 2} if late == 0.2 else {2})


async def test_a_call_made_before_run_times_out_too(autojump_clock: MockClock) -> None:
    ours, _theirs = MemoryNetwork().pair()
    connection = Connection(ours, Echo())
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(RequestTimeout):
                await connection.call(request(), 1)
            assert trio.current_time() - began == pytest.approx(1)
            connection.close()

        began = trio.current_time()
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        nursery.start_soon(connection.run)


async def test_a_late_response_is_ignored(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "rmq.remoting")
    async with linked() as link:
        with pytest.raises(RequestTimeout):
            await link.connection.call(request(), 0.9)
        (asked,) = await link.peer.receive()
        await link.peer.send(asked.reply())
        await wait_all_tasks_blocked()
        assert not link.connection.is_closed
        assert link.endpoint.chunks == []  # nor is it taken for a request
        assert f"late response to request {asked.opaque}" in caplog.text


async def test_a_cancelled_call_forgets_its_opaque(autojump_clock: MockClock) -> None:
    async with linked(limits=Limits(pending_requests=1)) as link:
        with trio.move_on_after(1):
            await link.connection.call(request(), 5)
        (asked,) = await link.peer.receive()
        await link.peer.send(asked.reply(body=b"late"))
        with trio.move_on_after(2) as scope, pytest.raises(RequestTimeout):
            await link.connection.call(request(), 1)  # the slot is free: it times out, it does not wait
        assert not scope.cancelled_caught


async def test_one_opaque_is_in_flight_only_once(autojump_clock: MockClock) -> None:
    async with linked() as link, trio.open_nursery() as nursery:
        asked = request()
        nursery.start_soon(link.connection.call, asked, math.inf)
        await wait_all_tasks_blocked()
        with pytest.raises(LocalProtocolError, match=str(asked.opaque)):
            await link.connection.call(asked, 1)
        nursery.cancel_scope.cancel()


async def test_calls_in_flight_are_bounded(autojump_clock: MockClock) -> None:
    async with linked(limits=Limits(pending_requests=2)) as link, trio.open_nursery() as nursery:
        nursery.start_soon(link.connection.call, request(b"1"), 10)
        nursery.start_soon(link.connection.call, request(b"2"), 10)
        await wait_all_tasks_blocked()
        with pytest.raises(RequestTimeout):
            await link.connection.call(request(b"3"), 1)
        nursery.start_soon(link.connection.call, request(b"4"), 10)
        for asked in await link.peer.receive(2):
            assert asked.body in (b"1", b"2")
            await link.peer.send(asked.reply())
        (fourth,) = await link.peer.receive()
        assert fourth.body == b"4"
        await link.peer.send(fourth.reply())


async def test_calls_wait_for_room_while_the_peer_does_not_read(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=1000)
    limits = Limits(busy_bytes=5000)
    async with linked(limits=limits, network=network) as link, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(link.connection.call, request(b"x" * 2000), 60)
        await wait_all_tasks_blocked()
        assert link.connection._outbox.size < 5000 + 2 * 2200
        with pytest.raises(RequestTimeout):
            await link.connection.call(request(), 1)
        for asked in await link.peer.receive(20):
            await link.peer.send(asked.reply())


async def test_a_call_knows_whether_it_was_written_before_the_connection_was_lost(
    autojump_clock: MockClock,
) -> None:
    """The peer's window takes the first frame and a part of the second: that one is none to the peer."""
    first = request(b"1" * 400)
    network = MemoryNetwork(window=len(encode(first)) + 100)
    sent: dict[bytes, bool] = {}
    async with linked(network=network) as link, trio.open_nursery() as calls:

        async def call(command: Command) -> None:
            with pytest.raises(ConnectionLost) as lost:
                await link.connection.call(command, 60)
            sent[command.body[:1]] = lost.value.was_sent

        for command in (first, request(b"2" * 400), request(b"3" * 400)):
            calls.start_soon(call, command)
            await wait_all_tasks_blocked()
        link.network.cut()
    assert sent == {b"1": True, b"2": False, b"3": False}


async def test_a_call_over_a_connection_that_has_ended_sends_nothing(autojump_clock: MockClock) -> None:
    async with linked() as link:
        link.connection.close()
        with pytest.raises(ConnectionLost) as lost:
            await link.connection.call(request(), 1)
    assert not lost.value.was_sent


async def test_close_ends_calls_at_once_and_sends_what_waits(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=50)
    async with linked(network=network) as link:

        async def call() -> None:
            with pytest.raises(ConnectionLost, match="closed by this side") as lost:
                await link.connection.call(request(b"x" * 500), 60)
            assert lost.value.was_sent  # it will be

        async with trio.open_nursery() as calls:
            calls.start_soon(call)
            await wait_all_tasks_blocked()
            link.connection.close()
        link.connection.reply(request().reply())  # dropped
        (asked,) = await link.peer.receive()
        assert asked.body == b"x" * 500
        assert await link.peer.ended()
        assert link.endpoint.closed == [link.connection]
        with pytest.raises(ConnectionLost):
            await link.connection.call(request(), 1)


async def test_finish_sends_what_waits_and_the_end_behind_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    for window, ends in ((1_000, True), (50, False)):
        network = MemoryNetwork(window=window)
        async with linked(network=network) as link:
            ended.clear()
            monkeypatch.setattr(link.connection._stream, "end_sending", lambda: ended.append(True))
            link.connection.reply(request(b"x" * 500).reply(body=b"x" * 500))
            link.connection.finish("it is over")
            assert bool(ended) is ends, "who does not take all yet gets the rest first"
            assert link.connection.reason == "it is over"
            (answer,) = await link.peer.receive()
            assert answer.body == b"x" * 500
            assert await link.peer.ended()


async def test_a_closing_connection_lingers_only_so_long(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=50)
    async with linked(network=network, limits=Limits(linger_seconds=2)) as link:
        link.connection.notify(request(b"x" * 500))
        await wait_all_tasks_blocked()
        began = trio.current_time()
        link.connection.close()
        await link.ended.wait()
        assert trio.current_time() - began == pytest.approx(2)


async def test_one_timer_task_serves_all_calls(autojump_clock: MockClock) -> None:
    async with linked() as link:
        before = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(link.connection.call, request(), 60)
            await wait_all_tasks_blocked()
            # the callers, one writer, one timer
            assert trio.lowlevel.current_statistics().tasks_living == before + 100 + 2
            nursery.cancel_scope.cancel()


async def test_a_connection_that_only_answers_is_one_task(autojump_clock: MockClock) -> None:
    async with linked() as link:
        before = trio.lowlevel.current_statistics().tasks_living
        for _ in range(3):
            await link.peer.send(request())
            await link.peer.receive()
        assert trio.lowlevel.current_statistics().tasks_living == before


async def test_a_broken_stream_found_by_a_caller(autojump_clock: MockClock) -> None:
    async with linked() as link:
        link.network.cut()
        with pytest.raises(ConnectionLost):
            await link.connection.call(request(), 5)
        await link.ended.wait()


async def test_the_stream_is_closed_when_run_is_cancelled() -> None:
    ours, theirs = MemoryNetwork().pair()
    connection = Connection(ours, Echo())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await theirs.receive_some() == b""
    assert connection.is_closed


def test_the_stream_contract_has_a_send_that_takes_nothing() -> None:
    class Deaf(Stream):
        async def send_all(self, data: object) -> None: ...
        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            return b""

        async def wait_send_all_might_not_block(self) -> None: ...
        async def aclose(self) -> None: ...

    assert Deaf().send_now([b"x"]) == 0


@pytest.mark.parametrize("ticks", range(8))
async def test_an_answer_while_the_connection_is_being_cancelled_is_dropped(
    autojump_clock: MockClock, ticks: int
) -> None:
    """A service that stops gives such a response: its connections are cancelled, and waiting requests are
    answered."""
    endpoint, network = Silent(), MemoryNetwork()
    ours, peers = network.pair()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def serve() -> None:
            with scope:
                await Connection(ours, endpoint).run()

        nursery.start_soon(serve)
        await peers.send_all(encode(request()))
        await wait_all_tasks_blocked()
        scope.cancel()
        for _ in range(ticks):
            await trio.lowlevel.checkpoint()
        assert endpoint.connection is not None
        endpoint.connection.reply(endpoint.requests[0].reply())
    assert endpoint.closed == [endpoint.connection]
