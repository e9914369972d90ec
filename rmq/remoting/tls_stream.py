"""TLS over any of our streams, on trio and on asyncio: OpenSSL works in memory, this module moves bytes.

Why not the libraries' own: an echo round trip of frames, both ends together, costs 122 µs of CPU through
trio.SSLStream (trio only) and 93 through anyio's TLSStream, which waits for the peer when it closes; here it
is 62, because a send that the transport takes at once needs no await. Plain TCP: 48.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio
import anyio.lowlevel
import trio

from rmq.remoting.stream import Buffer, ByteStream, Stream
from rmq.remoting.tls import TlsContexts

CHUNK_BYTES = 256 * 1024
"""How much is encrypted before the transport must have taken it: bounds the memory of a stream."""
_READ_BYTES = 64 * 1024
LAST_WORDS_SECONDS = 1.0
"""How long a peer may take to hear why its handshake failed."""


async def tls_client(stream: Stream, tls: TlsContexts, host: str) -> TlsStream:
    """Start TLS as the client. Raises BrokenResourceError with the reason."""
    name = tls.config.tls_server_name or host
    return await TlsStream(stream, tls.client(), server_name=name).shaken()


async def tls_server(stream: Stream, tls: TlsContexts) -> TlsStream:
    """Start TLS as the server. Raises BrokenResourceError with the reason."""
    return await TlsStream(stream, tls.server(), server_side=True).shaken()


class TlsStream(ByteStream):
    """TLS 1.2 and later. A peer that hangs up without saying goodbye is a BrokenResourceError, not an end.

    One task may receive while another sends. What OpenSSL wants to send while it reads (key updates) is sent
    by the reader; a lock keeps the records in order.
    """

    def __init__(
        self,
        stream: Stream,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_name: str | None = None,
    ) -> None:
        super().__init__()
        self.sends_now = stream.sends_now
        self.peer = stream.peer
        self.local = stream.local
        self._stream = stream
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side, server_name)
        self._pushing = anyio.Lock(fast_acquire=True)
        self._ended = False  # nothing more will come from the transport
        self._unsent = b""  # encrypted, not taken by the transport yet
        self._owed = 0  # encrypted by send_now, but not counted as taken yet: the next send begins with it

    async def shaken(self) -> TlsStream:
        """Do the handshake. Raises BrokenResourceError with the reason."""
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                await self._pull()
            except ssl.SSLError as error:
                await self._last_words()
                raise trio.BrokenResourceError(_reason(error)) from error
            else:
                await self._push()
                return self

    async def _last_words(self) -> None:
        """Tell the peer what is wrong, and let it hang up: closing on what it sent meanwhile would take the
        alert away again.
        """
        with suppress(trio.BrokenResourceError), anyio.move_on_after(LAST_WORDS_SECONDS):
            self._stream.send_now([self._outgoing.read()])
            while await self._stream.receive_some(_READ_BYTES):
                pass

    async def _receive(self, max_bytes: int) -> bytes:
        self._check_open()
        # Nothing is taken from OpenSSL before the last await, so that a cancelled call loses nothing.
        if self._incoming.pending or self._ssl.pending() or self._ended:
            await anyio.lowlevel.checkpoint()
        else:
            await self._pull()
        while (data := self._decrypted(max_bytes)) is None:
            await self._pull()
        return data

    def _decrypted(self, max_bytes: int) -> bytes | None:
        """What the records that are here hold; None: a whole record is needed first; ``b""``: the end."""
        pieces: list[bytes] = []
        size = 0
        try:
            while size < max_bytes:
                piece = self._ssl.read(max_bytes - size)
                pieces.append(piece)
                size += len(piece)
                self._ended = not piece
                if self._ended or not self._incoming.pending:
                    break
        except ssl.SSLWantReadError:
            if not pieces:
                return None
        except ssl.SSLError as error:
            if not pieces:  # else it comes again with the next read
                raise trio.BrokenResourceError(_reason(error)) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _pull(self) -> None:
        if self._outgoing.pending:  # what OpenSSL wants to say, or the peer waits for it
            await self._push()
        data = await self._stream.receive_some(_READ_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
            self._ended = True

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        self._check_open()
        if self._unsent or self._pushing.locked():
            return 0
        if self._owed:
            taken, self._owed = self._owed, 0
            return taken
        data = b"".join(buffers) if len(buffers) > 1 else buffers[0]
        with memoryview(data)[:CHUNK_BYTES] as view:
            self._encrypt(view)
            records = self._outgoing.read()
            sent = self._stream.send_now([records])
            if sent == len(records):
                return len(view)
            self._unsent = records[sent:]
            self._owed = len(view)
            return 0

    def unsent(self) -> int:
        return self._stream.unsent()

    async def _send(self, data: memoryview) -> None:
        await anyio.lowlevel.checkpoint()
        self._check_open()
        start = min(self._owed, len(data))
        self._owed -= start
        await self._push()
        for at in range(start, len(data), CHUNK_BYTES):
            self._encrypt(data[at : at + CHUNK_BYTES])
            await self._push()

    def _encrypt(self, data: memoryview) -> None:
        try:
            while data:
                data = data[self._ssl.write(data) :]
        except ssl.SSLError as error:
            raise trio.BrokenResourceError(_reason(error)) from error

    async def _push(self) -> None:
        """Hand over all that is encrypted. Cancelled: what was not taken is kept, in order."""
        async with self._pushing:
            while True:
                self._unsent += self._outgoing.read()
                self._unsent = self._unsent[self._stream.send_now([self._unsent]) :]
                if not self._unsent:
                    return
                await self._stream.wait_send_all_might_not_block()

    async def _wait_sendable(self) -> None:
        self._check_open()
        await self._push()
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Say goodbye if the transport takes it at once, do not wait for the peer's, close the transport."""
        if not self._closed:
            self._closed = True
            with suppress(ssl.SSLError, trio.BrokenResourceError, trio.ClosedResourceError):
                self._goodbye()
        await self._stream.aclose()

    def _goodbye(self) -> None:
        if not (self._unsent or self._pushing.locked()):
            with suppress(ssl.SSLWantReadError):  # that would be the peer's goodbye
                self._ssl.unwrap()
            self._stream.send_now([self._outgoing.read()])

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this side closed the stream")


