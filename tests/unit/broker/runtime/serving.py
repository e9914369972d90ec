"""A running broker and a name server in memory, for the tests of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing
from attrs import define

from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service
from rmq.protocol.command import Command
from rmq.protocol.record import decode_records
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.network import Network
from rmq.remoting.pool import Pool
from rmq.store.config import StoreConfig
from rmq.testing.disk import MemoryDisk

SMALL = {
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 64,
    "max_index_num": 1024,
}


class Inbox(Endpoint):
    """The endpoint of a client: keeps what the broker asks it."""

    def __init__(self) -> None:
        self.asked: list[Command] = []

    def handle(self, requests: list[Command], connection: Connection) -> None:
        self.asked += requests

    def on_close(self, connection: Connection) -> None: ...


@define
class Running:
    """A broker that runs, and a client of it."""

    address: str
    pool: Pool
    inbox: Inbox
    stop: trio.Event

    async def ask(self, request: Command, timeout: float = 30) -> Command:
        return await self.pool.call(self.address, request, timeout)


@asynccontextmanager
async def broker(
    network: Network, disk: MemoryDisk | None, store: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[Running]:
    """Run a broker for the length of the block; it is stopped gracefully at the end."""
    config = BrokerConfig(
        **{"broker_name": "b", "listen_port": 10911, "vip_channel_enabled": False} | changes
    )
    store_config = StoreConfig(**SMALL | (store or {}))
    wall = (lambda: 1_700_000_000_000 + int(trio.current_time() * 1000)) if disk is not None else None
    inbox, stop = Inbox(), trio.Event()
    run = partial(service.run, config, store_config, network=network, disk=disk, now_ms=wall, stop=stop)
    async with trio.open_nursery() as nursery:
        address, *_ = await nursery.start(run)
        async with Pool(network, inbox) as pool:
            yield Running(address, pool, inbox, stop)
            stop.set()
            await trio.testing.wait_all_tasks_blocked() if disk is not None else None


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]
