"""The calls of `apache.rocketmq.v2.MessagingService`, for the clients of one connection.

Each answer is given when the gateway has done its part; no call has a task. RocketMQ's proxy refuses a
consumer before its settings have come; this service takes the settings of the group instead, as the official
Python client may ask for messages first.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field
from google.protobuf.message import DecodeError

from rmq.errors import AccessDenied
from rmq.gateway import gateway_of
from rmq.plugin import JOIN, PUBLISH, SUBSCRIBE, DeliverySettings, TopicView
from rmq_grpc import receiving, schema, sending
from rmq_grpc.calls import INTERNAL, INVALID_ARGUMENT, Call
from rmq_grpc.clients import Client, TelemetryCommand
from rmq_grpc.messages import group_of, put_ms, topic_of
from rmq_grpc.plain import PlainClient, plain_client
from rmq_grpc.statuses import EXPECTED, Refused, of_error, status

if TYPE_CHECKING:
    from rmq.errors import RmqError
    from rmq.gateway import TopicAtBroker
    from rmq.plugin import DoorHost, DoorStream

log = logging.getLogger("rmq.grpc")

UNAUTHENTICATED: Final = 16
CLIENT_IDS_MAX: Final = 1_000
"""Clients of one connection: the clients of a process share it, and a balancer may put many on one."""
SILENT_SECONDS: Final = 60.0
"""Seconds of silence, while its connection stands, after which a client counts as ended."""
PRODUCER_ATTEMPTS: Final = 3
BODY_BYTES: Final = 4 << 20
BATCH: Final = 32
TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
_SIGNED: Final = re.compile(r"MQv2-HMAC-SHA1 Credential=([^,/]*)[^,]*,.*Signature=([0-9A-Fa-f]+)\s*")

Broker: Final = schema.message("Broker")
ClientType: Final = schema.enum("ClientType")
FilterType: Final = schema.enum("FilterType")
MessageType: Final = schema.enum("MessageType")
Permission: Final = schema.enum("Permission")

Serve = Callable[["Session", Call, Any, Client], None]


@define
class _Method:
    """A method: the classes of its request and answer, and the function behind it."""

    name: str
    request: Any
    answer: Any
    serve: Serve
    parse: Callable[[bytes], Any] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.parse = self.request.FromString


class Session:
    """The service of one connection. `clock` gives seconds."""

    def __init__(self, host: DoorHost, stream: DoorStream, clock: Callable[[], float]) -> None:
        self.host = host
        self.clock = clock
        self.peer_address = stream.peer_address
        self._stream = stream
        self._clients: dict[str, Client] = {}

    # ---- calls ----

    def begins(self, call: Call) -> bool:
        """Same as `rmq_grpc.calls.Service.begins`."""
        return call.method in METHODS

    def handle(self, call: Call, message: bytes) -> None:
        """Same as `rmq_grpc.calls.Service.handle`."""
        method = METHODS[call.method]
        try:
            request = method.parse(message)
        except DecodeError as error:
            call.finish(INVALID_ARGUMENT, f"the request is not a {method.request.DESCRIPTOR.name}: {error}")
            return
        try:
            client = self._client(call)
            if "authorization" in call.metadata:
                _authenticate(client, call)
            method.serve(self, call, request, client)
        except Exception as error:
            self._failed(call, error)

    def plain(self, headers: Mapping[str, str]) -> PlainClient | None:
        """Same as `rmq_grpc.calls.Service.plain`."""
        if headers.get(":path") != SEND or headers[":method"] != "POST":
            return None
        client = self._clients.get(headers.get("x-mq-client-id", ""))
        if client is None or client.plain is None:
            return None
        if not headers.get("content-type", "").startswith("application/grpc"):
            return None
        if "authorization" in headers:
            signed = headers["authorization"] + headers.get("x-mq-date-time", "")
            if signed != client.signature:
                return None
        client.heard_at = self.clock()
        return client.plain

    def now_ms(self) -> int:
        """Same as `rmq_grpc.calls.Service.now_ms`."""
        return self.host.now_ms()

    def refused(self, call: Call, error: RmqError) -> None:
        """Same as `rmq_grpc.calls.Service.refused`."""
        sending.refused(self, call, error)

    def guarded(self, call: Call, work: Callable[..., None]) -> Callable[..., None]:
        """A function that does `work` for a call, and answers the call with its error."""

        def guarded(*given: Any) -> None:
            try:
                work(*given)
            except Exception as error:
                self._failed(call, error)

        return guarded

    def _failed(self, call: Call, error: Exception) -> None:
        """Answer a call by its error, and log an error that is a bug."""
        if not isinstance(error, EXPECTED):
            log.error("%s of %s failed", call.method, self.peer_address, exc_info=error)
        self._refuse(call, error)

    def answer_to(self, call: Call, given: Any | None = None) -> Any:
        """A new answer to a call, with a status."""
        return METHODS[call.method].answer(status=given)

    def half_closed(self, call: Call) -> None:
        """Same as `rmq_grpc.calls.Service.half_closed`."""
        if METHODS[call.method].name == "Telemetry":
            call.finish()

    def _refuse(self, call: Call, error: Exception) -> None:
        """Answer a call by its error."""
        name = METHODS[call.method].name
        if name == "Telemetry":
            if isinstance(error, AccessDenied):
                call.finish(UNAUTHENTICATED, error.remark or str(error))
            else:
                call.finish(INVALID_ARGUMENT if isinstance(error, EXPECTED) else INTERNAL, str(error))
        elif name == "ReceiveMessage":
            receiving.end(self, call, of_error(error))
        else:
            call.answer(self.answer_to(call, of_error(error)))

    # ---- clients ----

    def _client(self, call: Call) -> Client:
        """The client that makes a call. Raises Refused without a client id."""
        client_id = call.metadata.get("x-mq-client-id", "").strip()
        if not client_id:
            raise Refused("CLIENT_ID_REQUIRED", "the metadata x-mq-client-id is missing")
        now = self.clock()
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= CLIENT_IDS_MAX:
                raise Refused("TOO_MANY_REQUESTS", f"the connection has {CLIENT_IDS_MAX} clients already")
            host = self.host.another_client()
            gateway = gateway_of(host)
            plain = plain_client(gateway.plain, self.peer_address)
            client = self._clients[client_id] = Client(client_id, host, gateway, now, plain)
        client.heard_at = now
        return client

    def end(self, client: Client) -> None:
        """Forget a client, and give its messages back."""
        if self._clients.pop(client.client_id, None) is not None:
            client.host.end_client()

    def closed(self) -> None:
        """Forget the clients of a connection that has ended."""
        self._clients.clear()

    def renew(self) -> None:
        """Renew the leases of messages in work at push consumers, and forget silent clients."""
        now = self.clock()
        for client in list(self._clients.values()):
            if client.heard_at + SILENT_SECONDS < now:
                log.info("client %s of %s is silent", client.client_id, self.peer_address)
                self.end(client)
            else:
                receiving.renew(client, now)

    # ---- the server's address ----

    def broker(self, name: str, endpoints: Any) -> Any:
        """A broker, under the address that the client called."""
        broker = Broker(name=name)
        if endpoints.addresses:
            broker.endpoints.CopyFrom(endpoints)
            return broker
        host, _, port = self._stream.local_address.rpartition(":")
        host = host.strip("[]")
        broker.endpoints.scheme = 2 if ":" in host else 1
        broker.endpoints.addresses.add(host=host, port=int(port))
        return broker


# ---- routes ----


def _query_route(session: Session, call: Call, request: Any, client: Client) -> None:
    name = topic_of(request.topic)
    if not (client.host.may(PUBLISH, name) or client.host.may(SUBSCRIBE, name)):
        raise AccessDenied(remark=f"no permission for topic {name}")

    def done(parts: Sequence[TopicAtBroker] | Exception) -> None:
        if isinstance(parts, Exception):
            raise parts
        answer = session.answer_to(call, status())
        types = [MessageType[word] for word in _types_of(parts)]
        for part in parts:
            broker = session.broker(part.broker_name, request.endpoints)
            for queue_id, word in enumerate(_permissions(part.view)):
                answer.message_queues.add(
                    topic=request.topic,
                    id=queue_id,
                    permission=Permission[word],
                    broker=broker,
                    accept_message_types=types,
                )
        call.answer(answer)

    client.gateway.topic(name, session.guarded(call, done))


def _query_assignment(session: Session, call: Call, request: Any, client: Client) -> None:
    """Answer by the queues of a consumer: a queue -1 of each broker, or in a group that consumes in order all
    queues. Consumers share the queues, whatever their number."""
    name, group = topic_of(request.topic), group_of(request.group)
    if not (client.host.may(SUBSCRIBE, name) and client.host.may(JOIN, group)):
        raise AccessDenied(remark=f"no permission for topic {name} and group {group}")

    def with_topic(parts: Sequence[TopicAtBroker] | Exception) -> None:
        if isinstance(parts, Exception):
            raise parts
        readable = [one for one in parts if one.view.can_read and one.view.read_queues]
        if not readable:
            raise Refused("FORBIDDEN", f"topic {name} has no queue that may be read")

        def done(delivery: DeliverySettings | Exception) -> None:
            if isinstance(delivery, Exception):
                raise delivery
            answer = session.answer_to(call, status())
            for part in readable:
                broker = session.broker(part.broker_name, request.endpoints)
                word = "READ_WRITE" if part.view.can_write else "READ"
                for queue_id in range(part.view.read_queues) if delivery.in_order else (-1,):
                    queue = answer.assignments.add().message_queue
                    queue.topic.CopyFrom(request.topic)
                    queue.id, queue.permission = queue_id, Permission[word]
                    queue.broker.CopyFrom(broker)
            call.answer(answer)

        client.gateway.delivery_settings(group, session.guarded(call, done))

    client.gateway.topic(name, session.guarded(call, with_topic))


def _types_of(parts: Sequence[TopicAtBroker]) -> Sequence[str]:
    """The types of messages that a topic takes: all, unless the topic names a type."""
    word = parts[0].view.message_type
    return TYPES if word in ("", "MIXED") else (word,)


def _permissions(topic: TopicView) -> list[str]:
    """The permission of each queue: queues for reading only come first, as in RocketMQ's proxy."""
    reads, writes = topic.read_queues, topic.write_queues
    if topic.can_read and topic.can_write:
        both = min(reads, writes)
        return ["READ"] * (reads - both) + ["WRITE"] * (writes - both) + ["READ_WRITE"] * both
    if topic.can_write:
        return ["WRITE"] * writes
    if topic.can_read:
        return ["READ"] * reads
    return ["NONE"] * max(1, reads, writes)


