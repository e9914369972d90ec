"""Pulls that wait at a slave and are answered by its master when the slave dies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.replication.failover.poll_handover import (
    KEPT_MS,
    ROWS_MAX,
    ROWS_OF_A_TEXT,
    HandedOverPolls,
    PollReporter,
)
from rmq.broker.replication.sessions import TEXT_MAX, MasterLog, MasterSession, SlaveSession
from rmq.client.produce.producer import Producer
from rmq.errors import RemoteProtocolError
from rmq.protocol import json
from rmq.protocol.bodies import TopicConfig
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, ResponseCode
from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.headers import PullMessageResponseHeader
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.pool import Pool
from tests.sim.real_brokers.brokers import CONTROLLERS, Node, Set, controlled_set
from tests.unit.broker.consume.pulling import begin, heartbeat
from tests.unit.broker.rig import Rig, Wire, pull, send

WAITING = PULL_SUBSCRIPTION | PULL_SUSPEND


class Got(ClientOnlyEndpoint):
    """The responses that came over another connection than the request."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, Command]] = []

    def on_response(self, response: Command, connection: Connection) -> None:
        self.answers.append((connection.peer_address, response))


class GoClient:
    """A consumer of the group `readers` that is connected to all brokers and matches answers by their
    number."""

    def __init__(self, found: Set, pool: Pool, got: Got, producer: Producer) -> None:
        self._found, self._pool, self._got = found, pool, got
        self.producer = producer

    async def heartbeat(self) -> None:
        for node in self._found.nodes:
            if node.stop is not None:
                request = heartbeat("readers", "T")
                request.language = "GO"
                assert (await self._pool.call(f"{node.host}:10911", request, 3)).code == 0

    async def wait(self, node: Node, offset: int, language: str = "GO") -> int:
        """Pull there; returns the request's number."""
        request = pull("T", offset, sys_flag=WAITING, suspend_timeout_millis=20_000)
        request.language = language
        await self._pool.notify(f"{node.host}:10911", request)
        await trio.sleep(0.1)
        return request.opaque

    def answered(self, opaque: int) -> list[tuple[str, int, int, int]]:
        """The responder and its response: address, code, next offset, next broker to ask."""
        found = []
        for address, answer in self._got.answers:
            if answer.opaque == opaque:
                header = answer.read(PullMessageResponseHeader)
                where = header.next_begin_offset, header.suggest_which_broker_id
                found.append((address, answer.code, *where))
        return found


@asynccontextmanager
async def consuming(size: int) -> AsyncIterator[tuple[Set, GoClient]]:
    """A set with one message, and a Go consumer."""
    async with controlled_set(size) as (found, client), client.producer("P") as producer:
        await begin(found, client, producer)
        got = Got()
        async with Pool(found.network.host("10.0.7.1"), got) as pool:
            consumer = GoClient(found, pool, got, producer)
            await consumer.heartbeat()
            yield found, consumer


async def test_the_master_answers_when_the_slave_is_killed(autojump_clock: trio.testing.MockClock) -> None:
    async with consuming(3) as (found, consumer):
        first, second, _ = found.nodes
        waiting, java = await consumer.wait(second, 1), await consumer.wait(second, 1, "JAVA")
        await found.kill(second)
        await trio.sleep(0.2)
        (answer,) = consumer.answered(waiting)
        assert answer == (f"{first.host}:10911", ResponseCode.PULL_NOT_FOUND, 1, 3)
        assert consumer.answered(java) == []


