"""A broker of 1,000 topics, 10,000 queues and 500 groups: nothing holds its event loop up for 20 ms.

Measured is the CPU time of each step of each task, so that a busy machine does not count; and no call that
syncs or replaces files may come from the loop's thread.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import statistics
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest
import trio
from attrs import define

pytest.importorskip("prometheus_client")

from rmq_acl import AclPlugin
from rmq_metrics import MetricsPlugin

from rmq.broker.__main__ import calm_collector
from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service
from rmq.namesrv import service as namesrv_service
from rmq.namesrv.config import NamesrvConfig
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from rmq.protocol.record import Record
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.network import TcpNetwork
from rmq.remoting.pool import Pool
from rmq.store.config import StoreConfig
from tests.unit.plugins.scraping import said

TOPICS, QUEUES, GROUPS, TOPICS_OF_A_GROUP = 1_000, 10, 500, 10
LIMIT_SECONDS = 0.02
YARDSTICK_SECONDS = 0.0062
"""What `yardstick` takes of the machine on which the limit was set: a slower one has a longer limit."""
ATTEMPTS = 5


def yardstick() -> float:
    """CPU seconds of work of the kind that the steps do, now: CPUs that are shared have no one speed."""
    took = []
    for _ in range(9):
        began = time.thread_time()
        table = {f"topic-{number}": number for number in range(20_000)}
        sum(table[f"topic-{number}"] for number in range(20_000))
        took.append(time.thread_time() - began)
    return statistics.median(took)


class Steps(trio.abc.Instrument):
    """The longest step of each task by its name, in seconds of CPU."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self.too_long: list[str] = []
        self.now = ""
        self._began: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began is not None:
            took = time.thread_time() - self._began
            name = f"{task.name}, {self.now}"
            if not name.startswith((f"{__name__}.", "<test")):
                self.longest[name] = max(took, self.longest.get(name, 0.0))

    async def check(self, work: Callable[[], Awaitable[None]]) -> None:
        """Note in `too_long` what is so each time; what else the machine does is not."""
        for _ in range(ATTEMPTS):
            self.longest.clear()
            await work()
            slower = yardstick() / YARDSTICK_SECONDS
            limit = LIMIT_SECONDS * max(1.0, slower)
            long = {name: round(took, 4) for name, took in self.longest.items() if took > limit}
            if not long:
                return
        self.too_long.append(f"CPU seconds of steps, on a machine of {slower:.2f} times the usual: {long}")


def write_tables(root: pathlib.Path) -> None:
    """Write the tables of a broker of this size."""
    version = {"counter": 1, "timestamp": 1_700_000_000_000}
    topics = {
        f"topic-{number}": json.loads(TopicConfig(f"topic-{number}", QUEUES, QUEUES).to_json())
        for number in range(TOPICS)
    }
    groups = {
        f"group-{number}": json.loads(SubscriptionGroupConfig(f"group-{number}").to_json())
        for number in range(GROUPS)
    }
    offsets = ",".join(
        f'"topic-{(group * TOPICS_OF_A_GROUP + number) % TOPICS}@group-{group}":{{'
        + ",".join(f"{queue}:0" for queue in range(QUEUES))
        + "}"
        for group in range(GROUPS)
        for number in range(TOPICS_OF_A_GROUP)
    )
    config = root / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text(json.dumps({"dataVersion": version, "topicConfigTable": topics}))
    table = {"dataVersion": version, "subscriptionGroupTable": groups}
    (config / "subscriptionGroup.json").write_text(json.dumps(table))
    (config / "consumerOffset.json").write_text(f'{{"offsetTable":{{{offsets}}}}}')


@pytest.fixture
def in_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the loop's thread that wait for the disk."""
    seen: list[str] = []
    loop = threading.get_ident()

    def watched(name: str, call: Any) -> Any:
        def watch(*given: Any, **named: Any) -> Any:
            if threading.get_ident() == loop:
                seen.append(f"{name} of {given}: {traceback.extract_stack(limit=6)[:-1]}")
            return call(*given, **named)

        return watch

    for name in ("fsync", "fdatasync", "replace", "unlink"):
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    return seen


