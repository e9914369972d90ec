"""Observers: hooks around a client's sends and deliveries, for traces and metrics.

    async with rmq.connect(address, plugins=[MessageTrace()]) as client: ...

Without observers, sends and deliveries have no extra cost. The error of an observer is logged, and the
message is sent or consumed nevertheless.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rmq.remoting.cancellation import as_failure, cancel_requests

if TYPE_CHECKING:
    from rmq.client.session.results import SendResult
    from rmq.client.session.session import Session
    from rmq.message import Message, StoredMessage

log = logging.getLogger("rmq.client.observer")

T = TypeVar("T")


class Observer:
    """Base class: override the hooks that you need. Hooks are synchronous and run for every message."""

    def attach(self, session: Session) -> None:
        """Note that the client opens; called before any other hook."""

    async def run(self) -> None:
        """Run a task beside the client, cancelled when it closes."""

    async def flush(self) -> None:
        """Send the gathered data: the client closes, within its `shutdown_timeout_ms`. Cancelled when that
        time has passed: the rest may be dropped."""

    def sending(self, group: str, message: Message, extra: MutableMapping[str, str]) -> Any:
        """Note that a message is about to be sent; `extra` are properties to add. `sent` gets the result."""

    def sent(self, token: Any, result: SendResult | None, error: BaseException | None) -> None:
        """Note that the message is stored, or could not be stored because of `error`; without both it was
        sent one-way."""

    def ended(
        self, group: str, result: SendResult, message: Message, decision: int, *, checked: bool
    ) -> None:
        """Note that a transaction has ended with COMMIT, ROLLBACK or UNKNOWN."""

    def consuming(self, group: str, messages: Sequence[StoredMessage]) -> Any:
        """Note that a handler gets messages, in this task. `consumed` gets the result."""

    def consumed(self, token: Any, error: BaseException | None) -> None:
        """Note that the handler has returned, raised or been cancelled."""


class Observers:
    """All observers of a client."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.all = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self.all)

    def begin(self, hook: Callable[[Observer], T]) -> list[tuple[Observer, T]]:
        """Call a hook of each observer, and keep the results."""
        tokens = []
        for observer in self.all:
            try:
                tokens.append((observer, hook(observer)))
            except BaseException as error:
                _failed(observer, error)
        return tokens

    def end(self, tokens: Sequence[tuple[Observer, T]], hook: Callable[[Observer, T], None]) -> None:
        """Call the end hook of each observer, with the result of its begin hook, in reverse order."""
        for observer, token in reversed(tokens):
            try:
                hook(observer, token)
            except BaseException as error:
                _failed(observer, error)

    def handler(
        self, group: str, handle: Callable[[Any], Awaitable[object]], *, batches: bool = False
    ) -> Callable[[Any], Awaitable[object]]:
        """A consumer's handler that is observed."""
        if not self:
            return handle

        async def observed(argument: Any) -> object:
            messages = argument if batches else [argument]
            tokens = self.begin(lambda observer: observer.consuming(group, messages))
            failure: BaseException | None = None
            try:
                return await handle(argument)
            except BaseException as error:
                failure = error
                raise
            finally:
                self.end(tokens, lambda observer, token: observer.consumed(token, failure))

        return observed


def _failed(observer: Observer, error: BaseException) -> None:
    """Log the failure of a hook. Raises an `error` that is no Exception: Ctrl-C, for example."""
    failure = as_failure(error, cancel_requests())  # a hook does not wait, so it is never cancelled itself
    if failure is None:
        raise error
    log.error("%s failed", type(observer).__name__, exc_info=failure)
