"""A name server and a broker in the caller's own event loop, trio or asyncio: for development and demos.

    async with embedded.open("rmq-data") as system:
        async with rmq.connect(system.namesrv_address) as client:
            ...

Both listen on loopback, on free ports unless the caller names ports. Their files are in one folder. On
asyncio WebSocket clients are refused.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from attrs import evolve, field, frozen

from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service as broker_service
from rmq.config import load, load_all
from rmq.errors import for_code
from rmq.message import AUTO_CREATE_TOPIC, validate_topic
from rmq.namesrv import service as namesrv_service
from rmq.namesrv.config import NamesrvConfig
from rmq.protocol import engine
from rmq.protocol.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import CreateTopicRequestHeader
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.loop import TaskGroupScope
from rmq.remoting.network import TcpNetwork
from rmq.remoting.pool import Pool
from rmq.remoting.transports.tls import TlsConfig
from rmq.store.config import StoreConfig

REQUEST_SECONDS = 5.0

# Small files, for a laptop: RocketMQ's own sizes show as 1 GiB and 400 MB each, though sparse. SQL
# filters are on; RocketMQ has them off.
SETTINGS: Mapping[str, str] = {
    "brokerName": "embedded",
    "haEnable": "false",
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 20_000),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
}


@frozen
class System:
    """A running pair: the address for clients, and the folder of the files. `also` are the other listeners of
    the broker and their addresses, such as those of plug-ins' protocols."""

    namesrv_address: str
    broker_address: str
    data_dir: pathlib.Path
    store_dir: pathlib.Path
    also: Mapping[str, str] = field(factory=dict)

    async def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic, or change its number of queues. Raises InvalidName, ResponseError."""
        validate_topic(topic)
        header = CreateTopicRequestHeader(
            topic, AUTO_CREATE_TOPIC, queues, queues, PERM_READ | PERM_WRITE, "SINGLE_TAG"
        )
        request = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        async with Pool(TcpNetwork(), ClientOnlyEndpoint()) as pool:
            response = await pool.call(self.broker_address, request, REQUEST_SECONDS)
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark, self.broker_address)


@asynccontextmanager
async def open(
    data_dir: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    namesrv_port: int = 0,
    broker_port: int = 0,
    settings: Mapping[str, str] | None = None,
    plugin_settings: Mapping[str, str] | None = None,
    tls: TlsConfig | None = None,
) -> AsyncIterator[System]:
    """Run the pair for the length of the block; it is registered and answers when the block begins.

    `settings` are broker.conf keys over `SETTINGS`, `plugin_settings` those that only plug-ins know (plug-ins
    see both); `tls` is the broker's. Raises PortInUse, StoreLocked, ConfigError. Leaving the block, also by
    an error or by cancellation, stops the broker cleanly (its files are flushed and closed) and then the name
    server; the block's own error is raised unwrapped. On asyncio a task may open the block and another task
    close it, as fixtures and notebooks do.
    """
    engine.check()
    folder = pathlib.Path(data_dir).resolve()
    arguments = {
        "listenPort": str(namesrv_port),
        "bindAddress": host,
        "kvConfigPath": str(folder / "namesrv" / "kvConfig.json"),
    }
    namesrv_config = load(NamesrvConfig, arguments=arguments, environment={})
    given = {**(settings or {}), "brokerIP1": host, "listenPort": str(broker_port)}
    configs = _broker_configs(folder / "store", given)  # a wrong setting is an error before anything starts
    async with TaskGroupScope() as outer:
        (namesrv,) = await outer.tasks.start(partial(namesrv_service.run, namesrv_config))
        config, store_config = configs
        config = evolve(config, namesrv_addr=namesrv)
        also: dict[str, str] = {}
        plugins = {**given, "namesrvAddr": namesrv, **(plugin_settings or {})}
        async with _broker(config, store_config, plugins, tls, also) as address:
            yield System(namesrv, address, folder, folder / "store", also)


def _broker_configs(store: pathlib.Path, settings: Mapping[str, str]) -> tuple[BrokerConfig, StoreConfig]:
    return load_all(
        (BrokerConfig, StoreConfig),
        arguments={**SETTINGS, **settings, "storePathRootDir": str(store)},
        environment={},
    )


@asynccontextmanager
async def _broker(
    config: BrokerConfig,
    store_config: StoreConfig,
    plugins: Mapping[str, str],
    tls: TlsConfig | None,
    also: dict[str, str],
) -> AsyncIterator[str]:
    """Run the broker; yields its address, and fills `also`."""
    running = partial(broker_service.run, config, store_config, tls=tls, plugin_settings=plugins, also=also)
    async with TaskGroupScope() as scope:
        addresses = await scope.tasks.start(running)
        yield addresses[0]
