"""A master and its slave as whole services: what a slave keeps, whatever becomes of its master."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from rmq.broker.config import BrokerConfig
from rmq.broker.replication.sessions import MasterLog
from rmq.broker.runtime import service
from rmq.errors import RemoteProtocolError
from rmq.namesrv import service as namesrv
from rmq.namesrv.config import NamesrvConfig
from rmq.protocol.bodies import KVTable, TopicConfig
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.pool import Pool
from rmq.store.config import BrokerRole, DivergedLog, Durability, StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork
from tests.unit.broker.replication.slaves import slave

from ..rig import Rig, pull, send
from .logs import follower_of

MASTER, SLAVE, HA = "127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10912"


PORTS = {MASTER: 10911, SLAVE: 10921}


FILE = 1 << 16


SMALL: dict[str, Any] = {
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": FILE,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 64,
    "max_index_num": 1024,
}


@define
class Pair:
    """A network with a name server, on which brokers are started and stopped."""

    nursery: trio.Nursery
    network: MemoryNetwork
    pool: Pool
    names: str
    start_ms: int = field(factory=lambda: time.time_ns() // 1_000_000)
    _running: dict[str, tuple[trio.Event, trio.Event]] = field(factory=dict)
    _numbers: Any = field(factory=itertools.count)

    async def start(
        self, address: str, disk: MemoryDisk, *, broker: dict[str, Any] | None = None, **store: Any
    ) -> None:
        config: dict[str, Any] = {
            "broker_name": "b",
            "listen_port": PORTS[address],
            "vip_channel_enabled": False,
            "namesrv_addr": self.names,
        }
        if store.get("broker_role") is BrokerRole.SLAVE:
            config["broker_id"] = 1
        stop, done = trio.Event(), trio.Event()
        self._running[address] = stop, done
        run = partial(
            service.run,
            BrokerConfig(**config | (broker or {})),
            StoreConfig(**SMALL | store),
            network=self.network,
            disk=disk,
            now_ms=lambda: self.start_ms + int(trio.current_time() * 1000),
            stop=stop,
        )

        async def live(*, task_status: Any) -> None:
            try:
                await run(task_status=task_status)
            finally:
                done.set()

        await self.nursery.start(live)

    async def master(self, disk: MemoryDisk, **changes: Any) -> None:
        await self.start(MASTER, disk, **{"durability": Durability.replicated, **changes})

    async def slave(self, disk: MemoryDisk, **changes: Any) -> None:
        await self.start(SLAVE, disk, **{"broker_role": BrokerRole.SLAVE, **changes})

    async def stop(self, address: str) -> None:
        stop, done = self._running.pop(address)
        stop.set()
        await done.wait()

    async def send(self, count: int, size: int = 200, *, codes: tuple[int, ...] = (0,)) -> list[bytes]:
        """Send to the master; what came of it must be one of `codes`."""
        sent = []
        for _ in range(count):
            body = b"%06d" % next(self._numbers) + b"x" * size
            answer = await self.pool.call(MASTER, send("Orders", body), 10)
            assert answer.code in codes, answer
            sent.append(body)
        return sent

    async def figures(self, address: str) -> dict[str, str]:
        answer = await self.pool.call(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), 5)
        return dict(KVTable.from_json(answer.body).table)

    async def reached(self, address: str) -> int:
        return int((await self.figures(address))["commitLogMaxOffset"])

    async def alike(self, seconds: float = 60) -> None:
        """Wait until the slave has the whole log of its master."""
        with trio.fail_after(seconds):
            while await self.reached(MASTER) != await self.reached(SLAVE):
                await trio.sleep(1)

    async def stopped(self, seconds: float = 60) -> str:
        """Wait until the slave reports that it has stopped; return the reason."""
        with trio.fail_after(seconds):
            while not (state := (await self.figures(SLAVE))["replication"]).startswith("stopped: "):
                await trio.sleep(1)
        return state

    async def close(self) -> None:
        for address in list(self._running):
            await self.stop(address)
        self.nursery.cancel_scope.cancel()


Pairs = Callable[[], AbstractAsyncContextManager[Pair]]


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Pair]:
        network = MemoryNetwork(1)
        async with trio.open_nursery() as nursery:
            names = NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"))
            (address,) = await nursery.start(partial(namesrv.run, names, network=network))
            async with Pool(network, ClientOnlyEndpoint()) as pool:
                pair = Pair(nursery, network, pool, address)
                yield pair
                await pair.close()

    return opened


def bodies(disk: MemoryDisk, topic: str = "Orders", root: str = "/store") -> list[bytes]:
    """The bodies of a topic in a store's folder, in the order of the log."""
    config = StoreConfig(**SMALL | {"store_path_root_dir": root})
    store = Store(disk.copy(), config, store_host=bytes(8), now_ms=lambda: 0)
    store.load(rebuild=True)
    units = [
        unit
        for name, queue_id in store.queues()
        if name == topic
        for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id))
        if (unit := store.unit(topic, queue_id, offset)) is not None
    ]
    found = [store.message(unit[0]) for unit in sorted(units)]
    return [message.body for message in found if message is not None]


