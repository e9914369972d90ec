"""Members: the groups and producers of a proxy's clients, as the brokers see them.

To the brokers the proxy is one client: a member of each group of its clients, and a producer of each topic to
which its clients send transactions. Questions of brokers and administrators go to one of the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from attrs import define

from rmq.client.consume.subscription import subscription
from rmq.client.session.endpoint import ClientEndpoint
from rmq.client.session.health import ConsumerHealth
from rmq.doors import OpenTransaction, Question
from rmq.errors import ConfigError, InvalidName, ResponseError, RmqError
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CheckTransactionStateRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from rmq.protocol.record import decode_record
from rmq.shares import NOBODY, Holders

if TYPE_CHECKING:
    from rmq.client.session.session import Session
    from rmq.doors import OnCheck, OnQuestion
    from rmq.remoting.connection import Connection

SENDER: Final = "rmqSender"
"""Property of a half message: the mark of the account that sent it."""


class Owner(Protocol):
    """A client of the proxy."""

    client_id: str

    @property
    def mark(self) -> str:
        """The mark of the account of the client; empty without one."""

    def transaction_name(self, topic: str, place: str, queue_offset: int, broker: str) -> str:
        """The name by which the client's account ends a half message at a broker."""


@define
class _Use:
    """The membership of one client."""

    subscriptions: Mapping[str, SubscriptionData]
    on_question: OnQuestion


class ProxiedGroup:
    """A consumer group of a proxy's clients; to brokers a `session.Member`."""

    def __init__(self, session: Session, group: str, holders: Holders = NOBODY) -> None:
        self.group = group
        self.holders = holders
        """The holders of its place among the proxy's groups."""
        self._session = session
        self._since_ms = session.now_ms()
        self._uses: dict[Owner, _Use] = {}

    @property
    def is_empty(self) -> bool:
        """True if no client is a member any more."""
        return not self._uses

    def add(
        self, owner: Owner, subscriptions: Mapping[str, SubscriptionData], on_question: OnQuestion
    ) -> None:
        """Add a client as a member, with these subscriptions."""
        self._uses[owner] = _Use(subscriptions, on_question)

    def remove(self, owner: Owner) -> None:
        """Remove a client from the members."""
        self._uses.pop(owner, None)

    def topics_of(self, owner: Owner) -> Collection[str]:
        """The topics to which a client subscribes."""
        use = self._uses.get(owner)
        return () if use is None else use.subscriptions.keys()

    def describe(self) -> ConsumerData:
        """Content for the heartbeat."""
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=self._subscriptions(),
        )

    def _subscriptions(self) -> list[SubscriptionData]:
        found = {data.topic: data for use in self._uses.values() for data in use.subscriptions.values()}
        return [found[topic] for topic in sorted(found)]

    def rebalance_soon(self) -> None:
        """Do nothing: the member has no queues to share."""

    def reconnected(self) -> None:
        """Do nothing: receives continue by themselves."""

    def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Do nothing: the brokers have the offsets."""

    def running_info(self) -> ConsumerRunningInfo:
        """State for an administrator."""
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": "".join(f"{one};" for one in self._session.name_servers.addresses),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_THREADPOOL_CORE_SIZE": "1",
                "PROP_CLIENT_VERSION": "V4_9_7",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._since_ms),
                "rmqClients": ", ".join(sorted(owner.client_id for owner in self._uses))[:4_000],
            },
            subscription_set=self._subscriptions(),
        )

    def health(self) -> ConsumerHealth:
        """State for the application."""
        return ConsumerHealth(self.group, (), 0, 0, 0, (), ())

    def check_ready(self) -> None:
        """Do nothing: a member needs no queues."""

    async def lag(self) -> dict[MessageQueue, int]:
        """No rows: no queue is this client's alone."""
        return {}

    # ---- questions of administrators ----

    def ask(self, question: Question) -> None:
        """Put a question to the first client that can answer it. Raises ResponseError without one."""
        refusal: ResponseError | None = None
        for use in self._uses.values():
            try:
                use.on_question(question)
                return
            except ResponseError as error:
                refusal = error
        raise refusal or ResponseError(ResponseCode.SYSTEM_ERROR, f"no client of group {self.group} is here")

    def consume_directly(self, request: Command, connection: Connection) -> Command | None:
        """Let a client consume one message that an administrator sends, and answer later."""
        message = decode_record(request.body, body_max=self._session.config.max_body_size)

        def answer(result: object) -> None:
            if isinstance(result, ConsumeMessageDirectlyResult):
                connection.reply(request.reply(body=result.to_json()))
            else:
                connection.reply(_refusal(request, result))

        return self._asked(request, Question(answer, message))

    def print_stacks(self, request: Command, connection: Connection) -> Command | None:
        """Answer an administrator with the stacks of a client, later."""
        info = self.running_info()

        def answer(stacks: object) -> None:
            if isinstance(stacks, str):
                info.jstack = stacks
                connection.reply(request.reply(body=info.to_json()))
            else:
                connection.reply(_refusal(request, stacks))

        return self._asked(request, Question(answer))

    def _asked(self, request: Command, question: Question) -> Command | None:
        try:
            self.ask(question)
        except ResponseError as error:
            return _refusal(request, error)
        return None