@pytest.fixture
def usual_collector() -> Iterator[None]:
    """A test that calms the collector of cycles, as the program does, leaves it as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@define
class Large:
    """The broker, its name server, and what is measured."""

    broker: Broker
    addresses: list[str]
    name_server: str
    pages: str
    files: pathlib.Path
    steps: Steps
    nursery: trio.Nursery


@asynccontextmanager
async def large(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> AsyncIterator[Large]:
    """A broker of that size, each queue with a message. Its steps are measured within the block."""
    monkeypatch.setattr(
        "rmq.plugin._installed", lambda: {"metrics": lambda: MetricsPlugin, "acl": lambda: AclPlugin}
    )
    brokers: list[Broker] = []
    open_broker = service.open_broker

    async def opened(*given: Any, **named: Any) -> Broker:
        brokers.append(await open_broker(*given, **named))
        return brokers[0]

    monkeypatch.setattr(service, "open_broker", opened)
    write_tables(folder / "store")
    store_config = StoreConfig(
        store_path_root_dir=str(folder / "store"), mapped_file_size_commit_log=1 << 24, max_index_num=1024
    )
    stop, also, steps = trio.Event(), dict[str, str](), Steps()
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            names = await nursery.start(partial(namesrv_service.run, NamesrvConfig(listen_port=0)))
            config = BrokerConfig(
                listen_port=0,
                metrics_port=0,
                plugins=("metrics",),
                vip_channel_enabled=False,
                namesrv_addr=names[0],
                flush_consumer_offset_interval=1_000,
                **given,
            )
            addresses = await nursery.start(partial(service.run, config, store_config, stop=stop, also=also))
            (broker,) = brokers
            for number in range(TOPICS):
                for queue_id in range(QUEUES):
                    record = Record(f"topic-{number}", queue_id, b"x", "", born_host=broker.store.store_host)
                    broker.store.put(record)
                broker.group_commit.commit_pending()
                await trio.lowlevel.checkpoint()
            calm_collector()
            trio.lowlevel.add_instrument(steps)
            pages = also["health"].split("/")[2]
            yield Large(broker, addresses, names[0], pages, folder / "store" / "config", steps, nursery)
            trio.lowlevel.remove_instrument(steps)
            stop.set()
            nursery.cancel_scope.cancel()


def heartbeat(number: int) -> Command:
    """Of a client whose consumers are of ten groups."""
    consumers = [
        ConsumerData(
            f"group-{group}",
            "CONSUME_PASSIVELY",
            "CLUSTERING",
            "CONSUME_FROM_LAST_OFFSET",
            [
                SubscriptionData(f"topic-{(group * TOPICS_OF_A_GROUP + at) % TOPICS}", "*")
                for at in range(TOPICS_OF_A_GROUP)
            ],
        )
        for group in range(number * 10, number * 10 + 10)
    ]
    data = HeartbeatData(f"client-{number}", [ProducerData("producers")], consumers)
    return Command.request(RequestCode.HEART_BEAT, body=data.to_json())


OF_NAME_SERVERS = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_BROKER_CLUSTER_INFO


def requests() -> Iterator[tuple[str, Command]]:
    """The requests of clients and administrators whose work grows with the broker."""
    code = RequestCode
    for one in (
        code.GET_ALL_TOPIC_CONFIG,
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        code.GET_ALL_CONSUMER_OFFSET,
        code.GET_ALL_DELAY_OFFSET,
        code.GET_ALL_PRODUCER_INFO,
        code.GET_BROKER_CONFIG,
        code.GET_BROKER_RUNTIME_INFO,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        code.CLEAN_UNUSED_TOPIC,
        code.CLEAN_EXPIRED_CONSUMEQUEUE,
        code.DELETE_EXPIRED_COMMITLOG,
        code.GET_BROKER_CLUSTER_ACL_CONFIG,
    ):
        yield one.name, Command.request(one)
    header: Any = GetConsumeStatsInBrokerHeader()
    yield "lag of all groups", Command.request(code.GET_BROKER_CONSUME_STATS, header)
    yield "lag of a group", Command.request(code.GET_CONSUME_STATS, GetConsumeStatsRequestHeader("group-1"))
    yield (
        "ends of a topic",
        Command.request(code.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader("topic-1")),
    )
    who = QueryTopicConsumeByWhoRequestHeader("topic-1")
    yield "groups of a topic", Command.request(code.QUERY_TOPIC_CONSUME_BY_WHO, who)
    yield "settings", Command.request(code.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=96")
    account = {"accessKey": "newcomer", "secretKey": "some characters", "admin": "false"}
    yield "an account", Command.request(code.UPDATE_AND_CREATE_ACL_CONFIG, account)
    yield "no account", Command.request(code.DELETE_ACL_CONFIG, {"accessKey": "newcomer"})
    white = {"globalWhiteAddrs": "127.0.0.1,10.*.*.*"}
    yield "white addresses", Command.request(code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, white)
    header = CreateTopicRequestHeader("topic-made", "TBW102", 4, 4, 6, "SINGLE_TAG", 0, order=False)
    yield "a topic", Command.request(code.UPDATE_AND_CREATE_TOPIC, header)
    group = SubscriptionGroupConfig("group-made").to_json()
    yield "a group", Command.request(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    header = DeleteSubscriptionGroupRequestHeader("group-7", remove_offset=True)
    yield "no group", Command.request(code.DELETE_SUBSCRIPTIONGROUP, header)


async def test_nothing_holds_up_the_loop_of_a_large_broker(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, in_loop: list[str], usual_collector: None
) -> None:
    settings, accounts = tmp_path / "broker.conf", tmp_path / "plain_acl.yml"
    settings.write_text("fileReservedTime=48\n")
    accounts.write_text(
        "globalWhiteRemoteAddresses: [127.0.0.1]\naccounts:\n"
        "- {accessKey: manager, secretKey: sixteen characters, admin: true}\n"
    )
    given = {"acl_enable": True, "acl_file": str(accounts), "config_store_path": str(settings)}
    async with large(tmp_path, monkeypatch, **given) as rig:
        in_loop.clear()
        broker, made = rig.broker, count(1)
        pages: list[bytes] = []

        async def save_and_scrape() -> None:
            number = next(made)
            broker.offsets.commit("group-0", "topic-0", 0, number % 2)
            broker.topics.create_for_send(f"topic-new-{number}", "TBW102", 4, "a test")  # saved, registered
            broker.wake.new_topics and broker.wake.new_topics()
            pages[:] = [
                await said(rig.pages, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
                await said(rig.pages, b"GET /metrics?queues=true HTTP/1.1\r\nHost: x\r\n\r\n"),
            ]
            while (
                b'"topic-0@group-0":{0:%d' % (number % 2)
                not in (rig.files / "consumerOffset.json").read_bytes()
            ):
                await trio.sleep(0.01)
            while b"topic-new-%d" % number not in (rig.files / "topics.json").read_bytes():
                await trio.sleep(0.01)

        await rig.steps.check(save_and_scrape)
        network, admin = TcpNetwork(), Credentials("manager", "sixteen characters")
        async with AsyncExitStack() as pools:

            async def ask(pool: Pool, request: Command, name: str) -> None:
                rig.steps.now = name
                answer = await pool.call(rig.addresses[0], signed(request, admin), 60)
                assert answer.code == 0, (name, answer.remark)

            clients = [
                await pools.enter_async_context(Pool(network, ClientOnlyEndpoint()))
                for _ in range(GROUPS // 10)
            ]

            async def ask_all() -> None:
                for number, client in enumerate(clients):
                    await ask(client, heartbeat(number), "heartbeat")
                for name, request in requests():
                    await ask(clients[0], request, name)
                for code in OF_NAME_SERVERS:
                    rig.steps.now = code.name
                    answer = await clients[0].call(rig.name_server, Command.request(code), 60)
                    assert answer.code == 0, (code, answer.remark)

            await rig.steps.check(ask_all)
            deleted = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("topic-7"))
            await rig.steps.check(partial(ask, clients[0], deleted, "no topic"))
        waited = list(in_loop)
    assert not rig.steps.too_long
    assert not waited, "calls that wait for the disk"
    assert settings.read_text() == "fileReservedTime=96\n"
    assert "newcomer" not in accounts.read_text()
    sums, queues = pages
    assert queues.count(b"\nrmq_queue_max_offset{") >= TOPICS * QUEUES
    assert queues.count(b"\nrmq_consumer_lag_queue_messages{") == GROUPS * TOPICS_OF_A_GROUP * QUEUES
    assert sums.count(b"\nrmq_consumer_lag_messages{") == GROUPS * TOPICS_OF_A_GROUP
    assert b"\nrmq_loop_lag_seconds_bucket" in sums