# ---- settings and life of clients ----


def _telemetry(session: Session, call: Call, command: Any, client: Client) -> None:
    kind = command.WhichOneof("command")
    if kind in ("thread_stack_trace", "verify_message_result"):
        client.answered(command)
    elif kind == "settings":
        _settings(session, call, command.settings, client)


def _settings(session: Session, call: Call, settings: Any, client: Client) -> None:
    kind = settings.WhichOneof("pub_sub")
    if kind is None:
        raise Refused("BAD_REQUEST", "the settings have neither publishing nor subscription")
    answer = TelemetryCommand(status=status(), settings=settings)
    answer.settings.metric.on = False
    if kind == "publishing":
        _be_producer(client, [topic_of(one) for one in settings.publishing.topics])
        client.telemetry = call
        _complete_producer(answer.settings)
        call.send(answer.SerializeToString())
        return

    def done(delivery: DeliverySettings | Exception) -> None:
        if isinstance(delivery, Exception):
            raise delivery
        _complete_consumer(answer.settings, delivery)
        call.send(answer.SerializeToString())

    group = group_of(settings.subscription.group)
    _be_consumer(client, group, settings.subscription.subscriptions)
    client.telemetry = call
    client.gateway.delivery_settings(group, session.guarded(call, done))


def _complete_producer(settings: Any) -> None:
    """Add the server's part to a producer's settings."""
    policy = settings.backoff_policy
    policy.max_attempts = PRODUCER_ATTEMPTS
    put_ms(policy.exponential_backoff.initial, 10)
    put_ms(policy.exponential_backoff.max, 1_000)
    policy.exponential_backoff.multiplier = 2
    settings.publishing.max_body_size = BODY_BYTES
    settings.publishing.validate_message_type = True


