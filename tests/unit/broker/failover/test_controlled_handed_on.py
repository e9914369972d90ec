"""The state that a controlled set keeps when its master or its controllers change: real servers in memory."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from rmq.broker.replication.table_replication import CONTROLLED_OFFSETS_SECONDS
from rmq.broker.tables.queue_locks import LOCK_MS
from rmq.controller import service as controller_service
from rmq.controller.config import ControllerConfig
from rmq.controller.consensus.raft import NotLeader
from rmq.controller.controller import AddMember, RemoveMember
from rmq.controller.requests import answer_of, request_of
from rmq.errors import NoRoute, RmqError
from rmq.message import Message, MessageQueue
from rmq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from rmq.protocol.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    CreateTopicRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import Node, Set, controlled_set

NEW = [f"10.0.8.{number}:9878" for number in (4, 5, 6)]


async def join(found: Set, address: str) -> None:
    host = address.partition(":")[0]
    config = ControllerConfig(
        controllers=address, controller_joins=True, bind_address=host, controller_path="/controller"
    )
    run = partial(
        controller_service.run,
        config,
        network=found.network.host(host),
        disk=MemoryDisk(seed=9),
        clock=trio.current_time,
    )
    await found.nursery.start(run)


async def changed(found: Set, question: AddMember | RemoveMember) -> None:
    with trio.fail_after(30):
        while True:
            for address in CONTROLLERS + NEW:
                try:
                    answer = answer_of(await found.pool.call(address, request_of(question), 5))
                except (NotLeader, RmqError):
                    continue
                known = question.address in answer.controllers
                if not answer.refusal and known == isinstance(question, AddMember):
                    return
            await trio.sleep(0.1)


async def test_running_brokers_go_on_when_all_their_controllers_are_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for new, old in zip(NEW, CONTROLLERS, strict=True):
                await join(found, new)
                await changed(found, AddMember(new))
                await changed(found, RemoveMember(old))
                assert found.acting() == [first], "its lease outlives the election of another leader"
                assert await found.send(producer, new)
                found.network.cut(old.partition(":")[0])
                found.network.partition(old.partition(":")[0], *found.network._hosts())
            await trio.sleep(10)
            assert await found.send(producer, "all are others")
            await found.kill(first)
            assert await found.master() is second
            await found.sent(producer, "another master")
            assert set(found.acknowledged) <= set(found.stored(second))


async def commit(found: Set, address: str, offset: int) -> int:
    """Commit an offset there, which goes back too; returns the answer's code."""
    header = UpdateConsumerOffsetRequestHeader("G", "T", 0, offset)
    request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header=header)
    return (await found.pool.call(address, request, 5)).code


@pytest.mark.parametrize("latency", [0.0, 0.01])
async def test_a_master_that_hands_over_takes_no_commit_that_its_follower_will_not_have(
    autojump_clock: trio.testing.MockClock, latency: float
) -> None:
    async with controlled_set(2) as (found, client):
        first = await found.begin(client, group="G")
        async with client.producer("P") as producer:
            for number in range(50):
                await found.send(producer, f"m{number}")
        found.network.latency = (0.0, latency)
        assert await found.want(2)
        kept, refused, number = -1, 0, 0
        with trio.fail_after(20):
            while (await found.master()) is first:
                number += 1
                try:
                    code = await commit(found, f"{first.host}:10911", number % 50)
                except RmqError:
                    break  # it ends
                if code == ResponseCode.SUCCESS:
                    kept = number % 50
                    assert not refused, "it takes commits again"
                else:
                    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
                    refused += 1
                await trio.sleep(0.001)
        second = await found.master()
        assert second is not first
        assert second.broker is not None
        assert refused
        assert second.broker.offsets.of("G", "T") == {0: kept}


async def test_a_master_without_a_lease_answers_no_commit_and_takes_those_that_ask_for_no_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first = await found.begin(client, group="G")
        async with client.producer("P") as producer:
            for number in range(10):
                await found.send(producer, f"m{number}")
        address = f"{first.host}:10911"
        assert await commit(found, address, 3) == ResponseCode.SUCCESS
        found.network.partition(first.host, *(address.partition(":")[0] for address in CONTROLLERS))
        await trio.sleep(4)  # a lease lasts 3
        assert first.broker is not None
        assert await commit(found, address, 5) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert first.broker.offsets.of("G", "T") == {0: 3}
        header = UpdateConsumerOffsetRequestHeader("G", "T", 0, 7)
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header=header, oneway=True)
        await found.pool.notify(address, request)
        await trio.sleep(0.1)
        assert first.broker.offsets.of("G", "T") == {0: 7}


