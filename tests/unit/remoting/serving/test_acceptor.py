"""Admission of peers: no peer and no error of the system ends the admission."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmq.metrics import connection_metrics
from rmq.remoting import Acceptor, Stream
from rmq.remoting.limits import AddressRate, MemoryBudget, network_of
from rmq.remoting.serving import acceptor as module
from rmq.remoting.serving.acceptor import Descriptors, Guest
from rmq.shares import Gateways
from rmq.testing import MemoryNetwork

from ..peers import RawPeer

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


async def serve(stream: Stream, guest: Guest) -> None:
    """Serve until the peer hangs up; a peer that says "bug" meets one, one that says "proof" proves
    itself."""
    while data := await stream.receive_some():
        assert data != b"bug"
        guest.speaks()
        if data == b"proof":
            guest.prove()


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


async def proved(network: MemoryNetwork, host: str) -> Stream:
    stream = await network.host(host).dial(SERVER)
    with suppress(trio.BrokenResourceError):  # it is refused
        await stream.send_all(b"proof")
    await trio.sleep(0.1)
    return stream


async def test_an_address_has_as_many_places_as_are_free(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of all for one address was none for a third, when two of them took theirs."""
    network, acceptor = MemoryNetwork(), Acceptor(12)
    async with accepting(network, acceptor):
        streams: dict[str, list[Stream]] = {}
        for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
            streams[host] = [await proved(network, host) for _ in range(8)]
        served = {host: sum([await is_served(one) for one in some]) for host, some in streams.items()}
        assert served == {"10.0.0.1": 6, "10.0.0.2": 3, "10.0.0.3": 2}
        assert await is_served(await proved(network, "10.0.0.4"))
        assert "6 of 12 are taken by 10.0.0.1, 6 are free" in caplog.text
        assert acceptor.refused["address"] == 13
        for one in streams["10.0.0.1"]:
            await one.aclose()
        await trio.sleep(1)
        assert acceptor.open == 6
        assert await is_served(await proved(network, "10.0.0.1"))


