"""Routes: the queues of a topic and their brokers, the choice of a queue for a message, and the brokers to
avoid for now. Pure.

Times are seconds of any clock that does not run backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from itertools import chain, islice, zip_longest
from typing import Any, Final, TypeVar

import anyio
from attrs import define, field, frozen

from rmq.errors import NoRoute, RemoteProtocolError, RmqError, Unreachable
from rmq.message import MessageQueue, java_hash
from rmq.protocol.bodies import QueueData, TopicRouteData
from rmq.protocol.codes import MASTER_ID, PERM_READ, PERM_WRITE
from rmq.remoting.loop import exponential_backoff

K = TypeVar("K")

MISSING_MOST: Final = 100
"""Topics that name servers do not know any more whose routes are kept. Topics come and go beside a process
that runs for a year."""
MISSING_SECONDS: Final = 600.0
"""Seconds for which the routes of all missing topics are kept: a name server that has just started knows no
topic until the brokers have registered."""
MAX_QUEUES = 1 << 16
"""Queues of a topic on one broker above which a route is refused as damaged."""


@frozen
class Route:
    """The parts of a topic's route that a client needs."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    """Writable queues, in RocketMQ's order, on which sharding keys depend."""
    subscribe_queues: tuple[MessageQueue, ...]
    """Readable queues."""
    brokers: dict[str, dict[int, str]]
    """Broker name -> broker id -> address."""

    @classmethod
    def of(cls, topic: str, data: TopicRouteData) -> Route:
        """Read a name server's answer. Raises RemoteProtocolError for an invalid answer."""
        brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
        for queues in data.queue_datas:
            if max(queues.read_queue_nums, queues.write_queue_nums) > MAX_QUEUES:
                raise RemoteProtocolError(
                    f"route of {topic}: more than {MAX_QUEUES} queues on {queues.broker_name}"
                )
        by_name = sorted(data.queue_datas, key=lambda queues: queues.broker_name)
        if data.order_topic_conf:
            publish = _order_queues(topic, data.order_topic_conf)
        else:
            publish = tuple(chain.from_iterable(_writable(topic, queues, brokers) for queues in by_name))
        readable = (queues for queues in by_name if queues.perm & PERM_READ)
        subscribe = (_numbered(topic, queues.broker_name, queues.read_queue_nums) for queues in readable)
        return cls(topic, publish, tuple(chain.from_iterable(subscribe)), brokers)

    def renamed(self, topic: str, queue_nums: int) -> Route:
        """This route as the route of `topic`, which a broker creates with at most `queue_nums` queues."""

        def renamed(queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
            return tuple(
                MessageQueue(topic, q.broker_name, q.queue_id) for q in queues if q.queue_id < queue_nums
            )

        return Route(topic, renamed(self.publish_queues), renamed(self.subscribe_queues), self.brokers)


def _numbered(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, broker_name, number) for number in range(count)]


def _writable(topic: str, queues: QueueData, brokers: dict[str, dict[int, str]]) -> list[MessageQueue]:
    if queues.perm & PERM_WRITE and MASTER_ID in brokers.get(queues.broker_name, {}):
        return _numbered(topic, queues.broker_name, queues.write_queue_nums)
    return []


def _order_queues(topic: str, text: str) -> tuple[MessageQueue, ...]:
    """Queues of an ordered topic, in the form ``broker:count;broker:count``."""
    queues: list[MessageQueue] = []
    for item in filter(None, text.split(";")):
        broker_name, _, count = item.partition(":")
        if not (count.isascii() and count.isdigit() and int(count) <= MAX_QUEUES):
            raise RemoteProtocolError(
                f"route of {topic}: the order configuration {text[:80]!r} cannot be read"
            )
        queues += _numbered(topic, broker_name, int(count))
    return tuple(queues)


def select_by_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """The queue of a sharding key: the same one that a Java producer chooses, as long as the queues stay."""
    # Java: the absolute value of the remainder, which has the hash's sign; so also for the smallest int.
    return queues[abs(java_hash(sharding_key)) % len(queues)]


