"""On asyncio the loop's callback reads: what it is told, what ends it, and what may be done in it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator

import anyio
import pytest
import sniffio

from rmq.protocol.command import Command
from rmq.remoting import Connection, Pool, TcpNetwork
from rmq.remoting.asyncio_loop import AsyncioPoller, turn_of
from rmq.remoting.loop import Waiter, current_loop
from tests.unit.remoting.on_asyncio import PATIENT, on_asyncio, service

from .peers import Custom, request


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    one.setblocking(False)
    with one, other:
        yield one, other


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    """On a loop that anyio has not begun."""
    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None

    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(limited())


BOTH = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@BOTH
def test_it_is_called_until_it_says_no(pair: tuple[socket.socket, socket.socket], loop: str) -> None:
    one, other = pair
    read: list[bytes] = []

    def on_readable() -> bool:
        read.append(one.recv(1))
        return len(read) < 3

    async def scenario() -> None:
        other.send(b"abcd")
        await AsyncioPoller().attend(one.fileno(), on_readable)
        await turns()
        assert read == [b"a", b"b", b"c"], "called once more after it has said no"
        await AsyncioPoller().attend(one.fileno(), on_readable)
        assert read[3:] == [b"d"]

    run(scenario, loop)


def test_its_error_comes_out(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair

    def on_readable() -> bool:
        raise ValueError("no frame")

    async def scenario() -> None:
        other.send(b"x")
        with pytest.raises(ValueError, match="no frame"):
            await AsyncioPoller().attend(one.fileno(), on_readable)
        assert asyncio.get_running_loop().remove_reader(one.fileno()) is False

    run(scenario)


@BOTH
def test_cancelled_it_is_called_no_more(pair: tuple[socket.socket, socket.socket], loop: str) -> None:
    one, other = pair
    calls: list[int] = []

    async def scenario() -> None:
        def on_readable() -> bool:
            calls.append(1)
            return False

        task = asyncio.create_task(AsyncioPoller().attend(one.fileno(), on_readable))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other.send(b"x")
        await turns()
        assert calls == []

    run(scenario, loop)


@BOTH
def test_tasks_whose_answers_a_chunk_brings_run_in_the_same_turn_of_the_loop(
    pair: tuple[socket.socket, socket.socket], loop: str
) -> None:
    one, other = pair
    seen: list[str] = []

    async def scenario() -> None:
        running = asyncio.get_running_loop()
        waiters = [current_loop().waiter() for _ in range(3)]

        async def waits(waiter: Waiter) -> None:
            try:
                seen.append(await waiter.wait())
            except ValueError as error:
                seen.append(str(error))
            assert asyncio.current_task() is not None
            await asyncio.sleep(0)
            seen.append("later")

        def on_readable() -> bool:
            one.recv(1)
            running.call_soon(seen.append, "next turn")
            waiters[0].resolve("first")
            waiters[1].fail(ValueError("second"))
            seen.append("read")
            return False

        tasks = [asyncio.create_task(waits(waiter)) for waiter in waiters]
        await turns()
        other.send(b"x")
        await AsyncioPoller().attend(one.fileno(), on_readable)
        await turns()
        assert seen[:4] == ["read", "first", "second", "next turn"]
        waiters[2].resolve("third")
        seen.append("outside of a chunk it waits for its turn")
        await asyncio.gather(*tasks)
        assert seen[-3:] == ["outside of a chunk it waits for its turn", "third", "later"]

    run(scenario, loop)


@BOTH
def test_a_task_that_is_cancelled_by_another_answer_of_its_chunk_ends(
    pair: tuple[socket.socket, socket.socket], loop: str
) -> None:
    one, other = pair

    async def scenario() -> None:
        first, second, third = (current_loop().waiter() for _ in range(3))

        async def cancels() -> None:
            await first.wait()
            for task in tasks:
                task.cancel()

        async def waits(waiter: Waiter) -> None:
            await waiter.wait()

        def on_readable() -> bool:
            one.recv(1)
            first.resolve(None)
            second.resolve(None)
            return False

        canceller = asyncio.create_task(cancels())
        tasks = [asyncio.create_task(waits(waiter)) for waiter in (second, third)]
        await turns()
        other.send(b"x")
        await AsyncioPoller().attend(one.fileno(), on_readable)
        found = await asyncio.gather(canceller, *tasks, return_exceptions=True)
        assert [type(one) for one in found] == [type(None), asyncio.CancelledError, asyncio.CancelledError]

    run(scenario, loop)


def test_an_error_that_ends_the_loop_keeps_no_other_answer_of_the_chunk_back() -> None:
    loop, seen = asyncio.new_event_loop(), list[str]()
    asyncio.set_event_loop(loop)

    async def waits(waiter: Waiter, interrupts: bool) -> None:
        seen.append(await waiter.wait())
        if interrupts:
            raise KeyboardInterrupt

    async def begin() -> list[Waiter]:
        waiters = [current_loop().waiter() for _ in range(2)]
        for at, waiter in enumerate(waiters):
            kept.append(asyncio.create_task(waits(waiter, at == 0)))
        await turns()
        return waiters

    kept: list[asyncio.Task[None]] = []
    try:
        waiters = loop.run_until_complete(begin())
        turn = turn_of(loop)
        turn.begin()
        for text, waiter in zip(("one", "two"), waiters, strict=True):
            waiter.resolve(text)
        with pytest.raises(KeyboardInterrupt):
            turn.end()
        assert seen == ["one"]
        loop.run_until_complete(turns())
        assert seen == ["one", "two"]
        assert isinstance(kept[0].exception(), KeyboardInterrupt)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_there_is_none_on_trio() -> None:
    async def made() -> bool:
        return current_loop().poller is not None

    assert anyio.run(made, backend="asyncio")
    assert not anyio.run(made, backend="trio")


@BOTH
def test_answers_are_taken_by_the_callback(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No task of the connection has a turn for an answer; a task that is woken for each costs a turn more."""

    async def scenario() -> None:
        with_tasks: list[bool] = []
        async with Pool(TcpNetwork(), Custom(lambda *_: None), limits=PATIENT) as pool:
            await pool.call(address, request(b"first"), 20)
            connection = await pool.connection(address, 20)
            take = Connection._take_responses

            def noted(taker: Connection, commands: list[Command]) -> list[Command]:
                if taker is connection:
                    with_tasks.append(asyncio.current_task() is not None)
                    assert sniffio.current_async_library() == "asyncio"
                return take(taker, commands)

            monkeypatch.setattr(Connection, "_take_responses", noted)
            for _ in range(3):
                assert (await pool.call(address, request(b"x"), 20)).body == b"x"
        assert with_tasks == [False] * 3

    with service() as address:
        run(scenario, loop)


