"""Transactions of AMQP, as a client runs them."""

from __future__ import annotations

from typing import Any

from rmq_amqp.sections import VALUE, Sections, build
from rmq_amqp.values import Described, ULong

from tests.unit.amqp.client import ACCEPTED, Client, Consumer, Producer, proton

DECLARED, TRANSACTIONAL = 0x33, 0x34


class Coordinator:
    """The coordinator's link of a client."""

    def __init__(self, one: Client, link: Any) -> None:
        self._sender = Producer(one, link)

    async def declare(self) -> bytes:
        outcome = await self._sender.send(Sections(VALUE, Described(ULong(0x31), [])))
        assert outcome.remote_state == DECLARED
        return bytes(outcome.remote.data[0])

    async def discharge(self, name: bytes, *, fails: bool = False) -> Any:
        return await self._sender.send(Sections(VALUE, Described(ULong(0x32), [name, fails])))


async def coordinator(one: Client, session: Any) -> Coordinator:
    link = session.sender("coordinator")
    link.target.type = proton.Terminus.COORDINATOR
    link.source.type = proton.Terminus.SOURCE
    return Coordinator(one, await one.attached(link))


async def send_within(producer: Producer, name: bytes, message: Sections) -> Any:
    link = producer.link
    await producer.client.until(lambda: link.credit > 0)
    delivery = link.delivery(link.delivery_tag())
    delivery.local.data = [name]
    delivery.update(TRANSACTIONAL)
    link.stream(build(message))
    link.advance()
    await producer.client.until(lambda: delivery.remote_state)
    return delivery


async def accept_within(consumer: Consumer, name: bytes) -> str:
    delivery, message = await consumer.receive()
    delivery.local.data = [name, proton.Described(proton.ulong(ACCEPTED), [])]
    delivery.update(TRANSACTIONAL)
    delivery.settle()
    await consumer.client.flush()
    return str(message.body)
