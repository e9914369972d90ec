"""Delivery checkpoint: how far deliveries were in the part of the log that no replica ever cuts.

A master that is cut off goes on delivering into a log that no other replica has. When it follows its
successor, that end of its log is cut, and the deliveries in it are lost; but its saved progress still counts
these deliveries. If it is elected before it has the progress of its master, it never delivers those messages.
So a replica also keeps, in `config/confirmedProgress.json`, the progress for which all replicas had the log,
and goes back to this progress before its log is cut. Some messages are delivered twice after that.
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
        """Save the confirmed progress, if any, and sample the present progress. Called before tables are
        saved. Raises StoreError."""
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
    """The reason why our log may not be cut at `cut`; empty when it may. Beyond `cut` our log has whole
    records that all replicas in sync had (`confirmed`): the master has lost them, and ours may be the only
    copy."""
    last = last_record(store, min(confirmed, store.max_physical_offset))
    if last is None or last[1] <= cut:
        return ""
    return (
        f"its log is the same as ours up to {cut} only, and all in sync had ours up to {last[1]} (was"
        " an old copy of its store put back?). Ours is set aside, not cut"
    )
