"""A log that is given up is kept: it moves to a folder of its own, `aside/commitlog` beside the log's folder.

A log's folder may be a volume of its own, or a link to one: it can be neither renamed nor moved elsewhere
then. Its files move to the folder `aside` within it, which our brokers leave alone. (RocketMQ's broker does
not start with a folder there: move it away before.)
"""

from __future__ import annotations

import logging
import os
import re
from typing import Final

from rmq.errors import StoreError
from rmq.store.abort import mark_of
from rmq.store.checkpoint import Checkpoint
from rmq.store.disk import Disk

log = logging.getLogger("rmq.store")

_NAME: Final = re.compile(r"[0-9]{20}")
_INSIDE: Final = "aside"
_PART: Final = "aside.part"
"""While files move: what a crash left there moves on with the next try."""


def find_aside(disk: Disk, log_folder: str) -> str:
    """The folder of an earlier log that was set aside; where the next one goes, when there is none."""
    inside = os.path.join(log_folder, _INSIDE)
    return inside if disk.exists(inside) else _beside(log_folder)


def move_aside(disk: Disk, log_folder: str) -> str:
    """Move a log aside, and return the folder where it is. No file of it is open.

    Raises StoreError, also when an earlier log lies there; then the log is where it was, or, on a volume of
    its own, a part of it is in `aside.part`.
    """
    aside = find_aside(disk, log_folder)
    if disk.exists(aside):
        raise _is_there(disk, log_folder)
    if not disk.exists(os.path.join(log_folder, _PART)):
        try:
            disk.move(log_folder, aside)
            return aside
        except StoreError as error:
            log.warning("%s cannot be moved (%s): its files move to a folder within it", log_folder, error)
    part, aside = os.path.join(log_folder, _PART), os.path.join(log_folder, _INSIDE)
    for name in disk.list(log_folder):
        if _NAME.fullmatch(name):
            disk.move(os.path.join(log_folder, name), os.path.join(part, name))
    disk.move(part, aside)
    return aside


def give_up(disk: Disk, root: str, log_folder: str) -> str:
    """Set aside the log of a store that nobody has open, and remove what goes with it: queues and index, and
    what `abort` and the checkpoint say of it. Returns where the log is.

    Raises StoreLocked, StoreError; then nothing is changed, or the next try goes on.
    """
    lock = disk.lock(os.path.join(root, "lock"))
    try:
        abort, path = os.path.join(root, "abort"), os.path.join(root, "checkpoint")
        if disk.exists(find_aside(disk, log_folder)):
            raise _is_there(disk, log_folder)
        if disk.exists(abort):
            disk.replace(abort, mark_of(0))
        checkpoint = Checkpoint(disk, path)
        try:
            checkpoint.lower(0, 0)
        finally:
            checkpoint.close()
        folder = move_aside(disk, log_folder)
        for name in ("consumequeue", "index"):
            disk.remove(os.path.join(root, name))
        return folder
    finally:
        lock.release()


def _is_there(disk: Disk, log_folder: str) -> StoreError:
    aside = find_aside(disk, log_folder)
    return StoreError(f"an earlier log lies in {aside}: look whether it is still needed, remove it")


def _beside(log_folder: str) -> str:
    folder, name = os.path.split(log_folder)
    return os.path.join(folder, "aside", name)
