"""Duplicates: messages that a handler has handled before, found by their keys and left out.

    app = rmq.App("127.0.0.1:9876", middlewares=[rmq.SkipDuplicates(rmq.MemoryWindow(seconds=3600))])

A broker delivers each message at least once. `SkipDuplicates` remembers the handled messages: in memory, for
one process and a window of time, or in a table of a database, for all members of a group. Where a handler
writes to that database anyway, `Inbox` puts the key into the same transaction: then each message counts once.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, Protocol, get_args

import anyio
from attrs import define, field

from rmq.clock import wall_clock_ms
from rmq.errors import ConfigError, check_callable, check_number, check_type
from rmq.message import StoredMessage, validate_group
from rmq.remoting.threads import as_async, is_async

log = logging.getLogger(__name__)

Dialect = Literal["sqlite", "postgresql", "mysql"]
ParamStyle = Literal["qmark", "format", "dollar"]
Statement = tuple[str, tuple[Any, ...]]
"""A statement of SQL, and its parameters."""
Run = Callable[[str, tuple[Any, ...]], Awaitable[Sequence[Any]] | Sequence[Any]]
"""Executes a statement in a transaction of its own, and returns its rows."""

THREADS: Final = 4


class Window(Protocol):
    """The keys that were handled."""

    async def begin(self, key: str) -> bool:
        """True if the message of this key must be handled now. Raises any error that prevents the check: the
        message is redelivered in that case. Cancelled: nothing changes."""

    async def end(self, key: str, is_handled: bool) -> None:
        """Note the end of a handling that `begin` allowed. Cancelled: the key may or may not be
        remembered."""


def message_id(message: StoredMessage) -> str:
    """The producer's id of the message: the same for each delivery and each attempt of one send."""
    return message.message_id


def first_key(message: StoredMessage) -> str:
    """The message's first key, which the application set; without keys its id."""
    return message.keys[0] if message.keys else message.message_id


@define(eq=False)
class MemoryWindow:
    """Keys of the last `seconds`, at most `most` of them, in this process. A copy that arrives while the
    first is being handled waits for its end, and is handled if the first fails."""

    seconds: float = 3600.0
    most: int = 100_000
    _handled: OrderedDict[str, float] = field(init=False, factory=OrderedDict)
    _running: dict[str, anyio.Event] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        check_number("seconds", self.seconds, 0, whole=False)
        check_number("most", self.most, 1)

    def __len__(self) -> int:
        return len(self._handled)

    async def begin(self, key: str) -> bool:
        """See `Window`. Cancelled: nothing changes."""
        while (running := self._running.get(key)) is not None:
            await running.wait()
        self._forget(anyio.current_time())
        if key in self._handled:
            return False
        self._running[key] = anyio.Event()
        return True

    async def end(self, key: str, is_handled: bool) -> None:
        """See `Window`. Cancelled: the key is noted nevertheless."""
        if is_handled:
            self._handled[key] = anyio.current_time()
            self._forget(anyio.current_time())
        self._running.pop(key).set()

    def _forget(self, now: float) -> None:
        handled = self._handled
        while handled and (len(handled) > self.most or next(iter(handled.values())) <= now - self.seconds):
            handled.popitem(last=False)


