"""Tables of controllers and folders of replicas that went back in time: nothing acknowledged is lost."""

from __future__ import annotations

import math
import random

import pytest
import trio
import trio.testing

from rmq.controller import evidence
from rmq.controller.epochs import FILE
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.brokers import Node, Set, controlled_set
from tests.unit.broker.failover.sets import remove


async def restart_controllers(found: Set, disks: list[MemoryDisk]) -> None:
    """All controllers lose power, and start again on these disks."""
    for controller in found.controllers:
        await controller.stop(found.pauses)
    for controller, disk in zip(found.controllers, disks, strict=True):
        controller.disk = disk
        await controller.start()


def images(found: Set) -> list[MemoryDisk]:
    return [controller.disk.image(0.5) for controller in found.controllers]


@pytest.mark.parametrize("is_away", [False, True])
async def test_controllers_whose_table_went_back_take_what_their_master_knows(
    autojump_clock: trio.testing.MockClock, is_away: bool
) -> None:
    """The slave is in sync by the old table, and lacks what was acknowledged since."""
    async with controlled_set(2, replica_lag_ms=2_000) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        older = images(found)
        async with client.producer("P") as producer:
            found.cut_off(second) if is_away else None
            await found.kill(second)
            await found.sent(producer, "without the slave")
            assert (await found.status())["inSync"] == [1]
            await restart_controllers(found, older)
            await found.until(inSync=[1])
            assert await found.sent(producer, "by the table that it has now") < 10.0
            await found.kill(first)
            found.network.heal()
            await found.start(second) if not is_away else found.start_later(second)
            await trio.sleep(30)
            assert not found.acting(), "the slave lacks messages"
            await found.start(first)
            assert await found.master() is first
            await found.until(inSync=[1, 2])
            await trio.sleep(1)
            assert found.stored(first) == found.stored(second) == found.acknowledged


