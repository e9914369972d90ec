"""Plug-ins: additions of third parties to a broker, without changes of its code.

A plug-in is a class named by an entry point of the group `rmq.plugins`; the setting `plugins = acl, trace`
chooses and orders. Installed but not named means not loaded. Hooks are synchronous because they are on the
path of every message: a plug-in that needs I/O appends to a bounded deque of its own and drains the deque in
`run()`.

A gate (`on_request`) that fails with anything but AccessDenied refuses the request: it fails closed. An
observer (`on_response`, `on_stored`, `on_pulled`) that fails is logged and counted: it fails open.
`handlers()` adds request codes that the server itself does not answer; they pass the gates like all others.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from attrs import field

from rmq.doors import (
    JOIN,
    PUBLISH,
    SUBSCRIBE,
    Appended,
    DeliverySettings,
    Door,
    DoorHost,
    DoorStream,
    OnAppended,
    OpenTransaction,
    ReadRequest,
    ReadResult,
    TakenMessage,
    TakeRequest,
    TopicView,
    check_doors,
    transaction_id,
)
from rmq.errors import AccessDenied, RmqError

if TYPE_CHECKING:
    from attrs import define, frozen

    from rmq.message import Message
    from rmq.metrics import Metric
    from rmq.protocol.auth.quota import Quota
    from rmq.protocol.command import Command
    from rmq.protocol.record import Record
else:
    from rmq.lazy_attrs import define, frozen


__all__ = [
    "JOIN",
    "PUBLISH",
    "SUBSCRIBE",
    "AccessDenied",
    "Answer",
    "Appended",
    "Asked",
    "DeliverySettings",
    "Door",
    "DoorHost",
    "DoorStream",
    "Handler",
    "Hooks",
    "Host",
    "OnAppended",
    "OpenTransaction",
    "Page",
    "Peer",
    "Plugin",
    "PluginRefused",
    "PulledEvent",
    "ReadRequest",
    "ReadResult",
    "StoredEvent",
    "TakeRequest",
    "TakenMessage",
    "TopicView",
    "account_of",
    "load",
    "transaction_id",
]

T = TypeVar("T")

ENTRY_POINTS = "rmq.plugins"

ACCOUNT: Final = "account"
"""The key of `Peer.state` under which a gate keeps the name of the connection's account."""

log = logging.getLogger("rmq.plugin")


class PluginRefused(RmqError):
    """A plugin named in the configuration cannot be used; nothing has been started."""

    hint = "correct the setting plugins, or install the plugin"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"plugin {name!r}: {reason}")
        self.name = name
        self.reason = reason


class Peer(Protocol):
    """The sender of a request, as a hook sees it."""

    @property
    def peer_address(self) -> str:
        """``host:port`` of the other side."""

    @property
    def local_address(self) -> str:
        """``host:port`` of this side."""

    @property
    def state(self) -> dict[str, Any]:
        """Values of the connection, such as `ACCOUNT`."""


def account_of(peer: Peer) -> str:
    """The account of a connection's last requests; empty when no gate asks for accounts."""
    account: str = peer.state.get(ACCOUNT, "")
    return account


@frozen
class Answer:
    """The response of a page; `more` are further header lines."""

    body: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    more: tuple[tuple[str, str], ...] = ()


@frozen
class Asked:
    """A GET request of a page: the text after `?` in its target; its header lines, names in lower case."""

    query: bytes
    headers: Mapping[bytes, bytes]


Page = Callable[[Asked], Awaitable[Answer]]
"""A page over HTTP."""


@frozen
class StoredEvent:
    """Messages of a topic that a peer has just stored. `records` are the records whose sender gets a
    response, with their places; `store_host` is the broker's address in their ids."""

    topic: str
    count: int
    size: int
    peer: Peer | None
    records: Sequence[Record] = ()
    store_host: bytes = b""


@frozen
class PulledEvent:
    """Messages that one peer has just received. `seconds` is the time since the arrival of its pull, or of
    the send that the pull waited for."""

    topic: str
    group: str
    queue_id: int
    count: int
    size: int
    peer: Peer
    seconds: float = 0.0


