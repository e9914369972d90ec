"""Controllers that run in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio.testing

from rmq.controller.config import ControllerConfig
from rmq.controller.controller import Answer, Request
from rmq.controller.requests import answer_of, request_of
from rmq.controller.service import run
from rmq.controller.sets import Register, Replica
from rmq.errors import ConnectFailed, ConnectionLost, RequestTimeout
from rmq.protocol.codes import CONTROLLER_STATUS, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.pool import Pool
from rmq.server.health import Health
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

ADDRESSES = [f"10.0.9.{number}:9878" for number in (1, 2, 3)]


NAMED = ";".join(ADDRESSES)


class Controllers:
    """Three controllers in memory, each on a host and a disk of its own, and somebody who asks."""

    def __init__(self, nursery: trio.Nursery, pool: Pool, network: MemoryNetwork, **settings: Any) -> None:
        self.nursery, self.pool, self.network = nursery, pool, network
        self.settings = settings
        self.sign: Callable[[Command], Command] = lambda request: request
        """Signs what is asked, with an account where that is wanted."""
        self.disks = {address: MemoryDisk(seed=number) for number, address in enumerate(ADDRESSES)}
        self.scopes: dict[str, trio.CancelScope] = {}
        self.healths: dict[str, Health] = {}

    async def start(self, address: str, *, joins: bool = False) -> None:
        self.disks.setdefault(address, MemoryDisk(seed=len(self.disks)))
        await self.nursery.start(self._run, address, joins)

    async def _run(self, address: str, joins: bool, task_status: trio.TaskStatus[Any]) -> None:
        host = address.partition(":")[0]
        config = ControllerConfig(
            controllers=address if joins else NAMED,
            controller_joins=joins,
            bind_address=host,
            controller_path="/controller",
            **self.settings,
        )
        health = self.healths[address] = Health()
        with trio.CancelScope() as self.scopes[address]:
            await run(
                config,
                health=health,
                network=self.network.host(host),
                disk=self.disks[address],
                clock=trio.current_time,
                task_status=task_status,
            )

    def kill(self, address: str) -> None:
        self.scopes.pop(address).cancel()
        self.disks[address].crash()

    async def status(self, address: str) -> dict[str, Any]:
        response = await self.pool.call(address, self.sign(Command.request(CONTROLLER_STATUS)), 5.0)
        assert response.code == ResponseCode.SUCCESS, response.remark
        found: dict[str, Any] = json.loads(response.body)
        return found

    async def leader(self) -> str:
        """The address of who leads, as soon as somebody does."""
        with trio.fail_after(20):
            while True:
                for address in self.scopes:
                    try:
                        if (await self.status(address))["leading"]:
                            return address
                    except (ConnectFailed, ConnectionLost, RequestTimeout):
                        continue
                await trio.sleep(0.1)

    async def ask(self, question: Request) -> Answer:
        response = await self.pool.call(await self.leader(), self.sign(request_of(question)), 5.0)
        return answer_of(response)


@asynccontextmanager
async def controllers(**settings: Any) -> AsyncIterator[Controllers]:
    network = MemoryNetwork(seed=1)
    async with Pool(network, ClientOnlyEndpoint()) as pool, trio.open_nursery() as nursery:
        found = Controllers(nursery, pool, network, **settings)
        for address in ADDRESSES:
            await found.start(address)
        yield found
        nursery.cancel_scope.cancel()


def register(name: str, **changes: Any) -> Register:
    replica = Replica(name, 1, f"{name}:10911", f"{name}:10912")
    return Register("c", "s", replica, is_founder=name == "a", **changes)