@define(eq=False)
class Rotation:
    """Takes the writable queues of a topic in turn, over brokers first, so that neighbours in time go to
    different brokers.
    """

    route: Route
    _at: int = 0
    _order: tuple[MessageQueue, ...] = field(init=False)
    broker_names: frozenset[str] = field(init=False)
    """The brokers with queues of the topic."""

    def __attrs_post_init__(self) -> None:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in self.route.publish_queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        self._order = tuple(q for row in zip_longest(*by_broker.values()) for q in row if q is not None)
        self.broker_names = frozenset(by_broker)

    def next(self, avoid: Collection[str] = ()) -> MessageQueue:
        """The next queue on none of the brokers to avoid; without one, the next queue."""
        order, at = self._order, self._at
        self._at = at + 1
        if avoid:
            for step in range(len(order)):
                queue = order[(at + step) % len(order)]
                if queue.broker_name not in avoid:
                    self._at = at + step + 1
                    return queue
        return order[at % len(order)]

    @property
    def is_spread(self) -> bool:
        """True if the queues are on several brokers."""
        return len(self.broker_names) > 1

    @property
    def is_writable(self) -> bool:
        """True if there is a queue to take."""
        return bool(self._order)

    def has_other(self, avoid: Collection[str]) -> bool:
        """True if a queue is on none of the brokers to avoid."""
        return not self.broker_names.issubset(avoid)


SLOW = ((3.0, 30.0), (1.0, 10.0), (0.55, 5.0))
"""Duration of a send -> seconds for which its broker is avoided."""
FAILED_SECONDS = 5.0
"""Seconds for which a broker is avoided after a first failure; each further failure in a row doubles it."""
FAILED_MOST_SECONDS = 60.0


@define(eq=False)
class BrokerHealth:
    """Brokers to avoid for a while, because they failed or were slow.

    RocketMQ has the same under `sendLatencyFaultEnable`, with waits of half a minute to ten; the waits of rmq
    are shorter, so that a short pause does not exclude a broker for long: a slow response costs 5 to 30 s,
    failures 5, 10, 20 ... 60 s. Failures while a broker is avoided for a failure belong to the same failure:
    many sends in flight count once. A quick success, or a new registration of the broker, ends the avoidance.
    If every broker would be avoided, none is.
    """

    _until: dict[str, float] = field(factory=dict)
    _failures: dict[str, int] = field(factory=dict)
    _counted_until: dict[str, float] = field(factory=dict)

    def succeeded(self, broker_name: str, seconds: float, now: float) -> None:
        """Note a send to the broker that took `seconds`."""
        if seconds < SLOW[-1][0]:
            if self._failures or self._until:
                self.clear(broker_name)
            return
        self.clear(broker_name)
        self._until[broker_name] = now + next(avoid for least, avoid in SLOW if seconds >= least)

    def failed(self, broker_name: str, now: float) -> bool:
        """Note that the broker could not be reached, did not answer or refused for reasons of its own;
        returns whether that counts as a new failure."""
        if now < self._counted_until.get(broker_name, now):
            return False
        failures = self._failures.get(broker_name, 0)
        self._failures[broker_name] = failures + 1
        until = now + exponential_backoff(FAILED_SECONDS, failures, FAILED_MOST_SECONDS)
        self._until[broker_name] = self._counted_until[broker_name] = until
        return True

    def clear(self, broker_name: str) -> None:
        """Forget the failures of the broker."""
        for table in (self._until, self._failures, self._counted_until):
            table.pop(broker_name, None)

    def keep(self, broker_names: Container[str]) -> None:
        """Forget all other brokers."""
        for table in (self._until, self._failures, self._counted_until):
            keep_rows(table, broker_names)

    def avoided(self, now: float) -> Collection[str]:
        """The names of the brokers to avoid now."""
        if not self._until:
            return ()
        for name in [name for name, until in self._until.items() if until <= now]:
            del self._until[name]
        return self._until.keys()


def keep_rows(table: dict[K, Any], keys: Container[K]) -> None:
    """Drop the rows of all other keys."""
    for key in [key for key in table if key not in keys]:
        del table[key]


