"""NameServer: answers requests from a RouteTable and a KvConfigs; no clock, no socket, no file of its own.

Unknown request codes are answered with REQUEST_CODE_NOT_SUPPORTED, as the broker does. The Java name server
does not answer at all, so that a RocketMQ client waits for its time-out; the client takes both as "not
supported".
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from attrs import define

from rmq.config import canonical, dump_properties, evolve, parse_properties
from rmq.controller.requests import ControllerRequests, needs_secret
from rmq.errors import (
    ConfigError,
    LocalProtocolError,
    NoPermission,
    QueryNotFound,
    ResponseError,
    SystemFailure,
)
from rmq.files import SaveSettings
from rmq.metrics import Metric
from rmq.namesrv.clashes import Clashes
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.kvconfigs import NAMESPACE_ORDER_TOPIC_CONFIG, KvConfigs
from rmq.namesrv.masters import Masters
from rmq.namesrv.missing import MissingBrokers
from rmq.namesrv.routes import UNREGISTERED, Clash, Registration, RouteLimits, RouteTable
from rmq.plugin import Hooks
from rmq.protocol import headers
from rmq.protocol.auth.server_auth import ServerAuth
from rmq.protocol.bodies import (
    ClusterReport,
    DataVersion,
    MissingBroker,
    RefusedBroker,
    RegisterBrokerBody,
    TopicRouteData,
)
from rmq.protocol.codes import LanguageCode, MQVersion, RequestCode, ResponseCode
from rmq.protocol.command import SMALLEST_BODY_LIMIT, Command, check_body
from rmq.protocol.fields import Body
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import MemoryBudget, turn_is_over
from rmq.remoting.serving.acceptor import Acceptor
from rmq.remoting.transports.certificate import ServerCertificate
from rmq.server.deferred import DeferredSaves, error_response
from rmq.shares import Gateways, by_account_and_address, by_address

log = logging.getLogger("rmq.namesrv")
_error_response = partial(error_response, log)

SCAN_MS: Final = 10_000
"""Milliseconds between two searches for silent brokers, at least."""
CRC_BITS: Final = 0x7FFF_FFFF
"""RocketMQ drops the sign bit of a CRC32."""

BROKER_CODES: Final = frozenset(
    (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION)
)
"""Requests that only brokers send: they change routes, or keep a broker in the routes."""

Handler = Callable[[Command, Connection, int], Command | None]

_NO_ROUTE: Final = (
    "No topic route info in name server for the topic: {}"
    "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
)


@define
class Lookup:
    """A route request that the production environment answers."""

    topic: str
    request: Command
    connection: Connection


class NameServer(Endpoint):
    """The endpoint of all connections of a name server.

    `now_ms` may be any clock that only goes forward. `save_settings` keeps settings changed at run time and
    raises OSError when it cannot. In cluster test mode `on_lookup` gets the topics that the service must look
    up, and returns whether it will. With `cluster` only servers that have its secret register; `masters`
    knows the masters before this start. `clock` is in seconds, for the time of a chunk. `acceptors` let peers
    in, by the names of their ports; `budget` bounds the bytes that peers may make the server hold.
    `on_pending()` is called when `deferred_saves` has a file to write; without it files are written at once.
    `on_deadline()` is called when `step` is due earlier than its last result; without it a broker whose name
    is taken is refused at once.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        *,
        now_ms: Callable[[], int],
        kv_configs: KvConfigs,
        save_settings: SaveSettings | None = None,
        on_lookup: Callable[[Lookup], bool] | None = None,
        cluster: ServerAuth | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        acceptors: Mapping[str, Acceptor] | None = None,
        budget: MemoryBudget | None = None,
        masters: Masters | None = None,
        on_pending: Callable[[], None] | None = None,
        on_deadline: Callable[[], None] | None = None,
        certificate: ServerCertificate | None = None,
    ) -> None:
        self.config = config
        self._masters = masters or Masters(None, None, now_ms())
        self._cluster = cluster
        limits = RouteLimits(
            config.max_brokers, config.max_queue_entries, topics_of_broker=config.max_topics_of_broker
        )
        of_address = by_address(Gateways(config.trusted_gateways))
        self._missing = MissingBrokers()
        self.routes = RouteTable(limits, lambda source: of_address(source.peer_address), self._left)
        self.kv_configs = kv_configs
        self.acceptors: dict[str, Acceptor] = dict(acceptors or {})
        self.budget = budget or MemoryBudget()
        self._now_ms = now_ms
        self._clock = clock
        self._save_settings = save_settings
        self._on_lookup = on_lookup
        self._started_ms = now_ms()
        self._next_scan_ms = self._started_ms + SCAN_MS
        self._handlers = self.handlers()
        self._is_controller = False
        self.certificate = certificate or ServerCertificate()
        self.controller_metrics: Callable[[], list[Metric]] = list
        self._hooks = Hooks()
        holders_of = by_account_and_address(Gateways(config.trusted_gateways))
        self.deferred_saves = DeferredSaves(self._respond, _error_response, on_pending, holders_of)
        self._clashes = Clashes(
            self._register_again, self._refuse, on_deadline, lambda peer: of_address(peer.peer_address)
        )

    def use_controller(self, requests: ControllerRequests) -> None:
        """Also answer requests to controllers. Called before plug-ins are used."""
        self._handlers |= requests.handlers()
        self._is_controller = True
        self.controller_metrics = requests.metrics

    def use_plugins(self, hooks: Hooks) -> None:
        """Call the hooks of these plug-ins from now on. Raises PluginRefused when a hook claims a request
        code of the server."""
        self._handlers = hooks.completing(self._handlers)
        self._hooks = hooks
        self.asks_early = bool(hooks.heads)

    # Input of connections and the clock.

    def handle(self, requests: list[Command], connection: Connection) -> int:
        """Answer the requests of a chunk in order. Return the number of answered requests: other connections
        have their turn before the rest."""
        now_ms, began, count = self._now_ms(), self._clock(), 0
        for count, request in enumerate(requests, 1):
            response = self.answer(request, connection, now_ms)
            if response is not None:
                self._respond(request, response, connection)
            if turn_is_over(self._clock() - began, count):
                break
        return count

    def _respond(self, request: Command, response: Command, connection: Connection) -> None:
        if not request.is_oneway:
            _send(connection, request, response)
        if self._hooks.responses:
            self._hooks.observe(self._hooks.responses, connection, request, response)

    def on_head(self, head: Command, body_bytes: int, connection: Connection) -> Command | None:
        """Decide by the header whether the name server reads a large body: None to read it, or the
        refusal."""
        if head.is_response:
            return head.reply(ResponseCode.SYSTEM_ERROR)
        if head.code not in self._handlers:
            return _unsupported(head)
        try:
            check_body(head.code, body_bytes, 0)
            if not (self._cluster is not None and self._needs_secret(head)):
                self._hooks.foresee(connection, head)
        except ResponseError as error:
            log.warning("refused request %d of %s: %s", head.code, connection.peer_address, error.remark)
            return head.reply(error.code, error.remark)
        return None

    def _needs_secret(self, request: Command) -> bool:
        """True if only servers of the cluster may send this request."""
        if request.code in BROKER_CODES:
            return True
        return self._is_controller and needs_secret(request, asks_accounts=bool(self._hooks.requests))

    def on_response(self, response: Command, connection: Connection) -> None:
        """Take the response of a broker to the question whether it is alive."""
        if not self._clashes.answered(response, connection):
            super().on_response(response, connection)

    def on_close(self, connection: Connection) -> None:
        """Forget the brokers that registered over this connection."""
        self.routes.source_closed(connection)
        self._clashes.closed(connection)

    def step(self, now_ms: int) -> int:
        """Remove silent brokers when due; return the time of the next call."""
        for holder in self._clashes.silent(now_ms):
            holder.close("its broker did not answer when another broker registered in its place")
            self.on_close(holder)
        if now_ms >= self._next_scan_ms:
            for held in self.routes.expire(now_ms):
                held.source.close(f"broker {held.registration.broker_name} was silent too long")
            self._next_scan_ms = max(now_ms + SCAN_MS, self.routes.next_expiry_ms(now_ms))
        deadline_ms = self._clashes.next_ms()
        return self._next_scan_ms if deadline_ms is None else min(self._next_scan_ms, deadline_ms)

    def answer(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        """The response to a request; None when the response comes later."""
        handler = self._handlers.get(request.code)
        try:
            if len(request.body) > SMALLEST_BODY_LIMIT:
                check_body(request.code, len(request.body), 0)
            if self._cluster is not None and self._needs_secret(request):
                self._cluster.check(request)
            elif self._hooks.requests:
                self._hooks.admit(connection, request)
            if handler is None:
                return _unsupported(request)
            return handler(request, connection, now_ms)
        except Exception as error:
            return _error_response(request, error, connection)

    def handlers(self) -> dict[int, Handler]:
        """Request codes and their handlers."""
        routes, texts = self.routes, Texts(self.routes)
        self._plain_cluster_info = texts.answering(routes.cluster_info)
        return {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_namespace,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: texts.answering(routes.topics),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: texts.answering(routes.system_topics),
            RequestCode.GET_UNIT_TOPIC_LIST: texts.answering(routes.unit_topics),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: texts.answering(routes.unit_sub_topics),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: texts.answering(routes.unit_sub_ununit_topics),
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_settings,
            RequestCode.GET_NAMESRV_CONFIG: self._settings,
        }

    # Brokers.

    def _register(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        self._clashes.heard(connection)
        header = request.read(headers.RegisterBrokerRequestHeader)
        if header.body_crc32 and zlib.crc32(request.body) & CRC_BITS != header.body_crc32:
            raise SystemFailure(None, "crc32 not match")
        broker = _registrant(request)
        # A broker sends its whole table every 30 s; the digest saves reading the same table again.
        digest = hashlib.blake2b(
            request.body, digest_size=16, person=str(header.compressed).encode()
        ).digest()
        is_to_save = False
        result = self.routes.renew(broker, digest, connection, now_ms)
        if result is None:
            body = RegisterBrokerBody()
            if request.body:
                body = RegisterBrokerBody.decode(request.body, compressed=header.compressed)
            is_whole = request.ext.get(headers.ALL_TOPICS) == "true"
            was_here = broker.broker_addr in self.routes.broker_live_table
            try:
                self._masters.check(broker, now_ms)
                result = self.routes.register(broker, body, connection, now_ms, digest, is_whole=is_whole)
            except Clash as clash:
                if self._clashes.wait(clash, request, connection, now_ms):
                    return None
                self._missing.refused(broker, clash.remark, now_ms)
                raise
            except SystemFailure as error:
                self._missing.refused(broker, error.remark, now_ms)
                raise
            self._missing.came(broker, was_here=was_here)
            is_to_save = self._masters.registered(broker)
        order = self.kv_configs.namespace(NAMESPACE_ORDER_TOPIC_CONFIG)
        response = request.reply(
            header=headers.RegisterBrokerResponseHeader(result.ha_server_addr, result.master_addr),
            body=order.to_json() if order is not None else b"",
        )
        return self._with_masters(request, connection, response) if is_to_save else response

    def _register_again(self, request: Command, connection: Connection) -> None:
        try:  # the signature was checked when the request arrived
            response = self._register(request, connection, self._now_ms())
        except Exception as error:
            response = _error_response(request, error, connection)
        if response is not None:
            self._respond(request, response, connection)

    def _refuse(self, request: Command, error: Clash, connection: Connection) -> None:
        self._missing.refused(_registrant(request), error.remark, self._now_ms())
        self._respond(request, _error_response(request, error, connection), connection)

    def _with_masters(self, request: Command, connection: Connection, response: Command) -> Command | None:
        """The response, once the master is saved."""
        return self.deferred_saves.answer(request, connection, self._masters.save, lambda _: response)

    def _left(self, broker: Registration, why: str, writable: Sequence[str]) -> None:
        self._missing.left(broker, why, writable, self._now_ms(), is_stopped=why == UNREGISTERED)

    def _unregister(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        header = request.read(headers.UnRegisterBrokerRequestHeader)
        broker = Registration(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        if self.routes.unregister(broker):
            if self._masters.unregistered(broker):
                return self._with_masters(request, connection, request.reply())
        else:
            log.info("%s unregisters a broker that is not known: %s", connection.peer_address, broker)
        return request.reply()

    def _query_data_version(self, request: Command, connection: Connection, now_ms: int) -> Command:
        self._clashes.heard(connection)
        header = request.read(headers.QueryDataVersionRequestHeader)
        known = self.routes.data_version(header.broker_addr)
        changed = known is None or known != DataVersion.from_request(request.body)
        if not changed:
            self.routes.touch(header.broker_addr, now_ms)
        return request.reply(
            header=headers.QueryDataVersionResponseHeader(changed),
            body=known.to_json() if known is not None else b"",
        )

    # Routes and topics.

    def _route(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        header = request.read(headers.GetRouteInfoRequestHeader)
        # RocketMQ's client for Go keeps a route without a master for half a minute, in spite of failed sends.
        route = self.routes.route(header.topic, with_last_masters=request.language == LanguageCode.GO.name)
        if route is None:
            if self._on_lookup is not None and self._on_lookup(Lookup(header.topic, request, connection)):
                return None
            return no_route(request, header.topic)
        if self.config.order_message_enable or self.config.cluster_test:
            route.order_topic_conf = self.kv_configs.get(NAMESPACE_ORDER_TOPIC_CONFIG, header.topic)
        return route_response(request, route)

    def _cluster_info(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        if request.ext.get(headers.WITH_MISSING) != "true":
            return self._plain_cluster_info(request, connection, now_ms)
        known = self.routes.cluster_info()
        report = ClusterReport(
            known.broker_addr_table,
            known.cluster_addr_table,
            self.missing_brokers(),
            self.refused_brokers(),
            self.certificate.end_text,
        )
        return request.reply(body=report.to_json())

    def missing_brokers(self) -> list[MissingBroker]:
        """Brokers that left without a drain, and masters of before this start that have not come back."""
        now_ms = self._now_ms()
        missing = {one.broker_addr: one for one in self._missing.missing(now_ms)}
        for broker in self._masters.awaited():
            why = "it was the master when this name server stopped, and has not registered since"
            age = now_ms - self._started_ms
            awaited = MissingBroker(
                broker.cluster, broker.broker_name, broker.broker_id, broker.broker_addr, age, why
            )
            missing.setdefault(broker.broker_addr, awaited)
        return list(missing.values())

    def refused_brokers(self) -> list[RefusedBroker]:
        """Brokers whose registration was refused lately."""
        return list(self._missing.refusals(self._now_ms()))

    def _wipe_write_permission(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        header = request.read(headers.WipeWritePermOfBrokerRequestHeader)
        if request.ext.get(headers.FORGET_MISSING) == "true":
            return self._forget_missing(header.broker_name, request, connection)
        count = self.routes.change_write_permission(header.broker_name, writable=False)
        log.info("%s wipes the write permission of %s", connection.peer_address, header.broker_name)
        return request.reply(header=headers.WipeWritePermOfBrokerResponseHeader(count))

    def _forget_missing(self, name: str, request: Command, connection: Connection) -> Command | None:
        count = self._missing.forget(name)
        is_to_save = self._masters.forget(name)
        log.info("%s forgets missing brokers of the name %s", connection.peer_address, name)
        header = headers.WipeWritePermOfBrokerResponseHeader(count + is_to_save)
        response = request.reply(header=header)
        return self._with_masters(request, connection, response) if is_to_save else response

    def _add_write_permission(self, request: Command, connection: Connection, now_ms: int) -> Command:
        header = request.read(headers.AddWritePermOfBrokerRequestHeader)
        count = self.routes.change_write_permission(header.broker_name, writable=True)
        log.info("%s adds the write permission of %s", connection.peer_address, header.broker_name)
        return request.reply(header=headers.AddWritePermOfBrokerResponseHeader(count))

    def _delete_topic(self, request: Command, connection: Connection, now_ms: int) -> Command:
        header = request.read(headers.DeleteTopicFromNamesrvRequestHeader)
        self.routes.delete_topic(header.topic, header.cluster_name)
        log.info("%s deletes topic %s", connection.peer_address, header.topic)
        return request.reply()

    def _topics_of_cluster(self, request: Command, connection: Connection, now_ms: int) -> Command:
        header = request.read(headers.GetTopicsByClusterRequestHeader)
        return request.reply(body=self.routes.topics_of_cluster(header.cluster).to_json())

    # Key-value configs.

    def _put_kv(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        header = request.read(headers.PutKVConfigRequestHeader)
        put = partial(self.kv_configs.put, header.namespace, header.key, header.value)

        def then(_: None) -> Command:
            log.info("%s puts %s of %s", connection.peer_address, header.key, header.namespace)
            return request.reply()

        return self.deferred_saves.answer(request, connection, put, then)

    def _get_kv(self, request: Command, connection: Connection, now_ms: int) -> Command:
        header = request.read(headers.GetKVConfigRequestHeader)
        value = self.kv_configs.get(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(None, f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return request.reply(header=headers.GetKVConfigResponseHeader(value))

    def _delete_kv(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        header = request.read(headers.DeleteKVConfigRequestHeader)
        delete = partial(self.kv_configs.delete, header.namespace, header.key)

        def then(_: None) -> Command:
            log.info("%s deletes %s of %s", connection.peer_address, header.key, header.namespace)
            return request.reply()

        return self.deferred_saves.answer(request, connection, delete, then)

    def _kv_namespace(self, request: Command, connection: Connection, now_ms: int) -> Command:
        header = request.read(headers.GetKVListByNamespaceRequestHeader)
        table = self.kv_configs.namespace(header.namespace)
        if table is None:
            raise QueryNotFound(None, f"No config item, Namespace: {header.namespace}")
        return request.reply(body=table.to_json())

    # Settings.

    def _settings(self, request: Command, connection: Connection, now_ms: int) -> Command:
        return request.reply(body=dump_properties(self.config).encode())

    def _update_settings(self, request: Command, connection: Connection, now_ms: int) -> Command | None:
        """Change settings at run time: all requested settings or none, and only settings that allow it."""
        changes = parse_properties(request.body.decode("utf-8", "replace"))
        self._changed(changes)  # a wrong value is refused at once

        def then(_: None) -> Command:
            self.config = self._changed(changes)
            log.info("%s changes settings: %s", connection.peer_address, changes)
            return request.reply()

        return self.deferred_saves.answer(request, connection, partial(self._keep, changes), then)

    def _changed(self, changes: Mapping[str, str]) -> NamesrvConfig:
        try:
            return evolve(self.config, changes)
        except ConfigError as error:
            raise NoPermission(None, f"nothing was changed: {error}") from error

    def _keep(self, changes: Mapping[str, str]) -> None:
        """Write new values of settings into the configuration file; in any thread. Raises SystemFailure."""
        if changes and self._save_settings is not None:
            try:
                self._save_settings(canonical(changes, NamesrvConfig))
            except OSError as error:
                raise SystemFailure(None, f"nothing was changed, because saving failed: {error}") from error


def _registrant(request: Command) -> Registration:
    """The broker that a request registers."""
    header = request.read(headers.RegisterBrokerRequestHeader)
    return Registration(
        header.cluster_name,
        header.broker_name,
        header.broker_id,
        header.broker_addr,
        header.ha_server_addr,
        _number(request.ext.get(headers.SET_EPOCH, "")),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def _send(connection: Connection, request: Command, response: Command) -> None:
    try:
        connection.reply(response)
    except LocalProtocolError as error:  # the remark would repeat a text that no frame can hold
        log.warning("request %d of %s: %s", request.code, connection.peer_address, error)
        connection.reply(request.reply(ResponseCode.SYSTEM_ERROR, "the answer cannot be written"))


def no_route(request: Command, topic: str) -> Command:
    """The answer for a topic that no broker has."""
    return request.reply(ResponseCode.TOPIC_NOT_EXIST, _NO_ROUTE.format(topic))


def route_response(request: Command, route: TopicRouteData) -> Command:
    """The answer to a route request, in a form that its client reads."""
    header = request.read(headers.GetRouteInfoRequestHeader)
    # Clients of other languages before 4.9.4 parse the broker ids themselves and know only Java's bare form.
    strict = request.version >= MQVersion.V4_9_4 or bool(header.accept_standard_json_only)
    return request.reply(body=route.to_json(strict=strict))


class Texts:
    """Responses about the whole route table, each made once for each state of the table, because any client
    may ask for one."""

    def __init__(self, routes: RouteTable) -> None:
        self._routes = routes
        self._changes = -1
        self._texts: dict[Callable[[], Body], bytes] = {}

    def answering(self, make: Callable[[], Body]) -> Handler:
        """A handler that answers with the result of `make`."""

        def answer(request: Command, connection: Connection, now_ms: int) -> Command:
            if self._changes != self._routes.changes:
                self._changes, self._texts = self._routes.changes, {}
            text = self._texts.get(make)
            if text is None:
                text = self._texts[make] = make().to_json()
            return request.reply(body=text)

        return answer


def _unsupported(request: Command) -> Command:
    remark = f"request code {request.code} is not supported here"
    return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
