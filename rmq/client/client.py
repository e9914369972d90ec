"""connect() and Client: one application's connections to a cluster. All tasks end with the client's block."""

from __future__ import annotations

import ipaddress
import math
import os
import random
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, cast, overload
from weakref import WeakSet

import anyio
import anyio.abc
from attrs import evolve

from rmq.client.config import ClientConfig, ClientSettings
from rmq.client.consume.consumer import Consumer
from rmq.client.consume.rebalance import Strategy, averagely
from rmq.client.consume.retry import Backoff
from rmq.client.consume.subscription import ConsumerOptions, OnAssignment, OnError, Sql, full_topics
from rmq.client.produce.producer import Producer
from rmq.client.produce.transactional import CheckBack, TransactionalProducer
from rmq.client.reading.dead_letters import ALL_LETTERS, DeadLetter, Letters, Progress, Redrive, Redriven
from rmq.client.reading.discarded import DiscardedHalf, discarded_halves, resume
from rmq.client.reading.leased_consumer import LeasedConsumer
from rmq.client.reading.pull_consumer import PullConsumer
from rmq.client.reading.simple_consumer import SimpleConsumer
from rmq.client.session.closing import close_all
from rmq.client.session.endpoint import ClientEndpoint
from rmq.client.session.events import OnEvent
from rmq.client.session.health import Health, health_of, until_ready
from rmq.client.session.observer import Observer, Observers
from rmq.client.session.requests import parse_name_servers
from rmq.client.session.session import InThread, Session, in_thread
from rmq.client.settings.contexts import Context
from rmq.client.settings.target import resolve
from rmq.clock import wall_clock_ms
from rmq.errors import ConfigError, InvalidType, LocalProtocolError, check_callable, check_number, check_type
from rmq.message import UniqueIds, validate_group, validate_topic, with_namespace
from rmq.protocol import engine
from rmq.protocol.auth.signature import Credentials, Prover
from rmq.protocol.command import Command
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import Limits
from rmq.remoting.loop import AsyncResource, TaskGroupScope, check_loop, running_loop
from rmq.remoting.network import Network, TcpNetwork
from rmq.remoting.pool import Pool
from rmq.remoting.transports.tls import TlsConfig

if TYPE_CHECKING:
    from rmq.client.admin import Admin

S = TypeVar("S", bound=AsyncResource)

# Identity of a client: its address and its id.


def local_address(toward: str) -> str:
    """This machine's IP address as seen on the way to `toward` (``host:port``); nothing is sent."""
    host = toward.rpartition("://")[2].rpartition(":")[0].strip("[]")
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:  # a name: looking it up could take long, so use the route to any address
        host, version = "192.0.2.1", 4
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host, 9))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return "127.0.0.1"


def new_client_id(address: str, chance: random.Random) -> str:
    """``IP@PID#random``: two clients in containers may have the same address and process id, never the same
    id.
    """
    return f"{address}@{os.getpid()}#{chance.getrandbits(64):016x}"


# SigningPool: a pool whose requests carry the account's signature and proof.


class SigningPool(Pool):
    """A Pool that signs its requests, each connection as a session of its own."""

    def __init__(self, credentials: Credentials, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._credentials = credentials

    def signer(self) -> Callable[[Command], Command] | None:
        """A new session."""
        return Prover(self._credentials, wall_clock_ms)


_KINDS: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "context": ((str, NoneType), "the name of a context"),
    "client_id": ((str, NoneType), "text"),
    "tls": ((TlsConfig, NoneType), "an rmq.TlsConfig"),
    "config": ((ClientConfig, NoneType), "an rmq.ClientConfig"),
    "plugins": (Sequence, "a list of rmq.Observer"),
}