def is_unknown(error: RmqError) -> bool:
    """True if `error` says that name servers know no route: brokers may create the topic."""
    return isinstance(error, NoRoute) and not (error.refused or isinstance(error, Unreachable))


@define(eq=False)
class RouteRequest:
    """A request for a route; further callers wait for the same answer."""

    over: anyio.Event = field(factory=anyio.Event)
    error: RmqError | None = None
    last: NoRoute | None = None
    """The reason why the latest of several attempts found none; the search continues."""
    is_done: bool = False
    """True if it neither failed nor was cancelled."""
    creates: bool = False
    """True if an unknown topic gets the route of topics that brokers create on the first send."""

    def may_create(self, error: RmqError) -> bool:
        """True if a request that `creates` may find a route, where this one failed with `error`."""
        return is_unknown(error) and not self.creates


@define(eq=False)
class RouteTable:
    """All routes that a client knows, and the brokers in them. `start` gives the queue at which a rotation
    begins."""

    _start: Callable[[], int] = lambda: 0
    _rotations: dict[str, Rotation] = field(factory=dict)
    _brokers: dict[str, dict[int, str]] = field(factory=dict)
    _missing: dict[str, float] = field(factory=dict)

    def get(self, topic: str) -> Rotation | None:
        return self._rotations.get(topic)

    def topics(self) -> list[str]:
        return list(self._rotations)

    def put(self, route: Route) -> bool:
        """Add a route; returns whether it has anything new. For a broker, the latest addresses count, from
        whatever topic's route."""
        self._missing.pop(route.topic, None)
        known = self._rotations.pop(route.topic, None)
        changes = known is None or known.route != route
        self._rotations[route.topic] = Rotation(route, self._start()) if known is None or changes else known
        if changes or any(self._brokers.get(name) != by_id for name, by_id in route.brokers.items()):
            self._collect()
            return True
        return False

    def remove(self, topic: str) -> None:
        """Forget a topic's route."""
        self._missing.pop(topic, None)
        if self._rotations.pop(topic, None) is not None:
            self._collect()

    def note_missing(self, topic: str, now: float) -> None:
        """Note that no name server knows the topic any more: its route stays for now, since a name server
        that has just started has no routes yet."""
        if topic in self._rotations:
            self._missing.setdefault(topic, now)

    def surplus(self, now: float) -> list[str]:
        """The topics to forget: those missing for longest, beyond `MISSING_MOST`, and for
        `MISSING_SECONDS`."""
        most = max(0, len(self._missing) - MISSING_MOST)
        return [topic for topic, at in islice(self._missing.items(), most) if now - at >= MISSING_SECONDS]

    def broker_names(self) -> Collection[str]:
        """The names of all brokers."""
        return self._brokers.keys()

    def _collect(self) -> None:
        brokers: dict[str, dict[int, str]] = {}
        for rotation in self._rotations.values():
            brokers.update(rotation.route.brokers)
        self._brokers = brokers

    def name_of(self, address: str) -> str:
        """The name of the broker at an address; empty when it is in no route."""
        found = (name for name, by_id in self._brokers.items() if address in by_id.values())
        return next(found, "")

    def masters(self) -> set[tuple[str, str]]:
        """(name, address) of all brokers for writes."""
        return {(name, by_id[MASTER_ID]) for name, by_id in self._brokers.items() if MASTER_ID in by_id}

    def master(self, broker_name: str) -> str | None:
        """The address for writes to a broker name."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> tuple[int, str] | None:
        """(id, address) of the broker for reads: `broker_id` if known, else the master, else any."""
        addresses = self._brokers.get(broker_name, {})
        for broker_number in (broker_id, MASTER_ID, *sorted(addresses)):
            if broker_number in addresses:
                return broker_number, addresses[broker_number]
        return None

    def addresses(self, *, slaves: bool) -> list[str]:
        """All brokers, or all masters, each once."""
        found = (
            address
            for by_id in self._brokers.values()
            for broker_id, address in by_id.items()
            if slaves or broker_id == MASTER_ID
        )
        return list(dict.fromkeys(found))
