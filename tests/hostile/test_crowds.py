"""A crowd is no attack: many honest clients at once, after a restart, and one short connection after another.

`nox -s hostile` runs them (RMQ_CROWD_CLIENTS, 2,000, back within RMQ_CROWD_SECONDS, 10; RMQ_CROWD_SHORT, 60 s
of RMQ_CROWD_RATE, 200, short connections a second), all from one address, as from behind a gateway.
"""

from __future__ import annotations

import os
import pathlib
import signal
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
import trio
from attrs import define

from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from tests.unit.broker.rig import send

from .campaign import Target, compat, secure
from .newcomers import heartbeat_of

CLIENTS = int(os.environ.get("RMQ_CROWD_CLIENTS", "2000"))
BACK_SECONDS = float(os.environ.get("RMQ_CROWD_SECONDS", "10"))
RATE = int(os.environ.get("RMQ_CROWD_RATE", "200"))
SHORT_SECONDS = float(os.environ.get("RMQ_CROWD_SHORT", "60"))
TARGETS = {"compat": compat, "secure": secure}
RETRY_SECONDS = 1.0
"""A client that gets no connection comes again after so long; RocketMQ's and ours wait no less."""
PATIENCE_SECONDS = 120.0
OF_A_GROUP = 20


@define
class Crowd:
    """Clients of a target, and the failures that they met."""

    target: Target
    failures: list[str]
    context: ssl.SSLContext | None = None

    async def connect(self) -> trio.abc.Stream:
        """A connection. Raises OSError, and trio.BrokenResourceError for a handshake that fails."""
        host, _, port = self.target.address.rpartition(":")
        stream: trio.abc.Stream = await trio.open_tcp_stream(host, int(port))
        if self.target.ca:
            self.context = self.context or ssl.create_default_context(cafile=self.target.ca)
            stream = trio.SSLStream(stream, self.context, server_hostname=host)
        return stream

    async def ask(self, stream: trio.abc.Stream, request: Command) -> Command:
        """The response to a request. Raises trio.BrokenResourceError."""
        if self.target.accounts:
            request = signed(request, Credentials("owner-app", self.target.accounts["owner-app"]))
        await stream.send_all(encode(request))
        decoder = Decoder()
        while data := await stream.receive_some():
            for answer in decoder.feed(data):
                if answer.opaque == request.opaque and answer.is_response:
                    return answer
        raise trio.BrokenResourceError

    async def works(self, number: int) -> trio.abc.Stream:
        """Connect, join a group and send; again until all of it was done. Return the connection."""
        # All members of a group are told who joins: a group of thousands is another matter. The account of
        # `secure` has one group.
        group = "" if self.target.accounts else f"readers-{number // OF_A_GROUP}"
        heartbeat = heartbeat_of(f"client-{number}", group)
        while True:
            stream = None
            try:
                stream = await self.connect()
                for request in (heartbeat, send("Orders", b"crowd", queue_id=1)):
                    answer = await self.ask(stream, request)
                    if answer.code != ResponseCode.SUCCESS:
                        raise ConnectionRefusedError(f"{answer.code} {answer.remark}")
                return stream
            except (OSError, trio.BrokenResourceError) as error:
                self.failures.append(f"{type(error).__name__} {error}")
                if stream is not None:
                    await trio.aclose_forcefully(stream)
                await trio.sleep(RETRY_SECONDS)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for the sockets of a crowd."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * CLIENTS + 1_000)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.campaign
@pytest.mark.parametrize("profile", TARGETS)
def test_all_clients_work_again_soon_after_a_restart(
    tmp_path: pathlib.Path, profile: str, many_files: None
) -> None:
    with TARGETS[profile](tmp_path) as target:
        target.end(signal.SIGTERM)
        target.descriptors = 4 * CLIENTS + 4_000  # an address may have half of what files leave
        target.start()
        trio.run(come_back, target, profile)


async def come_back(target: Target, profile: str) -> None:
    """A crowd works, the broker is restarted, and the crowd works again, in time."""
    crowd = Crowd(target, [])
    async with AsyncExitStack() as stack:
        streams: list[trio.abc.Stream] = []

        async def come(number: int) -> None:
            streams.append(await crowd.works(number))

        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                nursery.start_soon(come, number)
        for stream in streams:
            stack.push_async_callback(trio.aclose_forcefully, stream)
        await trio.to_thread.run_sync(target.end, signal.SIGTERM)
        streams.clear()
        crowd.failures.clear()
        await trio.to_thread.run_sync(target.start)
        began = time.monotonic()
        with trio.move_on_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                for number in range(CLIENTS):
                    nursery.start_soon(come, number)
        seconds = time.monotonic() - began
        for stream in streams:
            stack.push_async_callback(trio.aclose_forcefully, stream)
    load = os.getloadavg()[0]
    print(
        f"\n{profile}: {len(streams)} of {CLIENTS} clients worked {seconds:.1f} s after the restart, "
        f"{len(crowd.failures)} attempts failed, load {load:.1f}"
    )
    assert len(streams) == CLIENTS, Counter(crowd.failures).most_common(3)
    assert seconds <= BACK_SECONDS, Counter(crowd.failures).most_common(3)


@pytest.mark.campaign
@pytest.mark.parametrize("profile", TARGETS)
def test_short_connections_do_not_fail(tmp_path: pathlib.Path, profile: str) -> None:
    with TARGETS[profile](tmp_path) as target:
        trio.run(come_and_go, target, profile)


async def come_and_go(target: Target, profile: str) -> None:
    """Clients connect, send and hang up, so many a second."""
    crowd = Crowd(target, [])
    done, slowest = 0, 0.0

    async def one() -> None:
        nonlocal done, slowest
        began = time.monotonic()
        try:
            stream = await crowd.connect()
            answer = await crowd.ask(stream, send("Orders", b"short", queue_id=1))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            await trio.aclose_forcefully(stream)
        except (OSError, trio.BrokenResourceError, AssertionError) as error:
            crowd.failures.append(f"{type(error).__name__} {error}")
        done += 1
        slowest = max(slowest, time.monotonic() - began)

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(round(RATE * SHORT_SECONDS)):
            await trio.sleep_until(start + number / RATE)
            nursery.start_soon(one)
    seconds = trio.current_time() - start
    print(
        f"\n{profile}: {done} short connections in {seconds:.0f} s, {len(crowd.failures)} failed, the "
        f"slowest took {slowest * 1000:.0f} ms, load {os.getloadavg()[0]:.1f}"
    )
    assert crowd.failures == []