def _complete_consumer(settings: Any, delivery: DeliverySettings) -> None:
    """Add the server's part to a consumer's settings."""
    policy = settings.backoff_policy
    policy.max_attempts = delivery.max_attempts
    if delivery.delays_ms:
        policy.customized_backoff.ClearField("next")
        for delay_ms in delivery.delays_ms:
            put_ms(policy.customized_backoff.next.add(), delay_ms)
    else:
        put_ms(policy.exponential_backoff.initial, delivery.initial_ms)
        put_ms(policy.exponential_backoff.max, delivery.max_ms)
        policy.exponential_backoff.multiplier = delivery.multiplier
    settings.subscription.fifo = delivery.in_order
    settings.subscription.receive_batch_size = BATCH
    put_ms(settings.subscription.long_polling_timeout, int(receiving.POLL_SECONDS[1] * 1000))


def _be_producer(client: Client, topics: Sequence[str]) -> None:
    """Register the producer for check-backs; the group is the topic's name."""
    for topic in topics:
        if client.host.may(PUBLISH, topic):
            client.gateway.produce(topic, client.client_id, client.check)
    client.topics = tuple(dict.fromkeys((*client.topics, *topics)))


def _be_consumer(client: Client, group: str, entries: Any) -> None:
    subscribed = {}
    for entry in entries:
        is_sql = entry.expression.type == FilterType["SQL"]
        subscribed[topic_of(entry.topic)] = "*" if is_sql else entry.expression.expression or "*"
    client.gateway.join(group, client.client_id, subscribed, client.ask)
    client.group = group


