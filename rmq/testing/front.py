"""A front: the endpoint before a server's own, which counts requests, and answers scripted requests.

`Wire` is a connection without a network. Through it the front calls the server as a peer of its own, so that
a test uses the server only by its protocol.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Final, TypeVar, cast

from rmq.broker.broker import Broker
from rmq.errors import TopicNotExist, for_code
from rmq.message import AUTO_CREATE_TOPIC, MessageQueue, StoredMessage
from rmq.protocol.bodies import (
    ConsumerData,
    ConsumerOffsetSerializeWrapper,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionGroupConfig,
    TopicStatsTable,
    UnlockBatchRequestBody,
)
from rmq.protocol.codes import (
    PERM_READ,
    PERM_WRITE,
    PULL_SUBSCRIPTION,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import (
    CreateTopicRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetTopicStatsInfoRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq.protocol.record import decode_records
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint

HANG: Final = "hang"
"""A scripted response: none."""
CUT: Final = "cut"
"""A scripted response: the connection ends."""

Answer = int | str | Callable[[Command, Connection], Command | None]
"""A response code, HANG, CUT, or a function that makes the response; None from it: no response (yet)."""

T = TypeVar("T")


class Wire:
    """A connection as a server sees it; `received` are the commands that the server has written to it."""

    def __init__(self, peer: str = "10.0.0.1:40001", local: str = "10.0.0.9:10911") -> None:
        self.peer_address = peer
        self.local_address = local
        self.state: dict[str, Any] = {}
        self.is_closed = self.is_busy = False
        self.received: list[Command] = []
        self._decoder = Decoder()

    def write(self, frame: bytes | Sequence[bytes]) -> None:
        """Take an encoded frame, or several."""
        self.received += self._decoder.feed(frame if isinstance(frame, bytes) else b"".join(frame))

    def flush(self) -> None:
        """Do nothing: bytes are delivered on write."""

    answer = write

    def reply(self, response: Command) -> None:
        """Take a response."""
        self.write(encode(response))

    def notify(self, command: Command, frame: bytes = b"") -> None:
        """Take a request."""
        self.write(frame or encode(command))

    def close(self, reason: str = "", cause: BaseException | None = None) -> None:
        """End the connection, for the server."""
        self.is_closed = True

    finish = close

    def take(self) -> list[Command]:
        """The commands received since the last call."""
        taken, self.received = self.received, []
        return taken


SEEN_MAX: Final = 50_000
"""Received requests that are kept; virtual days bring more, and the first are forgotten."""


class Front(Endpoint):
    """The front of a server, over all its starts. `address` is the address for clients, `seen` are the
    received requests (the last `SEEN_MAX` or more), `connections` the open connections."""

    def __init__(self) -> None:
        self.address = ""
        self.seen: list[Command] = []
        self.connections: list[Connection] = []
        self._scripts: dict[int, deque[Answer]] = defaultdict(deque)
        self._hooks: dict[int, Answer] = {}
        self._server: Endpoint | None = None
        self._wire = Wire()
        self.call: Callable[[Callable[[], Any]], Any] | None = None
        """Runs a function in the server's loop, if that is another thread's."""

    def before(self, server: Endpoint) -> Endpoint:
        """Take the place before a server that starts."""
        self._server, self._wire = server, Wire()
        self.connections.clear()
        return self

    @property
    def server(self) -> Endpoint:
        """The server behind the front."""
        assert self._server is not None, "it has not been started"
        return self._server

    def script(self, code: int, *answers: Answer) -> None:
        """Answer the next requests of a code with `answers`, in order, after earlier scripts."""
        self._scripts[code].extend(answers)

    def hook(self, code: int, answer: Answer | None) -> None:
        """Answer all requests of a code with `answer`, except scripted ones; None: let the server answer."""
        if answer is None:
            self._hooks.pop(code, None)
        else:
            self._hooks[code] = answer

    def requests(self, code: int) -> list[Command]:
        """The received requests of a code, in order."""
        return [request for request in self.seen if request.code == code]

    def count(self, code: int) -> int:
        """The number of received requests of a code."""
        return len(self.requests(code))

    def do(self, work: Callable[[], T]) -> T:
        """Run a function in the server's loop, and return its result."""
        return work() if self.call is None else cast(T, self.call(work))

    def ask(self, code: int, header: Any = None, body: bytes = b"", wire: Wire | None = None) -> Command:
        """The server's answer to a peer in this process, at once, ignoring scripts."""
        request = Command.request(code, header, body)
        return self.do(lambda: self._asked(request, wire or self._wire))

    def _asked(self, request: Command, wire: Wire) -> Command:
        self._hand_over(request, wire)
        answers = [one for one in wire.take() if one.is_response and one.opaque == request.opaque]
        assert len(answers) == 1, f"request {request.code} is not answered at once"
        return answers[0]

    def _hand_over(self, request: Command, wire: Wire) -> None:
        self.server.handle(Decoder().feed(encode(request)), cast(Connection, wire))

    def answer(self, request: Command, connection: Connection) -> Command | None:
        """Let the server handle a request that a script has taken: returns its answer, which the peer does
        not get. None when the server answers later, or never."""
        held = _Held(connection)
        self.server.handle([request], cast(Connection, held))
        return next((one for one in held.received if one.opaque == request.opaque), None)

    # ---- input of connections ----

    def on_open(self, connection: Connection) -> None:
        """Note a new peer."""
        self.connections.append(connection)
        self.server.on_open(connection)

    def handle(self, requests: list[Command], connection: Connection) -> int:
        """Answer the first request if a script or hook does; otherwise hand over all requests before the next
        such one."""
        mine = (n for n, one in enumerate(requests) if self._scripts.get(one.code) or one.code in self._hooks)
        count = next(mine, len(requests))
        if count:
            noted = [copy(request) for request in requests[:count]]  # held requests drop their fields
            taken = self.server.handle(requests if count == len(requests) else requests[:count], connection)
            taken = count if taken is None else taken
            self._note(noted[:taken])
            return taken
        request = requests[0]
        self._note([copy(request)])
        script = self._scripts.get(request.code)
        scripted = script.popleft() if script else self._hooks[request.code]
        answer = self._scripted(scripted, request, connection)
        if answer is not None and not request.is_oneway:
            connection.reply(answer)
        return 1

    def _note(self, requests: list[Command]) -> None:
        self.seen += requests
        if len(self.seen) > 2 * SEEN_MAX:
            del self.seen[:-SEEN_MAX]

    def _scripted(self, answer: Answer, request: Command, connection: Connection) -> Command | None:
        if callable(answer):
            return answer(request, connection)
        if isinstance(answer, int):
            return request.reply(answer, "as scripted")
        if answer == CUT:
            connection.close("as scripted")
        return None

    def on_head(self, head: Command, body_bytes: int, connection: Connection) -> Command | None:
        """Decide about a large body by its header."""
        return self.server.on_head(head, body_bytes, connection)

    def on_response(self, response: Command, connection: Connection) -> None:
        """Take a peer's response to the server."""
        self.server.on_response(response, connection)

    def on_close(self, connection: Connection) -> None:
        """Note the end of a peer."""
        if connection in self.connections:
            self.connections.remove(connection)
        self.server.on_close(connection)


