from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.errors import PortInUse
from rmq.testing import Link, MemoryNetwork, MemoryStream


async def connected(network: MemoryNetwork, client: str, server: str) -> tuple[MemoryStream, MemoryStream]:
    listener = await network.host(server).listen(f"{server}:1")
    stream = await network.host(client).dial(f"{server}:1")
    return stream, await listener.accept()


async def until_broken(stream: MemoryStream) -> bytes:
    received = b""
    try:
        while data := await stream.receive_some():
            received += data
    except trio.BrokenResourceError:
        return received
    raise AssertionError("it ends in order")


async def test_hosts_and_their_addresses(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    broker, client = network.host("broker-a"), network.host("10.0.0.2")
    listener = await broker.listen("0.0.0.0:10911")
    assert listener.address == "broker-a:10911"
    with pytest.raises(PortInUse, match="broker-a:10911"):
        await broker.listen("127.0.0.1:10911")
    stream = await client.dial("broker-a:10911")
    server = await listener.accept()
    assert (stream.peer, server.local) == ("broker-a:10911", "broker-a:10911")
    assert stream.local == server.peer
    assert server.peer.startswith("10.0.0.2:")
    with pytest.raises(ConnectionRefusedError):
        await client.dial("127.0.0.1:10911")  # loopback is the client itself
    await listener.aclose()
    with pytest.raises(ConnectionRefusedError):
        await client.dial("broker-a:10911")
    await broker.listen("broker-a:10911")


async def test_a_listener_that_closes_breaks_who_was_not_accepted(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    listener = await network.listen("127.0.0.1:1")
    stream = await network.dial("127.0.0.1:1")
    await listener.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()


async def test_latency_delays_and_keeps_the_order(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=3)
    client, server = await connected(network, "a", "b")
    network.latency = (1, 5)
    began = trio.current_time()
    for n in range(20):
        await client.send_all(bytes([n]))
    await client.aclose()
    received, times = b"", []
    while data := await server.receive_some():
        received += data
        times.append(trio.current_time() - began)
    assert received == bytes(range(20))
    assert times == sorted(times)
    assert times[0] >= 1
    assert times[-1] <= 5.0001


async def test_chopped_reads(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=3, chop=True)
    client, server = network.pair()
    await client.send_all(b"x" * 1000)
    sizes = []
    while sum(sizes) < 1000:
        sizes.append(len(await server.receive_some()))
    assert len(sizes) > 3


async def test_a_partition_holds_bytes_until_it_is_healed(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    client, server = await connected(network, "a", "b")
    network.partition("a", "b")
    await client.send_all(b"hello")
    with trio.move_on_after(1000) as scope:
        await server.receive_some()
    assert scope.cancelled_caught
    with trio.move_on_after(1000) as scope:
        await network.host("a").dial("b:1")
    assert scope.cancelled_caught
    other, _ = await connected(network, "c", "d")  # others are not concerned
    await other.send_all(b"x")
    network.heal()
    assert await server.receive_some() == b"hello"
    await network.host("a").dial("b:1")


async def test_a_partition_wakes_and_stops_who_waits(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    client, server = await connected(network, "a", "b")
    network.latency = (10, 10)
    received = []

    async def receive() -> None:
        received.append((await server.receive_some(), trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await client.send_all(b"x")
        await trio.sleep(5)
        network.partition("b")  # from everybody
        await trio.sleep(50)
        assert not received
        network.heal()
        began = trio.current_time()
        await wait_all_tasks_blocked()
        assert received == [(b"x", pytest.approx(began))]


async def test_a_cut_breaks_both_ends(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    client, server = await connected(network, "a", "b")
    far, near = await connected(network, "c", "d")
    await client.send_all(b"lost")
    network.cut("a", "b")
    for stream in (client, server):
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(b"x")
    await far.send_all(b"kept")
    assert await near.receive_some() == b"kept"
    network.cut("c")
    with pytest.raises(trio.BrokenResourceError):
        await near.receive_some()


async def test_a_full_window_stops_the_sender(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=10)
    client, server = network.pair()
    assert client.send_now([b"12345", b"6789012345"]) == 10
    assert client.send_now([b"x"]) == 0
    assert await server.receive_some(4) == b"1234"
    assert client.send_now([b"123456"]) == 4


async def run_once(seed: int) -> list[tuple[float, bytes]]:
    network = MemoryNetwork(seed, chop=True)
    client, server = network.pair()
    network.latency = (0.001, 0.1)
    began = trio.current_time()
    for n in range(10):
        await client.send_all(bytes([n]) * 50)
    await client.aclose()
    trace = []
    while data := await server.receive_some():
        trace.append((round(trio.current_time() - began, 9), data))
    return trace


def test_one_seed_is_one_run() -> None:
    def run(seed: int) -> list[tuple[float, bytes]]:
        return trio.run(run_once, seed, clock=MockClock(autojump_threshold=0))

    assert run(7) == run(7) != run(8)


async def test_what_one_host_sends_stands_still_and_what_it_gets_does_not(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(window=10)
    client, server = await connected(network, "a", "b")
    network.silence("a", "b")
    await client.send_all(b"hello")
    with trio.move_on_after(1000) as scope:
        await server.receive_some()
    assert scope.cancelled_caught
    await server.send_all(b"0123456789")
    assert await client.receive_some() == b"0123456789"
    with trio.move_on_after(1000) as scope:
        await server.send_all(b"x")  # nobody has told the server that there is room again
    assert scope.cancelled_caught
    for one, other in (("a", "b"), ("b", "a")):  # a dial needs both directions
        await network.host(other).listen(f"{other}:2")
        with trio.move_on_after(1000) as scope:
            await network.host(one).dial(f"{other}:2")
        assert scope.cancelled_caught
    network.heal()
    assert await server.receive_some() == b"hello"
    await server.send_all(b"x")
    assert await client.receive_some() == b"x"


async def test_nobody_hears_of_a_closed_stream_through_silence(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    client, server = await connected(network, "a", "b")
    network.silence("b", "a")
    await server.aclose()
    await client.send_all(b"x")
    with trio.move_on_after(1000) as scope:
        await client.receive_some()
    assert scope.cancelled_caught
    network.heal()
    assert await client.receive_some() == b""
    with pytest.raises(trio.BrokenResourceError):
        await client.send_all(b"x")


async def test_a_link_has_a_latency_of_its_own(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    client, server = await connected(network, "a", "b")
    network.links["a", "b"] = Link(latency=(2, 2))
    began = trio.current_time()
    await client.send_all(b"x")
    await server.receive_some()
    assert trio.current_time() - began == pytest.approx(2)
    await server.send_all(b"x")
    await client.receive_some()
    assert trio.current_time() - began == pytest.approx(2)  # the other direction takes no time


async def test_a_link_stands_still_for_a_while_and_loses_nothing(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=5)
    client, server = await connected(network, "a", "b")
    network.links["a", "b"] = Link(stalls=0.5, stall_seconds=(1, 1))
    sent, received = bytes(range(200)), b""
    began = trio.current_time()
    for n in range(0, 200, 10):
        await client.send_all(sent[n : n + 10])
    times = []
    while len(received) < 200:
        received += await server.receive_some()
        times.append(round(trio.current_time() - began, 3))
    assert received == sent
    assert set(times) == {0, 1}
    await client.aclose()
    assert await server.receive_some() == b""


async def test_a_link_breaks_at_any_byte(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(seed=1)
    lengths = set()
    for number in range(20):
        client, server = network.pair(("a", number), ("b", 1))
        network.links["a", "b"] = Link(latency=(1, 1), breaks=1.0)
        await client.send_all(b"0123456789")
        for stream in (client.send_all(b"x"), client.receive_some(), server.send_all(b"x")):
            with pytest.raises(trio.BrokenResourceError):
                await stream
        await client.aclose()
        lengths.add(len(received := await until_broken(server)))
        assert b"0123456789".startswith(received)
    assert len(lengths) > 5
    assert 10 not in lengths


async def test_of_a_machine_that_vanishes_the_others_hear_when_they_send(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    before = network.host("b")
    client, server = await connected(network, "a", "b")
    await network.host("a").listen("a:1")
    await server.send_all(b"last")
    network.vanish("b")
    with pytest.raises(trio.BrokenResourceError):
        await server.send_all(b"x")
    await server.aclose()
    assert await client.receive_some() == b"last"
    with trio.move_on_after(1000) as scope:
        await client.receive_some()
    assert scope.cancelled_caught
    network.partition("a", "b")
    await client.send_all(b"x")  # nobody is there who would refuse it
    network.heal()
    with pytest.raises(trio.BrokenResourceError):
        await client.send_all(b"x")
    with pytest.raises(ConnectionRefusedError):
        await network.host("a").dial("b:1")
    with trio.move_on_after(1000) as scope:
        await before.dial("a:1")
    assert scope.cancelled_caught
    await network.host("b").dial("a:1")


@pytest.mark.parametrize("vanishes", [False, True])
async def test_a_listener_takes_the_peers_that_wait_with_it(
    autojump_clock: MockClock, *, vanishes: bool
) -> None:
    network = MemoryNetwork()
    listener = await network.host("b").listen("b:1")
    clients = [await network.host("a").dial("b:1") for _ in range(3)]
    assert network.open_at("b") == 3
    if vanishes:
        network.vanish("b")
    else:
        await listener.aclose()
    assert network.open_at("b") == 0
    for client in clients:
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(b"x")
        await client.aclose()
    assert network.open_at("a") == 0
