from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.errors import ConnectFailed, ConnectionLost, RequestTimeout
from rmq.protocol.command import Command
from rmq.remoting import Connection, Limits, Pool
from rmq.testing import MemoryNetwork, MemoryStream
from tests.unit.remoting.serving.servers import served

from .peers import Custom, Echo, RawPeer, Silent, request

ADDRESS = "127.0.0.1:10911"


class CountedDials(MemoryNetwork):
    """Notes when each dial began; `broken` makes them fail."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.dials: list[float] = []
        self.broken = False

    async def dial(self, address: str) -> MemoryStream:
        self.dials.append(trio.current_time())
        if self.broken:
            raise OSError("the cable is out")
        return await super().dial(address)


@asynccontextmanager
async def pooled(
    network: MemoryNetwork, endpoint: Echo | None = None, **options: object
) -> AsyncIterator[Pool]:
    async with Pool(network, endpoint or Echo(), chance=random.Random(1), **options) as pool:  # type: ignore[arg-type]
        yield pool


@pytest.fixture
def network() -> CountedDials:
    return CountedDials()


async def test_one_connection_for_an_address_dialled_once(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    network.latency = (0.1, 0.1)
    async with served(network, echo := Echo(), [ADDRESS]), pooled(network) as pool:
        async with trio.open_nursery() as calls:
            for n in range(10):
                calls.start_soon(pool.call, ADDRESS, request(bytes([n])), 3)
        assert sorted(echo.bodies) == [bytes([n]) for n in range(10)]
        assert len(network.dials) == 1
        assert await pool.connection(ADDRESS) is await pool.connection(ADDRESS)
        await pool.notify(ADDRESS, request(b"notice", oneway=True))
        await trio.sleep(1)
        assert echo.bodies[-1] == b"notice"


async def test_a_lost_connection_is_dialled_again_by_the_next_call(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    async with served(network, addresses=[ADDRESS]), pooled(network) as pool:
        await pool.call(ADDRESS, request(), 3)
        network.cut()
        await wait_all_tasks_blocked()
        assert len(network.dials) == 1  # not before somebody needs it
        await pool.call(ADDRESS, request(), 3)
        assert len(network.dials) == 2


async def test_calls_in_flight_get_connection_lost(autojump_clock: MockClock, network: CountedDials) -> None:
    async with served(network, Silent(), [ADDRESS]), pooled(network) as pool:

        async def call() -> None:
            with pytest.raises(ConnectionLost) as error:
                await pool.call(ADDRESS, request(), 60)
            assert error.value.address == ADDRESS

        async with trio.open_nursery() as calls:
            for _ in range(3):
                calls.start_soon(call)
            await trio.sleep(1)
            network.cut()


async def test_a_refused_dial_fails_and_then_backs_off(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    async with pooled(network) as pool:
        seen = []
        while trio.current_time() < 20:
            began = trio.current_time()
            with pytest.raises(ConnectFailed, match=r"127.0.0.1:10911: connecting: .*refused"):
                await pool.call(ADDRESS, request(), 3)
            seen.append(trio.current_time() - began)
            await trio.sleep(0.01)
        assert max(seen) == 0  # nobody waits for a back-off
        pauses = [later - earlier for earlier, later in zip(network.dials, network.dials[1:], strict=False)]
        for index, pause in enumerate(pauses):
            longest = min(1.0, 0.1 * 2**index)
            assert longest / 2 <= pause <= longest + 0.02
        assert len(pauses) >= 8
        # Up again: the first call after the pause is answered, and the next failure starts small.
        async with served(network, addresses=[ADDRESS]):
            await trio.sleep(5)
            await pool.call(ADDRESS, request(), 3)
        await trio.sleep(1)
        with pytest.raises(ConnectFailed):
            await pool.call(ADDRESS, request(), 3)
        await trio.sleep(0.11)
        dials = len(network.dials)
        with pytest.raises(ConnectFailed):
            await pool.call(ADDRESS, request(), 3)
        assert len(network.dials) == dials + 1


async def test_a_port_that_hangs_up_at_once_is_backed_off_from_too(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    listener = await network.listen(ADDRESS)

    async def hang_up() -> None:
        while True:
            await (await listener.accept()).aclose()

    async with pooled(network) as pool, trio.open_nursery() as nursery:
        nursery.start_soon(hang_up)
        while trio.current_time() < 10:
            with pytest.raises((ConnectFailed, ConnectionLost)):
                await pool.call(ADDRESS, request(), 3)
            await trio.sleep(0.01)
        assert len(network.dials) <= 24  # 1,000 without pauses
        nursery.cancel_scope.cancel()


async def test_a_dial_in_a_partition_times_out(autojump_clock: MockClock, network: CountedDials) -> None:
    server, client = network.host("10.0.0.1"), network.host("10.0.0.2")
    async with served(server, addresses=["10.0.0.1:1"]):  # type: ignore[arg-type]
        network.partition("10.0.0.1", "10.0.0.2")
        async with Pool(client, Echo(), limits=Limits(connect_seconds=3)) as pool:
            began = trio.current_time()
            with pytest.raises(ConnectFailed, match="connecting: no answer within 3 s"):
                await pool.call("10.0.0.1:1", request(), 10)
            assert trio.current_time() - began == pytest.approx(3)
            await trio.sleep(1)
            with pytest.raises(ConnectFailed, match=r"no connection within 0\.5 s"):
                await pool.call("10.0.0.1:1", request(), 0.5)
            network.heal()
            await trio.sleep(5)
            assert (await pool.call("10.0.0.1:1", request(b"x"), 1)).body == b"x"


async def test_the_timeout_covers_dial_and_call(autojump_clock: MockClock, network: CountedDials) -> None:
    network.latency = (1, 1)
    async with served(network, Silent(), [ADDRESS]), pooled(network) as pool:
        began = trio.current_time()
        with pytest.raises(RequestTimeout):
            await pool.call(ADDRESS, request(), 5)
        assert trio.current_time() - began == pytest.approx(5)


async def test_a_cancelled_caller_does_not_stop_the_dial(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    network.latency = (1, 1)
    async with served(network, addresses=[ADDRESS]), pooled(network) as pool:
        with trio.move_on_after(0.5):
            await pool.call(ADDRESS, request(), 10)
        await pool.call(ADDRESS, request(), 10)
        assert len(network.dials) == 1


async def test_idle_connections_are_closed(autojump_clock: MockClock, network: CountedDials) -> None:
    patient, usual = Limits(idle_seconds=1e9), Limits(idle_seconds=120)
    async with served(network, addresses=[ADDRESS], limits=patient), pooled(network, limits=usual) as pool:
        await pool.call(ADDRESS, request(), 3)
        connection = await pool.connection(ADDRESS)
        await trio.sleep(119)
        assert not connection.is_closed
        await trio.sleep(12)
        assert connection.reason == "idle for 120 s"
        await pool.call(ADDRESS, request(), 3)


async def test_close_drops_one_connection(autojump_clock: MockClock, network: CountedDials) -> None:
    async with served(network, addresses=[ADDRESS]), pooled(network) as pool:
        connection = await pool.connection(ADDRESS)
        pool.close(ADDRESS)
        pool.close("127.0.0.1:2")  # not known: nothing to do
        assert connection.is_closed
        await pool.call(ADDRESS, request(), 3)
        assert len(network.dials) == 2


async def test_requests_from_the_other_side_reach_the_endpoint(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    def ask_back(asked: Command, connection: Connection) -> None:
        connection.notify(request(b"notice", oneway=True))
        connection.reply(asked.reply())

    async with served(network, Custom(ask_back), [ADDRESS]), pooled(network, ours := Echo()) as pool:
        await pool.call(ADDRESS, request(), 3)
        await trio.sleep(1)
        assert ours.bodies == [b"notice"]


async def test_a_bug_in_the_endpoint_ends_one_connection(
    autojump_clock: MockClock, network: CountedDials, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(asked: Command, connection: Connection) -> None:
        raise KeyError("a bug")

    listener = await network.listen(ADDRESS)
    async with trio.open_nursery() as nursery:
        is_there = trio.Event()

        async def ask() -> None:
            peer = RawPeer(await listener.accept())
            await is_there.wait()
            await peer.send(request())

        async with pooled(network, Custom(fail)) as pool:
            nursery.start_soon(ask)
            first = await pool.connection(ADDRESS)
            is_there.set()
            await trio.sleep(1)
            assert first.is_closed
            assert "a bug" in caplog.text
            assert not (await pool.connection(ADDRESS)).is_closed


async def test_an_error_of_the_block_comes_out_bare(autojump_clock: MockClock, network: CountedDials) -> None:
    async def fail() -> None:
        async with served(network, echo, [ADDRESS]), pooled(network) as pool:
            await pool.connection(ADDRESS)
            raise ValueError("the user's own")

    echo = Echo()
    with pytest.raises(ExceptionGroup) as group:  # the server's nursery is the test's own
        await fail()
    assert [type(error) for error in group.value.exceptions] == [ValueError]


async def test_a_pool_in_a_nursery_of_ones_own(autojump_clock: MockClock, network: CountedDials) -> None:
    pool = Pool(network, Echo())
    with pytest.raises(ConnectFailed, match="not running"):
        await pool.call(ADDRESS, request(), 1)
    async with served(network, addresses=[ADDRESS]), trio.open_nursery() as nursery:
        await nursery.start(pool.run)
        await pool.call(ADDRESS, request(), 1)
        nursery.cancel_scope.cancel()
    with pytest.raises(ConnectFailed, match="not running"):
        await pool.call(ADDRESS, request(), 1)


async def test_failures_are_logged_with_their_number(
    autojump_clock: MockClock, network: CountedDials, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    network.broken = True
    async with pooled(network) as pool:
        with pytest.raises(ConnectFailed, match="connecting: the cable is out"):
            await pool.call(ADDRESS, request(), 3)
    assert "1 failure(s) in a row: connecting: the cable is out" in caplog.text


async def test_what_is_no_address_harms_only_its_caller(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    async with served(network, addresses=[ADDRESS]), pooled(network) as pool:
        with pytest.raises(ConnectFailed, match="expected host:port"):
            await pool.call("broker-a", request(), 3)
        await pool.call(ADDRESS, request(), 3)


async def test_pauses_come_from_the_seed(autojump_clock: MockClock, network: CountedDials) -> None:
    async def times(seed: int) -> list[float]:
        network.dials.clear()
        began = trio.current_time()
        async with Pool(network, Echo(), chance=random.Random(seed)) as pool:
            while trio.current_time() < began + 5:
                with pytest.raises(ConnectFailed):
                    await pool.call(ADDRESS, request(), 1)
                await trio.sleep(0.001)
        return [round(dialled - began, 3) for dialled in network.dials]

    assert await times(1) == await times(1) != await times(2)


async def test_an_error_says_whether_the_peer_ended_a_connection(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    """A server of TLS ends the plain connections of clients in this way."""
    listener = await network.listen(ADDRESS)
    async with trio.open_nursery() as nursery, pooled(network) as pool:

        async def hang_up() -> None:
            while True:
                await (await listener.accept()).aclose()

        nursery.start_soon(hang_up)
        with pytest.raises((ConnectionLost, ConnectFailed)):
            await pool.call(ADDRESS, request(), 3)
        await wait_all_tasks_blocked()
        with pytest.raises(ConnectFailed) as caught:  # not dialled again so soon
            await pool.call(ADDRESS, request(), 3)
        assert caught.value.was_open
        with pytest.raises(ConnectFailed) as caught:
            await pool.call("127.0.0.1:2", request(), 3)
        assert not caught.value.was_open
        nursery.cancel_scope.cancel()


async def test_addresses_that_nobody_uses_any_more_are_forgotten(
    autojump_clock: MockClock, network: CountedDials
) -> None:
    """Brokers come and go beside a process that runs for a year."""
    async with served(network, addresses=[ADDRESS]), pooled(network) as pool:
        await pool.call(ADDRESS, request(), 3)
        for number in range(100):
            with pytest.raises(ConnectFailed):
                await pool.call(f"10.0.0.1:{1000 + number}", request(), 3)
        assert pool.state("10.0.0.1:1099")[1] == 1, "its failure is told for a while"
        for _ in range(20):
            await trio.sleep(60)
            await pool.call(ADDRESS, request(), 3)
        assert list(pool._links) == [ADDRESS]
