"""The loops of replication: a master's links to its slaves, a slave's link to its master.

    ha (master)                       ha (slave)
    ├── accept                        ├── follow     one link: reader | reports; again after a pause
    └── slave, one nursery each       └── copy       topics, groups, offsets, delay progress
        └── reader | writer

The protocol is in `rmq.broker.ha`; here bytes are moved and errors are logged. The error of a link ends that
link. A slave that cannot write tries again; a slave whose log differs from its master's cuts it back to the
last record that both have, which it finds by asking for single records.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn, TypeVar

import trio
from attrs import field, frozen

from rmq.broker.broker import Broker
from rmq.broker.ha import MasterSession, SlaveSession
from rmq.broker.ha_auth import GREETING_BYTES, MAGIC, NONCE_BYTES, PROOF_BYTES, SECRET_KEY, Challenge
from rmq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RequestTimeout,
    ResponseError,
    RmqError,
    StoreError,
    for_code,
)
from rmq.protocol.bodies import KVTable
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ViewMessageRequestHeader
from rmq.remoting.acceptor import Acceptor
from rmq.remoting.address import with_scheme
from rmq.remoting.network import Network, open_stream
from rmq.remoting.pool import Pool
from rmq.remoting.sniff import unwrapped
from rmq.remoting.stream import Listener, PrefixedStream, Stream
from rmq.remoting.tasks import in_slices
from rmq.remoting.tls import TlsContexts
from rmq.store.store import Store

RECEIVE_BYTES = 256 * 1024
RETRY_SECONDS = 5.0
"""Pause of a slave before it tries its master again, as RocketMQ's."""
COPY_SECONDS = 10.0
"""How often a slave copies its master's tables, as RocketMQ's."""
REQUEST_SECONDS = 5.0
HANDSHAKE_SECONDS = 20.0
"""For TLS and proof together; a slave without TLS says nothing for its first 5 s."""
TRANSPORT = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
REMOTE = (ConnectFailed, ConnectionLost, RequestTimeout, RemoteProtocolError, ResponseError)

COPIED = {
    "topics": RequestCode.GET_ALL_TOPIC_CONFIG,
    "subscriptionGroup": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "consumerOffset": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delayOffset": RequestCode.GET_ALL_DELAY_OFFSET,
}
"""The tables that a slave copies, by the names of their files, and the requests that give them."""

log = logging.getLogger("rmq.ha")

T = TypeVar("T")


@frozen
class Guard:
    """What stands between the log and whoever connects: TLS, a secret, both or, as in RocketMQ, nothing."""

    tls: TlsContexts
    secret: bytes = field(default=b"", repr=False)

    @property
    def closed(self) -> bool:
        """Whether a peer must show something before it is a slave."""
        return bool(self.secret) or self.tls.mode != "disabled"

    async def admitted(self, raw: Stream) -> Stream:
        """A slave's stream, past TLS and proof. Raises RemoteProtocolError, and what streams raise."""
        stream, first = await unwrapped(raw, self.tls)
        stream = PrefixedStream(first, stream)
        if self.secret:
            challenge = Challenge(self.secret, os.urandom(NONCE_BYTES), master=True)
            magic = await _exactly(stream, len(MAGIC))
            challenge.greeted(magic + await _exactly(stream, NONCE_BYTES) if magic == MAGIC else magic)
            await stream.send_all(challenge.greeting)
            challenge.check(await _exactly(stream, PROOF_BYTES))
            await stream.send_all(challenge.proof())
        return stream

    async def introduce(self, stream: Stream) -> None:
        """Prove to a master that we are its slave; have it prove that it is the master. Raises as above."""
        challenge = Challenge(self.secret, os.urandom(NONCE_BYTES), master=False)
        await stream.send_all(challenge.greeting)
        challenge.greeted(await _exactly(stream, GREETING_BYTES))
        await stream.send_all(challenge.proof())
        challenge.check(await _exactly(stream, PROOF_BYTES))


