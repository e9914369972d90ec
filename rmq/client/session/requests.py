"""The single requests of a client to name servers and brokers, each as a method.

Nothing is retried, except that name servers are tried in order until one answers. All methods of `Brokers`
raise NoRoute when no address is known for the broker, ConnectFailed, ConnectionLost, RequestTimeout, and the
ResponseError of a refusal. Cancelled: the server may have acted on the request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import attrs

from rmq.client.session.routes import RouteTable
from rmq.errors import (
    NETWORK_ERRORS,
    AccessDenied,
    ConfigError,
    ConnectFailed,
    CorruptRecord,
    NoPermission,
    NoRoute,
    NotNameServers,
    RemoteProtocolError,
    RequestTimeout,
    ResponseError,
    RmqError,
    Unreachable,
    check_type,
    for_code,
)
from rmq.message import MessageQueue, StoredMessage, with_namespace
from rmq.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerOffsetSerializeWrapper,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
    UnlockBatchRequestBody,
)
from rmq.protocol.codes import MASTER_ID, RequestCode, ResponseCode
from rmq.protocol.command import Command, next_opaque
from rmq.protocol.fields import read_int64
from rmq.protocol.headers import (
    TOPIC_CREATED_MS,
    WARNING,
    ConsumerSendMsgBackRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    encode,
)
from rmq.protocol.properties import REASON, RETRY_DELAY_MS
from rmq.remoting.address import split_address
from rmq.remoting.loop import current_loop
from rmq.remoting.pool import Pool

log = logging.getLogger("rmq.client.servers")
warnings_log = logging.getLogger("rmq.client.session")

T = TypeVar("T")
E = TypeVar("E", bound=RmqError)

FAILURES = (*NETWORK_ERRORS, NoRoute, ResponseError, RemoteProtocolError)
"""Errors that a background loop logs, and after which it tries again at its next turn."""


SHORTEST_SECONDS: Final = 0.001
"""Shortest time that the last of several name servers has for its answer, in seconds."""
NEWS_SECONDS = 10.0
"""Seconds for which a lasting failure is not logged again."""
NO_MEMBERS = "no consumer for this group"
"""Begin of RocketMQ's remark; the error has no code."""


def parse_name_servers(text: str | Sequence[str], source: str = "") -> list[str]:
    """``"a:9876;b:9876"`` or a list of addresses as a list. Raises ConfigError for an empty list, and for an
    invalid address, with the name of the `source`."""
    expected = "at least one name server as host:port, with or without tls://, ws:// or wss:// in front"
    check_type("namesrv", text, (str, Sequence), expected)
    pieces = text.replace(",", ";").split(";") if isinstance(text, str) else list(text)
    for piece in pieces:
        check_type("namesrv", piece, str, expected)
    addresses = [piece.strip() for piece in pieces if piece.strip()]
    if not addresses:
        raise ConfigError("namesrv", text, expected, source)
    for address in addresses:
        try:
            port = split_address(address).port
        except ConfigError:
            port = 0
        if port == 0:
            raise ConfigError("namesrv", address, expected, source)
    return addresses