class Run(Protocol):
    """Consecutive sends of a connection to existing topics, all of one account or all without an account: the
    facts for a decision about them."""

    @property
    def account(self) -> str | None:
        """The name of the account."""

    def topics(self) -> list[str]:
        """The topics of the sends, each once."""

    def signed(self) -> list[tuple[bytes, bytes, str, str]]:
        """For each send in order, if the run has an account: the bytes that its signature or proof covers
        (rmq.protocol.auth.signature); the signature or proof; nonce and time of a proof, empty for a
        signature."""


Handler = Callable[["Command", Peer, int], "Command | None"]
"""Answers a request: handler(request, peer, now_ms). It raises ResponseError to refuse."""


class Host(Protocol):
    """The broker or the name server of a plug-in, as the plug-in sees it."""

    @property
    def config(self) -> Any:
        """The server's configuration, frozen."""

    @property
    def address(self) -> str:
        """The address that clients get; empty in a name server."""

    def now_ms(self) -> int:
        """Wall time in milliseconds, as stamped on messages."""

    def put(self, message: Message, on_done: OnAppended | None = None) -> None:
        """Store a message, by the rules of a send; it is readable when the broker's present turn ends.

        The broker chooses the queue, and creates the topic if allowed. `on_done` is called with the outcome
        at the time of a producer's response: at once, or when the disk or the replicas have the message.
        Raises ResponseError when the broker refuses the message (too long, a reserved topic, no permission,
        the broker closes or its disk is full), and StoreError for a failed write, without a call of
        `on_done`. Without `on_done`, StoreError is the only report of a failed write, and inside a turn of
        the broker no report comes. A name server stores no messages: it raises LocalProtocolError.
        """

    def topic_of(self, physical_offset: int) -> str | None:
        """The topic of a stored message, also while the message waits for its time or its transaction's end;
        None when no message starts at the offset. Raises CorruptRecord."""

    def answer_saved(
        self, request: Command, peer: Peer, write: Callable[[], T], then: Callable[[T], Command]
    ) -> Command | None:
        """For `handlers`: the response to a request that changes a file, or None when the response comes
        later. `write()` waits for the disk, in a thread if the server has a thread for files, in order;
        `then` gets its result, in the event loop, and makes the response. An error of either becomes the
        response."""

    def save(
        self, write: Callable[[], T], then: Callable[[T], None], fail: Callable[[Exception], None]
    ) -> None:
        """Write a file without a request, as `answer_saved` does and in the same order: `then` gets the
        result of `write()`, or `fail` the error of either, in the event loop."""

    def shared_changed(self) -> None:
        """Report that `Plugin.shared` has changed: the broker sends the new text to the followers."""

    def stats(self) -> Mapping[str, str]:
        """The broker's runtime metrics, as `brokerStatus` shows them."""

    def metrics(self) -> Sequence[Metric]:
        """The metrics as typed values, for monitoring; made on each call, all at once."""

    def metrics_in_slices(self, *, queues: bool = False) -> Generator[None, None, Sequence[Metric]]:
        """Same as `metrics`, in slices for `rmq.remoting.loop.run_cooperatively`, which serves other
        connections between slices: a broker may have 100,000 rows. `queues`: with a row for each queue beside
        the sums by topic."""


