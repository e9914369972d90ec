"""Handlers of an app: their registration, with types that fit their models, and their calls."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Generic, TypeVar, overload

from attrs import frozen

from rmq.client.bodies import Bodies, check_on_invalid
from rmq.client.bodies import OnInvalid as OnInvalid
from rmq.client.client import Client, check_known
from rmq.client.codec import Codec, body_of, codec_of
from rmq.client.consume.subscription import ConsumerOptions, ConsumerSettings, Sql, subscriptions
from rmq.errors import ConfigError, InvalidType, check_callable, check_number, check_type
from rmq.message import PROPERTY_REPLY_TO_CLIENT, StoredMessage, validate_group
from rmq.remoting.threads import as_async, is_async

B = TypeVar("B")
R = TypeVar("R")
OfAny = TypeVar("OfAny", bound=Callable[..., Any])
OfMessage = TypeVar("OfMessage", bound=Callable[[StoredMessage], Any])


Next = Callable[[StoredMessage], Awaitable[object]]
Middleware = Callable[[StoredMessage, Next], Awaitable[object]]
"""Code around a handler: it calls the next one, or not, and returns the result that counts as the
handler's."""
Reply = Callable[[StoredMessage, bytes], Awaitable[None]]

DEFAULTS: Final[dict[str, Any]] = {
    name: parameter.default
    for name, parameter in inspect.signature(Client.consumer).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}
"""The keywords of `Client.consumer`."""


@frozen
class Registration:
    """A handler with its settings, and its calls."""

    group: str
    topics: Mapping[str, str | Sql]
    handler: Callable[..., Any]
    codec: Codec[Any] | None
    """None: the handler takes messages as they are."""
    wants_message: bool
    """True if the handler takes the message beside the value of its body."""
    concurrency: int
    options: ConsumerSettings
    on_invalid: OnInvalid = "dead-letter"
    middlewares: tuple[Middleware, ...] = ()

    def of_messages(self, reply: Reply) -> Callable[[StoredMessage], Awaitable[None]]:
        """The handler as a function of messages. Its result is the reply to a request."""
        call = self.async_handler()
        bodies = None if self.codec is None else Bodies(self.codec, self.group, self.on_invalid)

        async def call_handler(message: StoredMessage) -> object:
            if bodies is None:
                return await call(message)
            if self.wants_message:
                return await call(bodies.read(message), message)
            return await call(bodies.read(message))

        whole: Next = call_handler
        for middleware in reversed(self.middlewares):
            whole = _around(middleware, whole)

        async def handle(message: StoredMessage) -> None:
            answer = await whole(message)
            if answer is not None and PROPERTY_REPLY_TO_CLIENT in message.properties:
                await reply(message, body_of(answer))

        return handle

    def async_handler(self) -> Callable[..., Awaitable[Any]]:
        """The handler as an async function of all its arguments; an ordinary function runs in a thread."""
        handler = self.handler
        if is_async(handler):
            return handler
        in_thread = as_async(lambda arguments: handler(*arguments), self.concurrency)

        async def spread(*arguments: Any) -> Any:
            return await in_thread(arguments)

        return spread


@frozen
class _Decorator:
    """Registers the decorated function."""

    registered: MutableMapping[str, Registration]
    group: str
    topics: Mapping[str, str | Sql]
    codec: Codec[Any] | None
    concurrency: int
    options: ConsumerSettings
    on_invalid: OnInvalid
    middlewares: tuple[Middleware, ...]

    def register(self, handler: Callable[..., Any]) -> None:
        """Raises InvalidType, and ConfigError for a second consumer of the group."""
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
            self.middlewares,
        )


class MessageDecorator(_Decorator):
    """Decorator for a function of a message."""

    def __call__(self, handler: OfMessage) -> OfMessage:
        """Raises as `register`."""
        self.register(handler)
        return handler


class AnyDecorator(_Decorator):
    """Decorator for a function whose body type a type checker cannot see, such as `Order | None`."""

    def __call__(self, handler: OfAny) -> OfAny:
        """Raises as `register`."""
        self.register(handler)
        return handler


class BodyDecorator(_Decorator, Generic[B]):
    """Decorator for a function of the value of a body, or of that and the message."""

    @overload
    def __call__(self, handler: Callable[[B], R]) -> Callable[[B], R]: ...
    @overload
    def __call__(self, handler: Callable[[B, StoredMessage], R]) -> Callable[[B, StoredMessage], R]: ...
    def __call__(self, handler: Any) -> Any:
        """Raises as `register`."""
        self.register(handler)
        return handler


def decorator(
    registered: MutableMapping[str, Registration],
    topics: str | Mapping[str, str | Sql],
    group: str,
    model: Any,
    on_invalid: OnInvalid,
    concurrency: int,
    middlewares: tuple[Middleware, ...],
    options: ConsumerSettings,
) -> MessageDecorator | BodyDecorator[Any]:
    """The decorator for `App.consumer`; raises the same errors."""
    check_known(options, ConsumerSettings.__annotations__, "App.consumer")
    check_number("concurrency", concurrency, 1)
    check_type("topics", topics, (str, Mapping), "the name of a topic, or topics as Client.consumer takes")
    subscribed = {topics: "*"} if isinstance(topics, str) else dict(topics)
    subscriptions(subscribed, group, 0, retry=False)
    ConsumerOptions(**{**DEFAULTS, **options})
    validate_group(group)
    codec = None if model is None else codec_of(model)
    check_on_invalid(on_invalid)
    kind = MessageDecorator if codec is None else BodyDecorator
    return kind(registered, group, subscribed, codec, concurrency, options, on_invalid, middlewares)


def check_middlewares(middlewares: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Raises InvalidType unless the value is a list of functions of a message and the next function."""
    check_type("middlewares", middlewares, Sequence, "a list of middlewares")
    expected = "an async function that takes a message and the next function, and calls that function"
    for one in middlewares:
        check_callable("middlewares", one, expected, takes=2)
        if not is_async(one):
            raise InvalidType("middlewares", one, expected)
    return tuple(middlewares)


def _around(middleware: Middleware, call_next: Next) -> Next:
    async def call(message: StoredMessage) -> object:
        return await middleware(message, call_next)

    return call


def _wants_message(handler: Callable[..., Any], has_model: bool) -> bool:
    """True if a handler takes the message beside the value of its body. Raises InvalidType when it takes
    neither."""
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