async def test_a_bound_that_is_set_for_an_address_holds(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network, acceptor = MemoryNetwork(), Acceptor(12, 10)
    async with accepting(network, acceptor):
        streams = [await proved(network, "10.0.0.1") for _ in range(11)]
        assert [await is_served(one) for one in streams] == [True] * 10 + [False]
        assert "10 connections of its address are open" in caplog.text


async def test_what_is_behind_a_trusted_gateway_has_no_bound_of_its_own(autojump_clock: MockClock) -> None:
    network, acceptor = MemoryNetwork(), Acceptor(12, 2, per_second=1, gateways=Gateways(["10.0.0.0/24"]))
    async with accepting(network, acceptor):
        streams = [await proved(network, "10.0.0.1") for _ in range(12)]
        assert all([await is_served(one) for one in streams])


async def test_silent_peers_make_room_for_newcomers(autojump_clock: MockClock) -> None:
    """In an earlier version silent peers kept all places until they were closed for their silence, from any
    number of addresses."""
    network, acceptor = MemoryNetwork(), Acceptor(8)
    async with accepting(network, acceptor):
        silent = [await network.host(f"10.0.0.{1 + number % 8}").dial(SERVER) for number in range(40)]
        newcomers = [await proved(network, f"10.0.1.{number}") for number in range(4)]
        assert all([await is_served(one) for one in newcomers])
        assert acceptor.open <= 8
        assert acceptor.refused["unproved"] >= 36
        assert not await is_served(silent[0])


async def test_those_that_have_proved_themselves_stay(autojump_clock: MockClock) -> None:
    network, acceptor = MemoryNetwork(), Acceptor(8)
    async with accepting(network, acceptor):
        good = [await proved(network, f"10.0.1.{number}") for number in range(8)]
        assert not await is_served(await network.host("10.0.0.1").dial(SERVER))
        assert all([await is_served(one) for one in good])
        assert dict(acceptor.refused) == {"connections": 1}


async def test_guests_of_known_addresses_are_cut_off_last(autojump_clock: MockClock) -> None:
    """A slave that comes again is not cut off for others before it could prove itself."""
    network, acceptor = MemoryNetwork(), Acceptor(5)
    async with accepting(network, acceptor):
        await (await proved(network, "10.0.0.1")).aclose()
        await trio.sleep(0.1)
        again = await network.host("10.0.0.1").dial(SERVER)
        for number in range(40):
            await network.host(f"10.0.0.{2 + number % 6}").dial(SERVER)
        assert await is_served(again)


async def test_a_newcomer_cuts_the_oldest_of_its_own_address_off(autojump_clock: MockClock) -> None:
    network, acceptor = MemoryNetwork(), Acceptor(4)
    async with accepting(network, acceptor):
        streams = [await network.host("10.0.0.1").dial(SERVER) for _ in range(3)]
        assert [await is_served(one) for one in streams] == [False, True, True]


async def test_descriptors_are_kept_back_for_files(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_soft_limit", lambda: 1000)
    network, acceptor = MemoryNetwork(), Acceptor(20_000)
    assert (acceptor.most, Acceptor(20_000, share=0.125).most) == (552, 69)
    async with accepting(network, acceptor, 775, 776, 40):
        streams = [await proved(network, "10.0.0.1") for _ in range(3)]
        assert [await is_served(stream) for stream in streams] == [True, False, True]
    assert dict(acceptor.refused) == {"descriptors": 1}
    assert "776 descriptors are in use, the rest are reserved for files and other ports" in caplog.text
    network, slaves = MemoryNetwork(), Acceptor(64, share=0.125)
    async with accepting(network, slaves, 776, 943, 944):
        streams = [await proved(network, "10.0.0.1") for _ in range(3)]
        assert [await is_served(stream) for stream in streams] == [True, True, False]


async def test_services_together_leave_files_and_probes_their_descriptors(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were opened behind the connections of clients and doors left none, as each kept its own."""
    monkeypatch.setattr(module, "_soft_limit", lambda: 1000)
    network, used = MemoryNetwork(), Descriptors()
    used.used = 460  # of the 552 for connections, 463 for large services
    clients = Acceptor(20_000, share=0.7, descriptors=used)
    async with accepting(network, clients, *range(500, 506)):
        streams = [await proved(network, "10.0.0.1") for _ in range(6)]
        assert [await is_served(stream) for stream in streams] == [True] * 4 + [False] * 2
        assert "all connections together have 464 descriptors" in caplog.text
        probes_network = MemoryNetwork()
        async with accepting(probes_network, Acceptor(16, share=0.03, descriptors=used), 506, 507):
            assert await is_served(await proved(probes_network, "10.0.0.1"))
            assert used.used == 465
        await streams[0].aclose()
        await trio.sleep(1)
        assert used.used == 463
    await trio.sleep(1)
    assert used.used == 460
    network, silent = MemoryNetwork(), Acceptor(20_000, share=0.25, descriptors=used)
    async with accepting(network, silent, *range(500, 510)):  # its own strangers make room
        for number in range(8):
            await network.host(f"10.0.1.{number}").dial(SERVER)
        assert await is_served(await proved(network, "10.0.2.1"))
        assert silent.refused["descriptors"] == 0
        assert silent.refused["unproved"] == 5


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


async def test_handshakes_that_fail_have_a_rate_and_connections_that_end_well_have_none(
    autojump_clock: MockClock,
) -> None:
    """50 a second held up the clients behind one gateway after each restart, for what they did well."""
    network, acceptor = MemoryNetwork(), Acceptor(2000, per_second=2)
    async with accepting(network, acceptor):
        began = trio.current_time()
        crowd = [await network.host("10.0.0.1").dial(SERVER) for _ in range(200)]
        for one in crowd:
            await one.send_all(b"proof")
        assert all([await is_served(one) for one in crowd[-2:]])
        assert trio.current_time() - began < 10
        assert not acceptor.refused
        for _ in range(200):  # short ones
            await (await proved(network, "10.0.0.1")).aclose()
        assert not acceptor.refused


async def test_connections_over_the_rate_of_failed_handshakes_wait_and_are_refused_at_last(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network, acceptor = MemoryNetwork(), Acceptor(2000, per_second=1)
    async with accepting(network, acceptor):
        for _ in range(4):
            bad = await network.host("10.0.0.1").dial(SERVER)
            await bad.send_all(b"nonsense")
            await trio.sleep(0.01)
            await bad.aclose()
        await trio.sleep(0.01)
        waiting = [await network.host("10.0.0.1").dial(SERVER) for _ in range(20)]
        await trio.sleep(0.1)
        assert (acceptor.waiting, acceptor.delayed) == (20, 20)
        assert await is_served(await proved(network, "10.0.0.2"))  # others do not wait
        await trio.sleep(3)
        assert 15 <= acceptor.waiting <= 17
        await trio.sleep(10)
        assert acceptor.waiting == 0
        assert 5 <= acceptor.refused["rate"] <= 16
        assert "its address connects more than 1 times a second" in caplog.text
        for one in waiting:
            await one.aclose()
        await trio.sleep(1)
        assert acceptor.open == 1
        assert trio.lowlevel.current_statistics().tasks_living < 20


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
    budget = MemoryBudget(1000)
    budget.held, budget.cuts = 70, 2
    acceptor.delayed = 4
    acceptor.failed = 6
    ports = {"clients": acceptor, "slaves": Acceptor(1)}
    refused, delayed, failed, held, cuts = connection_metrics(ports, budget)
    assert failed.rows == [(("clients",), 6), (("slaves",), 0)]
    assert refused.rows == [(("clients", "address"), 3)]
    assert delayed.rows == [(("clients",), 4), (("slaves",), 0)]
    assert (held.rows, cuts.rows) == ([((), 70)], [((), 2)])
