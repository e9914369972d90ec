"""TLS over any of our streams, on trio and on asyncio: settings, certificates, and the stream itself.

OpenSSL works in memory, this module moves bytes. The libraries' own streams are slower: an echo round trip of
frames, both ends together, costs 122 µs of CPU through trio.SSLStream (trio only) and 93 through anyio's
TLSStream, which waits for the peer when it closes; this module needs 62, because a send that the transport
takes at once needs no await. Plain TCP: 48.

The settings are those of RocketMQ's tls.properties. A changed certificate file is read again at the next
handshake.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
import anyio.lowlevel
from attrs import evolve, fields, fields_dict, frozen

from rmq.config import one_of, read_file, setting
from rmq.errors import ConfigError, InvalidType
from rmq.remoting.loop import broken, closed, disconnect_errors, disconnect_or_close_errors
from rmq.remoting.transports.certificate import certificate_end
from rmq.remoting.transports.stream import Buffer, ByteStream, Stream

log = logging.getLogger(__name__)


# --- settings and certificates ---


@frozen(kw_only=True)
class TlsConfig:
    """TLS of a process: for its ports, and for its dials.

    A server needs `tls_cert_path` and `tls_key_path` unless the mode is disabled. The fields `tls_client_*`
    are for dialling only; if empty, the other fields serve both. Raises InvalidType for a field of a wrong
    type, ConfigError for an unknown value.
    """

    tls_mode: str = setting(
        "disabled",
        help="Connections that a server accepts: disabled (no TLS), permissive (both on one port), "
        "enforcing (only TLS)",
        validator=one_of("disabled", "permissive", "enforcing"),
    )
    tls_enable: bool = setting(False, help="Use TLS for every address without a scheme, as with tls://")
    tls_config_file: str = setting(
        "", help="RocketMQ's tls.properties; its keys replace defaults of the settings here"
    )
    tls_test_mode: bool = setting(
        False, help="A server without tlsCertPath generates a certificate that no client can verify"
    )
    tls_cert_path: str = setting("", help="PEM file: the certificate, then its chain")
    tls_key_path: str = setting("", help="PEM file: the key of the certificate; empty: in tlsCertPath")
    tls_key_password: str = setting("", help="Password of the key file", secret=True)
    tls_trust_path: str = setting("", help="PEM file of the trusted authorities; empty: the system's")
    tls_client_cert_path: str = setting("", help="For outgoing connections: PEM file; empty: tlsCertPath")
    tls_client_key_path: str = setting(
        "", help="For outgoing connections: PEM file; empty: in tlsClientCertPath"
    )
    tls_client_key_password: str = setting(
        "", help="For outgoing connections: password of the key file; empty: tlsKeyPassword", secret=True
    )
    tls_client_trust_path: str = setting(
        "", help="For outgoing connections: trusted authorities; empty: tlsTrustPath"
    )
    tls_client_auth: str = setting(
        "none",
        help="Whether a server asks clients for a certificate",
        validator=one_of("none", "optional", "require"),
    )
    tls_server_name: str = setting(
        "", help="The name a client expects in the server's certificate; empty: the host of the address"
    )
    tls_insecure_skip_verify: bool = setting(
        False, help="Clients accept every certificate: no protection against impostors; for tests only"
    )

    def __attrs_post_init__(self) -> None:
        for field in fields(type(self)):
            kind, expected = (bool, "True or False") if isinstance(field.default, bool) else (str, "text")
            value = getattr(self, field.name)
            if not isinstance(value, kind):  # the error names only the type of a password
                raise InvalidType(field.name, type(value) if field.metadata["secret"] else value, expected)

    @property
    def scheme(self) -> str:
        """The scheme of addresses without one."""
        return "tls" if self.tls_enable else "tcp"

    @property
    def dialling(self) -> TlsConfig:
        """A copy in which the files for dialling replace the files for both directions."""
        own: dict[str, Any] = {}
        if self.tls_client_cert_path:
            own = {
                "tls_cert_path": self.tls_client_cert_path,
                "tls_key_path": self.tls_client_key_path,
                "tls_key_password": self.tls_client_key_password or self.tls_key_password,
            }
        return evolve(self, tls_trust_path=self.tls_client_trust_path or self.tls_trust_path, **own)


class TlsContexts:
    """The ssl contexts of a configuration. Changed files are read again at the next handshake."""

    def __init__(self, config: TlsConfig) -> None:
        self.config = config
        self._server = _Reloaded(config, _server_context)
        self._client = _Reloaded(config.dialling, _client_context)

    @property
    def mode(self) -> str:
        """`tls_mode` of the settings."""
        return self.config.tls_mode

    def server(self) -> ssl.SSLContext:
        """The context for accepting. Raises ConfigError when the files are not usable."""
        return self._server.current()

    def client(self) -> ssl.SSLContext:
        """The context for dialling. Raises ConfigError when the files are not usable."""
        return self._client.current()


class _Reloaded:
    """A context, made again when a file has changed; kept while the new files are not usable."""

    def __init__(self, config: TlsConfig, make: Callable[[TlsConfig], ssl.SSLContext]) -> None:
        self._config = config
        self._make = make
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple[Any, ...] = ()

    def current(self) -> ssl.SSLContext:
        stamp = _stamp(self._config)
        if self._context is None or stamp != self._stamp:
            try:
                self._context = self._make(self._config)
            except ConfigError as error:
                if self._context is None:
                    raise
                log.warning("keeping the TLS certificate that was loaded before: %s", error)
            self._stamp = stamp
        return self._context


def _stamp(config: TlsConfig) -> tuple[Any, ...]:
    stamp = []
    for path in (config.tls_cert_path, config.tls_key_path, config.tls_trust_path):
        try:
            status = os.stat(path) if path else None
        except OSError:
            status = None
        stamp.append(status and (status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamp)


def _context(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Some builds of Python let a connection that was cut off look like one that was closed in order.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    return context


APPLICATION_PROTOCOLS: Final = ("h2",)
"""Protocols that a server agrees on when a client names them (ALPN): gRPC's libraries go on with h2 only. A
client that names no protocol, or other ones, is served as well."""


def _server_context(config: TlsConfig) -> ssl.SSLContext:
    if not config.tls_cert_path and not config.tls_test_mode:
        expected = f"a certificate file, since tlsMode is {config.tls_mode}; `rmq certs` makes one"
        raise ConfigError("tlsCertPath", "", expected)
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(APPLICATION_PROTOCOLS))
    if config.tls_cert_path:
        _load_own(context, config)
        _log_expiry(config.tls_cert_path)
        _log_distrust(context, config)
    else:
        _load_made_up(context)
    if config.tls_client_auth != "none":
        _load_trust(context, config)
        required = config.tls_client_auth == "require"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _log_expiry(path: str) -> None:
    """Log that a certificate has expired: clients refuse it, and the server's log would not show why."""
    until = certificate_end(path)
    if until is not None and until < datetime.now(UTC):
        log.error(
            "tlsCertPath: %s expired on %s; clients that verify it cannot connect. Replace it"
            " (`rmq certs issue DIR NAME --host HOST --force`)",
            path,
            until.date(),
        )


