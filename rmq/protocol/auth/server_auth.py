"""Server authentication: the servers of a cluster prove their identity with a shared secret.

A broker signs its requests to name servers and its master: HMAC-SHA256, under a secret of all servers of the
cluster, of the request's code, all header fields with their names, and the body. The header has time and
nonce, so that a recorded request cannot be sent again. RocketMQ has no such authentication: its servers
ignore these fields, and a name server with a cluster secret refuses its brokers.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final

from attrs import field, frozen

from rmq.errors import AccessDenied
from rmq.protocol.command import Command

TIME: Final = "ClusterTime"
NONCE: Final = "ClusterNonce"
PROOF: Final = "ClusterProof"

WINDOW_MS: Final = 300_000
"""Largest difference between the clocks of two servers, in ms."""
SECRET_BYTES_MIN: Final = 16


@frozen
class ClusterSecret:
    """The secret of all servers of a cluster. It is never shown."""

    value: bytes = field(repr=False)
    others: tuple[bytes, ...] = field(default=(), repr=False)
    """Secrets that are accepted too, while a secret is being replaced."""

    def sign(self, command: Command, now_ms: int, nonce: bytes) -> Command:
        """The command, signed. `nonce` is of at least 16 random bytes, never used before."""
        ext = {
            **command.ext,
            TIME: str(now_ms),
            NONCE: base64.b64encode(nonce).decode(),
        }
        ext[PROOF] = _proof(self.value, command.code, ext, command.body)
        return command.with_ext(ext)

    def verifies(self, command: Command) -> bool:
        """True if a holder of the secret signed the command, at any time."""
        given = command.ext.get(PROOF, "").encode()
        return any(
            hmac.compare_digest(_proof(value, command.code, command.ext, command.body).encode(), given)
            for value in (self.value, *self.others)
        )


def _proof(value: bytes, code: int, ext: Mapping[str, str], body: bytes) -> str:
    digest = hmac.new(value, b"rmq request %d" % code, hashlib.sha256)
    for name in sorted(ext):
        if name != PROOF:  # lengths, so that no two headers give the same bytes
            pair = name.encode(), ext[name].encode()
            digest.update(b"\n%d %d " % (len(pair[0]), len(pair[1])) + b"".join(pair))
    digest.update(b"\n\n" + body)
    return base64.b64encode(digest.digest()).decode()


class ServerAuth:
    """Checks that requests come from servers of the cluster, each once. `now_ms` is wall time."""

    def __init__(self, secret: ClusterSecret, now_ms: Callable[[], int]) -> None:
        self._secret = secret
        self._now_ms = now_ms
        # Nonces of accepted requests, in two generations: one is kept while its time could still be accepted.
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._turned_ms = now_ms()

    def check(self, command: Command) -> None:
        """Raises AccessDenied with the reason unless the command is signed, recent and new."""
        if PROOF not in command.ext:
            raise AccessDenied(
                remark="this request must be signed with the cluster secret: set clusterSecretFile at its"
                " sender; only servers of this cluster may send it"
            )
        if not self._secret.verifies(command):
            raise AccessDenied(remark="the request is signed with another cluster secret: compare the files")
        self._check_fresh(command.ext.get(TIME, ""), command.ext.get(NONCE, ""))

    def accepts(self, command: Command) -> bool:
        """True if `check` accepts the command."""
        try:
            self.check(command)
        except AccessDenied:
            return False
        return True

    def _check_fresh(self, time_text: str, nonce: str) -> None:
        now_ms = self._now_ms()
        age_ms = now_ms - int(time_text) if time_text.isascii() and time_text.isdigit() else now_ms
        if abs(age_ms) > WINDOW_MS:
            raise AccessDenied(
                remark=f"the request was signed {age_ms / 1000:.0f} s ago by this server's clock, and"
                f" {WINDOW_MS / 1000:.0f} s are allowed: compare the clocks"
            )
        if now_ms - self._turned_ms > 2 * WINDOW_MS:
            self._seen, self._seen_before, self._turned_ms = set(), self._seen, now_ms
        if nonce in self._seen or nonce in self._seen_before:
            raise AccessDenied(remark="the request was sent before: a replay is not accepted")
        self._seen.add(nonce)
