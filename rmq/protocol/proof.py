"""A proof beside Java's signature: who sent a request, what it asks, and that it is no recorded one.

RocketMQ's signature covers neither the request code nor the borders of fields, and holds no time. Our clients
add three fields, which RocketMQ's servers ignore (its signature covers them as any others):

    RmqTime    milliseconds since 1970, by the client's clock
    RmqNonce   mark of the account's secret (16), a session (11), a dot, a number that grows with each request
    RmqProof   Base64 of HMAC-SHA256, under the secret, of what `_covered` puts together

A session is one connection. Its requests arrive in the order of their numbers, so that a server need remember
only the last number of each session, and not every request.

The mark keeps a proved request from being sent as one without proof, by another name for the field: the
values stay in what Java's signature covers, the mark among them, and where that is, a proof must be.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final

from rmq.protocol.command import Command
from rmq.protocol.signature import (
    PROOF,
    SIGNATURE,
    Credentials,
    Key,
    Order,
    key_of,
    order_of,
    signature,
    with_account,
)

TIME: Final = "RmqTime"
NONCE: Final = "RmqNonce"
WINDOW_MS: Final = 300_000
"""How far the clocks of a client and a server may be apart."""
SESSION_LENGTH: Final = 11

_HEAD = Struct(">13siiQ").pack
_LABEL: Final = b"rmq request 1"
_JOINED_MAX: Final = 4096


class Prover:
    """Signs the requests of one connection, in both ways, in the order in which they are sent."""

    def __init__(
        self, credentials: Credentials, now_ms: Callable[[], int], session: bytes | None = None
    ) -> None:
        """`session` is of 8 bytes that nobody else has; random ones by default."""
        self._credentials = credentials
        self._key = key_of(credentials.secret_key)
        self._now_ms = now_ms
        text = base64.urlsafe_b64encode(session or os.urandom(8)).decode()[:SESSION_LENGTH]
        self._prefix = f"{self._key.mark}{text}."
        self._count = 0

    def __call__(self, command: Command) -> Command:
        """The command, signed. Each may be sent once."""
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
