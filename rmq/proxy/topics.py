"""Topics and groups of a cluster, as the brokers know them, kept for some seconds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from attrs import define, field

from rmq.broker.consume.per_message.retry_policy import policy_of
from rmq.doors import DeliverySettings, TopicView
from rmq.errors import (
    NETWORK_ERRORS,
    NoRoute,
    RemoteProtocolError,
    ResponseError,
    RmqError,
    Unreachable,
    for_code,
)
from rmq.gateway import TopicAtBroker
from rmq.protocol import codes, json
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.pop import GetSubscriptionGroupConfigRequestHeader, GetTopicConfigRequestHeader

if TYPE_CHECKING:
    from rmq.client.session.session import Session

T = TypeVar("T")

KNOWN_MAX: Final = 50_000
"""Topics or groups in memory; above it all are forgotten."""
SILENT_SECONDS: Final = 30.0
"""Seconds for which a broker that did not answer is asked after the others."""
MESSAGE_TYPE: Final = "message.type"
FAILURES: Final = (*NETWORK_ERRORS, NoRoute, RemoteProtocolError, ResponseError)


@define
class Memory(Generic[T]):
    """Values that are kept for some seconds."""

    seconds: float
    _values: dict[str, tuple[T, float]] = field(factory=dict)

    async def get(self, name: str, now: float, ask: Callable[[], Awaitable[tuple[T, bool]]]) -> T:
        """A value from memory, or else by `ask`; errors of `ask` are raised. `ask` also returns whether a
        broker has answered: an assumed value is not kept."""
        value, until = self._values.get(name, (None, -math.inf))
        if until > now:
            return value  # type: ignore[return-value]
        fresh, is_known = await ask()
        if is_known:
            if len(self._values) >= KNOWN_MAX:
                self._values.clear()
            self._values[name] = fresh, now + self.seconds
        return fresh


class Topics:
    """The topics and groups of a cluster. `seconds` is the time for which answers hold."""

    def __init__(self, session: Session, seconds: float) -> None:
        self._session = session
        self._types = Memory[str](seconds)
        self._groups = Memory[DeliverySettings](seconds)
        self._silent_at: dict[str, float] = {}  # brokers that did not answer, and when

    async def parts(self, name: str) -> list[TopicAtBroker]:
        """The parts of a topic at the masters in the route. Raises ResponseError: TOPIC_NOT_EXIST, or
        SERVICE_NOT_AVAILABLE while no name server answers or no master is up."""
        session = self._session
        try:
            rotation = await session.rotation(name, session.brokers.timeout)
        except Unreachable as error:
            raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from None
        except NoRoute:
            raise for_code(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {name}") from None
        route = rotation.route
        reads = Counter(queue.broker_name for queue in route.subscribe_queues)
        writes = Counter(queue.broker_name for queue in route.publish_queues)
        brokers = [one for one in sorted({*reads, *writes}) if session.routes.master(one) is not None]
        if not brokers:
            session.refresh_soon(name)  # the next master may be up by now
            remark = f"no master of topic {name} is there now"
            raise for_code(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        kind = await self._types.get(name, session.now(), lambda: self._type(name, brokers))
        return [
            TopicAtBroker(one, TopicView(reads[one], writes[one], bool(reads[one]), bool(writes[one]), kind))
            for one in brokers
        ]

    async def _type(self, name: str, brokers: list[str]) -> tuple[str, bool]:
        """The type of a topic's messages; empty when the brokers do not report it: RocketMQ 4.x does not."""
        has_answer = False
        for broker in self._in_turn(brokers):
            header = GetTopicConfigRequestHeader(name)
            response = await self._ask(broker, Command.request(codes.GET_TOPIC_CONFIG, header))
            has_answer |= response is not None
            if response is None or response.code != ResponseCode.SUCCESS:
                continue
            listed = json.loads(response.body)
            attributes = listed.get("attributes") if isinstance(listed, dict) else None
            if isinstance(attributes, dict):
                word = attributes.get(MESSAGE_TYPE, "")
                return (word if isinstance(word, str) else ""), True
        return "", has_answer

    async def settings(self, group: str, topics: Iterable[str] = ()) -> DeliverySettings:
        """The settings of per-message delivery of a group, by the first broker that answers; RocketMQ's
        defaults when none does. All known brokers are asked; while none is known, the brokers of `topics`."""
        return await self._groups.get(group, self._session.now(), lambda: self._settings(group, topics))

    async def _settings(self, group: str, topics: Iterable[str]) -> tuple[DeliverySettings, bool]:
        for topic in topics:
            if self._session.routes.masters():
                break
            with suppress(RmqError):
                await self.parts(topic)
        has_answer = False
        header = GetSubscriptionGroupConfigRequestHeader(group)
        for broker in self._in_turn(name for name, _ in self._session.routes.masters()):
            response = await self._ask(broker, Command.request(codes.GET_SUBSCRIPTIONGROUP_CONFIG, header))
            has_answer |= response is not None
            if response is not None and response.code == ResponseCode.SUCCESS:
                return settings_of(SubscriptionGroupConfig.from_json(response.body)), True
        return settings_of(SubscriptionGroupConfig(group)), has_answer

    def _in_turn(self, brokers: Iterable[str]) -> list[str]:
        """The order of requests to brokers: brokers that were silent lately come last."""
        now, silent_at = self._session.now(), self._silent_at
        return sorted(brokers, key=lambda one: (now - silent_at.get(one, -math.inf) < SILENT_SECONDS, one))

    async def _ask(self, broker: str, request: Command) -> Command | None:
        """A broker's response; None without a response."""
        session = self._session
        address = session.routes.master(broker)
        if address is None:
            return None
        try:
            response = await session.pool.call(address, request, session.brokers.timeout)
        except FAILURES:
            if len(self._silent_at) >= KNOWN_MAX:
                self._silent_at.clear()
            self._silent_at[broker] = session.now()
            return None
        self._silent_at.pop(broker, None)
        return response


def settings_of(config: SubscriptionGroupConfig) -> DeliverySettings:
    """The delivery settings in a group's configuration."""
    attempts, policy = max(1, config.retry_max_times + 1), policy_of(config.group_retry_policy)
    in_order = bool(config.consume_message_orderly)
    if policy.is_exponential:
        growth = policy.initial_ms, policy.max_ms, policy.multiplier
        return DeliverySettings(attempts, in_order, (), *growth)
    return DeliverySettings(attempts, in_order, policy.delays_ms)
