"""Table files of a slave that are damaged: its master tells it the tables, and it does not lead before."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rmq.broker.tables.files import DAMAGE
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import RmqError
from rmq.protocol.bodies import TopicConfig
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.brokers import Set, controlled_set
from tests.unit.broker.replication.slaves import slave_on

from ..rig import Rig, send

TABLES = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset", "timerProgress")


def files(name: str, root: str = "/store") -> tuple[str, str]:
    return f"{root}/config/{name}.json", f"{root}/config/{name}.json.bak"


def damage(disk: MemoryDisk, name: str, text: bytes, root: str = "/store") -> None:
    for path in files(name, root):
        disk.replace(path, text)


def saved() -> Rig:
    """A broker that has saved each of the tables."""
    rig = Rig()
    rig.one(send("T", b"x"))
    rig.broker.topics.update(TopicConfig("made", 3, 3))
    for name in TABLES:
        rig.store.save_config(name, rig.broker.files._table(name).to_json())
    return rig


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("text", [b'{"a', b"[1]", b'{"x":'])
def test_a_slave_begins_without_a_damaged_table_and_saves_the_one_that_its_master_tells(
    name: str, text: bytes
) -> None:
    master = saved()
    disk = master.disk.copy()
    damage(disk, name, text)
    rig = slave_on(disk)
    assert rig.broker.files.awaited == {name}
    path, _ = files(name, rig.store.config.store_path_root_dir)
    assert (rig.disk.load(path), rig.disk.load(f"{path}.damaged")) == (text, text)
    with pytest.raises(DAMAGE):  # it would lead without the table
        Rig(disk=rig.disk.copy())

    if name in ("delayOffset", "timerProgress"):
        note = {"progress": master.broker.delivery.now()}
        rig.broker.followed.take(note)
        rig.broker.replica.take_note(note)
    else:
        rig.broker.followed.copy(name, master.broker.files._table(name).to_json())
    assert not rig.broker.files.awaited
    rig.store.save_configs(run_to_end(rig.broker.files.changed()))
    assert Rig(disk=rig.disk.copy()).broker.topics.get("made") is not None


def test_a_damaged_table_that_no_master_tells_ends_a_slave_as_before() -> None:
    disk = saved().disk.copy()
    damage(disk, "replication", b"[1]")
    with pytest.raises(RmqError):
        slave_on(disk)


async def test_a_replica_with_damaged_tables_comes_back_and_is_not_elected_before_it_has_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2, replica_lag_ms=60_000) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            await found.sent(producer, "before")
        await trio.sleep(8)
        await found.kill(second)
        for name in ("topics", "consumerOffset"):
            damage(second.disk, name, b'{"', found.store_config.store_path_root_dir)
        await found.kill(first)
        found.network.heal()
        found.start_later(second)
        await trio.sleep(15)
        assert second.broker is not None
        assert second.broker.files.awaited
        assert (await found.status())["inSync"] == [1, 2]
        assert not found.acting()
        found.start_later(first)
        assert await found.master() is first
        await _have_tables(found)
        await found.until(inSync=[1, 2])
        await trio.sleep(8)
        await found.kill(first)
        assert await found.master() is second
        assert second.broker is not None
        assert not second.broker.files.awaited


async def _have_tables(found: Set) -> None:
    with trio.fail_after(60):
        while (broker := found.nodes[1].broker) is None or broker.files.awaited:
            await trio.sleep(0.1)
