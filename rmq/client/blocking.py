"""The client for scripts and notebooks, without async: the same names, with plain `with` and `for`.

    from rmq.client import blocking

    with blocking.connect("127.0.0.1:9876") as client:
        with client.producer("orders-producer") as producer:
            producer.send(rmq.Message("Orders", b"paid 42"))

An event loop in a thread of its own does the work; calls wait for it. All objects may be used from any
thread. Interrupted by Ctrl-C, a call is cancelled before KeyboardInterrupt goes on. Errors are those of the
async client. Methods that are made by a descriptor have the arguments, types and docstring of the async one
that it names.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from functools import partial, update_wrapper
from types import MethodType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

import anyio
from anyio.from_thread import BlockingPortal

from rmq.client import admin as async_admin
from rmq.client import client as async_client
from rmq.client.consume import consumer as async_consumer
from rmq.client.consume.deliveries import delivery as async_delivery
from rmq.client.consume.isolation import Snapshot
from rmq.client.produce import producer as async_producer
from rmq.client.produce import transactional as async_transactional
from rmq.client.reading import pull_consumer as async_pull_consumer
from rmq.client.reading import simple_consumer as async_simple_consumer
from rmq.client.session.closing import Closing
from rmq.client.session.results import SendResult
from rmq.client.threads.loop_thread import LoopThread, loop_thread, wait_for
from rmq.errors import ConfigError, LocalProtocolError, check_number
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.remoting.loop import thread_safe_call, unwrap_groups

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=AbstractAsyncContextManager[Any])


class _Twin(Protocol):
    """An object of this module, which stands for an object of the async client."""

    _inner: Any

    def _loop(self) -> BlockingPortal:
        """The way into the thread of the event loop."""


class _Method(Generic[P, T]):
    """A method with the name, arguments and docstring of a method of the async client."""

    def __init__(self, method: Callable[Concatenate[Any, P], Any]) -> None:
        update_wrapper(self, method)
        self._name = method.__name__

    @overload
    def __get__(self, twin: None, kind: type) -> Self: ...
    @overload
    def __get__(self, twin: _Twin, kind: type) -> Callable[P, T]: ...
    def __get__(self, twin: _Twin | None, kind: type) -> Any:
        return self if twin is None else MethodType(self, twin)

    def __call__(self, twin: _Twin, *arguments: P.args, **options: P.kwargs) -> T:
        raise NotImplementedError


class _Waiting(_Method[P, T]):
    """Calls an async method and waits for its result."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        super().__init__(method)

    def __call__(self, twin: _Twin, *arguments: P.args, **options: P.kwargs) -> T:
        result: T = wait_for(twin._loop(), getattr(twin._inner, self._name), *arguments, **options)
        return result


class _InLoop(_Method[P, T]):
    """Runs a plain method in the thread of the loop."""

    def __init__(self, method: Callable[Concatenate[Any, P], T]) -> None:
        super().__init__(method)

    def __call__(self, twin: _Twin, *arguments: P.args, **options: P.kwargs) -> T:
        result: T = twin._loop().call(partial(getattr(twin._inner, self._name), *arguments, **options))
        return result


class _Making(_Method[P, T]):
    """Makes an object in the thread of the loop; returns its twin, of the class `kind`."""

    def __init__(
        self, method: Callable[Concatenate[Any, P], Any], kind: Callable[[BlockingPortal, Any], T]
    ) -> None:
        super().__init__(method)
        self._kind = kind

    def __call__(self, twin: _Twin, *arguments: P.args, **options: P.kwargs) -> T:
        portal = twin._loop()
        made = portal.call(partial(getattr(twin._inner, self._name), *arguments, **options))
        return self._kind(portal, made)


class _Entered(Generic[E]):
    """An object whose block runs in the loop's thread."""

    def __init__(self, portal: BlockingPortal, inner: E) -> None:
        self._portal = portal
        self._inner = inner
        self._block: AbstractContextManager[Any] = portal.wrap_async_context_manager(inner)
        self._is_started = False

    def _loop(self) -> BlockingPortal:
        return self._portal

    def __enter__(self) -> Self:
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    def open(self) -> Self:
        """Open the object without a block; `close`, or the end of its client, closes it."""
        self.__enter__()
        self._is_started = True
        if isinstance(self._portal, LoopThread):
            self._portal.opened.add(self)
        return self

    def close(self) -> None:
        """Close an object that `open` opened, as the end of the block does. No effect if it is closed, or was
        never opened."""
        if self._is_started:
            self._is_started = False
            self.__exit__(None, None, None)


