"""The client for scripts and notebooks, without async: the same names, with plain `with` and `for`.

    from rmq.client import blocking

    with blocking.connect("127.0.0.1:9876") as client:
        with client.producer("orders-producer") as producer:
            producer.send(rmq.Message("Orders", b"paid 42"))

An event loop in a thread of its own does the work; calls wait for it. All objects may be used from any
thread. Interrupted by Ctrl-C, a call is cancelled before KeyboardInterrupt goes on. Errors are those of the
async client.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from rmq.client import admin as async_admin
from rmq.client import client as async_client
from rmq.client import consumer as async_consumer
from rmq.client import delivery as async_delivery
from rmq.client import producer as async_producer
from rmq.client import pull_consumer as async_puller
from rmq.client import transactional as async_transactional
from rmq.client.dead_letters import ALL_LETTERS, DeadLetter, Letters, Redriven
from rmq.client.outgoing import SendResult
from rmq.client.pull_consumer import PullResult
from rmq.client.subscription import ALL, Sql
from rmq.client.transactional import DiscardedHalf
from rmq.errors import LocalProtocolError
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.remoting.loop import bare_errors

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=AbstractAsyncContextManager[Any])


def wait_for(
    portal: BlockingPortal, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any
) -> T:
    """What the coroutine function returns or raises. Interrupted by Ctrl-C, the call is cancelled first."""

    async def call() -> T:
        return await function(*arguments, **options)

    future = portal.start_task_soon(call)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class _Entered(Generic[E]):
    """Something whose block runs in the loop's thread."""

    def __init__(self, portal: BlockingPortal, inner: E) -> None:
        self._portal = portal
        self._inner = inner
        self._block: AbstractContextManager[Any] = portal.wrap_async_context_manager(inner)

    def __enter__(self: _Self) -> _Self:
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any) -> T:
        return wait_for(self._portal, function, *arguments, **options)

    def _now(self, function: Callable[..., T], *arguments: Any) -> T:
        return self._portal.call(function, *arguments)


_Self = TypeVar("_Self", bound=_Entered[Any])


class Producer(_Entered[async_producer.Producer]):
    """See `rmq.Producer`."""

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> SendResult:
        """Send one message and return when a broker has stored it."""
        return self._call(self._inner.send, message, queue=queue, sharding_key=sharding_key)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> SendResult:
        """Send several messages of one topic."""
        return self._call(self._inner.send_batch, messages, queue=queue, sharding_key=sharding_key)

    def send_many(self, messages: Sequence[Message], *, concurrency: int = 64) -> list[SendResult]:
        """Send messages of any topics, many at a time; the results are in their order. The first error ends
        it: some of the others may be stored."""

        async def send_all() -> list[SendResult]:
            results: dict[int, SendResult] = {}
            limiter = anyio.CapacityLimiter(concurrency)

            async def send(number: int, message: Message) -> None:
                async with limiter:
                    results[number] = await self._inner.send(message)

            with bare_errors():
                async with anyio.create_task_group() as tasks:
                    for number, message in enumerate(messages):
                        tasks.start_soon(send, number, message)
            return [results[number] for number in range(len(messages))]

        return self._call(send_all)

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, sharding_key: str | None = None
    ) -> None:
        """Send without waiting for an answer."""
        self._call(self._inner.send_oneway, message, queue=queue, sharding_key=sharding_key)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that messages go to."""
        return self._call(self._inner.queues, topic)

    def request(self, message: Message, timeout: float = 3.0) -> StoredMessage:
        """Send a message and return the reply to it."""
        return self._call(self._inner.request, message, timeout)

    def reply(self, message: StoredMessage, body: bytes) -> SendResult:
        """Answer a message that `request` sent."""
        return self._call(self._inner.reply, message, body)

    def recall(self, handle: str) -> str:
        """Take a message back that waits for its delivery time."""
        return self._call(self._inner.recall, handle)


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

    def __init__(self, portal: BlockingPortal, inner: async_delivery.Delivery) -> None:
        self._portal = portal
        self._inner = inner
        self._block: AbstractContextManager[StoredMessage] = portal.wrap_async_context_manager(inner)

    @property
    def message(self) -> StoredMessage:
        """The message itself, for a look before it is consumed."""
        return self._inner.message

    def __enter__(self) -> StoredMessage:
        return self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, trace)

    def done(self) -> None:
        """Consumed."""
        self._portal.call(self._inner.done)

    def retry(self, delay_level: int = 0) -> None:
        """Not consumed: send it back."""
        self._portal.call(self._inner.retry, delay_level)


class Consumer(_Entered[async_consumer.Consumer]):
    """See `rmq.Consumer`: iterate over deliveries, or `run` a handler."""

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member has now."""
        return self._inner.queues

    def __iter__(self) -> Iterator[Delivery]:
        while (delivery := self._call(self._next, None)) is not None:
            yield delivery

    def take(self, timeout: float) -> Delivery | None:
        """The next delivery; None when none came for `timeout` seconds, or when the block was left."""
        return self._call(self._next, timeout)

    async def _next(self, timeout: float | None) -> Delivery | None:
        with anyio.move_on_after(timeout):
            try:
                return Delivery(self._portal, await anext(self._inner))
            except StopAsyncIteration:
                pass
        return None

    def run(self, handler: async_consumer.Handler, *, concurrency: int = 20) -> None:
        """Call `handler` with each message, in up to `concurrency` worker threads, until interrupted."""
        self._call(self._inner.run, handler, concurrency=concurrency)

    def run_batches(
        self, handler: async_consumer.BatchHandler, *, batch: int = 32, concurrency: int = 1
    ) -> None:
        """The same with lists of messages."""
        self._call(self._inner.run_batches, handler, batch=batch, concurrency=concurrency)