class Plugin:
    """Base class: override the hooks that the plug-in needs. `config` holds the texts of the configuration
    file and of `--set`, by their keys."""

    def __init__(self, config: Mapping[str, str], host: Host) -> None:
        self.config = config
        self.host = host

    def on_request(self, peer: Peer, command: Command) -> None:
        """See a request before it is handled. Raises AccessDenied(remark=…) to refuse it."""

    def on_run(self, peer: Peer, run: Run) -> Callable[[], None] | None:
        """A check of a run: None when `on_request` would refuse one of these sends, or must see each send.
        The result is a function with the other effects of `on_request`, called before the sends are stored,
        and not at all when each send is checked after all. With a gate without this hook the compiled engine
        makes no runs."""
        return None

    def on_head(self, peer: Peer, command: Command) -> None:
        """See the header of a request whose large body has not arrived. Raises AccessDenied to refuse the
        request; `on_request` sees the complete request."""

    def may_publish(self, peer: Peer, topic: str) -> bool:
        """True if a peer may send to a topic, and so may see messages that were sent to it and are not
        committed yet."""
        return True

    def may_act_for(self, peer: Peer, account: str) -> bool:
        """True if a peer may see and decide an account's pending work, such as its half messages."""
        return True

    def quota(self, account: str) -> Quota | None:
        """The messages that an account may send and receive in a second; None for no limit. Called for each
        request."""
        return None

    def on_response(self, peer: Peer, command: Command, response: Command) -> None:
        """See the response to a request that is answered at once."""

    def handlers(self) -> Mapping[int, Handler]:
        """Request code -> handler, for codes that the server does not know. Called once."""
        return {}

    def doors(self) -> Sequence[Door]:
        """The protocols that the plug-in serves beside RocketMQ's, on ports of the broker. Called once."""
        return ()

    def authenticate(self, peer: Peer, user: str, secret: str, signed: bytes | None) -> None:
        """Check the login of a door's peer: `secret` is that of the account, or with `signed` the Base64 of
        the HMAC-SHA1 of those bytes under it. Keeps the account's name in `peer.state[ACCOUNT]`. Raises
        AccessDenied."""

    def authenticate_certificate(self, peer: Peer, name: str) -> None:
        """Let a door's peer work for the account that its verified certificate names: as `authenticate`.
        Raises AccessDenied."""

    def may(self, peer: Peer, action: str, name: str) -> bool:
        """True if a door's peer may do one of `rmq.doors.ACTIONS`, to a topic or as a group. If a gate has
        `on_request` and not this hook, no door's peer may do anything."""
        return True

    def listens(self) -> Mapping[str, str]:
        """Listener -> address, for the start banner."""
        return {}

    def pages(self) -> Mapping[str, Page]:
        """Path -> handler of a GET for it on the server's metricsPort, beside /healthz and /ready. The port
        is open where the plugin `metrics` is loaded."""
        return {}

    def on_stored(self, event: StoredEvent) -> None:
        """See stored messages, after their acknowledgement was written."""

    def on_pulled(self, event: PulledEvent) -> None:
        """See messages that a peer has received."""

    def shared(self) -> bytes | None:
        """The state of this plug-in that the replicas of a set with controllers share; None for nothing.
        Slaves get it, sealed, if the set has a clusterSecretFile, when they connect and at
        `Host.shared_changed`. Two MiB at most."""
        return None

    def take_shared(self, text: bytes) -> None:
        """Take the state of the master's plug-in; it may equal the present state. Raises RmqError, which is
        logged."""

    async def run(self) -> None:
        """Run a task of the plug-in in the broker's nursery; restarted with back-off when it fails."""