def test_requests_of_the_peer_are_answered_outside_of_tasks() -> None:
    """An endpoint that answers a request can start tasks, make events and use cancel scopes."""
    done: list[str] = []

    async def scenario() -> None:
        async with anyio.create_task_group() as tasks:

            async def later(connection: Connection, asked: Command) -> None:
                with anyio.move_on_after(10):
                    await anyio.lowlevel.checkpoint()
                connection.reply(asked.reply(body=b"later"))

            def answer(asked: Command, connection: Connection) -> None:
                anyio.Event().set()
                anyio.CancelScope()
                anyio.get_running_tasks()
                done.append(asked.body.decode())
                if asked.body == b"soon":
                    tasks.start_soon(later, connection, asked)
                else:
                    connection.reply(asked.reply(body=b"at once"))

            server = await asyncio.start_server(peer, "127.0.0.1", 0)
            host, port = server.sockets[0].getsockname()
            async with Pool(TcpNetwork(), Custom(answer), limits=PATIENT) as pool:
                await pool.connection(f"{host}:{port}", 20)
                await ended.wait()
            server.close()

    ended = asyncio.Event()

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from rmq.protocol.frames import Decoder, encode

        decoder, got = Decoder(), list[Command]()
        for body in (b"soon", b"now"):
            writer.write(encode(request(body)))
            before = len(got)
            while len(got) == before:
                got += decoder.feed(await reader.read(65536))
        assert [bytes(command.body) for command in got] == [b"later", b"at once"]
        writer.close()
        ended.set()

    run(scenario)
    assert done == ["soon", "now"]


def test_a_large_answer_and_the_end_of_the_stream() -> None:
    async def scenario() -> None:
        async with Pool(TcpNetwork(), Custom(lambda *_: None), limits=PATIENT) as pool:
            body = bytes(range(256)) * 12_000
            assert (await pool.call(address, request(body), 20)).body == body
            with pytest.raises(ConnectionError):
                await pool.call(address, request(b"bye"), 20)
            assert (await pool.call(address, request(b"again"), 20)).body == b"again"

    with service() as address:
        on_asyncio(scenario)
