"""Cluster: the driver's queries to a cluster (queues, their begins and ends, committed offsets of a group),
and the event loop in a thread for the plain functions of Spark's interface."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import evolve

from rmq.client.client import Client, connect
from rmq.client.reading.pull_consumer import PullConsumer
from rmq.client.session.routes import Route
from rmq.errors import (
    NETWORK_ERRORS,
    AccessDenied,
    NoRoute,
    RemoteProtocolError,
    RequestCodeNotSupported,
    ResponseError,
    RmqError,
)
from rmq.message import NOT_SENDABLE_TOPICS, MessageQueue
from rmq.protocol.codes import MASTER_ID
from rmq.protocol.record import decode_record
from rmq.remoting.loop import unwrap_groups
from rmq.spark.offsets import Offsets, Places, QueueOffset
from rmq.spark.options import ConnectOptions, ReadOptions

T = TypeVar("T")
log = logging.getLogger(__name__)

WAITED_FOR = (*NETWORK_ERRORS, NoRoute)
"""Errors of a question about a known queue, when its broker is away."""
ROUTES_MS = 5_000
"""Milliseconds after which new queues are seen."""
QUESTIONS_AT_ONCE = 64
PLACES_AT_ONCE = 8
"""Concurrent questions whose answers are whole messages, of up to 4 MiB."""
PAUSE_SECONDS = 0.2


def client_of(options: ConnectOptions, **settings: Any) -> Client:
    """A client of the cluster in the options. Raises ConfigError."""
    timeout = options.request_timeout_ms
    ours = {"mqClientApiTimeout": timeout, "pollNameServerInterval": ROUTES_MS}
    config = evolve(options.client_config(**ours), **settings)
    return connect(
        options.name_server, credentials=options.credentials(), tls=options.tls_config(), config=config
    )


class Loop:
    """An event loop in a thread of its own, with context managers entered in it: `with Loop() as loop`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.portal: BlockingPortal

    def __enter__(self) -> Self:
        self.portal = self._stack.enter_context(start_blocking_portal("trio"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, trace)

    def enter(self, block: Any) -> Any:
        """Enter an async context manager, to be left with the loop; return its value."""
        return self._stack.enter_context(self.portal.wrap_async_context_manager(block))

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an async function in the loop and return its result."""
        return self.portal.call(function, *arguments)


class BrokersAway(RmqError):
    """Required brokers are not registered at the name servers, and did not come back in time."""

    retriable = True
    hint = "start them and run it again: nothing is lost"


def with_brokers(
    loop: Loop, client: Client, brokers: Set[str], patience: float, question: Callable[[], T]
) -> T:
    """The result of a query to all brokers, if the same brokers were registered before and after it. Retries
    for `patience` seconds, and raises BrokersAway, or the error of the last attempt, after that."""
    deadline = time.monotonic() + patience
    while True:
        try:
            _check_registered(loop, client, brokers)
            answer = question()
            _check_registered(loop, client, brokers)
            return answer
        except (*WAITED_FOR, BrokersAway):
            if time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def _check_registered(loop: Loop, client: Client, brokers: Set[str]) -> None:
    if away := brokers - loop.call(client.admin.cluster_info).broker_addr_table.keys():
        raise brokers_away(away)


def masters_away(brokers: Iterable[str]) -> BrokersAway:
    """The error that names brokers without a master."""
    names = ", ".join(sorted(brokers))
    return BrokersAway(
        f"masters waited for, whose slaves may lack messages: {names} (pullTimeoutMs; requireMasters=false"
        " takes a slave's messages)"
    )


def brokers_away(brokers: Iterable[str]) -> BrokersAway:
    """The error that names brokers that are away."""
    names = ", ".join(sorted(brokers))
    return BrokersAway(f"not registered at the name servers, and waited for: {names} (pullTimeoutMs)")


@contextmanager
def _named(broker: str) -> Iterator[None]:
    """Have the error of a broker that did not answer in the block name it, and the option."""
    try:
        yield
    except WAITED_FOR as error:
        if isinstance(error, NoRoute) and error.refused:
            raise
        raise BrokersAway(f"{broker} does not answer, and was waited for (pullTimeoutMs): {error}") from error


class Cluster:
    """Open connections to the cluster of a read: `with Cluster(options) as cluster`.

    Unreachable servers are retried for `patience` seconds; after that, and for refusals of brokers, the
    client's errors are raised.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._credentials = options.credentials()
        self._patience = options.pull_timeout_ms / 1000
        self._required = options.required_brokers if options.require_masters else frozenset[str]()
        self._loop = Loop()
        self._by_slaves: set[str] = set()
        """Brokers whose slaves may have given some answer of the present query."""
        self._given_up: set[str] = set()
        """Brokers whose masters did not come in an earlier wait; a later query does not wait for them
        again."""
        self._without_places: set[str] = set()
        """Brokers whose answers about queues lack store times, or that do not answer such questions."""
        self._skipped: set[str] = set()
        """Brokers that are away and were named in a warning."""
        self._client: Client
        self._consumer: PullConsumer

    def __enter__(self) -> Self:
        self._loop.__enter__()
        try:
            self._client = self._loop.enter(client_of(self._options))
            self._consumer = self._loop.enter(self._client.pull_consumer(self._options.group))
        except BaseException:
            self._loop.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._loop.__exit__(kind, error, trace)

    def queues(
        self,
        expected: Iterable[MessageQueue] = (),
        *,
        brokers: Iterable[str] = (),
        patient: bool = False,
        skips: bool = False,
    ) -> list[MessageQueue]:
        """The queues of the options' topics, by the name servers.

        Waits for `brokers` and requireBrokers, and for brokers that have queues in `expected`: name servers
        forget a stopped broker with its queues. Raises BrokersAway when they do not come; NoRoute for a
        missing topic of the options, when `patient` or when brokers are expected only after a while. With
        `skips` it does not wait for other brokers.
        """
        required = frozenset(brokers) | self._options.required_brokers
        if self._options.require_masters:
            self._required |= required
        return self._loop.call(self._queues, frozenset(expected), required, patient, skips)

    def bounds(
        self,
        queues: Iterable[MessageQueue],
        reached: Mapping[MessageQueue, int] | None = None,
        *,
        skips: bool = False,
        needs_masters: bool = False,
    ) -> dict[MessageQueue, tuple[int, int]]:
        """For each queue the offset of its oldest message and the offset of its next message.

        The end of a slave is a lower bound. It is used if it is not before `reached`, an offset that the
        queue had; else, and always without `reached`, the query waits for the master. After the wait the end
        is the slave's, or `reached`. Raises BrokersAway if a required broker, or with `needs_masters` any
        broker, has no master. With `skips` the result lacks the queues of brokers that do not answer.
        """
        required = list(queues)
        found = self._by_masters(
            lambda: self._loop.call(self._all_bounds, required, skips), reached, needs_masters
        )
        if reached is None:
            return found
        slaves = self._by_slaves
        return {
            queue: (least, max(most, reached.get(queue, most)) if queue.broker_name in slaves else most)
            for queue, (least, most) in found.items()
        }

    @property
    def has_old_secret(self) -> bool:
        """True if the file of the secret has another one now. Raises ConfigError when it cannot be read."""
        return bool(self._options.secret_key_file) and self._options.credentials() != self._credentials

    @property
    def skipped(self) -> frozenset[str]:
        """Brokers that were away at the last query, which did not wait for them."""
        return frozenset(self._skipped)

    def skip(self, brokers: Set[str]) -> None:
        """Note brokers that are away and not waited for; the first time with a warning."""
        if new := brokers - self._skipped:
            log.warning("away, and skipped for now (onBrokerAway=skip): %s", ", ".join(sorted(new)))
        self._skipped |= brokers

    def is_of_slave(self, queue: MessageQueue) -> bool:
        """True if a slave may have given an answer of the last query for this queue's broker."""
        return queue.broker_name in self._by_slaves

    def _by_masters(
        self,
        query: Callable[[], dict[MessageQueue, tuple[int, int]]],
        reached: Mapping[MessageQueue, int] | None,
        needs_masters: bool,
    ) -> dict[MessageQueue, tuple[int, int]]:
        is_patient = needs_masters or not self._options.skips
        deadline = time.monotonic() + (self._patience if is_patient else 0)
        while True:
            self._by_slaves.clear()
            found = query()
            late = {
                queue.broker_name
                for queue, (_, most) in found.items()
                if self.is_of_slave(queue) and (reached is None or most < reached.get(queue, 0))
            }
            self._given_up &= late
            if not late or (late <= self._given_up and not needs_masters):
                return found
            if time.monotonic() >= deadline:
                break
            time.sleep(PAUSE_SECONDS)
        if required := late if needs_masters else late & self._required:
            raise masters_away(required)
        log.warning(
            "no master of %s is registered: messages that its slaves lack are read when it is back",
            ", ".join(sorted(late - self._given_up)),
        )
        self._given_up |= late
        return found

    def places(self, offsets: Mapping[MessageQueue, int]) -> Places:
        """The place of the message before each of these offsets, without the places that brokers do not
        know."""
        found = self._ask(
            lambda queue: self._place(queue, offsets[queue] - 1), offsets, at_once=PLACES_AT_ONCE
        )
        return {queue: place for queue, place in found.items() if place is not None}

    def at_time(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> Offsets:
        """For each queue the offset of the first message stored at that time or later."""

        async def search(queue: MessageQueue) -> int:
            return await self._consumer.search_offset(queue, timestamp_ms)

        return self._ask(search, queues)

    def left_behind(self) -> frozenset[str] | None:
        """Brokers that took messages of the topics, left the name servers without a drain, and did not come
        back; None if the name servers are RocketMQ's, which do not know."""
        missing = self._loop.call(self._patiently, self._client.admin.missing_brokers)
        if missing is None:
            return None
        options, pattern = self._options, self._options.topic_pattern
        return frozenset(
            one.broker_name
            for one in missing
            if one.broker_id == MASTER_ID
            if one.topic_count > len(one.topics)
            or (_matching(pattern, one.topics) if pattern else set(options.topics) & set(one.topics))
        )

    def committed(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int | None]:
        """The group's consumer offset in each queue; None without one."""
        return self._ask(lambda queue: self._consumer.committed(queue), queues)

    def recorded(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int | None]:
        """The offsets in the brokers' own tables, which have no 0 for queues that were never committed."""
        return self._ask(lambda queue: self._consumer.recorded(queue), queues)

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets for the group."""

        async def commit(queue: MessageQueue) -> None:
            await self._consumer.commit(queue, offsets[queue])

        self._ask(commit, offsets)

    # --- in the loop ---

    async def _queues(
        self, expected: frozenset[MessageQueue], brokers: frozenset[str], patient: bool, skips: bool
    ) -> list[MessageQueue]:
        waits_for = NoRoute if patient or expected or brokers else ()
        found = await self._known_queues(waits_for)
        deadline = anyio.current_time() + self._patience
        while missing := _missing(found, expected, brokers):
            # A broker that is registered and, by a later look at the routes, has no such queue is not
            # away: the topic was deleted there, or made smaller.
            info = await self._patiently(self._client.admin.cluster_info)
            found = await self._known_queues(waits_for, asks_again=True)
            away = (missing & _missing(found, expected, brokers)) - info.broker_addr_table.keys()
            if not away:
                break
            if skips and not away & self._options.required_brokers:
                self.skip(away)
                break
            if anyio.current_time() >= deadline:
                raise brokers_away(away)
            await anyio.sleep(PAUSE_SECONDS)
        return found

    async def _known_queues(self, waits_for: Any, *, asks_again: bool = False) -> list[MessageQueue]:
        options = self._options
        topics: Iterable[str] = options.topics
        if options.topic_pattern:
            topics = _matching(options.topic_pattern, await self._patiently(self._consumer.topics))
        found: list[MessageQueue] = []
        for topic in topics:
            look = self._route_now if asks_again else self._consumer.message_queues
            found += await self._patiently(look, topic, waits_for=waits_for)
        if options.queues:
            return [queue for queue in options.queues if queue in found]
        return found

    async def _route_now(self, topic: str) -> list[MessageQueue]:
        """The queues according to the name servers, bypassing the client's cache of some seconds."""
        return list(Route.of(topic, await self._client.admin.topic_route(topic)).subscribe_queues)

    async def _all_bounds(
        self, queues: list[MessageQueue], skips: bool
    ) -> dict[MessageQueue, tuple[int, int]]:
        """The begins and ends of queues, by one request for each broker and topic, and more for queues
        outside of the topic."""
        one_each = {(queue.topic, queue.broker_name): queue for queue in queues}
        tables = await self._ask_all(self._topic_bounds, list(one_each.values()), skips=skips)
        found = {queue: bounds for table in tables.values() for queue, bounds in table.items()}
        there = {queue.broker_name for queue in tables}
        asked = [queue for queue in queues if queue not in found and queue.broker_name in there]
        found |= await self._ask_all(self._bounds, asked, skips=skips)
        self._skipped -= there
        self.skip({queue.broker_name for queue in queues} - there)
        return {queue: found[queue] for queue in queues if queue in found}

    async def _topic_bounds(self, queue: MessageQueue) -> dict[MessageQueue, tuple[int, int]]:
        try:
            return await self._consumer.bounds(queue, on_slave=self._note_slave)
        except ResponseError:  # the broker may still know the queues of a deleted topic
            return {}

    def _note_slave(self, queue: MessageQueue) -> None:
        self._by_slaves.add(queue.broker_name)

    async def _bounds(self, queue: MessageQueue) -> tuple[int, int]:
        least = await self._consumer.min_offset(queue)
        return least, await self._consumer.max_offset(queue, on_slave=self._note_slave)

    async def _place(self, queue: MessageQueue, offset: int) -> QueueOffset | None:
        """The place of a message. rmq's brokers return it; from other brokers the message is pulled."""
        master = self._consumer.master(queue)
        if master is not None and queue.broker_name not in self._without_places:
            try:
                found = await self._client.admin.consume_queue(queue, offset, 1, broker=master)
                for unit in found.queue_data:
                    if unit.rmq_store_timestamp is not None:
                        return unit.physic_offset, unit.rmq_store_timestamp
                    self._without_places.add(queue.broker_name)
            except (RequestCodeNotSupported, AccessDenied):
                self._without_places.add(queue.broker_name)
            except (ResponseError, RemoteProtocolError):
                pass  # an unknown queue, or a queue without the message
        answer = await self._consumer.pull_raw(queue, offset, max_messages=1)
        if not answer.body:
            return None
        message = decode_record(answer.body, 0, check_crc=False, decompressed=False)
        if message.queue_offset != offset:
            return None
        return message.physical_offset, message.store_timestamp

    def _ask(
        self,
        question: Callable[[MessageQueue], Awaitable[T]],
        queues: Iterable[MessageQueue],
        *,
        at_once: int = QUESTIONS_AT_ONCE,
    ) -> dict[MessageQueue, T]:
        return self._loop.call(self._ask_all, question, list(queues), at_once)

    async def _ask_all(
        self,
        question: Callable[[MessageQueue], Awaitable[T]],
        queues: list[MessageQueue],
        at_once: int = QUESTIONS_AT_ONCE,
        *,
        skips: bool = False,
    ) -> dict[MessageQueue, T]:
        answers: dict[MessageQueue, T] = {}
        limit = anyio.CapacityLimiter(at_once)

        async def ask(queue: MessageQueue) -> None:
            async with limit:
                if not skips:
                    with _named(queue.broker_name):
                        answers[queue] = await self._patiently(question, queue, waits_for=NoRoute)
                    return
                with suppress(*WAITED_FOR):
                    answers[queue] = await question(queue)

        with unwrap_groups():
            async with anyio.create_task_group() as tasks:
                for queue in queues:
                    tasks.start_soon(ask, queue)
        return {queue: answers[queue] for queue in queues if queue in answers}

    async def _patiently(
        self, function: Callable[..., Awaitable[T]], *arguments: Any, waits_for: Any = ()
    ) -> T:
        deadline = anyio.current_time() + self._patience
        expected = NETWORK_ERRORS if waits_for == () else WAITED_FOR
        while True:
            try:
                return await function(*arguments)
            except expected as error:
                is_refused = isinstance(error, NoRoute) and error.refused
                if is_refused or anyio.current_time() >= deadline:
                    raise
                await anyio.sleep(PAUSE_SECONDS)


def _missing(
    found: Iterable[MessageQueue], expected: Iterable[MessageQueue], brokers: Iterable[str]
) -> set[str]:
    """Brokers that lack a queue of a topic in `expected`, and brokers of `brokers` without any queue."""
    there = {(queue.topic, queue.broker_name) for queue in found}
    missing = {queue.broker_name for queue in expected if (queue.topic, queue.broker_name) not in there}
    return missing | set(brokers).difference(broker for _, broker in there)


def _matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Topics that the whole pattern matches; RocketMQ's own and retry topics only for a pattern with `%`."""
    matches = re.compile(pattern).fullmatch
    plain = (topic for topic in topics if "%" in pattern or not topic.startswith("%"))
    return sorted(topic for topic in plain if matches(topic) and topic not in NOT_SENDABLE_TOPICS)
