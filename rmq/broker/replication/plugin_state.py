"""Plug-in state: a text of each plug-in that the brokers of a set with controllers share over the replication
stream.

A plug-in of the master gives its text (`Plugin.shared`); slaves hand it to the same plug-in
(`Plugin.take_shared`). So a new master has the accounts of its predecessor. A text may hold secrets and the
link may be plain, so the text is sealed with AES-256-GCM, under a key derived from the cluster's secret by
HKDF-SHA256. An eavesdropper cannot read the text, and a peer without the secret cannot make a valid text. A
text that was recorded in another epoch, or that comes after a later text of this epoch, is rejected.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Callable, Collection, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from rmq.broker.tables.versioned import Changes
from rmq.errors import RemoteProtocolError, RmqError
from rmq.protocol import json

if TYPE_CHECKING:
    from rmq.plugin import Plugin
    from rmq.protocol.auth.server_auth import ClusterSecret

TEXT_MAX: Final = 2 << 20
"""Bytes of one text: sealed and encoded it must fit a frame of the link."""
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
_LABEL: Final = b"rmq shared texts"
_NUMBER: Final = Struct(">q")

log = logging.getLogger("rmq.ha")


class Seal:
    """Seals under the cluster's secret; also opens texts that were sealed under a secret that is being
    replaced."""

    def __init__(self, secret: ClusterSecret) -> None:
        self._keys = [_key(value) for value in (secret.value, *secret.others)]

    def seal(self, text: bytes, about: bytes) -> bytes:
        """Seal a text. `about` is not part of the sealed text, and must be the same when it is opened."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self._keys[0]).encrypt(nonce, text, about)

    def open(self, sealed: bytes, about: bytes) -> bytes | None:
        """The opened text; None unless the text was sealed under a known secret and about the same
        subject."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for key in self._keys:
            try:
                return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
            except (InvalidTag, ValueError):  # ValueError: too short
                continue
        return None


def _key(secret: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=_LABEL).derive(secret)


class PluginState:
    """A `StreamedTable` whose rows are the plug-ins' texts, by the names of the plug-ins. `epoch` is the
    epoch that this broker leads or follows."""

    def __init__(
        self,
        plugins: Sequence[tuple[str, Plugin]],
        secret: ClusterSecret,
        broker_name: str,
        epoch: Callable[[], int],
    ) -> None:
        self.changes = Changes()
        self._plugins = dict(plugins)
        self._seal = Seal(secret)
        self._broker_name = broker_name
        self._epoch = epoch
        self._sealed = 0
        self._taken: dict[str, tuple[int, int]] = {}  # epoch and number of the last one

    def changed(self) -> None:
        """Some plug-in has another text."""
        self.changes.add(self.names())

    def names(self) -> list[str]:
        """Names of the plug-ins that share state with other replicas."""
        return [name for name, plugin in self._plugins.items() if plugin.shared() is not None]

    def text_of(self, names: Collection[str]) -> bytes:
        """The sealed texts of these plug-ins."""
        rows: dict[str, str] = {}
        for name in names:
            plugin = self._plugins.get(name)
            text = None if plugin is None else plugin.shared()
            if text is None:
                continue
            if len(text) > TEXT_MAX:
                log.error(
                    "the state of plugin %s is not replicated: %d bytes, the limit is %d",
                    name,
                    len(text),
                    TEXT_MAX,
                )
                continue
            self._sealed += 1
            sealed = self._seal.seal(_NUMBER.pack(self._sealed) + text, self._about(name))
            rows[name] = base64.b64encode(sealed).decode()
        return json.dumps(rows)

    def missing(self, names: Collection[str]) -> list[str]:
        """None: a deleted text stays in place."""
        return []

    def rows_of(self, text: bytes) -> tuple[dict[str, Any], Any]:
        """The sealed texts of a note. Raises RemoteProtocolError."""
        rows = json.loads(text)
        if not isinstance(rows, dict) or not all(isinstance(row, str) for row in rows.values()):
            raise RemoteProtocolError("the master's note about shared texts cannot be read")
        return rows, None

    def apply_delta(self, rows: dict[str, Any], version: Any, deleted: Collection[str] | None) -> bool:
        """Hand the texts of the master to the plug-ins. A rejected text is logged."""
        for name, row in rows.items():
            plugin = self._plugins.get(name)
            text = None if plugin is None else self._opened(name, row)
            if plugin is None or text is None:
                continue
            try:
                plugin.take_shared(text)
            except RmqError as error:
                log.error("plugin %s refuses the state of its master: %s", name, error)
        return False

    def _opened(self, name: str, row: str) -> bytes | None:
        try:
            sealed = base64.b64decode(row, validate=True)
        except ValueError:
            sealed = b""
        text = self._seal.open(sealed, self._about(name))
        if text is None or len(text) < _NUMBER.size:
            log.error(
                "cannot open the state of plugin %s from the master: is its clusterSecretFile the same?",
                name,
            )
            return None
        place = self._epoch(), _NUMBER.unpack_from(text)[0]
        if place <= self._taken.get(name, (-1, -1)):
            log.error("rejected replayed state of plugin %s", name)
            return None
        self._taken[name] = place
        return text[_NUMBER.size :]

    def _about(self, name: str) -> bytes:
        return f"{self._broker_name}\n{self._epoch()}\n{name}".encode()
