"""Replicas of a controlled set whose logs are damaged: they come back as new ones, and nothing is deleted."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from attrs import evolve

from rmq.store.audit.audit import check
from rmq.store.config import DivergedLog
from rmq.testing.cluster import STORE
from tests.sim.real_brokers.brokers import Node, Set, controlled_set

FOLDER = "/store"


def log_files(node: Node, folder: str = f"{FOLDER}/commitlog") -> dict[str, bytes]:
    return {name: node.disk.load(f"{folder}/{name}") or b"" for name in node.disk.list(folder)}


def lose_end(node: Node, share: float = 0.3) -> None:
    """Make so much of the log's end zeros, as a bad copy of the folder has it."""
    name, data = max((one for one in log_files(node).items() if any(one[1])), key=lambda one: one[0])
    used = len(data.rstrip(b"\0"))
    segment = node.disk.open(f"{FOLDER}/commitlog/{name}", len(data))
    segment.clear(int(used * (1 - share)))
    segment.sync()


async def start_and_end(found: Set, node: Node) -> None:
    """Start a broker that ends by itself, as its store cannot be opened."""
    node.has_bad_disk = True
    found.start_later(node)
    with trio.fail_after(60):
        await node.ended.wait()
    node.stop = None
    node.has_bad_disk = False


@pytest.mark.parametrize("stop", ["all are killed", "it is stopped in order"])
async def test_a_replica_whose_log_lost_its_end_comes_back_as_a_new_one(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, stop: str
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(90):
                assert await found.send(producer, f"a{number}")
            if stop == "all are killed":
                for node in (second, first):  # by kill -9: what `abort` says is exact
                    left = node.disk.copy()
                    found.cut_off(node)
                    await found.kill(node, left=left)
                found.network.heal()
            else:
                await found.end(second)
            lose_end(second)
            damaged = log_files(second)

            await start_and_end(found, second)  # it comes first, and is in sync by the table
            assert "nothing of it is deleted" in caplog.text
            assert log_files(second, f"{FOLDER}/aside/commitlog") == damaged
            found.start_later(second)
            if stop == "all are killed":
                await found.start(first)
            await found.until(inSync=[1, 3])
            assert await found.master() is first
            await found.sent(producer, "after")
            await trio.sleep(2)
            assert set(found.acknowledged) <= set(found.stored(first))
            assert found.log_digest(first) == found.log_digest(second)
        await found.end(second)
        await found.end(first)
        assert check(second.disk, FOLDER).is_clean


async def test_a_replica_whose_first_log_file_is_gone_comes_back_as_a_new_one(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    small = evolve(STORE, mapped_file_size_commit_log=8192)
    async with controlled_set(2, store_config=small) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(90):
                assert await found.send(producer, f"a{number}")
            await found.end(second)
            second.disk.remove(f"{FOLDER}/commitlog/{0:020d}")
            await start_and_end(found, second)
            assert "the log begins here, but the checkpoint says that it began at 0" in caplog.text
            found.start_later(second)
            await found.until(inSync=[1, 3])
            await found.sent(producer, "after")
            await trio.sleep(2)
            assert found.log_digest(first) == found.log_digest(second)


def change_end(node: Node, back: int = 3) -> None:
    """Change a byte of the last record's properties, which no CRC covers."""
    name, data = max((one for one in log_files(node).items() if any(one[1])), key=lambda one: one[0])
    at = len(data.rstrip(b"\0")) - back
    node.disk.flip(f"{FOLDER}/commitlog/{name}", at)


@pytest.mark.parametrize("where", ["slave", "master"])
@pytest.mark.parametrize("policy", [DivergedLog.stop, DivergedLog.aside])
async def test_a_follower_whose_end_is_not_its_masters_does_not_come_in_sync(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    where: str,
    policy: DivergedLog,
) -> None:
    async with controlled_set(2) as (found, client):
        found.store_config = evolve(found.store_config, ha_diverged_log=policy)
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(20):
                assert await found.send(producer, f"a{number}")
            await found.end(second)
            await found.until(inSync=[1])
            change_end(second if where == "slave" else first)
            kept = log_files(second)
            await found.start(second)
            await trio.sleep(10)
            await found.sent(producer, "goes on")
            text = "is not the same in our log and in the master's"
            assert text in caplog.text
            if policy is DivergedLog.stop:
                assert (await found.status())["inSync"] == [1]
                assert "STOPPED following" in caplog.text
                assert log_files(second) == kept
            else:
                await found.until(inSync=[1, 2])
                assert log_files(second, f"{FOLDER}/aside/commitlog") == kept
                await trio.sleep(2)
                assert found.log_digest(first) == found.log_digest(second)


async def test_the_only_copy_in_sync_stays_where_it_is(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            await found.end(second)
            await found.until(inSync=[1])
            for number in range(90):
                assert await found.send(producer, f"a{number}")
        await found.end(first)
        lose_end(first)
        damaged = log_files(first)
        for _ in range(2):
            await start_and_end(found, first)
            assert log_files(first) == damaged
            assert not first.disk.exists(f"{FOLDER}/aside")
        assert "may be the only copy and stays" in caplog.text


async def test_a_second_damaged_log_waits_until_the_first_was_looked_at(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        _, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(90):
                assert await found.send(producer, f"a{number}")
        await found.end(second)
        lose_end(second)
        second.disk.replace(f"{FOLDER}/aside/commitlog/00000000000000000000", b"an earlier one")
        damaged = log_files(second)
        await start_and_end(found, second)
        assert log_files(second) == damaged


async def test_a_master_whose_log_is_deleted_under_it_gives_way(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(20):
                assert await found.send(producer, f"a{number}")
            first.has_bad_disk = True
            first.disk.remove(f"{FOLDER}/commitlog")
            assert not await found.send(producer, "not stored")
            while await found.master() is not second:
                await trio.sleep(0.1)
            await found.sent(producer, "after")
            assert "DELETED OR REPLACED while the broker runs" in caplog.text
            assert set(found.acknowledged) <= set(found.stored(second))
