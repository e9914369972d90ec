"""The broker as a service: in mock time over a memory network and disk, and for real on loopback."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from rmq.broker.chunk.steps import Steps
from rmq.broker.runtime import service
from rmq.broker.runtime.flusher import Flusher
from rmq.errors import (
    ConnectionLost,
    CorruptRecord,
    LocalProtocolError,
)
from rmq.metrics import Histogram
from rmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from rmq.protocol.command import ROCKETMQ, Command
from rmq.protocol.headers import CreateTopicRequestHeader, GetConsumerRunningInfoRequestHeader
from rmq.protocol.record import host_bytes
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.network import Network
from rmq.remoting.poller import Poller
from rmq.remoting.pool import Pool
from rmq.remoting.serving.server import serve
from rmq.store.config import FlushDiskType, StoreConfig
from rmq.store.files.checkpoint import Checkpoint
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

from ..rig import pull, send
from .serving import SMALL, Inbox, bodies, broker

WAITING = PULL_SUBSCRIPTION | PULL_SUSPEND


UPDATE_TOPIC = Command.request(
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    CreateTopicRequestHeader("Made", "TBW102", 3, 3, 6, "SINGLE_TAG", 0, order=False),
)


UPDATE_GROUP = Command.request(
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig("Made").to_json()
)


@define
class NameServer(Endpoint):
    """Writes down what brokers tell it, with the time."""

    heard: list[tuple[float, int]] = field(factory=list)
    bodies: list[bytes] = field(factory=list)
    stale: str = "false"

    def handle(self, requests: list[Command], connection: Connection) -> None:
        for request in requests:
            self.heard.append((round(trio.current_time() - START, 3), request.code))
            self.bodies.append(request.body)
            if request.code == RequestCode.QUERY_DATA_VERSION:
                connection.reply(request.reply(0, None, {"changed": self.stale}, request.body))
            else:
                connection.reply(request.reply(header={"masterAddr": ""}))

    def on_close(self, connection: Connection) -> None: ...

    def codes(self) -> list[int]:
        return [code for _, code in self.heard]


START = 0.0


@asynccontextmanager
async def name_server(network: Network, address: str) -> AsyncIterator[NameServer]:
    server = NameServer()
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, network, [address], server)
        yield server
        nursery.cancel_scope.cancel()


# --- serving, in mock time ---


@pytest.mark.parametrize(("count", "is_named"), [(1, False), (40, True)])
async def test_a_log_that_grows_fast_is_named_in_the_checkpoint_before_the_minute_is_up(
    autojump_clock: Any,
    network: MemoryNetwork,
    disk: MemoryDisk,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    is_named: bool,
) -> None:
    """A start after a kill read up to a minute of messages: 53 s for 12 million."""
    monkeypatch.setattr(service, "SYNC_BYTES", 10_000)
    async with broker(network, disk, {"flush_consume_queue_thorough_interval": 600_000}) as running:
        await trio.sleep(1)
        for _ in range(count):
            assert (await running.ask(send(body=bytes(1000)))).code == 0
        await trio.sleep(30)  # units wait in memory for some 7 s
        checkpoint = Checkpoint(disk, "/store/checkpoint")
        assert (checkpoint.queues_to > 30_000) is is_named
        assert (checkpoint.log_to > 30_000) is is_named


async def test_send_and_pull(autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk) -> None:
    async with broker(network, disk) as running:
        assert (await running.ask(send())).code == 0
        assert bodies(await running.ask(pull())) == [b"hello"]


async def test_a_long_poll_ends_by_an_arrival_or_by_its_time(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    async with broker(network, disk) as running:
        await running.ask(send())
        began = trio.current_time()
        answer = await running.ask(pull(offset=1, sys_flag=WAITING, suspend_timeout_millis=15_000))
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert trio.current_time() - began == pytest.approx(15, abs=0.1)

        async def send_later() -> None:
            await trio.sleep(7)
            await running.ask(send(body=b"new"))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_later)
            answer = await running.ask(pull(offset=1, sys_flag=WAITING))
        assert bodies(answer) == [b"new"]
        assert trio.current_time() - began == pytest.approx(7, abs=0.1)


async def test_a_thousand_long_polls_need_no_tasks(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    async with broker(network, disk) as running:
        await running.ask(send())
        before = trio.lowlevel.current_statistics().tasks_living
        connection = await running.pool.connection(running.address)
        for _ in range(1000):
            connection.notify(pull(offset=1, sys_flag=WAITING))
        await trio.sleep(1)
        assert trio.lowlevel.current_statistics().tasks_living - before < 10


async def test_delayed_and_half_messages_come_in_their_time(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    async with broker(network, disk, transaction_check_interval=20_000) as running:
        await running.ask(send(properties="DELAY\x013", body=b"delayed"))
        began = trio.current_time()
        answer = await running.ask(pull(sys_flag=WAITING, suspend_timeout_millis=30_000), 40)
        assert bodies(answer) == [b"delayed"]
        assert trio.current_time() - began == pytest.approx(10, abs=0.1)

        data = HeartbeatData("c", [ProducerData("pay")]).to_json()
        await running.ask(Command.request(RequestCode.HEART_BEAT, None, data))
        await running.ask(send(properties="TRAN_MSG\x01true\x02PGROUP\x01pay\x02UNIQ_KEY\x01U", sys_flag=4))
        await trio.sleep(30)
        assert [request.code for request in running.inbox.asked] == [RequestCode.CHECK_TRANSACTION_STATE]


async def test_what_is_committed_is_persisted_in_time(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    async with broker(network, disk) as running:
        await running.ask(send())
        await running.ask(pull(sys_flag=PULL_SUBSCRIPTION | 1, commit_offset=1))
        await trio.sleep(5.1)
        assert b'"Orders@readers":{0:1}' in (disk.load("/store/config/consumerOffset.json") or b"")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("topics", UPDATE_TOPIC),
        ("subscriptionGroup", UPDATE_GROUP),
    ],
)
async def test_a_change_of_an_administrator_is_on_the_disk_when_it_is_answered(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk, name: str, made: Command
) -> None:
    async with broker(network, disk) as running:
        assert (await running.ask(made, timeout=1)).code == 0
        assert b'"Made"' in (disk.load(f"/store/config/{name}.json") or b"")
        disk.fail("write", name, times=3)
        refused = await running.ask(made)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "write failed" in (refused.remark or "")
        disk.heal()
        assert (await running.ask(made)).code == 0


# --- name servers ---


async def test_name_servers_are_told_at_start_in_time_on_change_and_at_the_end(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    register, unregister = RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER
    begin = trio.current_time()
    async with name_server(network, "127.0.0.1:9876") as server:
        async with broker(network, disk, namesrv_addr="127.0.0.1:9876") as running:
            assert server.codes() == [register]
            await trio.sleep(65)
            assert [round(when - begin) for when, _ in server.heard] == [0, 30, 60]
            await running.ask(send("New"))
            await trio.sleep(0.1)
            assert server.codes() == [register] * 4
            assert b'"New"' in server.bodies[-1]
        assert server.codes() == [register] * 4 + [unregister]


async def test_without_force_an_unchanged_version_is_only_asked_for(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    register, query = RequestCode.REGISTER_BROKER, RequestCode.QUERY_DATA_VERSION
    async with (
        name_server(network, "127.0.0.1:9876") as server,
        broker(network, disk, namesrv_addr="127.0.0.1:9876", force_register=False),
    ):
        await trio.sleep(65)
        assert server.codes() == [register, query, query]
        server.stale = "true"
        await trio.sleep(30)
        assert server.codes() == [register, query, query, query, register]


async def test_a_name_server_that_is_away_holds_up_nobody_and_is_told_when_it_is_back(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    here, gone, hung = "10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876"
    network.partition("127.0.0.1", "10.0.0.3")
    async with name_server(network.host("10.0.0.1"), here) as server:
        began = trio.current_time()
        async with broker(network, disk, namesrv_addr=f"{gone};{hung};{here}") as running:
            assert trio.current_time() - began < 1
            assert server.codes() == [RequestCode.REGISTER_BROKER]
            await trio.sleep(20)
            async with name_server(network.host("10.0.0.2"), gone) as back:
                await trio.sleep(31)
                assert back.codes()[0] == RequestCode.REGISTER_BROKER
                await running.ask(send("New"))
                await trio.sleep(0.1)
                assert b'"New"' in server.bodies[-1]
                assert b'"New"' in back.bodies[-1]


async def test_a_name_server_that_restarts_knows_the_broker_within_seconds(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    address = "127.0.0.1:9876"
    async with broker(network, disk, namesrv_addr=address):
        for away in (0.5, 20, 300):
            await trio.sleep(away)
            async with name_server(network, address) as back:
                began = trio.current_time()
                while not back.codes() and trio.current_time() < began + 60:
                    await trio.sleep(0.1)
                assert trio.current_time() - began <= 6
                assert back.codes() == [RequestCode.REGISTER_BROKER]
                await trio.sleep(2)


async def test_name_servers_can_be_changed_while_the_broker_runs(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    old, kept, new = "10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876"
    register, unregister = RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER
    async with (
        name_server(network.host("10.0.0.1"), old) as left,
        name_server(network.host("10.0.0.2"), kept) as both,
        name_server(network.host("10.0.0.3"), new) as joined,
        broker(network, disk, namesrv_addr=f"{old};{kept}") as running,
    ):
        wrong = await running.ask(settings_change("namesrvAddr=nowhere"))
        assert wrong.code == ResponseCode.SYSTEM_ERROR
        assert "namesrvAddr" in (wrong.remark or "")
        assert (await running.ask(settings_change(f"namesrvAddr={kept};{new}"))).code == 0
        await trio.sleep(1)
        assert left.codes() == [register, unregister]
        assert joined.codes()[0] == register
        assert unregister not in both.codes()
        before = len(both.codes())
        await trio.sleep(65)
        assert left.codes() == [register, unregister]
        assert len(both.codes()) == before + 2
        assert (await running.ask(settings_change("namesrvAddr="))).code == 0
        await trio.sleep(1)
        assert both.codes()[-1] == joined.codes()[-1] == unregister


def settings_change(text: str) -> Command:
    return Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def test_a_broker_starts_without_any_name_server(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    async with broker(network, disk, namesrv_addr="10.9.9.9:1") as running:
        assert (await running.ask(send())).code == 0


# --- the disk ---


async def test_with_sync_flush_what_is_acknowledged_survives_a_power_cut(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    images = []
    async with broker(network, disk, {"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as running:
        for number in range(5):
            assert (await running.ask(send(body=b"%d" % number))).code == 0
            images.append(disk.image(0.1 * number))
    for number, image in enumerate(images):
        assert stored(image) == [b"%d" % one for one in range(number + 1)]


def stored(disk: MemoryDisk, topic: str = "Orders") -> list[bytes]:
    """The messages that a broker finds on a disk."""
    config = StoreConfig(**SMALL)
    store = Store(disk, config, store_host=host_bytes("127.0.0.1:1"), now_ms=lambda: 0)
    store.load()
    end = store.max_offset(topic, 0)
    messages = [store.message(store.unit(topic, 0, offset)[0]) for offset in range(end)]  # type: ignore[index]
    store.abandon()
    return [message.body for message in messages if message is not None]


async def test_without_sync_flush_the_log_is_synced_by_the_interval(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    async with broker(network, disk) as running:
        await running.ask(send())
        await trio.sleep(0.6)
        assert stored(disk.image(0.5)) == [b"hello"]


async def test_a_disk_that_cannot_sync_refuses_until_it_can_and_nobody_is_told_success(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    async with broker(network, disk, {"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as running:
        assert (await running.ask(send())).code == 0
        disk.fail("sync", "commitlog", times=5)  # the flush, and four tries: 0.5, 1, 2 and 4 s later
        assert (await running.ask(send())).code == ResponseCode.FLUSH_DISK_TIMEOUT
        refused = await running.ask(send())
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "Input/output error" in (refused.remark or "")
        await trio.sleep(20)
        assert (await running.ask(send())).code == 0
        assert stored(disk.image(0.5)) == [b"hello"] * 3


async def test_a_disk_that_lost_the_end_of_the_log_ends_the_broker_and_nobody_is_told_success(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    answers: list[Command] = []

    async def session() -> None:
        async with broker(network, disk, {"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as running:
            assert (await running.ask(send())).code == 0
            log = "/store/commitlog/00000000000000000000"
            first = int.from_bytes((disk.load(log) or b"")[:4], "big")
            disk.on_sync = lambda path: disk.flip(log, first + 90)
            disk.fail("sync", "commitlog")
            with suppress(ConnectionLost):
                answers.append(await running.ask(send()))

    with pytest.raises(ExceptionGroup) as caught:
        await session()
    assert caught.group_contains(CorruptRecord, match="bytes of a failed sync are lost")
    assert answers == []
    assert disk.exists("/store/abort")


# --- stopping ---


async def test_sends_that_wait_for_the_disk_are_answered_at_the_stop(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop syncs the messages of these sends, so they are acknowledged."""
    monkeypatch.setattr(Flusher, "kick", lambda flusher: None)
    never = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 3_600_000}
    answers: list[Command] = []
    async with broker(network, disk, never) as running, Pool(network, Inbox()) as pool:

        async def ask() -> None:
            answers.append(await pool.call(running.address, send(), 30))

        async with trio.open_nursery() as senders:
            senders.start_soon(ask)
            await trio.sleep(1)
            assert answers == []
            running.stop.set()
    assert [(answer.code, answer.ext["queueOffset"]) for answer in answers] == [(0, "0")]
    assert stored(disk.image(0.3)) == [b"hello"]


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_stopping_answers_who_waits_and_loses_nothing(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk, how: str
) -> None:
    answers: list[Command] = []
    async with trio.open_nursery() as outer:

        async def live(task_status: Any) -> None:
            with trio.CancelScope() as scope:
                async with broker(network, disk) as running:
                    task_status.started((running, scope))
                    await trio.sleep_forever()

        running, scope = await outer.start(live)
        await running.ask(send())
        await running.ask(pull(sys_flag=PULL_SUBSCRIPTION | 1, commit_offset=1))
        async with Pool(network, Inbox()) as pool:

            async def poll() -> None:
                waiting = pull(offset=1, sys_flag=WAITING)
                waiting.language = "GO"
                answers.append(await pool.call(running.address, waiting, 30))

            async with trio.open_nursery() as pollers:
                pollers.start_soon(poll)
                await trio.sleep(1)
                began = trio.current_time()
                running.stop.set() if how == "stop" else scope.cancel()
            assert trio.current_time() - began < 0.5
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert [answer.code for answer in answers] == [ResponseCode.PULL_NOT_FOUND]
    assert not disk.exists("/store/abort")
    assert stored(disk.image(0.3)) == [b"hello"]
    assert b"Orders" in (disk.load("/store/config/topics.json") or b"")
    assert b'"Orders@readers":{0:1}' in (disk.load("/store/config/consumerOffset.json") or b"")


