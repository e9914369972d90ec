"""A client, a name server and a broker over TLS and WebSocket, and what an application reads of failures."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme
from attrs import evolve
from trio.testing import MockClock

import rmq
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service as broker
from rmq.errors import ConfigError, RmqError
from rmq.namesrv import service as namesrv
from rmq.namesrv.config import NamesrvConfig
from rmq.remoting import TlsConfig
from rmq.remoting.transports.tls import TlsContexts, with_file
from rmq.store.config import StoreConfig
from rmq.testing import MemoryNetwork
from rmq.testing.disk import MemoryDisk

FILES = {
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 64,
    "max_index_num": 1024,
}


class Authority:
    """An authority and the files of what it issues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ca = trustme.CA()
        self.path = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, name: str, *hosts: str, days: int = 30) -> str:
        """A PEM file with certificate and key."""
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        path = self.folder / f"{name}.pem"
        self._ca.issue_cert(*hosts, not_after=until).private_key_and_cert_chain_pem.write_to_path(path)
        return str(path)

    def server(self, *hosts: str, days: int = 30, client_auth: str = "none") -> TlsConfig:
        """The TLS settings of name server and broker."""
        return TlsConfig(
            tls_mode="enforcing",
            tls_enable=True,
            tls_cert_path=self.issue("server", *hosts, days=days),
            tls_trust_path=self.path,
            tls_client_auth=client_auth,
        )

    @property
    def client(self) -> TlsConfig:
        """The TLS settings of a client without a certificate."""
        return TlsConfig(tls_trust_path=self.path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def cluster(network: MemoryNetwork, tmp_path: Path, tls: TlsConfig) -> AsyncIterator[None]:
    """A name server and a broker on loopback."""
    names = NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"))
    settings = BrokerConfig(broker_name="b", namesrv_addr="127.0.0.1:9876")
    stop = trio.Event()
    run = partial(broker.run, settings, StoreConfig(**FILES), tls=tls, network=network, disk=MemoryDisk(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(namesrv.run, names, tls=tls, network=network))
        await nursery.start(partial(run, now_ms=lambda: 1_700_000_000_000, stop=stop))
        yield
        stop.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def produced_and_consumed(network: MemoryNetwork, address: str, tls: TlsConfig) -> list[bytes]:
    """The bodies of three messages that were sent and then consumed."""
    bodies = [b"one", b"two", b"three"]
    async with rmq.connect(address, tls=tls, network=network) as client:
        async with client.producer("senders") as producer:
            for body in bodies:
                assert (await producer.send(rmq.Message("Orders", body))).status == "SEND_OK"
        got: list[bytes] = []
        async with client.consumer("readers", {"Orders": "*"}, consume_from="first") as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    got.append(message.body)
                if len(got) == len(bodies):
                    break
    assert sorted(got) == sorted(bodies)
    return got


@pytest.mark.parametrize("scheme", ["tls", "wss"])
async def test_messages_go_and_come(
    autojump_clock: MockClock, tmp_path: Path, authority: Authority, scheme: str
) -> None:
    network = MemoryNetwork(1)
    async with cluster(network, tmp_path, authority.server("127.0.0.1")):
        await produced_and_consumed(network, f"{scheme}://127.0.0.1:9876", authority.client)


async def test_with_tls_enable_no_address_needs_a_scheme(
    autojump_clock: MockClock, tmp_path: Path, authority: Authority
) -> None:
    network = MemoryNetwork(1)
    async with cluster(network, tmp_path, authority.server("127.0.0.1")):
        await produced_and_consumed(network, "127.0.0.1:9876", evolve(authority.client, tls_enable=True))


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss"])
async def test_a_permissive_port_takes_all_four(
    autojump_clock: MockClock, tmp_path: Path, authority: Authority, scheme: str
) -> None:
    network = MemoryNetwork(1)
    tls = evolve(authority.server("127.0.0.1"), tls_mode="permissive")
    async with cluster(network, tmp_path, tls):
        await produced_and_consumed(network, f"{scheme}://127.0.0.1:9876", authority.client)


async def test_mutual_tls_with_other_files_for_dialling(
    autojump_clock: MockClock, tmp_path: Path, authority: Authority
) -> None:
    network = MemoryNetwork(1)
    tls = authority.server("127.0.0.1", client_auth="require")
    server = evolve(tls, tls_client_cert_path=authority.issue("dialler", "dialler.example"))
    client = evolve(authority.client, tls_cert_path=authority.issue("alice", "alice.example"))
    async with cluster(network, tmp_path, server):
        await produced_and_consumed(network, "tls://127.0.0.1:9876", client)


def other_authority(authority: Authority, tmp_path: Path) -> TlsConfig:
    (tmp_path / "other").mkdir()
    return Authority(tmp_path / "other").client


Case = Callable[[Authority, Path], tuple[TlsConfig, TlsConfig]]
CASES: dict[str, tuple[Case, str]] = {
    "an untrusted authority": (
        lambda one, path: (one.server("127.0.0.1"), other_authority(one, path)),
        "comes from an untrusted authority: set tlsTrustPath",
    ),
    "another host": (
        lambda one, path: (one.server("broker-a.example"), one.client),
        "is for other addresses: connect to one of its addresses, issue one for this address, or set "
        "tlsServerName",
    ),
    "expired": (
        lambda one, path: (one.server("127.0.0.1", days=-1), one.client),
        "has expired: replace it with a new one",
    ),
    "no client certificate": (
        lambda one, path: (one.server("127.0.0.1", client_auth="require"), one.client),
        "the server asks for a client certificate: set tlsCertPath and tlsKeyPath",
    ),
    "no TLS at the server": (
        lambda one, path: (TlsConfig(), one.client),
        "TLS handshake",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_an_error_says_what_is_wrong_and_what_to_do(
    autojump_clock: MockClock, tmp_path: Path, authority: Authority, name: str
) -> None:
    case, expected = CASES[name]
    server, client_tls = case(authority, tmp_path)
    network = MemoryNetwork(1)
    names = NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"))
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(namesrv.run, names, tls=server, network=network))
        client = rmq.connect("tls://127.0.0.1:9876", tls=client_tls, network=network)
        async with client, client.producer("senders") as producer:
            with pytest.raises(RmqError) as caught:
                await producer.send(rmq.Message("Orders", b"x"))
        nursery.cancel_scope.cancel()
    assert expected in str(caught.value)


async def test_the_name_is_verified_unless_an_option_says_insecure(
    autojump_clock: MockClock, tmp_path: Path, authority: Authority
) -> None:
    network = MemoryNetwork(1)
    server = evolve(authority.server("cluster.example"), tls_server_name="cluster.example")
    async with cluster(network, tmp_path, server):
        for changes in ({"tls_server_name": "cluster.example"}, {"tls_insecure_skip_verify": True}):
            tls = evolve(authority.client, **changes)  # type: ignore[arg-type]
            await produced_and_consumed(network, "tls://127.0.0.1:9876", tls)


@pytest.mark.parametrize("case", ["its own", "another", "none", "clients need one"])
def test_a_server_whose_peers_would_not_accept_its_certificate_says_so(
    tmp_path: Path, authority: Authority, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server can dial them, and accepts connections that all fail."""
    config = authority.server("10.0.0.1", client_auth="require" if case == "clients need one" else "none")
    if case == "another":
        config = evolve(config, tls_trust_path=other_authority(authority, tmp_path).tls_trust_path)
    elif case == "none":
        config = evolve(config, tls_trust_path="")
    TlsContexts(config).server()
    told = "cannot connect here: the certificate comes from an untrusted authority" in caplog.text
    assert told == (case == "another")


# --- tls.properties ---


def properties(tmp_path: Path, *lines: str) -> TlsConfig:
    path = tmp_path / "tls.properties"
    path.write_text("\n".join(lines))
    return TlsConfig(tls_config_file=str(path))


def test_the_file_of_rocketmq_is_read(tmp_path: Path) -> None:
    config = with_file(
        properties(
            tmp_path,
            "tls.server.mode=Enforcing",
            "tls.server.certPath=/c.pem",
            "tls.server.keyPath=/k.pem",
            "tls.server.keyPassword=hush",
            "tls.server.need.client.auth=REQUIRE",
            "tls.server.authClient=true",
            "tls.server.trustCertPath=/ca.pem",
            "tls.client.certPath=/cc.pem",
            "tls.client.keyPath=/ck.pem",
            "tls.client.trustCertPath=/cca.pem",
            "tls.enable=true",
        )
    )
    assert (config.tls_mode, config.tls_client_auth, config.tls_enable) == ("enforcing", "require", True)
    assert (config.tls_cert_path, config.tls_key_path, config.tls_trust_path) == (
        "/c.pem",
        "/k.pem",
        "/ca.pem",
    )
    dialling = config.dialling
    assert (dialling.tls_cert_path, dialling.tls_key_path, dialling.tls_key_password) == (
        "/cc.pem",
        "/ck.pem",
        "hush",
    )
    assert dialling.tls_trust_path == "/cca.pem"
    assert "hush" not in repr(config)


def test_our_own_settings_come_before_the_file(tmp_path: Path) -> None:
    given = evolve(properties(tmp_path, "tls.server.certPath=/theirs.pem"), tls_cert_path="/ours.pem")
    assert with_file(given).tls_cert_path == "/ours.pem"
    assert with_file(TlsConfig()) == TlsConfig()


def test_what_would_let_anybody_in_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = with_file(properties(tmp_path, "tls.client.authServer=false", "tls.server.authClient=false"))
    assert not config.tls_insecure_skip_verify
    assert "tlsInsecureSkipVerify" in caplog.text


def test_wrong_values_are_named_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls.server.mode.*none, optional|tls.server.mode.*disabled"):
        with_file(properties(tmp_path, "tls.server.mode=on"))
    with pytest.raises(ConfigError, match="readable file"):
        with_file(TlsConfig(tls_config_file=str(tmp_path / "none")))


async def test_test_mode_makes_a_certificate_up(autojump_clock: MockClock, tmp_path: Path) -> None:
    network = MemoryNetwork(1)
    tls = with_file(properties(tmp_path, "tls.test.mode.enable=true", "tls.server.mode=permissive"))
    with pytest.raises(ConfigError, match="rmq certs"):
        TlsContexts(evolve(tls, tls_test_mode=False)).server()
    async with cluster(network, tmp_path, tls):
        await produced_and_consumed(network, "tls://127.0.0.1:9876", TlsConfig(tls_insecure_skip_verify=True))
