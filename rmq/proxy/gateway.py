"""ClusterGateway: the `rmq.gateway.Gateway` of a proxy's client, over the brokers of a cluster.

The gateway checks permissions, by the accounts of the proxy, before it sends a request: to the brokers all
requests are the proxy's. A receive that its client gives up continues at the broker until its time, and its
messages are given back, because no client waits for them any more.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from attrs import evolve

from rmq.client.produce.outgoing import pack
from rmq.doors import JOIN, PUBLISH, SUBSCRIBE
from rmq.errors import AccessDenied, RemoteProtocolError, ResponseError, RmqError, for_code
from rmq.gateway import Sent
from rmq.message import (
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    RESERVED_PROPERTIES,
    parse_offset_message_id,
)
from rmq.plugin import account_of
from rmq.protocol.codes import (
    RECALL_MESSAGE,
    SYS_COMMIT,
    SYS_PREPARED,
    SYS_ROLLBACK,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    EndTransactionRequestHeader,
    RecallHandle,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)
from rmq.proxy.members import SENDER, subscriptions_of
from rmq.proxy.takes import UNREACHED, broker_of, renewing_route

if TYPE_CHECKING:
    from rmq.client.session.results import SendResult
    from rmq.doors import OnCheck, OnQuestion, TakenMessage, TakeRequest
    from rmq.gateway import OnEnded, OnName, OnOutcomes, OnReceived, OnSent, OnSettings, OnTopic
    from rmq.message import Message
    from rmq.plugin import Peer
    from rmq.proxy.cluster import ProxiedCluster
    from rmq.proxy.members import ProxiedGroup, ProxiedProducer
    from rmq.shares import Holders

log = logging.getLogger("rmq.proxy")

HANDLES_MAX: Final = 10_000
"""Messages of one client that are given back when the client ends; others are redelivered when their leases
end."""
TOPICS_OF_A_CLIENT: Final = 1_000
"""Topics that a client sends to, or that its subscriptions of one group have."""
GROUPS_OF_A_CLIENT: Final = 100
NACKS_AT_ONCE: Final = 16
"""Requests in flight that give back the messages of a client."""
_STATUSES: Final = {
    "FLUSH_DISK_TIMEOUT": ResponseCode.FLUSH_DISK_TIMEOUT,
    "FLUSH_SLAVE_TIMEOUT": ResponseCode.FLUSH_SLAVE_TIMEOUT,
    "SLAVE_NOT_AVAILABLE": ResponseCode.SLAVE_NOT_AVAILABLE,
}


class Host(Protocol):
    """The host of a client, with the parts that the gateway uses. Also a `rmq.plugin.Peer`."""

    @property
    def is_closed(self) -> bool:
        """True if the client has ended."""

    @property
    def holders(self) -> Holders:
        """The holders of the client's shares."""

    @property
    def peer(self) -> Peer:
        """The peer, for its account."""

    def may(self, action: str, name: str) -> bool:
        """Same as `rmq.doors.DoorHost.may`."""


