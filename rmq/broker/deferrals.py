"""Calls that are made later, for doors: rows of one heap, without a task or a timer of their own."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from attrs import define

from rmq.errors import for_code
from rmq.protocol.codes import ResponseCode
from rmq.shares import Holders, Shares

WAITING_MAX: Final = 200_000
"""Calls that may wait, of all connections."""
CALLS_OF_A_STEP: Final = 256
"""More that are due are made in the next turn of the loop: others go first."""

log = logging.getLogger("rmq.broker")


@define(eq=False)
class _Row:
    key: object
    call: Callable[[], None] | None
    holders: Holders


class Deferrals:
    """The calls that wait. `clock` is in seconds; `on_deadline(at)` is called with each new deadline, so that
    `step` is called by then."""

    def __init__(self, clock: Callable[[], float], on_deadline: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_deadline = on_deadline
        self._order = count()
        self._heap: list[tuple[float, int, _Row]] = []
        self._rows: dict[object, dict[_Row, None]] = {}
        self._shares = Shares(WAITING_MAX)

    def __len__(self) -> int:
        """The number of calls that wait."""
        return self._shares.used

    def add(
        self, key: object, holders: Holders, seconds: float, call: Callable[[], None]
    ) -> Callable[[], None]:
        """Call something after `seconds`; returns a function that prevents it. `key` is a connection, with
        whose end the call is forgotten. Raises ResponseError when too many wait, in all or of the holders.
        """
        if full := self._shares.full(holders):
            raise for_code(ResponseCode.SYSTEM_BUSY, f"of the calls that wait {full}")
        row = _Row(key, call, holders)
        self._shares.add(holders)
        self._rows.setdefault(key, {})[row] = None
        deadline = self._clock() + max(0.0, seconds)
        heappush(self._heap, (deadline, next(self._order), row))
        if len(self._heap) > 64 + 2 * len(self):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
        self._on_deadline(deadline)
        return lambda: self._drop(row)

    def step(self, now: float) -> float:
        """Make the calls that are due; returns the next deadline, infinite when none waits."""
        heap = self._heap
        last = next(self._order)  # calls that are added by calls have their turn in the next step
        for _ in range(CALLS_OF_A_STEP):
            if not heap or (heap[0][2].call is not None and (heap[0][0] > now or heap[0][1] > last)):
                break
            row = heappop(heap)[2]
            call = row.call
            if call is None:
                continue
            self._drop(row)
            try:
                call()
            except Exception as error:
                log.error("a call that a door had deferred failed: %s", error, exc_info=error)
        heap = self._heap
        return heap[0][0] if heap else math.inf

    def on_close(self, key: object) -> None:
        """A connection has ended: forget its calls."""
        for row in list(self._rows.get(key, ())):
            self._drop(row)

    def _drop(self, row: _Row) -> None:
        if row.call is None:
            return
        row.call = None
        self._shares.give(row.holders)
        rows: dict[Any, None] = self._rows[row.key]
        del rows[row]
        if not rows:
            del self._rows[row.key]
