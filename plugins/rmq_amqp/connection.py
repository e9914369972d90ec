"""One connection: its login, its sessions and links, and its two tasks: one reads bytes, the other continues
waiting work when the peer has taken the sent bytes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from rmq.errors import AccessDenied
from rmq_amqp import engine
from rmq_amqp.attach import attach
from rmq_amqp.conditions import (
    EXPECTED,
    FORCED,
    INTERNAL_ERROR,
    INVALID_FIELD,
    NOT_ALLOWED,
    REDIRECT,
    RESOURCE_LIMIT,
    Refused,
    of_error,
)
from rmq_amqp.engine import Engine
from rmq_amqp.sasl import ANONYMOUS, EXTERNAL, PLAIN, Login
from rmq_amqp.settlements import Settlements
from rmq_amqp.temporary import COUNT_MAX, Temporary
from rmq_amqp.transactions import Transactions

if TYPE_CHECKING:
    from rmq.plugin import DoorHost, DoorStream
    from rmq_amqp.links import Link
    from rmq_amqp.shared import Shared

log = logging.getLogger("rmq.amqp")

FRAME_BYTES: Final = 16_384
CHANNELS: Final = 255
LINKS_MAX: Final = 4_096
IDLE_SECONDS: Final = 120.0
"""Seconds without a frame, even an empty one, after which a peer counts as ended."""
OPEN_SECONDS: Final = 30.0
"""Seconds for the login and the opening of the connection."""
TICK_SECONDS: Final = (0.05, 10.0)
SESSION_BYTES: Final = 1_024 * FRAME_BYTES
"""The window of a session: the frames that a peer may send before it waits for an answer; a message is at
least one frame. Frames are taken from the engine at once, so the window is no buffer."""

READ_BYTES: Final = (1_024, 65_536)
TURN_SECONDS: Final = 0.02
"""Seconds of handling after which a peer is read from in smaller parts, so that others have their turn."""
WAITING_BYTES: Final = 4 << 20
"""Bytes of messages that wait for room in the store, past which the connection is not read from."""
UNSENT_BYTES: Final = 1 << 20
"""Bytes of a session that wait to be sent, past which its links get no more."""
UNSENT_MAX: Final = 8 << 20
"""Bytes of all sessions of a connection that wait to be sent, past which its links get no more."""
PARTIAL_BYTES: Final = 64 << 20
"""Bytes of incomplete messages past which the connection is ended."""

CAPABILITIES: Final = ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", "sole-connection-for-container")


class Connection:
    """One connection of a peer."""

    def __init__(
        self, stream: DoorStream, host: DoorHost, shared: Shared, number: int, clock: Callable[[], float]
    ) -> None:
        self.stream = stream
        self.host = host
        self.shared = shared
        self.number = number
        self._clock = clock
        mechanisms = [PLAIN] if host.has_accounts else [ANONYMOUS, PLAIN]
        if shared.has_external and stream.certificate_name:
            mechanisms.insert(0, EXTERNAL)
        self._login = Login(mechanisms, self._check)
        self._engine = Engine(
            container=shared.container,
            frame_bytes=FRAME_BYTES,
            channels=CHANNELS,
            idle_seconds=IDLE_SECONDS,
        )
        self.settlements = Settlements(host, self.wake)
        self.transactions = Transactions(self)
        self._links: dict[Any, Link] = {}
        self._joined: dict[str, int] = {}
        self._sessions: set[Any] = set()
        self._closing: set[Any] = set()  # links that this side has ended, and the peer has not
        self._paused: dict[Link, None] = {}
        self._temporaries: dict[str, Temporary] = {}
        self._waiting_bytes = self._partial_bytes = self._unsent = 0
        self._behind_since = math.inf
        self._parts: dict[Link, tuple[float, int]] = {}  # of messages: since when, and how many bytes
        self._room = anyio.Event()
        self._changed = anyio.Event()
        self._is_ended = self._is_feeding = False
        self._has_opened = False
        self._names = 0
        self.container = ""

    # ---- tasks ----

    async def serve(self) -> None:
        """Serve the peer until its connection ends."""
        failure: Exception | None = None
        self.host.defer(TICK_SECONDS[0], self._tick)
        self.host.defer(OPEN_SECONDS, self._open_or_end)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._go_on)
                try:
                    most = READ_BYTES[1]
                    while data := await self.stream.receive(most):
                        began = self._clock()
                        self.host.turn(partial(self.feed, data))
                        took = self._clock() - began
                        most = most // 2 if took > TURN_SECONDS else most * 2
                        most = min(max(most, READ_BYTES[0]), READ_BYTES[1])
                        if self._is_ended:
                            break
                        if self._waiting_bytes > WAITING_BYTES:
                            self._room = anyio.Event()
                            self._engine.expect_bytes(False)  # of a peer that is not read from
                            await self._room.wait()
                except Exception as error:
                    failure = error
                tasks.cancel_scope.cancel()
        finally:
            self.closed()
        if failure is not None:
            raise failure

    def _open_or_end(self) -> None:
        """End a connection that has not logged in and opened in time."""
        if not self._has_opened:
            self._end(f"its peer has not opened the connection within {OPEN_SECONDS:g} s")

    async def _go_on(self) -> None:
        """Continue waiting work when the peer has taken the sent bytes."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            await self.stream.drain()
            self.flush()
            paused, self._paused = self._paused, {}
            for link in paused:
                if not link.is_ended:
                    link.resume()

    def wake(self) -> None:
        """Send the bytes for the peer soon, together with those of all outcomes that come at the same
        time."""
        if not self._is_feeding:
            self.host.soon(self.flush)

    def pause(self, link: Link) -> None:
        """Resume a link after the peer has taken bytes: when some are sent again."""
        self._paused[link] = None

    def give_way(self, link: Link) -> None:
        """Resume a link after other connections have had their turn."""
        self._paused[link] = None
        self._changed.set()

    def is_behind(self, link: Link) -> bool:
        """True if so much waits to be sent that a link gets no more."""
        if self._unsent > UNSENT_MAX:
            self._count_unsent()
        return self._unsent > UNSENT_MAX or engine.unsent(link.pointer) > UNSENT_BYTES

    def count_sent(self, size: int) -> None:
        """Count bytes of a message that the engine has to send."""
        self._unsent += size

    def count(self, waiting: int) -> None:
        """Count bytes that wait for room in the store; fewer by a negative number."""
        self._waiting_bytes += waiting
        self._hold()
        if self._waiting_bytes <= WAITING_BYTES:
            self._room.set()

    def count_part(self, link: Link, size: int) -> None:
        """Count the bytes that a link holds of an incomplete message; 0: none."""
        since, before = self._parts.get(link, (self._clock(), 0))
        self._partial_bytes += size - before
        if size:
            self._parts[link] = since, size
        else:
            self._parts.pop(link, None)
        self._hold()
        if self._partial_bytes > PARTIAL_BYTES:
            text = f"the connection has {self._partial_bytes} bytes of incomplete messages"
            self.refuse(RESOURCE_LIMIT, f"{text}; at most {PARTIAL_BYTES} are allowed")

    def _hold(self) -> None:
        since = next((since for since, _ in self._parts.values()), math.inf)
        unsent = 0 if self._behind_since == math.inf else self._unsent
        self.stream.hold(self._waiting_bytes + self._partial_bytes + unsent, min(since, self._behind_since))

    def flush(self) -> None:
        """Send the bytes for the peer; while it takes none they stay in the engine."""
        if not self._login.is_done or self._is_ended or self.stream.is_closed:
            return
        if self.stream.is_busy:
            self._changed.set()
            return
        data = self._engine.output()
        if data:
            self.stream.send(data)
            if self._paused:
                self._changed.set()
        if self._unsent > UNSENT_BYTES:
            self._count_unsent()
        if self._engine.is_done:
            self._end(self._engine.error or "closed by the peer")

    def _count_unsent(self) -> None:
        """Count the bytes that wait for the windows of the peer's sessions; hold them in the broker's memory
        budget if they are many."""
        self._unsent = sum(map(engine.unsent_of, self._sessions))
        if self._unsent > UNSENT_BYTES:
            self._behind_since = min(self._behind_since, self._clock())
        elif self._behind_since == math.inf:
            return
        else:
            self._behind_since = math.inf
        self._hold()

    # ---- bytes ----

    def feed(self, data: bytes) -> None:
        """Take bytes of the peer."""
        if not self._login.is_done:
            answer = self._login.feed(data)
            if answer:
                self.stream.write(answer)
            if self._login.has_failed:
                self._end("the login has failed")
            if not self._login.is_done:
                return
            data = self._login.rest
        self._is_feeding = True
        try:
            self._engine.feed(data)
            self._process()
        finally:
            self._is_feeding = False
        self.flush()

    def _process(self) -> None:
        for kind, pointer in self._engine.events():
            try:
                self._handle(kind, pointer)
            except EXPECTED as error:
                self.refuse(*of_error(error))
            except Exception as error:
                log.error("a connection of %s failed", self.stream.peer_address, exc_info=error)
                self.refuse(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        self.settlements.flush()

    def _handle(self, kind: int, pointer: Any) -> None:
        if kind == engine.DELIVERY:
            proton_link = engine.link_behind(pointer)
            link = self._links.get(proton_link)
            if link is not None:
                link.on_delivery(pointer)
            else:
                engine.drop(proton_link, pointer)
        elif kind == engine.FLOW:
            link = self._links.get(pointer)
            if link is not None:
                link.on_flow()
        elif kind == engine.LINK_OPEN:
            self._attached(pointer)
        elif kind in (engine.LINK_CLOSE, engine.LINK_DETACH):
            self._detached(pointer, is_closed=kind == engine.LINK_CLOSE)
        elif kind == engine.SESSION_OPEN:
            self._sessions.add(pointer)
            session = engine.session_of(pointer)
            session.incoming_capacity = SESSION_BYTES
            session.open()
        elif kind == engine.SESSION_CLOSE:
            self._session_ended(pointer)
        elif kind == engine.OPEN:
            self._opened()
        elif kind == engine.CLOSE:
            self._closed_by_peer()

    # ---- the connection ----

    def _check(self, mechanism: str, user: str, secret: str) -> bool:
        if mechanism == ANONYMOUS:
            return not self.host.has_accounts
        try:
            if mechanism == EXTERNAL:
                name = self.host.authenticate_certificate()
                if user and user != name:
                    raise AccessDenied(remark=f"the certificate is that of {name}, not of {user}")
            else:
                self.host.authenticate(user, secret)
        except AccessDenied as error:
            log.info("a login of %s was refused: %s", self.stream.peer_address, error)
            return False
        return True

    def _opened(self) -> None:
        if self._has_opened:
            self.refuse(NOT_ALLOWED, "the connection was opened before")
            return
        connection = self._engine.connection
        self.container = connection.remote_container or ""
        capabilities = [engine.symbol(name) for name in CAPABILITIES]
        connection.offered_capabilities = capabilities
        properties = {"product": "rmq", "version": self.shared.version}
        connection.properties = {engine.symbol(name): value for name, value in properties.items()}
        self._has_opened = True
        leader = self.host.leader()
        if leader is not None:
            self._redirect(leader)
            return
        if not self.container:
            connection.open()
            self.refuse(INVALID_FIELD, "the container id is empty")
            return
        sole = "sole-connection-for-container" in engine.desired_capabilities(connection)
        if not self.shared.claim(self.container, self, is_sole=sole):
            failed = {engine.symbol("amqp:connection-establishment-failed"): True}
            connection.properties = failed
            connection.open()
            invalid = {engine.symbol("invalid-field"): engine.symbol("container-id")}
            text = f"another connection has the client id {self.container} already"
            self._engine.close(INVALID_FIELD, text, invalid)
            return
        connection.open()

    def _redirect(self, leader: str) -> None:
        """Refuse the connection at a slave; send the peer to the master, if its address is known."""
        connection = self._engine.connection
        connection.properties = {engine.symbol("amqp:connection-establishment-failed"): True}
        connection.open()
        host, _, port = leader.rpartition(":")
        if not host:
            self._engine.close(FORCED, "this broker is a slave, and no master of its set is known; try again")
            return
        info = {"network-host": host, "port": int(port)}
        where = {engine.symbol(name): value for name, value in info.items()}
        self._engine.close(REDIRECT, f"this broker is a slave; connect to its master, {leader}", where)

    def _closed_by_peer(self) -> None:
        for link in list(self._links.values()):
            self._drop(link, is_closed=False)
        self._engine.close()

    def refuse(self, condition: str, text: str) -> None:
        """End the connection by an error."""
        log.info("the connection of %s ends: %s: %s", self.stream.peer_address, condition, text)
        self._engine.close(condition, text)
        self.wake()

    def goodbye(self) -> bytes:
        """The last bytes for the peer when the broker stops."""
        if self._is_ended or not self._has_opened:
            return b""
        self._engine.close(FORCED, "the broker stops; connect again, or to another broker of the set")
        return self._engine.output()

    def _end(self, reason: str) -> None:
        if not self._is_ended:
            self._is_ended = True
            self.stream.close(reason)

    def closed(self) -> None:
        """Forget the state of a connection that has ended."""
        self._is_ended = True
        for link in list(self._links.values()):
            link.is_ended = True
            link.on_lost()
        self.shared.links.give(self.host.holders, len(self._links))
        self._links.clear()
        self.transactions.forget()
        for temporary in list(self._temporaries.values()):
            temporary.end()
        self.shared.release(self)
        self._engine.release()

    def _tick(self) -> None:
        now = self._clock()
        at = self._engine.tick(now)
        delay = max(TICK_SECONDS[0], min(at - now, TICK_SECONDS[1])) if at else TICK_SECONDS[1]
        self.host.defer(delay, self._tick)
        self.wake()

    # ---- links ----

    def _attached(self, pointer: Any) -> None:
        proton_link = engine.link_of(pointer)
        if len(self._links) >= LINKS_MAX:
            text = f"a connection has at most {LINKS_MAX} links; close some first"
            self._refuse_link(proton_link, RESOURCE_LIMIT, text)
            return
        links, holders = self.shared.links, self.host.holders
        if reason := links.full(holders):
            self._refuse_link(proton_link, RESOURCE_LIMIT, f"of the links {reason}; close some first")
            return
        try:
            link = attach(self, proton_link)
        except EXPECTED as error:
            self._refuse_link(proton_link, *of_error(error))
            return
        self._links[pointer] = link
        links.add(holders)
        proton_link.open()
        link.on_open()

    def _refuse_link(self, proton_link: Any, condition: str, text: str) -> None:
        engine.refuse_link(proton_link, condition, text)
        self._note_closing(proton_link._impl)

    def _note_closing(self, pointer: Any) -> None:
        """Note a link that this side has ended: the engine keeps it until the peer ends it, too."""
        self._closing.add(pointer)
        if len(self._closing) > LINKS_MAX:
            text = f"the peer has left {len(self._closing)} ended links open; at most {LINKS_MAX} are allowed"
            self.refuse(RESOURCE_LIMIT, text)

    def _detached(self, pointer: Any, *, is_closed: bool) -> None:
        self._closing.discard(pointer)
        link = self._links.get(pointer)
        if link is not None:
            self._drop(link, is_closed=is_closed)
        proton_link = engine.link_of(pointer)
        if is_closed:
            proton_link.close()
        else:
            proton_link.detach()
        proton_link.free()

    def end_link(self, link: Link, condition: str, text: str) -> None:
        """End a link by an error."""
        if not link.is_ended:
            self._drop(link, is_closed=False)
            engine.end_link(link.link, condition, text)
            self._note_closing(link.pointer)
            self.wake()

    def _drop(self, link: Link, *, is_closed: bool) -> None:
        if self._links.pop(link.link._impl, None) is not None:
            self.shared.links.give(self.host.holders)
        if not link.is_ended:
            link.is_ended = True
            link.on_end(is_closed=is_closed)

    def _session_ended(self, pointer: Any) -> None:
        session = engine.session_of(pointer)
        for link in list(self._links.values()):
            if link.link.session == session:
                self._drop(link, is_closed=False)
        for ended in [one for one in self._closing if engine.session_behind(one) == pointer]:
            self._closing.discard(ended)
        self._sessions.discard(pointer)
        session.close()
        session.free()

    def new_temporary(self, kind: int) -> Temporary:
        """A temporary queue or topic. Raises Refused when the connection has too many."""
        if len(self._temporaries) >= COUNT_MAX:
            raise Refused(RESOURCE_LIMIT, f"a connection has at most {COUNT_MAX} temporary queues and topics")
        temporary = Temporary(self, kind)
        self._temporaries[temporary.address] = temporary
        return temporary

    def end_temporary(self, address: str) -> None:
        """Forget a temporary queue or topic."""
        self._temporaries.pop(address, None)
        self.shared.remove_temporary(address)

    @property
    def client_id(self) -> str:
        """The client id of the connection in the broker's tables."""
        return f"amqp@{self.container}@{self.number}"

    def next_name(self) -> str:
        """A name that no other link of the broker has."""
        self._names += 1
        return f"{self.number}-{self._names}"

    # ---- memberships ----

    def join(self, group: str, topic: str) -> Callable[[], None]:
        """Become a member of a group for a link; returns the function that ends the membership. Raises
        AccessDenied, ResponseError."""
        if group not in self._joined:
            self.host.join(group, self.client_id, {topic: "*"})
            self._joined[group] = 0
        self._joined[group] += 1
        return partial(self._leave, group)

    def _leave(self, group: str) -> None:
        self._joined[group] -= 1
        if not self._joined[group]:
            del self._joined[group]
            if not self._is_ended:
                self.host.leave(group)
