"""Disks whose syncs neither end nor fail, under a set with controllers: who takes messages then, and when."""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.disk_work import SLOW_SECONDS, USUAL_MOST, DiskWork
from rmq.broker.runtime.service import ROLE_SECONDS
from rmq.broker.runtime.startup import DISK_SECONDS
from rmq.errors import RmqError, StoreError
from tests.sim.pauses import pausable
from tests.sim.real_brokers.brokers import Node, controlled_set

TAKEN_SECONDS = 5.0


def _hangs(node: Node) -> str:
    assert node.broker is not None
    return node.broker.admin.runtime(0)["diskHangs"]


@pytest.mark.parametrize("outcome", ["ends", "fails"])
@pytest.mark.parametrize("part", ["", "commitlog"])
async def test_a_master_whose_syncs_hang_gives_way_and_acknowledges_nothing_when_they_end(
    autojump_clock: trio.testing.MockClock, part: str, outcome: str
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(10):
                assert await found.send(producer, f"a{number}")
            first.has_bad_disk = True
            first.disk.hang(part)
            assert await found.sent(producer, "first after") < TAKEN_SECONDS
            assert await found.master() is second
            await trio.sleep(30 - TAKEN_SECONDS)
            assert "a sync of the commit log" in _hangs(first)
            before = first.broker
            assert before is not None
            acknowledged = before.acknowledgement.disk.awaited, before.acknowledgement.disk.acks
            assert before.role.manager is not None
            assert not before.role.manager.has_lease()
            safe = before.role.manager.ack_limit()
            if outcome == "fails":
                first.disk.fail("sync", "commitlog", math.inf)
            first.disk.resume()
            await trio.sleep(1)
            assert before.role.manager.ack_limit() == safe, acknowledged
            assert await found.sent(producer, "second after") < 1
            if outcome == "fails":
                assert first.stop is None  # it has ended: the next start looks what is there
                first.disk.heal()
                await found.start(first)
            await found.until(master=2, inSync=[1, 2])
            assert await found.send(producer, "both")
        await trio.sleep(2)
        assert found.stored(first) == found.stored(second)
        assert set(found.acknowledged) <= set(found.stored(second))
        assert _hangs(first) == ""


async def test_a_master_that_gave_way_ends_when_its_disk_never_comes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            first.has_bad_disk = True
            first.disk.hang()
            await found.sent(producer, "taken")
            assert await found.master() is second
            await trio.sleep(ROLE_SECONDS - 10)
            assert first.stop is not None
            await trio.sleep(20)
            assert first.stop is None
            first.disk.heal()
            await found.start(first)
            await found.until(master=2, inSync=[1, 2])
        await trio.sleep(2)
        assert found.stored(first) == found.stored(second)


@pytest.mark.parametrize("has_given_way", [False, True])
async def test_a_broker_that_is_told_to_stop_does_not_wait_for_a_disk_that_hangs(
    autojump_clock: trio.testing.MockClock, has_given_way: bool
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            first.has_bad_disk = True
            first.disk.hang()
            if has_given_way:
                await found.sent(producer, "taken")
            told_at = trio.current_time()
            with trio.fail_after(2 * DISK_SECONDS):
                await found.end(first)
            assert trio.current_time() - told_at < DISK_SECONDS + 5
            await found.sent(producer, "taken by the other")
            assert await found.master() is second


async def test_a_master_that_is_alone_stays_and_says_why(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with controlled_set(2, replica_lag_ms=1000) as (found, client):
        first, second = found.nodes
        await client.admin.create_topic("T", broker="s", queues=1)
        await found.kill(second)
        await found.until(inSync=[1])
        async with client.producer("P") as producer:
            assert await found.send(producer, "before")
            first.disk.hang()
            with caplog.at_level(logging.ERROR, "rmq.broker"):
                for _ in range(10):
                    assert not await found.send(producer, "not acknowledged")
                    await trio.sleep(1)
            assert "no other replica is in sync to be master: a sync of the commit log" in caplog.text
            assert (await found.status())["epoch"] == 1
            first.disk.heal()
            assert await found.sent(producer, "taken") < 1


async def test_a_follower_whose_syncs_hang_holds_messages_for_its_lag_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, replica_lag_ms=4000) as (found, client):
        _, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            second.disk.hang()
            assert 2 < await found.sent(producer, "held") < 6
            await found.until(master=1, inSync=[1])
            assert "a sync of the commit log" in _hangs(second)
            second.disk.heal()
            await found.until(master=1, inSync=[1, 2])


async def test_a_follower_whose_syncs_hang_is_not_elected(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(3, replica_lag_ms=30_000) as (found, client):
        first, second, third = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "before")
            second.disk.hang()
            assert not await found.send(producer, "held")
            await trio.sleep(2)
            await found.kill(first)
            assert await found.sent(producer, "taken") < 8
            assert await found.master() is third  # of two with the same log the lower number is taken else
            second.disk.heal()
            await found.until(master=3, inSync=[2, 3])


async def test_who_is_elected_and_hangs_before_it_leads_is_followed_by_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3, replica_lag_ms=30_000) as (found, client):
        first, second, third = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            assert await found.send(producer, "before")
            await found.end(first)
            await found.until(master=2)
            second.disk.hang()  # in the middle of the change of its role
            assert await found.sent(producer, "taken") < 10
            assert await found.master() is third
            second.disk.heal()
            await found.until(master=3, inSync=[2, 3])


async def test_the_loop_does_not_wait_for_a_lock_that_a_hanging_sync_holds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A follower whose master changes meanwhile: it cuts its log when the disk is back."""
    async with controlled_set(3, replica_lag_ms=1000) as (found, client):
        first, _, third = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            third.disk.hang()
            await found.sent(producer, "held")
            await found.until(inSync=[1, 2])
            assert await found.want(2)
            await found.until(master=2)
            assert await found.sent(producer, "taken") < 2
            await trio.sleep(20)
            third.disk.heal()
            await found.until(master=2, inSync=[1, 2, 3])
            assert await found.send(producer, "all")
        await trio.sleep(2)
        assert found.stored(first) == found.stored(third)


@pytest.mark.parametrize("leads", [True, False])
async def test_a_controller_whose_journal_hangs_does_not_hold_the_others(
    autojump_clock: trio.testing.MockClock, leads: bool
) -> None:
    """A controller syncs in its event loop, and a hanging sync stops the whole loop, like a paused
    machine."""
    with pausable() as pauses:
        async with controlled_set(2) as (found, client):
            found.pauses = pauses
            first, second = found.nodes
            await found.begin(client)
            leading = await found.leading()
            one = next(one for one in found.controllers if (one.host == leading) is leads)
            one.disk.on_sync = lambda path: pauses.pause(one.host)
            async with client.producer("P") as producer:
                assert await found.sent(producer, "nothing changes") < 0.5
                await found.kill(first)  # somebody has to write down who is elected
                assert await found.sent(producer, "taken") < 10
                assert await found.master() is second
                one.disk.on_sync = None
                pauses.resume(one.host)
                await trio.sleep(5)
                assert await found.sent(producer, "and on") < 0.5


def _work(times: list[float]) -> DiskWork:
    return DiskWork(lambda: times[0])


def test_a_disk_hangs_when_it_takes_much_longer_than_usual() -> None:
    times = [100.0]
    work = _work(times)
    first = work.begin("a sync has been under way")
    times[0] += SLOW_SECONDS
    assert work.hangs() == ""
    times[0] += 0.5
    assert work.hangs() == "a sync has been under way for 2 s"
    assert work.oldest() == (SLOW_SECONDS + 0.5, "a sync has been under way")
    work.end(first)
    assert work.hangs() == ""
    work.begin("another has been under way")
    times[0] += 2 * SLOW_SECONDS
    assert work.hangs() == ""  # it was as slow before
    times[0] += SLOW_SECONDS
    assert "another" in work.hangs()


def test_no_hang_is_usual() -> None:
    times = [100.0]
    work = _work(times)
    first = work.begin("a sync has been under way")
    times[0] += 1000
    work.end(first)
    work.begin("a sync has been under way")
    times[0] += SLOW_SECONDS + USUAL_MOST + 0.1
    assert work.hangs()


async def test_what_is_given_up_is_said(autojump_clock: trio.testing.MockClock) -> None:
    work = DiskWork(trio.current_time)

    async def forever(work: Any) -> None:
        await trio.sleep_forever()

    work.run = forever
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_given_up, work)
        await trio.sleep(1)
        work.give_up_in(10)
        nursery.start_soon(_given_up, work)
        work.give_up_in(20)  # the earlier one holds
        nursery.cancel_scope.cancel()  # what has begun is ended
    assert trio.current_time() == pytest.approx(11.0)


async def _given_up(work: DiskWork) -> None:
    with pytest.raises(StoreError, match="does not answer"):
        await work.do(lambda: None, "a sync has been under way")


async def test_a_follower_whose_topics_cannot_be_saved_waits_for_that_and_syncs_nothing_meanwhile(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower asked for a sync at the end of each sync: time stood still in a simulation, and a core was
    busy."""
    async with controlled_set(2) as (found, client):
        await found.begin(client)
        second = found.nodes[1]
        second.disk.fail("write", "topics", math.inf)
        with suppress(RmqError):  # it is answered when the follower has saved it, or is waited for no more
            await client.admin.create_topic("New", broker="s", queues=1)
        async with client.producer("P") as producer:
            await found.send(producer, "m")
        await trio.sleep(1)
        assert second.broker is not None
        assert second.broker.topics.unsaved
        syncs = []
        flush = second.broker.store.flush

        def counted() -> int:
            syncs.append(trio.current_time())
            assert len(syncs) < 100, "it syncs on and on"
            return flush()

        monkeypatch.setattr(second.broker.store, "flush", counted)
        found.network.cut(second.host)
        await trio.sleep(10)
        assert second.broker.topics.unsaved
        second.disk.heal()
        await found.until(inSync=[1, 2])
        assert not second.broker.topics.unsaved