class _Held(Wire):
    """A peer's connection whose answers are kept in memory."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.peer_address, connection.local_address)
        self.state = connection.state


class BrokerFront(Front):
    """The front of a broker, with short functions for tests: each uses the protocol."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _hand_over(self, request: Command, wire: Wire) -> None:
        super()._hand_over(request, wire)
        if isinstance(self.server, Broker):
            self.server.changes.save_now()

    def _ok(self, code: int, header: Any = None, body: bytes = b"") -> Command:
        answer = self.ask(code, header, body)
        if answer.code != ResponseCode.SUCCESS:
            raise for_code(answer.code, answer.remark, self.address)
        return answer

    def create_topic(self, topic: str, queues: int, perm: int = PERM_READ | PERM_WRITE) -> None:
        """Create a topic, or change it; name servers get it a moment later. Raises ResponseError."""
        header = CreateTopicRequestHeader(topic, AUTO_CREATE_TOPIC, queues, queues, perm, "SINGLE_TAG")
        self._ok(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def configure_group(self, group: str, **settings: Any) -> None:
        """Change the settings of a group: fields of SubscriptionGroupConfig."""
        body = SubscriptionGroupConfig(group, **settings).to_json()
        self._ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

    def put(self, topic: str, queue_id: int, body: bytes, properties: str = "") -> int:
        """Send a message to a topic that exists; returns its offset. `properties` is their text in the form
        of records. Raises ResponseError."""
        header = SendMessageRequestHeader(
            producer_group="testing",
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties=properties,
        )
        return int(self._ok(RequestCode.SEND_MESSAGE_V2, header, body).ext["queueOffset"])

    def queues(self, topic: str) -> dict[int, tuple[int, int]]:
        """Queue id -> first offset and end, of a topic that exists. Raises ResponseError."""
        answer = self._ok(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic))
        table = TopicStatsTable.from_json(answer.body).offset_table
        return {queue.queue_id: (ends.min_offset, ends.max_offset) for queue, ends in sorted(table.items())}

    def messages(self, topic: str) -> list[StoredMessage]:
        """All messages of a topic that can be pulled, queue by queue; none when it does not exist."""
        found: list[StoredMessage] = []
        try:
            queues = self.queues(topic)
        except TopicNotExist:
            return found
        for queue_id, (first, end) in queues.items():
            while first < end:
                pulled = self._pulled(topic, queue_id, first)
                found += pulled
                first = pulled[-1].queue_offset + 1
        return found

    def _pulled(self, topic: str, queue_id: int, offset: int) -> list[StoredMessage]:
        header = PullMessageRequestHeader(
            consumer_group="testing",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        return decode_records(self._ok(RequestCode.PULL_MESSAGE, header).body)

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """Queue id -> offset that a group has committed."""
        answer = self._ok(RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = ConsumerOffsetSerializeWrapper.from_json(answer.body).offset_table
        return dict(table.get(f"{topic}@{group}", {}))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset for a group."""
        header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset)
        self._ok(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    def members(self, group: str) -> list[str]:
        """The client ids of a group; none for an empty group."""
        answer = self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroupRequestHeader(group))
        if answer.code != ResponseCode.SUCCESS:
            return []
        return list(GetConsumerListByGroupResponseBody.from_json(answer.body).consumer_id_list)

    def join(self, group: str, *client_ids: str) -> None:
        """Let clients without a process join a group, each with a connection of its own."""
        for number, client_id in enumerate(client_ids):
            member = ConsumerData(
                group,
                ConsumeType.CONSUME_PASSIVELY.name,
                MessageModel.CLUSTERING,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET.name,
            )
            body = HeartbeatData(client_id, consumer_data_set=[member]).to_json()
            self.ask(RequestCode.HEART_BEAT, None, body, Wire(f"10.0.8.1:{40001 + number}"))

    def leave(self, group: str, *client_ids: str) -> None:
        """Let clients leave a group, also clients with a process."""
        for client_id in client_ids:
            header = UnregisterClientRequestHeader(client_id, consumer_group=group)
            self._ok(RequestCode.UNREGISTER_CLIENT, header)

    def lock(self, group: str, client_id: str, *queues: MessageQueue) -> frozenset[MessageQueue]:
        """Lock queues for a client, or renew its locks; return the locked queues."""
        body = LockBatchRequestBody(group, client_id, frozenset(queues)).to_json()
        answer = self._ok(RequestCode.LOCK_BATCH_MQ, None, body)
        return LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set

    def unlock(self, group: str, client_id: str, *queues: MessageQueue) -> None:
        """Give back locks of a client."""
        body = UnlockBatchRequestBody(group, client_id, frozenset(queues)).to_json()
        self._ok(RequestCode.UNLOCK_BATCH_MQ, None, body)

    def holder(self, group: str, queue: MessageQueue, client_ids: Iterable[str]) -> str | None:
        """The client that has locked a queue; its lock counts as renewed. None: none of these clients."""
        if self.lock(group, "nobody", queue):
            self.unlock(group, "nobody", queue)
            return None
        return next((one for one in client_ids if self.lock(group, one, queue)), None)
