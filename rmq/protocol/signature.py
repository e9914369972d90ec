"""The ACL signature of a command: the client signs, the broker's plugin checks.

Base64 of HMAC-SHA1, under the secret key, of all header values in the order of their names, then the body.
Pinned by tests/golden/acl_signature.json."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from attrs import field, frozen

from rmq.protocol.command import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

_ORDERS_MAX: Final = 256
_ORDERS: Final[dict[tuple[str, ...], Callable[[Any], Any]]] = {}
"""Names of a header, as they came -> what takes its values in the order in which they are signed. Clients
send the same few lists of names again and again."""


@frozen
class Credentials:
    """An account: its name and its secret, which is never shown."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def signed(command: Command, credentials: Credentials) -> Command:
    """The same command with the account's name and its signature in the header."""
    ext = {**command.ext, ACCESS_KEY: credentials.access_key}
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, command.body, credentials.secret_key)
    return command.with_ext(ext)


def signature(ext: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """The signature of a header and a body; a signature in the header does not count."""
    names = tuple(ext)
    values = _ORDERS.get(names) or _order(names)
    # A copy of a begun HMAC costs a third of a new one, and this is done for every request.
    begun = _begun(secret_key).copy()
    begun.update("".join(values(ext)).encode() + body)
    return base64.b64encode(begun.digest()).decode()


@lru_cache(maxsize=256)
def _begun(secret_key: str) -> hmac.HMAC:
    return hmac.new(secret_key.encode(), None, "sha1")


def _order(names: tuple[str, ...]) -> Callable[[Any], Any]:
    ordered = sorted((name for name in names if name != SIGNATURE), key=_java_order)
    # With less than two names an itemgetter gives no tuple.
    values = itemgetter(*ordered) if len(ordered) > 1 else lambda ext: [ext[name] for name in ordered]
    if len(_ORDERS) >= _ORDERS_MAX:
        _ORDERS.clear()  # somebody sends names that are made up
    _ORDERS[names] = values
    return values


def _java_order(name: str) -> bytes:
    """Java compares strings by UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")