class Producer(_Entered[async_producer.Producer]):
    """See `rmq.Producer`."""

    send = _Waiting(async_producer.Producer.send)
    send_batch = _Waiting(async_producer.Producer.send_batch)
    send_oneway = _Waiting(async_producer.Producer.send_oneway)
    queues = _Waiting(async_producer.Producer.queues)
    request = _Waiting(async_producer.Producer.request)
    reply = _Waiting(async_producer.Producer.reply)
    recall = _Waiting(async_producer.Producer.recall)

    def send_many(self, messages: Sequence[Message], *, concurrency: int = 64) -> list[SendResult]:
        """Send messages of any topics, many at a time; the results are in the same order. The first error
        ends the call: some other messages may be stored. Raises ConfigError, and as `send`."""
        check_number("concurrency", concurrency, 1)

        async def send_all() -> list[SendResult]:
            results: dict[int, SendResult] = {}
            numbered = enumerate(messages)

            async def send_next() -> None:
                for number, message in numbered:
                    results[number] = await self._inner.send(message)

            with unwrap_groups():
                async with anyio.create_task_group() as tasks:
                    for _ in range(min(concurrency, len(messages))):
                        tasks.start_soon(send_next)
            return [results[number] for number in range(len(messages))]

        return wait_for(self._portal, send_all)