async def test_an_empty_master_wipes_no_slave(
    autojump_clock: MockClock, pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that lost its disk and was started empty; its slave has all that was acknowledged."""
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1))
        await pair.slave(kept)
        await trio.sleep(20)
        sent = await pair.send(50)
        await trio.sleep(20)
        await pair.stop(MASTER)
        await pair.master(MemoryDisk(3))
        assert "another one than ours" in await pair.stopped()
        assert "Master and slaves" not in caplog.text  # that is the doctor's
        assert "STOPPED following master" in caplog.text
        assert "haDivergedLog" in caplog.text
        await pair.send(5, codes=(11,))  # it is no slave of that one: SLAVE_NOT_AVAILABLE
        answer = await pair.pool.call(SLAVE, pull("Orders"), 5)
        assert answer.code == 0
        topics = await pair.pool.call(SLAVE, Command.request(RequestCode.GET_ALL_TOPIC_CONFIG), 5)
        assert b"Orders" in topics.body
    assert bodies(kept) == sent


async def test_a_master_whose_log_went_but_not_its_id_wipes_no_slave(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    """An operator removes the log's folder, or lays an old backup into it."""
    async with pairs() as pair:
        first, kept = MemoryDisk(1), MemoryDisk(2)
        await pair.master(first)
        await pair.slave(kept)
        await trio.sleep(20)
        sent = await pair.send(20)
        await trio.sleep(20)  # until the slave was told that they are safe
        await pair.stop(MASTER)
        backup = first.copy()
        await pair.master(first)
        await trio.sleep(20)
        sent += await pair.send(20)
        await trio.sleep(20)
        await pair.stop(MASTER)
        await pair.master(backup)
        assert "may have been acknowledged" in await pair.stopped()
        await pair.stop(SLAVE)
        await pair.slave(kept)  # it knows that after a restart, too
        await pair.stopped()
        await pair.stop(MASTER)
        await pair.master(first)  # the right disk: it goes on by itself
        await trio.sleep(20)
        assert (await pair.figures(SLAVE))["replication"] == "following"
    assert bodies(kept) == sent


async def test_an_operator_may_give_a_log_up_and_it_is_kept_aside(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1))
        await pair.slave(kept)
        await trio.sleep(20)
        old = await pair.send(20)
        await pair.stop(MASTER)
        fresh = MemoryDisk(3)
        await pair.master(fresh)
        await pair.stopped()
        new = await pair.send(5, codes=(11,))
        await pair.stop(SLAVE)
        await pair.slave(kept, ha_diverged_log=DivergedLog.aside)
        await pair.alike()
        figures = await pair.figures(SLAVE)
        assert (figures["replication"], figures["logAside"]) == ("following", "/store/aside/commitlog")
        await pair.stop(MASTER)
        await pair.master(MemoryDisk(4))  # once more: the folder is taken
        assert "cannot be set aside" in await pair.stopped()
    assert bodies(kept) == new
    assert bodies(kept, root="/store/aside") == old


