"""Handshake of replication: TLS and the proof of a secret, before the first byte of a log."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import anyio
from attrs import evolve, field, frozen

from rmq.broker.replication import epoch_history
from rmq.broker.replication.sessions import (
    FRAME,
    GREETING_BYTES,
    MAGIC,
    NONCE_BYTES,
    NOTE,
    PROOF_BYTES,
    SECRET_KEY,
    Challenge,
    MasterLog,
    decode_note,
)
from rmq.errors import RemoteProtocolError
from rmq.remoting.loop import disconnect_or_close_errors
from rmq.remoting.serving.accept import remove_tls
from rmq.remoting.transports.stream import PrefixedStream, Stream
from rmq.remoting.transports.tls import TlsContexts

HANDSHAKE_SECONDS: Final = 20.0
"""For TLS and proof together; a slave without TLS says nothing for its first 5 s."""

REFUSED: Final = (
    f"refused: full (haMaxConnections of the master); or {SECRET_KEY} is another, or the master stops"
)
"""Why a master hangs up before its log, which it does without a word."""

PART_SECONDS: Final = 5.0
"""Seconds that a slave waits for a part of the epochs."""
NOTE_BYTES: Final = 1 << 16
"""The largest note that a slave takes before the first byte of the log."""

T = TypeVar("T")


@frozen
class Guard:
    """Checks of a peer before it gets the log: TLS, the proof of a secret, both or, as in RocketMQ,
    neither."""

    tls: TlsContexts
    secret: bytes = field(default=b"", repr=False)
    others: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def is_restricted(self) -> bool:
        """True if a peer must pass TLS or a proof before it counts as a slave."""
        return bool(self.secret) or self.tls.mode != "disabled"

    async def admitted(self, on_first: Callable[[], object], raw: Stream) -> Stream:
        """A slave's stream after TLS and proof; `on_first()` is called when the first bytes have come. Raises
        RemoteProtocolError, and the errors of streams."""
        peer, first = await remove_tls(raw, self.tls, on_first=on_first)
        stream = PrefixedStream(first, peer)
        if self.secret:
            challenge = Challenge(self.secret, os.urandom(NONCE_BYTES), master=True, others=self.others)
            magic = await exactly(stream, len(MAGIC))
            challenge.greeted(magic + await exactly(stream, NONCE_BYTES) if magic == MAGIC else magic)
            await stream.send_all(challenge.greeting)
            challenge.check(await exactly(stream, PROOF_BYTES))
            await stream.send_all(challenge.proof())
        return stream.rest()

    async def authenticate(self, stream: Stream) -> None:
        """Prove to a master that we are its slave, and check its proof that it is the master. Raises as
        above."""
        challenge = Challenge(self.secret, os.urandom(NONCE_BYTES), master=False)
        await stream.send_all(challenge.greeting)
        challenge.greeted(await exactly(stream, GREETING_BYTES))
        await stream.send_all(challenge.proof())
        challenge.check(await exactly(stream, PROOF_BYTES))


async def exactly(stream: Stream, count: int) -> bytes:
    """The next `count` bytes. Raises RemoteProtocolError when the peer hangs up."""
    data = b""
    while len(data) < count:
        try:
            piece = await stream.receive_some(count - len(data))
        except link_errors():
            piece = b""  # a peer that refuses a proof ends without a notice
        if not piece:
            raise RemoteProtocolError(f"it hung up in the middle of the handshake; {REFUSED}")
        data += piece
    return data


def link_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Exceptions of a broken replication link, plus `others`, for an `except` clause."""
    return (*disconnect_or_close_errors(), OSError, *others)


async def within(seconds: float, work: Callable[[Stream], Awaitable[T]], stream: Stream) -> T:
    """The result of `work`. Raises RemoteProtocolError when it takes longer."""
    with anyio.move_on_after(seconds):
        return await work(stream)
    raise RemoteProtocolError(f"it did not finish the handshake within {seconds:g} s")


async def read_note(stream: Stream) -> dict[str, Any]:
    """The master's next note. Raises RemoteProtocolError for anything else."""
    offset, size = FRAME.unpack(await exactly(stream, FRAME.size))
    if offset != NOTE or not 0 <= size <= NOTE_BYTES:
        raise RemoteProtocolError("the master begins to send before it was asked to")
    return decode_note(await exactly(stream, size))


async def with_all_epochs(stream: Stream, greeting: MasterLog, note: Mapping[str, Any]) -> MasterLog:
    """A greeting, which came as `note`, with all epochs of the master's log. Requests the epochs that the
    note lacks. Raises RemoteProtocolError."""
    while epoch_history.has_earlier(note) and greeting.epochs:
        await stream.send_all(epoch_history.ask_before(greeting.epochs[0][0]))
        note = await within(PART_SECONDS, read_note, stream)
        greeting = evolve(greeting, epochs=epoch_history.with_earlier(greeting.epochs, note))
    return greeting
