"""Our own name server and brokers, in memory and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import evolve

import rmq
from rmq.broker import service as broker_service
from rmq.broker.config import BrokerConfig
from rmq.client.client import Client
from rmq.client.config import ClientConfig
from rmq.client.consumer import Consumer
from rmq.message import Message
from rmq.namesrv import service as namesrv_service
from rmq.namesrv.config import NamesrvConfig
from rmq.store.config import StoreConfig
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

START_MS = 1_700_000_000_000
STORE = StoreConfig(
    store_path_root_dir="/store", mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=6000
)


def now_ms() -> int:
    return START_MS + int(trio.current_time() * 1000)


class System:
    """One name server, brokers that can be stopped and started, and the nursery they live in."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.network = MemoryNetwork(seed=3)
        self.nursery = nursery
        self.disks: dict[str, MemoryDisk] = {}
        self.stops: dict[str, trio.Event] = {}
        self.names = ""

    async def start_names(self) -> None:
        run = partial(
            namesrv_service.run, NamesrvConfig(listen_port=9876), network=self.network.host("10.0.0.1")
        )
        await self.nursery.start(run)
        self.names = "10.0.0.1:9876"

    async def start(self, name: str, store: Mapping[str, object] | None = None, **settings: object) -> None:
        """Start a broker; `store` are settings of its store, `settings` its others."""
        host = f"10.0.1.{1 + list(self.disks).index(name) if name in self.disks else 1 + len(self.disks)}"
        disk = self.disks.setdefault(name, MemoryDisk(seed=1))
        config = BrokerConfig(
            namesrv_addr=self.names,
            broker_ip1=host,
            listen_port=10911,
            enable_property_filter=True,
            **{"broker_name": name} | settings,
        )
        stop = self.stops[name] = trio.Event()
        run = partial(
            broker_service.run,
            config,
            evolve(STORE, **store or {}),
            network=self.network.host(host),
            disk=disk,
            now_ms=now_ms,
            stop=stop,
        )
        await self.nursery.start(run)

    def client(self, **settings: object) -> Client:
        config = ClientConfig(**settings)
        return rmq.connect(self.names, network=self.network.host("10.0.9.1"), config=config)


@asynccontextmanager
async def system(*names: str) -> AsyncIterator[System]:
    async with trio.open_nursery() as nursery:
        made = System(nursery)
        await made.start_names()
        for name in names:
            await made.start(name)
        yield made
        for stop in made.stops.values():
            stop.set()
        await trio.sleep(5)
        nursery.cancel_scope.cancel()


async def fill(made: System, topic: str, count: int) -> None:
    async with made.client() as client, client.producer("p") as producer, trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(producer.send, Message(topic, b"%d" % number, tags="ab"[number % 2]))


async def take(consumer: Consumer, count: int) -> list[int]:
    got: list[int] = []
    async for delivery in consumer:
        async with delivery as message:
            got.append(int(message.body))
        if len(got) == count:
            break
    return got
