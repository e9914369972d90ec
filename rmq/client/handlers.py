"""Handlers of an app: how each is registered, with types that fit its model, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Generic, TypeVar, overload

from attrs import frozen

from rmq.client.bodies import OnInvalid
from rmq.client.codec import Codec
from rmq.client.consume.subscription import ConsumerSettings, Sql
from rmq.errors import ConfigError, InvalidType, check_callable
from rmq.message import StoredMessage
from rmq.remoting.threads import as_async

B = TypeVar("B")
R = TypeVar("R")
OfAny = TypeVar("OfAny", bound=Callable[..., Any])
OfMessage = TypeVar("OfMessage", bound=Callable[[StoredMessage], Any])


@frozen
class Registration:
    """One handler, and how it is to be called."""

    group: str
    topics: Mapping[str, str | Sql]
    handler: Callable[..., Any]
    codec: Codec[Any] | None
    """None: the handler takes messages as they are."""
    wants_message: bool
    """Whether it takes the message beside the value of its body."""
    concurrency: int
    options: ConsumerSettings
    on_invalid: OnInvalid = "dead-letter"

    def async_handler(self) -> Callable[..., Awaitable[Any]]:
        """The handler as an async function of all its arguments; an ordinary function runs in a thread."""
        handler = self.handler
        if as_async(handler, 1) is handler:
            return handler
        in_thread = as_async(lambda arguments: handler(*arguments), self.concurrency)

        async def spread(*arguments: Any) -> Any:
            return await in_thread(arguments)

        return spread


@frozen
class _Decorator:
    """Registers the function below it."""

    registered: MutableMapping[str, Registration]
    group: str
    topics: Mapping[str, str | Sql]
    codec: Codec[Any] | None
    concurrency: int
    options: ConsumerSettings
    on_invalid: OnInvalid

    def register(self, handler: Callable[..., Any]) -> None:
        """Raises InvalidType, and ConfigError when there is a consumer of the group already."""
        wants = _wants_message(handler, self.codec is not None)
        if self.group in self.registered:
            raise ConfigError("group", self.group, "one consumer in an app; it may have several topics")
        self.registered[self.group] = Registration(
            self.group,
            self.topics,
            handler,
            self.codec,
            wants,
            self.concurrency,
            self.options,
            self.on_invalid,
        )


class MessageDecorator(_Decorator):
    """For a function of a message."""

    def __call__(self, handler: OfMessage) -> OfMessage:
        """Raises as `register`."""
        self.register(handler)
        return handler


class AnyDecorator(_Decorator):
    """For a function of the value of a body whose type no type checker can see here, as `Order | None`."""

    def __call__(self, handler: OfAny) -> OfAny:
        """Raises as `register`."""
        self.register(handler)
        return handler


class BodyDecorator(_Decorator, Generic[B]):
    """For a function of the value of a body, or of that and the message."""

    @overload
    def __call__(self, handler: Callable[[B], R]) -> Callable[[B], R]: ...
    @overload
    def __call__(self, handler: Callable[[B, StoredMessage], R]) -> Callable[[B, StoredMessage], R]: ...
    def __call__(self, handler: Any) -> Any:
        """Raises as `register`."""
        self.register(handler)
        return handler


def _wants_message(handler: Callable[..., Any], has_model: bool) -> bool:
    """Whether a handler takes the message beside the value of its body. Raises InvalidType when it can be
    called with neither."""
    check_callable("handler", handler, "a function of a message, or of a body", takes=None)
    try:
        signature = inspect.signature(handler)
    except ValueError:  # some functions in C have none
        return False
    needed = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    wants = has_model and len(needed) > 1
    try:
        signature.bind(*[None] * (1 + wants))
    except TypeError:
        expected = "a function of the body, or of the body and the message" if has_model else "of the message"
        raise InvalidType("handler", handler, expected) from None
    return wants
