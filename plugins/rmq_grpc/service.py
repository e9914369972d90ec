"""The calls of `apache.rocketmq.v2.MessagingService`, for the clients of one connection.

Each answer is given when the broker has done its part; no call has a task. RocketMQ's proxy refuses a
consumer before its settings have come; this service takes the settings of the group instead, as the official
Python client may ask for messages first.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field
from google.protobuf.message import DecodeError

from rmq.errors import AccessDenied, ResponseError
from rmq.message import PROPERTY_UNIQUE_KEY
from rmq.plugin import (
    JOIN,
    PUBLISH,
    SUBSCRIBE,
    Appended,
    OpenTransaction,
    TakenMessage,
    TakeRequest,
    TopicView,
    transaction_id,
)
from rmq.protocol.headers import RecallHandle
from rmq_grpc import schema
from rmq_grpc.calls import INTERNAL, INVALID_ARGUMENT, Call
from rmq_grpc.messages import group_of, kind_of, ms_of, put_ms, queue_of, to_client, to_store, topic_of
from rmq_grpc.statuses import EXPECTED, Code, Refused, of_error, of_handle, status

if TYPE_CHECKING:
    from rmq.plugin import DoorHost, DoorStream

log = logging.getLogger("rmq.grpc")

UNAUTHENTICATED: Final = 16
CLIENT_IDS_MAX: Final = 1_000
"""Clients of one connection: those of a process share it, and a balancer may put many on one."""
SILENT_SECONDS: Final = 60.0
"""A client that says nothing for so long, while its connection stands, has ended."""
POLL_SECONDS: Final = (5.0, 20.0)
"""Least and most time of a long poll."""
ANSWER_SECONDS: Final = 0.2
"""An answer to a long poll is given so long before the client's deadline."""
RECEIVE_MS: Final = (10_000, 12 * 3600 * 1000)
"""Least and most time for which a message is invisible when it is received."""
BATCH_MAX: Final = 256
LEASE_MS: Final = 60_000
"""Lease of a message that the broker renews, as push consumers ask for."""
RENEW_SECONDS: Final = 20.0
RENEWED_SECONDS: Final = 3 * 3600.0
"""A message is renewed for so long at most."""
LEASES_MAX: Final = 100_000
PRODUCER_ATTEMPTS: Final = 3
BODY_BYTES: Final = 4 << 20
TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
_SIGNED: Final = re.compile(r"MQv2-HMAC-SHA1 Credential=([^,/]*)[^,]*,.*Signature=([0-9A-Fa-f]+)\s*")

Broker: Final = schema.message("Broker")
TelemetryCommand: Final = schema.message("TelemetryCommand")
ClientType: Final = schema.enum("ClientType")
FilterType: Final = schema.enum("FilterType")
MessageType: Final = schema.enum("MessageType")
Permission: Final = schema.enum("Permission")
Resolution: Final = schema.enum("TransactionResolution")


@define
class _Method:
    """A method: the classes of its request and answer, and the name of the function behind the method."""

    name: str
    request: Any
    answer: Any
    serve: str


def _methods() -> dict[str, _Method]:
    names = {
        "QueryRoute": "_query_route",
        "Heartbeat": "_heartbeat",
        "SendMessage": "_send",
        "QueryAssignment": "_query_assignment",
        "ReceiveMessage": "_receive",
        "AckMessage": "_acknowledge",
        "ForwardMessageToDeadLetterQueue": "_dead_letter",
        "EndTransaction": "_end_transaction",
        "NotifyClientTermination": "_terminate",
        "ChangeInvisibleDuration": "_change_invisible",
        "RecallMessage": "_recall",
    }
    made = {
        f"/{schema.SERVICE}/{name}": _Method(
            name, schema.message(f"{name}Request"), schema.message(f"{name}Response"), serve
        )
        for name, serve in names.items()
    }
    made[f"/{schema.SERVICE}/Telemetry"] = _Method(
        "Telemetry", TelemetryCommand, TelemetryCommand, "_telemetry"
    )
    return made


METHODS: Final = _methods()


