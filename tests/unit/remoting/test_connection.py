from __future__ import annotations

import logging
import math
import tracemalloc

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError, RequestTimeout
from rmq.protocol.command import ROCKETMQ, Command
from rmq.protocol.frames import encode
from rmq.remoting import Connection, Limits
from rmq.remoting.pending_requests import PendingRequest, timed_out
from rmq.remoting.transports.stream import PrefixedStream, Stream
from rmq.testing import MemoryNetwork

from .peers import CODE, Custom, Echo, Silent, linked, request


class CountedSends(MemoryNetwork):
    """Counts the sends of each pair's first end."""

    sends: list[int]

    def pair(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        ends = super().pair(*args, **kwargs)
        self.sends = []
        send_now = ends[0].send_now

        def counted(buffers):  # type: ignore[no-untyped-def]
            sent = send_now(buffers)
            self.sends.append(sent)
            return sent

        ends[0].send_now = counted  # type: ignore[method-assign]
        return ends


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
    """As fifty thousand sends that are begun at once keep it: the answer lies there when the time is over."""
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
        assert link.endpoint.gone == [link.connection]
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


# --- requests ------------------------------------------------------------------------------------


async def test_requests_of_a_chunk_come_together_and_are_answered_by_one_send(
    autojump_clock: MockClock,
) -> None:
    network = CountedSends()
    async with linked(network=network) as link:
        await link.peer.send(*(request(str(n).encode()) for n in range(50)))
        responses = await link.peer.receive(50)
        assert [response.body for response in responses] == [str(n).encode() for n in range(50)]
        assert [len(chunk) for chunk in link.endpoint.chunks] == [50]
        assert len(network.sends) == 1


async def test_a_flush_sends_what_is_there_while_the_endpoint_goes_on(autojump_clock: MockClock) -> None:
    network, sent = CountedSends(), []

    def answer(asked: Command, connection: Connection) -> None:
        connection.reply(asked.reply(body=asked.body))
        if asked.body == b"1":
            connection.flush()
            connection.flush()  # nothing is left for it
        sent.append(len(network.sends))

    async with linked(Custom(answer), network=network) as link:
        await link.peer.send(*(request(b"%d" % n) for n in range(4)))
        assert [one.body for one in await link.peer.receive(4)] == [b"0", b"1", b"2", b"3"]
    assert sent == [0, 1, 1, 1]
    assert len(network.sends) == 2


async def test_a_flush_to_a_peer_that_is_gone_is_no_error_of_the_endpoint(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    handled = []

    def answer(asked: Command, connection: Connection) -> None:
        link.peer.stream.break_off()  # type: ignore[attr-defined]
        connection.reply(asked.reply())
        connection.flush()
        handled.append(asked.body)

    async with linked(Custom(answer)) as link:
        await link.peer.send(request(b"a"), request(b"b"))
        with trio.fail_after(1):
            await link.ended.wait()
        link.connection.flush()
    assert handled == [b"a", b"b"]
    assert link.connection.reason.startswith("lost:")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_answer_is_sent_at_once_within_a_chunk_and_outside_of_one(autojump_clock: MockClock) -> None:
    network, sent = CountedSends(), []

    def answer(asked: Command, connection: Connection) -> None:
        if asked.body == b"1":
            connection.reply(asked.reply(body=b"before"))
        connection.answer(encode(asked.reply(body=asked.body)))
        sent.append(len(network.sends))

    async with linked(Custom(answer), network=network) as link:
        await link.peer.send(*(request(b"%d" % n) for n in range(3)))
        assert [one.body for one in await link.peer.receive(4)] == [b"0", b"before", b"1", b"2"]
        assert sent == [1, 2, 3]
        link.connection.answer(encode(request(b"late").reply(body=b"late")))
        assert len(network.sends) == 4
        assert [one.body for one in await link.peer.receive(1)] == [b"late"]
        await wait_all_tasks_blocked()
        assert len(network.sends) == 4, "nothing was left for the writer"


async def test_an_answer_that_the_peer_does_not_take_goes_out_when_it_does(autojump_clock: MockClock) -> None:
    async with linked(network=MemoryNetwork(window=1000)) as link:
        for body in (b"a" * 3000, b"b" * 3000):
            link.connection.answer(encode(request().reply(body=body)))
        await wait_all_tasks_blocked()
        assert not link.connection.is_closed
        assert [one.body for one in await link.peer.receive(2)] == [b"a" * 3000, b"b" * 3000]


async def test_an_answer_that_takes_all_with_it_makes_room(autojump_clock: MockClock) -> None:
    async def answer() -> None:
        link.connection.answer(encode(request().reply()))

    async with linked(limits=Limits(busy_bytes=100)) as link:
        for _ in range(30):  # the order of tasks is random: in some of these the writer finds nothing left
            link.connection._is_eager = False
            link.connection.notify(request(b"x" * 200))
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.connection.room)
                    nursery.start_soon(answer)
                    await link.peer.receive(2)


async def test_an_answer_to_a_peer_that_is_gone_is_no_error_of_the_endpoint(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked() as link:
        await wait_all_tasks_blocked()
        link.peer.stream.break_off()  # type: ignore[attr-defined]
        link.connection.answer(encode(request().reply()))
        with trio.fail_after(1):
            await link.ended.wait()
        link.connection.answer(encode(request().reply()))
    assert link.connection.reason.startswith("lost:")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_late_replies_of_a_moment_are_one_send(autojump_clock: MockClock) -> None:
    network = CountedSends()
    async with linked(silent := Silent(), network=network) as link:
        for _ in range(3):
            network.sends.clear()
            silent.requests.clear()
            await link.peer.send(*(request() for _ in range(20)))
            await wait_all_tasks_blocked()
            for asked in silent.requests:
                link.connection.reply(asked.reply())
            await link.peer.receive(20)
            assert len(network.sends) == 1


async def test_calls_of_a_moment_are_few_sends(autojump_clock: MockClock) -> None:
    network = CountedSends()
    async with linked(network=network) as link, trio.open_nursery() as nursery:
        await wait_all_tasks_blocked()
        for _ in range(100):
            nursery.start_soon(link.connection.call, request(), 10)
        for asked in await link.peer.receive(100):
            await link.peer.send(asked.reply())
        assert len(network.sends) == 2  # the first at once, the others gathered


async def test_calls_after_a_bunch_of_responses_are_one_send(autojump_clock: MockClock) -> None:
    network = CountedSends()
    async with linked(network=network) as link, trio.open_nursery() as nursery:

        async def call_twice() -> None:
            for _ in range(2):
                await link.connection.call(request(), 10)

        for _ in range(20):
            nursery.start_soon(call_twice)
        asked = await link.peer.receive(20)
        network.sends.clear()
        await link.peer.send(*(one.reply() for one in asked))
        for one in await link.peer.receive(20):
            await link.peer.send(one.reply())
        assert len(network.sends) == 1


async def test_a_request_with_the_number_of_our_call_is_no_response(autojump_clock: MockClock) -> None:
    async with linked() as link, trio.open_nursery() as nursery:
        answers = []

        async def call(body: bytes) -> None:
            answers.append((await link.connection.call(request(body), 10)).body)

        nursery.start_soon(call, b"ours")
        nursery.start_soon(call, b"other")
        ours, other = sorted(await link.peer.receive(2), key=lambda asked: asked.body, reverse=True)
        theirs = request(b"theirs")
        theirs.opaque = ours.opaque
        await link.peer.send(theirs, other.reply(body=b"other"))
        (response,) = await link.peer.receive()
        assert (response.opaque, response.body) == (ours.opaque, b"theirs")
        await wait_all_tasks_blocked()
        assert answers == [b"other"]
        await link.peer.send(ours.reply(body=b"ours"))


async def test_a_single_call_is_sent_at_once(autojump_clock: MockClock) -> None:
    network = CountedSends()
    async with linked(network=network) as link:
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.connection.call, request(), 10)
                (asked,) = await link.peer.receive()
                await link.peer.send(asked.reply())
        assert len(network.sends) == 3
        assert not link.connection._has_writer


async def test_large_buffers_are_sent_uncopied_and_in_order(autojump_clock: MockClock) -> None:
    parts = [b"head", memoryview(b"x" * 100_000), b"mid", bytearray(b"y" * 100_000), b"tail"]
    reply = request(b"".join(parts)).reply(body=b"".join(parts))
    frame = encode(reply)

    def answer(asked: Command, connection: Connection) -> None:
        start = len(frame) - 200_011
        buffers = [frame[:start], *parts]
        connection.write(buffers)

    async with linked(Custom(answer)) as link:
        await link.peer.send(request())
        (response,) = await link.peer.receive()
        assert response.body == b"".join(parts)


async def test_a_bug_of_the_endpoint_ends_the_connection_and_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(asked: Command, connection: Connection) -> None:
        raise KeyError("a bug")

    async with linked(Custom(fail)) as link, trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(ConnectionLost, match="a bug"):
                await link.connection.call(request(), 60)

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        await link.peer.send(request())
        await link.ended.wait()
        assert link.endpoint.gone == [link.connection]
        (record,) = caplog.records
        assert record.exc_info is not None
        assert record.levelno == logging.ERROR


async def test_a_bug_at_the_end_of_a_connection_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(Echo):
        def on_close(self, connection: Connection) -> None:
            raise KeyError("a bug")

    async with linked(Forgetful()) as link:
        await link.peer.stream.aclose()
        await link.ended.wait()
        assert "a bug" in caplog.text


async def test_a_stream_that_fails_in_an_unknown_way_ends_the_connection_and_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when nobody but the writer sees it."""
    network = MemoryNetwork(window=50)
    async with linked(Silent(), network=network) as link:
        asked = request(b"x" * 500)
        await link.peer.send(asked)
        await wait_all_tasks_blocked()
        ours = link.connection._stream
        works = ours.wait_send_all_might_not_block

        async def fail() -> None:
            ours.wait_send_all_might_not_block = works  # type: ignore[method-assign]
            raise KeyError("a bug")

        ours.wait_send_all_might_not_block = fail  # type: ignore[method-assign]
        link.connection.reply(asked.reply(body=b"y" * 500))
        with trio.fail_after(60):
            await link.ended.wait()
        assert link.endpoint.gone == [link.connection]
        assert "a bug" in caplog.text


async def test_nothing_follows_half_a_frame(autojump_clock: MockClock) -> None:
    """Who cancels a send of a whole piece, as over WebSocket, does not know how much of it has gone."""

    class Slow(MemoryNetwork):
        def pair(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            ours, theirs = super().pair(*args, **kwargs)

            class Whole(PrefixedStream):
                async def send_all(self, data):  # type: ignore[no-untyped-def]
                    await super().send_all(data[:10])
                    await trio.sleep_forever()

            whole = Whole(b"", ours)
            whole.sends_now = False
            whole.send_now = lambda buffers: 0  # type: ignore[method-assign]
            return whole, theirs

    async with linked(network=Slow(seed=1)) as link:
        asked = request(b"x")
        await link.peer.send(asked)
        assert await link.peer.stream.receive_some() == encode(asked.reply(body=b"x"))[:10]
        link.connection.close()
        assert await link.peer.ended()


async def test_an_answer_that_has_no_frame_is_an_error_to_its_asker(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The binary header holds 16 bits of a code; a relayed answer may have more."""

    def answer(asked: Command, connection: Connection) -> None:
        connection.reply(asked.reply(70_000 if asked.body == b"odd" else 0))

    odd, even = request(b"odd"), request(b"even")
    odd.serialization = even.serialization = ROCKETMQ
    async with linked(Custom(answer)) as link:
        await link.peer.send(odd, even)
        first, second = await link.peer.receive(2)
        assert (first.opaque, first.code) == (odd.opaque, 1)
        assert "70000" in (first.remark or "")
        assert (second.opaque, second.code) == (even.opaque, 0)
        assert link.connection.peer_address in caplog.text


async def test_an_answer_to_a_notice_that_cannot_be_passed_on_ends_the_one_who_gave_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Passing(Echo):
        def on_response(self, response: Command, connection: Connection) -> None:
            raise LocalProtocolError("no frame")

    async with linked(Passing()) as link:
        link.connection.notify(request())
        (asked,) = await link.peer.receive()
        await link.peer.send(asked.reply())
        await link.ended.wait()
        assert "no frame" in link.connection.reason
        assert "no frame" in caplog.text


@pytest.mark.parametrize(
    ("nonsense", "words"),
    [
        (b"\x7f\xff\xff\xff", "frame of"),
        (b"\xff\xff\xff\xff", "frame of"),
        (b"\x00\x00\x00\x00", "frame of"),
        (b"\x00\x00\x00\x08\x00\x00\xff\xff", "header"),
    ],
)
async def test_nonsense_ends_the_connection_with_a_logged_reason(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, nonsense: bytes, words: str
) -> None:
    async with linked() as link:
        await link.peer.send(request(b"good"))
        await link.peer.receive()
        await link.peer.stream.send_all(nonsense + b"\x00" * 8)
        assert await link.peer.ended()
        await link.ended.wait()
        assert link.endpoint.gone == [link.connection]
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert link.connection.peer_address in record.message
        assert words in record.message


async def test_a_request_that_its_handler_cannot_read_ends_only_the_connection(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(asked: Command, connection: Connection) -> None:
        raise RemoteProtocolError("no queueId")

    async with linked(Custom(refuse)) as link:
        await link.peer.send(request())
        assert await link.peer.ended()
        assert "no queueId" in caplog.text


# --- peers that do not read, or do not finish ----------------------------------------------------


async def test_a_peer_that_does_not_read_is_not_read_from(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=10_000)
    limits = Limits(pause_bytes=20_000, receive_bytes=4096)
    async with linked(network=network, limits=limits) as link, trio.open_nursery() as nursery:

        async def flood() -> None:
            for _ in range(1000):
                await link.peer.send(request(b"x" * 1000))

        nursery.start_soon(flood)
        await wait_all_tasks_blocked()
        handled = len(link.endpoint.bodies)
        assert 20 <= handled <= 50  # what the window, the pause and one chunk hold
        assert link.connection._outbox.size <= 20_000 + 2 * 4096
        assert len(await link.peer.receive(1000)) == 1000


async def test_late_replies_to_a_peer_that_does_not_read_are_bounded(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork(window=1000)
    async with linked(silent := Silent(), network=network, limits=Limits(outbox_bytes=50_000)) as link:
        await link.peer.send(request())
        await wait_all_tasks_blocked()
        for _ in range(100):
            link.connection.reply(silent.requests[0].reply(body=b"x" * 1000))
        assert link.connection.is_closed
        assert "does not read" in link.connection.reason
        await link.ended.wait()
        assert link.connection._outbox.size == 0
        (record,) = caplog.records
        assert link.connection.peer_address in record.message
        assert "does not read" in record.message


async def test_who_asks_for_room_waits_until_the_peer_reads(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=50)
    async with linked(network=network, limits=Limits(busy_bytes=100)) as link:
        link.connection.notify(request(b"x" * 500))
        with trio.move_on_after(5) as scope:
            await link.connection.room()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.peer.receive)
            with trio.fail_after(5):
                await link.connection.room()
        link.connection.notify(request(b"x" * 500))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.connection.room)
            await wait_all_tasks_blocked()
            link.connection.close()  # nobody waits for ever


async def test_our_own_requests_never_stop_us_from_reading(autojump_clock: MockClock) -> None:
    """Both sides send much before they read: who reads only after sending would wait for ever."""
    network = MemoryNetwork(window=1000)
    async with linked(network=network) as link, trio.open_nursery() as nursery:
        nursery.start_soon(link.connection.call, request(b"x" * 5000), 60)
        await wait_all_tasks_blocked()
        with trio.fail_after(10):
            await link.peer.send(request(b"y" * 5000, oneway=True))  # only then does it read
        for asked in await link.peer.receive():
            await link.peer.send(asked.reply())


async def test_an_unfinished_frame_costs_no_more_than_itself(autojump_clock: MockClock) -> None:
    size = 4 * 1024 * 1024
    frame = encode(request(b"x" * size))
    async with linked() as link:
        await link.peer.send(request())
        await link.peer.receive()
        tracemalloc.start()
        try:
            view = memoryview(frame)[:-1]
            for at in range(0, len(view), 50_000):
                await link.peer.stream.send_all(view[at : at + 50_000])
            await wait_all_tasks_blocked()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A bytearray that grows keeps an eighth in reserve.
        assert held <= size * 1.13 + 64 * 1024


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", ["reading", "writing"])
async def test_idle_is_neither_reading_nor_writing(autojump_clock: MockClock, busy: str) -> None:
    async with linked(limits=Limits(idle_seconds=120)) as link:
        for _ in range(3):
            await trio.sleep(100)
            if busy == "reading":
                await link.peer.send(request(oneway=True))
            else:
                link.connection.notify(request())
            await wait_all_tasks_blocked()
            link.connection.expire(trio.current_time())
            assert not link.connection.is_closed
        await trio.sleep(121)
        link.connection.expire(trio.current_time())
        assert link.connection.is_closed
        assert link.connection.reason == "idle for 120 s"
        await link.ended.wait()


async def test_a_connection_with_a_call_in_flight_is_not_idle(autojump_clock: MockClock) -> None:
    async with linked() as link, trio.open_nursery() as nursery:
        nursery.start_soon(link.connection.call, request(), 1000)
        await trio.sleep(500)
        link.connection.expire(trio.current_time())
        assert not link.connection.is_closed
        nursery.cancel_scope.cancel()


async def test_a_frame_that_trickles_is_ended(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(limits=Limits(frame_seconds=60)) as link:
        frame = encode(request(b"x" * 100))
        for at in range(7):
            await link.peer.stream.send_all(frame[at : at + 1])  # never idle, never done
            await trio.sleep(10)
            link.connection.expire(trio.current_time())
        assert link.connection.is_closed
        assert "not complete after 60 s" in caplog.text
        await trio.sleep(10)
        link.connection.expire(trio.current_time())
        assert len(caplog.records) == 1


async def test_slow_whole_frames_are_welcome(autojump_clock: MockClock) -> None:
    async with linked(limits=Limits(frame_seconds=60)) as link:
        for _ in range(5):
            frame = encode(request(b"x", oneway=True))
            await link.peer.stream.send_all(frame[:10])
            await trio.sleep(50)
            link.connection.expire(trio.current_time())
            await link.peer.stream.send_all(frame[10:])
            await wait_all_tasks_blocked()
        assert link.endpoint.bodies == [b"x"] * 5


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
    """As a service that stops gives it: its connections are cancelled, and what waits is answered."""
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
    assert endpoint.gone == [endpoint.connection]