_VERIFY: Final = {
    # OpenSSL's X509_V_ERR_* -> what is wrong, and what to do.
    9: "is not valid yet: compare the clocks of both machines",
    10: "has expired: issue a new one and put it in the place of the old; no restart is needed",
    18: "is signed by itself: set tlsTrustPath to it, if it is to be trusted",
    19: "comes from an authority that is not trusted here: set tlsTrustPath to the authority's PEM file",
    20: "comes from an authority that is not trusted here: set tlsTrustPath to the authority's PEM file",
    21: "comes from an authority that is not trusted here: set tlsTrustPath to the authority's PEM file",
    23: "was revoked: issue a new one",
    26: "was not issued for this side of a connection: issue it again (a client's with --client)",
    62: "is for other names: use one of them, issue it for this one too, or set tlsServerName",
    64: "is for other addresses: use one of them, issue it for this one too, or set tlsServerName",
}
_ALERTS: Final = {
    # OpenSSL's reason -> what the peer, or what came instead of a peer, means by it.
    "CERTIFICATE_REQUIRED": "the server asks for a client certificate: set tlsCertPath and tlsKeyPath",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "peer did not return a certificate, and tlsClientAuth requires one",
    "UNKNOWN_CA": "the peer does not trust the authority of our certificate: it needs it in its tlsTrustPath",
    "CERTIFICATE_EXPIRED": "the peer says that our certificate has expired: issue a new one",
    "BAD_CERTIFICATE": "the peer refuses our certificate: see its log, and that it is for this name and use",
    "WRONG_VERSION_NUMBER": "what the peer says is no TLS: its tlsMode may be disabled, or the port another",
    "PROTOCOL_VERSION": "the peers have no version of TLS in common: 1.2 is the oldest",
    "UNSUPPORTED_PROTOCOL": "the peers have no version of TLS in common: 1.2 is the oldest",
}


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _VERIFY.get(error.verify_code, "is not usable")
        return f"the certificate is not accepted: it {advice} ({error.verify_message.rstrip('.')})"
    # Not every version of Python has a class of its own for this error.
    if isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING":
        return "the peer hung up without saying goodbye"
    reason = error.reason or str(error)
    for name, meaning in _ALERTS.items():
        if reason.endswith(name):
            return meaning
    return reason.lower().replace("_", " ")
