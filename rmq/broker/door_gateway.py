"""LocalGateway: the `rmq.gateway.Gateway` of a client of this broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rmq.doors import transaction_id
from rmq.errors import AccessDenied, ResponseError, for_code
from rmq.gateway import Sent, TopicAtBroker
from rmq.message import PROPERTY_TRANSACTION_PREPARED, PROPERTY_UNIQUE_KEY
from rmq.protocol.codes import ResponseCode
from rmq.protocol.headers import RecallHandle

if TYPE_CHECKING:
    from rmq.doors import Appended, DoorHost, OnCheck, OnQuestion, TakeRequest
    from rmq.gateway import OnEnded, OnName, OnOutcomes, OnReceived, OnSent, OnSettings, OnTopic, PlainSends
    from rmq.message import Message


class LocalGateway:
    """See the module. `host` is the client's, `plain` its short way for plain sends."""

    def __init__(self, host: DoorHost, plain: PlainSends | None = None) -> None:
        self._host = host
        self.plain = plain

    @property
    def _broker_name(self) -> str:
        name: str = self._host.config.broker_name
        return name

    def topic(self, name: str, on_topic: OnTopic) -> None:
        """Same as `rmq.gateway.Gateway.topic`."""
        view = self._host.topic(name)
        if view is None:
            on_topic(for_code(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {name} at this broker"))
        else:
            on_topic([TopicAtBroker(self._broker_name, view)])

    def delivery_settings(self, group: str, on_settings: OnSettings) -> None:
        """Same as `rmq.gateway.Gateway.delivery_settings`."""
        on_settings(self._host.delivery_settings(group))

    def send(self, message: Message, choose: Callable[[int], int] | None, on_sent: OnSent) -> None:
        """Same as `rmq.gateway.Gateway.send`."""
        host = self._host
        view = host.topic(message.topic) if choose is not None else None
        queue_id = None if choose is None or view is None else choose(view.write_queues)

        def done(outcome: Appended) -> None:
            name = handle = ""
            properties = message.properties
            if properties.get(PROPERTY_TRANSACTION_PREPARED):
                name = transaction_id(outcome)
            elif message.deliver_at_ms is not None and message.deliver_at_ms > host.now_ms():
                key = properties[PROPERTY_UNIQUE_KEY]
                handle = str(RecallHandle(message.topic, self._broker_name, message.deliver_at_ms, key))
            is_stored = bool(outcome.error is None or outcome.message_id)
            on_sent(Sent(outcome.error, is_stored, outcome.queue_offset, name, handle))

        host.append(message, done, queue_id=queue_id, holds=True)  # clients try again much sooner

    def produce(self, topic: str, client_id: str, on_check: OnCheck) -> None:
        """Same as `rmq.gateway.Gateway.produce`."""
        self._host.produce(topic, client_id, on_check)

    def end_transaction(
        self, topic: str, transaction_id: str, message_id: str, commits: bool | None, on_done: OnEnded
    ) -> None:
        """Same as `rmq.gateway.Gateway.end_transaction`."""
        self._host.end_transaction(topic, transaction_id, message_id, commits, on_done)

    def recall(self, topic: str, handle: str, on_recalled: OnName) -> None:
        """Same as `rmq.gateway.Gateway.recall`."""
        key = ""

        def done(outcome: Appended) -> None:
            on_recalled(key if outcome.error is None else outcome.error)

        key = self._host.recall(topic, handle, done)

    def join(
        self, group: str, client_id: str, subscriptions: Mapping[str, str], on_question: OnQuestion
    ) -> None:
        """Same as `rmq.gateway.Gateway.join`."""
        self._host.join(group, client_id, subscriptions, on_question=on_question)

    def receive(
        self, broker: str, request: TakeRequest, on_taken: OnReceived, seconds: float
    ) -> Callable[[], None]:
        """Same as `rmq.gateway.Gateway.receive`."""
        return self._host.hold_take(request, on_taken, seconds)

    def acknowledge(self, group: str, topic: str, handles: Sequence[str], on_done: OnOutcomes) -> None:
        """Same as `rmq.gateway.Gateway.acknowledge`."""
        self._host.acknowledge(group, topic, handles, on_done)

    def extend(self, group: str, topic: str, handle: str, invisible_ms: int, on_extended: OnName) -> None:
        """Same as `rmq.gateway.Gateway.extend`."""
        try:
            outcome: str | Exception = self._host.extend(group, topic, handle, invisible_ms)
        except AccessDenied:
            raise
        except ResponseError as error:
            outcome = error
        on_extended(outcome)

    def release(self, group: str, topic: str, handles: Sequence[str]) -> None:
        """Same as `rmq.gateway.Gateway.release`."""
        self._host.nack(group, topic, handles, 0, counts=False)

    def dead_letter(self, group: str, topic: str, handles: Sequence[str], on_done: OnOutcomes) -> None:
        """Same as `rmq.gateway.Gateway.dead_letter`."""
        self._host.dead_letter(group, topic, handles, on_done)