def _heartbeat(session: Session, call: Call, request: Any, client: Client) -> None:
    if request.client_type not in ClientType.values() or not request.client_type:
        raise Refused("UNRECOGNIZED_CLIENT_TYPE", f"there is no client type {request.client_type}")
    if request.client_type != ClientType["PRODUCER"]:
        group = group_of(request.group)
        if not client.group:
            _be_consumer(client, group, ())
    call.answer(session.answer_to(call, status()))


def _terminate(session: Session, call: Call, request: Any, client: Client) -> None:
    session.end(client)
    call.answer(session.answer_to(call, status()))


def _authenticate(client: Client, call: Call) -> None:
    """Let the client work for the account that signed the call. An unsigned call has no account; clients
    without accounts send a header without a signature."""
    text = call.metadata.get("authorization", "")
    date = call.metadata.get("x-mq-date-time", "")
    match = _SIGNED.fullmatch(text)
    if match is None or text + date == client.signature:
        return
    try:
        secret = base64.b64encode(bytes.fromhex(match[2])).decode()
    except (ValueError, binascii.Error):
        raise AccessDenied(remark="the signature is not hex") from None
    client.host.authenticate(match[1], secret, signed=date.encode())
    client.signature = text + date


def _methods() -> dict[str, _Method]:
    functions: dict[str, Serve] = {
        "QueryRoute": _query_route,
        "Heartbeat": _heartbeat,
        "SendMessage": sending.send,
        "QueryAssignment": _query_assignment,
        "ReceiveMessage": receiving.receive,
        "AckMessage": receiving.acknowledge,
        "ForwardMessageToDeadLetterQueue": receiving.dead_letter,
        "EndTransaction": sending.end_transaction,
        "NotifyClientTermination": _terminate,
        "ChangeInvisibleDuration": receiving.change_invisible,
        "RecallMessage": sending.recall,
    }
    made = {
        f"/{schema.SERVICE}/{name}": _Method(
            name, schema.message(f"{name}Request"), schema.message(f"{name}Response"), serve
        )
        for name, serve in functions.items()
    }
    name = "Telemetry"
    made[f"/{schema.SERVICE}/{name}"] = _Method(name, TelemetryCommand, TelemetryCommand, _telemetry)
    return made


METHODS: Final = _methods()
SEND: Final = f"/{schema.SERVICE}/SendMessage"