class PullConsumer(_Entered[async_puller.PullConsumer]):
    """See `rmq.PullConsumer`."""

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are pulled for `poll` now."""
        return self._inner.assignment

    def topics(self) -> list[str]:
        """All topics that the name servers know."""
        return self._call(self._inner.topics)

    def position(self, queue: MessageQueue) -> int:
        """Where the next `pull` without an offset begins."""
        return self._call(self._inner.position, queue)

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return self._call(self._inner.message_queues, topic)

    def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        return self._call(self._inner.min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._call(self._inner.max_offset, queue)

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at that time or later."""
        return self._call(self._inner.search_offset, queue, timestamp_ms)

    def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group has committed."""
        return self._call(self._inner.committed, queue)

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group go on at `offset`."""
        self._call(self._inner.commit, queue, offset)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let the next `pull` or `poll` begin here."""
        self._now(self._inner.seek, queue, offset)

    def pull(
        self,
        queue: MessageQueue,
        offset: int | None = None,
        *,
        max_messages: int = 32,
        expression: str | Sql = ALL,
        wait: float = 0.0,
    ) -> PullResult:
        """Messages from `offset` on."""
        return self._call(
            self._inner.pull, queue, offset, max_messages=max_messages, expression=expression, wait=wait
        )

    def subscribe(self, topics: Mapping[str, str | Sql], **options: Any) -> None:
        """Have this member's share of the queues pulled."""
        self._call(self._inner.subscribe, topics, **options)

    def assign(self, queues: Sequence[MessageQueue], **options: Any) -> None:
        """Have these queues pulled."""
        self._call(self._inner.assign, queues, **options)

    def poll(self, max_messages: int = 32, timeout: float = 5.0) -> list[StoredMessage]:
        """The next messages of the queues that are pulled."""
        return self._call(self._inner.poll, max_messages, timeout)

    def commit_polled(self) -> None:
        """Commit all that was polled."""
        self._call(self._inner.commit_polled)

    def pause(self, *queues: MessageQueue) -> None:
        """Let `poll` take nothing from these queues."""
        self._now(self._inner.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Let `poll` take from them again."""
        self._now(self._inner.resume, *queues)


class _Waiting(Generic[P, T]):
    """A method of the async Admin as one that waits for its answer."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, admin: Admin, kind: type[Admin]) -> Callable[P, T]:
        return partial(wait_for, admin.portal, partial(self._method, admin.inner))


class Admin:
    """See `rmq.client.admin.Admin`."""

    def __init__(self, portal: BlockingPortal, inner: async_admin.Admin) -> None:
        self.portal = portal
        self.inner = inner

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers that this client knows."""
        return self.inner.name_servers

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

    cluster_info = _Waiting(async_admin.Admin.cluster_info)
    topic_route = _Waiting(async_admin.Admin.topic_route)
    broker_addresses = _Waiting(async_admin.Admin.broker_addresses)


def connect(namesrv: str | Sequence[str], *, backend: str = "asyncio", **options: Any) -> Client:
    """A client to be entered with `with`; the options are those of `rmq.connect`. `backend` is the event loop
    of its thread, ``"asyncio"`` or ``"trio"`` (which web sockets need)."""
    return Client(async_client.connect(namesrv, **options), backend)


class Client:
    """See `rmq.Client`."""

    def __init__(self, inner: async_client.Client, backend: str) -> None:
        self._inner = inner
        self._backend = backend
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    @property
    def client_id(self) -> str:
        """The id that brokers know."""
        return self._inner.client_id

    def __enter__(self) -> Client:
        self._portal = self._stack.enter_context(start_blocking_portal(self._backend))
        try:
            self._stack.enter_context(self._portal.wrap_async_context_manager(self._inner))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, trace)

    def producer(self, group: str) -> Producer:
        """A producer of `group`, to be entered with `with`."""
        return Producer(self._entered(), self._inner.producer(group))

    def transactional_producer(
        self, group: str, check_back: async_transactional.CheckBack
    ) -> TransactionalProducer:
        """A producer that can also send inside transactions."""

        async def make() -> async_transactional.TransactionalProducer:
            return self._inner.transactional_producer(group, check_back)

        portal = self._entered()
        return TransactionalProducer(portal, portal.call(make))

    def consumer(self, group: str, topics: Mapping[str, str | Sql], **options: Any) -> Consumer:
        """A member of a consumer group; the options are those of `rmq.Client.consumer`."""

        async def make() -> async_consumer.Consumer:
            return self._inner.consumer(group, topics, **options)

        portal = self._entered()
        return Consumer(portal, portal.call(make))

    def pull_consumer(self, group: str) -> PullConsumer:
        """A consumer that owns its offsets."""
        return PullConsumer(self._entered(), self._inner.pull_consumer(group))

    def dead_letters(
        self, group: str, letters: Letters = ALL_LETTERS, *, limit: int = 1000
    ) -> list[DeadLetter]:
        """The messages that a group has given up."""
        return wait_for(self._entered(), self._inner.dead_letters, group, letters, limit=limit)

    def redrive(self, group: str, letters: Letters = ALL_LETTERS, **options: Any) -> Redriven:
        """Send dead letters to their original topics again; the options are those of `rmq.Client.redrive`."""
        return wait_for(self._entered(), self._inner.redrive, group, letters, **options)

    def discarded_transactions(self, *, limit: int = 1000) -> list[DiscardedHalf]:
        """The half messages whose producers gave no decision."""
        return wait_for(self._entered(), self._inner.discarded_transactions, limit=limit)

    def resume_transaction(self, half: DiscardedHalf) -> None:
        """Have the producers of its group asked again."""
        wait_for(self._entered(), self._inner.resume_transaction, half)

    @property
    def admin(self) -> Admin:
        """What administrators ask and tell the cluster, see `rmq.client.admin`."""
        return Admin(self._entered(), self._inner.admin)

    def _entered(self) -> BlockingPortal:
        if self._portal is None:
            raise LocalProtocolError("the client is not open: use it inside its with block")
        return self._portal