def _log_distrust(own: ssl.SSLContext, config: TlsConfig) -> None:
    """Log that servers with the same settings do not accept this server's certificate, for example after an
    authority was replaced: this server can dial them, and only their logs and clients would show the
    fault."""
    trust = config.dialling.tls_trust_path
    if not trust:
        return
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # peers know it by its own names
    try:
        context.load_verify_locations(trust)
    except (OSError, ssl.SSLError):
        return  # dialling reports it
    error = _refusal(context, own)
    if error is not None and error.verify_code != _EXPIRED:
        log.error(
            "tlsCertPath: servers with this tlsTrustPath (%s) cannot connect here: the certificate %s",
            trust,
            _VERIFY.get(error.verify_code, f"is not accepted: {error.verify_message}"),
        )


def _refusal(asking: ssl.SSLContext, answering: ssl.SSLContext) -> ssl.SSLCertVerificationError | None:
    """The reason why a client with one context does not accept a server with the other; None if it
    accepts."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = asking.wrap_bio(back, there), answering.wrap_bio(there, back, server_side=True)
    for side in (client, server) * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error if side is client else None
        except ssl.SSLError:
            return None
    return None


def _client_context(config: TlsConfig) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificate and host name
    if config.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        _load_trust(context, config)
    if config.tls_cert_path:
        _load_own(context, config)
    return context


def _check_readable(key: str, path: str, remedy: str) -> None:
    """Raise ConfigError for the setting `key` when its file cannot be read: OpenSSL names no file."""
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(key, path, f"a PEM file that can be read ({error.strerror}); {remedy}") from error


def _load_own(context: ssl.SSLContext, config: TlsConfig) -> None:
    remedy = "`rmq certs issue DIR NAME --host HOST` makes certificate and key"
    _check_readable("tlsCertPath", config.tls_cert_path, remedy)
    if config.tls_key_path:
        _check_readable("tlsKeyPath", config.tls_key_path, remedy)
    try:
        context.load_cert_chain(
            config.tls_cert_path, config.tls_key_path or None, lambda: config.tls_key_password
        )
    except (OSError, ssl.SSLError) as error:
        paths = (
            f"{config.tls_cert_path} and {config.tls_key_path}"
            if config.tls_key_path
            else config.tls_cert_path
        )
        raise ConfigError("tlsCertPath", paths, f"a PEM certificate and its key ({error})") from error


def _load_trust(context: ssl.SSLContext, config: TlsConfig) -> None:
    if not config.tls_trust_path:
        context.load_default_certs()
        return
    _check_readable("tlsTrustPath", config.tls_trust_path, "`rmq certs ca DIR` makes an authority")
    try:
        context.load_verify_locations(config.tls_trust_path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("tlsTrustPath", config.tls_trust_path, f"a PEM file ({error})") from error


FILE_KEYS: Final = {
    "tls.server.mode": "tls_mode",
    "tls.enable": "tls_enable",
    "tls.server.certPath": "tls_cert_path",
    "tls.server.keyPath": "tls_key_path",
    "tls.server.keyPassword": "tls_key_password",
    "tls.server.need.client.auth": "tls_client_auth",
    "tls.server.trustCertPath": "tls_trust_path",
    "tls.client.certPath": "tls_client_cert_path",
    "tls.client.keyPath": "tls_client_key_path",
    "tls.client.keyPassword": "tls_client_key_password",
    "tls.client.trustCertPath": "tls_client_trust_path",
    "tls.test.mode.enable": "tls_test_mode",
}
"""RocketMQ's key -> field of TlsConfig."""

