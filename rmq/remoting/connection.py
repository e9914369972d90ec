"""Connection: a peer, in both directions: calls, one-way requests, requests to answer.

How bytes move. The reader waits until the stream is readable, reads a chunk, decodes it, wakes the calls
whose responses came, hands all requests of the chunk to the endpoint in a single call, and then sends the
whole outbox itself: two loop operations for a chunk, none for a message. When the peer does not take
everything, the reader waits for the peer: from a peer that does not read nothing is read. A server's `Poller`
does the same in a single task for many connections, and leaves work that must wait to the reader, which has
no task group until it needs a second task. Thousands of connections are idle: where a `Keeper` starts the
reader's task again, the reader has no task while it only waits for bytes. A writer task exists only after
a write outside the endpoint's `handle` (a late reply), and wakes only for such writes. Deadlines of calls are
in the table of pending requests; a single task, asleep until the earliest deadline, serves all calls. Runs on
trio and on asyncio.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from rmq.errors import MUTE, ConnectionLost, LocalProtocolError, RemoteProtocolError, RequestTimeout
from rmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, Framed, encode
from rmq.remoting.endpoint import Endpoint, unsendable
from rmq.remoting.limits import (
    PATIENCE_SECONDS,
    SMALL_BYTES,
    UNPROVED_FACTOR,
    Limits,
    MemoryBudget,
    patience,
)
from rmq.remoting.loop import disconnect_or_close_errors, unwrap_groups
from rmq.remoting.pending_requests import Deadlines, PendingRequest, Silence
from rmq.remoting.sending import SendingSide
from rmq.remoting.transports.stream import Stream

if TYPE_CHECKING:
    from rmq.remoting.asyncio_loop import AsyncioPoller
    from rmq.remoting.poller import Poller

log = logging.getLogger(__name__)

FIRST_READ_BYTES = 64 * 1024
"""First size of a read; reads grow to `limits.receive_bytes` only while they come back full, because a large
buffer costs 14 µs."""


QUIET_SECONDS: Final = 5.0
"""Seconds without a byte after which a reader that was needed gives its task back."""


class Keeper(Protocol):
    """The owner of connections that have no task while they only wait for bytes."""

    @property
    def is_open(self) -> bool:
        """True while connections may be left without a task: the keeper closes these when it ends."""

    @property
    def poller(self) -> Poller:
        """The poller that reads the connections."""

    def resume(self, connection: Connection) -> None:
        """Call `run` of the connection again, soon, in a task."""


class ReaderSide(SendingSide):
    """The task of a connection that reads, while it has no task group; a connection that only waits for bytes
    needs no such task."""

    __slots__ = ("_failure", "_keeper", "_may_park", "_needs_tasks", "has_received", "peer_address")

    def __init__(
        self,
        stream: Stream,
        limits: Limits,
        poller: Poller | AsyncioPoller | None,
        keeper: Keeper | None,
    ) -> None:
        super().__init__(stream, limits, poller)
        self.peer_address = stream.peer
        self._keeper = keeper
        self._may_park = True  # False: a task was needed of late
        self._needs_tasks = False  # the reader stopped, to continue with a task group
        self._failure: Exception | None = None  # of the poller's last call, for the next task
        self.has_received = False  # a whole frame came: the peer works, and does not only connect

    # --- functions of the connection ---

    @abstractmethod
    def close(self, reason: str = "", cause: BaseException | None = None) -> None:
        """End the connection soon."""

    @abstractmethod
    async def _read(self) -> bool:
        """Read to the end; return True when the poller reads on without this task."""

    @abstractmethod
    def _on_readable(self) -> bool:
        """Read and handle a chunk now; False when the reader must wait to continue."""

    @abstractmethod
    def _resume(self) -> None:
        """Have the keeper start a task."""

    # --- with and without a task ---

    @property
    def is_parked(self) -> bool:
        """True while the poller reads, and the connection has no task."""
        return self._is_parked

    def _park(self) -> bool:
        """Let the poller read without this task, if that is allowed; return whether it does."""
        keeper, solo, descriptor = self._keeper, self._solo, self._stream.descriptor
        if not self._may_park or keeper is None or solo is None or solo.cancel_called:
            return False
        if not (keeper.is_open and self.has_received) or keeper.poller.alone == descriptor:
            return False
        keeper.poller.watch(descriptor, self._on_readable, self._unpark)
        self._is_parked = True
        return True

    def _unpark(self, error: Exception | None) -> None:
        """Have a task go on: with the work that must wait, or with the end."""
        assert self._keeper is not None
        if not self._is_parked:  # the chunk itself ended the connection, or asked a call of its peer
            if error is not None:
                self._failed(error)
            return
        self._is_parked = self._may_park = False
        self._failure = error
        self._keeper.poller.forget(self._stream.descriptor)
        self._resume()

    def _interrupt(self) -> None:
        if self._solo is not None:
            self._solo.cancel()
        elif self._is_parked:
            self._needs_tasks = True
            self._unpark(None)

    def _spare_task(self, now: float) -> None:
        """Let the reader give its task back if no byte came for a while."""
        if self._keeper is not None and self._solo is not None and now - self.active_at > QUIET_SECONDS:
            self._may_park = True
            self._keeper.poller.release(self._stream.descriptor)

    async def _read_alone(self) -> bool:
        """Read until the connection ends, or needs a second task: nothing is lost where the reader stops.
        Return whether the poller reads on without this task."""
        is_parked = False
        with self._new_scope() as self._solo:
            try:
                if not self.is_closed:
                    is_parked = await self._read()
            finally:
                self._solo = None
        return is_parked

    def _end(self, reason: str, cause: BaseException | None) -> None:
        if not self.is_closed:
            log.debug("%s: %s", self.peer_address, reason)
            self._is_mute = True
        self.close(reason, cause)

    def _failed(self, error: Exception) -> None:
        """End the connection after a bug, of the endpoint or of this class; the peers of other connections
        are still served."""
        log.error("closing %s after an unexpected error: %s", self.peer_address, error, exc_info=error)
        self.close(f"an unexpected error: {type(error).__name__}: {error}", error)


_SLOTS: Final = (
    "_abandoned",
    "_at_end",
    "_budget",
    "_cause",
    "_deadlines",
    "_decoder",
    "_endpoint",
    "_first",
    "_half_since",
    "_heard_at",
    "_pending",
    "_rest",
    "_signer",
    "_silence",
    "_read_bytes",
    "fell_silent",
    "is_signing",
    "local_address",
    "reset_on_close",
    "state",
)


class Connection(ReaderSide):
    """A peer over a stream.

    `state` is for the owner (a client id, a session). `active_at` is the time of the last byte, in the loop's
    seconds. `signer`, if set, signs each request when it is sent. `reason` is the reason why the connection
    `is_closed`; `fell_silent` is true if the peer stopped answering and sent no byte.
    """

    __slots__ = _SLOTS

    def __init__(
        self,
        stream: Stream,
        endpoint: Endpoint,
        *,
        limits: Limits | None = None,
        first: bytes = b"",
        budget: MemoryBudget | None = None,
        signer: Callable[[Command], Command] | None = None,
        poller: Poller | AsyncioPoller | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        """`first` are the bytes that were read to detect the protocol. Unsent bytes count against `budget`.
        `poller` reads the stream where possible, `keeper` starts the reader again."""
        usable = stream.reads_now and poller is not None and poller.is_running
        super().__init__(stream, limits or Limits(), poller if usable else None, keeper)
        self._endpoint, self._first = endpoint, first
        self.local_address = stream.local
        self.state: dict[str, Any] = {}
        self._signer = signer
        self.is_signing = signer is not None  # then calls need commands, no ready frames
        self.reset_on_close = stream.reset_on_close
        self._decoder = Decoder(
            self._limits.frame_bytes,
            max_header=self._limits.header_bytes,
            most=self._limits.decoded_frames,
            ask_from=self._limits.ask_bytes,
            lanes=endpoint.lanes,
        )
        self._read_bytes = min(FIRST_READ_BYTES, self._limits.receive_bytes)
        self._at_end = self.fell_silent = False  # at the end: the poller has read all of the stream
        self._rest: list[Command] = []  # requests of the last chunk whose turn has not come
        self._budget = budget or MemoryBudget(1 << 62)
        self._half_since = math.inf  # begin of the incomplete frame
        self._pending: dict[int, PendingRequest] = {}
        self._deadlines = Deadlines(self._pending, self._now, self._time_out)
        self._heard_at = -math.inf  # arrival of the peer's last bytes
        self._silence = Silence()
        self._abandoned: tuple[int, Any] | None = None  # a request whose caller was cancelled, and its waiter
        self._cause: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.local_address} to {self.peer_address}{' closed' * self.is_closed}>"

    # --- calls and closing ------------------------------------------------------------------------

    async def call(self, command: Command | Framed, timeout: float) -> Command:
        """Send a request and return its response, whatever its code.

        Raises RequestTimeout after `timeout` seconds and ConnectionLost when the connection ends first; in
        both cases the peer may have acted on the request, unless a ConnectionLost says that nothing
        `was_sent`. Cancelled: the request may have been sent; its response is dropped, and its time-out still
        shows whether the peer is silent."""
        if len(self._pending) >= self._limits.pending_requests or self._outbox.size > self._limits.busy_bytes:
            timeout = await self._wait_for_room(command, timeout)
        if self.is_closed:
            raise ConnectionLost(self.peer_address, self._cause or self.reason, was_sent=False)
        opaque = command.opaque
        if opaque in self._pending:
            raise LocalProtocolError(f"request {opaque} is already in flight to {self.peer_address}")
        outbox = self._outbox
        signed = command if self._signer is None or isinstance(command, Framed) else self._signer(command)
        frame = encode(signed)
        waiter = self._new_waiter()
        self.active_at = now = self._now()
        deadline, end = now + timeout, outbox.taken + outbox.size + len(frame)
        self._pending[opaque] = (waiter, deadline, command.code, timeout, end)
        try:
            if deadline < self._deadlines.at:
                self._deadlines.wake_at(deadline)
                self._interrupt()  # the deadline needs a task
            self._send_soon(frame)
            response: Command = await waiter.wait()
            return response
        finally:
            entry = self._pending.get(opaque)
            if entry is not None and entry[0] is waiter:
                self._abandon(opaque, waiter, deadline)
            if self._room is not None:
                self._make_room()

    def _abandon(self, opaque: int, waiter: Any, deadline: float) -> None:
        """Forget a request of a cancelled caller, but keep the earliest: its time-out shows a silent peer."""
        kept, pending = self._abandoned, self._pending
        if self.is_closed:
            del pending[opaque]
        elif kept is None or (entry := pending.get(kept[0])) is None or entry[0] is not kept[1]:
            self._abandoned = opaque, waiter  # the response of an earlier one has come, or its time was over
        elif entry[1] <= deadline:
            del pending[opaque]
        else:
            del pending[kept[0]]
            self._abandoned = opaque, waiter

    def notify(self, command: Command, frame: bytes = b"") -> None:
        """Send a one-way request, soon, by its `frame` if made. Dropped when the connection has ended."""
        self._put(frame or encode(command if self._signer is None else self._signer(command)))

    def reply(self, response: Command) -> None:
        """Send a response, soon. Dropped when the connection has ended. A response that cannot be encoded
        (forwarded from a peer, or a bug) is logged; the peer gets a SYSTEM_ERROR."""
        try:
            frame = encode(response)
        except LocalProtocolError as error:
            # The caller may be serving another connection, or a loop of the service.
            log.error("%s gets an error instead of its answer: %s", self.peer_address, error, exc_info=error)
            frame = encode(unsendable(response, error))
        self.write(frame)

    def close(self, reason: str = "closed by this side", cause: BaseException | None = None) -> None:
        """End the connection soon: pending calls get ConnectionLost now; the outbox is sent if the peer still
        reads."""
        if self.is_closed:
            return
        self.is_closed, self.reason, self._cause = True, reason, cause
        # To the peer an incomplete frame is no frame. When this side closes, the rest is sent.
        taken = self._outbox.taken if self._is_mute and not self._is_torn else math.inf
        for waiter, _, _, _, end in list(self._pending.values()):
            waiter.fail(ConnectionLost(self.peer_address, cause or reason, was_sent=end <= taken))
        if self._room is not None:
            self._room.set()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        self._interrupt()

    def finish(self, reason: str) -> None:
        """Close the connection; the peer sees the end directly behind the last byte if it takes all now."""
        self.flush()
        if not self._outbox.size:
            self._stream.end_sending()
        self.close(reason)

    def expire(self, now: float) -> float:
        """Close the connection if it was idle too long or a frame is incomplete for too long. Return the time
        of the next check: a frame that begins later has its full time."""
        if self.is_closed:
            return math.inf
        if now - self._half_since >= self._limits.frame_seconds:
            self.close(f"a frame was not complete after {self._limits.frame_seconds:g} s")
            log.warning("closing %s: %s", self.peer_address, self.reason)
        elif self._budget.is_tight and self._held > SMALL_BYTES and now - self._half_since > self._patience():
            self.abort(f"a frame was not complete after {self._patience():g} s, while others need the memory")
        elif now - self._taken_at > self._limits.stall_seconds and self._is_stalled(now):
            self.abort(f"its peer took nothing for {self._limits.stall_seconds:g} s")
        elif now - self.active_at >= self._limits.idle_seconds and not self._pending:
            self.close(f"idle for {self._limits.idle_seconds:g} s")
            log.info("closing %s: %s", self.peer_address, self.reason)
        else:
            self._spare_task(now)
            quiet_since = now if self._pending else self.active_at
            return min(self._half_since + self._limits.frame_seconds, quiet_since + self._limits.idle_seconds)
        return math.inf

    async def run(self) -> bool:
        """Serve the connection until it ends, then close the stream and inform the endpoint. The reason is
        logged, not raised, since a peer's bytes must not end the service of other peers; the same when
        cancelled.

        Returns True where the connection has not ended, and the keeper will call `run` again: until then the
        poller reads."""
        is_parked = False
        try:
            was_alone = self._needs_tasks
            if not was_alone and not self._pending and self._poller is not None and self._poller.spares_tasks:
                was_alone = True
                is_parked = await self._read_alone()
            if not is_parked and not self.is_closed:
                await self._read_with_tasks(is_resumed=was_alone and self._outbox.size > 0)
        finally:
            if not is_parked:
                await self._wind_up()
        return is_parked

    def _resume(self) -> None:
        assert self._keeper is not None
        self._keeper.resume(self)

    async def _wind_up(self) -> None:
        self.close("cancelled")
        try:
            self._endpoint.on_close(self)
        except Exception as error:
            log.error("the callback for the end of %s failed: %s", self.peer_address, error, exc_info=error)
        finally:
            self._rest.clear()
            self._decoder.clear()
            try:
                await self._close_stream()
            finally:
                self._outbox.clear()
                self._count()

    # --- reading ----------------------------------------------------------------------------------

    async def _read_with_tasks(self, *, is_resumed: bool) -> None:
        with unwrap_groups():
            async with anyio.create_task_group() as self._tasks:
                try:
                    self._deadlines.begin(self._tasks)
                    if is_resumed:
                        self._wake_writer()
                    await self._read(is_resumed=is_resumed)
                finally:
                    self.close("cancelled")  # other tasks still run before the group has ended
                    self._tasks.cancel_scope.cancel()

    async def _read(self, *, is_resumed: bool = False) -> bool:
        """Read to the end; `is_resumed`: the outbox has a writer already. Return True when the poller reads
        on without this task."""
        try:
            if self._failure is not None:
                raise self._failure
            self._received(self._first)
            self._first = b""
            receive, outbox, poller = self._stream.receive_some, self._outbox, self._poller
            while not self._at_end:
                if outbox.size and not is_resumed and not self._flush_now():
                    self._count()
                    if self._reply_bytes > self._limits.pause_bytes:
                        await self._flush()
                    else:
                        # Our own requests never stop us from reading: the peer may wait for us to take its
                        # responses before it takes more. Callers wait for room instead.
                        self._wake_writer()
                is_resumed = False
                if self._rest or self._decoder.has_more:
                    await anyio.lowlevel.checkpoint()  # other connections have their turn
                    self._go_on()
                    continue
                if outbox.size + self._decoder.buffered != self._held:
                    self._count()
                if self._held > SMALL_BYTES and self._budget.is_tight and self._is_slow():
                    await self._budget.relief()
                if poller is not None:
                    if self._park():
                        return True
                    await poller.attend(self._stream.descriptor, self._on_readable)
                    continue
                # The data gets no name: during the wait no variable should hold the last chunk.
                if not self._received(await receive(self._read_bytes)):
                    break
            self._solo = None  # this task ends by itself
            self._end("closed by the peer", None)
        except disconnect_or_close_errors() as error:
            self._end(f"lost: {error}", error)
        except RemoteProtocolError as error:
            log.warning("closing %s: %s", self.peer_address, error)
            self.close(str(error), error)
        except Exception as error:
            self._failed(error)
        return False

    def _on_readable(self) -> bool:
        """Read and handle a chunk now; False when the reader must wait to continue."""
        data = self._stream.receive_now(self._read_bytes)
        if data is None:
            return True
        if not self._received(data):
            self._at_end = True
            return False
        if self._outbox.size and not self._flush_now():
            return False
        if self._outbox.size + self._decoder.buffered != self._held:
            self._count()
        return not (
            self._rest
            or self._decoder.has_more
            or self.is_closed
            or (self._poller and self._poller.alone == self._stream.descriptor)
            or (self._held > SMALL_BYTES and self._budget.is_tight and self._is_slow())
        )

    def _is_slow(self) -> bool:
        """True if a frame is incomplete for longer than an honest peer takes."""
        return self._now() - self._half_since > PATIENCE_SECONDS

    def waste(self, now: float) -> float:
        """Seconds for which a frame is incomplete, or the peer takes no waiting bytes; more for a peer that
        never sent a whole frame, less with few held bytes. On a draw the larger holder counts as worse."""
        seconds = max(now - min(self._half_since, self._taken_at), 0.0)
        factor = 1.0 if self.has_received else UNPROVED_FACTOR
        return (seconds * factor if self._held > SMALL_BYTES else seconds / 1000) + self._held * 1e-12

    def _received(self, data: bytes | bytearray) -> bool:
        if not data:
            return False
        most = self._limits.receive_bytes
        self._read_bytes = most if len(data) == self._read_bytes else min(FIRST_READ_BYTES, most)
        if self._poller is not None:
            self._poller.note(self._stream.descriptor)
        self.active_at = self._heard_at = now = self._now()
        commands = self._decoder.feed(bytes(data))
        if commands:
            self._half_since = now if self._decoder.buffered and not self._decoder.has_more else math.inf
            self.has_received = True
            self._serve(self._take_responses(commands))
        elif self._half_since == math.inf and self._decoder.buffered:
            self._half_since = now
        if self._decoder.head is not None or self._decoder.refused:
            self._ask()
        return True

    def _serve(self, requests: list[Command]) -> None:
        if requests:
            self._is_handling = True
            try:
                taken = self._endpoint.handle(requests, self)
            finally:
                self._is_handling = False
            self._rest = [] if taken is None else requests[max(1, taken) :]

    def _go_on(self) -> None:
        """Handle the requests that are already read."""
        if self._rest:
            self._serve(self._rest)
            return
        self._serve(self._take_responses(self._decoder.feed(b"")))
        if self._decoder.buffered and not self._decoder.has_more:
            self._half_since = self._now()
        if self._decoder.head is not None or self._decoder.refused:
            self._ask()

    def _ask(self) -> None:
        """Ask the endpoint about a large body, and drop the body after a refusal; answer the requests that
        could not be read."""
        for response in self._decoder.refused:
            log.debug("%s: request %d is refused: %s", self.peer_address, response.opaque, response.remark)
            self.reply(response)
        self._decoder.refused.clear()
        head = self._decoder.take_head()
        if head is None or (head.flag & FLAG_RESPONSE and head.opaque in self._pending):
            return
        refusal = self._endpoint.on_head(head, self._decoder.head_body, self)
        if refusal is not None:
            self._decoder.skip()
            self._half_since = math.inf
            if not head.flag & (FLAG_RESPONSE | FLAG_ONEWAY):
                self.reply(refusal)

    def _take_responses(self, commands: list[Command]) -> list[Command]:
        """Wake the calls whose responses have come; return the requests."""
        if len(commands) == 1 and not commands[0].flag & FLAG_RESPONSE:
            self._is_eager = True
            return commands
        requests = [command for command in commands if not command.flag & FLAG_RESPONSE]
        responses = len(commands) - len(requests)
        if responses:
            for command in commands:
                if command.flag & FLAG_RESPONSE:
                    entry = self._pending.pop(command.opaque, None)
                    if entry is not None:
                        entry[0].resolve(command)
                    else:
                        self._endpoint.on_response(command, self)
        # Several responses at a time are followed by several requests: gather these first.
        self._is_eager = responses < 2
        return requests

    # --- bytes held -------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the connection at once: nothing more is sent."""
        if not self.is_closed:
            log.warning("closing %s: %s", self.peer_address, reason)
            self._is_mute = True
            self.close(reason)

    def _count(self) -> None:
        """Report the held bytes to the budget.

        Called where bytes are kept, not where they pass through. A closed connection only gives back, or its
        bytes would count for ever.
        """
        held = self._outbox.size + self._decoder.buffered
        if held != self._held and not (held and self.is_closed):
            self._held = held
            self._budget.hold(self, held)
            is_large = held > SMALL_BYTES and not self.is_closed
            if is_large and (self._budget.is_tight or self._endpoint.asks_early):
                self._look()

    def _look(self) -> None:
        """Ask the endpoint about the body of the unfinished frame before more of the body is read."""
        self._decoder.look()
        if self._decoder.head is not None or self._decoder.refused:
            self._ask()
            self._count()

    def _patience(self) -> float:
        return patience(is_proved=self.has_received)

    # --- room and deadlines -----------------------------------------------------------------------

    async def _wait_for_room(self, command: Command | Framed, timeout: float) -> float:
        """Wait until a call may start; return the rest of its timeout."""
        deadline = self._now() + timeout
        with anyio.move_on_after(timeout) as scope:
            while not self.is_closed and (
                len(self._pending) >= self._limits.pending_requests
                or self._outbox.size > self._limits.busy_bytes
            ):
                await self._next_room()
        if scope.cancelled_caught:
            raise RequestTimeout(self.peer_address, command.code, timeout)
        return deadline - self._now()

    def _time_out(self, over: list[PendingRequest], now: float) -> None:
        """Fail the calls whose time is over, and end a connection that receives no bytes any more."""
        for waiter, _, code, seconds, _ in over:
            is_mute = self._heard_at == -math.inf
            waiter.fail(RequestTimeout(self.peer_address, code, seconds, is_mute=is_mute))
        if self._rest or self._decoder.has_more or self._budget.is_tight:
            return  # bytes of the peer may have come that were not read yet
        if self._silence.is_broken(over, self._heard_at, now):
            self.fell_silent = True
            silent = now - self._silence.since
            reason = f"its peer has been silent for {silent:.3g} s, since a request that it did not answer"
            self.abort(reason + MUTE if self._heard_at == -math.inf else reason)

    # --- the end ----------------------------------------------------------------------------------

    async def _close_stream(self) -> None:
        """Send the outbox within `linger_seconds`, as far as the peer takes it, and close the stream; also
        when cancelled."""
        if (self._is_mute or self._is_torn or not self._outbox.size) and self._stream.close_now():
            return
        with anyio.move_on_after(self._limits.linger_seconds, shield=True):
            try:
                if self._outbox.size and not (self._is_mute or self._is_torn or self._flush_now()):
                    await self._flush()
            except disconnect_or_close_errors() as error:
                log.debug("%s: lost while closing: %s", self.peer_address, error)
            self._outbox.clear()
            await self._stream.aclose()
