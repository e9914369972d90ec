"""Deferred: responses, and other work, that follow later, without a task for each.

A row waits under a key: a table, a connection, a queue of files. It ends once: a caller takes it, its
deadline passes, or the table is drained. Rows count for their holders (`rmq.shares`), so that no account or
address has all places; a row without a place is refused as SYSTEM_BUSY.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from rmq.errors import RemoteProtocolError, ResponseError, for_code
from rmq.protocol.codes import ResponseCode
from rmq.shares import NOBODY, Holders, HoldersOf, Shares, by_account_and_address

if TYPE_CHECKING:
    from rmq.plugin import Peer
    from rmq.protocol.command import Command

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

CALLS_OF_A_STEP: Final = 256
"""Calls of one step; the other due calls are made in the next turn of the loop."""
CALLS_MAX: Final = 200_000
"""Calls that may wait, of all connections."""
FILES_MAX: Final = 1_000
"""Files that may wait to be written."""

log = logging.getLogger("rmq.deferred")


class Row(Generic[K, V]):
    """One entry: `value` waits under `key` until `deadline`, in the places of `holders`."""

    __slots__ = ("deadline", "holders", "is_waiting", "key", "size", "value")

    def __init__(self, key: K, value: V, deadline: float, holders: Holders, size: int) -> None:
        self.key = key
        self.value = value
        self.deadline = deadline
        self.holders = holders
        self.size = size
        self.is_waiting = True


class Deferred(Generic[K, V]):
    """A bounded table of rows that wait.

    `most` bounds the rows and `bytes_most` the sum of their sizes (0: no bound); `what` names the rows in
    refusals ("the calls that wait"). `on_deadline(at)` is called with the deadline of each new row that has a
    deadline, so that the owner calls `due` by that time.
    """

    def __init__(
        self,
        most: int,
        what: str,
        *,
        bytes_most: int = 0,
        on_deadline: Callable[[float], None] = lambda at: None,
    ) -> None:
        self.what = what
        self.places = Shares(most)
        self.bytes = Shares(bytes_most)
        self._on_deadline = on_deadline
        self._order = count()
        self._all: dict[Row[K, V], None] = {}
        self._rows: dict[K, dict[Row[K, V], None]] = {}
        self._heap: list[tuple[float, int, Row[K, V]]] = []

    def __len__(self) -> int:
        """The number of rows."""
        return self.places.used

    def full(self, holders: Holders, size: int = 0) -> str:
        """The reason why one more row does not fit, as words for a remark; empty when it fits."""
        full = self.places.full(holders)
        if not full and self.bytes.most:
            full = self.bytes.full(holders, size)
            return full and f"of their bytes {full}"
        return full

    def check(self, holders: Holders, size: int = 0) -> None:
        """Raises ResponseError (SYSTEM_BUSY) when one more row does not fit."""
        if full := self.full(holders, size):
            raise for_code(ResponseCode.SYSTEM_BUSY, f"of {self.what} {full}")

    def add(
        self, key: K, value: V, *, holders: Holders = NOBODY, deadline: float = math.inf, size: int = 0
    ) -> Row[K, V]:
        """Add a row that waits. Call `check` before."""
        row = Row(key, value, deadline, holders, size)
        self.places.add(holders)
        if size:
            self.bytes.add(holders, size)
        self._all[row] = None
        self._rows.setdefault(key, {})[row] = None
        if deadline != math.inf:
            heappush(self._heap, (deadline, next(self._order), row))
            if len(self._heap) > 64 + 2 * len(self):
                self._heap = [entry for entry in self._heap if entry[2].is_waiting]
                heapify(self._heap)
            self._on_deadline(deadline)
        return row

    def take(self, row: Row[K, V]) -> bool:
        """End the wait of a row; False when the row has ended before."""
        if not row.is_waiting:
            return False
        row.is_waiting = False
        self.places.give(row.holders)
        if row.size:
            self.bytes.give(row.holders, row.size)
        del self._all[row]
        rows = self._rows[row.key]
        del rows[row]
        if not rows:
            del self._rows[row.key]
        return True

    def waiting_keys(self) -> list[K]:
        """The keys that have rows."""
        return list(self._rows)

    def first(self, key: K) -> Row[K, V] | None:
        """The oldest row of a key."""
        rows = self._rows.get(key)
        return next(iter(rows)) if rows else None

    def oldest(self) -> Row[K, V] | None:
        """The oldest of all rows."""
        return next(iter(self._all), None)

    def last(self, key: K) -> Row[K, V] | None:
        """The newest row of a key."""
        rows = self._rows.get(key)
        return next(reversed(rows)) if rows else None

    def of(self, key: K) -> list[Row[K, V]]:
        """The rows of a key, the oldest first."""
        return list(self._rows.get(key, ()))

    def count(self, key: K) -> int:
        """The number of rows of a key."""
        return len(self._rows.get(key, ()))

    def values(self) -> list[V]:
        """The values of all rows, the oldest first."""
        return [row.value for row in self._all]

    def end(self, key: K) -> list[V]:
        """Take all rows of a key; returns their values, the oldest first."""
        return [row.value for row in self.of(key) if self.take(row)]

    def drain(self) -> list[V]:
        """Take all rows; returns their values, the oldest first."""
        return [row.value for row in list(self._all) if self.take(row)]

    def due(self, now: float, most: int | None = None) -> Iterator[Row[K, V]]:
        """Take the rows past their deadline, `most` at most, in the order of their deadlines. A row that is
        added during the call has its turn in the next call; a row that is taken during the call is left
        out."""
        newest = next(self._order)
        while most != 0 and self._heap:
            deadline, order, row = self._heap[0]
            if row.is_waiting and (deadline > now or order > newest):
                break
            heappop(self._heap)
            if self.take(row):
                most = None if most is None else most - 1
                yield row

    @property
    def deadline(self) -> float:
        """The next deadline; infinite without one."""
        while self._heap and not self._heap[0][2].is_waiting:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf


class DeferredCalls:
    """Calls that are made later. `clock` is in seconds; `on_deadline(at)` is called with each new deadline,
    so that the owner calls `step` by that time."""

    def __init__(self, clock: Callable[[], float], on_deadline: Callable[[float], None]) -> None:
        self._clock = clock
        self._rows: Deferred[object, Callable[[], None]] = Deferred(
            CALLS_MAX, "the calls that wait", on_deadline=on_deadline
        )

    def __len__(self) -> int:
        """The number of calls that wait."""
        return len(self._rows)

    def add(
        self, key: object, holders: Holders, seconds: float, call: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `function` after `seconds`; return a function that prevents the call. `key` is a connection,
        whose end drops the call. Raises ResponseError when too many calls wait, in all or of the holders."""
        self._rows.check(holders)
        row = self._rows.add(key, call, holders=holders, deadline=self._clock() + max(0.0, seconds))
        return lambda: self._prevent(row)

    def _prevent(self, row: Row[object, Callable[[], None]]) -> None:
        self._rows.take(row)

    def step(self, now: float) -> float:
        """Make the due calls; returns the next deadline, infinite without a waiting call."""
        for row in self._rows.due(now, CALLS_OF_A_STEP):
            try:
                row.value()
            except Exception as error:
                log.error("a deferred call failed: %s", error, exc_info=error)
        return self._rows.deadline

    def on_close(self, key: object) -> None:
        """Forget the calls of a connection that has ended."""
        self._rows.end(key)