WEAKER: Final = {
    "tls.client.authServer": "servers are always verified; tlsInsecureSkipVerify=true switches that off",
    "tls.server.authClient": "a client certificate that is asked for is always verified",
}
"""Keys whose `false` would let any peer in: setting -> what rmq does instead of following it."""


def with_file(config: TlsConfig) -> TlsConfig:
    """The settings, with values of `tls_config_file` in place of defaults. Raises ConfigError."""
    if not config.tls_config_file:
        return config
    changes: dict[str, Any] = {}
    fields = fields_dict(TlsConfig)
    for entry in read_file(config.tls_config_file, "tlsConfigFile"):
        value = str(entry.value).strip()
        if entry.key in WEAKER and value.lower() != "true":
            log.warning("%s=%s in %s: %s", entry.key, value, entry.source, WEAKER[entry.key])
        name = FILE_KEYS.get(entry.key)
        if name is not None and value and getattr(config, name) == fields[name].default:
            changes[name] = _file_value(entry.key, name, value, entry.source)
    return evolve(config, **changes)


def _file_value(key: str, name: str, text: str, source: str) -> Any:
    if isinstance(fields_dict(TlsConfig)[name].default, bool):
        return text.lower() == "true"  # as Java reads it
    if name not in ("tls_mode", "tls_client_auth"):
        return text
    try:
        evolve(TlsConfig(), **{name: text.lower()})  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(key, text, error.expected, source) from None
    return text.lower()


