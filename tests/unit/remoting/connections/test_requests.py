"""Requests that come over a connection, and how their answers are sent."""

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.errors import ConnectionLost, LocalProtocolError, RemoteProtocolError
from rmq.protocol.command import ROCKETMQ, Command
from rmq.protocol.frames import encode
from rmq.remoting import Connection, Limits
from rmq.remoting.transports.stream import PrefixedStream
from rmq.testing import MemoryNetwork

from ..peers import Custom, Echo, Silent, linked, request


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
        assert link.endpoint.closed == [link.connection]
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
        assert link.endpoint.closed == [link.connection]
        assert "a bug" in caplog.text


async def test_nothing_follows_half_a_frame(autojump_clock: MockClock) -> None:
    """After a cancelled send of a whole piece, as over WebSocket, the number of sent bytes is unknown."""

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
        assert link.endpoint.closed == [link.connection]
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
