"""The ACL signature of a command: the client signs, the broker's plugin checks.

Base64 of HMAC-SHA1, under the secret key, of all header values in the order of their names, then the body.
Pinned by tests/golden/acl_signature.json."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from rmq.protocol.command import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"


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
    return Command(
        command.code,
        command.opaque,
        command.flag,
        ext,
        command.body,
        command.remark,
        command.language,
        command.version,
        command.serialization,
    )


def signature(ext: Mapping[str, str], body: bytes, secret_key: str) -> str:
    """The signature of a header and a body; a signature in the header does not count."""
    names = [name for name in ext if name != SIGNATURE]
    names.sort(key=None if "".join(names).isascii() else _java_order)
    signed_bytes = "".join([ext[name] for name in names]).encode() + body
    # One call into OpenSSL: hmac.new() costs three times as much, and this is done for every request.
    return base64.b64encode(hmac.digest(secret_key.encode(), signed_bytes, "sha1")).decode()


def _java_order(name: str) -> bytes:
    """Java compares strings by UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")