async def test_a_slave_knows_that_it_is_in_sync_no_more_when_the_table_went_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The master dies before it can say so."""
    async with controlled_set(2, replica_lag_ms=2_000) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        older = images(found)
        found.network.partition(first.host, second.host)
        async with client.producer("P") as producer:
            await found.sent(producer, "without the slave")
            await trio.sleep(1)
            for controller in found.controllers:
                await controller.stop(found.pauses)
            await found.kill(first)
            await restart_controllers(found, older)
            await found.until(inSync=[1])
            await trio.sleep(30)
            assert not found.acting(), "the slave lacks messages"
            found.network.heal()
            await found.start(first)
            assert await found.master() is first
            assert set(found.acknowledged) <= set(found.stored(first))


async def test_an_election_that_controllers_forgot_holds_once_all_replicas_were_heard(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3, replica_lag_ms=2_000) as (found, client):
        first = found.nodes[0]
        await found.begin(client)
        older = images(found)
        async with client.producer("P") as producer:
            await found.kill(first)
            await found.sent(producer, "by another master")
            master = await found.master()
            await restart_controllers(found, older)
            await trio.sleep(20)
            assert not found.acting()  # one of a later epoch may be the master, which is away
            found.network.heal()
            await found.start(first)
            with trio.fail_after(30):
                while (await found.status())["epoch"] < 2:
                    await trio.sleep(0.1)
            assert await found.master() is master
            await found.until(inSync=[1, 2, 3])
            await found.sent(producer, "and goes on")
            await trio.sleep(1)
            assert all(found.stored(node) == found.acknowledged for node in found.nodes)


async def restart_all_with_an_old_copy(found: Set, copy: MemoryDisk) -> tuple[Node, Node]:
    """All brokers and controllers lose power; the second starts on `copy`, the first is away yet."""
    first, second = found.nodes
    disks = images(found)
    await found.kill(first)
    await found.kill(second, left=copy)
    await restart_controllers(found, disks)
    found.network.heal()
    await found.start(second)
    return first, second


async def test_after_a_restart_of_all_an_old_copy_that_comes_first_waits_for_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        async with client.producer("P") as producer:
            await found.sent(producer, "in the copy")
            await trio.sleep(1)
            copy = found.nodes[1].disk.image(0.5)
            for number in range(20):
                await found.sent(producer, f"not in the copy {number}")
            first, second = await restart_all_with_an_old_copy(found, copy)
            await trio.sleep(8)  # longer than a lease
            assert not found.acting()
            await found.start(first)
            assert await found.master() is first
            await found.until(inSync=[1, 2])
            await trio.sleep(1)
            assert found.stored(first) == found.stored(second) == found.acknowledged


async def test_what_was_confirmed_is_in_the_journal_and_an_old_copy_is_never_elected(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        copy = found.nodes[1].disk.image(0.5)
        async with client.producer("P") as producer:
            await found.sent(producer, "not in the copy")
            await trio.sleep(evidence.SAVE_SECONDS + 1)
            first, _ = await restart_all_with_an_old_copy(found, copy)
            await trio.sleep(60)
            assert not found.acting()
            await found.start(first)
            assert await found.master() is first
            assert found.stored(first) == found.acknowledged


async def test_the_only_copy_of_what_was_confirmed_is_set_aside_and_not_cut(
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(evidence, "SAVE_SECONDS", math.inf)
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        async with client.producer("P") as producer:
            await found.sent(producer, "in the copy")
            await trio.sleep(1)
            copy = found.nodes[1].disk.image(0.5)
            for number in range(20):
                await found.sent(producer, f"not in the copy {number}")
            await trio.sleep(11)  # until what is confirmed is saved beside the log, too
            first, second = await restart_all_with_an_old_copy(found, copy)
            assert await found.master() is second  # the first is away for longer than 10 s
            await found.sent(producer, "after it")
            await found.start(first)
            await found.until(inSync=[1, 2])
            await trio.sleep(1)
            assert found.stored(first) == found.stored(second) == ["in the copy", "after it"]
            assert first.broker is not None
            store = first.broker.store
            assert store.disk.exists(store.aside)
            kept = b"".join(
                store.disk.load(f"{store.aside}/{name}") or b"" for name in store.disk.list(store.aside)
            )
            assert b"not in the copy 19" in kept
            assert [one.message for one in caplog.records if "MESSAGES WERE LOST" in one.message]


async def test_half_a_record_that_a_power_cut_took_is_no_lost_disk(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, replica_lag_ms=60_000) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        assert second.broker is not None
        half = trio.Event()
        before = second.broker.store.max_physical_offset

        def written(*path: str) -> None:
            assert second.broker is not None
            if second.broker.store.max_physical_offset > before + 40_000:
                second.disk.on_change = None
                found.network.partition(first.host, second.host)
                half.set()

        async with client.producer("P") as producer, trio.open_nursery() as nursery:
            await found.sent(producer, "both have it")
            second.disk.on_change = written
            nursery.start_soon(found.send, producer, random.Random(1).randbytes(120_000).hex())
            with trio.fail_after(10):
                await half.wait()
            await trio.sleep(2)  # heartbeats say how far the slave is
            reached = second.broker.store.flushed_offset
            assert before + 40_000 < reached < before + 120_000
            await found.kill(second)
            await found.kill(first)
            found.network.heal()
            await found.start(second)
            with trio.fail_after(30):
                assert await found.master() is second
            assert found.stored(second) == ["both have it"]
            nursery.cancel_scope.cancel()


async def test_after_a_restart_of_everything_a_table_that_went_back_takes_what_brokers_had_written_down(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The slave had heard that it is in sync no more, and comes alone; the table says that it is."""
    async with controlled_set(2, replica_lag_ms=2_000) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        await found.until(inSync=[1, 2])
        older = images(found)
        async with client.producer("P") as producer:
            found.network.partition(first.host, second.host)  # it hears the controllers
            await found.sent(producer, "without the slave")
            await found.until(inSync=[1])
            await trio.sleep(3)
            for node in (first, second):
                left = node.disk.copy()
                found.cut_off(node)
                await found.kill(node, left=left)
            found.network.heal()
            await restart_controllers(found, older)
            found.start_later(second)
            await trio.sleep(40)
            assert not found.acting(), "the slave lacks messages"
            await found.start(first)
            assert await found.master() is first
            await found.until(inSync=[1, 2])
            await trio.sleep(1)
            assert found.stored(first) == found.stored(second)
            assert set(found.acknowledged) <= set(found.stored(first))


async def test_a_set_that_was_removed_under_an_old_table_is_begun_again_by_the_one_that_has_the_most(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The runbook of lost controllers: the second replica knows an epoch that the table has not."""
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        older = images(found)
        async with client.producer("P") as producer:
            await found.kill(first)
            await found.sent(producer, "in epoch 2")
            await restart_controllers(found, older)
            await trio.sleep(5)
            assert not found.acting()
            await found.end(second)
            await trio.sleep(5)
            for number in (2, 1):
                assert await remove(found, number) == ""
            for node in (first, second):
                node.disk.remove(f"{found.store_config.store_path_root_dir}/{FILE}")
            first.is_founder, second.is_founder = False, True
            found.network.heal()
            with trio.fail_after(60):
                await found.start(second)
            assert await found.master() is second
            assert await found.sent(producer, "alone") < 10
            await found.start(first)
            await found.until(inSync=[1, 2])
            await found.sent(producer, "with both")
        await trio.sleep(1)
        assert found.stored(first) == found.stored(second) == found.acknowledged