# ---- answers that wait for a file ----


class Waiting:
    """A file to be written: `write` writes, `then` gets its result and `fail` its error."""

    __slots__ = ("fail", "then", "write")

    def __init__(
        self, write: Callable[[], Any], then: Callable[[Any], None], fail: Callable[[Exception], None]
    ) -> None:
        self.write = write
        self.then = then
        self.fail = fail


class DeferredSaves:
    """Files that are written beside the event loop, in order, and the responses that wait for the writes: a
    sync of the disk may take a second, and other requests are served during it.

    `respond` sends a response, `refusal` makes the response to an error, and `on_pending()` is called when a
    file is to be written; without it a file is written at once. `holders_of` gives the names under which the
    rows of a peer count.
    """

    def __init__(
        self,
        respond: Callable[[Command, Command, Any], None],
        refusal: Callable[[Command, Exception], Command],
        on_pending: Callable[[], None] | None = None,
        holders_of: HoldersOf | None = None,
    ) -> None:
        self._respond = respond
        self._refusal = refusal
        self._on_pending = on_pending
        self._holders_of = holders_of or by_account_and_address()
        self._rows: Deferred[str, Waiting] = Deferred(FILES_MAX, "the changes that wait to be saved")

    def answer(
        self, request: Command, peer: Peer, write: Callable[[], T], then: Callable[[T], Command]
    ) -> Command | None:
        """The response to a request, None when it follows later: `write()` runs in a thread, and its error
        becomes the response; `then` gets its result, in the loop, and makes the response.

        Raises the errors of both if the file is written at once, and ResponseError when too many requests
        wait.
        """
        if self._on_pending is None:
            return then(write())

        def fail(error: Exception) -> None:
            self._respond(request, self._refusal(request, error), peer)

        waiting = Waiting(write, lambda result: self._respond(request, then(result), peer), fail)
        self._wait(waiting, self._holders_of(peer))
        return None

    def save(
        self, write: Callable[[], T], then: Callable[[T], None], fail: Callable[[Exception], None]
    ) -> None:
        """Same as `answer`, without a request: `fail` gets the error of either. Raises ResponseError when too
        many wait."""
        one = Waiting(write, then, fail)
        if self._on_pending is not None:
            self._wait(one, NOBODY)
            return
        try:
            result = write()
        except Exception as error:
            fail(error)
        else:
            self.written(one, result)

    def _wait(self, one: Waiting, holders: Holders) -> None:
        assert self._on_pending is not None
        self._rows.check(holders)
        self._rows.add("", one, holders=holders)
        self._on_pending()

    def next(self) -> Waiting | None:
        """The next file to be written, after which `written` or `failed` is called; None without one."""
        row = self._rows.oldest()
        if row is None:
            return None
        self._rows.take(row)
        return row.value

    def written(self, one: Waiting, result: Any) -> None:
        """Take the result of a row's `write`."""
        try:
            one.then(result)
        except Exception as error:
            one.fail(error)

    def failed(self, one: Waiting, error: Exception) -> None:
        """Take the error of a row's `write`."""
        one.fail(error)


def error_response(
    log: logging.Logger, request: Command, error: Exception, peer: Peer | None = None
) -> Command:
    """The response to a request that failed, which the log of the server tells. An unexpected error is logged
    with its traceback."""
    address = peer.peer_address if peer is not None else "a peer"
    if isinstance(error, ResponseError):
        log.warning("refused request %d of %s: %s", request.code, address, error.remark)
        return request.reply(error.code, error.remark)
    if isinstance(error, RemoteProtocolError):
        log.warning("bad request %d of %s: %s", request.code, address, error)
        return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
    log.error("request %d of %s failed", request.code, address, exc_info=error)
    return request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
