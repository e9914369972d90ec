"""A broker on a disk that goes bad when told: `python -m tests.crash.faulty_broker FAULT_FILE ARGUMENTS…`.

FAULT_FILE holds one word, looked at before each operation: nothing or "well", "full" (ENOSPC), "eio" (writes
and syncs fail), "sync" (only syncs fail), "readonly" (EROFS for all that changes anything), "slow" (each sync
and one write of a hundred take 0.2 s). A write that fails has written a part. The rest is the broker's own
command line.
"""

from __future__ import annotations

import errno
import os
import pathlib
import random
import sys
import time

import rmq.broker.runtime.service
from rmq.broker.__main__ import main
from rmq.store.files.disk import Bytes, Lock, RealDisk, RealSegment, Segment, store_error

ERRORS = {"full": errno.ENOSPC, "eio": errno.EIO, "sync": errno.EIO, "readonly": errno.EROFS}
SLOW_SECONDS = 0.2


class Fault:
    """The present fault of the disk."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.chance = random.Random(1)

    @property
    def word(self) -> str:
        try:
            return self._path.read_text("ascii").strip() or "well"
        except FileNotFoundError:
            return "well"

    def meet(self, path: str, *, sync: bool = False, space: bool = False) -> None:
        """Fail or wait as this operation would. `space`: it takes room on the disk."""
        word = self.word
        if word == "slow":
            if sync or self.chance.random() < 0.01:
                time.sleep(SLOW_SECONDS)
            return
        hits = {"full": space, "sync": sync, "eio": sync or space, "readonly": True}.get(word, False)
        if hits:
            raise store_error(OSError(ERRORS[word], os.strerror(ERRORS[word])), path)


class FaultySegment:
    """A file of that disk."""

    def __init__(self, segment: RealSegment, fault: Fault) -> None:
        self._segment = segment
        self._fault = fault
        self.size = segment.size
        self.copy, self.read, self.relax = segment.copy, segment.read, segment.relax
        self.data_after, self.close = segment.data_after, segment.close
        self.is_there = segment.is_there

    def write(self, at: int, data: Bytes) -> None:
        try:
            self._fault.meet(self._segment.path, space=True)
        except Exception:
            if self._fault.word != "readonly":
                self._segment.write(at, bytes(data)[: self._fault.chance.randrange(len(data) + 1)])
            raise
        self._segment.write(at, data)

    def writable(self, size: int) -> memoryview:
        self._fault.meet(self._segment.path, space=True)
        return self._segment.writable(size)

    def clear(self, at: int) -> None:
        self._fault.meet(self._segment.path)
        self._segment.clear(at)

    def sync(self) -> None:
        self._fault.meet(self._segment.path, sync=True)
        self._segment.sync()


class FaultyDisk(RealDisk):
    """This machine's disk, with what the fault file says."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def open(self, path: str, size: int, *, mapped: bool = True) -> Segment:  # type: ignore[override]
        if not os.path.exists(path):
            self._fault.meet(path, space=True)
        return FaultySegment(super().open(path, size, mapped=mapped), self._fault)

    def replace(self, path: str, data: Bytes) -> None:
        self._fault.meet(path, sync=True, space=True)
        super().replace(path, data)

    def remove(self, path: str) -> None:
        self._fault.meet(path)
        super().remove(path)

    def sync(self, path: str) -> None:
        self._fault.meet(path, sync=True)
        super().sync(path)

    def sync_all(self, path: str) -> None:
        self._fault.meet(path, sync=True)
        super().sync_all(path)

    def lock(self, path: str) -> Lock:
        self._fault.meet(path)
        return super().lock(path)


if __name__ == "__main__":
    fault = Fault(pathlib.Path(sys.argv[1]))
    rmq.broker.runtime.service.RealDisk = lambda: FaultyDisk(fault)  # type: ignore[misc, assignment, attr-defined]
    sys.exit(main(sys.argv[2:]))
