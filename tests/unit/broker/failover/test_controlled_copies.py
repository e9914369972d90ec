"""Stores and tables that are older than what was acknowledged: lost journals, restored and copied disks."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rmq.controller.epochs import FILE
from rmq.operate.controllers import Controllers
from rmq.protocol.command import Command
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import Node, Set, controlled_set


async def lose_journals(found: Set) -> None:
    for controller in found.controllers:
        await controller.stop(found.pauses)
    for number, controller in enumerate(found.controllers):
        controller.disk = MemoryDisk(seed=number)
        await controller.start()


async def test_a_set_waits_for_an_operator_when_its_controllers_lose_their_table(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(20):
                assert await found.send(producer, f"a{number}")
            await found.kill(first)
            assert await found.master() is second
            await found.sent(producer, "first after")
            for number in range(20):
                assert await found.send(producer, f"b{number}")
        await found.end(second)
        await lose_journals(found)
        found.network.heal()
        found.start_later(first)
        found.start_later(second)
        await trio.sleep(30)
        assert not found.acting()  # the first, which may begin a set, knows nothing of the second epoch

        # As the runbook says: who has the longest log begins the set anew, then the other comes to it.
        await found.end(first)
        await found.end(second)
        first.is_founder, second.is_founder = False, True
        second.disk.remove(f"{found.store_config.store_path_root_dir}/{FILE}")
        await found.start(second)
        assert await found.master() is second
        assert set(found.acknowledged) <= set(found.stored(second))
        found.start_later(first)
        await trio.sleep(10)
        assert len((await found.status())["replicas"]) == 1
        await found.end(first)
        first.disk.remove(f"{found.store_config.store_path_root_dir}/{FILE}")
        await found.start(first)
        await found.until(inSync=[1, 2], master=1)
        assert found.stored(first) == found.stored(second)


async def test_a_running_master_is_none_of_a_set_that_another_began_by_its_number(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        await found.end(second)
        await found.until(inSync=[1])
        async with client.producer("P") as producer:
            assert await found.send(producer, "alone")
        found.network.partition(first.host, *(one.partition(":")[0] for one in CONTROLLERS))
        await lose_journals(found)
        await trio.sleep(4)
        second.is_founder = True
        second.disk.remove(f"{found.store_config.store_path_root_dir}/{FILE}")
        await found.start(second)
        assert await found.master() is second
        found.network.heal()
        for _ in range(100):
            assert found.acting() == [second]
            await trio.sleep(0.1)
        assert "alone" in found.stored(first)


@pytest.mark.parametrize("starts", [0, 2])
async def test_an_old_copy_of_a_store_that_is_put_back_is_not_elected(
    autojump_clock: trio.testing.MockClock, starts: int
) -> None:
    """The copy is of the present life, or of an earlier one: then it is another replica."""
    async with controlled_set(2, replica_lag_ms=60_000) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            copy = second.disk.image(0.5)
            for _ in range(starts):
                await found.end(second)
                await found.start(second)
            await found.sent(producer, "both have it")
            await trio.sleep(2)
            found.cut_off(second)
            await found.kill(second, left=copy)
            await trio.sleep(4)
            await found.kill(first)
            found.network.heal()
            second.has_bad_disk = True
            for _ in range(4):  # each start counts as another life
                if second.stop is None:
                    await found.start(second)
                await trio.sleep(10)
                assert not found.acting(), "it lacks what was acknowledged"
            second.has_bad_disk = False
            await found.start(first)
            assert await found.master() is first
            await found.until(inSync=[1, 3 if starts else 2])
            await trio.sleep(1)
            assert found.stored(first) == found.stored(second) == ["both have it"]


async def test_the_copy_of_a_replica_that_lives_is_not_let_in(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        copy = Node(3)
        copy.disk = second.disk.image(0.5)
        found.nodes.append(copy)
        async with client.producer("P") as producer:
            found.start_later(copy)
            for number in range(20):
                assert await found.send(producer, f"{number}")
                await trio.sleep(0.5)
            assert copy.broker is None
            assert second.number() == 2
            await found.kill(first)
            assert await found.master() is second
            assert set(found.acknowledged) <= set(found.stored(second))


async def test_a_set_whose_replica_in_sync_is_no_folder_any_more_goes_on_by_command(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder of a replica is overwritten with a copy of the other's, identity and all."""
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(9):
                await found.sent(producer, f"{number}")
            await trio.sleep(2)
            copy = first.disk.copy()
            for node in (first, second):
                left = node.disk.copy()
                found.cut_off(node)
                await found.kill(node, left=left if node is first else copy)
            found.network.heal()
            first.has_bad_disk = second.has_bad_disk = True  # they may end by themselves
            found.start_later(second)
            await trio.sleep(5)
            found.start_later(first)
            await trio.sleep(20)
            assert not found.acting()
            assert "at the address of 2 replica 1 has registered" in caplog.text
            for node in (first, second):
                await found.kill(node)
            first.disk.remove("/store/config/controller.json")  # as its log asks for
            first.disk.remove("/store/config/controller.json.bak")
            found.network.heal()
            await found.start(first)
            await trio.sleep(70)  # it is said once a minute
            assert not found.acting()
            assert "its replicas in sync, 2 (10.0.1.2:10911), none lives" in caplog.text
            assert "`rmq controller elect s 3 --unclean`" in caplog.text
            outcome = await operations(found).elect("s", 3, is_unclean=True)
            assert outcome.is_done, outcome.text
            assert await found.master() is first
            await found.sent(producer, "after")
            assert set(found.acknowledged) <= set(found.stored(first))
            first.has_bad_disk = second.has_bad_disk = False


def operations(found: Set) -> Controllers:
    async def call(address: str, request: Command) -> Command:
        return await found.pool.call(address, request, 5)

    return Controllers(CONTROLLERS, call)
