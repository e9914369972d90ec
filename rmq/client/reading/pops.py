"""Pops: POP_MESSAGE requests, with fewer messages at a time for brokers that refuse many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import evolve

from rmq.errors import for_code
from rmq.protocol import codes
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.pop import POP_MAX_OF_ROCKETMQ, REFUSAL_OF_MORE, PopMessageRequestHeader

if TYPE_CHECKING:
    from rmq.client.session.session import Session

EMPTY: Final = (codes.POLLING_TIMEOUT, codes.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)


class Pops:
    """Sends pops, and remembers RocketMQ's brokers, which refuse more than `POP_MAX_OF_ROCKETMQ` messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._small: set[str] = set()

    async def pop(
        self, broker: str, address: str, header: PopMessageRequestHeader, seconds: float
    ) -> Command | None:
        """Ask for messages, and wait up to `seconds` for the first; None: no message arrived.

        Raises ResponseError for a refusal, and network errors. Cancelled: messages of the answer
        are redelivered when their lease ends.
        """
        most = header.max_msg_nums
        if broker in self._small:
            header = evolve(header, max_msg_nums=min(most, POP_MAX_OF_ROCKETMQ))
        request = Command.request(codes.POP_MESSAGE, header)
        response = await self._session.pool.call(address, request, seconds + self._session.brokers.timeout)
        if response.code in EMPTY:
            return None
        if response.code == ResponseCode.SUCCESS:
            return response
        is_too_many = most > POP_MAX_OF_ROCKETMQ and REFUSAL_OF_MORE in (response.remark or "")
        if is_too_many and broker not in self._small:
            self._small &= set(self._session.routes.broker_names())  # brokers come and go
            self._small.add(broker)
            return await self.pop(broker, address, header, seconds)
        raise for_code(response.code, response.remark, address)
