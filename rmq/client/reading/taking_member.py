"""TakingMember: a consumer group of single messages in this client, in heartbeats and for administrators.

Such a member holds no queues. Its heartbeats make the group's consumers known to brokers, so that lists of
members and diagnoses do not take the group for an abandoned group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rmq.client.consume.workers import Workers
from rmq.client.session.health import ConsumerHealth
from rmq.errors import NotReady
from rmq.protocol.bodies import ConsumerData, ConsumerRunningInfo
from rmq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.client.session.session import Session
    from rmq.message import MessageQueue
    from rmq.protocol.bodies import SubscriptionData
    from rmq.protocol.command import Command
    from rmq.remoting.connection import Connection
else:
    from rmq.lazy_attrs import frozen


@frozen(eq=False)
class Taker:
    """A consumer of the group in this client: its subscriptions, its workers, and the reason why it consumes
    nothing, "" while all is well."""

    subscriptions: Mapping[str, SubscriptionData]
    workers: Workers
    problem: Callable[[], str]


class TakingMember:
    """The consumers of a group in this client; to brokers a `session.Member`."""

    def __init__(self, session: Session, group: str) -> None:
        self.group = group
        self._session = session
        self._started_ms = session.now_ms()
        self._takers: list[Taker] = []

    def describe(self) -> ConsumerData:
        """Content for the heartbeat."""
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_ACTIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=self._subscriptions(),
        )

    def _subscriptions(self) -> list[SubscriptionData]:
        """The subscriptions of all consumers, by topic."""
        found = {data.topic: data for taker in self._takers for data in taker.subscriptions.values()}
        return [found[topic] for topic in sorted(found)]

    def rebalance_soon(self) -> None:
        """Do nothing: the member has no queues to share."""

    def reconnected(self) -> None:
        """Do nothing: polls continue by themselves."""

    def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Do nothing: the broker has the offsets."""

    def running_info(self) -> ConsumerRunningInfo:
        """State for an administrator."""
        addresses = self._session.name_servers.addresses
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in addresses),
                "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_THREADPOOL_CORE_SIZE": "1",
                "PROP_CLIENT_VERSION": "V4_9_7",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            },
            subscription_set=self._subscriptions(),
        )

    def consume_directly(self, request: Command, connection: Connection) -> Command:
        """Refuse: the messages of the group are the application's to handle."""
        remark = (
            f"group {self.group} uses per-message delivery: a message cannot be passed to its "
            "handler from outside"
        )
        return request.reply(ResponseCode.SYSTEM_ERROR, remark)

    def health(self) -> ConsumerHealth:
        """State for the application."""
        running = sum(taker.workers.running for taker in self._takers)
        problems = tuple(f"{self.group} {problem}" for problem in self._problems())
        return ConsumerHealth(self.group, (), 0, 0, 0, (), problems, running)

    def _problems(self) -> list[str]:
        return [problem for taker in self._takers if (problem := taker.problem())]

    def check_ready(self) -> None:
        """Raises NotReady when one of the consumers does not consume. A member needs no queues."""
        for problem in self._problems():
            raise NotReady(self.group, reason=problem)

    async def lag(self) -> dict[MessageQueue, int]:
        """Nothing: no queue is this client's alone."""
        return {}

    # ---- joining and leaving ----

    @classmethod
    def join(cls, session: Session, group: str, taker: Taker) -> TakingMember:
        """Add a consumer to the member of its group. Heartbeats announce the member, first as soon as the
        consumer knows the brokers of its topics."""
        known = session.members.get(group)
        member = known if isinstance(known, TakingMember) else cls(session, group)
        if known is None:
            session.members[group] = member
        member._takers.append(taker)
        return member

    async def leave(self, taker: Taker) -> None:
        """Remove a consumer; with the last the client leaves the group. Cancelled: the brokers forget the
        member later."""
        self._takers.remove(taker)
        if not self._takers and self._session.members.get(self.group) is self:
            await self._session.leave(consumer=self.group)