@define
class Hooks:
    """The overridden hooks of the loaded plugins; a hook that no plug-in overrides is an empty tuple."""

    plugins: tuple[tuple[str, Plugin], ...] = ()
    requests: tuple[Callable[[Peer, Command], None], ...] = ()
    runs: tuple[Callable[[Peer, Run], Callable[[], None] | None], ...] = ()
    """Of the plugins that have `requests`, too."""
    heads: tuple[Callable[[Peer, Command], None], ...] = ()
    publishers: tuple[Callable[[Peer, str], bool], ...] = ()
    actors: tuple[Callable[[Peer, str], bool], ...] = ()
    logins: tuple[Callable[[Peer, str, str, bytes | None], None], ...] = ()
    certificates: tuple[Callable[[Peer, str], None], ...] = ()
    rights: tuple[Callable[[Peer, str, str], bool], ...] = ()
    """Of the plugins that have `requests`, and others."""
    quotas: tuple[Callable[[str], Quota | None], ...] = ()
    responses: tuple[Callable[[Peer, Command, Command], None], ...] = ()
    stored: tuple[Callable[[StoredEvent], None], ...] = ()
    pulled: tuple[Callable[[PulledEvent], None], ...] = ()
    tasks: tuple[tuple[str, Plugin], ...] = ()
    handlers: Mapping[int, Handler] = field(factory=dict)
    failures: dict[str, int] = field(factory=dict)

    def admit(self, peer: Peer, command: Command) -> None:
        """Run the gates. Raises AccessDenied; a gate that fails refuses too."""
        self._ask(self.requests, peer, command)

    @property
    def take_runs(self) -> bool:
        """True if every gate can check a run."""
        return len(self.runs) == len(self.requests)

    def admit_run(self, peer: Peer, run: Run) -> list[Callable[[], None]] | None:
        """The gates' result for a run that passes all gates; None when the gates must see each send."""
        if not self.take_runs:
            return None
        found = []
        for gate in self.runs:
            try:
                then = gate(peer, run)
            except Exception as error:
                self._failed(gate, error)
                return None
            if then is None:
                return None
            found.append(then)
        return found

    def foresee(self, peer: Peer, command: Command) -> None:
        """Run the gates for large bodies that have not arrived. Raises as `admit`."""
        self._ask(self.heads, peer, command)

    def _ask(self, gates: Iterable[Callable[[Peer, Command], None]], peer: Peer, command: Command) -> None:
        for gate in gates:
            try:
                gate(peer, command)
            except AccessDenied:
                raise
            except Exception as error:
                self._failed(gate, error)
                remark = f"a check of this broker failed: {type(error).__name__}"
                raise AccessDenied(remark=remark) from error

    def may_publish(self, peer: Peer, topic: str) -> bool:
        """True if all gates let a peer send to a topic; a gate that fails does not."""
        if not self.publishers:
            return True
        try:
            return all(gate(peer, topic) for gate in self.publishers)
        except Exception as error:
            self._failed(self.publishers[0], error)
            return False

    def may_act_for(self, peer: Peer, account: str) -> bool:
        """True if all gates let a peer act for an account; a gate that fails does not. Every peer may if no
        account is named, and if no gate asks for accounts."""
        try:
            return not account or all(gate(peer, account) for gate in self.actors)
        except Exception as error:
            self._failed(self.actors[0], error)
            return False

    def quota_of(self, peer: Peer) -> tuple[str, Quota] | None:
        """The account of a peer and its quota, of the first plug-in that has a quota for it; None without
        any."""
        account = account_of(peer)
        for quota in self.quotas if account else ():
            try:
                if (found := quota(account)) is not None:
                    return account, found
            except Exception as error:
                self._failed(quota, error)
        return None

    @property
    def has_accounts(self) -> bool:
        """True if any plug-in checks logins."""
        return bool(self.logins)

    def authenticate(self, peer: Peer, user: str, secret: str, signed: bytes | None) -> None:
        """Let all plug-ins check the login of a door's peer. Raises AccessDenied; a check that fails refuses,
        and so does a broker with gates of which none checks logins."""
        self._log_in(self.logins, peer, user, secret, signed)

    def authenticate_certificate(self, peer: Peer, name: str) -> None:
        """Same as `authenticate`, by the name of a verified certificate. A broker that checks logins and has
        no check of certificates refuses."""
        if self.logins and not self.certificates:
            raise AccessDenied(remark="no plug-in of this broker takes certificates")
        self._log_in(self.certificates, peer, name)

    def _log_in(self, checks: Iterable[Callable[..., None]], *given: object) -> None:
        if self.requests and not self.logins:
            raise AccessDenied(remark="no plug-in of this broker checks logins")
        for check in checks:
            try:
                check(*given)
            except AccessDenied:
                raise
            except Exception as error:
                self._failed(check, error)
                remark = f"a check of this broker failed: {type(error).__name__}"
                raise AccessDenied(remark=remark) from error

    def may(self, peer: Peer, action: str, name: str) -> bool:
        """True if all gates let a door's peer do an action; a gate that fails, or has no `may`, does not."""
        if self.requests:
            judges = {getattr(right, "__self__", None) for right in self.rights}
            if any(getattr(gate, "__self__", None) not in judges for gate in self.requests):
                return False
        for right in self.rights:
            try:
                if not right(peer, action, name):
                    return False
            except Exception as error:
                self._failed(right, error)
                return False
        return action != PUBLISH or self.may_publish(peer, name)

    def doors(self) -> list[Door]:
        """The doors of the plug-ins. Raises PluginRefused when they cannot be opened together."""
        found = [(name, door) for name, plugin in self.plugins for door in plugin.doors()]
        fault = check_doors(found)
        if fault is not None:
            raise PluginRefused(*fault)
        return [door for _, door in found]

    def listens(self) -> dict[str, str]:
        """Listener of a plug-in -> address."""
        return {what: where for _, plugin in self.plugins for what, where in plugin.listens().items()}

    def pages(self) -> dict[str, Page]:
        """The pages of the plug-ins, by their paths."""
        return {path: page for _, plugin in self.plugins for path, page in plugin.pages().items()}

    def completing(self, handlers: Mapping[int, Any]) -> dict[int, Any]:
        """A server's own handlers and those of the plugins. Raises PluginRefused when both answer a code."""
        twice = handlers.keys() & self.handlers.keys()
        if twice:
            names = ", ".join(name for name, plugin in self.plugins if twice & plugin.handlers().keys())
            raise PluginRefused(names, f"answers request code {min(twice)}, as the server itself does")
        return {**handlers, **self.handlers}

    def observe(self, hooks: Iterable[Callable[..., None]], *seen: object) -> None:
        """Call observers; one that fails is logged and counted, the rest are still called."""
        for hook in hooks:
            try:
                hook(*seen)
            except Exception as error:
                self._failed(hook, error)

    def _failed(self, hook: Callable[..., object], error: Exception) -> None:
        name = getattr(hook, "__qualname__", repr(hook))
        self.failures[name] = count = self.failures.get(name, 0) + 1
        if count & (count - 1) == 0:  # 1, 2, 4, 8 …: a failing plug-in must not fill the log
            log.error("hook %s failed (%d times): %s", name, count, error, exc_info=error)


