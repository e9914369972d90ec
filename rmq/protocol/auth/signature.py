"""The ACL signature of a command: the client signs, the broker's plug-in checks.

Base64 of HMAC-SHA1, under the secret key, of all header values in the order of their names, followed by the
body. Pinned by tests/golden/acl_signature.json. The signature covers neither the request code nor the ends of
values, and has no time, so that an attacker who records a request can send it as another request. So our
clients add a proof: three fields, which RocketMQ's servers ignore (its signature covers them as any others):

    RmqTime    milliseconds since 1970, by the client's clock
    RmqNonce   mark of the account's secret (16), a session (11), a dot, a number that grows with each request
    RmqProof   Base64 of HMAC-SHA256, under the secret, of the result of `_covered`

A session is a connection. Its requests arrive in the order of their numbers, so that a server needs only the
last number of each session, and not every request.

The mark keeps a proved request from being sent without its proof, under another name for the field: the
values stay in the part that Java's signature covers, including the mark, and a request with the mark must
have a proof.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from attrs import NOTHING, Attribute, field, frozen

from rmq.errors import InvalidType
from rmq.protocol.command import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
PROOF: Final = "RmqProof"
TIME: Final = "RmqTime"
NONCE: Final = "RmqNonce"
SIGNING_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, PROOF, TIME, NONCE})
"""Header fields about the sender; for the server that gets the request, not for servers that it asks in
turn."""
WINDOW_MS: Final = 300_000
"""Largest difference between the clocks of a client and a server, in ms."""
SESSION_LENGTH: Final = 11

MARK_LENGTH: Final = 16

_HEAD = Struct(">13siiQ").pack
_LABEL: Final = b"rmq request 1"
_JOINED_MAX: Final = 4096
_ORDERS_MAX: Final = 256
_NAMES_LENGTH_MAX: Final = 1024


def _check_text(account: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, str) and (value is not None or attribute.default is NOTHING):
        # The error names only the type of a value that may be a secret.
        raise InvalidType(attribute.name, value if attribute.repr else type(value), "text")


@frozen
class Credentials:
    """An account: its name and its secret, which is never shown. Raises InvalidType for a value that is no
    text."""

    access_key: str = field(validator=_check_text)
    secret_key: str = field(repr=False, validator=_check_text)
    security_token: str | None = field(default=None, repr=False, validator=_check_text)


class Key:
    """A secret, ready for signing. Begun HMACs are made once, since a copy costs a third of a new HMAC, and
    every request needs an HMAC."""

    __slots__ = ("_secret", "_sha1", "_sha256", "mark")

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._sha1: hmac.HMAC | None = None
        self._sha256: hmac.HMAC | None = None
        digest = hmac.digest(self._secret, b"rmq proof mark", "sha256")
        self.mark = base64.urlsafe_b64encode(digest[:12]).decode()
        """Begins the nonce of each proof under this secret, and is used nowhere else."""

    def sha1(self) -> hmac.HMAC:
        """A new HMAC-SHA1 under the secret."""
        if self._sha1 is None:
            self._sha1 = hmac.new(self._secret, None, "sha1")
        return self._sha1.copy()

    def sha256(self) -> hmac.HMAC:
        """A new HMAC-SHA256 under the secret."""
        if self._sha256 is None:
            self._sha256 = hmac.new(self._secret, None, "sha256")
        return self._sha256.copy()


@lru_cache(maxsize=256)
def key_of(secret: str) -> Key:
    """The key of a client's own secret. A server keeps the keys of its accounts itself."""
    return Key(secret)


class Order:
    """The order of the fields of headers with certain names for signing: values in the order of their names,
    as Java sorts strings, by UTF-16 units."""

    __slots__ = ("is_kept", "lengths", "names", "proved_names", "proved_values", "values")

    def __init__(self, names: tuple[str, ...]) -> None:
        ordered = sorted((name for name in names if name != SIGNATURE), key=_java_order)
        proved = [name for name in ordered if name != PROOF]
        self.names = names
        self.values = _getter(ordered)
        self.proved_values = _getter(proved)
        self.proved_names = "".join(f"{len(name)}:{name}," for name in proved)
        self.lengths = Struct(f">I{len(proved)}I").pack
        self.is_kept = False

    def content(self, ext: Mapping[str, str], body: bytes) -> bytes:
        """The bytes that Java signs. Bytes that are no UTF-8 may be escaped, as surrogateescape does."""
        return "".join(self.values(ext)).encode("utf-8", "surrogateescape") + body

    def keep(self) -> None:
        """Remember the order for the next header with these names: clients repeat the same few lists of
        names. Only for headers of known senders: strangers may name anything."""
        if sum(map(len, self.names)) <= _NAMES_LENGTH_MAX:
            if len(_ORDERS) >= _ORDERS_MAX:
                _ORDERS.clear()
            _ORDERS[self.names] = self
        self.is_kept = True