async def test_when_a_broker_stops_the_last_answer_to_javas_consumers_is_some_time_before_the_end(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    """One that is written to as it breaks leaves who waits over it waiting for half a minute."""
    last_at: list[float] = []
    ended_at = 0.0
    async with broker(network, disk) as running, Pool(network, Inbox()) as pool:
        await running.ask(send())

        async def consume() -> None:
            nonlocal ended_at
            with suppress(ConnectionLost):
                while True:
                    one = pull(offset=0, sys_flag=WAITING | PULL_SUBSCRIPTION)  # there is always something
                    one.language = "JAVA"
                    await pool.call(running.address, one, 30)
                    last_at.append(trio.current_time())
                    await trio.sleep(0.001)
            ended_at = trio.current_time()

        async with trio.open_nursery() as consumers:
            consumers.start_soon(consume)
            consumers.start_soon(consume)
            await trio.sleep(1)
            stopped_at = trio.current_time()
            running.stop.set()
    assert last_at[-1] <= stopped_at + 0.01
    assert ended_at >= last_at[-1] + 0.04


async def test_a_broker_can_be_started_again_on_its_port_and_its_store(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    for number in range(3):
        async with broker(network, disk) as running:
            answer = await running.ask(send())
            assert answer.ext["queueOffset"] == str(number)


async def test_rounds_of_the_loop_are_measured(autojump_clock: trio.testing.MockClock) -> None:
    rounds: list[float] = []

    class Flow:
        def round_took(self, seconds: float) -> bool:
            rounds.append(round(seconds, 3))
            return seconds > 0.2

    async def work() -> None:
        for _ in range(12):
            autojump_clock.jump(0.5)
            await trio.lowlevel.checkpoint()

    flow: Any = Flow()
    lag = Histogram()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.measure_rounds, flow, lag, Poller())
        await trio.sleep(1)
        assert rounds == [0.0] * len(rounds), "at rest"
        assert 5 <= len(rounds) <= 11
        rounds.clear()
        nursery.start_soon(work)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert 4.5 <= 2 * sum(rounds) <= 6, "while rounds are long each is measured"
    assert lag.total >= sum(rounds) - 0.01, "and counted as the loop's lag"


# --- what one client sends ends no other ----------------------------------------------------------


async def test_an_answer_that_cannot_be_passed_on_leaves_the_broker_alone(
    network: MemoryNetwork, disk: MemoryDisk, autojump_clock: trio.testing.MockClock
) -> None:
    """A consumer answers a relayed request (307) with code 70000: the asker's binary header has 16 bits."""
    data = ConsumerData("billing", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
    data.subscription_data_set.append(SubscriptionData("Orders", "*"))
    heartbeat = HeartbeatData("c@1", consumer_data_set=[data]).to_json()

    class Liar(Inbox):
        def handle(self, requests: list[Command], connection: Connection) -> None:
            for request in requests:
                if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
                    connection.reply(request.reply(70_000))

    async with broker(network, disk) as running, Pool(network, Liar()) as liar:
        await liar.call(running.address, Command.request(RequestCode.HEART_BEAT, None, heartbeat), 3)
        header = GetConsumerRunningInfoRequestHeader("billing", "c@1", False)
        asked = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        asked.serialization = ROCKETMQ
        answer = await running.ask(asked)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "70000" in (answer.remark or "")
        assert (await running.ask(send())).code == ResponseCode.SUCCESS


async def test_an_expected_error_ends_no_loop(
    network: MemoryNetwork,
    disk: MemoryDisk,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults: list[Exception] = [OSError(errno.EMFILE, "no descriptor"), LocalProtocolError("no frame")]
    step = Steps.transactions

    def failing(self: Steps) -> int:
        if faults:
            raise faults.pop(0)
        return step(self)

    monkeypatch.setattr(Steps, "transactions", failing)
    async with broker(network, disk) as running:
        await trio.sleep(5)
        assert not faults
        assert "check_back failed and is restarted: no frame" in caplog.text
        assert (await running.ask(send())).code == ResponseCode.SUCCESS


async def test_long_answers_are_made_beside_other_things(
    network: MemoryNetwork,
    disk: MemoryDisk,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The progress of 1,000 groups, by who has no loop for it, would be made in one go."""
    monkeypatch.delattr("rmq.broker.admin.consume_stats.run_to_end")
    async with broker(network, disk, max_groups_of_heartbeat=1_000) as running:
        consumers = [ConsumerData(f"g{number}") for number in range(1_000)]
        heartbeat = HeartbeatData("c@1", consumer_data_set=consumers).to_json()
        await running.ask(Command.request(RequestCode.HEART_BEAT, None, heartbeat))
        for _ in range(2):
            request = Command.request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
            answer = await running.ask(request)
            assert answer.code == ResponseCode.SUCCESS
            assert b'"g999"' in answer.body


async def test_a_broker_that_is_killed_again_and_again_reads_few_records_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, files = MemoryDisk(), {"mapped_file_size_commit_log": 1 << 13}
    async with broker(MemoryNetwork(), disk, files) as running:
        for number in range(300):
            await running.ask(send("Orders", b"%d" % number))
        disk = disk.copy()  # as kill -9 leaves it
    async with broker(MemoryNetwork(), disk, files) as running:
        await trio.sleep(12)
        killed = disk.copy()
        await running.ask(send("Orders", b"300"))
    host = host_bytes("10.0.0.9:10911")
    store = Store(killed, StoreConfig(**SMALL | files), store_host=host, now_ms=lambda: 1_700_000_100_000)
    found = store.load()
    assert (found.is_clean, store.max_physical_offset > 20_000) == (False, True)
    assert found.records < 60  # of the last files only