def hooks_of(plugins: Sequence[tuple[str, Plugin]]) -> Hooks:
    """Collect the hooks that the plugins override, in the given order."""

    def overridden(hook: str) -> tuple[Any, ...]:
        base = getattr(Plugin, hook)
        return tuple(
            getattr(plugin, hook) for _, plugin in plugins if getattr(type(plugin), hook) is not base
        )

    requests, runs = overridden("on_request"), overridden("on_run")
    gates = [gate.__self__ for gate in requests]
    return Hooks(
        plugins=tuple(plugins),
        requests=requests,
        runs=tuple(gate for gate in runs if gate.__self__ in gates),
        heads=overridden("on_head"),
        publishers=overridden("may_publish"),
        actors=overridden("may_act_for"),
        logins=overridden("authenticate"),
        certificates=overridden("authenticate_certificate"),
        rights=overridden("may"),
        quotas=overridden("quota"),
        responses=overridden("on_response"),
        stored=overridden("on_stored"),
        pulled=overridden("on_pulled"),
        tasks=tuple((name, plugin) for name, plugin in plugins if type(plugin).run is not Plugin.run),
        handlers=_handlers(plugins),
    )


def _handlers(plugins: Sequence[tuple[str, Plugin]]) -> dict[int, Handler]:
    found: dict[int, Handler] = {}
    for name, plugin in plugins:
        added = {int(code): handler for code, handler in plugin.handlers().items()}
        if found.keys() & added.keys():
            codes = ", ".join(map(str, sorted(found.keys() & added.keys())))
            raise PluginRefused(name, f"answers request code {codes}, as another plugin does")
        found |= added
    return found


def named(config: Any) -> tuple[str, ...]:
    """The plugins that a server's settings name: `plugins`, and `acl` first when `aclEnable` is true."""
    names: tuple[str, ...] = config.plugins
    return ("acl", *names) if config.acl_enable and "acl" not in names else names


METRICS: Final = "metrics"
"""The plugin with which a server opens its metricsPort."""


def load(names: Sequence[str], config: Mapping[str, str], host: Host) -> Hooks:
    """Build the named plugins and collect their hooks.

    Raises PluginRefused when a name is unknown or given twice, does not name a Plugin, or cannot be built.
    """
    if not names:
        return Hooks()
    classes = _installed()
    built: dict[str, Plugin] = {}
    for name in names:
        if name in built:
            raise PluginRefused(name, "is named twice in `plugins`")
        if name not in classes:
            known = ", ".join(sorted(classes)) or "none"
            raise PluginRefused(name, f"is not installed; installed are: {known}")
        built[name] = _build(name, classes[name], config, host)
    return hooks_of(tuple(built.items()))


def _installed() -> dict[str, Callable[[], object]]:
    from importlib.metadata import entry_points  # costs 30 ms: only for servers with plug-ins

    return {point.name: point.load for point in entry_points(group=ENTRY_POINTS)}


def _build(name: str, find: Callable[[], object], config: Mapping[str, str], host: Host) -> Plugin:
    try:
        cls = find()
    except Exception as error:
        raise PluginRefused(name, f"cannot be imported: {error}") from error
    if not (inspect.isclass(cls) and issubclass(cls, Plugin)):
        raise PluginRefused(name, f"its entry point names {cls!r}, not a subclass of rmq.plugin.Plugin")
    try:
        return cls(config, host)
    except Exception as error:
        raise PluginRefused(name, f"refuses its configuration: {error}") from error