class NameServers:
    """The name servers of a client. Name servers do not share data, so each may know other topics."""

    def __init__(self, pool: Pool, addresses: Sequence[str], first: int = 0) -> None:
        self.addresses = list(addresses)
        self._pool = pool
        self._at = first % len(self.addresses)
        self._troubles: dict[str, str] = {}

    async def route(self, topic: str, timeout: float) -> TopicRouteData:
        """The route of `topic`, within `timeout` seconds. While there is another server to ask, a server that
        does not answer gets half of the time that is left.

        Raises NoRoute, with all asked servers and their errors: Unreachable when no server could be asked,
        AccessDenied when one does not know the account. Cancelled: no state is left.
        """
        return await self._first_answer(
            topic,
            Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}),
            timeout,
            lambda response: TopicRouteData.from_json(response.body),
        )

    async def topics(self, timeout: float) -> list[str]:
        """The names of all topics that the first name server to answer knows. Raises as `route`."""
        return await self._first_answer(
            "(list of topics)",
            Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
            timeout,
            lambda response: TopicList.from_json(response.body).topic_list,
        )

    async def _first_answer(
        self, topic: str, request: Command, timeout: float, read: Callable[[Command], T]
    ) -> T:
        """The result of the first name server that has it; the next request begins at a server that
        answered."""
        unreached: dict[str, Exception] = {}
        refusals: list[ResponseError] = []
        others: list[str] = []
        count = len(self.addresses)
        now = current_loop().now
        deadline = now() + timeout
        for step, address in enumerate([self.addresses[(self._at + step) % count] for step in range(count)]):
            left = max(deadline - now(), SHORTEST_SECONDS)
            seconds = left if step == count - 1 else left / 2
            asked = Command(request.code, next_opaque(), request.flag, request.ext, request.body)
            try:
                response = await self._pool.call(address, asked, seconds)
                if response.code == ResponseCode.SUCCESS:
                    self._troubles.pop(address, None)
                    return read(response)
            except (*NETWORK_ERRORS, RemoteProtocolError) as error:
                if self._troubles.get(address) != (trouble := str(error)):
                    self._troubles[address] = trouble  # logged once, not every 30 s
                    log.info("name server %s: %s", address, error)
                unreached[address] = error
                self._at += 1
                continue
            self._troubles.pop(address, None)
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                others.append(address)
            elif response.code != ResponseCode.TOPIC_NOT_EXIST:
                refusals.append(for_code(response.code, response.remark, address))
        if others and len(others) + len(unreached) == count:
            raise noted(NotNameServers(topic, others))
        if len(unreached) == count:
            raise noted(Unreachable(topic, unreached))
        for refusal in refusals:
            if isinstance(refusal, AccessDenied):
                raise noted(refusal)
        failures = [str(error) for error in (*unreached.values(), *refusals)]
        refused = any(isinstance(refusal, NoPermission) for refusal in refusals)
        raise no_route(topic, self.addresses, "; ".join(failures), refused=refused)

    def unanswered(self, topic: str, seconds: float) -> Unreachable:
        """The error of a request for a route that no server has answered in this time."""
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        return noted(Unreachable(topic, {one: RequestTimeout(one, code, seconds) for one in self.addresses}))


def no_route(topic: str, asked: Sequence[str], detail: str, *, refused: bool = False) -> NoRoute:
    """A NoRoute whose traceback also shows the remedy."""
    return noted(NoRoute(topic, asked, detail, refused=refused))


def noted(error: E) -> E:
    """The error, with a note of its remedy for the traceback."""
    error.add_note(error.hint)
    return error


UNKNOWN_CREATION: Final = -1
"""Field of a request for an offset: the client does not know the topic's creation, and asks for it."""

_STATS_ROW = re.compile(
    rb'"queueId":([0-9]+),"topic":"[^"]*"\}:'
    rb'\{"lastUpdateTimestamp":-?[0-9]+,"maxOffset":([0-9]+),"minOffset":([0-9]+)\}'
)
"""A row of a TopicStatsTable in the form of fastjson and of rmq's brokers. Read in this way, a thousand
queues cost a tenth of reading them as values."""


LEAVING_SECONDS: Final = 1.2
"""Seconds without an answer after which a broker gets no more requests of a leaving member. Together with the
two times below, less than the 2 s in which a client leaves brokers that hang."""
LATER_SECONDS: Final = 0.35
"""The same for a broker that has answered nothing yet, when another broker has hung already."""


