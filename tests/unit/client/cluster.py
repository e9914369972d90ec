"""A scripted cluster: name servers and brokers that do what a test tells them, on either event loop.

    cluster = Cluster()
    cluster.topic("T", queues=2)
    async with cluster.serve(network) as names: ...

The brokers keep messages, offsets and members in dicts and answer at once. `broker.script(code, answer,
...)` replaces the next answers to a request: a response code, HANG (no answer), CUT (the connection ends)
or a function."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.abc
import trio
from attrs import define, field

from rmq.message import MessageQueue
from rmq.protocol.bodies import (
    BrokerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueueData,
    TopicRouteData,
    UnlockBatchRequestBody,
)
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    UnregisterClientRequestHeader,
)
from rmq.protocol.record import Record, decode_batch, encode_record, host_bytes
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.network import Network

HANG: Final = "hang"
CUT: Final = "cut"

Answer = int | str | Callable[[Command, Connection], Command | None]


class Server(Endpoint):
    """An endpoint that answers from a script first, then by its methods; `seen` are the requests it got."""

    def __init__(self) -> None:
        self.address = ""
        self.seen: list[Command] = []
        self.connections: list[Connection] = []
        self._scripts: dict[int, deque[Answer]] = defaultdict(deque)

    def script(self, code: int, *answers: Answer) -> None:
        self._scripts[code].extend(answers)

    def count(self, code: int) -> int:
        """How many requests of that code came."""
        return sum(request.code == code for request in self.seen)

    def handle(self, requests: list[Command], connection: Connection) -> None:
        if connection not in self.connections:
            self.connections.append(connection)
        for request in requests:
            self.seen.append(request)
            answer = self._answer(request, connection)
            if answer is not None and not request.is_oneway:
                connection.reply(answer)

    def on_close(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)

    def _answer(self, request: Command, connection: Connection) -> Command | None:
        script = self._scripts[request.code]
        if not script:
            return self.answer(request, connection)
        scripted = script.popleft()
        if callable(scripted):
            return scripted(request, connection)
        if isinstance(scripted, int):
            return request.reply(scripted, "as scripted")
        if scripted == CUT:
            connection.close()
        return None

    def answer(self, request: Command, connection: Connection) -> Command | None:
        raise NotImplementedError


@define(eq=False)
class Stored:
    """A message in a fake broker."""

    offset: int
    data: bytes


class Broker(Server):
    """A broker that keeps everything in dicts."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__()
        self.name = name
        self.cluster = cluster
        self.logs: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, Connection]] = defaultdict(dict)
        self.producers: set[str] = set()
        self.sent_back: list[ConsumerSendMsgBackRequestHeader] = []
        self.waiting: list[tuple[Command, Connection]] = []
        self.suggested = 0
        """The id of the broker that pulls are told to ask next time."""
        self.locks: dict[tuple[str, MessageQueue], tuple[str, float]] = {}
        self._positions = itertools.count(0, 1000)
        self._answers: dict[int, Callable[[Command, Connection], Command | None]] = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.SEND_BATCH_MESSAGE: self._send,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: lambda request, _: request.reply(header={"offset": "0"}),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back,
            RequestCode.CHECK_CLIENT_CONFIG: lambda request, _: request.reply(),
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }

    def answer(self, request: Command, connection: Connection) -> Command | None:
        return self._answers[request.code](request, connection)

    def put(self, topic: str, queue_id: int, body: bytes, properties: str = "", **more: Any) -> int:
        """Store a message and wake the pulls that wait for it."""
        log = self.logs[topic, queue_id]
        offset = log[-1].queue_offset + 1 if log else 0
        record = Record(topic, queue_id, body, properties, **more)
        record.queue_offset, record.physical_offset = offset, next(self._positions)
        log.append(record)
        self._wake()
        return offset

    def bodies(self) -> list[bytes]:
        return [record.body for log in self.logs.values() for record in log]

    def notify(self, group: str) -> None:
        """Tell a group that its members have changed."""
        for connection in self.members[group].values():
            request = Command.request(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, oneway=True
            )
            connection.notify(request)

    def forget(self, client_id: str) -> None:
        """Lose a client, as after a broken connection."""
        for group, members in self.members.items():
            if members.pop(client_id, None) is not None:
                self.notify(group)

    def on_close(self, connection: Connection) -> None:
        super().on_close(connection)
        for client_id in [c for m in self.members.values() for c, held in m.items() if held is connection]:
            self.forget(client_id)
        self.waiting = [entry for entry in self.waiting if entry[1] is not connection]

    def _heartbeat(self, request: Command, connection: Connection) -> Command:
        data = HeartbeatData.from_json(request.body)
        self.producers.update(producer.group_name for producer in data.producer_data_set)
        for consumer in data.consumer_data_set:
            group = consumer.group_name
            self.cluster.topic(f"%RETRY%{group}", queues=1, brokers=[self.name])
            new = data.client_id not in self.members[group]
            self.members[group][data.client_id] = connection
            if new:
                self.notify(group)
        return request.reply()

    def _unregister(self, request: Command, connection: Connection) -> Command:
        header = request.read(UnregisterClientRequestHeader)
        if header.consumer_group is not None:
            self.members[header.consumer_group].pop(header.client_id, None)
            self.notify(header.consumer_group)
        return request.reply()

    def _list(self, request: Command, _: Connection) -> Command:
        ids = list(self.members[request.ext["consumerGroup"]])
        return request.reply(body=GetConsumerListByGroupResponseBody(ids).to_json())

    def _send(self, request: Command, _: Connection) -> Command:
        header = request.read(SendMessageRequestHeader)
        self.cluster.created(header.topic, self.name, header.default_topic_queue_nums)
        if header.batch:
            messages = decode_batch(request.body)
        else:
            messages = [(header.flag, request.body, header.properties or "")]
        first = -1
        for flag, body, properties in messages:
            offset = self.put(
                header.topic, header.queue_id, body, properties, flag=flag, sys_flag=header.sys_flag
            )
            first = offset if first < 0 else first
        answer = {"msgId": "7F00000100002A9F" + "0" * 16, "queueId": str(header.queue_id)}
        return request.reply(header={**answer, "queueOffset": str(first)})

    def _pull(self, request: Command, connection: Connection) -> Command | None:
        answer = self._look(request)
        if answer is None:
            if int(request.ext["sysFlag"]) & 2:
                self.waiting.append((request, connection))
                return None
            answer = self._found(request, ResponseCode.PULL_NOT_FOUND, [])
        return answer

    def _look(self, request: Command) -> Command | None:
        header = request.read(PullMessageRequestHeader)
        log = self.logs[header.topic, header.queue_id]
        if header.sys_flag & 1:
            key = (header.consumer_group, header.topic, header.queue_id)
            self.offsets[key] = header.commit_offset
        end = log[-1].queue_offset + 1 if log else 0
        if header.queue_offset > end:
            return self._found(request, ResponseCode.PULL_OFFSET_MOVED, [], end)
        records = [record for record in log if record.queue_offset >= header.queue_offset]
        return self._found(request, 0, records[: header.max_msg_nums]) if records else None

    def _found(
        self, request: Command, code: int, records: list[Record], next_offset: int | None = None
    ) -> Command:
        header = request.read(PullMessageRequestHeader)
        if next_offset is None:
            next_offset = records[-1].queue_offset + 1 if records else header.queue_offset
        body = b"".join(encode_record(record, host_bytes("127.0.0.1:10911")) for record in records)
        log = self.logs[header.topic, header.queue_id]
        offsets = {"nextBeginOffset": next_offset, "minOffset": 0, "maxOffset": len(log)}
        ext = {name: str(value) for name, value in offsets.items()} | {
            "suggestWhichBrokerId": str(self.suggested)
        }
        return request.reply(code, header=ext, body=body)

    def _wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for request, connection in waiting:
            answer = self._look(request)
            if answer is None:
                self.waiting.append((request, connection))
            else:
                connection.reply(answer)

    def _key(self, request: Command) -> tuple[str, str, int]:
        ext = request.ext
        return ext["consumerGroup"], ext["topic"], int(ext["queueId"])

    def _query_offset(self, request: Command, _: Connection) -> Command:
        offset = self.offsets.get(self._key(request))
        if offset is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, "no offset")
        return request.reply(header={"offset": str(offset)})

    def _update_offset(self, request: Command, _: Connection) -> Command:
        self.offsets[self._key(request)] = int(request.ext["commitOffset"])
        return request.reply()

    def _max_offset(self, request: Command, _: Connection) -> Command:
        log = self.logs[request.ext["topic"], int(request.ext["queueId"])]
        return request.reply(header={"offset": str(len(log))})

    def _search(self, request: Command, _: Connection) -> Command:
        log = self.logs[request.ext["topic"], int(request.ext["queueId"])]
        wanted = int(request.ext["timestamp"])
        offset = next((r.queue_offset for r in log if r.store_timestamp >= wanted), len(log))
        return request.reply(header={"offset": str(offset)})

    def _lock(self, request: Command, _: Connection) -> Command:
        body, now = LockBatchRequestBody.from_json(request.body), anyio.current_time()
        got = set()
        for queue in body.mq_set:
            holder, at = self.locks.get((body.consumer_group, queue), (body.client_id, now))
            if holder == body.client_id or now - at > 60:
                self.locks[body.consumer_group, queue] = (body.client_id, now)
                got.add(queue)
        return request.reply(body=LockBatchResponseBody(frozenset(got)).to_json())

    def _unlock(self, request: Command, _: Connection) -> Command:
        body = UnlockBatchRequestBody.from_json(request.body)
        for queue in body.mq_set:
            if self.locks.get((body.consumer_group, queue), ("",))[0] == body.client_id:
                del self.locks[body.consumer_group, queue]
        return request.reply()

    def _send_back(self, request: Command, _: Connection) -> Command:
        header = request.read(ConsumerSendMsgBackRequestHeader)
        self.sent_back.append(header)
        origin = next(
            record for log in self.logs.values() for record in log if record.physical_offset == header.offset
        )
        properties = origin.properties
        if "RETRY_TOPIC\x01" not in properties:
            properties += f"\x02RETRY_TOPIC\x01{origin.topic}"
        times = origin.reconsume_times + 1
        self.put(f"%RETRY%{header.group}", 0, origin.body, properties, reconsume_times=times)
        return request.reply()