class Inbox:
    """The statements for a table of the keys that a consumer group has handled.

    `accept` belongs into the transaction of the handler: it changes a row when the key is new, and none when
    it is known. The driver's style of parameters follows the dialect, or is `paramstyle`: ``"qmark"`` (?),
    ``"format"`` (%s) or ``"dollar"`` ($1, as asyncpg). Raises InvalidName, ConfigError.
    """

    def __init__(
        self,
        group: str,
        *,
        table: str = "rmq_inbox",
        dialect: Dialect = "postgresql",
        paramstyle: ParamStyle | None = None,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?", table):
            raise ConfigError("table", table, "a name such as rmq_inbox or shop.rmq_inbox")
        if dialect not in get_args(Dialect):
            raise ConfigError("dialect", dialect, "'sqlite', 'postgresql' or 'mysql'")
        if paramstyle is not None and paramstyle not in get_args(ParamStyle):
            raise ConfigError("paramstyle", paramstyle, "'qmark', 'format' or 'dollar'")
        self.group = validate_group(group)
        self.table = table
        self._style = paramstyle or ("qmark" if dialect == "sqlite" else "format")
        self._dialect = dialect

    @property
    def create(self) -> str:
        """The statement that creates the table, if it does not exist."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} (consumer_group VARCHAR(255) NOT NULL, message_key"
            " VARCHAR(255) NOT NULL, handled_ms BIGINT NOT NULL, PRIMARY KEY (consumer_group, message_key))"
        )

    def accept(self, key: str) -> Statement:
        """Record a key: a row changes if the key is new, none if it is known."""
        values = f"{self.table} (consumer_group, message_key, handled_ms) VALUES ({self._marks(3)})"
        if self._dialect == "mysql":
            text = f"INSERT IGNORE INTO {values}"
        else:
            text = f"INSERT INTO {values} ON CONFLICT DO NOTHING"
        return text, (self.group, key, wall_clock_ms())

    def find(self, key: str) -> Statement:
        """Query a key: a row if it is known, none if it is new."""
        group, mark = self._marks(2).split(", ")
        text = f"SELECT 1 FROM {self.table} WHERE consumer_group = {group} AND message_key = {mark}"
        return text, (self.group, key)

    def prune(self, seconds: float) -> Statement:
        """Forget the keys of this group that were handled longer ago. Raises InvalidType, ConfigError."""
        check_number("seconds", seconds, 0, whole=False)
        group, mark = self._marks(2).split(", ")
        text = f"DELETE FROM {self.table} WHERE consumer_group = {group} AND handled_ms < {mark}"
        return text, (self.group, wall_clock_ms() - int(seconds * 1000))

    def _marks(self, count: int) -> str:
        if self._style == "dollar":
            return ", ".join(f"${number}" for number in range(1, count + 1))
        return ", ".join(["?" if self._style == "qmark" else "%s"] * count)


class TableWindow:
    """Keys in a table: the statements of `inbox`, executed by `run(statement, parameters)`, which returns the
    rows, each time in a transaction of its own. An ordinary function runs in a worker thread.

    The key is noted after the handler has ended. So a copy is handled again when the process dies between the
    two, or when two members get copies at the same time; if that must not happen, use `Inbox.accept` in the
    handler's own transaction. Raises InvalidType.
    """

    def __init__(self, inbox: Inbox, run: Run) -> None:
        check_type("inbox", inbox, Inbox, "an rmq.Inbox")
        check_callable("run", run, "a function of a statement and its parameters", takes=2)
        self._inbox = inbox
        self._run = as_async(_Spread(run), THREADS) if not is_async(run) else _Spread(run)

    async def begin(self, key: str) -> bool:
        """See `Window`. Raises the errors of `run`. Cancelled: nothing changes."""
        return not await self._execute(self._inbox.find(key))

    async def end(self, key: str, is_handled: bool) -> None:
        """See `Window`. Raises the errors of `run`. Cancelled: the key may or may not be noted."""
        if is_handled:
            await self._execute(self._inbox.accept(key))

    async def _execute(self, statement: Statement) -> Sequence[Any]:
        found: Sequence[Any] | None = await self._run(statement)
        return found or ()


class _Spread:
    """A function of a statement and its parameters as one of both together."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, statement: Statement) -> Any:
        return self._run(*statement)


class SkipDuplicates:
    """A middleware of `App`: a message whose key was handled before is left out, and counts as consumed.

    `key` is ``"id"`` (the producer's id of the message, the same for each delivery and attempt), ``"key"``
    (the message's first key) or a function of the message. Raises InvalidType, ConfigError.
    """

    def __init__(
        self, window: Window, *, key: Literal["id", "key"] | Callable[[StoredMessage], str] = "id"
    ) -> None:
        if not all(callable(getattr(window, name, None)) for name in ("begin", "end")):
            raise ConfigError("window", window, "an rmq.MemoryWindow, an rmq.TableWindow or another Window")
        self._key: Callable[[StoredMessage], str]
        if key == "id" or key == "key":
            self._key = message_id if key == "id" else first_key
        elif isinstance(key, str):
            raise ConfigError("key", key, "'id', 'key' or a function of a message")
        else:
            check_callable("key", key, "'id', 'key' or a function of a message", is_awaited=False)
            self._key = key
        self._window = window
        self.skipped = 0
        """Number of messages that were left out."""

    async def __call__(
        self, message: StoredMessage, call_next: Callable[[StoredMessage], Awaitable[object]]
    ) -> object:
        """Call the handler, unless the message is a copy. Cancelled: as the handler."""
        key = self._key(message)
        if not await self._window.begin(key):
            self.skipped += 1
            log.info("skipped message %s, a duplicate of a handled one (%s)", message.message_id, key)
            return None
        is_handled = False
        try:
            result = await call_next(message)
            is_handled = True
            return result
        finally:
            with anyio.CancelScope(shield=True):
                await self._window.end(key, is_handled)