def check_arguments(**arguments: Any) -> None:
    """Raises InvalidType for an argument of `connect`, other than `namesrv`, of a wrong type."""
    for name, value in arguments.items():
        if name in _KINDS:
            check_type(name, value, *_KINDS[name])
    credentials, network = arguments.get("credentials"), arguments.get("network")
    if not isinstance(credentials, (Credentials, NoneType)):  # its fields may be secret
        raise InvalidType("credentials", type(credentials), "rmq.Credentials")
    for plugin in arguments.get("plugins", ()):
        check_type("plugins", plugin, Observer, "a list of rmq.Observer")
    if not (network is None or all(callable(getattr(network, name, None)) for name in ("dial", "listen"))):
        raise InvalidType(
            "network", network, "an object with the methods dial and listen, such as a network of rmq.testing"
        )
    if arguments.get("on_event") is not None:
        expected = "a function of an event, such as rmq.Stalled"
        check_callable("on_event", arguments["on_event"], expected, is_awaited=False)


class ConnectOptions(ClientSettings, total=False):
    """The keywords of `connect`."""

    context: str | None
    client_id: str | None
    credentials: Credentials | None
    tls: TlsConfig | None
    config: ClientConfig | None
    network: Network | None
    plugins: Sequence[Observer]
    on_event: OnEvent | None