@define
class _Lease:
    """The lease of a message, renewed until the acknowledgement."""

    group: str
    topic: str
    handle: str
    renew_at: float
    until: float


@define
class _Client:
    """A client of the connection: its host, its Telemetry call, its group, the topics that the client sends
    to, and the last signature that was checked."""

    client_id: str
    host: DoorHost
    heard_at: float
    telemetry: Call | None = None
    group: str = ""
    topics: tuple[str, ...] = ()
    signature: str = ""
    leases: dict[str, _Lease] = field(factory=dict)  # by the handle that the client was given


class Session:
    """The service of one connection."""

    def __init__(self, host: DoorHost, stream: DoorStream) -> None:
        self._host = host
        self._stream = stream
        self._clients: dict[str, _Client] = {}

    # ---- calls ----

    def begins(self, call: Call) -> bool:
        """As `rmq_grpc.calls.Service.begins`."""
        return call.method in METHODS

    def handle(self, call: Call, message: bytes) -> None:
        """As `rmq_grpc.calls.Service.handle`."""
        method = METHODS[call.method]
        try:
            request = method.request.FromString(message)
        except DecodeError as error:
            call.finish(INVALID_ARGUMENT, f"the request is not a {method.request.DESCRIPTOR.name}: {error}")
            return
        try:
            client = self._client(call)
            _authenticate(client, call)
            serve: Callable[[Call, Any, _Client], Any] = getattr(self, method.serve)
            answer = serve(call, request, client)
        except EXPECTED as error:
            self._refuse(call, method, error)
        except Exception as error:
            log.error("%s of %s failed", method.name, self._stream.peer_address, exc_info=error)
            self._refuse(call, method, error)
        else:
            if answer is not None:
                _answer(call, answer)

    def half_closed(self, call: Call) -> None:
        """As `rmq_grpc.calls.Service.half_closed`."""
        if METHODS[call.method].name == "Telemetry":
            call.finish()

    def _refuse(self, call: Call, method: _Method, error: Exception) -> None:
        """Answer a call by its error."""
        if method.name == "Telemetry":
            if isinstance(error, AccessDenied):
                call.finish(UNAUTHENTICATED, error.remark or str(error))
            else:
                call.finish(INVALID_ARGUMENT if isinstance(error, EXPECTED) else INTERNAL, str(error))
        elif method.name == "ReceiveMessage":
            self._end_receive(call, of_error(error))
        else:
            _answer(call, method.answer(status=of_error(error)))

    def _client(self, call: Call) -> _Client:
        """The client that makes a call. Raises Refused without a client id."""
        client_id = call.metadata.get("x-mq-client-id", "").strip()
        if not client_id:
            raise Refused("CLIENT_ID_REQUIRED", "the metadata x-mq-client-id is missing")
        now = anyio.current_time()
        client = self._clients.get(client_id)
        if client is None:
            if len(self._clients) >= CLIENT_IDS_MAX:
                raise Refused("TOO_MANY_REQUESTS", f"the connection has {CLIENT_IDS_MAX} clients already")
            client = self._clients[client_id] = _Client(client_id, self._host.another_client(), now)
        client.heard_at = now
        return client

    def _end(self, client: _Client) -> None:
        """Forget a client, and give its messages back."""
        if self._clients.pop(client.client_id, None) is not None:
            client.host.end_client()

    def closed(self) -> None:
        """The connection has ended."""
        self._clients.clear()

    # ---- routes ----

    def _topic(self, name: str) -> TopicView:
        topic = self._host.topic(name)
        if topic is None:
            raise Refused("TOPIC_NOT_FOUND", f"there is no topic {name} at this broker")
        return topic

    def _broker(self, endpoints: Any) -> Any:
        """This broker, under the address that the client called."""
        broker = Broker(name=self._host.config.broker_name)
        if endpoints.addresses:
            broker.endpoints.CopyFrom(endpoints)
            return broker
        host, _, port = self._stream.local_address.rpartition(":")
        host = host.strip("[]")
        broker.endpoints.scheme = 2 if ":" in host else 1
        broker.endpoints.addresses.add(host=host, port=int(port))
        return broker

    def _query_route(self, call: Call, request: Any, client: _Client) -> Any:
        name = topic_of(request.topic)
        if not (client.host.may(PUBLISH, name) or client.host.may(SUBSCRIBE, name)):
            raise AccessDenied(remark=f"no permission for topic {name}")
        topic = self._topic(name)
        answer = METHODS[call.method].answer(status=status())
        types = [MessageType[word] for word in _types_of(topic)]
        broker = self._broker(request.endpoints)
        for queue_id, word in enumerate(_permissions(topic)):
            answer.message_queues.add(
                topic=request.topic,
                id=queue_id,
                permission=Permission[word],
                broker=broker,
                accept_message_types=types,
            )
        return answer

    def _query_assignment(self, call: Call, request: Any, client: _Client) -> Any:
        name, group = topic_of(request.topic), group_of(request.group)
        if not (client.host.may(SUBSCRIBE, name) and client.host.may(JOIN, group)):
            raise AccessDenied(remark=f"no permission for topic {name} and group {group}")
        topic = self._topic(name)
        if not topic.can_read or not topic.read_queues:
            raise Refused("FORBIDDEN", f"topic {name} has no queue that may be read")
        in_order = client.host.delivery_settings(group).in_order
        answer = METHODS[call.method].answer(status=status())
        broker = self._broker(request.endpoints)
        word = "READ_WRITE" if topic.can_write else "READ"
        for queue_id in range(topic.read_queues) if in_order else (-1,):
            queue = answer.assignments.add().message_queue
            queue.topic.CopyFrom(request.topic)
            queue.id, queue.permission = queue_id, Permission[word]
            queue.broker.CopyFrom(broker)
        return answer

    # ---- clients ----

    def _telemetry(self, call: Call, request: Any, client: _Client) -> None:
        if request.WhichOneof("command") != "settings":
            return
        settings = request.settings
        kind = settings.WhichOneof("pub_sub")
        if kind == "publishing":
            self._be_producer(client, [topic_of(one) for one in settings.publishing.topics])
        elif kind == "subscription":
            group = group_of(settings.subscription.group)
            self._be_consumer(client, group, settings.subscription.subscriptions)
        else:
            raise Refused("BAD_REQUEST", "the settings have neither publishing nor subscription")
        client.telemetry = call
        command = METHODS[call.method].answer(status=status(), settings=settings)
        self._complete(client, command.settings)
        call.send(command.SerializeToString())

    def _complete(self, client: _Client, settings: Any) -> None:
        """Add the broker's part to a client's settings."""
        settings.metric.on = False
        policy = settings.backoff_policy
        if settings.WhichOneof("pub_sub") == "publishing":
            policy.max_attempts = PRODUCER_ATTEMPTS
            put_ms(policy.exponential_backoff.initial, 10)
            put_ms(policy.exponential_backoff.max, 1_000)
            policy.exponential_backoff.multiplier = 2
            settings.publishing.max_body_size = BODY_BYTES
            settings.publishing.validate_message_type = True
            return
        delivery = client.host.delivery_settings(settings.subscription.group.name)
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
        settings.subscription.receive_batch_size = 32
        put_ms(settings.subscription.long_polling_timeout, int(POLL_SECONDS[1] * 1000))

    def _be_producer(self, client: _Client, topics: Sequence[str]) -> None:
        """Be the producer that is asked for the end of half messages; the group is the topic's name."""
        for topic in topics:
            if client.host.may(PUBLISH, topic):
                client.host.produce(topic, client.client_id, partial(_check, client))
        client.topics = tuple(dict.fromkeys((*client.topics, *topics)))

    def _be_consumer(self, client: _Client, group: str, entries: Any) -> None:
        wanted = {}
        for entry in entries:
            is_sql = entry.expression.type == FilterType["SQL"]
            wanted[topic_of(entry.topic)] = "*" if is_sql else entry.expression.expression or "*"
        client.host.join(group, client.client_id, wanted)
        client.group = group

    def _heartbeat(self, call: Call, request: Any, client: _Client) -> Any:
        if request.client_type not in ClientType.values() or not request.client_type:
            raise Refused("UNRECOGNIZED_CLIENT_TYPE", f"there is no client type {request.client_type}")
        if request.client_type != ClientType["PRODUCER"]:
            group = group_of(request.group)
            if not client.group:
                self._be_consumer(client, group, ())
        return METHODS[call.method].answer(status=status())

    def _terminate(self, call: Call, request: Any, client: _Client) -> Any:
        self._end(client)
        return METHODS[call.method].answer(status=status())

    # ---- sending ----

    def _send(self, call: Call, request: Any, client: _Client) -> Any:
        if not request.messages:
            raise Refused("MESSAGE_CORRUPTED", "the request has no message")
        names = {message.topic.name for message in request.messages}
        if len(names) > 1:
            raise Refused("MESSAGE_CORRUPTED", f"the messages are for several topics: {sorted(names)}")
        now_ms, peer = self._host.now_ms(), self._stream.peer_address
        made = [to_store(message, now_ms, peer) for message in request.messages]
        name = made[0].topic
        topic = self._host.topic(name)
        if topic is not None and topic.message_type not in ("", "MIXED"):
            for message in request.messages:
                if (kind := kind_of(message)) != topic.message_type:
                    text = f"topic {name} takes messages of type {topic.message_type}, not {kind}"
                    raise Refused("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", text)
        answer = METHODS[call.method].answer()
        left = len(made)

        def done(index: int, outcome: Appended | Exception) -> None:
            nonlocal left
            left -= 1
            self._note(answer.entries[index], made[index], kinds[index], outcome)
            if not left:
                _conclude(answer)
                _answer(call, answer)

        kinds = [kind_of(message) for message in request.messages]
        for _ in made:
            answer.entries.add()
        for index, (message, raw) in enumerate(zip(made, request.messages, strict=True)):
            group = raw.system_properties.message_group
            queue_id = None if topic is None or not group else queue_of(group, topic.write_queues)
            try:
                client.host.append(message, partial(done, index), queue_id=queue_id)
            except EXPECTED as error:
                done(index, error)
        return None

    def _note(self, entry: Any, message: Any, kind: str, outcome: Appended | Exception) -> None:
        """Put the outcome of one message into its entry of the answer."""
        error = outcome if isinstance(outcome, Exception) else outcome.error
        if error is not None:
            entry.status.CopyFrom(of_error(error))
        if isinstance(outcome, Exception):
            return
        if error is None:
            entry.status.CopyFrom(status())
        entry.message_id = unique_key = message.properties[PROPERTY_UNIQUE_KEY]
        entry.offset = outcome.queue_offset
        if kind == "TRANSACTION":
            entry.transaction_id = transaction_id(outcome)
        elif message.deliver_at_ms is not None and message.deliver_at_ms > self._host.now_ms():
            broker = self._host.config.broker_name
            entry.recall_handle = str(RecallHandle(message.topic, broker, message.deliver_at_ms, unique_key))

    def _end_transaction(self, call: Call, request: Any, client: _Client) -> None:
        topic = topic_of(request.topic)
        if not request.transaction_id.strip():
            raise Refused("INVALID_TRANSACTION_ID", "the transaction id is empty")
        commits = {Resolution["COMMIT"]: True, Resolution["ROLLBACK"]: False}.get(request.resolution)
        answer = METHODS[call.method].answer

        def done(error: ResponseError | None) -> None:
            _answer(call, answer(status=status() if error is None else of_error(error)))

        client.host.end_transaction(topic, request.transaction_id, request.message_id, commits, done)

    def _recall(self, call: Call, request: Any, client: _Client) -> None:
        answer = METHODS[call.method].answer
        key = ""

        def done(outcome: Appended) -> None:
            given = status() if outcome.error is None else of_error(outcome.error)
            _answer(call, answer(status=given, message_id=key))

        key = client.host.recall(topic_of(request.topic), request.recall_handle, done)

    # ---- receiving ----

    def _receive(self, call: Call, request: Any, client: _Client) -> None:
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        seconds = self._poll_seconds(call, request)
        invisible_ms = LEASE_MS
        if not request.auto_renew:
            invisible_ms = ms_of(request.invisible_duration)
            if not RECEIVE_MS[0] <= invisible_ms <= RECEIVE_MS[1]:
                least, most = RECEIVE_MS
                text = f"a message is invisible for {least} to {most} ms, not for {invisible_ms}"
                raise Refused("ILLEGAL_INVISIBLE_TIME", text)
        self._topic(topic)
        expression = request.filter_expression
        is_sql = expression.type == FilterType["SQL"]
        if not is_sql and any(not tag.strip() for tag in expression.expression.split("||")[1:]):
            raise Refused("ILLEGAL_FILTER_EXPRESSION", f"{expression.expression!r} has an empty tag")
        # As at RocketMQ's proxy the queue of the request names the broker only: any of its queues will do.
        wanted = TakeRequest(
            group,
            topic,
            max_msg_nums=max(1, min(request.batch_size, BATCH_MAX)),
            invisible_ms=invisible_ms,
            subscription=expression.expression or "*",
            expression_type="SQL92" if is_sql else None,
        )

        def taken(found: Sequence[TakenMessage] | ResponseError) -> None:
            if isinstance(found, ResponseError):
                self._end_receive(call, of_error(found))
            elif call.is_over:
                client.host.give_back(group, topic, [one.handle for one in found], 0, counts=False)
            else:
                self._deliver(call, client, wanted, found, renews=request.auto_renew)

        call.on_cancel = client.host.hold_take(wanted, taken, seconds)

    def _poll_seconds(self, call: Call, request: Any) -> float:
        """Time that a receive may wait. Raises Refused when the client's deadline comes before."""
        least, most = POLL_SECONDS
        left = call.deadline - anyio.current_time()
        if request.HasField("long_polling_timeout"):
            seconds = ms_of(request.long_polling_timeout) / 1000
        else:
            seconds = most if left == math.inf else left - least / 2
        seconds = min(max(seconds, least), most)
        if left - ANSWER_SECONDS < seconds:
            seconds = left - ANSWER_SECONDS
            if left < least:
                raise Refused(
                    "ILLEGAL_POLLING_TIME",
                    f"the deadline of the call leaves {left:.1f} s, less than {least:g} s",
                )
        return seconds

    def _deliver(
        self,
        call: Call,
        client: _Client,
        wanted: TakeRequest,
        found: Sequence[TakenMessage],
        *,
        renews: bool,
    ) -> None:
        answer = METHODS[call.method].answer
        if not found:
            self._end_receive(call, status("MESSAGE_NOT_FOUND", "no new message"))
            return
        call.send(answer(status=status()).SerializeToString())
        now = anyio.current_time()
        for one in found:
            message = to_client(
                one.message, handle=one.handle, attempt=one.attempt, invisible_ms=wanted.invisible_ms
            )
            if renews and len(client.leases) < LEASES_MAX:
                group, topic = wanted.consumer_group, wanted.topic
                until = now + RENEWED_SECONDS
                client.leases[one.handle] = _Lease(group, topic, one.handle, now + RENEW_SECONDS, until)
            call.send(answer(message=message).SerializeToString())
        self._end_receive(call, None)

    def _end_receive(self, call: Call, given: Any | None) -> None:
        """End a receive: by a status, unless None is given, and the time of the broker."""
        answer = METHODS[f"/{schema.SERVICE}/ReceiveMessage"].answer
        if given is not None:
            call.send(answer(status=given).SerializeToString())
        last = answer()
        put_ms(last.delivery_timestamp, self._host.now_ms())
        call.send(last.SerializeToString())
        call.finish()

    def renew(self) -> None:
        """Renew the leases of messages that push consumers still work on, and forget silent clients."""
        now = anyio.current_time()
        for client in list(self._clients.values()):
            if client.heard_at + SILENT_SECONDS < now:
                log.info("client %s of %s is silent", client.client_id, self._stream.peer_address)
                self._end(client)
                continue
            for key, lease in list(client.leases.items()):
                if lease.renew_at <= now and not _renew(client.host, lease, now):
                    del client.leases[key]

    def _acknowledge(self, call: Call, request: Any, client: _Client) -> None:
        group, topic = group_of(request.group), topic_of(request.topic)
        if not request.entries:
            raise Refused("BAD_REQUEST", "the request names no message")
        handles = [entry.receipt_handle for entry in request.entries]
        for handle in handles:
            client.leases.pop(handle, None)

        def done(outcomes: Sequence[ResponseError | None]) -> None:
            answer = METHODS[call.method].answer()
            for entry, outcome in zip(request.entries, outcomes, strict=True):
                answer.entries.add(
                    message_id=entry.message_id,
                    receipt_handle=entry.receipt_handle,
                    status=of_handle(outcome),
                )
            _conclude(answer)
            _answer(call, answer)

        client.host.acknowledge(group, topic, handles, done)

    def _change_invisible(self, call: Call, request: Any, client: _Client) -> Any:
        group, topic = group_of(request.group), topic_of(request.topic)
        invisible_ms = ms_of(request.invisible_duration)
        if not 0 <= invisible_ms <= RECEIVE_MS[1]:
            text = f"a message is invisible for 0 to {RECEIVE_MS[1]} ms, not for {invisible_ms}"
            raise Refused("ILLEGAL_INVISIBLE_TIME", text)
        client.leases.pop(request.receipt_handle, None)
        answer = METHODS[call.method].answer
        try:
            handle = client.host.extend(group, topic, request.receipt_handle, invisible_ms)
        except AccessDenied:
            raise
        except ResponseError as error:
            return answer(status=of_handle(error))
        return answer(status=status(), receipt_handle=handle)

    def _dead_letter(self, call: Call, request: Any, client: _Client) -> None:
        group, topic = group_of(request.group), topic_of(request.topic)
        client.leases.pop(request.receipt_handle, None)
        answer = METHODS[call.method].answer

        def done(outcomes: Sequence[ResponseError | None]) -> None:
            _answer(call, answer(status=of_handle(outcomes[0])))

        client.host.dead_letter(group, topic, [request.receipt_handle], done)