class ClusterGateway:
    """The gateway of one client; the module has the rules."""

    plain = None

    def __init__(self, cluster: ProxiedCluster, host: Host) -> None:
        self.client_id = ""
        self._cluster = cluster
        self._host = host
        self._groups: dict[str, ProxiedGroup] = {}
        self._producing: dict[str, ProxiedProducer] = {}
        self._handles: dict[str, tuple[str, str, float]] = {}  # group, topic, end of the lease

    @property
    def mark(self) -> str:
        """Same as `rmq.proxy.members.Owner.mark`."""
        return self._mark_of()

    def _mark_of(self, *things: str) -> str:
        return self._cluster.mark(account_of(self._host.peer), *things)

    def transaction_name(self, topic: str, place: str, queue_offset: int, broker: str) -> str:
        """Same as `rmq.proxy.members.Owner.transaction_name`."""
        mark = self._mark_of(topic, place, str(queue_offset), broker)
        return f"{place}.{queue_offset}.{mark}.{broker}"

    def _check(self, action: str, name: str) -> None:
        if not self._host.may(action, name):
            raise AccessDenied(remark=f"no permission to {action}: {name}")

    def _start(self, work: Callable[[], object], fail: Callable[[RmqError], None]) -> None:
        def failed(error: RmqError) -> None:
            if not self._host.is_closed:
                fail(error)

        self._cluster.start(self._host.holders, work, failed)  # type: ignore[arg-type]

    # ---- topics and groups ----

    def topic(self, name: str, on_topic: OnTopic) -> None:
        """Same as `rmq.gateway.Gateway.topic`."""
        self._cluster.check_room(name)

        async def work() -> None:
            parts = await self._cluster.topics.parts(name)
            if not self._host.is_closed:
                on_topic(parts)

        self._start(work, on_topic)

    def delivery_settings(self, group: str, on_settings: OnSettings) -> None:
        """Same as `rmq.gateway.Gateway.delivery_settings`."""
        self._check(JOIN, group)

        async def work() -> None:
            member = self._groups.get(group)
            topics = () if member is None else member.topics_of(self)
            settings = await self._cluster.topics.settings(group, topics)
            if not self._host.is_closed:
                on_settings(settings)

        self._start(work, on_settings)

    def join(
        self, group: str, client_id: str, subscriptions: Mapping[str, str], on_question: OnQuestion
    ) -> None:
        """Same as `rmq.gateway.Gateway.join`."""
        self._check(JOIN, group)
        for topic in subscriptions:
            self._check(SUBSCRIBE, topic)
        is_full = group not in self._groups and len(self._groups) >= GROUPS_OF_A_CLIENT
        if len(subscriptions) > TOPICS_OF_A_CLIENT or is_full:
            remark = f"a client has at most {GROUPS_OF_A_CLIENT} groups of {TOPICS_OF_A_CLIENT} topics"
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        wanted = subscriptions_of(subscriptions, self._cluster.session.now_ms())
        member = self._cluster.group(group, self._host.holders)
        try:
            self._cluster.announce(subscriptions, self._host.holders)
        except ResponseError:
            self._cluster.left(member)
            raise
        self.client_id = client_id
        member.add(self, wanted, on_question)
        self._groups[group] = member

    # ---- sending ----

    def produce(self, topic: str, client_id: str, on_check: OnCheck) -> None:
        """Same as `rmq.gateway.Gateway.produce`."""
        self._check(PUBLISH, topic)
        if topic not in self._producing and len(self._producing) >= TOPICS_OF_A_CLIENT:
            remark = f"a client sends to {TOPICS_OF_A_CLIENT} topics at most"
            raise for_code(ResponseCode.SYSTEM_BUSY, remark)
        producer = self._cluster.producer(topic, self._host.holders)
        try:
            self._cluster.announce((topic,), self._host.holders)
        except ResponseError:
            self._cluster.stopped_producing(topic, producer)
            raise
        self.client_id = client_id
        self._producing[topic] = producer
        producer.add(self, on_check)

    def send(self, message: Message, choose: Callable[[int], int] | None, on_sent: OnSent) -> None:
        """Same as `rmq.gateway.Gateway.send`."""
        self._check(PUBLISH, message.topic)
        cluster, session = self._cluster, self._cluster.session
        cluster.check_room(message.topic)
        own = {name: text for name, text in message.properties.items() if name not in RESERVED_PROPERTIES}
        extra = {name: text for name, text in message.properties.items() if name in RESERVED_PROPERTIES}
        unique = extra.pop(PROPERTY_UNIQUE_KEY)
        is_half = bool(extra.get(PROPERTY_TRANSACTION_PREPARED))
        if is_half and (mark := self.mark):
            own[SENDER] = mark
        flag = SYS_PREPARED if is_half else 0
        outgoing = pack(evolve(message, properties=own), unique, session.config, extra=extra, sys_flag=flag)

        async def work() -> None:
            queue = None
            if choose is not None:
                rotation = await session.rotation(message.topic, session.brokers.timeout, create=True)
                queues = rotation.route.publish_queues
                queue = queues[choose(len(queues))] if queues else None
            result = await cluster.sender.send(outgoing, queue)
            if not self._host.is_closed:
                on_sent(self._sent(result, message, is_half=is_half))

        self._start(work, lambda error: on_sent(Sent(error, is_stored=False)))

    def _sent(self, result: SendResult, message: Message, *, is_half: bool) -> Sent:
        broker, error = result.message_queue.broker_name, None
        if result.status != "SEND_OK":
            code = _STATUSES.get(result.status, ResponseCode.SYSTEM_ERROR)
            error = for_code(code, f"stored, but {result.status}", broker)
        name = handle = ""
        if is_half:
            name = self.transaction_name(message.topic, result.offset_message_id, result.queue_offset, broker)
        elif message.deliver_at_ms is not None and message.deliver_at_ms > self._cluster.session.now_ms():
            made = RecallHandle(message.topic, broker, message.deliver_at_ms, result.message_id)
            handle = self._marked(result.recall_handle or str(made))
        return Sent(error, True, result.queue_offset, name, handle)

    def end_transaction(
        self, topic: str, transaction_id: str, message_id: str, commits: bool | None, on_done: OnEnded
    ) -> None:
        """Same as `rmq.gateway.Gateway.end_transaction`."""
        self._check(PUBLISH, topic)
        try:
            place, queue_offset, _, broker = transaction_id.split(".", 3)
            physical_offset, offset = parse_offset_message_id(place)[1], int(queue_offset)
        except (ValueError, RmqError):
            remark = f"{transaction_id!r:.100} is not the id of a transaction of this broker"
            raise for_code(ResponseCode.MESSAGE_ILLEGAL, remark) from None
        if transaction_id != self.transaction_name(topic, place, offset, broker):
            remark = f"the transaction belongs to another account or is of another topic than {topic}"
            raise AccessDenied(remark=remark)
        decision = {None: 0, True: SYS_COMMIT, False: SYS_ROLLBACK}[commits]
        header = EndTransactionRequestHeader(
            topic, offset, physical_offset, decision, msg_id=message_id, bname=broker
        )

        async def work() -> None:
            await self._cluster.topics.parts(topic)
            await self._ask(broker, topic, Command.request(RequestCode.END_TRANSACTION, header))
            if not self._host.is_closed:
                on_done(None)

        self._start(work, on_done)

    def recall(self, topic: str, handle: str, on_recalled: OnName) -> None:
        """Same as `rmq.gateway.Gateway.recall`."""
        self._check(PUBLISH, topic)
        marked, handle = handle, handle.partition(".")[0]
        try:
            place = RecallHandle.parse(handle)
        except RemoteProtocolError:
            raise for_code(ResponseCode.MESSAGE_ILLEGAL, f"{handle!r:.100} is not a recall handle") from None
        if place.topic != topic:
            raise for_code(ResponseCode.MESSAGE_ILLEGAL, f"the recall handle is of topic {place.topic:.127}")
        if marked != self._marked(handle):
            raise AccessDenied(remark="the message belongs to another account")
        header = RecallMessageRequestHeader(topic, handle, topic)

        async def work() -> None:
            await self._cluster.topics.parts(topic)
            response = await self._ask(place.broker_name, topic, Command.request(RECALL_MESSAGE, header))
            if not self._host.is_closed:
                on_recalled(response.read(RecallMessageResponseHeader).msg_id)

        self._start(work, on_recalled)

    def _marked(self, handle: str) -> str:
        """A recall handle, as the clients of the account get it from a proxy."""
        mark = self._mark_of(handle)
        return f"{handle}.{mark}" if mark else handle

    async def _ask(self, broker: str, topic: str, request: Command) -> Command:
        session = self._cluster.session
        with renewing_route(session, topic):
            address = session.routes.master(broker)
            if address is None:
                remark = f"no master of broker {broker:.100} is known"
                raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
            response = await session.pool.call(address, request, session.brokers.timeout)
            if response.code != ResponseCode.SUCCESS:
                raise for_code(response.code, response.remark, broker)
        return response

    # ---- receiving ----

    def receive(
        self, broker: str, request: TakeRequest, on_taken: OnReceived, seconds: float
    ) -> Callable[[], None]:
        """Same as `rmq.gateway.Gateway.receive`."""
        group, topic = request.consumer_group, request.topic
        self._check(SUBSCRIBE, topic)
        self._check(JOIN, group)
        is_wanted = True

        def drop() -> None:
            nonlocal is_wanted
            is_wanted = False

        async def work() -> None:
            found = await self._take(broker, request, seconds)
            if is_wanted and not self._host.is_closed:
                self._keep(group, topic, found, request.invisible_ms)
                on_taken(found)
            else:
                await self._give_back([(group, topic, one.handle) for one in found], counts=False)

        def fail(error: RmqError) -> None:
            if is_wanted:
                on_taken(error)

        self._start(work, fail)
        return drop

    async def _take(self, broker: str, request: TakeRequest, seconds: float) -> Sequence[TakenMessage]:
        cluster = self._cluster
        parts = await cluster.topics.parts(request.topic)
        settings = await cluster.topics.settings(request.consumer_group)
        if not broker:
            broker = random.choice([one.broker_name for one in parts if one.view.can_read] or [""])
        return await cluster.takes.take(broker, request, settings.in_order, seconds)

    def _keep(self, group: str, topic: str, found: Sequence[TakenMessage], invisible_ms: int) -> None:
        """Keep the handles of messages that a client holds."""
        now, handles = self._cluster.session.now(), self._handles
        while handles:
            first = next(iter(handles))
            if handles[first][2] > now and len(handles) < HANDLES_MAX:
                break
            del handles[first]
        for one in found:
            handles[one.handle] = group, topic, now + invisible_ms / 1000

    def acknowledge(self, group: str, topic: str, handles: Sequence[str], on_done: OnOutcomes) -> None:
        """Same as `rmq.gateway.Gateway.acknowledge`."""
        self._check(JOIN, group)
        for handle in handles:
            self._handles.pop(handle, None)

        async def work() -> None:
            outcomes = await self._cluster.takes.acknowledge(group, topic, handles)
            if not self._host.is_closed:
                on_done(outcomes)

        self._start(work, lambda error: on_done([error] * len(handles)))

    def extend(self, group: str, topic: str, handle: str, invisible_ms: int, on_extended: OnName) -> None:
        """Same as `rmq.gateway.Gateway.extend`."""
        self._check(JOIN, group)
        self._handles.pop(handle, None)

        async def work() -> None:
            fresh = await self._cluster.takes.extend(group, topic, handle, invisible_ms)
            if self._host.is_closed:
                if invisible_ms:
                    await self._give_back([(group, topic, fresh)])
                return
            if invisible_ms:
                ends_at = self._cluster.session.now() + invisible_ms / 1000
                self._handles[fresh] = group, topic, ends_at
            on_extended(fresh)

        self._start(work, on_extended)

    def release(self, group: str, topic: str, handles: Sequence[str]) -> None:
        """Same as `rmq.gateway.Gateway.release`."""
        self._check(JOIN, group)
        for handle in handles:
            self._handles.pop(handle, None)
        left = [(group, topic, handle) for handle in handles]
        self._cluster.tidy(partial(self._give_back, left, counts=False))

    async def _give_back(self, left: Sequence[tuple[str, str, str]], *, counts: bool | None = None) -> None:
        """Give back messages, by their groups, topics and handles. `counts`: the attempts have failed; None:
        they have, unless the proxy stops. The other messages of a broker that does not answer are
        redelivered when their leases end."""
        silent: set[str] = set()
        for group, topic, handle in left:
            broker = broker_of(handle)
            if broker in silent:
                continue
            try:
                fails = not self._cluster.is_stopping if counts is None else counts
                await self._cluster.takes.nack(group, topic, handle, counts=fails)
            except ResponseError:
                continue
            except UNREACHED as error:
                log.info("messages at broker %s are not given back: %s", broker, error)
                silent.add(broker)

    def dead_letter(self, group: str, topic: str, handles: Sequence[str], on_done: OnOutcomes) -> None:
        """Same as `rmq.gateway.Gateway.dead_letter`."""
        self._check(SUBSCRIBE, topic)
        self._check(JOIN, group)
        for handle in handles:
            self._handles.pop(handle, None)

        async def work() -> None:
            outcomes = [await self._cluster.takes.dead_letter(group, topic, handle) for handle in handles]
            if not self._host.is_closed:
                on_done(outcomes)

        self._start(work, lambda error: on_done([error] * len(handles)))

    # ---- the end ----

    def end(self) -> None:
        """Leave the groups of a client that has ended, and give back its messages."""
        for group in self._groups.values():
            group.remove(self)
            self._cluster.left(group)
        for topic, producer in self._producing.items():
            producer.remove(self)
            self._cluster.stopped_producing(topic, producer)
        now, handles = self._cluster.session.now(), self._handles
        left = [(group, topic, handle) for handle, (group, topic, ends) in handles.items() if ends > now]
        for at in range(min(NACKS_AT_ONCE, len(left))):
            self._cluster.tidy(partial(self._give_back, left[at::NACKS_AT_ONCE]))
        self._groups.clear()
        self._producing.clear()
        handles.clear()
