"""Peers that are gone without a word: connections that end because nothing is heard over them any more."""

from __future__ import annotations

import socket
from collections.abc import Callable

import anyio
import pytest

from rmq.errors import ConnectionLost, RequestTimeout, RmqError
from rmq.protocol.command import Command
from rmq.remoting import Connection, Limits, Pool
from rmq.remoting.address import split_address
from rmq.remoting.network import TcpNetwork, open_stream
from rmq.remoting.pending_requests import PendingRequest, Silence
from rmq.remoting.serving.acceptor import Acceptor, Guest
from rmq.remoting.serving.server import Server
from rmq.remoting.transports import tcp
from rmq.testing import MemoryNetwork, virtual_time

from .peers import CODE, Custom, Echo, request


@pytest.fixture(params=["trio", "asyncio"])
def in_memory(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a coroutine function in virtual time, on each event loop."""

    async def in_virtual_time(scenario: Callable[[], object]) -> None:
        with virtual_time(), anyio.fail_after(10_000):
            await scenario()  # type: ignore[misc]

    return lambda scenario: anyio.run(in_virtual_time, scenario, backend=request.param)


def asked(at: float, seconds: float) -> PendingRequest:
    return None, at + seconds, CODE, seconds, 0


class TestSilence:
    def test_nothing_heard_since_a_request_was_written(self) -> None:
        assert Silence().is_broken([asked(5, 3)], heard_at=4, now=8)

    def test_something_heard_since_then(self) -> None:
        assert not Silence().is_broken([asked(5, 3)], heard_at=5.1, now=8)
        assert not Silence().is_broken([asked(5, 3)], heard_at=7.9, now=8)

    def test_one_of_several_requests_is_enough(self) -> None:
        assert Silence().is_broken([asked(1, 7), asked(5, 3)], heard_at=4, now=8)

    def test_short_times_add_up(self) -> None:
        silence = Silence()
        assert not silence.is_broken([asked(5, 0.4)], heard_at=4, now=5.4)
        assert not silence.is_broken([asked(5.4, 0.4)], heard_at=4, now=5.8)
        assert silence.is_broken([asked(5.8, 0.4)], heard_at=4, now=6.2)

    def test_a_word_in_between_begins_it_again(self) -> None:
        silence = Silence()
        assert not silence.is_broken([asked(5, 0.4)], heard_at=4, now=5.4)
        assert not silence.is_broken([asked(5.8, 0.4)], heard_at=5.5, now=6.2)
        assert silence.since == 5.8


def answer_all_but_later(asked: Command, connection: Connection) -> None:
    if asked.body != b"later":
        connection.reply(asked.reply(body=asked.body))


def test_a_silent_connection_is_cut_and_the_next_call_dials_again(
    in_memory: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[RmqError] = []

    async def failing(pool: Pool, seconds: float) -> None:
        try:
            await pool.call("10.0.0.1:1", request(b"x"), seconds)
        except RmqError as error:
            errors.append(error)

    async def scenario() -> None:
        network = MemoryNetwork(seed=1)
        network.latency = (0.001, 0.001)
        async with anyio.create_task_group() as tasks:
            await tasks.start(raw_served, network)
            async with Pool(network.host("10.0.0.2"), Echo()) as pool:
                await pool.call("10.0.0.1:1", request(b"x"), 3)
                network.black_hole("10.0.0.2")
                began = anyio.current_time()
                async with anyio.create_task_group() as calls:
                    calls.start_soon(failing, pool, 3)
                    calls.start_soon(failing, pool, 30)
                assert anyio.current_time() - began == pytest.approx(3, abs=0.01)
                assert (await pool.call("10.0.0.1:1", request(b"x"), 1)).body == b"x"
            tasks.cancel_scope.cancel()

    in_memory(scenario)
    assert {type(error) for error in errors} == {RequestTimeout, ConnectionLost}
    (lost,) = [error for error in errors if isinstance(error, ConnectionLost)]
    assert lost.was_sent, "the peer may have acted on it"
    assert "its peer has been silent for 3 s" in caplog.text


async def raw_served(
    network: MemoryNetwork, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """A server that runs on asyncio as well: `accept` needs trio."""
    listener = await network.host("10.0.0.1").listen("10.0.0.1:1")
    async with anyio.create_task_group() as tasks:
        task_status.started()
        while True:
            connection = Connection(await listener.accept(), Custom(answer_all_but_later))
            tasks.start_soon(connection.run)


@pytest.mark.parametrize("chatter", [0.5, 2.9])
def test_a_peer_that_answers_others_is_not_cut(in_memory: Callable[..., None], chatter: float) -> None:
    async def talk(pool: Pool) -> None:
        while True:
            await anyio.sleep(chatter)
            await pool.call("10.0.0.1:1", request(b"x"), 1)

    async def scenario() -> None:
        network = MemoryNetwork(seed=1)
        async with anyio.create_task_group() as tasks:
            await tasks.start(raw_served, network)
            async with Pool(network.host("10.0.0.2"), Echo()) as pool:
                connection = await pool.connection("10.0.0.1:1")
                tasks.start_soon(talk, pool)
                for _ in range(5):
                    with pytest.raises(RequestTimeout):
                        await pool.call("10.0.0.1:1", request(b"later"), 3)
                assert not connection.is_closed
                assert pool.ready("10.0.0.1:1") is connection
                tasks.cancel_scope.cancel()

    in_memory(scenario)


def test_a_peer_that_answers_nothing_is_backed_off_from(in_memory: Callable[..., None]) -> None:
    """The peer accepts connections, like a stopped process, and each of them lasts longer than a second."""

    async def scenario() -> None:
        network = MemoryNetwork(seed=1)
        async with anyio.create_task_group() as tasks:
            await tasks.start(raw_served, network)
            async with Pool(network.host("10.0.0.2"), Echo()) as pool:
                for _ in range(3):
                    with pytest.raises(RequestTimeout):
                        await pool.call("10.0.0.1:1", request(b"later"), 3)
                    await anyio.sleep(2)
                assert pool.state("10.0.0.1:1")[:2] == (False, 3)
            tasks.cancel_scope.cancel()

    in_memory(scenario)


def test_what_was_read_and_not_handled_yet_is_no_silence(in_memory: Callable[..., None]) -> None:
    """A peer whose requests wait for their turn here has said something that is not looked at yet."""

    async def scenario() -> None:
        network = MemoryNetwork(seed=1)
        ours, _ = network.pair()
        connection = Connection(ours, Echo())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            await anyio.sleep(1)
            connection._rest = [request()]
            with pytest.raises(RequestTimeout):
                await connection.call(request(), 3)
            assert not connection.is_closed
            connection._rest = []
            with pytest.raises(RequestTimeout):
                await connection.call(request(), 3)
            assert connection.is_closed
            assert connection.fell_silent

    in_memory(scenario)


# --- what the system watches ---


def options_of(stream: tcp.TcpStream) -> dict[str, int]:
    sock = stream._socket
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    found = {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names}
    return found | {"SO_KEEPALIVE": sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)}


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has all of them")
@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_both_ends_have_the_system_watch_the_peer(loop: str) -> None:
    async def test() -> None:
        limits = Limits(keepalive_seconds=15, unacknowledged_seconds=30)
        listener = await tcp.listen(split_address("127.0.0.1:0"))
        async with open_stream(TcpNetwork(), listener.address, limits=limits) as client:
            expected = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "SO_KEEPALIVE": 1}
            assert options_of(client) == {**expected, "TCP_USER_TIMEOUT": 30_000}  # type: ignore[arg-type]
            accepted = await listener.accept()
            limits = Limits(keepalive_seconds=60, unacknowledged_seconds=45)
            serving = Server(Echo(), limits)
            guest = Guest(Acceptor.of(limits), accepted.peer, (), anyio.current_time())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serving.serve, accepted, guest)
                await anyio.sleep(0)
                with anyio.fail_after(60):
                    while not options_of(accepted)["SO_KEEPALIVE"]:
                        await anyio.sleep(0.001)
                found = options_of(accepted)
                assert (found["TCP_KEEPIDLE"], found["TCP_USER_TIMEOUT"]) == (60, 45_000)
                tasks.cancel_scope.cancel()
        await listener.aclose()

    anyio.run(test, backend=loop)


def test_zero_leaves_it_to_the_system() -> None:
    assert tcp.keepalive_options(0, 0) == ()
    assert len(tcp.keepalive_options(15, 0)) == len(tcp.keepalive_options(15, 30)) - hasattr(
        socket, "TCP_USER_TIMEOUT"
    )
