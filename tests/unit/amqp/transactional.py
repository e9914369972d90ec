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
        self.sender = Producer(one, link)

    async def declare(self) -> bytes:
        outcome = await self.sender.send(Sections(VALUE, Described(ULong(0x31), [])))
        assert outcome.remote_state == DECLARED
        return bytes(outcome.remote.data[0])

    async def discharge(self, name: bytes, *, fails: bool = False) -> Any:
        return await self.sender.send(Sections(VALUE, Described(ULong(0x32), [name, fails])))


def begin_discharge(control: Coordinator, name: bytes) -> Any:
    """Ask for a commit, and wait for nothing."""
    link = control.sender.link
    delivery = link.delivery(link.delivery_tag())
    link.stream(build(Sections(VALUE, Described(ULong(0x32), [name, False]))))
    link.advance()
    return delivery


async def coordinator(one: Client, session: Any) -> Coordinator:
    link = session.sender("coordinator")
    link.target.type = proton.Terminus.COORDINATOR
    link.source.type = proton.Terminus.SOURCE
    return Coordinator(one, await one.attached(link))


def begin_within(producer: Producer, name: bytes, message: Sections) -> Any:
    """Send a message in a transaction, and wait for nothing."""
    link = producer.link
    delivery = link.delivery(link.delivery_tag())
    delivery.local.data = [name]
    delivery.update(TRANSACTIONAL)
    link.stream(build(message))
    link.advance()
    return delivery


async def send_within(producer: Producer, name: bytes, message: Sections) -> Any:
    await producer.client.until(lambda: producer.link.credit > 0)
    delivery = begin_within(producer, name, message)
    await producer.client.until(lambda: delivery.remote_state)
    return delivery


async def accept_within(consumer: Consumer, name: bytes) -> str:
    delivery, message = await consumer.receive()
    delivery.local.data = [name, proton.Described(proton.ulong(ACCEPTED), [])]
    delivery.update(TRANSACTIONAL)
    delivery.settle()
    await consumer.client.flush()
    return str(message.body)