class NameServer(Server):
    """A name server that knows what the cluster knows."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster

    def answer(self, request: Command, _: Connection) -> Command:
        route = self.cluster.route(request.ext["topic"])
        if route is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return request.reply(body=route.to_json())


@define(eq=False, slots=False)
class Cluster:
    """Brokers, name servers and topics."""

    auto_create: bool = True
    brokers: dict[str, Broker] = field(factory=dict)
    names: list[NameServer] = field(factory=list)
    queues: dict[str, dict[str, int]] = field(factory=dict)
    perms: dict[str, int] = field(factory=dict)
    down: set[str] = field(factory=set)

    @classmethod
    def of(cls, *broker_names: str, name_servers: int = 1, auto_create: bool = True) -> Cluster:
        cluster = cls(auto_create)
        cluster.brokers = {name: Broker(name, cluster) for name in broker_names}
        cluster.names = [NameServer(cluster) for _ in range(name_servers)]
        return cluster

    def __getitem__(self, broker_name: str) -> Broker:
        return self.brokers[broker_name]

    def topic(self, topic: str, queues: int = 4, brokers: list[str] | None = None, perm: int = 6) -> None:
        """Make a topic on some brokers (all)."""
        table = self.queues.setdefault(topic, {})
        table.update(dict.fromkeys(brokers or self.brokers, queues))
        self.perms[topic] = perm

    def created(self, topic: str, broker: str, queues: int) -> None:
        """A broker makes a topic on the first message to it."""
        if broker not in self.queues.setdefault(topic, {}):
            self.topic(topic, queues, [broker])

    def route(self, topic: str) -> TopicRouteData | None:
        if topic == "TBW102" and self.auto_create:
            table = dict.fromkeys(self.brokers, 8)
        else:
            table = self.queues.get(topic, {})
        names = [name for name in table if name not in self.down]
        if not names:
            return None
        perm = self.perms.get(topic, 6)
        return TopicRouteData(
            [QueueData(name, table[name], table[name], perm) for name in names],
            [BrokerData("C", name, {0: self.brokers[name].address}) for name in names],
        )

    def queue(self, topic: str, broker: str, number: int) -> MessageQueue:
        return MessageQueue(topic, broker, number)

    @asynccontextmanager
    async def serve(
        self, network: Network, address: Callable[[int], str] = lambda _: "127.0.0.1:0"
    ) -> AsyncIterator[str]:
        """Serve all; gives the name servers' addresses. `address` says where the n-th server listens."""
        async with anyio.create_task_group() as tasks:
            servers: list[Server] = [*self.names, *self.brokers.values()]
            for number, server in enumerate(servers):
                server.address = await tasks.start(_serve, network, address(number), server)
            yield ";".join(server.address for server in self.names)
            tasks.cancel_scope.cancel()


async def _serve(
    network: Network, address: str, server: Server, *, task_status: anyio.abc.TaskStatus[str]
) -> None:
    listener = await network.listen(address)
    try:
        async with anyio.create_task_group() as tasks:
            task_status.started(listener.address)
            while True:
                stream = await listener.accept()
                tasks.start_soon(Connection(stream, server).run)
    except trio.ClosedResourceError:
        pass
    finally:
        with anyio.CancelScope(shield=True):
            await listener.aclose()