async def test_what_nobody_was_told_of_is_cut(
    autojump_clock: MockClock, pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut takes a master's end that it had not synced, so that no producer was told of it."""
    async with pairs() as pair:
        first, kept = MemoryDisk(1), MemoryDisk(2)
        await pair.master(first)
        await pair.slave(kept)
        await trio.sleep(20)
        sent = await pair.send(20)
        await trio.sleep(20)
        images: list[MemoryDisk] = []

        def cut_power(path: str) -> None:
            if not images and "commitlog" in path:
                images.extend(first.image(seed) for seed in range(8))

        first.on_sync = cut_power
        await pair.send(1)  # let us say that the power went before it was acknowledged
        await pair.stop(MASTER)
        assert len(bodies(kept)) == 21
        left = next(image for image in images if len(bodies(image)) == 20)
        await pair.master(left)
        await trio.sleep(20)
        assert "no later message was acknowledged" in caplog.text
        sent += await pair.send(5)
    assert bodies(kept) == bodies(left) == sent


async def test_a_slave_that_was_away_too_long_begins_anew_at_its_master_s_start(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    async with pairs() as pair:
        first, kept = MemoryDisk(1), MemoryDisk(2)
        await pair.master(first, file_reserved_time=1)
        await pair.slave(kept)
        await trio.sleep(20)
        old = await pair.send(20)
        await pair.stop(SLAVE)
        await pair.send(400, codes=(11,))
        pair.start_ms += 3 * 3_600_000
        await pair.send(400, codes=(11,))
        await pair.pool.call(MASTER, Command.request(RequestCode.DELETE_EXPIRED_COMMITLOG), 5)
        assert int((await pair.figures(MASTER))["commitLogMinOffset"]) > 0
        await pair.slave(kept)
        await pair.alike()
        low = (await pair.figures(MASTER))["commitLogMinOffset"]
        figures = await pair.figures(SLAVE)
        assert (figures["commitLogMinOffset"], figures["replication"]) == (low, "following")
        await pair.send(3)
    assert bodies(kept) == bodies(first)
    assert bodies(kept, root="/store/aside") == old


async def test_a_new_slave_gets_all_that_its_master_has(autojump_clock: MockClock, pairs: Pairs) -> None:
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1))
        sent = await pair.send(700, codes=(11,))
        assert await pair.reached(MASTER) > 2 * FILE
        await pair.slave(kept)
        await pair.alike()
    assert bodies(kept) == sent


async def test_a_slave_far_behind_gets_no_more_than_it_may_in_a_second(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    near, rate = 20_000, 10_000
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1), ha_slave_fallbehind_max=near, ha_catch_up_rate=rate)
        sent = await pair.send(700, codes=(11,))
        total = await pair.reached(MASTER)
        began = trio.current_time()
        await pair.slave(kept)
        await pair.alike()
        seconds = trio.current_time() - began
        frame = 32_768  # the last one may go beyond what is near
        assert (total - near - frame) / rate <= seconds <= (total - near) / rate + 5
    assert bodies(kept) == sent


async def test_with_ha_master_address_only_a_diverged_slave_is_noticed(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    """Such a slave does not learn the address at which its master answers requests."""
    async with pairs() as pair:
        kept = MemoryDisk(2)
        alone = {"broker": {"namesrv_addr": ""}, "ha_master_address": HA}
        await pair.master(MemoryDisk(1))
        await pair.slave(kept, **alone)
        await trio.sleep(20)
        sent = await pair.send(20)
        await trio.sleep(20)
        topics = await pair.pool.call(SLAVE, Command.request(RequestCode.GET_ALL_TOPIC_CONFIG), 5)
        assert b"Orders" in topics.body  # tables are copied as well
        await pair.stop(MASTER)
        await pair.master(MemoryDisk(3))
        await pair.send(60, codes=(11,))  # longer than the slave's log
        await pair.stopped()
        await pair.send(1, codes=(11,))
    assert bodies(kept) == sent


async def test_a_white_listed_slave_follows_again_after_its_restart(
    autojump_clock: MockClock, pairs: Pairs, tmp_path: Path
) -> None:
    """The slave has no account, and may copy tables only."""
    path = tmp_path / "plain_acl.yml"
    path.write_text("globalWhiteRemoteAddresses: [127.0.0.1]\naccounts: []\n")
    acl = {"broker": {"acl_enable": True, "acl_file": str(path)}}
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1), **acl)
        await pair.slave(kept)
        await trio.sleep(20)
        sent = await pair.send(5)
        await pair.stop(SLAVE)
        sent += await pair.send(5, codes=(11,))
        await pair.slave(kept)
        await trio.sleep(20)
        assert (await pair.figures(SLAVE))["replication"] == "following"
        sent += await pair.send(5)
    assert bodies(kept) == sent


