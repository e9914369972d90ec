"""The client's half on asyncio: the services run on trio in a thread, over real sockets."""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys

import anyio
import pytest
import trio

from rmq.errors import ConnectFailed, ConnectionLost, RequestTimeout
from rmq.protocol.command import Command
from rmq.remoting import Connection, Limits, Pool, TcpNetwork, TlsConfig
from rmq.remoting.transports import tcp
from tests.unit.remoting.on_asyncio import PATIENT, on_asyncio, service

from .peers import Custom, Echo, request


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss"])
def test_calls(scheme: str, tls_config: TlsConfig) -> None:
    with service(tls_config) as address:
        target = f"{scheme}://{address}"

        async def test() -> None:
            async with Pool(TcpNetwork(), Echo(), tls=tls_config, limits=PATIENT) as pool:
                bodies = [bytes([n]) * size for n, size in enumerate((0, 1, 1000, 1_000_000))]
                answers: list[bytes] = []

                async def call(body: bytes) -> None:
                    answers.append((await pool.call(target, request(body), 30)).body)

                async with anyio.create_task_group() as calls:
                    for body in bodies:
                        calls.start_soon(call, body)
                assert sorted(answers) == sorted(bodies)
                await pool.notify(target, request(oneway=True))

        on_asyncio(test)


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss"])
def test_timeout_cancellation_and_loss(scheme: str, tls_config: TlsConfig) -> None:
    with service(tls_config) as address:
        target = f"{scheme}://{address}"

        async def test() -> None:
            async with Pool(TcpNetwork(), Echo(), tls=tls_config, limits=PATIENT) as pool:
                await pool.call(target, request(), 30)
                with pytest.raises(RequestTimeout):
                    await pool.call(target, request(b"later"), 0.01)
                for seconds in (30, 40, 20):
                    with anyio.move_on_after(0.01) as scope:
                        await pool.call(target, request(b"later"), seconds)
                    assert scope.cancelled_caught
                connection = await pool.connection(target)
                assert [entry[3] for entry in connection._pending.values()] == [20], "one to time out"
                with pytest.raises(ConnectionLost):
                    await pool.call(target, request(b"bye"), 30)
                assert (await pool.call(target, request(b"again"), 30)).body == b"again"

        on_asyncio(test)


def test_failed_dials(tls_config: TlsConfig) -> None:
    with service(tls_config) as address:

        async def test() -> None:
            async with Pool(TcpNetwork(), Echo(), tls=TlsConfig(), limits=PATIENT) as pool:
                with pytest.raises(ConnectFailed, match="TLS handshake: the certificate is not accepted"):
                    await pool.call(f"tls://{address}", request(), 30)
                with pytest.raises(ConnectFailed, match="refused"):
                    await pool.call("127.0.0.1:1", request(), 30)
                # none of which harms the pool
                assert (await pool.call(address, request(b"x"), 30)).body == b"x"

        on_asyncio(test)


def test_back_pressure_and_idle_on_asyncio() -> None:
    with service() as address:

        async def test() -> None:
            limits = Limits(busy_bytes=100_000, idle_seconds=0.05, pending_requests=10, connect_seconds=30)
            async with Pool(TcpNetwork(), Echo(), limits=limits) as pool:
                async with anyio.create_task_group() as calls:
                    for _ in range(50):
                        calls.start_soon(pool.call, address, request(b"x" * 50_000), 30)
                connection = await pool.connection(address)
                with anyio.fail_after(60):
                    while not connection.is_closed:
                        await anyio.sleep(0.01)
                assert "idle" in connection.reason

        on_asyncio(test)


def test_a_bug_in_the_endpoint_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    def fail(asked: Command, connection: Connection) -> None:
        raise KeyError("a bug")

    async def test() -> None:
        listener = await TcpNetwork().listen("127.0.0.1:0")
        client = await TcpNetwork().dial(listener.address)
        server = await listener.accept()
        await client.send_all(b"")
        connection = Connection(server, Custom(fail))
        caller = Connection(client, Echo())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.run)
            caller.notify(request())
            await connection.run()
        assert "a bug" in connection.reason
        assert "Traceback" in caplog.text
        await listener.aclose()

    on_asyncio(test)


def test_a_tcp_stream_keeps_trios_contract_on_asyncio() -> None:
    async def scenario() -> None:
        listener = await TcpNetwork().listen("127.0.0.1:0")
        one = await TcpNetwork().dial(listener.address)
        other = await listener.accept()
        await listener.aclose()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.receive_some)
            await anyio.sleep(0.01)
            with pytest.raises(trio.BusyResourceError):
                await one.receive_some()
            tasks.cancel_scope.cancel()
        # What comes while nobody reads is kept, and the loop is left alone.
        await other.send_all(b"abc" * 1000)
        for _ in range(10):
            await anyio.sleep(0.001)
        got = b""
        while len(got) < 3000:
            got += await one.receive_some(7)
        assert got == b"abc" * 1000
        async with anyio.create_task_group() as tasks:

            async def closed_while_it_reads() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await one.receive_some()

            tasks.start_soon(closed_while_it_reads)
            await anyio.sleep(0.01)
            await one.aclose()
        assert await other.receive_some() == b""
        await other.aclose()

    on_asyncio(scenario)


def test_what_was_read_for_a_task_that_is_cancelled_is_not_lost() -> None:
    async def scenario() -> None:
        listener = await TcpNetwork().listen("127.0.0.1:0")
        one = await TcpNetwork().dial(listener.address)
        other = await listener.accept()
        assert isinstance(one, tcp.TcpStream)
        running = asyncio.ensure_future(one.receive_some())
        await anyio.sleep(0)
        await other.send_all(b"abcdef")
        while running._fut_waiter is None or not running._fut_waiter.done():  # type: ignore[attr-defined]
            select.select([one.descriptor], [], [], 5)
            one._on_readable()  # type: ignore[attr-defined]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await one.receive_some(2) == b"ab"
        assert await one.receive_some() == b"cdef"
        for stream in (one, other, listener):
            await stream.aclose()

    on_asyncio(scenario)


def test_on_asyncio_trio_is_not_loaded() -> None:
    """Neither the client's import nor a send to a missing broker loads trio."""
    code = """
import asyncio, sys, rmq

async def main():
    config = rmq.ClientConfig(send_queue_ms=0, send_timeout_ms=1)
    async with rmq.connect("127.0.0.1:1", config=config) as client, client.producer("p") as producer:
        try:
            await producer.send(rmq.Message("T", b"x"))
        except rmq.Unreachable:
            print(sorted({"trio", "trio_websocket", "wsproto"} & sys.modules.keys()))

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