def _authenticate(client: _Client, call: Call) -> None:
    """Have the client work for the account that signed the call. An unsigned call has none; clients without
    accounts send a header that holds no signature."""
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


def _check(client: _Client, transaction: OpenTransaction) -> None:
    """Ask a producer how a transaction ended."""
    if client.telemetry is None:
        return
    command = TelemetryCommand(status=status())
    recover = command.recover_orphaned_transaction_command
    recover.transaction_id = transaction.transaction_id
    recover.message.CopyFrom(to_client(transaction.message))
    client.telemetry.send(command.SerializeToString())


def _renew(host: DoorHost, lease: _Lease, now: float) -> bool:
    """Renew a lease; returns whether to go on with the lease."""
    try:
        lease.handle = host.extend(lease.group, lease.topic, lease.handle, LEASE_MS)
    except EXPECTED as error:
        log.debug("the lease of a message of %s has ended: %s", lease.topic, error)
        return False
    lease.renew_at = now + RENEW_SECONDS
    return now < lease.until


def _answer(call: Call, answer: Any) -> None:
    """Answer a call by one message."""
    call.send(answer.SerializeToString())
    call.finish()


def _conclude(answer: Any) -> None:
    """Set the status of an answer from the statuses of its entries."""
    codes = {entry.status.code for entry in answer.entries}
    if len(codes) > 1:
        answer.status.CopyFrom(status("MULTIPLE_RESULTS"))
    elif codes == {Code["OK"]}:
        answer.status.CopyFrom(status())
    else:
        answer.status.CopyFrom(answer.entries[0].status)


def _types_of(topic: TopicView) -> Sequence[str]:
    """The types of messages that a topic takes: all, unless the topic names a type."""
    return TYPES if topic.message_type in ("", "MIXED") else (topic.message_type,)


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