MADE_UP_DAYS: Final = 30
"""Days for which the certificate of RocketMQ's TLS test mode is valid: signed by itself, for no name."""


def _load_made_up(context: ssl.SSLContext) -> None:
    """Give a server's context a fresh certificate that only clients without verification accept."""
    import tempfile

    log.warning(
        "tlsTestMode: this server's certificate is generated at the start; clients cannot verify the server"
    )
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # mode 0600; OpenSSL reads files only
        file.write(_self_signed())
        file.flush()
        context.load_cert_chain(file.name)


def _self_signed() -> bytes:
    from cryptography import x509  # slow to import: only for tests
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rmq tlsTestMode")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(hours=1))
    made = made.not_valid_after(now + timedelta(days=MADE_UP_DAYS))
    text = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(text, serialization.PrivateFormat.PKCS8, plain)
    return private + made.sign(key, hashes.SHA256()).public_bytes(text)


def _common_name(tls: ssl.SSLObject) -> str:
    """The common name of the peer's verified certificate; empty without one, or with several names."""
    certificate: Any = tls.getpeercert() or {}
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    found = [text for name, text in subject if name == "commonName"]
    return str(found[0]) if len(found) == 1 else ""


# --- the stream ---

CHUNK_BYTES = 256 * 1024
"""Bytes that are encrypted before the transport must have taken them: bounds the memory of a stream."""
_READ_BYTES = 64 * 1024
ALERT_SECONDS = 1.0
"""Seconds that a peer has to read the alert with the reason for its failed handshake."""


async def tls_client(stream: Stream, tls: TlsContexts, host: str) -> TlsStream:
    """Start TLS as the client. Raises BrokenResourceError with the reason."""
    name = tls.config.tls_server_name or host
    return await TlsStream(stream, tls.client(), server_name=name).handshake()


async def tls_server(stream: Stream, tls: TlsContexts) -> TlsStream:
    """Start TLS as the server. Raises BrokenResourceError with the reason."""
    return await TlsStream(stream, tls.server(), server_side=True).handshake()


