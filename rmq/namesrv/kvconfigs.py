"""KvConfigs: small texts that administrators keep in the name server, namespace -> key -> value."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from rmq.errors import RemoteProtocolError, SystemFailure
from rmq.protocol.bodies import KVConfigSerializeWrapper, KVTable

log = logging.getLogger("rmq.namesrv")

NAMESPACE_ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""Topic -> `broker:queues;broker:queues`, the fixed queues of a globally ordered topic."""

MAX_ENTRIES: Final = 100_000
MAX_SIZE: Final = 4 << 20
MAX_TEXT: Final = 64 * 1024
MAX_NAME: Final = 255


class KvConfigs:
    """Key-value texts; each change is saved before readers see it."""

    def __init__(
        self, save: Callable[[bytes], None], saved: bytes | None = None, *, most: int = MAX_SIZE
    ) -> None:
        """`saved` is the content of the last `save`; raises RemoteProtocolError when it cannot be read.
        `most` is the limit on the characters of all texts."""
        self._save = save
        self._most = most
        self._table: dict[str, dict[str, str]] = {}
        if saved is not None:
            self._table = KVConfigSerializeWrapper.from_json(saved).config_table

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> KVTable | None:
        """All values of a namespace; None for a namespace that never had a value."""
        table = self._table.get(namespace)
        return None if table is None else KVTable(dict(table))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises SystemFailure, with nothing changed, at a limit or when it cannot be saved."""
        _check(namespace, key, value)
        changed = {name: dict(table) for name, table in self._table.items()}
        changed.setdefault(namespace, {})[key] = value
        if sum(map(len, changed.values())) > MAX_ENTRIES:
            raise SystemFailure(None, f"the name server already keeps {MAX_ENTRIES} texts")
        size = _size(self._table)
        if _size(changed) > max(self._most, size):
            raise SystemFailure(
                None, f"the name server keeps {size} characters, maxKvConfigBytes is {self._most}"
            )
        self._keep(changed)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if present. Raises SystemFailure, with nothing changed, when the removal cannot be
        saved."""
        if self.get(namespace, key) is None:
            return
        changed = {name: dict(table) for name, table in self._table.items()}
        del changed[namespace][key]
        self._keep(changed)

    def _keep(self, changed: dict[str, dict[str, str]]) -> None:
        try:
            self._save(KVConfigSerializeWrapper(changed).to_json())
        except OSError as error:
            log.error("the key-value configs cannot be saved: %s", error)
            raise SystemFailure(None, f"the change cannot be saved and was not made: {error}") from error
        self._table = changed


def _size(table: dict[str, dict[str, str]]) -> int:
    """Characters of all names and values, and of the JSON around them."""
    return sum(len(key) + len(value) + 6 for texts in table.values() for key, value in texts.items())


def _check(namespace: str, key: str, value: str) -> None:
    if not (0 < len(namespace) <= MAX_NAME and 0 < len(key) <= MAX_NAME):
        raise SystemFailure(None, f"namespace and key: 1 to {MAX_NAME} characters each")
    if len(value) > MAX_TEXT:
        raise SystemFailure(None, f"value: at most {MAX_TEXT} characters")


def load(text: bytes | None, path: str) -> bytes | None:
    """Check saved content before a server starts with it; raises RemoteProtocolError that names the file."""
    if text is None or not text.strip():
        return None
    try:
        KVConfigSerializeWrapper.from_json(text)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{path} is damaged, repair or remove it: {error}") from error
    return text