async def _exactly(stream: Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        try:
            piece = await stream.receive_some(count - len(data))
        except TRANSPORT:
            piece = b""  # who refuses a proof does not take leave
        if not piece:
            raise RemoteProtocolError(f"it hung up in the middle of the handshake (is {SECRET_KEY} right?)")
        data += piece
    return data


async def _within(seconds: float, work: Callable[[Stream], Awaitable[T]], stream: Stream) -> T:
    with trio.move_on_after(seconds):
        return await work(stream)
    raise RemoteProtocolError(f"it did not finish the handshake within {seconds:g} s")


# ---- master ----


async def serve_slaves(broker: Broker, listener: Listener, guard: Guard, acceptor: Acceptor) -> NoReturn:
    """Accept slaves until cancelled; the listener is closed then."""
    try:
        async with trio.open_nursery() as nursery:
            await acceptor.run(listener, partial(_welcome, broker, guard), nursery)
    finally:
        with trio.CancelScope(shield=True):
            await listener.aclose()
    raise AssertionError("the loop above does not end")


async def _welcome(broker: Broker, guard: Guard, raw: Stream) -> None:
    """Serve a peer that may be served. Who may not is told nothing of the log."""
    try:
        stream = await _within(HANDSHAKE_SECONDS, guard.admitted, raw) if guard.closed else raw
    except (*TRANSPORT, RemoteProtocolError) as error:
        log.warning("no slave: %s is refused: %s", raw.peer, error)
        await trio.aclose_forcefully(raw)
    else:
        await _serve_slave(broker, stream)


async def _serve_slave(broker: Broker, stream: Stream) -> None:
    """One slave's link, until it breaks, falls silent or lies."""
    link = _SlaveLink(broker, stream)
    log.info("slave %s is connected", stream.peer)
    broker.replicas.join(link.session, stream.peer, link.wake)
    try:
        async with stream:
            await _both(link.read, link.write)
    except (*TRANSPORT, RemoteProtocolError, StoreError) as error:
        log.warning("slave %s is cut off: %s", stream.peer, error)
    finally:
        broker.replicas.leave(link.session)
        log.info("slave %s has gone, it had %d", stream.peer, link.session.acknowledged)


class _SlaveLink:
    """The two directions of the link to one slave."""

    def __init__(self, broker: Broker, stream: Stream) -> None:
        config = broker.store.config
        self._heartbeat_seconds = config.ha_send_heartbeat_interval / 1000
        self._silence_seconds = config.ha_housekeeping_interval / 1000
        self.session = MasterSession(
            broker.store,
            trio.current_time(),
            heartbeat_s=self._heartbeat_seconds,
            silence_s=self._silence_seconds,
        )
        self._replicas = broker.replicas
        self._stream = stream
        self._grown = trio.Event()

    def wake(self) -> None:
        """The log has grown."""
        self._grown.set()

    async def write(self) -> None:
        """Send the log as it grows, until cancelled."""
        while True:
            while frame := self.session.frame(trio.current_time()):
                await self._stream.send_all(frame)
            with trio.move_on_after(self._heartbeat_seconds):
                await self._grown.wait()
            self._grown = trio.Event()

    async def read(self, scope: trio.CancelScope) -> None:
        """Take what the slave reports; cancels `scope` when it hangs up."""
        opened = False
        while data := await _receive(self._stream, self._silence_seconds, "slave"):
            self.session.received(data, trio.current_time())
            self._replicas.acknowledged()
            if not opened and self.session.position >= 0:
                opened = True
                log.info("slave %s copies from %d", self._stream.peer, self.session.position)
                self.wake()
        scope.cancel()


async def _receive(stream: Stream, silence_seconds: float, who: str) -> bytes:
    """What comes next; empty at the end. Raises RemoteProtocolError when nothing comes for so long."""
    with trio.move_on_after(silence_seconds):
        return bytes(await stream.receive_some(RECEIVE_BYTES))
    raise RemoteProtocolError(f"the {who} is silent")


async def _both(
    read: Callable[[trio.CancelScope], Awaitable[None]], write: Callable[[], Awaitable[None]]
) -> None:
    """Run a link's two directions; the end of the reading ends both, an error comes out bare."""
    failure: Exception | None = None

    async def guarded(work: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
        nonlocal failure
        try:
            await work()
        except (*TRANSPORT, RmqError) as error:
            failure = failure or error
            scope.cancel()

    async with trio.open_nursery() as nursery:
        scope = nursery.cancel_scope
        nursery.start_soon(guarded, lambda: read(scope), scope)
        nursery.start_soon(guarded, write, scope)
    if failure is not None:
        raise failure


# ---- slave ----


class Follower:
    """A slave's two loops. Links go over `network`, requests over `pool`; `guard` is its master's too."""

    def __init__(self, broker: Broker, network: Network, pool: Pool, guard: Guard) -> None:
        self._broker = broker
        self._network = network
        self._pool = pool
        self._guard = guard

    async def follow(self) -> NoReturn:
        """Keep a link to the master, whenever there is one."""
        while True:
            address = self._ha_address()
            if address:
                try:
                    await self._link(address)
                except (*TRANSPORT, *REMOTE, StoreError, ConfigError) as error:
                    log.warning("the link to master %s has ended: %s", address, error)
            await trio.sleep(RETRY_SECONDS if address else 1.0)

    def _ha_address(self) -> str:
        configured = self._broker.store.config.ha_master_address
        return configured or self._broker.registration.master_ha_address

    async def _link(self, address: str) -> None:
        broker = self._broker
        broker.store.cut_partial()
        if broker.registration.master_address:
            await self._align(broker.registration.master_address)
        target = with_scheme(address, self._guard.tls.config.scheme)
        async with open_stream(self._network, target, tls=self._guard.tls) as stream:
            if self._guard.secret:
                await _within(HANDSHAKE_SECONDS, self._guard.introduce, stream)
            await self._copy_log(address, stream)

    async def _copy_log(self, address: str, stream: Stream) -> None:
        broker = self._broker
        config = broker.store.config
        session = SlaveSession(
            broker.append_raw,
            lambda: broker.store.max_physical_offset,
            trio.current_time(),
            heartbeat_s=config.ha_send_heartbeat_interval / 1000,
            silence_s=config.ha_housekeeping_interval / 1000,
        )
        silence = config.ha_housekeeping_interval / 1000
        grown = trio.Event()

        async def read(scope: trio.CancelScope) -> None:
            while data := await _receive(stream, silence, "master"):
                if session.received(data, trio.current_time()):
                    grown.set()
            scope.cancel()

        async def write() -> None:
            nonlocal grown
            while True:
                if report := session.report(trio.current_time()):
                    await stream.send_all(report)
                with trio.move_on_after(config.ha_send_heartbeat_interval / 1000):
                    await grown.wait()
                grown = trio.Event()

        log.info("following master %s from %d", address, broker.store.max_physical_offset)
        await _both(read, write)
        log.info("master %s has closed the link", address)

    async def _align(self, master: str) -> None:
        """Cut off what our log has and the master's has not."""
        store = self._broker.store
        reach = store.max_physical_offset
        if not reach:
            return
        figures = KVTable.from_json((await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        theirs = int(figures.table.get("commitLogMaxOffset", reach))

        async def same(physical_offset: int) -> bool:
            ours = store.read(physical_offset)
            header = ViewMessageRequestHeader(physical_offset)
            request = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, header)
            answer = await self._call(master, request)
            return answer.code == ResponseCode.SUCCESS and ours is not None and answer.body == bytes(ours)

        cut = await find_cut(store, theirs, same)
        if cut is not None:
            log.warning("our log reaches %d, the master's %d: ours is cut at %d", reach, theirs, cut)
            self._broker.truncate(cut)

    async def copy(self) -> NoReturn:
        """Copy the master's tables, again and again."""
        while True:
            master = self._broker.registration.master_address
            if master:
                for name, code in COPIED.items():
                    try:
                        body = (await self._ask(master, code)).body
                        await in_slices(self._broker.copying_table(name, body))
                    except (*REMOTE, StoreError) as error:
                        log.warning("%s of master %s is not copied: %s", name, master, error)
            await trio.sleep(COPY_SECONDS if master else 1.0)

    async def _ask(self, master: str, code: int) -> Command:
        answer = await self._call(master, Command.request(code))
        if answer.code != ResponseCode.SUCCESS:
            raise for_code(answer.code, answer.remark, master)
        return answer

    async def _call(self, master: str, request: Command) -> Command:
        return await self._pool.call(master, self._broker.registration.vouch(request), REQUEST_SECONDS)


async def find_cut(store: Store, theirs: int, same: Callable[[int], Awaitable[bool]]) -> int | None:
    """Where our log must end so that the master's, which reaches `theirs`, can follow; None when it can now.

    `same(physical_offset)` asks whether the master has the record that we have there. Logs that differ
    somewhere differ in all that follows, so the last common record is found by halving.
    """
    reach = store.max_physical_offset
    last = last_record(store, min(reach, theirs))
    if last is not None and await same(last[0]):
        return None if reach <= theirs else last[1]
    low, high = store.min_physical_offset, 0 if last is None else last[0]
    cut = low
    while low < high:
        middle = last_record(store, (low + high + 1) // 2)
        if middle is None or middle[0] < low:
            low = (low + high + 1) // 2
        elif await same(middle[0]):
            low, cut = max(middle[1], low + 1), middle[1]
        else:
            high = middle[0]
    return cut


def last_record(store: Store, limit: int) -> tuple[int, int] | None:
    """Start and end of the last record that a queue knows and that ends at or before `limit`."""
    found = None
    for topic, queue_id in store.queues():
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            unit = store.unit(topic, queue_id, middle)
            if unit is not None and unit[0] + unit[1] <= limit:
                low = middle + 1
                if found is None or unit[0] > found[0]:
                    found = unit[0], unit[0] + unit[1]
            else:
                high = middle
    return found
