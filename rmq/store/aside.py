"""A log that is given up is kept: its files move to a folder of its own, `aside/commitlog` beside the log's
folder.

A log's folder may be a volume, or a link to a volume, which can be neither renamed nor moved elsewhere. In
this case its files move to the folder `aside` within the log's folder, which our brokers ignore. (RocketMQ's
broker does not start with such a folder: move it away before.)
"""

from __future__ import annotations

import logging
import os
import re
from typing import Final

from rmq.errors import StoreError
from rmq.store.files.abort import mark_of
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.files.disk import Disk

log = logging.getLogger("rmq.store")

_NAME: Final = re.compile(r"[0-9]{20}")
_INSIDE: Final = "aside"
_PART: Final = "aside.part"
"""While files move: what a crash left there moves on with the next try."""


def find_aside(disk: Disk, log_folder: str) -> str:
    """The folder of an earlier log that was set aside; without such a log, the folder for the next."""
    inside = os.path.join(log_folder, _INSIDE)
    return inside if disk.exists(inside) else _beside(log_folder)


def move_aside(disk: Disk, log_folder: str) -> str:
    """Move a log aside, and return its new folder. No file of the log is open.

    Raises StoreError, also when an earlier log was set aside; the log is unmoved in this case, or, on a
    volume, a part of the log is in `aside.part`.
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
    """Set aside the log of a closed store, and remove its queues, its index, `abort` and the checkpoint.
    Return the folder of the log.

    Raises StoreLocked, StoreError; nothing is changed in this case, or the next try completes the move.
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
    return StoreError(f"an earlier log is kept in {aside}: remove it when you no longer need its messages")


def _beside(log_folder: str) -> str:
    folder, name = os.path.split(log_folder)
    return os.path.join(folder, "aside", name)
