"""How far deliveries were in the part of the log that no replica ever cuts, in a set with controllers.

A master that is cut off goes on delivering into a log that no other replica has. When it follows its
successor that end of its log is cut, and what it had delivered there is not delivered any more; but its
progress, which is saved every few seconds, says so. Elected before its master has told it better, it would
never deliver it. So beside its progress a replica keeps the one for which all replicas had the log, in
`config/confirmedProgress.json`, and goes back to it before its log is cut. Some things come twice then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rmq.broker.replication.sessions import last_record
from rmq.broker.tables.versioned import run_to_end
from rmq.protocol import json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmq.broker.replication.replica_state import DeliveryProgress
    from rmq.broker.role import Role
    from rmq.broker.tables.files import TableFiles
    from rmq.broker.tables.versioned import Slices
    from rmq.store.store import Store

NAME: Final = "confirmedProgress"


class DeliveryCheckpoint:
    """Made when a broker is opened, before it delivers anything."""

    def __init__(self, role: Role, store: Store, files: TableFiles, delivery: DeliveryProgress) -> None:
        self._role = role
        self._store = store
        self._files = files
        self._delivery = delivery
        self._sample = self._now()
        self._saved: dict[str, Any] | None = None
        # Looked up once: reading it again could wait for a file that is being written, in the event loop.
        self._has_file = store.config_text(NAME) is not None

    def look(self) -> None:
        """Called before tables are saved: have the progress saved that is confirmed by now, and wait for the
        present one. Raises StoreError."""
        if not self._role.is_in_set:
            return
        confirmed = self._role.high_watermark()
        is_confirmed = confirmed is not None and self._sample["end"] <= confirmed
        if self._sample != self._saved and (is_confirmed or not self._has_file):
            self._files.save_later(NAME, json.dumps(self._sample))
            self._saved, self._has_file = self._sample, True
        if is_confirmed:
            self._sample = self._now()

    def _now(self) -> dict[str, Any]:
        return {"end": self._store.max_physical_offset, **self._delivery.now()}


def go_back(store: Store, delivery: DeliveryProgress, saving: Callable[[], Slices[dict[str, bytes]]]) -> None:
    """A slave's log is about to be cut: have the confirmed progress, on the disk too. Raises StoreError, and
    RemoteProtocolError for a file that cannot be read."""
    text = store.config_text(NAME)
    if text is not None:
        delivery.take(json.loads(text))
        store.save_configs(run_to_end(saving()))


def lost_by_cut(store: Store, confirmed: int, cut: int) -> str:
    """Why our log may not be cut there: it has whole records beyond that all in sync had, `confirmed`, so
    that the master has lost them and ours may be the only copy. Empty when there are none."""
    last = last_record(store, min(confirmed, store.max_physical_offset))
    if last is None or last[1] <= cut:
        return ""
    return (
        f"its log is the same as ours up to {cut} only, and all in sync had ours up to {last[1]} (was"
        " an old copy of its store put back?). Ours is set aside, not cut"
    )