def _refusal(request: Command, error: object) -> Command:
    code = error.code if isinstance(error, ResponseError) else ResponseCode.SYSTEM_ERROR
    text = str(error) if isinstance(error, RmqError) else "the client did not answer the request"
    return request.reply(code, text)


def subscriptions_of(wanted: Mapping[str, str], now_ms: int) -> dict[str, SubscriptionData]:
    """The subscriptions of a client, by topic. Raises ResponseError for a topic or an expression that is
    none."""
    try:
        return {topic: subscription(topic, text, now_ms) for topic, text in wanted.items()}
    except (ConfigError, InvalidName) as error:
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None


class ProxiedProducer:
    """The producers of a topic among a proxy's clients; to a broker one producer that knows the ends of half
    messages."""

    def __init__(self, name_of: Callable[[str], str], holders: Holders = NOBODY) -> None:
        self._name_of = name_of
        self.holders = holders
        """The holders of its place among the proxy's producers."""
        self._uses: dict[Owner, OnCheck] = {}
        self._turn = 0

    @property
    def is_empty(self) -> bool:
        """True if no client sends to the topic any more."""
        return not self._uses

    def add(self, owner: Owner, on_check: OnCheck) -> None:
        """Add a client as a producer."""
        self._uses[owner] = on_check

    def remove(self, owner: Owner) -> None:
        """Remove a client from the producers."""
        self._uses.pop(owner, None)

    def check(self, message: StoredMessage, header: CheckTransactionStateRequestHeader, address: str) -> None:
        """Send a check-back to one of the clients of the account that sent the half message."""
        sender = message.properties.pop(SENDER, "")
        uses, self._turn = list(self._uses.items()), self._turn + 1
        in_turn = (uses[at % len(uses)] for at in range(self._turn, self._turn + len(uses)))
        # Not a choice among those of the account: very many clients may send to a topic.
        owner, on_check = next((use for use in in_turn if use[0].mark == sender), (None, None))
        if owner is None or on_check is None:
            return
        broker = header.bname or self._name_of(address)
        place = header.offset_msg_id or message.offset_message_id
        name = owner.transaction_name(message.topic, place, header.tran_state_table_offset, broker)
        on_check(OpenTransaction(message, name))


class ProxyEndpoint(ClientEndpoint):
    """The endpoint of the proxy's connections to brokers: the stacks that an administrator asks for are a
    client's, not the proxy's."""

    def _running_info(self, request: Command, connection: Connection) -> Command | None:
        header = request.read(GetConsumerRunningInfoRequestHeader)
        member = self._session.members.get(header.consumer_group)
        if header.jstack_enable and isinstance(member, ProxiedGroup):
            return member.print_stacks(request, connection)
        return super()._running_info(request, connection)