_ORDERS: Final[dict[tuple[str, ...], Order]] = {}
"""Names of a header, in their order of arrival -> their order for signing."""


def order_of(ext: Mapping[str, str]) -> Order:
    """The order of a header's names, remembered or new."""
    names = tuple(ext)
    return _ORDERS.get(names) or Order(names)


def signed(command: Command, credentials: Credentials) -> Command:
    """The same command with the account's name and its signature, as RocketMQ's clients send it."""
    ext = with_account(command.ext, credentials)
    ext[SIGNATURE] = signature(ext, command.body, key_of(credentials.secret_key))
    return command.with_ext(ext)


def unsigned(ext: Mapping[str, str]) -> dict[str, str]:
    """A header without signature and proof."""
    return {name: value for name, value in ext.items() if name not in SIGNING_FIELDS}


def with_account(ext: Mapping[str, str], credentials: Credentials) -> dict[str, str]:
    """A header with the name of the account."""
    named = {**ext, ACCESS_KEY: credentials.access_key}
    if credentials.security_token is not None:
        named[SECURITY_TOKEN] = credentials.security_token
    return named


def signature(ext: Mapping[str, str], body: bytes, key: Key) -> str:
    """The signature of a client's own header and body; a signature in the header does not count."""
    order = order_of(ext)
    if not order.is_kept:
        order.keep()
    return signature_of(order.content(ext, body), key)


def signature_of(content: bytes, key: Key) -> str:
    """The signature of a result of `Order.content`."""
    digest = key.sha1()
    digest.update(content)
    return base64.b64encode(digest.digest()).decode()


# --- proofs ---


class Prover:
    """Signs the requests of a connection, with signature and proof, in the order in which they are sent."""

    def __init__(
        self, credentials: Credentials, now_ms: Callable[[], int], session: bytes | None = None
    ) -> None:
        """`session` is 8 unique bytes; random by default."""
        self._credentials = credentials
        self._key = key_of(credentials.secret_key)
        self._now_ms = now_ms
        text = base64.urlsafe_b64encode(session or os.urandom(8)).decode()[:SESSION_LENGTH]
        self._prefix = f"{self._key.mark}{text}."
        self._count = 0

    def __call__(self, command: Command) -> Command:
        """The command, signed. Sign each command once."""
        self._count += 1
        ext = with_account(command.ext, self._credentials)
        ext[TIME] = str(self._now_ms())
        ext[NONCE] = f"{self._prefix}{self._count}"
        order = order_of(ext)
        if not order.is_kept:
            order.keep()
        ext[PROOF] = proof(order, ext, command, self._key)
        ext[SIGNATURE] = signature(ext, command.body, self._key)
        return command.with_ext(ext)


def proof(order: Order, ext: Mapping[str, str], command: Command, key: Key) -> str:
    """The proof of a request with the header `ext`; proof and signature in the header do not count."""
    body = command.body
    covered = _covered(order, ext, command)
    digest = key.sha256()
    if len(body) <= _JOINED_MAX:
        digest.update(covered + body)
    else:
        digest.update(covered)
        digest.update(body)
    return base64.b64encode(digest.digest()).decode()


def _covered(order: Order, ext: Mapping[str, str], command: Command) -> bytes:
    """All but the body: label, code, flag, length of the body; for each field the length of its value; each
    name with its length; the values. Fields are in the order of their names, lengths are in characters."""
    values = order.proved_values(ext)
    names = order.proved_names
    return b"".join(
        (
            _HEAD(_LABEL, command.code, command.flag, len(command.body)),
            order.lengths(len(names), *map(len, values)),
            names.encode(),
            "".join(values).encode(),
        )
    )


def _getter(names: list[str]) -> Callable[[Any], Any]:
    # With less than two names an itemgetter gives no tuple.
    return itemgetter(*names) if len(names) > 1 else lambda ext: [ext[name] for name in names]


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
