"""In a set with controllers a commit and a new lock are answered when the replicas have them."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.replication.failover import table_acks
from rmq.broker.replication.table_replication import LOCKS, OFFSETS, TableReceiver, TableSender, row_report
from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import UpdateConsumerOffsetRequestHeader
from tests.sim.real_brokers.brokers import Node, Set, controlled_set

from ..rig import Rig

TIMEOUT_S = 3.0  # slaveTimeout


def commit_of(offset: int) -> Command:
    header = UpdateConsumerOffsetRequestHeader("G", "T", 0, offset)
    return Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header=header)


def lock_of(queue_id: int, client: str) -> Command:
    body = LockBatchRequestBody("G", client, frozenset({MessageQueue("T", "s", queue_id)}))
    return Command.request(RequestCode.LOCK_BATCH_MQ, body=body.to_json())


async def asked(found: Set, node: Node, request: Command, seconds: float = 20.0) -> Command:
    return await found.pool.call(f"{node.host}:10911", request, seconds)


async def prepared(found: Set, client: Any) -> tuple[Node, Node]:
    """A topic, a group and ten messages; the master and the other."""
    first = await found.begin(client, queues=2, group="G")
    async with client.producer("P") as producer:
        for number in range(20):
            assert await found.send(producer, f"m{number}")
    await trio.sleep(1)
    (second,) = (node for node in found.nodes if node is not first)
    return first, second


async def test_what_was_answered_survives_a_master_that_dies_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = await prepared(found, client)
        assert second.broker is not None
        for offset in range(1, 9):
            assert (await asked(found, first, commit_of(offset))).code == ResponseCode.SUCCESS
            assert second.broker.offsets.get("G", "T", 0) == offset
        assert (await asked(found, first, lock_of(1, "one"))).code == ResponseCode.SUCCESS
        found.network.cut(first.host)
        await found.kill(first)

        assert await found.master() is second
        assert second.broker.offsets.get("G", "T", 0) == 8
        answer = await asked(found, second, lock_of(1, "other"))
        assert LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set == frozenset()


async def test_many_commits_at_once_share_a_few_notes(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    take = TableReceiver.take
    monkeypatch.setattr(
        TableReceiver,
        "take",
        lambda self, note: (taken.append(note) if note.get("table") == OFFSETS else None, take(self, note))[
            1
        ],
    )
    async with controlled_set(2) as (found, client):
        first, _ = await prepared(found, client)
        found.network.latency = (0.0, 0.001)
        taken.clear()
        codes = []

        async def commit(offset: int) -> None:
            codes.append((await asked(found, first, commit_of(offset % 10))).code)

        async with trio.open_nursery() as nursery:
            for offset in range(200):
                nursery.start_soon(commit, offset)
        assert codes == [ResponseCode.SUCCESS] * 200
        assert 0 < len(taken) < 20


async def test_a_replica_that_is_away_and_still_in_sync_is_waited_for_and_then_the_client_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, replica_lag_ms=60_000) as (found, client):
        first, second = await prepared(found, client)
        assert (await asked(found, first, lock_of(0, "one"))).code == ResponseCode.SUCCESS
        found.network.partition(first.host, second.host)
        began = trio.current_time()
        assert (await asked(found, first, lock_of(0, "one"))).code == ResponseCode.SUCCESS, "it is renewed"
        assert trio.current_time() - began < 0.1
        for request in (commit_of(5), lock_of(1, "one")):
            began = trio.current_time()
            answer = await asked(found, first, request)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "may not be at the replicas" in (answer.remark or "")
            assert trio.current_time() - began == pytest.approx(TIMEOUT_S, abs=0.5)
        found.network.heal()
        assert (await asked(found, first, commit_of(9))).code == ResponseCode.SUCCESS


async def test_with_who_lacks_a_row_in_sync_no_more_all_are_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, replica_lag_ms=1_000) as (found, client):
        first, second = await prepared(found, client)
        found.network.partition(first.host, second.host)
        began = trio.current_time()
        assert (await asked(found, first, commit_of(5))).code == ResponseCode.SUCCESS
        assert 0.5 < trio.current_time() - began < TIMEOUT_S
        assert (await found.status())["inSync"] == [1]


async def test_a_replica_that_says_nothing_of_rows_is_believed_to_have_none(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example: the replica was paused when its link began."""
    async with controlled_set(2, replica_lag_ms=60_000) as (found, client):
        first, _ = await prepared(found, client)
        monkeypatch.setattr(TableReceiver, "reports", lambda self: self._to_report.clear() or [])
        await found.end(found.nodes[1])
        await found.start(found.nodes[1])
        await trio.sleep(10)
        assert (await asked(found, first, commit_of(5))).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_more_than_so_many_do_not_wait(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_acks, "WAITING_MAX", 3)
    async with controlled_set(2, replica_lag_ms=60_000) as (found, client):
        first, second = await prepared(found, client)
        found.network.partition(first.host, second.host)
        answers: list[int] = []

        async def commit(offset: int) -> None:
            answers.append((await asked(found, first, commit_of(offset))).code)

        async with trio.open_nursery() as nursery:
            for offset in range(5):
                nursery.start_soon(commit, offset)
        assert sorted(answers) == [ResponseCode.SYSTEM_BUSY] * 2 + [ResponseCode.SERVICE_NOT_AVAILABLE] * 3
        assert first.broker is not None
        assert len(first.broker.acknowledgement.rows) == 0


def test_a_slave_that_says_more_than_it_was_told_is_refused() -> None:
    rig = Rig()
    feed = TableSender(rig.broker.followed.tables, lambda: 0)
    while feed.note(1.0):
        pass
    feed.heard(row_report(OFFSETS, 0))
    assert (feed.had(OFFSETS), feed.had(LOCKS)) == (0, -1)
    rig.broker.offsets.commit("g", "T", 0, 1)
    with pytest.raises(RemoteProtocolError, match=r"confirms change 1 of .*, 0 were sent"):
        feed.heard(row_report(OFFSETS, 1))
    assert feed.had(OFFSETS) == 0