async def test_a_slave_at_sync_flush_reports_what_is_on_its_disk(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1))
        await pair.slave(kept, durability=Durability.disk)
        await trio.sleep(20)
        sent = await pair.send(3)
        kept.fail("sync", "commitlog", times=4)
        sent += await pair.send(1, codes=(12,))  # FLUSH_SLAVE_TIMEOUT
        await trio.sleep(30)
        sent += await pair.send(1)
        assert bodies(kept.image(0.5)) == sent


async def test_a_slave_that_links_again_first_syncs_what_it_has(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    """The master goes on at the first report of the slave; after a report of less it would send the rest
    again."""
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1))
        await pair.slave(kept, durability=Durability.disk)
        await trio.sleep(20)
        sent = await pair.send(3)
        kept.fail("sync", "commitlog", times=1 << 10)
        sent += await pair.send(1, codes=(12,))
        for stream in list(pair.network._streams):
            if HA in (stream.peer, stream.local):
                stream.break_off()
        await trio.sleep(30)
        kept.heal()
        await trio.sleep(60)
        sent += await pair.send(1)
        assert bodies(kept.image(0.5)) == sent


async def test_a_slave_whose_master_has_gone_does_not_say_that_it_follows(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    async with pairs() as pair:
        await pair.master(MemoryDisk(1))
        await pair.slave(MemoryDisk(2))
        await trio.sleep(20)
        assert (await pair.figures(SLAVE))["replication"] == "following"
        await pair.stop(MASTER)
        await trio.sleep(20)
        assert (await pair.figures(SLAVE))["replication"] == "not connected"


async def test_tables_of_another_log_are_not_copied(autojump_clock: MockClock) -> None:
    """A master that is gone, and another one at its address before the link has noticed."""
    rig, answers = slave(), [None, "other", "mine"]
    rig.broker.topics.update(TopicConfig("Kept"))
    empty = Rig().broker.topics.to_json()

    async def call(address: str, request: Command, seconds: float) -> Command:
        log_id = answers.pop(0)
        return request.reply(header={} if log_id is None else {"rmqLogId": log_id}, body=empty)

    pool: Any = SimpleNamespace(call=call)
    follower = follower_of(rig, pool)
    follower._greeting = MasterLog("mine", 0, 0)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="another log"):
            await follower._copy_table("topics", RequestCode.GET_ALL_TOPIC_CONFIG)
        assert "Kept" in rig.broker.topics.table
    await follower._copy_table("topics", RequestCode.GET_ALL_TOPIC_CONFIG)
    assert "Kept" not in rig.broker.topics.table


async def test_delay_progress_comes_with_the_log_or_from_a_rocketmq_master_by_a_table(
    autojump_clock: MockClock,
) -> None:
    rig = slave()
    body = b'{"offsetTable":{"1":7}}'

    async def call(address: str, request: Command, seconds: float) -> Command:
        return request.reply(header={"rmqLogId": "mine"}, body=body)

    pool: Any = SimpleNamespace(call=call)
    follower = follower_of(rig, pool)
    for greeting, progress in ((MasterLog("mine", 0, 0), 0), (None, 7)):
        follower._greeting = greeting
        await follower._copy_table("delayOffset", RequestCode.GET_ALL_DELAY_OFFSET)
        assert rig.broker.schedule.progress[1] == progress


async def test_a_slave_says_at_once_what_it_has(autojump_clock: MockClock, pairs: Pairs) -> None:
    """The slave does not wait for its next report, every five seconds: producers wait for this report."""
    async with pairs() as pair:
        await pair.master(MemoryDisk(1))
        await pair.slave(MemoryDisk(2))
        await trio.sleep(20)
        for _ in range(5):
            await trio.sleep(1.3)
            began = trio.current_time()
            await pair.send(1)
            assert trio.current_time() - began < 0.1


