"""ProxiedCluster: the cluster behind a proxy, shared by the gateways of all clients.

A call of a client that needs a broker is a task, as the client library's functions are async; the tasks are
bounded, and accounts and addresses have shares of the bound.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc

from rmq.client.produce.sender import Sender
from rmq.errors import LocalProtocolError, RmqError, for_code
from rmq.metrics import Metric, single
from rmq.protocol.codes import ResponseCode
from rmq.proxy.members import ProxiedGroup, ProxiedProducer
from rmq.proxy.takes import Takes
from rmq.proxy.topics import Topics
from rmq.shares import DOOR_CLIENT_BYTES, Shares

if TYPE_CHECKING:
    from rmq.client.session.session import Session
    from rmq.proxy.config import ProxyConfig
    from rmq.shares import Holders

log = logging.getLogger("rmq.proxy")

PRODUCER_GROUP: Final = "rmq-proxy"
TOPICS_MAX: Final = 100_000
"""Topics whose routes are in memory."""
MEMBERSHIPS_MAX: Final = 4_000
"""Consumer groups and producers of the proxy in all: a broker takes 4,096 of a connection. Accounts and
addresses have shares of the bound."""
ANNOUNCE_SECONDS: Final = 0.2
"""Seconds between two heartbeats for new groups and producers."""
ROUTES_SECONDS: Final = 1.0
"""Seconds in which missing routes are asked for before a heartbeat."""
LEAVING_SECONDS: Final = 5.0
"""Seconds at the end of the proxy for giving back messages and leaving groups."""

Work = Callable[[], Awaitable[None]]
Fail = Callable[[RmqError], None]


class ProxiedCluster:
    """The cluster behind a proxy. `tasks` end with the proxy; `secret`, if not empty, is known to the proxies
    of a cluster alone."""

    def __init__(
        self, config: ProxyConfig, session: Session, tasks: anyio.abc.TaskGroup, secret: bytes
    ) -> None:
        self.session = session
        self.topics = Topics(session, config.proxy_cache_seconds)
        self.takes = Takes(session)
        self.sender = Sender(session, PRODUCER_GROUP)
        self.calls = Shares(config.proxy_max_calls)
        self.clients = Shares(config.connection_buffer_bytes // DOOR_CLIENT_BYTES)
        self.memberships = Shares(MEMBERSHIPS_MAX)
        self._tasks = tasks
        self._secret = secret or b"rmq-proxy"
        self._unknown: dict[str, Holders] = {}  # topics whose routes are to be asked for
        self._waiting = Shares(TOPICS_MAX)  # the places in it
        self._is_announcing = self._is_due = False
        self._working = 0
        self._idle = anyio.Event()
        self.is_stopping = False

    # ---- tasks ----

    def start(self, holders: Holders, work: Work, fail: Fail) -> None:
        """Run a client's work in a task; `fail` gets its RmqError. Raises SystemBusy without a place."""
        if full := self.calls.full(holders):
            raise for_code(ResponseCode.SYSTEM_BUSY, f"of the calls at brokers (proxyMaxCalls) {full}")
        self.calls.add(holders)
        self._begin(work, fail, holders)

    def tidy(self, work: Work) -> None:
        """Run work of the proxy's own; a failure is logged."""
        self._begin(work, lambda error: log.info("%s", error), None)

    def _begin(self, work: Work, fail: Fail, holders: Holders | None) -> None:
        self._working += 1
        self._tasks.start_soon(self._run, work, fail, holders)

    async def _run(self, work: Work, fail: Fail, holders: Holders | None) -> None:
        try:
            await work()
        except RmqError as error:
            _report(fail, error)
        except Exception as error:
            log.error("a call failed by a fault of the proxy: %s", error, exc_info=error)
            _report(fail, LocalProtocolError(f"the proxy failed: {type(error).__name__}: see its log"))
        finally:
            if holders is not None:
                self.calls.give(holders)
            self._working -= 1
            if not self._working:
                self._idle.set()

    async def finish(self) -> None:
        """Wait until no task works, for a few seconds at most: no new calls come any more."""
        with anyio.move_on_after(LEAVING_SECONDS):
            while self._working:
                self._idle = anyio.Event()
                await self._idle.wait()

    # ---- groups and producers ----

    def group(self, name: str, holders: Holders) -> ProxiedGroup:
        """The member of a group, which the next heartbeat announces to the brokers. Raises SystemBusy without
        a place for a further group."""
        known = self.session.members.get(name)
        if isinstance(known, ProxiedGroup):
            return known
        self._take_place(holders)
        made = self.session.members[name] = ProxiedGroup(self.session, name, holders)
        return made

    def _take_place(self, holders: Holders) -> None:
        if full := self.memberships.full(holders):
            remark = f"of the groups and topics of producers that one proxy announces to brokers {full}"
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        self.memberships.add(holders)

    def announce(self, topics: Iterable[str], holders: Holders) -> None:
        """Announce the proxy's groups and producers to the brokers of these topics, together with those that
        join in between. Raises SystemBusy when very many topics wait, in all or of these holders."""
        for topic in topics:
            self.check_room(topic)
            if topic not in self._unknown:
                if full := self._waiting.full(holders):
                    remark = f"of the topics that wait for their routes {full}"
                    raise for_code(ResponseCode.SYSTEM_BUSY, remark)
                self._waiting.add(holders)
                self._unknown[topic] = holders
        self._is_due = True
        if not self._is_announcing:
            self._is_announcing = True
            self.tidy(self._announce)

    async def _announce(self) -> None:
        """Get missing routes, then send a heartbeat, which goes to the brokers of known routes. Very many
        topics, or name servers that answer late, hold up no heartbeat: the other routes follow."""
        try:
            while self._is_due:
                self._is_due = False
                until = self.session.now() + ROUTES_SECONDS
                while self._unknown:
                    if self.session.now() > until:
                        self._is_due = True
                        break
                    topic, holders = self._unknown.popitem()
                    self._waiting.give(holders)
                    try:
                        await self.topics.parts(topic)
                    except RmqError as error:
                        log.info("members and producers of topic %s are not announced: %s", topic, error)
                await self.session.heartbeat()
                await anyio.sleep(ANNOUNCE_SECONDS)
        finally:
            self._is_announcing = False

    def left(self, group: ProxiedGroup) -> None:
        """Note that a client has left a group: with the last client, the proxy leaves."""
        if group.is_empty and self.session.members.get(group.group) is group:
            del self.session.members[group.group]
            self.memberships.give(group.holders)
            self.tidy(lambda: self._leave(consumer=group.group))

    async def _leave(self, *, producer: str = "", consumer: str = "") -> None:
        known = self.session.producers if producer else self.session.members
        if (producer or consumer) not in known:  # else a client has come back
            await self.session.leave(producer=producer or None, consumer=consumer or None)

    def producer(self, topic: str, holders: Holders) -> ProxiedProducer:
        """The producer of a topic, which brokers may ask for the ends of half messages. Raises SystemBusy
        without a place for a further topic."""
        known = self.session.producers.get(topic)
        if isinstance(known, ProxiedProducer):
            return known
        self._take_place(holders)
        made = self.session.producers[topic] = ProxiedProducer(self.session.routes.name_of, holders)
        return made

    def stopped_producing(self, topic: str, producer: ProxiedProducer) -> None:
        """Note that a client sends no more: with the last client, the proxy is no producer of the topic."""
        if producer.is_empty and self.session.producers.get(topic) is producer:
            del self.session.producers[topic]
            self.memberships.give(producer.holders)
            self.tidy(lambda: self._leave(producer=topic))

    def mark(self, account: str, *things: str) -> str:
        """The mark of an account, or of a thing of an account, by the texts that name the thing: a text
        without information for a broker's readers, which only a proxy can make. Empty without an account."""
        if not account:
            return ""
        text = json.dumps([account, *things]) if things else account
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()[:24]

    def check_room(self, topic: str) -> None:
        """Raise SystemBusy for a further topic when very many are known."""
        routes = self.session.routes
        if routes.get(topic) is None and len(routes.topics()) >= TOPICS_MAX:
            raise for_code(ResponseCode.SYSTEM_BUSY, f"the proxy knows {TOPICS_MAX} topics already")

    def metrics(self) -> list[Metric]:
        """Figures of the calls to brokers."""
        members, producers, more = len(self.session.members), len(self.session.producers), self.clients.used
        return [
            single("proxy_calls", "gauge", "Calls at brokers that are not answered yet", self.calls.used),
            single("proxy_clients", "gauge", "Clients of gRPC that are connected", more),
            single("proxy_groups", "gauge", "Consumer groups that clients are members of", members),
            single("proxy_producers", "gauge", "Topics that clients send transactions to", producers),
        ]


def _report(fail: Fail, failure: RmqError) -> None:
    """Report the failure of a call. An error of `fail` is logged: it ends no call of other clients."""
    try:
        fail(failure)
    except Exception as error:
        log.error("the failure of a call cannot be reported: %s", error, exc_info=error)
