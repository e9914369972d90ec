"""Half messages: open ones, and those that were given up."""

from __future__ import annotations

import pytest

import rmq
from rmq.errors import QueryNotFound
from rmq.message import StoredMessage
from rmq.operate.messages import transactions
from rmq.testing.cluster import Cluster


async def unknown(message: StoredMessage) -> rmq.Decision:
    return rmq.UNKNOWN


async def test_open_half_messages_are_those_without_an_end(cluster: Cluster, client: rmq.Client) -> None:
    assert [one.halves for one in await transactions.open_halves(client)] == [[], []]
    async with client.transactional_producer("p", unknown) as producer:
        for number in range(6):
            async with producer.transaction(rmq.Message("Orders", b"%d" % number)) as transaction:
                if number % 3 == 0:
                    transaction.decision = rmq.UNKNOWN
                elif number % 3 == 1:
                    transaction.decision = rmq.ROLLBACK
    found = await transactions.open_halves(client)
    halves = [half for one in found for half in one.halves]
    assert sorted(half.message.body for half in halves) == [b"0", b"3"]
    assert {(half.group, half.topic, half.checks) for half in halves} == {("p", "Orders", 0)}
    assert all(one.is_whole for one in found)
    few = await transactions.open_halves(client, most=0)
    assert [one.is_whole for one in few] == [not one.halves for one in found]


async def test_half_messages_that_were_given_up_are_resumed(cluster: Cluster, client: rmq.Client) -> None:
    assert (await transactions.discarded(client)).halves == []
    async with client.transactional_producer("p", unknown) as producer:
        async with producer.transaction(rmq.Message("Orders", b"lost")) as transaction:
            transaction.decision = rmq.UNKNOWN
        await cluster.advance(3600)
        page = await transactions.discarded(client)
        (half,) = page.halves
        assert (half.group, half.topic, half.message.body, page.total) == ("p", "Orders", b"lost", 1)
        await transactions.resume(client, half.offset_message_id)
        await cluster.advance(1)
        (again,) = [one for found in await transactions.open_halves(client) for one in found.halves]
        assert again.message.body == b"lost"
        with pytest.raises(QueryNotFound):
            await transactions.resume(client, again.message.offset_message_id)


def test_an_end_names_one_or_several() -> None:
    assert transactions.ended_by(b"17") == {17}
    assert transactions.ended_by(b"17,18,20,") == {17, 18, 20}
    assert transactions.ended_by(b"x\xff") == set()