async def test_a_slave_made_master_and_an_old_master_made_slave(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    """Both have the same log id; the old master's end, which nobody else has, is not cut."""
    async with pairs() as pair:
        one, other = MemoryDisk(1), MemoryDisk(2)
        await pair.master(one)
        await pair.slave(other)
        await trio.sleep(20)
        sent = await pair.send(10)
        await pair.stop(SLAVE)
        alone = await pair.send(3, codes=(11,))
        await pair.stop(MASTER)
        await pair.master(other)
        await pair.slave(one)
        await pair.stopped()
        assert bodies(one) == sent + alone
        await pair.stop(SLAVE)
        await pair.slave(one, ha_diverged_log=DivergedLog.aside)
        await pair.alike()
        sent += await pair.send(3)
    assert bodies(one) == bodies(other) == sent


async def test_damage_that_a_master_sends_stops_its_slave(
    autojump_clock: MockClock, pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    async with pairs() as pair:
        first, kept = MemoryDisk(1), MemoryDisk(2)
        await pair.master(first)
        await pair.slave(kept)
        await trio.sleep(20)
        sent = await pair.send(10)
        await pair.stop(SLAVE)
        at = await pair.reached(MASTER)
        await pair.send(3, codes=(11,))
        first.flip("/store/commitlog/" + "0" * 20, at + 150)
        await pair.slave(kept)
        assert "sent a damaged log" in await pair.stopped()
        assert "STOPPED following" in caplog.text
        first.flip("/store/commitlog/" + "0" * 20, at + 150)
        await pair.alike(120)
    assert bodies(kept)[:10] == sent
    assert len(bodies(kept)) == 13


def timed(due_ms: int, **fields: Any) -> Command:
    return send("Orders", b"timed", properties=f"UNIQ_KEY\x01K\x02TIMER_DELIVER_MS\x01{due_ms}", **fields)


def levelled(level: int) -> Command:
    return send("Orders", b"levelled", properties=f"UNIQ_KEY\x01K\x02DELAY\x01{level}")


async def test_a_slave_made_master_delivers_each_message_once(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1))
        await pair.slave(kept)
        await trio.sleep(20)
        now = pair.start_ms + int(trio.current_time() * 1000)
        later = [timed(now + 3_600_000 + number) for number in range(3)] + [levelled(17)]  # an hour
        for request in [timed(now + 2000 + number) for number in range(5)] + [levelled(2)] * 4 + later:
            assert (await pair.pool.call(MASTER, request, 5)).code == 0
        await trio.sleep(7.5)  # all that is due is delivered, the last moments ago
        assert len(bodies(kept)) == 9
        assert (await pair.figures(SLAVE))["timerMessages"] == "0"
        await pair.stop(SLAVE)
        await pair.stop(MASTER)
        await pair.master(kept)
        await trio.sleep(30)
        assert (await pair.figures(MASTER))["timerMessages"] == "3"
        pair.start_ms += 3_700_000
        await trio.sleep(90)
    assert sorted(bodies(kept)) == [b"levelled"] * 5 + [b"timed"] * 8


async def test_delayed_messages_that_a_lagging_slave_has_not_are_not_skipped(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    """The master's progress, copied while the log lags, would be ahead of the log."""
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1))
        await pair.slave(kept)
        await trio.sleep(20)
        for _ in range(4):
            assert (await pair.pool.call(MASTER, levelled(2), 5)).code == 0
        await trio.sleep(1)
        kept.fail("write", "commitlog", times=40)  # from now on nothing comes through
        await trio.sleep(60)
        await pair.stop(SLAVE)
        await pair.stop(MASTER)
        kept.heal()
        assert bodies(kept) == []
        await pair.master(kept)
        await trio.sleep(30)
    assert bodies(kept) == [b"levelled"] * 4


async def test_a_slave_does_not_give_up_for_a_new_master_what_the_old_one_acknowledged(
    autojump_clock: MockClock, pairs: Pairs
) -> None:
    """A slave that had less was made master: what the old one said to be safe is no word of it."""
    async with pairs() as pair:
        kept = MemoryDisk(2)
        await pair.master(MemoryDisk(1))
        await pair.slave(kept)
        await trio.sleep(20)
        sent = await pair.send(20)
        await trio.sleep(20)
        behind = kept.copy()  # another slave, which has no more than this
        sent += await pair.send(10)
        await pair.stop(MASTER)
        await pair.master(behind)
        await pair.stopped()
        await pair.stop(SLAVE)
        await pair.slave(kept)
        await pair.stopped()
    assert bodies(kept) == sent
