"""A broker on loopback, with files and threads."""

from __future__ import annotations

import os
import pathlib
import socket
import threading
import time
from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service
from rmq.errors import (
    ConfigError,
    DiskFull,
    PortInUse,
    StoreLocked,
)
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.network import TcpNetwork
from rmq.store.config import FlushDiskType, StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

from ..rig import pull, send
from .serving import SMALL, bodies, broker

# --- on loopback, with files and threads ---


@pytest.fixture
def files(tmp_path: pathlib.Path) -> dict[str, Any]:
    return {"store_path_root_dir": str(tmp_path / "store")}


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_real_broker(files: dict[str, Any], flush: FlushDiskType) -> None:
    async with broker(TcpNetwork(), None, files | {"flush_disk_type": flush}, listen_port=0) as running:
        host, _, port = running.address.rpartition(":")
        assert (host, int(port) > 0) == ("127.0.0.1", True)
        for number in range(20):
            answer = await running.ask(send(body=b"%d" % number))
            assert (answer.code, answer.ext["queueOffset"]) == (0, str(number))
        assert len(bodies(await running.ask(pull()))) == 20
    assert not os.path.exists(f"{files['store_path_root_dir']}/abort")


async def test_a_flush_that_takes_too_long_is_answered_as_such(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    flush = Store.flush

    def slow(self: Store) -> int:
        release.wait(60)
        return flush(self)

    monkeypatch.setattr(Store, "flush", slow)
    store = files | {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 20}
    async with broker(TcpNetwork(), None, store, listen_port=0) as running:
        answer = await running.ask(send())
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert (await running.ask(pull())).code == 0
        release.set()
        with trio.fail_after(60):  # a busy machine may take its 20 ms for a sync more than once
            while (answer := await running.ask(send())).code == ResponseCode.FLUSH_DISK_TIMEOUT:
                pass
        assert answer.code == 0


async def test_expired_files_are_removed_in_a_thread_while_others_are_served(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = threading.Event(), threading.Event()
    remove, paths = RealDisk.remove, []

    def slow(self: RealDisk, path: str) -> None:
        if "commitlog" in path:
            assert threading.current_thread() is not threading.main_thread()
            paths.append(path)
            begun.set()
            release.wait(60)
        remove(self, path)

    monkeypatch.setattr(RealDisk, "remove", slow)
    hour = time.localtime().tm_hour
    store = files | {
        "file_reserved_time": 0,
        "delete_when": f"{(hour + 5) % 24:02}",
        "mapped_file_size_commit_log": 1 << 16,
    }
    async with broker(TcpNetwork(), None, store, listen_port=0) as running:
        for _ in range(300):
            assert (await running.ask(send(body=bytes(1000)))).code == 0
        log = f"{files['store_path_root_dir']}/commitlog"
        before = len(os.listdir(log))
        assert before > 3
        assert (await running.ask(Command.request(RequestCode.DELETE_EXPIRED_COMMITLOG))).code == 0
        assert await trio.to_thread.run_sync(begun.wait, 10)
        assert (await running.ask(send())).code == 0, "while the disk is at it"
        assert len(paths) == 1
        assert len(os.listdir(log)) >= before
        release.set()
        with trio.fail_after(60):
            while len(os.listdir(log)) > 2:
                await running.ask(send())


async def test_a_topic_that_is_saved_slowly_holds_up_its_own_senders_only(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    save = Store.save_config

    def slow(self: Store, name: str, data: bytes) -> None:
        if b"Slow" in data:
            release.wait(5)
        save(self, name, data)

    monkeypatch.setattr(Store, "save_config", slow)
    async with broker(TcpNetwork(), None, files, listen_port=0) as running:
        assert (await running.ask(send("Known"))).code == 0
        answers: list[int] = []

        async def first() -> None:
            answers.append((await running.ask(send("Slow"))).code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            for _ in range(20):
                assert (await running.ask(send("Known"))).code == 0
            assert answers == []
            release.set()
        assert answers == [0]


async def test_a_port_in_use_is_told_before_the_store_is_touched(files: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = BrokerConfig(broker_name="b", listen_port=taken.getsockname()[1])
        with pytest.raises(PortInUse):
            await service.run(config, StoreConfig(**SMALL | files))
    assert not os.path.exists(files["store_path_root_dir"])


@pytest.mark.parametrize(
    ("taken", "told"),
    [(11909, "vipChannelEnabled=false"), (11911, "stop the other"), (11912, "haEnable=false")],
)
async def test_which_port_is_in_use_is_said(
    files: dict[str, Any], network: MemoryNetwork, taken: int, told: str
) -> None:
    await network.listen(f"127.0.0.1:{taken}")
    config = BrokerConfig(broker_name="b", listen_port=11911)
    with pytest.raises(PortInUse, match=rf"127.0.0.1:{taken}\b.*{told}"):
        await service.run(config, StoreConfig(**SMALL | files), network=network)
    for port in {11909, 11911, 11912} - {taken}:
        await network.listen(f"127.0.0.1:{port}")  # raises where one listens


async def test_a_store_of_another_broker_is_told_and_the_port_is_free_again(
    files: dict[str, Any], network: MemoryNetwork
) -> None:
    async with broker(network, None, files):
        config = BrokerConfig(broker_name="b", listen_port=11911, vip_channel_enabled=False)
        with pytest.raises(StoreLocked):
            await service.run(config, StoreConfig(**SMALL | files), network=network)
        await network.listen("127.0.0.1:11911")  # raises where one listens


async def test_what_fails_once_the_store_is_open_leaves_no_port_and_no_lock(
    files: dict[str, Any], network: MemoryNetwork
) -> None:
    def full(broker: Broker) -> None:
        raise DiskFull("no room")

    config = BrokerConfig(broker_name="b", listen_port=11911)
    with pytest.raises(DiskFull):
        await service.run(config, StoreConfig(**SMALL | files), network=network, on_opened=full)
    async with broker(network, None, files, listen_port=11911, vip_channel_enabled=True):
        pass  # raises where the port is in use, or the store


async def test_the_vip_port_answers_too(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk
) -> None:
    async with broker(network, disk, vip_channel_enabled=True) as running:
        answer = await running.pool.call("127.0.0.1:10909", send(), 5)
        assert answer.code == 0


@pytest.mark.parametrize("changes", [{"broker_id": 1}, {"enable_d_leger_commit_log": True}])
async def test_settings_that_do_not_fit_are_told(files: dict[str, Any], changes: dict[str, Any]) -> None:
    config = BrokerConfig(**{"broker_name": "b", "listen_port": 0} | changes)
    with pytest.raises(ConfigError):
        await service.run(config, StoreConfig(**SMALL | files))


async def test_a_name_as_broker_ip_is_looked_up(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(host: str, port: int, *_: object) -> list[Any]:
        if host in ("known", b"known"):
            return [(None, None, None, "", ("10.1.2.3", port))]
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", look_up)
    changes = {"listen_port": 0, "bind_address": "127.0.0.1"}
    async with broker(TcpNetwork(), None, files, broker_ip1="known", **changes) as running:
        answer = await running.ask(send())
        assert answer.ext["msgId"].startswith("0A010203")
    with pytest.raises(ConfigError, match="brokerIP1"):
        await service.run(BrokerConfig(broker_name="b", broker_ip1="unknown", **changes), StoreConfig())
