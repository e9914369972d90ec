"""A name server and a broker in the caller's event loop, whichever that is."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
import pytest

import rmq
from rmq import embedded
from rmq.errors import PortInUse
from rmq.message import Message
from rmq.remoting.limits import Limits
from rmq.remoting.network import TcpNetwork, open_stream

LOOPS = ("asyncio", "uvloop", "trio")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a coroutine function on each loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")

    def call(main: Callable[[], Awaitable[None]]) -> None:
        if request.param == "trio":
            anyio.run(main, backend="trio")
        else:
            anyio.run(main, backend_options={"use_uvloop": request.param == "uvloop"})

    return call


Run = Callable[[Callable[[], Awaitable[None]]], None]


async def first(client: rmq.Client) -> bytes:
    async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
        with anyio.fail_after(30):
            async with await anext(consumer) as message:
                return message.body


def test_a_message_goes_through_and_outlives_it(run: Run, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        async with embedded.open(tmp_path) as system:
            await system.create_topic("T", 2)
            async with rmq.connect(system.namesrv_address) as client, client.producer("p") as producer:
                assert (await producer.send(Message("T", b"kept"))).status == "SEND_OK"
        assert not (system.store_dir / "abort").exists()
        async with embedded.open(tmp_path) as again, rmq.connect(again.namesrv_address) as client:
            assert await first(client) == b"kept"

    run(main)


def test_errors_of_its_start_and_of_the_block_come_out_bare(run: Run, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        async with embedded.open(tmp_path / "a") as system:
            port = int(system.broker_address.rpartition(":")[2])
            with pytest.raises(PortInUse, match=str(port)):
                async with embedded.open(tmp_path / "b", broker_port=port):
                    raise AssertionError("it was entered")
        with pytest.raises(ZeroDivisionError):
            async with embedded.open(tmp_path / "a"):
                raise ZeroDivisionError
        assert not (tmp_path / "a" / "store" / "abort").exists()

    run(main)


def test_one_who_is_cancelled_in_it_stops_it_cleanly(run: Run, tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:

            async def hold(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                async with embedded.open(tmp_path):
                    task_status.started()
                    await anyio.sleep_forever()

            await tasks.start(hold)
            assert (tmp_path / "store" / "abort").exists()
            tasks.cancel_scope.cancel()
        assert not (tmp_path / "store" / "abort").exists()

    run(main)


def test_on_asyncio_one_task_opens_it_and_another_closes_it(tmp_path: pathlib.Path) -> None:
    stack = AsyncExitStack()

    async def send(address: str) -> str:
        async with rmq.connect(address) as client, client.producer("p") as producer:
            return (await producer.send(Message("TBW102", b"x"))).status

    with asyncio.Runner() as runner:
        system = runner.run(stack.enter_async_context(embedded.open(tmp_path)))
        assert runner.run(send(system.namesrv_address)) == "SEND_OK"
        runner.run(stack.aclose())
    assert not (system.store_dir / "abort").exists()


async def upgraded(address: str) -> bytes:
    """The response to a browser that asks for a WebSocket."""
    async with open_stream(TcpNetwork(), address, limits=Limits()) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\r\n")
        return bytes(await stream.receive_some())


def test_on_asyncio_a_web_socket_is_refused_with_a_reason(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with embedded.open(tmp_path) as system:
            assert await upgraded(system.broker_address) == b""

    asyncio.run(main())
    assert "the peer wants a WebSocket, which needs trio" in caplog.text
