"""Broadcasting: every member gets every message, and keeps its own offsets in a file.

The file is `offsets.json` below ``<offsets_dir>/<client>/<group>/``, in the form of the Java client's, so
that either goes on where the other was. It is replaced as a whole; the one before stays as
``offsets.json.bak``.
"""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Final

from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol.bodies import ResetOffsetBody

log = logging.getLogger(__name__)

DEFAULT_DIR: Final = ".rocketmq_offsets"
"""In the home directory; where Java's clients have it."""


def offsets_path(directory: str, client: str, group: str) -> pathlib.Path:
    """Where the offsets of a client's group lie."""
    root = pathlib.Path(directory) if directory else pathlib.Path.home() / DEFAULT_DIR
    return root / client.replace(os.sep, "_") / group.replace(os.sep, "_") / "offsets.json"


class LocalOffsets:
    """The offsets in a file. A file that cannot be read is as good as none, but for a warning."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")
        self._offsets = self._load(path) or self._load(self._backup) or {}

    def get(self, queue: MessageQueue) -> int | None:
        """Where to go on in the queue; None when it was never read."""
        return self._offsets.get(queue)

    def update(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Take these offsets and write the file, if anything is new. What fails is logged."""
        changed = {queue: at for queue, at in offsets.items() if self._offsets.get(queue) != at}
        if not changed:
            return
        self._offsets.update(changed)
        try:
            self._save()
        except OSError as error:
            log.error("%s: the offsets are not saved: %s", self.path, error)

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        fresh.write_bytes(ResetOffsetBody(self._offsets).to_json())
        if self.path.exists():
            os.replace(self.path, self._backup)
        os.replace(fresh, self.path)

    def _load(self, path: pathlib.Path) -> dict[MessageQueue, int] | None:
        try:
            return dict(ResetOffsetBody.from_json(path.read_bytes()).offset_table)
        except FileNotFoundError:
            return None
        except (OSError, RemoteProtocolError) as error:
            log.warning("%s cannot be read: %s", path, error)
            return None