async def test_a_slave_of_a_set_keeps_no_commit_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    """Its master would not know the row; once elected, the slave would take it for the group's progress."""
    async with controlled_set(2) as (found, client):
        await found.begin(client, group="G")
        async with client.producer("P") as producer:
            for number in range(10):
                await found.send(producer, f"m{number}")
        await trio.sleep(1)
        second = found.nodes[1]
        address = f"{second.host}:10911"
        assert await commit(found, address, 5) == ResponseCode.SERVICE_NOT_AVAILABLE
        header = UpdateConsumerOffsetRequestHeader("G", "T", 0, 7)
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header=header, oneway=True)
        await found.pool.notify(address, request)
        clone = CloneGroupOffsetRequestHeader("G", "H", "T", offline=True)
        answer = await found.pool.call(address, Command.request(RequestCode.CLONE_GROUP_OFFSET, clone), 5)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert second.broker is not None
        assert second.broker.offsets.of("G", "T") == {}


async def test_a_committed_offset_is_soon_at_the_slaves(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        first = await found.begin(client, group="G")
        async with client.producer("P") as producer:
            for number in range(10):
                await found.send(producer, f"m{number}")
        await trio.sleep(1)
        for offset in range(1, 11):  # the last ones come right after others
            assert await commit(found, f"{first.host}:10911", offset) == ResponseCode.SUCCESS
            await trio.sleep(2 * CONTROLLED_OFFSETS_SECONDS)
        await found.kill(first)
        second = await found.master()
        assert second.broker is not None
        assert second.broker.offsets.of("G", "T") == {0: 10}


QUEUES = frozenset(MessageQueue("T", "s", number) for number in range(3))


async def lock(found: Set, node: Node, client_id: str, *numbers: int) -> set[int]:
    """Lock queues for a client; returns the numbers of those that it gets."""
    body = LockBatchRequestBody("G", client_id, _queues(*numbers))
    request = Command.request(RequestCode.LOCK_BATCH_MQ, body=body.to_json())
    answer = await found.pool.call(f"{node.host}:10911", request, 5)
    return {queue.queue_id for queue in LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set}


async def unlock(found: Set, node: Node, client_id: str, *numbers: int) -> None:
    body = UnlockBatchRequestBody("G", client_id, _queues(*numbers))
    request = Command.request(RequestCode.UNLOCK_BATCH_MQ, body=body.to_json())
    assert (await found.pool.call(f"{node.host}:10911", request, 5)).code == ResponseCode.SUCCESS


def _queues(*numbers: int) -> frozenset[MessageQueue]:
    return frozenset(queue for queue in QUEUES if queue.queue_id in numbers)


@pytest.mark.parametrize("how", ["hand-over", "power cut"])
async def test_a_new_master_lets_nobody_else_have_a_queue_that_somebody_consumes_in_order(
    autojump_clock: trio.testing.MockClock, how: str
) -> None:
    async with controlled_set(2) as (found, _client):
        first = await found.master()
        await found.until(inSync=[1, 2])
        assert await lock(found, first, "one", 0, 1, 2) == {0, 1, 2}
        await unlock(found, first, "one", 2)
        assert await lock(found, first, "two", 0, 2) == {2}
        for _ in range(4):  # longer than a lock lasts: renewals are known, too
            await trio.sleep(20)
            assert await lock(found, first, "one", 0, 1) == {0, 1}
            assert await lock(found, first, "two", 2) == {2}
        await (found.want(2) if how == "hand-over" else found.kill(first))
        with trio.fail_after(20):
            while (second := await found.master()) is first:
                await trio.sleep(0.1)
        assert await lock(found, second, "two", 0, 1, 2) == {2}
        assert await lock(found, second, "one", 0, 2) == {0}
        await unlock(found, second, "one", 0)
        assert await lock(found, second, "two", 0) == {0}
        await trio.sleep(LOCK_MS / 1000 + 1)
        assert await lock(found, second, "three", 0, 1, 2) == {0, 1, 2}, "nobody renewed them"


async def refused(found: Set, node: Node, client_id: str) -> bool:
    body = LockBatchRequestBody("G", client_id, _queues(0))
    request = Command.request(RequestCode.LOCK_BATCH_MQ, body=body.to_json())
    answer = await found.pool.call(f"{node.host}:10911", request, 5)
    return answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_who_is_not_the_master_or_has_no_lease_locks_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Members with old routes ask a former master, which does not know who holds what by now."""
    async with controlled_set(2, relay_sends=False) as (found, client):
        first, second = await found.begin(client, queues=3), found.nodes[1]
        assert await lock(found, first, "one", 0) == {0}
        assert await refused(found, second, "two")
        assert await found.want(2)
        await found.until(master=2, inSync=[1, 2])
        assert await found.master() is second
        assert await refused(found, first, "two")
        assert await lock(found, second, "one", 0) == {0}
        away = (address.partition(":")[0] for address in CONTROLLERS)
        found.network.partition(second.host, first.host, *away)
        await trio.sleep(10)
        assert await found.master() is first
        assert await refused(found, second, "one")
        assert await lock(found, first, "two", 0) == set()
        assert await lock(found, first, "one", 0) == {0}


async def test_a_former_master_that_never_heard_its_successor_still_knows_who_holds_what(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = await found.begin(client, queues=3), found.nodes[1]
        assert await lock(found, first, "one", 0) == {0}
        await trio.sleep(0.1)
        assert await found.want(2)
        with trio.fail_after(20):
            while not first.has_stepped_down():
                await trio.sleep(0.0001)
        found.network.partition(first.host, second.host)
        assert await found.master() is second
        await found.kill(second)
        found.network.heal()
        with trio.fail_after(20):
            while first not in found.acting():
                await trio.sleep(0.1)
        assert await lock(found, first, "two", 0) == set()
        assert await lock(found, first, "one", 0) == {0}


async def test_what_a_master_delivered_in_vain_is_delivered_when_it_is_elected_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = await found.master(), found.nodes[1]
        for topic in ("T", "D"):
            await client.admin.create_topic(topic, broker="s", queues=1)
        await found.until(inSync=[1, 2])
        async with client.producer("P") as producer:
            for message in (
                Message("D", b"late", delay_level=5),
                Message("D", b"too", delay_ms=60_000),
            ):
                assert (await producer.send(message)).status == "SEND_OK"
            assert await found.send(producer, "kept")
            await trio.sleep(12)
            hosts = (address.partition(":")[0] for address in CONTROLLERS)
            found.network.partition(first.host, second.host, *hosts)
            found.set_clock(second, -60_000)  # the first delivers what this one will deliver later
        await trio.sleep(54)
        assert {message.body for message in found.messages(first, "D")} >= {b"late", b"too"}
        assert not found.messages(second, "D")
        await found.kill(first)
        found.network.heal()
        await found.start(first)
        await found.until(master=2, inSync=[1, 2])
        left = first.disk.image(0.5)
        found.cut_off(first)
        await found.kill(second)
        await found.kill(first, left=left)
        found.network.heal()
        await found.start(first)
        with trio.fail_after(30):
            while first not in found.acting():
                await trio.sleep(0.1)
        await trio.sleep(60)
        assert {message.body for message in found.messages(first, "D")} == {b"late", b"too"}


async def test_a_new_master_tells_name_servers_of_topics_that_only_its_former_one_was_asked_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As a slave the new master sent name servers the version of its topics, but they accept topics of
    masters only: a name server of RocketMQ ignores topics with a known version."""
    async with controlled_set(2) as (found, client):
        first, second = await found.begin(client), found.nodes[1]
        name_server = found.cluster.namesrv_address
        found.network.partition(first.host, name_server.partition(":")[0])
        header = CreateTopicRequestHeader("New", "", 1, 1, PERM_READ | PERM_WRITE, "SINGLE_TAG", order=False)
        request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert (await found.pool.call(f"{first.host}:10911", request, 5)).code == ResponseCode.SUCCESS
        await trio.sleep(1)
        assert second.broker is not None
        told = second.broker.registration.version
        assert "New" in second.broker.topics.table
        with pytest.raises(NoRoute):
            await client.admin.topic_route("New")
        await found.kill(first)
        assert await found.master() is second
        await trio.sleep(1)
        assert (await client.admin.topic_route("New")).broker_datas[0].broker_addrs == {
            0: f"{second.host}:10911"
        }
        assert second.broker is not None
        assert second.broker.registration.version != told