class TransactionalProducer(Producer):
    """See `rmq.TransactionalProducer`; `check_back` runs in a worker thread."""

    _inner: async_transactional.TransactionalProducer

    def transaction(
        self, message: Message, *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> AbstractContextManager[async_transactional.Transaction]:
        """`with producer.transaction(message)`: commits at the end of the block, rolls back when it raises;
        interrupted (KeyboardInterrupt), the check-back decides."""
        made = self._inner.transaction(message, queue=queue, sharding_key=sharding_key)
        return self._portal.wrap_async_context_manager(made)


class Delivery:
    """One message, to be consumed inside `with delivery as message`. See `rmq.Delivery`."""

    def __init__(self, consumer: Consumer, inner: async_delivery.Delivery) -> None:
        self._consumer = consumer
        self._inner = inner
        self._snapshot: Snapshot | None = None

    def _loop(self) -> BlockingPortal:
        return self._consumer._loop()

    @property
    def message(self) -> StoredMessage:
        """The message itself, to look at before it is consumed."""
        return self._inner.message

    def __enter__(self) -> StoredMessage:
        self._snapshot = Snapshot()
        # In this thread: it waits for nothing, and changes its state at once. A call into the other thread
        # and back costs more than most handlers.
        return self._inner.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._snapshot is not None:
            self._snapshot.restore()
        if error is None:
            self._consumer._ended_well(self._inner)
            return False
        return wait_for(self._loop(), self._inner.__aexit__, kind, error, trace)

    done = _InLoop(async_delivery.Delivery.done)
    extend = _InLoop(async_delivery.Delivery.extend)
    retry = _Waiting(async_delivery.Delivery.retry)


class Consumer(_Entered[async_consumer.Consumer]):
    """See `rmq.Consumer`: iterate over deliveries, or `run` a handler in worker threads until interrupted."""

    def __init__(self, portal: BlockingPortal, inner: async_consumer.Consumer) -> None:
        super().__init__(portal, inner)
        self._ended: deque[async_delivery.Delivery] = deque()
        self._is_posted = False
        self._post = portal.call(thread_safe_call)

    def _ended_well(self, delivery: async_delivery.Delivery) -> None:
        """Finish a delivery in the loop's thread, soon, together with others."""
        self._ended.append(delivery)
        if not self._is_posted:
            self._is_posted = True
            self._post(self._finish)

    def _finish(self) -> None:
        self._is_posted = False  # first: later deliveries post this function again
        ended = self._ended
        while ended:
            delivery = ended.popleft()
            try:
                delivery.__aexit__(None, None, None).send(None)
            except StopIteration:
                continue

    def _ready(self) -> Delivery | None:
        """A delivery that is available now, taken in this thread."""
        if isinstance(self._portal, LoopThread):
            self._portal.check_process()  # the available messages belong to the other process
        found = self._inner.take_now()
        return None if found is None else Delivery(self, found)

    @property
    def queues(self) -> list[MessageQueue]:
        """The present queues of this member."""
        return self._inner.queues

    def __iter__(self) -> Iterator[Delivery]:
        while (delivery := self._ready() or wait_for(self._portal, self._next, None)) is not None:
            yield delivery

    def take(self, timeout: float) -> Delivery | None:
        """The next delivery; None when none came for `timeout` seconds, or when the block was left."""
        return self._ready() or wait_for(self._portal, self._next, timeout)

    async def _next(self, timeout: float | None) -> Delivery | None:
        with anyio.move_on_after(timeout):
            try:
                return Delivery(self, await anext(self._inner))
            except StopAsyncIteration:
                pass
        return None

    pause = _InLoop(async_consumer.Consumer.pause)
    resume = _InLoop(async_consumer.Consumer.resume)
    seek = _InLoop(async_consumer.Consumer.seek)
    drain = _Waiting(async_consumer.Consumer.drain)
    check_ready = _InLoop(async_consumer.Consumer.check_ready)
    lag = _Waiting(async_consumer.Consumer.lag)
    run = _Waiting(async_consumer.Consumer.run)
    run_batches = _Waiting(async_consumer.Consumer.run_batches)


def _consumer_of(portal: BlockingPortal, inner: Any) -> Consumer:
    """The twin of a consumer. Raises ConfigError with `per_message`: use `simple_consumer` in this module."""
    if not isinstance(inner, async_consumer.Consumer):
        raise ConfigError(
            "per_message", True, "False in a blocking client: use client.simple_consumer for this mode"
        )
    return Consumer(portal, inner)


class ReceivedMessage(async_simple_consumer.ReceivedMessage):
    """See `rmq.ReceivedMessage`."""

    __slots__ = ()

    def ack(self) -> None:  # type: ignore[override]
        """See `rmq.ReceivedMessage.ack`."""
        self._twin().ack(self)

    def nack(self, *, after: float | None = None) -> None:  # type: ignore[override]
        """See `rmq.ReceivedMessage.nack`."""
        self._twin().nack(self, after=after)

    def extend(self, seconds: float) -> None:  # type: ignore[override]
        """See `rmq.ReceivedMessage.extend`."""
        self._twin().extend(self, seconds)

    def _twin(self) -> SimpleConsumer:
        return cast(SimpleConsumer, self._consumer)


_KINDS: dict[type, type] = {}


def _blocking_kind(kind: type) -> type:
    """A class of received messages with the methods of `ReceivedMessage`."""
    made = _KINDS.get(kind)
    if made is None:
        names = ("ack", "nack", "extend", "_twin")
        members = {"__slots__": ()} | {name: vars(ReceivedMessage)[name] for name in names}
        made = _KINDS[kind] = type(kind.__name__, (kind,), members)
    return made


class SimpleConsumer(_Entered[async_simple_consumer.SimpleConsumer]):
    """See `rmq.SimpleConsumer`."""

    def receive(
        self, max_messages: int = 32, *, wait: float = 10.0, invisible: float = 60.0
    ) -> list[ReceivedMessage]:
        """See `rmq.SimpleConsumer.receive`."""
        receive = partial(self._inner.receive, max_messages, wait=wait, invisible=invisible)
        found = wait_for(self._portal, receive)
        for message in found:
            message._become(_blocking_kind(type(message)), self)
        return cast(list[ReceivedMessage], found)

    ack = _Waiting(async_simple_consumer.SimpleConsumer.ack)
    nack = _Waiting(async_simple_consumer.SimpleConsumer.nack)
    extend = _Waiting(async_simple_consumer.SimpleConsumer.extend)


class PullConsumer(_Entered[async_pull_consumer.PullConsumer]):
    """See `rmq.PullConsumer`."""

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that `poll` pulls now."""
        return self._inner.assignment

    topics = _Waiting(async_pull_consumer.PullConsumer.topics)
    message_queues = _Waiting(async_pull_consumer.PullConsumer.message_queues)
    min_offset = _Waiting(async_pull_consumer.PullConsumer.min_offset)
    max_offset = _Waiting(async_pull_consumer.PullConsumer.max_offset)
    bounds = _Waiting(async_pull_consumer.PullConsumer.bounds)
    search_offset = _Waiting(async_pull_consumer.PullConsumer.search_offset)
    committed = _Waiting(async_pull_consumer.PullConsumer.committed)
    commit = _Waiting(async_pull_consumer.PullConsumer.commit)
    position = _Waiting(async_pull_consumer.PullConsumer.position)
    master = _InLoop(async_pull_consumer.PullConsumer.master)
    seek = _InLoop(async_pull_consumer.PullConsumer.seek)
    pull = _Waiting(async_pull_consumer.PullConsumer.pull)
    subscribe = _Waiting(async_pull_consumer.PullConsumer.subscribe)
    assign = _Waiting(async_pull_consumer.PullConsumer.assign)
    poll = _Waiting(async_pull_consumer.PullConsumer.poll)
    commit_polled = _Waiting(async_pull_consumer.PullConsumer.commit_polled)
    pause = _InLoop(async_pull_consumer.PullConsumer.pause)
    resume = _InLoop(async_pull_consumer.PullConsumer.resume)


class Admin:
    """See `rmq.client.admin.Admin`."""

    def __init__(self, portal: BlockingPortal, inner: async_admin.Admin) -> None:
        self._portal = portal
        self._inner = inner

    def _loop(self) -> BlockingPortal:
        return self._portal

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers that this client knows."""
        return self._inner.name_servers

    topics = _Waiting(async_admin.Admin.topics)
    system_topics = _Waiting(async_admin.Admin.system_topics)
    topic_clusters = _Waiting(async_admin.Admin.topic_clusters)
    topic_stats = _Waiting(async_admin.Admin.topic_stats)
    topic_configs = _Waiting(async_admin.Admin.topic_configs)
    topic_config = _Waiting(async_admin.Admin.topic_config)
    create_topic = _Waiting(async_admin.Admin.create_topic)
    put_topic = _Waiting(async_admin.Admin.put_topic)
    set_topic_perm = _Waiting(async_admin.Admin.set_topic_perm)
    delete_topic = _Waiting(async_admin.Admin.delete_topic)
    order_conf = _Waiting(async_admin.Admin.order_conf)
    put_order_conf = _Waiting(async_admin.Admin.put_order_conf)
    delete_order_conf = _Waiting(async_admin.Admin.delete_order_conf)
    topic_exists = _Waiting(async_admin.Admin.topic_exists)

    groups = _Waiting(async_admin.Admin.groups)
    group_configs = _Waiting(async_admin.Admin.group_configs)
    group_config = _Waiting(async_admin.Admin.group_config)
    create_group = _Waiting(async_admin.Admin.create_group)
    put_group = _Waiting(async_admin.Admin.put_group)
    delete_group = _Waiting(async_admin.Admin.delete_group)
    groups_of_topic = _Waiting(async_admin.Admin.groups_of_topic)
    consumer_connection = _Waiting(async_admin.Admin.consumer_connection)
    producer_connection = _Waiting(async_admin.Admin.producer_connection)
    producers = _Waiting(async_admin.Admin.producers)
    consumer_running_info = _Waiting(async_admin.Admin.consumer_running_info)
    consumer_status = _Waiting(async_admin.Admin.consumer_status)

    consume_stats = _Waiting(async_admin.Admin.consume_stats)
    unread_beyond = _Waiting(async_admin.Admin.unread_beyond)
    consumer_progress = _Waiting(async_admin.Admin.consumer_progress)
    broker_consume_stats = _Waiting(async_admin.Admin.broker_consume_stats)
    consume_time_span = _Waiting(async_admin.Admin.consume_time_span)
    reset_offset = _Waiting(async_admin.Admin.reset_offset)
    skip_accumulated = _Waiting(async_admin.Admin.skip_accumulated)
    set_offsets = _Waiting(async_admin.Admin.set_offsets)
    clone_offsets = _Waiting(async_admin.Admin.clone_offsets)

    broker_runtime = _Waiting(async_admin.Admin.broker_runtime)
    broker_config = _Waiting(async_admin.Admin.broker_config)
    update_broker_config = _Waiting(async_admin.Admin.update_broker_config)
    broker_stats = _Waiting(async_admin.Admin.broker_stats)
    delivery_figures = _Waiting(async_admin.Admin.delivery_figures)
    broker_offsets = _Waiting(async_admin.Admin.broker_offsets)
    clean_expired_queues = _Waiting(async_admin.Admin.clean_expired_queues)
    delete_expired_logs = _Waiting(async_admin.Admin.delete_expired_logs)
    clean_unused_topics = _Waiting(async_admin.Admin.clean_unused_topics)
    wipe_write_perm = _Waiting(async_admin.Admin.wipe_write_perm)
    add_write_perm = _Waiting(async_admin.Admin.add_write_perm)
    namesrv_config = _Waiting(async_admin.Admin.namesrv_config)
    update_namesrv_config = _Waiting(async_admin.Admin.update_namesrv_config)
    kv_config = _Waiting(async_admin.Admin.kv_config)
    kv_configs = _Waiting(async_admin.Admin.kv_configs)
    put_kv_config = _Waiting(async_admin.Admin.put_kv_config)
    delete_kv_config = _Waiting(async_admin.Admin.delete_kv_config)

    view_message = _Waiting(async_admin.Admin.view_message)
    message_at = _Waiting(async_admin.Admin.message_at)
    message_in_log = _Waiting(async_admin.Admin.message_in_log)
    query_message = _Waiting(async_admin.Admin.query_message)
    query_unique_key = _Waiting(async_admin.Admin.query_unique_key)
    trace = _Waiting(async_admin.Admin.trace)
    message_tracks = _Waiting(async_admin.Admin.message_tracks)
    consume_directly = _Waiting(async_admin.Admin.consume_directly)
    resume_check = _Waiting(async_admin.Admin.resume_check)
    consume_queue = _Waiting(async_admin.Admin.consume_queue)

    topic_rates = _Waiting(async_admin.Admin.topic_rates)
    all_rates = _Waiting(async_admin.Admin.all_rates)
    export_metadata = _Waiting(async_admin.Admin.export_metadata)
    export_configs = _Waiting(async_admin.Admin.export_configs)
    export_metrics = _Waiting(async_admin.Admin.export_metrics)

    acl_versions = _Waiting(async_admin.Admin.acl_versions)
    acl_config = _Waiting(async_admin.Admin.acl_config)
    acl_servers = _Waiting(async_admin.Admin.acl_servers)
    acl_put_account = _Waiting(async_admin.Admin.acl_put_account)
    acl_delete_account = _Waiting(async_admin.Admin.acl_delete_account)
    acl_set_white_addresses = _Waiting(async_admin.Admin.acl_set_white_addresses)

    call = _Waiting(async_admin.Admin.call)
    cluster_info = _Waiting(async_admin.Admin.cluster_info)
    cluster_report = _Waiting(async_admin.Admin.cluster_report)
    missing_brokers = _Waiting(async_admin.Admin.missing_brokers)
    forget_missing = _Waiting(async_admin.Admin.forget_missing)
    topic_route = _Waiting(async_admin.Admin.topic_route)
    broker_addresses = _Waiting(async_admin.Admin.broker_addresses)


def connect(
    namesrv: str | Sequence[str] | None = None,
    *,
    backend: str = "asyncio",
    **options: Unpack[async_client.ConnectOptions],
) -> Client:
    """A client to be entered with `with`; the options and their defaults are those of `rmq.connect`.
    `backend` is the event loop of its thread, ``"asyncio"`` or ``"trio"``. Raises as `rmq.connect`."""
    async_client.check_known(options, async_client.ConnectOptions.__annotations__, "blocking.connect")
    return Client(async_client.connect(namesrv, **options), backend)


class Client:
    """See `rmq.Client`."""

    def __init__(self, inner: async_client.Client, backend: str) -> None:
        self._inner = inner
        self._backend = backend
        self._stack = ExitStack()
        self._portal: LoopThread | None = None

    @property
    def client_id(self) -> str:
        """The id under which brokers know the client."""
        return self._inner.client_id

    def __enter__(self) -> Client:
        self._portal = self._stack.enter_context(loop_thread(self._backend))
        try:
            self._stack.enter_context(self._portal.wrap_async_context_manager(self._inner))
        except BaseException:
            self._stack.close()
            raise
        atexit.register(self.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        atexit.unregister(self.close)
        if self._portal is not None and not self._portal.is_of_this_process:
            self._stack.pop_all()  # the connections belong to the process that was forked
            return None
        closing = Closing(error)
        for one in list(self._portal.opened) if self._portal is not None else ():
            with closing.of(one):
                one.close()
        try:
            return self._stack.__exit__(kind, error, trace)
        finally:
            closing.finish()

    def open(self) -> Client:
        """Open the client without a block, to be closed with `close`, or by the end of the interpreter."""
        return self.__enter__()

    def close(self) -> None:
        """Close a client that `open` opened, as the end of the block does. No effect if it is closed, or was
        never opened."""
        self.__exit__(None, None, None)

    producer = _Making(async_client.Client.producer, Producer)
    transactional_producer = _Making(async_client.Client.transactional_producer, TransactionalProducer)
    consumer = _Making(async_client.Client.consumer, _consumer_of)
    pull_consumer = _Making(async_client.Client.pull_consumer, PullConsumer)
    simple_consumer = _Making(async_client.Client.simple_consumer, SimpleConsumer)

    ready = _Waiting(async_client.Client.ready)
    health = _InLoop(async_client.Client.health)

    dead_letters = _Waiting(async_client.Client.dead_letters)
    redrive = _Waiting(async_client.Client.redrive)
    discarded_transactions = _Waiting(async_client.Client.discarded_transactions)
    resume_transaction = _Waiting(async_client.Client.resume_transaction)

    @property
    def admin(self) -> Admin:
        """Administration of the cluster, see `rmq.client.admin`."""
        return Admin(self._loop(), self._inner.admin)

    def _loop(self) -> BlockingPortal:
        if self._portal is None:
            raise LocalProtocolError("the client is not open: use the client inside its with block")
        return self._portal