def check_known(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises TypeError for unknown keywords."""
    takes = sorted(known)
    unknown = sorted(set(given) - set(takes))
    if not unknown:
        return
    near = sorted({one for name in unknown for one in get_close_matches(name, takes, 1)})
    hint = f"did you mean {', '.join(near)}?" if near else f"it takes {', '.join(takes)}"
    raise TypeError(f"{where} has no {', '.join(unknown)}; {hint}")


def config_of(config: ClientConfig | None, settings: ClientSettings) -> ClientConfig:
    """`config`, or without it the environment's, with `settings` in place of their fields. Raises
    InvalidType, ConfigError."""
    if config is None:
        return ClientConfig.from_environment(**settings)
    check_arguments(config=config)
    return evolve(config, **settings) if settings else config


def check_options(namesrv: str | Sequence[str] | None, options: ConnectOptions, where: str) -> None:
    """Check the options of `connect`; raises its errors."""
    check_known(options, ConnectOptions.__annotations__, where)
    if namesrv is not None:
        parse_name_servers(namesrv)
    check_arguments(**options)
    settings = {name: value for name, value in options.items() if name in ClientSettings.__annotations__}
    config_of(options.get("config"), cast(ClientSettings, settings))


def connect(
    namesrv: str | Sequence[str] | None = None,
    *,
    context: str | None = None,
    client_id: str | None = None,
    credentials: Credentials | None = None,
    tls: TlsConfig | None = None,
    config: ClientConfig | None = None,
    network: Network | None = None,
    plugins: Sequence[Observer] = (),
    on_event: OnEvent | None = None,
    **settings: Unpack[ClientSettings],
) -> Client:
    """A client of the cluster of these name servers: `async with rmq.connect("127.0.0.1:9876") as client`.

    `namesrv` is ``host:port``, several joined by ``;`` or a list; a scheme ``tls://``, ``ws://`` or
    ``wss://`` before the first chooses the transport, to brokers too. `context` is a cluster known to `rmq
    context` by name, with its account and TLS settings. Without both, the environment decides:
    RMQ_NAMESRV_ADDR, else RMQ_CONTEXT, the name of a context, else NAMESRV_ADDR; else the current context of
    `rmq context use`; else 127.0.0.1:9876. If no context has an account, RMQ_ACCESS_KEY with RMQ_SECRET_KEY
    is the account; for an address given as an argument only `credentials` count as an account.

    `settings` are the fields of `ClientConfig`, such as `send_timeout_ms=5_000`; they replace those of
    `config`. Without `config` the other fields are `ClientConfig.from_environment()`. Arguments take
    precedence over the environment, and the environment over the current context. `client_id` must be unique
    in the cluster; the default is. `plugins` see the messages on their way: `MessageTrace`, `OpenTelemetry`,
    or an `Observer` of your own. `on_event` is called with events around the messages: `Connected`,
    `Disconnected`, `Assigned`, `Stalled`; in the event loop, so it must not take long. `network` is for
    tests. The client connects on first use, so a name server may start later. Raises ConfigError,
    InvalidType, TypeError for an unknown keyword.

    Applications with a task group of their own may write `await nursery.start(client.run)` instead.
    """
    engine.check()
    check_known(settings, ConnectOptions.__annotations__, "rmq.connect")
    config = config_of(config, settings)
    if namesrv is None or context is not None:
        check_arguments(context=context)
        given = Context(namesrv=";".join(parse_name_servers(namesrv)) if namesrv is not None else "")
        found = resolve(given, context, os.environ, with_account=credentials is None)
        namesrv = parse_name_servers(found.namesrv, found.origin)
        credentials = found.credentials if credentials is None else credentials
        tls = found.tls if tls is None else tls
    return Client(
        namesrv,
        client_id=client_id,
        credentials=credentials,
        tls=tls,
        config=config,
        network=network,
        plugins=plugins,
        on_event=on_event,
    )


class Client(AsyncResource):
    """One application's connections to a cluster, shared by all its producers and consumers. Made by
    `connect`.
    """

    _endpoint: Callable[[Session], Endpoint] = ClientEndpoint
    """The handler of brokers' requests."""

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        client_id: str | None = None,
        credentials: Credentials | None = None,
        tls: TlsConfig | None = None,
        config: ClientConfig | None = None,
        network: Network | None = None,
        plugins: Sequence[Observer] = (),
        on_event: OnEvent | None = None,
    ) -> None:
        self._name_servers = parse_name_servers(namesrv)
        check_arguments(
            client_id=client_id,
            credentials=credentials,
            tls=tls,
            config=config,
            network=network,
            plugins=plugins,
            on_event=on_event,
        )
        self._on_event = on_event
        self._chance = random.Random()
        self._address = local_address(self._name_servers[0])
        self.client_id = client_id or new_client_id(self._address, self._chance)
        self._made_by = os.getpid()
        self._is_named = client_id is not None
        self._persistent_name = client_id or f"{self._address}@DEFAULT"
        self.config = config or ClientConfig()
        self._credentials = credentials
        self._tls = tls
        self._network = network or TcpNetwork()
        self._plugins = tuple(plugins)
        self._session: Session | None = None
        self._loop: object | None = None
        self._scope = TaskGroupScope()
        self._made: WeakSet[AsyncResource] = WeakSet()
        self._now_ms = wall_clock_ms  # rmq.testing has its own
        self._limits: Limits | None = None  # of connections; likewise
        self._in_thread: InThread = in_thread  # likewise

    def __repr__(self) -> str:
        return f"<Client {self.client_id} of {';'.join(self._name_servers)}>"

    async def __aenter__(self) -> Client:
        """Start the client's tasks. A client is entered once."""
        if self._session is not None:
            raise LocalProtocolError(
                "this client was opened before: a client opens once, create a new one with rmq.connect"
            )
        if os.getpid() != self._made_by:  # made before a fork, in a web server's module: the copies differ
            self._chance.seed()
            if not self._is_named:
                self.client_id = new_client_id(self._address, self._chance)
        self._loop = running_loop()
        packed = ipaddress.ip_address(self._address).packed
        self._session = Session(
            self._pool,
            self._endpoint,
            self._name_servers,
            self.client_id,
            self.config,
            unique_ids=UniqueIds(packed, os.getpid(), wall_clock_ms),
            chance=self._chance,
            now_ms=self._now_ms,
            persistent_name=self._persistent_name,
            observers=Observers(self._plugins),
            on_event=self._on_event,
            in_thread=self._in_thread,
        )
        async with self._scope.entering():
            await self._scope.tasks.start(self._session.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the producers and consumers opened by `start`, and next all connections, once the producers
        and consumers of other tasks have left, or after `shutdown_timeout_ms`. An error of the block is
        raised unchanged, never in an exception group."""
        check_loop(self._loop, "the client")
        try:
            with anyio.move_on_after(self.config.shutdown_timeout_ms / 1000, shield=True):
                try:
                    await close_all(list(self._made), error)
                finally:
                    await self._entered().departures()
                    for observer in self._plugins:
                        await observer.flush()
        finally:
            await self._scope.__aexit__(kind, error, trace)

    async def run(self, *, task_status: anyio.abc.TaskStatus[Client] = anyio.TASK_STATUS_IGNORED) -> None:
        """Open the client and keep it open until cancelled: `client = await nursery.start(client.run)`."""
        async with self:
            task_status.started(self)
            await anyio.sleep_forever()

    def producer(self, group: str, *, auto_batch: bool = False, idempotent: bool = False) -> Producer:
        """A producer of `group`, for `async with`.

        With `auto_batch`, sends to the same topic that begin together, for example in many tasks, go to the
        broker in a single request and to the same queue: a third of the work for each. Order, results and
        errors are those of each message. Messages that a batch cannot hold go alone: delayed and compressed
        messages, messages of 128 KiB or more, requests, transactions. Without `auto_batch` messages are
        spread over all queues.

        With `idempotent`, a message that is repeated because its response was lost is stored once: the client
        sends it to the same broker again, for up to `send_queue_ms`. The broker must support idempotent sends
        (rmq's, with `idempotentSendKeepTime`; other brokers store the message as usual). Bodies are not
        compressed. A send costs as much as a batch of a single message. Raises InvalidName, InvalidType.
        """
        check_type("auto_batch", auto_batch, bool, "True or False")
        check_type("idempotent", idempotent, bool, "True or False")
        made = Producer(self._entered(), self._full(group), auto_batch=auto_batch, idempotent=idempotent)
        return self._making(made)

    def transactional_producer(self, group: str, check_back: CheckBack) -> TransactionalProducer:
        """A producer of `group` that can also send inside transactions, for `async with`.
        `check_back(message)` decides about a half message whose end the broker does not know: `rmq.COMMIT`,
        `rmq.ROLLBACK` or `rmq.UNKNOWN`. Raises InvalidName."""
        return self._making(TransactionalProducer(self._entered(), self._full(group), check_back))

    @overload
    def consumer(
        self,
        group: str,
        topics: Mapping[str, str | Sql],
        *,
        per_message: Literal[False] = False,
        consume_from: str | int = "last",
        broadcasting: bool = False,
        on_error: OnError = "retry",
        strategy: Strategy = averagely,
        ordered: bool = False,
        max_reconsume_times: int | None = None,
        retry: Backoff | None = None,
        on_assignment: OnAssignment | None = None,
        require_topics: bool = False,
    ) -> Consumer: ...
    @overload
    def consumer(
        self,
        group: str,
        topics: Mapping[str, str | Sql],
        *,
        per_message: Literal[True],
        consume_from: str | int = "last",
        on_error: OnError = "retry",
        ordered: bool = False,
        retry: Backoff | None = None,
        lease: float = 60.0,
    ) -> LeasedConsumer: ...
    def consumer(
        self,
        group: str,
        topics: Mapping[str, str | Sql],
        *,
        consume_from: str | int = "last",
        broadcasting: bool = False,
        on_error: OnError = "retry",
        strategy: Strategy = averagely,
        ordered: bool = False,
        max_reconsume_times: int | None = None,
        retry: Backoff | None = None,
        on_assignment: OnAssignment | None = None,
        require_topics: bool = False,
        per_message: bool = False,
        lease: float = 60.0,
    ) -> Consumer | LeasedConsumer:
        """A member of a consumer group, for `async with`.

        `topics` maps each topic to its filter: ``"*"``, tags as ``"a || b"``, or `rmq.sql(...)`; all members
        of a group must use the same. `consume_from` is the begin of a group that the broker does not know
        yet: ``"first"``, ``"last"``, or a time in ms since 1970 (young queues are always read from their
        beginning, as with RocketMQ). `broadcasting` gives every member every message; offsets are then kept
        in a file below `offsets_dir` under the `client_id` (without `client_id`, this host's members share
        the file, as with Java's clients), and failed messages are not redelivered. `on_error` is ``"retry"``:
        log the error and nack the message, or ``"raise"``: nack the message and raise the error from `run` or
        the delivery's block. `strategy` divides the queues of a topic among the members.

        `ordered` gives a single message of a queue at a time, in order, under the broker's lock of the queue;
        a failed message holds up its queue and is redelivered locally. `max_reconsume_times` is the number of
        retries before a message becomes a dead letter; the default is the configuration's, and with `ordered`
        no limit. `retry` sets the delays of failed messages, and may set their number: see `Backoff`.

        `on_assignment(change)`, a function or a coroutine function, is called when the consumer's queues have
        changed; `change` is an `Assigned`. The consumer waits for it: nothing is delivered from new queues
        before it has returned, so it may `seek` in them. Offsets of queues that are given up are committed
        before, unless the consumer is ordered: in that case a message of each queue may still be in flight.
        Its errors are logged. `require_topics` makes a missing topic, or silent name servers, an error at the
        begin of the block; otherwise the consumer waits. Raises InvalidName, InvalidType, ConfigError.
        """
        options = ConsumerOptions(
            consume_from=consume_from,
            broadcasting=broadcasting,
            on_error=on_error,
            strategy=strategy,
            max_reconsume_times=max_reconsume_times,
            ordered=ordered,
            retry=retry,
            on_assignment=on_assignment,
            require_topics=require_topics,
            per_message=per_message,
            lease=lease,
        )
        subscribed = full_topics(topics, self.config.namespace)
        if per_message:
            leased = LeasedConsumer(
                self._entered(),
                self._full(group),
                subscribed,
                in_order=ordered,
                from_first=consume_from == "first",
                on_error=on_error,
                retry=retry,
                lease=lease,
            )
            return self._making(leased)
        return self._making(Consumer(self._entered(), self._full(group), subscribed, options))

    def simple_consumer(
        self,
        group: str,
        topics: Mapping[str, str | Sql],
        *,
        in_order: bool = False,
        consume_from: str = "last",
    ) -> SimpleConsumer:
        """A consumer that receives messages one by one and acknowledges each, to be entered with `async
        with`.

        `topics` is as for `consumer`. `in_order`: a message waits while another message of its message group
        (`__SHARDINGKEY`) is in flight. `consume_from` is ``"first"`` or ``"last"``, for a group that the
        broker does not know yet. Raises InvalidName, InvalidType, ConfigError.
        """
        if consume_from not in ("first", "last"):
            raise ConfigError("consume_from", consume_from, "'first' or 'last'")
        subscribed = full_topics(topics, self.config.namespace)
        made = SimpleConsumer(
            self._entered(),
            self._full(group),
            subscribed,
            in_order=in_order,
            from_first=consume_from == "first",
        )
        return self._making(made)

    def pull_consumer(self, group: str) -> PullConsumer:
        """A consumer that owns its offsets, to be entered with `async with`. Raises InvalidName."""
        return self._making(PullConsumer(self._entered(), self._full(group)))

    def _making(self, made: S) -> S:
        self._made.add(made)
        return made

    # --- state ---

    async def ready(self, timeout: float = 10.0, *, topics: Iterable[str] = ()) -> None:
        """Wait until the client can do its work: a name server answers, a broker of each of `topics` is
        connected, and each of its consumers has its share of the queues, possibly none, and consumes. For
        checks at a program's start, and for readiness probes.

        Raises, after `timeout` seconds, the obstacle: Unreachable, NoRoute, ConnectFailed, NotReady (also of
        a consumer whose `run` or background tasks have ended) or a ResponseError; AccessDenied and
        NoPermission at once, and LocalProtocolError when the client's own background tasks have ended.
        Cancelled: nothing has happened.
        """
        check_number("timeout", timeout, 0, whole=False)
        if isinstance(topics, str):
            raise InvalidType("topics", topics, "a list of names of topics")
        full = [with_namespace(self.config.namespace, validate_topic(topic)) for topic in topics]
        session = self._entered()
        if ended := self._scope.ended():
            raise LocalProtocolError(f"the client's background tasks have ended: {ended}")
        await until_ready(session, full, timeout)

    def health(self) -> Health:
        """State of the client: its servers, producers and consumers, and their problems, from memory. For
        liveness probes and status pages. Raises LocalProtocolError before the client is open."""
        return health_of(self._entered(), self._scope.ended())

    @property
    def admin(self) -> Admin:
        """Administration of the cluster. Names are full names: no namespace is added."""
        from rmq.client.admin import Admin  # a third of the client's import time; few programs need it

        return Admin(self._entered())

    # --- dead letters and discarded transactions ---

    async def dead_letters(
        self, group: str, letters: Letters = ALL_LETTERS, *, limit: int = 1000
    ) -> list[DeadLetter]:
        """The messages that `group` has given up, or the part that `letters` selects: at most `limit`, queue
        by queue, each in the order of their death.

        Raises NoPermission when their topic may not be read, and as `PullConsumer.pull`. Cancelled: nothing
        has happened.
        """
        check_number("limit", limit, 0)
        return await Redrive(self._entered(), self._full(group)).letters(letters, limit)

    async def redrive(
        self,
        group: str,
        letters: Letters = ALL_LETTERS,
        *,
        to: str | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> Redriven:
        """Send dead letters of `group` to their original topics again, or all to the topic `to`; all dead
        letters, or those that `letters` selects.

        At most `rate` a second. `progress(so_far)` is called after each. The messages keep their ids; a
        letter that an earlier run has sent is not sent again. The letters stay in place. A failure of a
        single letter is in the result's `failed`; an error that concerns all, such as a lost broker, is
        raised. Raises as `dead_letters` and `Producer.send`. Cancelled: sent letters stay sent, and the next
        run continues behind them.
        """
        redrive = Redrive(self._entered(), self._full(group))
        return await redrive.run(letters, to=to, rate=rate, progress=progress)

    async def discarded_transactions(self, *, limit: int = 1000) -> list[DiscardedHalf]:
        """The half messages whose producers gave no decision in all check-backs: at most `limit`, in the
        order in which they were given up. A resumed message stays in the list. Raises as `PullConsumer.pull`.
        Cancelled: nothing has happened."""
        check_number("limit", limit, 0)
        return await discarded_halves(self._entered(), limit)

    async def resume_transaction(self, half: DiscardedHalf) -> None:
        """Repeat the check-backs of a half message, from the first check on. Raises NoRoute, and the
        ResponseError of the broker for any other message. Cancelled: the message may or may not be resumed. A
        message that is resumed twice may be committed twice."""
        await resume(self._entered(), half)

    def _full(self, group: str) -> str:
        return with_namespace(self.config.namespace, validate_group(group))

    def _entered(self) -> Session:
        if self._session is None:
            raise LocalProtocolError("the client is not open: use the client inside its async with block")
        check_loop(self._loop, "the client")
        return self._session

    def _pool(self, endpoint: Endpoint) -> Pool:
        # Routes hold no schemes: brokers are dialled as the name server is, which knows them.
        scheme, mark, _ = self._name_servers[0].partition("://")
        scheme = scheme if mark else ""
        limits = self._limits or Limits(
            stall_seconds=math.inf,  # a broker that reads nothing keeps its connection; calls time out
            keepalive_seconds=self.config.tcp_keepalive_ms / 1000,
            unacknowledged_seconds=self.config.tcp_user_timeout_ms / 1000,
        )
        options: dict[str, Any] = {"limits": limits, "tls": self._tls, "scheme": scheme}
        if self._credentials is not None:
            return SigningPool(self._credentials, self._network, endpoint, **options)
        return Pool(self._network, endpoint, **options)
