"""The offsets of a broadcasting member, in a file: `offsets.json` below ``<offsets_dir>/<client>/<group>/``.

The file has the form of the Java client's, so that either client continues where the other stopped. The file
is replaced as a whole; its predecessor stays as ``offsets.json.bak``.
"""

from __future__ import annotations

import logging
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Final

from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol.bodies import LocalOffsetsBody

log = logging.getLogger("rmq.client.assignments")

WINDOWS_FORBIDS: Final = '<>:"/\\|?*'
DEFAULT_DIR: Final = ".rocketmq_offsets"
"""In the home directory, as Java's clients have it."""


def offsets_path(directory: str, client: str, group: str) -> pathlib.Path:
    """The path of the offsets of a client's group."""
    root = pathlib.Path(directory) if directory else pathlib.Path.home() / DEFAULT_DIR
    return root / _folder(client) / _folder(group) / "offsets.json"


def _folder(name: str) -> str:
    """The name of a folder for a client or a group: on Windows a colon of an IPv6 address, and the ``|`` of a
    group, would be refused."""
    forbidden = WINDOWS_FORBIDS if sys.platform == "win32" else os.sep
    return name.translate({ord(one): "_" for one in forbidden})


OTHERS_MOST: Final = 1_000
"""Queues beside the present ones whose offsets the file keeps: a broker that is away comes back, and brokers
and queues that are gone for good fill no file."""
NO_CREATIONS: Final[Mapping[MessageQueue, int]] = {}


class LocalOffsets:
    """The offsets in a file. A file that cannot be read counts as missing, with a warning. `save` may run in
    a thread, and go on in it when nobody waits any more: a later call takes precedence."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")
        self._offsets, self._created_ms = self._load(path) or self._load(self._backup) or ({}, {})
        self.is_saved = True
        """False while the file lacks something, or was not written the last time."""
        self._saves = 0
        self._present = 0  # queues of the largest update: some have a part of the queues

    def get(self, queue: MessageQueue) -> int | None:
        """The next offset of the queue; None when it was never read."""
        return self._offsets.get(queue)

    def created_ms(self, queue: MessageQueue) -> int | None:
        """The creation of the topic that this offset belongs to; None when the file does not have it."""
        return self._created_ms.get(_key(queue))

    def has(self, topic: str) -> bool:
        """True if any queue of the topic was read."""
        return any(offset > 0 for queue, offset in self._offsets.items() if queue.topic == topic)

    def update(
        self, offsets: Mapping[MessageQueue, int], created_ms: Mapping[MessageQueue, int] = NO_CREATIONS
    ) -> None:
        """Take these offsets, and the known creations of their topics."""
        made = {_key(queue): created_ms[queue] for queue in offsets if queue in created_ms}
        if offsets.items() <= self._offsets.items() and made.items() <= self._created_ms.items():
            return
        self.is_saved = False
        for queue, offset in offsets.items():
            self._offsets.pop(queue, None)  # its row is the newest now
            self._offsets[queue] = offset
            self._created_ms.pop(_key(queue), None)
        self._created_ms.update(made)
        self._present = max(self._present, len(offsets))
        for queue in list(self._offsets)[: max(0, len(self._offsets) - self._present - OTHERS_MOST)]:
            del self._offsets[queue]
            self._created_ms.pop(_key(queue), None)

    def save(self) -> None:
        """Write the file. A failure is logged."""
        self._saves += 1
        self.is_saved = True  # before the copies: what comes from now on is for the next call
        offsets, created_ms = self._offsets.copy(), self._created_ms.copy()
        try:
            self._write(LocalOffsetsBody(offsets, created_ms or None), self._saves)
        except OSError as error:
            self.is_saved = False
            log.error("%s: cannot save the local offsets: %s", self.path, error)

    def _write(self, body: LocalOffsetsBody, number: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}-{number}.tmp")
        fresh.write_bytes(body.to_json())
        if number != self._saves:
            fresh.unlink()
            return
        if self.path.exists():
            os.replace(self.path, self._backup)
        os.replace(fresh, self.path)

    def _load(self, path: pathlib.Path) -> tuple[dict[MessageQueue, int], dict[str, int]] | None:
        try:
            saved = LocalOffsetsBody.from_json(path.read_bytes())
            return dict(saved.offset_table), dict(saved.topic_creations or {})
        except FileNotFoundError:
            return None
        except (OSError, RemoteProtocolError) as error:
            log.warning("cannot read the local offsets in %s: %s", path, error)
            return None


def _key(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"
