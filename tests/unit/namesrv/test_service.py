"""The name server as a service: over real sockets, and over a memory network in mock time."""

from __future__ import annotations

import gc
import json
import pathlib
import socket
import warnings
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve

from rmq.errors import ConfigError, PortInUse, RemoteProtocolError
from rmq.files import with_changes
from rmq.namesrv.__main__ import banner, main, parse, settings
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.service import ClientOnlyEndpoint, run
from rmq.protocol import headers
from rmq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.network import Network, TcpNetwork
from rmq.remoting.pool import Pool
from rmq.remoting.transports.tls import TlsConfig
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork


@pytest.fixture
def config(tmp_path: pathlib.Path) -> NamesrvConfig:
    return NamesrvConfig(listen_port=0, kv_config_path=str(tmp_path / "deep" / "kvConfig.json"))


class Client:
    """Asks name servers over one network."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def ask(self, address: str, code: int, header: Any = None, body: bytes = b"") -> Command:
        return await self.pool.call(address, Command.request(code, header, body), 5.0)

    async def register(self, address: str, *topics: str, **changes: Any) -> Command:
        table = {topic: TopicConfig(topic, 4, 4) for topic in topics}
        body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(1, 1))).encode()
        values = {
            "broker_name": "a",
            "broker_addr": "127.0.0.1:10911",
            "cluster_name": "C",
            "ha_server_addr": "127.0.0.1:10912",
            "broker_id": 0,
            "body_crc32": zlib.crc32(body) & 0x7FFF_FFFF,
        }
        header = headers.RegisterBrokerRequestHeader(**(values | changes))
        return await self.ask(address, RequestCode.REGISTER_BROKER, header, body)

    async def route(self, address: str, topic: str) -> TopicRouteData | None:
        header = headers.GetRouteInfoRequestHeader(topic)
        response = await self.ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert response.code == ResponseCode.SUCCESS, response.remark
        return TopicRouteData.from_json(response.body)


@asynccontextmanager
async def name_servers(network: Network, *configs: NamesrvConfig) -> AsyncIterator[tuple[Client, list[str]]]:
    """Run name servers; gives a client and their addresses."""
    async with trio.open_nursery() as nursery, Pool(network, ClientOnlyEndpoint()) as pool:
        addresses = []
        for config in configs:
            addresses += await nursery.start(partial(run, config, network=network))
        yield Client(pool), addresses
        nursery.cancel_scope.cancel()


async def test_brokers_and_clients_meet_over_loopback(config: NamesrvConfig) -> None:
    async with name_servers(TcpNetwork(), config) as (client, [address]):
        assert address.startswith("127.0.0.1:")
        assert not address.endswith(":0")
        assert await client.route(address, "T") is None
        assert (await client.register(address, "T")).code == 0
        async with Pool(TcpNetwork(), ClientOnlyEndpoint()) as other:
            route = await Client(other).route(address, "T")
            assert route is not None
            assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
            client.pool.close(address)
            with trio.fail_after(5):
                while await Client(other).route(address, "T"):
                    await trio.sleep(0)


async def test_many_requests_at_once_over_loopback(config: NamesrvConfig) -> None:
    async with name_servers(TcpNetwork(), config) as (client, [address]):
        await client.register(address, *(f"T{number}" for number in range(200)))
        found: list[str] = []

        async def look(number: int) -> None:
            route = await client.route(address, f"T{number}")
            assert route is not None
            found.append(route.queue_datas[0].broker_name)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(look, number)
        assert found == ["a"] * 200


async def test_nonsense_ends_only_its_own_connection(config: NamesrvConfig) -> None:
    async with name_servers(TcpNetwork(), config) as (client, [address]):
        await client.register(address, "T")
        host, _, port = address.rpartition(":")
        for nonsense in (b"\x00\x00\x00\x08\x00\x00\x00\x04!!!!", b"\x01\x00\x00\x01", b"\x80\x00\x00\x00"):
            stream = await trio.open_tcp_stream(host, int(port))
            await stream.send_all(nonsense + bytes(20))
            with trio.fail_after(5):
                with suppress(trio.BrokenResourceError):
                    assert await stream.receive_some() == b""
            await stream.aclose()
        assert await client.route(address, "T") is not None


@pytest.mark.parametrize("controllers", ["", "10.0.0.1:9876;10.0.0.2:9876;10.0.0.3:9876"])
async def test_nothing_is_left_to_the_garbage_collector(
    autojump_clock: trio.testing.MockClock, config: NamesrvConfig, controllers: str
) -> None:
    config = evolve(config, listen_port=9876, bind_address="10.0.0.1", controllers=controllers)
    gc.collect()  # of tests before this one
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        async with trio.open_nursery() as nursery:
            network = MemoryNetwork().host("10.0.0.1")
            await nursery.start(
                partial(run, config, network=network, disk=MemoryDisk(), lease_clock=trio.current_time)
            )
            await trio.sleep(5)  # a controller asks the others for their votes
            nursery.cancel_scope.cancel()
        gc.collect()
    assert [str(one.message) for one in seen if one.category is ResourceWarning] == []


async def test_a_port_in_use_is_said_plainly(config: NamesrvConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}"):
            await run(NamesrvConfig(listen_port=port, kv_config_path=config.kv_config_path))


async def test_name_servers_know_nothing_of_each_other(config: NamesrvConfig) -> None:
    async with name_servers(TcpNetwork(), config, config) as (client, [one, two]):
        await client.register(one, "T")
        assert await client.route(one, "T") is not None
        assert await client.route(two, "T") is None


async def test_texts_outlive_the_name_server(config: NamesrvConfig) -> None:
    put = headers.PutKVConfigRequestHeader("ns", "k", "vé")
    async with name_servers(TcpNetwork(), config) as (client, [address]):
        assert (await client.ask(address, RequestCode.PUT_KV_CONFIG, put)).code == 0
    path = pathlib.Path(config.kv_config_path)
    assert json.loads(path.read_text()) == {"configTable": {"ns": {"k": "vé"}}}
    assert [file.name for file in path.parent.iterdir()] == ["kvConfig.json"]
    async with name_servers(TcpNetwork(), config) as (client, [address]):
        response = await client.ask(
            address, RequestCode.GET_KV_CONFIG, headers.GetKVConfigRequestHeader("ns", "k")
        )
        assert dict(response.ext) == {"value": "vé"}


async def test_damaged_texts_stop_the_start(config: NamesrvConfig) -> None:
    path = pathlib.Path(config.kv_config_path)
    path.parent.mkdir()
    path.write_text('{"configTable":{"ns":')
    with pytest.raises(RemoteProtocolError, match=f"{path} is damaged"):
        await run(config)
    path.write_text("")
    async with name_servers(TcpNetwork(), config) as (client, [address]):
        assert await client.route(address, "T") is None


async def test_a_setting_changed_from_afar_is_kept_in_its_file(
    config: NamesrvConfig, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# mine\nlistenPort = 0\n")
    kept = NamesrvConfig(listen_port=0, kv_config_path=config.kv_config_path, config_store_path=str(file))
    async with name_servers(TcpNetwork(), kept) as (client, [address]):
        response = await client.ask(
            address, RequestCode.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true"
        )
        assert response.code == 0
    assert file.read_text() == "# mine\nlistenPort = 0\norderMessageEnable=true\n"


def test_changed_settings_replace_their_lines() -> None:
    text = "# a\nb = 1\nc:2\n\nb=3\nlong = x\\\n  y\n"
    assert with_changes(text, {"b": "9", "d": "8"}) == "# a\nb=9\nc:2\n\n\nlong = x\\\n  y\nd=8\n"
    assert with_changes("", {"b": "9"}) == "b=9\n"


def test_a_setting_is_kept_once_whichever_name_it_has_in_the_file() -> None:
    text = "file_reserved_time=5\n# x\nfileReservedTime=6\nbroker_ip1=::1\n"
    assert with_changes(text, {"fileReservedTime": "7"}) == "fileReservedTime=7\n# x\n\nbroker_ip1=::1\n"
    assert with_changes("broker_ip1=::1\n", {"brokerIP1": "1.1.1.1"}) == "brokerIP1=1.1.1.1\n"
    assert with_changes("x=1", {}) == "x=1\n"


# In mock time.


async def test_a_broker_that_stays_silent_is_forgotten(
    config: NamesrvConfig, autojump_clock: trio.testing.MockClock
) -> None:
    network = MemoryNetwork(seed=1)
    async with name_servers(network, config) as (client, [address]):
        await client.register(address, "T")
        began = trio.current_time()
        async with Pool(network, ClientOnlyEndpoint()) as other:
            watcher = Client(other)
            connection = await client.pool.connection(address)
            with trio.fail_after(300):
                while await watcher.route(address, "T"):
                    if not connection.is_closed:  # the connection lives, only the registrations stop
                        await client.ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
                    await trio.sleep(5)
            assert 120 <= trio.current_time() - began <= 140
            await trio.sleep(1)
            assert connection.is_closed


async def test_a_broker_that_keeps_registering_stays(
    config: NamesrvConfig, autojump_clock: trio.testing.MockClock
) -> None:
    network = MemoryNetwork(seed=2)
    async with name_servers(network, config) as (client, [address]):
        for _ in range(20):
            await client.register(address, "T")
            await trio.sleep(60)
            assert await client.route(address, "T") is not None


async def test_a_broker_on_a_dead_network_is_forgotten(
    config: NamesrvConfig, autojump_clock: trio.testing.MockClock
) -> None:
    network = MemoryNetwork(seed=3)
    patient = NamesrvConfig(
        listen_port=0,
        bind_address="10.0.0.1",
        kv_config_path=config.kv_config_path,
        server_channel_max_idle_time_seconds=10_000,
    )
    near, far = network.host("10.0.0.1"), network.host("10.0.0.7")
    async with name_servers(near, patient) as (client, [address]), Pool(far, ClientOnlyEndpoint()) as pool:
        await Client(pool).register(address, "T", broker_addr="10.0.0.7:10911")
        network.partition("10.0.0.7", "10.0.0.1")
        await trio.sleep(115)
        assert await client.route(address, "T") is not None
        await trio.sleep(20)
        assert await client.route(address, "T") is None


async def test_cluster_test_mode_asks_the_production_name_servers(
    config: NamesrvConfig, autojump_clock: trio.testing.MockClock
) -> None:
    network = MemoryNetwork(seed=4)
    async with name_servers(network, config) as (client, [production]):
        await client.register(production, "Real", broker_name="p")
        test = NamesrvConfig(
            listen_port=0,
            kv_config_path=config.kv_config_path,
            cluster_test=True,
            product_namesrv_addr=f"127.0.0.1:1;{production}",
        )
        async with name_servers(network, test) as (tester, [address]):
            await tester.register(address, "T")
            assert await tester.route(address, "T") is not None
            route = await tester.route(address, "Real")
            assert route is not None
            assert [data.broker_name for data in route.broker_datas] == ["p"]
            assert await tester.route(address, "Unreal") is None


async def test_cluster_test_mode_without_production_answers_all_the_same(
    config: NamesrvConfig, autojump_clock: trio.testing.MockClock
) -> None:
    for addresses in ("", "127.0.0.1:1"):
        test = NamesrvConfig(
            listen_port=0,
            kv_config_path=config.kv_config_path,
            cluster_test=True,
            product_namesrv_addr=addresses,
        )
        async with name_servers(MemoryNetwork(seed=5), test) as (client, [address]):
            assert await client.route(address, "Real") is None


# The command line.


def test_a_port_in_use_has_its_own_exit_status(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status = main(["--set", f"listenPort={port}", "--set", f"kvConfigPath={tmp_path}/kv.json"])
    assert status == 3
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "listenPort=99999"], "listenPort"),
        (["--set", "listenPort"], "KEY=VALUE"),
        (["-c", "/no/such/file.conf"], "/no/such/file.conf"),
        (["--set", "tlsMode=maybe"], "tlsMode"),
        (["--set", "clusterTest=true", "-n", "nonsense"], "productNamesrvAddr"),
    ],
)
def test_wrong_settings_have_their_own_exit_status(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_damaged_texts_have_a_message(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kv.json").write_text("{")
    assert main(["--set", "listenPort=0", "--set", f"kvConfigPath={tmp_path}/kv.json"]) == 1
    assert "kv.json is damaged" in capsys.readouterr().err


def test_settings_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-p", "--set", "listenPort=9877"]) == 0
    every = capsys.readouterr().out
    assert "listenPort=9877\n" in every
    assert "orderMessageEnable=false\n" in every
    assert main(["-m"]) == 0
    some = capsys.readouterr().out
    assert "listenPort=9876\n" in some
    assert "orderMessageEnable" not in some


def test_java_flags_and_files_are_understood(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("orderMessageEnable=true\nrocketmqHome=/opt\n")
    config, _ = settings(parse(["-c", str(file), "-n", "10.0.0.1:9876"]))
    assert (config.order_message_enable, config.product_namesrv_addr) == (True, "10.0.0.1:9876")
    assert config.config_store_path == str(file)
    with pytest.raises(ConfigError):
        settings(parse(["--set", "orderMessageEnable=maybe"]))


def test_the_banner_warns_when_others_can_reach_it() -> None:
    local = banner(NamesrvConfig(), TlsConfig(), ["127.0.0.1:9876"])
    assert local == "rmq name server listens on 127.0.0.1:9876"
    for host in ("0.0.0.0", "::", "192.168.1.5", "broker.example.org"):
        wide = NamesrvConfig(bind_address=host)
        assert "WARNING" in banner(wide, TlsConfig(), [f"{host}:9876"])
        assert "WARNING" in banner(wide, TlsConfig(tls_mode="enforcing"), [f"{host}:9876"])
        guarded = NamesrvConfig(bind_address=host, acl_enable=True, cluster_secret_file="secret")
        assert "WARNING" in banner(guarded, TlsConfig(), [f"{host}:9876"])
        assert "WARNING" not in banner(guarded, TlsConfig(tls_mode="enforcing"), [f"{host}:9876"])
    for host in ("localhost", "::1", "127.0.0.2"):
        assert "WARNING" not in banner(NamesrvConfig(bind_address=host), TlsConfig(), [host])
