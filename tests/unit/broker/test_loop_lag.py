"""A broker of 1,000 topics, 10,000 queues and 500 groups: nothing holds its event loop up for 20 ms.

Measured is the CPU time of each step of each task, so that a busy machine does not count; and no call that
syncs or replaces files may come from the loop's thread.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio

pytest.importorskip("prometheus_client")

from rmq_metrics import MetricsPlugin

from rmq.broker import service
from rmq.broker.__main__ import calm_collector
from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.namesrv import service as namesrv_service
from rmq.namesrv.config import NamesrvConfig
from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq.protocol.record import Record
from rmq.store.config import StoreConfig
from tests.unit.plugins.test_metrics import said

TOPICS, QUEUES, GROUPS, TOPICS_OF_A_GROUP = 1_000, 10, 500, 10
LIMIT_SECONDS = 0.02


class Steps(trio.abc.Instrument):
    """The longest step of each task by its name, in seconds of CPU."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self._began: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began is not None:
            took = time.thread_time() - self._began
            self.longest[task.name] = max(took, self.longest.get(task.name, 0.0))


def write_tables(root: pathlib.Path) -> None:
    """As a broker of that size saved them."""
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
                seen.append(name)
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


async def test_nothing_holds_up_the_loop_of_a_large_broker(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, in_loop: list[str], usual_collector: None
) -> None:
    monkeypatch.setattr("rmq.plugin._installed", lambda: {"metrics": lambda: MetricsPlugin})
    brokers: list[Broker] = []
    open_broker = service.open_broker

    async def opened(*given: Any, **named: Any) -> Broker:
        brokers.append(await open_broker(*given, **named))
        return brokers[0]

    monkeypatch.setattr(service, "open_broker", opened)
    write_tables(tmp_path / "store")
    store_config = StoreConfig(
        store_path_root_dir=str(tmp_path / "store"), mapped_file_size_commit_log=1 << 24, max_index_num=1024
    )
    stop, also, steps = trio.Event(), dict[str, str](), Steps()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            names = await nursery.start(partial(namesrv_service.run, NamesrvConfig(listen_port=0)))
            config = BrokerConfig(
                listen_port=0,
                metrics_port=0,
                plugins=("metrics",),
                vip_channel_enabled=False,
                namesrv_addr=names[0],
                flush_consumer_offset_interval=1_000,
            )
            await nursery.start(partial(service.run, config, store_config, stop=stop, also=also))
            (broker,) = brokers
            for number in range(TOPICS):
                for queue_id in range(QUEUES):
                    record = Record(f"topic-{number}", queue_id, b"x", "", born_host=broker.store.store_host)
                    broker.store.put(record)
                broker.commit_pending()
                await trio.lowlevel.checkpoint()
            offsets_file = tmp_path / "store" / "config" / "consumerOffset.json"
            topics_file = tmp_path / "store" / "config" / "topics.json"
            in_loop.clear()
            calm_collector()
            trio.lowlevel.add_instrument(steps)
            broker.offsets.commit("group-0", "topic-0", 0, 1)
            broker.topics.create_for_send("topic-new", "TBW102", 4, "a test")  # saved, registered
            broker.wake.new_topics and broker.wake.new_topics()
            address = also["health"].split("/")[2]
            sums = await said(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            queues = await said(address, b"GET /metrics?queues=true HTTP/1.1\r\nHost: x\r\n\r\n")
            while b'"topic-0@group-0":{0:1' not in offsets_file.read_bytes():
                await trio.sleep(0.01)
            while b"topic-new" not in topics_file.read_bytes():
                await trio.sleep(0.01)
            trio.lowlevel.remove_instrument(steps)
            stop.set()
            nursery.cancel_scope.cancel()
    assert queues.count(b"\nrmq_queue_max_offset{") >= TOPICS * QUEUES
    assert queues.count(b"\nrmq_consumer_lag_queue_messages{") == GROUPS * TOPICS_OF_A_GROUP * QUEUES
    assert sums.count(b"\nrmq_consumer_lag_messages{") == GROUPS * TOPICS_OF_A_GROUP
    assert b"\nrmq_loop_lag_seconds_bucket" in sums
    own = f"{__name__}."
    long = {
        name: took
        for name, took in steps.longest.items()
        if took > LIMIT_SECONDS and not name.startswith(own)
    }
    assert not long, "CPU seconds of the longest steps"
    assert not in_loop, "calls that wait for the disk"