async def test_the_master_is_named_when_no_other_slave_is_there(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with consuming(2) as (found, consumer):
        waiting = await consumer.wait(found.nodes[1], 1)
        await found.kill(found.nodes[1])
        await trio.sleep(0.2)
        assert [answer[2:] for answer in consumer.answered(waiting)] == [(1, 0)]


async def test_the_master_answers_when_the_slave_stands_still(autojump_clock: trio.testing.MockClock) -> None:
    async with consuming(3) as (found, consumer):
        waiting = await consumer.wait(found.nodes[1], 1)
        found.pause(found.nodes[1], 20)
        await found.sent(consumer.producer, "two")
        await trio.sleep(1)
        assert [answer[1:] for answer in consumer.answered(waiting)] == [(ResponseCode.PULL_NOT_FOUND, 1, 3)]


async def test_a_master_without_a_lease_answers_for_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async with consuming(3) as (found, consumer):
        first, second, third = found.nodes
        waiting = [await consumer.wait(second, 1), await consumer.wait(third, 1)]
        found.network.partition(first.host, *(address.partition(":")[0] for address in CONTROLLERS))
        with trio.fail_after(20):
            while await found.master() is first:
                await trio.sleep(0.1)
        await trio.sleep(1)
        for number in waiting:
            assert f"{first.host}:10911" not in {answer[0] for answer in consumer.answered(number)}


async def test_those_that_wait_already_are_told_when_a_link_begins(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with consuming(2) as (found, consumer):
        first, second = found.nodes
        await trio.sleep(KEPT_MS / 1000)
        waiting = await consumer.wait(second, 1)
        found.network.partition(first.host, second.host)
        await trio.sleep(6)
        assert len(consumer.answered(waiting)) == 1, "the link has ended, and the slave may be dead"
        found.network.heal()
        await trio.sleep(5)
        await found.kill(second)
        await trio.sleep(0.2)
        assert len(consumer.answered(waiting)) == 2


async def test_what_is_answered_by_the_slave_is_not_told_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with consuming(2) as (found, consumer):
        second = found.nodes[1]
        numbers = [await consumer.wait(second, 1) for _ in range(3)]
        await found.kill(second)
        await trio.sleep(0.2)
        assert [len(consumer.answered(number)) for number in numbers] == [0, 0, 1], (
            "a client has one pull of a queue: the last"
        )


# ---- the words of the link ----


class Table:
    """A master's rows of one slave, over a rig."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.rig.broker.topics.update(TopicConfig("T", 4, 4))
        broker = self.rig.broker
        self.waiting = HandedOverPolls(broker.pull, broker.clients, broker.store, broker.clock)

    def session(self) -> MasterSession:
        return MasterSession(self.rig.store, 0.0, greet=lambda: MasterLog("L", 0, 0), waiting=self.waiting)

    def answers(self) -> list[Command]:
        self.rig.wire.take()
        self.waiting.answer()
        return self.rig.wire.take()


def row(
    opaque: int = 7, *, client: str = "c1", form: int = JSON, queue_id: int = 0, waited: int = 0
) -> list[Any]:
    return [client, "readers", "T", queue_id, 5, opaque, form, waited]


def slave(*texts: bytes) -> SlaveSession:
    given = iter(texts)
    return SlaveSession(lambda at, data: None, lambda: 0, 0.0, waiting=lambda: next(given, b""))


def test_texts_come_between_reports_however_they_are_cut() -> None:
    table = Table()
    session, told = table.session(), slave(json.dumps([row(7)]), json.dumps([row(8, queue_id=1)]))
    session.received((-1).to_bytes(8, "big", signed=True))
    data = told.report(0.0) + told.report(1.0) + told.report(2.0) + told.report(10.0)
    for at in range(len(data)):
        session.received(data[at : at + 1])
    assert len(table.waiting) == 2
    assert session.acknowledged == 0


def test_nothing_is_told_before_the_first_report() -> None:
    told = slave(json.dumps([row()]))
    assert told.report(0.0) == bytes(8)
    assert len(told.report(0.1)) > 8


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"5",
        b"[5]",
        b"[[]]",
        json.dumps([[*row(), 1]]),
        json.dumps([row()[:-1]]),
        json.dumps([row("x")]),  # type: ignore[arg-type]
        json.dumps([row(1 << 31)]),
        b'[["c1","readers","T",0,1e999,7,0,0]]',
    ],
)
def test_what_cannot_be_read_ends_the_link(text: bytes) -> None:
    table = Table()
    session = table.session()
    session.received((-1).to_bytes(8, "big", signed=True) + bytes(8))
    word = (-(1 << 63) + len(text)).to_bytes(8, "big", signed=True)
    with pytest.raises(RemoteProtocolError):
        session.received(word + text)


def test_a_text_without_end_ends_the_link() -> None:
    session = Table().session()
    session.received((-1).to_bytes(8, "big", signed=True) + bytes(8))
    with pytest.raises(RemoteProtocolError, match="waiting pulls"):
        session.received((-(1 << 63) + TEXT_MAX + 1).to_bytes(8, "big", signed=True))


def test_a_session_that_takes_none_refuses_them() -> None:
    session = MasterSession(Rig().store, 0.0)
    session.received(bytes(8))
    with pytest.raises(RemoteProtocolError):
        session.received((-(1 << 63) + 2).to_bytes(8, "big", signed=True) + b"[]")


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_the_client_is_answered_in_its_form(form: int) -> None:
    table = Table()
    table.rig.ask(heartbeat("readers", "T"))
    table.waiting.take(json.dumps([row(7, form=form), row(9, client="another"), row(8, queue_id=1)]))
    answers = table.answers()
    assert [(one.opaque, one.serialization) for one in answers] == [(7, form), (8, JSON)]
    assert {one.code for one in answers} == {ResponseCode.PULL_NOT_FOUND}
    assert answers[0].read(PullMessageResponseHeader).next_begin_offset == 5
    assert table.answers() == [], "they are forgotten"


def test_only_who_was_there_before_is_answered_and_alone() -> None:
    table = Table()
    rig, another = table.rig, Wire("10.0.0.2:40002")
    rig.ask(heartbeat("readers", "T"))
    rig.let_pass(100)
    for waited, answered in ((101, []), (100, [7])):
        table.waiting.take(json.dumps([row(waited=waited)]))
        assert [one.opaque for one in table.answers()] == answered
    table.waiting.take(json.dumps([row()]))
    rig.ask(heartbeat("readers", "T"), wire=another)
    assert table.answers() == [] == another.take()[1:]
    table.waiting.take(json.dumps([row()]))
    rig.broker.on_close(rig.wire)
    rig.let_pass(1)
    assert table.answers() == [], "the other process came later than the one whose pull it was"


def test_old_ones_are_not_answered_and_many_are_forgotten() -> None:
    table = Table()
    table.rig.ask(heartbeat("readers", "T"))
    table.waiting.take(json.dumps([row(1), row(2, queue_id=1)]))
    table.rig.let_pass(KEPT_MS)
    table.waiting.take(json.dumps([row(3, queue_id=1)]))
    table.rig.let_pass(1)
    assert [one.opaque for one in table.answers()] == [3]
    table.waiting.take(json.dumps([row(one, queue_id=one) for one in range(ROWS_MAX + 5)]))
    assert len(table.waiting) == ROWS_MAX


def test_many_are_told_in_several_texts() -> None:
    rig = Rig()
    rig.broker.topics.update(TopicConfig("T", 4, 4))
    rig.ask(heartbeat("readers", "T"))
    woken = []
    told = PollReporter(rig.broker.pull, rig.broker.clients, lambda: woken.append(None))
    told.begin()
    assert rig.broker.pull._on_waiting is not None
    rig.ask(send(topic="T"))
    rig.ask(pull("T", 1, sys_flag=WAITING))
    (held,) = rig.broker.parked_pulls.all_pulls()
    for _ in range(ROWS_OF_A_TEXT + 1):
        rig.broker.pull._on_waiting(held)
    assert [len(json.loads(told.take())) for _ in range(2)] == [ROWS_OF_A_TEXT, 1]
    assert told.take() == b""
    told.end()
    assert rig.broker.pull._on_waiting is None
