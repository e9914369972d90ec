"""App: an application made of handlers, each the consumer of a topic, that run together.

    app = rmq.App("127.0.0.1:9876")

    @app.consumer("Orders", group="billing", model=Order, concurrency=50, retry=rmq.Backoff(1, 60, tries=5))
    async def bill(order: Order) -> None:
        await app.send("Invoices", Invoice(order.number), keys=[order.number])

`rmq run module:app` runs it as a process, `FastAPI(lifespan=app.lifespan)` inside a web application,
`async with app` anywhere else.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType, UnionType
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, cast, overload

import anyio
import anyio.abc

from rmq.client.client import Client, ConnectOptions, check_options, connect
from rmq.client.codec import Codec, body_of, codec_of, value_of
from rmq.client.consume.consumer import Consumer
from rmq.client.consume.subscription import ConsumerSettings, Sql
from rmq.client.handlers import (
    AnyDecorator,
    BodyDecorator,
    MessageDecorator,
    Middleware,
    OnInvalid,
    Registration,
    check_middlewares,
    decorator,
)
from rmq.client.produce.outgoing import delivery_time
from rmq.client.produce.producer import Producer
from rmq.client.produce.transactional import CheckBack, Transaction, TransactionalProducer
from rmq.client.reading.leased_consumer import LeasedConsumer
from rmq.client.session.results import SendResult
from rmq.errors import ConfigError, LocalProtocolError, check_callable, check_number, check_type
from rmq.message import Message, StoredMessage, validate_group
from rmq.remoting.loop import TaskGroupScope, unwrap_groups

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)
    """The state of an app; `rmq.App` alone is an app with any."""
    B = TypeVar("B")
    C = TypeVar("C", bound=CheckBack)
else:
    from typing import TypeVar

    S, B, C = TypeVar("S"), TypeVar("B"), TypeVar("C")

log = logging.getLogger("rmq.client.app")


class App(Generic[S]):
    """Handlers, a client and a producer, opened and closed together; the module has an example.

    `namesrv` and `settings` are as in `rmq.connect`, including their defaults. `group` is the producer's.
    `setup` is a function of the app that returns an async context manager for resources of handlers, such as
    a pool of database connections. It is entered once the client is open and before the first message comes,
    left after the last handler has ended, and its value is `app.state`: the code before its `yield` is the
    hook at the start, the code behind it the hook at the end.

    `middlewares` surround all handlers, the first is the outermost; `consumer` takes more, for a single
    handler. Each is an async function of a message and of the next function, which it calls, or not: `async
    def timed(message, call_next): ...; return await call_next(message)`. A middleware sees messages before
    their bodies are decoded, and all errors. Its result counts as the handler's result.

    Leaving the block, or `stop` in `run`, drains all consumers at once: nothing new is pulled, running
    handlers get `drain` seconds (by default the configuration's `drain_timeout_ms`, 20 s), offsets are
    committed and the groups left. Handlers that still run afterwards are cancelled, and their messages
    delivered again. An app can be entered again after it was left.
    """

    @overload
    def __init__(
        self: App[None],
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str = "rmq-app",
        setup: None = None,
        drain: float | None = None,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[ConnectOptions],
    ) -> None: ...
    @overload
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str = "rmq-app",
        setup: Callable[[App[Any]], AbstractAsyncContextManager[S]],
        drain: float | None = None,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[ConnectOptions],
    ) -> None: ...
    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        group: str = "rmq-app",
        setup: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
        drain: float | None = None,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[ConnectOptions],
    ) -> None:
        """Raises InvalidType, InvalidName, ConfigError, and TypeError for unknown keywords."""
        check_options(namesrv, options, "rmq.App")
        if setup is not None:
            expected = "a function of the app that returns an async context manager (asynccontextmanager)"
            check_callable("setup", setup, expected, is_awaited=False)
        if drain is not None:
            check_number("drain", drain, 0, whole=False)
        self.group = validate_group(group)
        self._middlewares = check_middlewares(middlewares)
        self._check_back: CheckBack | None = None
        self.drain = drain
        """Seconds that handlers have to finish at the end."""
        self.state: S = cast(S, None)
        """The value of `setup`; None while the app is not open."""
        self._namesrv, self._options, self._setup = namesrv, options, setup
        self._registered: dict[str, Registration] = {}
        self._client: Client | None = None
        self._producer: Producer | None = None
        self._blocks: AsyncExitStack | None = None
        self._stopping: anyio.Event | None = None
        self._is_open = False
        self._consumers: dict[str, Consumer | LeasedConsumer] = {}

    def __repr__(self) -> str:
        return f"<App {self.group} with {', '.join(self._registered) or 'no consumers'}>"

    # --- handlers ---

    @overload
    def consumer(
        self,
        topics: str | Mapping[str, str | Sql],
        *,
        group: str,
        model: None = None,
        on_invalid: OnInvalid = "dead-letter",
        concurrency: int = 20,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[ConsumerSettings],
    ) -> MessageDecorator: ...
    @overload
    def consumer(
        self,
        topics: str | Mapping[str, str | Sql],
        *,
        group: str,
        model: type[B],
        on_invalid: OnInvalid = "dead-letter",
        concurrency: int = 20,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[ConsumerSettings],
    ) -> BodyDecorator[B]: ...
    @overload
    def consumer(
        self,
        topics: str | Mapping[str, str | Sql],
        *,
        group: str,
        model: Codec[B],
        on_invalid: OnInvalid = "dead-letter",
        concurrency: int = 20,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[ConsumerSettings],
    ) -> BodyDecorator[B]: ...
    @overload
    def consumer(
        self,
        topics: str | Mapping[str, str | Sql],
        *,
        group: str,
        model: UnionType,
        on_invalid: OnInvalid = "dead-letter",
        concurrency: int = 20,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[ConsumerSettings],
    ) -> AnyDecorator: ...
    def consumer(
        self,
        topics: str | Mapping[str, str | Sql],
        *,
        group: str,
        model: Any = None,
        on_invalid: OnInvalid = "dead-letter",
        concurrency: int = 20,
        middlewares: Sequence[Middleware] = (),
        **options: Unpack[ConsumerSettings],
    ) -> MessageDecorator | BodyDecorator[Any] | AnyDecorator:
        """Make the decorated function the handler of a topic, as a member of `group`, up to `concurrency`
        calls at a time.

        `topics` is the name of a topic, or `Client.consumer`'s mapping; `options` are that method's keywords:
        `retry`, `ordered`, `consume_from` and so on. `model` is the type of bodies: `bytes`, `str`, a class
        of msgspec's or pydantic's, or a `Codec`; the function is called with the value, and with the message
        too if it has a second parameter. Without a model it is called with the message. An ordinary function
        runs in a worker thread. The function's result is the reply to a request, unless it is None.

        `on_invalid` decides about a body that does not fit the model: ``"dead-letter"``, log the message and
        make it a dead letter at once; ``"retry"``, handle it as any other failure; ``"raise"``, end the app
        with InvalidBody, and redeliver the message. When the first 10 bodies are all invalid, the app ends
        with InvalidBody in any case, since the model is wrong.

        `middlewares` surround this handler, inside the app's. The function itself stays unchanged, for tests
        and direct calls. Raises InvalidName, InvalidType, ConfigError when the app has a consumer of that
        group already, TypeError for unknown keywords.
        """
        around = (*self._middlewares, *check_middlewares(middlewares))
        return decorator(self._registered, topics, group, model, on_invalid, concurrency, around, options)

    def check_back(self, function: C) -> C:
        """Make the decorated function decide about a transaction that its process did not end: the function
        gets the half message, and returns `rmq.COMMIT`, `rmq.ROLLBACK` or `rmq.UNKNOWN`. `transaction` needs
        such a function. Raises InvalidType, ConfigError for a second function, LocalProtocolError once the
        app is open."""
        check_callable("check_back", function, "a function of a message that gives a decision")
        if self._producer is not None:
            raise LocalProtocolError("the app is already open: set check_back before it opens")
        if self._check_back is not None:
            raise ConfigError("check_back", function, "one check_back function for the whole app")
        self._check_back = function
        return function

    # --- while it runs ---

    @property
    def is_open(self) -> bool:
        """True if the app consumes: after the block was entered, until `stop` or the block's end."""
        return self._is_open

    @property
    def client(self) -> Client:
        """The client. Raises LocalProtocolError while the app is not open."""
        if self._client is None:
            raise LocalProtocolError(
                "the app is not open: call this inside its `async with` block or in a handler"
            )
        return self._client

    @property
    def producer(self) -> Producer:
        """The producer. Raises LocalProtocolError while the app is not open."""
        if self._producer is None:
            raise LocalProtocolError(
                "the app is not open: call this inside its `async with` block or in a handler"
            )
        return self._producer

    @property
    def consumers(self) -> Mapping[str, Consumer | LeasedConsumer]:
        """The open consumers, by their groups."""
        return self._consumers

    async def send(
        self,
        topic: str,
        body: Any,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_ms: int | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a value: bytes unchanged, text as UTF-8, any type of msgspec or pydantic as JSON. `timeout` is
        in seconds, for the whole send.

        The message is delivered after `delay` (seconds, or a timedelta) or `delay_ms`, or at `deliver_at`, a
        datetime with a time zone; at most one of the three. Otherwise as `Producer.send`, which takes
        messages with every field. Raises InvalidMessageType for a value without JSON, ConfigError for a
        datetime without a time zone or two times, LocalProtocolError while the app is not open. Cancelled:
        the message may or may not be stored.
        """
        message = Message(
            topic,
            body_of(body),
            tags=tags,
            keys=keys,
            properties={} if properties is None else dict(properties),
            **delivery_time(delay_ms, delay, deliver_at),
        )
        return await self.producer.send(message, sharding_key=sharding_key, timeout=timeout)

    @overload
    async def request(
        self,
        topic: str,
        body: Any,
        *,
        model: None = None,
        timeout: float = 3.0,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
    ) -> StoredMessage: ...
    @overload
    async def request(
        self,
        topic: str,
        body: Any,
        *,
        model: type[B] | Codec[B],
        timeout: float = 3.0,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
    ) -> B: ...
    async def request(
        self,
        topic: str,
        body: Any,
        *,
        model: Any = None,
        timeout: float = 3.0,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
    ) -> Any:
        """Send a value as `send` does, and return the reply of its handler within `timeout` seconds: as a
        value of `model`, or without a model as the message.

        Raises as `send`, ReplyTimeout without a reply, InvalidBody for a reply that does not fit the model,
        InvalidType for an unknown model. Cancelled: a reply is dropped.
        """
        codec = None if model is None else codec_of(model)
        message = Message(
            topic,
            body_of(body),
            tags=tags,
            keys=keys,
            properties={} if properties is None else dict(properties),
        )
        reply = await self.producer.request(message, timeout, sharding_key=sharding_key)
        return reply if codec is None else value_of(reply, codec)

    def transaction(
        self,
        topic: str,
        body: Any,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
    ) -> Transaction:
        """`async with app.transaction("Payments", payment): ...`: consumers see the value when the block
        ends, and never when it raises; see `rmq.Transaction`.

        Raises InvalidMessageType, and LocalProtocolError while the app is not open or has no `check_back`,
        which a broker asks for the end of a transaction whose process died.
        """
        producer = self.producer
        if not isinstance(producer, TransactionalProducer):
            raise LocalProtocolError(
                "transactions need a check-back: decorate a function with @app.check_back"
            )
        message = Message(
            topic,
            body_of(body),
            tags=tags,
            keys=keys,
            properties={} if properties is None else dict(properties),
        )
        return producer.transaction(message, sharding_key=sharding_key)

    def stop(self) -> None:
        """Let the consumers finish their present work and leave, and `run` return. May be called repeatedly,
        and by handlers. Raises LocalProtocolError while the app is not open."""
        if self._stopping is None:
            raise LocalProtocolError("the app is not open: there is nothing to stop")
        self._is_open = False
        self._stopping.set()

    # --- opening and closing ---

    async def __aenter__(self) -> Self:
        """Connect and start consuming. Raises as `Client.consumer` and its block, and the errors of
        `setup`."""
        self._blocks = await self._open(connect(self._namesrv, **self._options))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Finish and leave; see the class. An error of a handler with `on_error="raise"` ends the block and
        is raised by it."""
        blocks = self._blocks
        assert blocks is not None, "the app is not open"
        return await blocks.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def using(self, client: Client) -> AsyncIterator[Self]:
        """The app over a client that is not entered yet, such as one of `rmq.testing`'s cluster, in place of
        its own: `async with app.using(cluster.connect())`."""
        check_type("client", client, Client, "an rmq.Client")
        async with await self._open(client):
            yield self

    @asynccontextmanager
    async def lifespan(self, application: object = None) -> AsyncIterator[dict[str, Any]]:
        """The lifespan of an ASGI application: `FastAPI(lifespan=app.lifespan)`; Starlette's is the same.
        The app is open while the server runs, and is `request.state.rmq`."""
        async with self:
            yield {"rmq": self}

    async def run(self, *, task_status: anyio.abc.TaskStatus[Self] = anyio.TASK_STATUS_IGNORED) -> None:
        """Open the app, and consume until `stop`. Cancelled: finishes and leaves as at the end of the
        block."""
        async with self:
            task_status.started(self)
            assert self._stopping is not None
            await self._stopping.wait()

    async def _open(self, client: Client) -> AsyncExitStack:
        """Open client, producer, resources and consumers; return the scope to leave at the end."""
        if self._stopping is not None:
            raise LocalProtocolError("the app is already open")
        self._stopping = anyio.Event()
        async with AsyncExitStack() as stack:
            stack.callback(self._forget)
            self._client = await stack.enter_async_context(client)
            producer = (
                client.producer(self.group)
                if self._check_back is None
                else client.transactional_producer(self.group, self._check_back)
            )
            self._producer = await stack.enter_async_context(producer)
            if self._setup is not None:
                self.state = await stack.enter_async_context(self._setup(self))
            scope = await stack.enter_async_context(TaskGroupScope())
            left: list[anyio.Event] = []
            stack.push_async_callback(self._leave, left)
            with unwrap_groups():
                async with anyio.create_task_group() as opening:  # each waits for brokers, repeatedly
                    for registration in self._registered.values():
                        opening.start_soon(scope.tasks.start, self._consume, client, registration, left)
            self._consumers = {
                group: self._consumers[group] for group in self._registered if group in self._consumers
            }
            self._is_open = True
            return stack.pop_all()
        raise AssertionError("an exit stack swallows nothing")

    def _forget(self) -> None:
        self._client = self._producer = self._stopping = self._blocks = None
        self.state = cast(S, None)

    async def _leave(self, left: Iterable[anyio.Event]) -> None:
        """Let all consumers drain and leave, even if the caller is cancelled."""
        self.stop()
        with anyio.CancelScope(shield=True):
            for one in left:
                await one.wait()

    async def _consume(
        self,
        client: Client,
        registration: Registration,
        left: list[anyio.Event],
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Be a member of the group until the app stops, and until its handlers have ended; set the events in
        `left` at that time."""
        assert self._stopping is not None
        group, end = registration.group, anyio.Event()
        handle = registration.of_messages(self._reply)
        try:
            with unwrap_groups():
                async with anyio.create_task_group() as tasks:
                    options: Any = registration.options
                    member: Consumer | LeasedConsumer = client.consumer(group, registration.topics, **options)
                    async with member as consumer:
                        self._consumers[group] = consumer
                        left.append(end)
                        tasks.start_soon(partial(consumer.run, handle, concurrency=registration.concurrency))
                        task_status.started()
                        await self._stopping.wait()
                        if not await consumer.drain(self.drain):
                            log.warning("%s: handlers did not finish in time and are cancelled", group)
        finally:
            self._consumers.pop(group, None)
            end.set()

    async def _reply(self, message: StoredMessage, body: bytes) -> None:
        await self.producer.reply(message, body)
