"""Who may follow a master: a challenge and its answers, before the first byte of replication.

    slave  -> master   MAGIC, 32 random bytes
    master -> slave    MAGIC, 32 random bytes of its own
    slave  -> master   HMAC-SHA256 of both, under the secret
    master -> slave    the same under another label: the slave knows its master too

MAGIC stands where a slave without a secret reports its offset (`rmq.broker.ha`), and is greater than any.
Both sides' random bytes are in both proofs: what was recorded is worth nothing later, and no side's proof can
be sent back to it. The secret is never sent. This knows the peer, it does not hide the log: that does TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from rmq.errors import RemoteProtocolError

MAGIC: Final = b"rmq-ha/1"
NONCE_BYTES: Final = 32
GREETING_BYTES: Final = len(MAGIC) + NONCE_BYTES
PROOF_BYTES: Final = 32
SECRET_KEY: Final = "haSecretFile or clusterSecretFile"


class Challenge:
    """One side of the exchange. `nonce` is of NONCE_BYTES random bytes, never used before."""

    def __init__(self, secret: bytes, nonce: bytes, *, master: bool) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._master = master
        self._nonces = {master: nonce}
        self.greeting = MAGIC + nonce

    def greeted(self, greeting: bytes) -> None:
        """Take the peer's greeting. Raises RemoteProtocolError."""
        if not greeting.startswith(MAGIC):
            raise RemoteProtocolError(f"it does not prove that it has the secret: set {SECRET_KEY} there")
        nonce = greeting[len(MAGIC) :]
        if hmac.compare_digest(nonce, self._nonces[self._master]):
            raise RemoteProtocolError("it repeats our own challenge")
        self._nonces[not self._master] = nonce

    def proof(self) -> bytes:
        """What proves to the peer that we have the secret."""
        return self._proof(self._master)

    def check(self, proof: bytes) -> None:
        """Raises RemoteProtocolError unless the peer's proof is right."""
        if not hmac.compare_digest(proof, self._proof(not self._master)):
            raise RemoteProtocolError(f"it has another secret: compare the files of {SECRET_KEY}")

    def _proof(self, master: bool) -> bytes:
        label = b"rmq ha master" if master else b"rmq ha slave"
        return hmac.digest(self._secret, label + self._nonces[False] + self._nonces[True], hashlib.sha256)