@attrs.define
class Leaving:
    """Members that leave now, and the brokers that did not answer them: leaving brokers that have stopped, or
    hang, takes no longer than a request."""

    count: int = 0
    silent: set[str] = attrs.Factory(set)
    _heard: set[str] = attrs.Factory(set)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Note, for the block, that a member leaves."""
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            if not self.count:
                self._heard.clear()

    def keep(self, addresses: Collection[str]) -> None:
        """Forget all other brokers."""
        self.silent.intersection_update(addresses)

    def seconds(self, address: str, timeout: float) -> float:
        """Seconds that a request may take now. Raises ConnectFailed for a broker that is silent."""
        if not self.count:
            return timeout
        if address in self.silent:
            raise ConnectFailed(
                address, "not asked: the broker did not answer before, and the client is closing"
            )
        is_later = self.silent and address not in self._heard
        return min(timeout, LATER_SECONDS if is_later else LEAVING_SECONDS)

    def failed(self, address: str) -> None:
        """Note that a request was not answered."""
        if self.count:
            self.silent.add(address)

    def answered(self, address: str) -> None:
        """Note that a request was answered."""
        if self.count:
            self._heard.add(address)
        if self.silent:
            self.silent.discard(address)


@attrs.define
class News:
    """Recently logged failures: one line for a broker, however many queues it has."""

    _logged: dict[tuple[str, type[Exception]], float] = attrs.Factory(dict)

    def is_new(self, broker: str, error: Exception, now: float) -> bool:
        """Note this kind of error of a broker; return False if it was logged within NEWS_SECONDS."""
        key = broker, type(error)
        if now - self._logged.get(key, -NEWS_SECONDS) < NEWS_SECONDS:
            return False
        self._logged = {old: at for old, at in self._logged.items() if now - at < NEWS_SECONDS}
        self._logged[key] = now
        return True


@attrs.frozen
class Brokers:
    """Requests to brokers over `pool`; `timeout` seconds each."""

    pool: Pool
    routes: RouteTable
    name_servers: NameServers
    timeout: float
    namespace: str = ""
    leaving: Leaving = attrs.Factory(Leaving)
    news: News = attrs.Factory(News)

    async def call(
        self, address: str, code: int, header: Any = None, body: bytes = b"", timeout: float = 0
    ) -> Command:
        """Send a request; any answer but SUCCESS is raised as its ResponseError."""
        response = await self._ask(address, code, header, body, timeout)
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, address)
        return response

    async def _ask(
        self, address: str, code: int, header: Any = None, body: bytes = b"", timeout: float = 0
    ) -> Command:
        """Send a request; returns the answer, which may be a refusal."""
        request, leaving = Command.request(code, header, body), self.leaving
        seconds = leaving.seconds(address, timeout or self.timeout)
        try:
            response = await self.pool.call(address, request, seconds)
        except NETWORK_ERRORS:
            leaving.failed(address)
            raise
        leaving.answered(address)
        return response

    def master(self, queue: MessageQueue) -> str:
        """The address for writes to the queue."""
        address = self.routes.master(queue.broker_name)
        if address is None:
            raise self._unknown(queue)
        return address

    def reader(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> tuple[int, str]:
        """(broker id, address) for reads of the queue; `broker_id` is a wish."""
        found = self.routes.reader(queue.broker_name, broker_id)
        if found is None:
            raise self._unknown(queue)
        return found

    def _unknown(self, queue: MessageQueue) -> NoRoute:
        detail = f"no address is known for broker {queue.broker_name}"
        return NoRoute(queue.topic, self.name_servers.addresses, detail)

    # --- offsets of a queue ---

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset of the next message; while the master is down, the end of a slave's copy."""
        header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
        response = await self.call(self.reader(queue)[1], RequestCode.GET_MAX_OFFSET, header)
        return response.read(GetMaxOffsetResponseHeader).offset

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message in the queue."""
        header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
        response = await self.call(self.reader(queue)[1], RequestCode.GET_MIN_OFFSET, header)
        return response.read(GetMinOffsetResponseHeader).offset

    async def bounds(self, queue: MessageQueue) -> dict[MessageQueue, tuple[int, int]]:
        """Both offsets, of all queues that the topic has on the queue's broker: GET_TOPIC_STATS_INFO."""
        header = GetTopicStatsInfoRequestHeader(queue.topic)
        response = await self.call(self.reader(queue)[1], RequestCode.GET_TOPIC_STATS_INFO, header)
        body = bytes(response.body)
        rows = _STATS_ROW.findall(body)
        if len(rows) == body.count(b"maxOffset"):  # else the row has another order than Java's
            name, topic = queue.broker_name, queue.topic
            return {MessageQueue(topic, name, int(each)): (int(low), int(high)) for each, high, low in rows}
        table = TopicStatsTable.from_json(body).offset_table
        return {each: (one.min_offset, one.max_offset) for each, one in table.items()}

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The broker's offset for a time: of a message near it. See `pull.first_since`."""
        header = SearchOffsetRequestHeader(queue.topic, queue.queue_id, timestamp_ms, queue.broker_name)
        response = await self.call(self.reader(queue)[1], RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return response.read(SearchOffsetResponseHeader).offset

    async def earliest_time(self, queue: MessageQueue) -> int:
        """Store time of the oldest message, in ms."""
        header = GetEarliestMsgStoretimeRequestHeader(queue.topic, queue.queue_id, queue.broker_name)
        response = await self.call(self.reader(queue)[1], RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        return response.read(GetEarliestMsgStoretimeResponseHeader).timestamp

    # --- offsets of a group ---

    async def query_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The group's offset in the queue; None when the broker has none."""
        return (await self.query_position(group, queue))[0]

    async def query_position(self, group: str, queue: MessageQueue) -> tuple[int | None, int | None]:
        """The group's offset in the queue, as `query_offset`, and the creation (ms) of the topic that this
        offset belongs to; None when the broker knows no creations, as RocketMQ's."""
        header = QueryConsumerOffsetRequestHeader(
            group, queue.topic, queue.queue_id, queue.broker_name, UNKNOWN_CREATION
        )
        address = self.reader(queue)[1]
        response = await self._ask(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            created = response.ext.get(TOPIC_CREATED_MS)
            return None, None if created is None else read_int64(created)
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, address)
        answer = response.read(QueryConsumerOffsetResponseHeader)
        return answer.offset, answer.topic_created_ms

    async def recorded_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The offsets of the broker's own table, without queues that were never committed; `query_offset` may
        return 0 for those."""
        response = await self.call(self.master(queue), RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = ConsumerOffsetSerializeWrapper.from_json(response.body).offset_table
        return table.get(f"{queue.topic}@{group}", {}).get(queue.queue_id)

    async def update_offset(
        self, group: str, queue: MessageQueue, queue_offset: int, topic_created_ms: int | None = None
    ) -> None:
        """Set the group's offset in the queue. With the creation (ms) of the offset's topic, the broker
        refuses it for another topic of that name."""
        header = UpdateConsumerOffsetRequestHeader(
            group, queue.topic, queue.queue_id, queue_offset, queue.broker_name, topic_created_ms
        )
        await self.call(self.reader(queue)[1], RequestCode.UPDATE_CONSUMER_OFFSET, header)

    # --- groups ---

    async def heartbeat(self, address: str, data: HeartbeatData) -> str:
        """Send a heartbeat; return the broker's warnings: groups whose members conflict."""
        answer = await self.call(address, RequestCode.HEART_BEAT, body=data.to_json())
        return answer.ext.get(WARNING, "")

    async def unregister(
        self, address: str, client_id: str, *, producer: str | None = None, consumer: str | None = None
    ) -> None:
        """Report to a broker that the client has left a group."""
        header = UnregisterClientRequestHeader(client_id, producer, consumer)
        await self.call(address, RequestCode.UNREGISTER_CLIENT, header)

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """The client ids of a group's members, according to this broker; none for an unknown group, as before
        the first heartbeat of a member."""
        header = GetConsumerListByGroupRequestHeader(group)
        try:
            response = await self.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        except ResponseError as error:
            if error.code == ResponseCode.SYSTEM_ERROR and str(error.remark).startswith(NO_MEMBERS):
                return []
            raise
        return GetConsumerListByGroupResponseBody.from_json(response.body).consumer_id_list

    async def check_subscription(
        self, address: str, client_id: str, group: str, data: SubscriptionData
    ) -> None:
        """Ask a broker whether it can filter by this expression; raises SubscriptionParseFailed."""
        body = CheckClientRequestBody(client_id=client_id, group=group, subscription_data=data)
        await self.call(address, RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json())

    async def send_back(
        self,
        message: StoredMessage,
        group: str,
        delay_level: int,
        max_reconsume_times: int,
        reason: str = "",
        delay_ms: int | None = None,
    ) -> None:
        """Send a failed message back: the broker puts it into the group's retry topic.

        `delay_level` 0 leaves the delay to the broker, which makes it longer each time; -1: the dead letters.
        `delay_ms` is any time, which brokers of rmq use in place of the level. `reason` is kept in a dead
        letter.
        """
        try:
            message_id, topic = message.message_id, with_namespace(self.namespace, message.topic)
        except CorruptRecord:  # a message that the handler could not read: the broker finds it by its offset
            message_id = topic = ""
        header = ConsumerSendMsgBackRequestHeader(
            message.physical_offset,
            group,
            delay_level,
            message_id,
            topic,
            False,
            max_reconsume_times,
            message.broker_name,
        )
        address = self.routes.master(message.broker_name) or message.store_host
        ext = encode(header) | ({REASON: reason} if reason else {})
        if delay_ms is not None:
            ext[RETRY_DELAY_MS] = str(delay_ms)
        await self.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, ext)

    # --- queue locks ---

    async def lock(
        self, address: str, group: str, client_id: str, queues: Sequence[MessageQueue]
    ) -> frozenset[MessageQueue]:
        """Lock queues for this client; return the queues that are locked for it now."""
        body = LockBatchRequestBody(group, client_id, frozenset(queues))
        response = await self.call(address, RequestCode.LOCK_BATCH_MQ, body=body.to_json())
        return LockBatchResponseBody.from_json(response.body).lock_ok_mq_set

    async def unlock(self, address: str, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        """Give queue locks back."""
        body = UnlockBatchRequestBody(group, client_id, frozenset(queues))
        await self.call(address, RequestCode.UNLOCK_BATCH_MQ, body=body.to_json())


def group_count(data: HeartbeatData) -> int:
    """The number of producer and consumer groups."""
    return len(data.producer_data_set) + len(data.consumer_data_set)


def heartbeat_parts(data: HeartbeatData, most: int) -> list[HeartbeatData]:
    """The same heartbeat in parts of at most so many groups, producers first."""
    producers, consumers = data.producer_data_set, data.consumer_data_set
    found = []
    for start in range(0, group_count(data), most):
        end, behind = start + most, len(producers)
        ours = consumers[max(0, start - behind) : max(0, end - behind)]
        found.append(attrs.evolve(data, producer_data_set=producers[start:end], consumer_data_set=ours))
    return found


class HeartbeatWarnings:
    """The last warnings of brokers about groups, each logged once."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], str] = {}  # by address and consumer group; "": producers

    def note(self, address: str, data: HeartbeatData, text: str) -> None:
        """Log the warning in a broker's response to this heartbeat, unless it is unchanged."""
        groups = [(address, one.group_name) for one in data.consumer_data_set] or [(address, "")]
        if text and any(self._last.get(one) != text for one in groups):
            warnings_log.warning("%s: %s", address, text)
        for one in groups:
            self._last.pop(one, None)
        if text:
            self._last.update(dict.fromkeys(groups, text))

    def keep(self, addresses: Container[str], groups: Container[str]) -> None:
        """Forget the warnings of other brokers, and about other consumer groups."""
        for address, group in [*self._last]:
            if address not in addresses or (group and group not in groups):
                del self._last[address, group]