class TlsStream(ByteStream):
    """TLS 1.2 and later. A peer that disconnects without close_notify gives a BrokenResourceError, not an
    end: otherwise an attacker on the wire could cut a message short.

    A task may receive while another sends. The reader sends OpenSSL's own records (key updates); a lock keeps
    the records in order.
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
        self._has_ended = False  # no more bytes will come from the transport
        self._unsent = b""  # encrypted, not taken by the transport yet
        self._owed = 0  # encrypted by send_now, but not counted as taken yet: the next send begins with it

    async def handshake(self) -> TlsStream:
        """Do the handshake. Raises BrokenResourceError with the reason."""
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                await self._pull()
            except ssl.SSLError as error:
                await self._send_alert()
                raise broken(_reason(error)) from error
            else:
                await self._push()
                self.certificate_name = _common_name(self._ssl)
                return self

    async def _send_alert(self) -> None:
        """Send the alert that OpenSSL made, and let the peer disconnect first: a socket that is closed with
        unread bytes is reset, and the reset would discard the alert."""
        with suppress(*disconnect_errors()), anyio.move_on_after(ALERT_SECONDS):
            self._stream.send_now([self._outgoing.read()])
            while await self._stream.receive_some(_READ_BYTES):
                pass

    async def _receive(self, max_bytes: int) -> bytes:
        self._check_open()
        # Nothing is taken from OpenSSL before the last await, so that a cancelled call loses nothing.
        if self._incoming.pending or self._ssl.pending() or self._has_ended:
            await anyio.lowlevel.checkpoint()
        else:
            await self._pull()
        while (data := self._decrypted(max_bytes)) is None:
            await self._pull()
        return data

    def _decrypted(self, max_bytes: int) -> bytes | None:
        """The content of the received records; None: a whole record is needed first; ``b""``: the end."""
        pieces: list[bytes] = []
        size = 0
        try:
            while size < max_bytes:
                piece = self._ssl.read(max_bytes - size)
                pieces.append(piece)
                size += len(piece)
                self._has_ended = not piece
                if self._has_ended or not self._incoming.pending:
                    break
        except ssl.SSLWantReadError:
            if not pieces:
                return None
        except ssl.SSLError as error:
            if not pieces:  # else it comes again with the next read
                raise broken(_reason(error)) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _pull(self) -> None:
        if self._outgoing.pending:  # OpenSSL has bytes to send, or the peer waits for them
            await self._push()
        data = await self._stream.receive_some(_READ_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
            self._has_ended = True

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        self._check_open()
        if self._unsent or self._pushing.locked():
            return 0
        if self._owed:
            # The contract of send_now: these buffers begin with the bytes that were not taken the last time.
            # They were encrypted then and are on their way; a second encryption would send them twice.
            taken, self._owed = self._owed, 0
            assert taken <= sum(map(len, buffers)), "another send came between"
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
            raise broken(_reason(error)) from error

    async def _push(self) -> None:
        """Hand over all encrypted bytes. Cancelled: bytes that were not taken are kept, in order."""
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
        """Send close_notify if the transport takes it at once, do not wait for the peer's, and close the
        transport."""
        if not self._is_closed:
            self._is_closed = True
            with suppress(ssl.SSLError, *disconnect_or_close_errors()):
                self._close_notify()
        await self._stream.aclose()

    def _close_notify(self) -> None:
        if not (self._unsent or self._pushing.locked()):
            with suppress(ssl.SSLWantReadError):  # it would wait for the peer's close_notify
                self._ssl.unwrap()
            self._stream.send_now([self._outgoing.read()])

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed()


_EXPIRED: Final = 10
_VERIFY: Final = {
    # OpenSSL's X509_V_ERR_* -> the fault, and the remedy.
    9: "is not valid yet: compare the clocks of both machines",
    _EXPIRED: "has expired: replace it with a new one; no restart is needed",
    18: "is self-signed: to trust it, set tlsTrustPath to it",
    19: "comes from an untrusted authority: set tlsTrustPath to the authority's PEM file",
    20: "comes from an untrusted authority: set tlsTrustPath to the authority's PEM file",
    21: "comes from an untrusted authority: set tlsTrustPath to the authority's PEM file",
    23: "was revoked: issue a new one",
    26: "was issued for the other side of a connection: issue a new one (for a client with --client)",
    62: "is for other names: connect by one of its names, issue one for this name, or set tlsServerName",
    64: "is for other addresses: connect to one of its addresses, issue one for this address, or set "
    "tlsServerName",
}
_ALERTS: Final = {
    # OpenSSL's reason -> its meaning for the peer, or for another server at the peer's address.
    "CERTIFICATE_REQUIRED": "the server asks for a client certificate: set tlsCertPath and tlsKeyPath",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "peer did not return a certificate, and tlsClientAuth requires one",
    "UNKNOWN_CA": "the peer does not trust the authority of our certificate: add the authority to the "
    "peer's tlsTrustPath",
    "CERTIFICATE_EXPIRED": "our certificate has expired, says the peer: issue a new one",
    "BAD_CERTIFICATE": "the peer refuses our certificate: see the peer's log, and check the "
    "certificate's names and use",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS: its tlsMode may be disabled, or the port is wrong",
    "PROTOCOL_VERSION": "the peers have no version of TLS in common: 1.2 is the oldest",
    "UNSUPPORTED_PROTOCOL": "the peers have no version of TLS in common: 1.2 is the oldest",
}


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = _VERIFY.get(error.verify_code, "is not usable")
        return f"the certificate is not accepted: it {advice} ({error.verify_message.rstrip('.')})"
    # Not every version of Python has a class of its own for this error.
    if isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING":
        return "the peer hung up without close_notify"
    reason = error.reason or str(error)
    for name, meaning in _ALERTS.items():
        if reason.endswith(name):
            return meaning
    return reason.lower().replace("_", " ")
