"""Who is let in, and that nothing a peer or the system does ends the letting in."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmq.metrics import connection_metrics
from rmq.remoting import Acceptor, Stream
from rmq.remoting import server as module
from rmq.remoting.limits import AddressRate, Budget, network_of
from rmq.testing import MemoryNetwork

from .peers import RawPeer

SERVER = "10.0.0.9:1"


class Listening:
    """A listener whose peers have the numbers of descriptors that a test wants, or that fails."""

    def __init__(self, listener: Any, *results: int | OSError) -> None:
        self._listener = listener
        self._results = list(results)
        self.address = listener.address

    async def accept(self) -> Any:
        result = self._results.pop(0) if self._results else -1
        if isinstance(result, OSError):
            await trio.lowlevel.checkpoint()
            raise result
        stream = await self._listener.accept()
        stream.descriptor = result
        return stream

    async def aclose(self) -> None:
        await self._listener.aclose()


async def serve(stream: Stream) -> None:
    """Until the peer hangs up; a peer that says "bug" meets one."""
    while data := await stream.receive_some():
        assert data != b"bug"


@asynccontextmanager
async def accepting(
    network: MemoryNetwork, acceptor: Acceptor, *results: int | OSError
) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            acceptor.run, Listening(await network.host("10.0.0.9").listen(SERVER), *results), serve, nursery
        )
        yield
        nursery.cancel_scope.cancel()


async def is_served(stream: Stream) -> bool:
    with trio.move_on_after(1):
        return not await RawPeer(stream).ended()
    return True


async def test_one_address_takes_no_more_than_its_part(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network, acceptor = MemoryNetwork(), Acceptor(4)
    async with accepting(network, acceptor):
        streams = [await network.host("10.0.0.1").dial(SERVER) for _ in range(3)]
        assert [await is_served(stream) for stream in streams] == [True, True, False]
        assert "2 connections of its address are open" in caplog.text
        others = [await network.host(host).dial(SERVER) for host in ("10.0.0.2", "10.0.0.3", "10.0.0.4")]
        assert [await is_served(stream) for stream in others] == [True, True, False]
        assert "4 connections are open" in caplog.text
        assert dict(acceptor.refused) == {"address": 1, "connections": 1}
        await streams[0].aclose()
        await trio.sleep(1)
        assert acceptor.open == 3
        assert await is_served(await network.host("10.0.0.1").dial(SERVER))


async def test_descriptors_are_kept_back_for_files(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_soft_limit", lambda: 1000)
    network, acceptor = MemoryNetwork(), Acceptor(20_000)
    assert (acceptor.most, Acceptor(20_000, share=0.125).most) == (552, 69)
    async with accepting(network, acceptor, 551, 552, 40):
        streams = [await network.dial(SERVER) for _ in range(3)]
        assert [await is_served(stream) for stream in streams] == [True, False, True]
    assert dict(acceptor.refused) == {"descriptors": 1}
    assert "552 descriptors are in use, the others are for files" in caplog.text


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EPROTO, errno.EPERM])
async def test_errors_of_accepting_are_waited_out(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    network = MemoryNetwork()
    errors = [OSError(code, os.strerror(code)) for _ in range(20)]
    async with accepting(network, Acceptor(5), *errors):
        assert await is_served(await network.dial(SERVER))
    assert len(caplog.records) == 1  # in 10 s
    assert os.strerror(code) in caplog.text


async def test_a_bug_ends_one_peer(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    network, acceptor = MemoryNetwork(), Acceptor(5)
    async with accepting(network, acceptor):
        good, bad = await network.dial(SERVER), await network.dial(SERVER)
        await bad.send_all(b"bug")
        assert not await is_served(bad)
        assert await is_served(good)
        assert acceptor.open == 1
    assert "Traceback" in caplog.text


async def test_an_address_that_connects_again_and_again_is_refused_and_others_are_not(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network, acceptor = MemoryNetwork(), Acceptor(50, per_second=2)
    async with accepting(network, acceptor):

        async def served(host: str) -> bool:
            stream = await network.host(host).dial(SERVER)
            taken = await is_served(stream)  # a second, if it is
            await stream.aclose()
            return taken

        results = [await network.host("10.0.0.1").dial(SERVER) for _ in range(12)]
        assert [await is_served(one) for one in results[7:]] == [True, False, False, False, False]
        assert "its address connects more than 2 times a second" in caplog.text
        assert acceptor.refused == {"rate": 4}
        assert await served("10.0.0.2")
        await trio.sleep(10)
        assert [await served("10.0.0.1") for _ in range(3)] == [True, True, True]


def test_a_bucket_fills_again_at_its_rate_and_only_so_far() -> None:
    rate = AddressRate(50, 4)
    assert sum(rate.take("a", 1.0) for _ in range(1000)) == 200
    assert sum(rate.take("a", 1.0 + tick / 1000) for tick in range(1, 1001)) == 50
    assert sum(rate.take("a", 1e6) for _ in range(1000)) == 200
    assert all(AddressRate(0, 4).take("a", 1.0) for _ in range(1000))


def test_what_is_known_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.remoting.limits.ADDRESSES_MAX", 100)
    rate = AddressRate(1, 4)
    for number in range(1000):
        assert rate.take(f"10.0.0.{number}", 0.0)
    assert len(rate._full_at) == 100
    for number in range(1000, 1051):
        rate.take(f"10.0.0.{number}", 100.0)  # the others' buckets are full by then
    assert len(rate._full_at) == 51


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert network_of("[2001:db8::1]:99") == network_of("[2001:db8::ffff:1]:98") == "2001:db8::/64"
    assert network_of("[2001:db8:0:1::1]:99") != network_of("[2001:db8::1]:99")
    assert network_of("10.0.0.1:99") == "10.0.0.1"
    assert network_of("?") == ""


@pytest.mark.parametrize(
    ("soft", "connections"),
    [(1024, 576), (200, 100), (1, 1), (1 << 20, (1 << 20) - 448), (float("inf"), float("inf"))],
)
def test_how_many_descriptors_connections_may_take(
    monkeypatch: pytest.MonkeyPatch, soft: float, connections: float
) -> None:
    monkeypatch.setattr(module, "_soft_limit", lambda: soft)
    assert module.descriptors_for_connections() == connections
    assert Acceptor(20_000).most == min(20_000, connections)


def test_the_refused_are_a_figure() -> None:
    acceptor = Acceptor(5)
    acceptor.refused["address"] += 3
    budget = Budget(1000)
    budget.held, budget.cuts = 70, 2
    refused, held, cuts = connection_metrics({"clients": acceptor, "slaves": Acceptor(1)}, budget)
    assert refused.rows == [(("clients", "address"), 3)]
    assert (held.rows, cuts.rows) == ([((), 70)], [((), 2)])
