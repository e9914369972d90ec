from __future__ import annotations

import contextlib
import logging
import os
import ssl
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked

from rmq.config import load
from rmq.errors import ConfigError, ConnectFailed
from rmq.remoting import Limits, TlsConfig, open_stream
from rmq.remoting.transports.tls import TlsContexts, TlsStream, tls_client, tls_server
from rmq.testing import MemoryNetwork
from tests.unit.remoting.serving.servers import echoes, served

from ..peers import RawPeer, request
from ..transports import both, certificates, evolve


async def dialled(network: MemoryNetwork, address: str, config: TlsConfig) -> TlsStream:
    stream = await network.dial(address)
    return await tls_client(stream, TlsContexts(evolve(config, tls_cert_path="")), "127.0.0.1")


def serial(stream: TlsStream) -> object:
    certificate = stream._ssl.getpeercert()
    assert certificate is not None
    return certificate["serialNumber"]


async def test_changed_certificates_are_read_without_a_restart(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, config = MemoryNetwork(), certificates(tmp_path)
    async with served(network, tls=config) as (address,):
        first = serial(await dialled(network, address, config))
        assert serial(await dialled(network, address, config)) == first
        certificates(tmp_path)
        second = serial(await dialled(network, address, config))
        assert second != first
        # Half-written files change nothing, but are talked about.
        good = Path(config.tls_cert_path).read_bytes()
        Path(config.tls_cert_path).write_bytes(good[:100])
        assert serial(await dialled(network, address, config)) == second
        assert "keeping the TLS certificate that was loaded before" in caplog.text
        Path(config.tls_cert_path).write_bytes(good)
        assert serial(await dialled(network, address, config)) == second


async def test_a_server_knows_the_common_name_of_a_verified_client(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    authority = trustme.CA()
    files = {"tls_trust_path": tmp_path / "ca.pem", "tls_cert_path": tmp_path / "own.pem"}
    authority.cert_pem.write_to_path(str(files["tls_trust_path"]))
    config = TlsConfig(**{name: str(path) for name, path in files.items()})
    names = []
    for auth in ("optional", "none"):
        own = authority.issue_cert("127.0.0.1", common_name="orders-app")
        own.private_key_and_cert_chain_pem.write_to_path(str(files["tls_cert_path"]))
        network = MemoryNetwork()
        listener = await network.listen("127.0.0.1:0")
        server = TlsContexts(evolve(config, tls_client_auth=auth, tls_mode="enforcing"))
        for client in (config, evolve(config, tls_cert_path="")):
            async with trio.open_nursery() as nursery:
                stream = await network.dial(listener.address)
                nursery.start_soon(tls_client, stream, TlsContexts(client), "127.0.0.1")
                names.append((await tls_server(await listener.accept(), server)).certificate_name)
    assert names == ["orders-app", "", "", ""]


async def test_a_new_authority_is_trusted_without_a_restart(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    network, config = MemoryNetwork(), certificates(tmp_path)
    contexts = TlsContexts(config)
    async with served(network, tls=config) as (address,):
        assert await echoes(network, f"tls://{address}", contexts)
        certificates(tmp_path)
        assert await echoes(network, f"tls://{address}", contexts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tls_cert_path": "missing.pem"}, "tlsCertPath"),
        ({"tls_cert_path": __file__}, "tlsCertPath"),
        ({"tls_key_path": "missing.pem"}, "missing.pem"),
        ({"tls_cert_path": ""}, "tlsCertPath"),
        ({"tls_client_auth": "require", "tls_trust_path": "missing.pem"}, "tlsTrustPath"),
    ],
)
def test_files_that_are_not_usable(changes: dict[str, str], message: str, tls_config: TlsConfig) -> None:
    with pytest.raises(ConfigError, match=message):
        TlsContexts(evolve(tls_config, **changes)).server()


def test_contexts_are_strict(tls_config: TlsConfig) -> None:
    contexts = TlsContexts(tls_config)
    for context in (contexts.server(), contexts.client()):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert contexts.client().verify_mode == ssl.CERT_REQUIRED
    assert contexts.client().check_hostname
    assert contexts.server().options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize(
    ("offered", "agreed"), [((), None), (("h2",), "h2"), (("http/1.1", "h2"), "h2"), (("http/1.1",), None)]
)
def test_a_client_of_grpc_agrees_on_http_2(offered: tuple[str, ...], agreed: str | None) -> None:
    server = TlsContexts(TlsConfig(tls_test_mode=True, tls_mode="permissive")).server()
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    if offered:
        client.set_alpn_protocols(list(offered))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert ours.version() is not None
    assert ours.selected_alpn_protocol() == theirs.selected_alpn_protocol() == agreed


def test_settings_are_read_like_all_others() -> None:
    config = load(TlsConfig, arguments={"tlsMode": "enforcing", "tlsCertPath": "/x"}, environment={})
    assert (config.tls_mode, config.tls_cert_path) == ("enforcing", "/x")
    with pytest.raises(ConfigError, match="disabled, permissive, enforcing"):
        load(TlsConfig, arguments={"tlsMode": "on"}, environment={})


async def test_who_is_accepted(autojump_clock: MockClock, tmp_path: Path, tls_config: TlsConfig) -> None:
    network = MemoryNetwork()
    stranger = certificates(tmp_path)
    async with served(network, tls=tls_config) as (address,):
        target = f"tls://{address}"
        with pytest.raises(
            ConnectFailed,
            match="TLS handshake: the certificate is not accepted: it comes from an untrusted authority",
        ):
            await echoes(network, target, TlsContexts(stranger))
        wrong_name = evolve(tls_config, tls_server_name="broker-a.example")
        with pytest.raises(ConnectFailed, match="it is for other names: connect by one of its names"):
            await echoes(network, target, TlsContexts(wrong_name))
        right_name = evolve(tls_config, tls_server_name="localhost")
        assert await echoes(network, target, TlsContexts(right_name))
        assert await echoes(network, target, TlsContexts(evolve(stranger, tls_insecure_skip_verify=True)))


@pytest.mark.parametrize(("auth", "answered"), [("none", True), ("optional", True), ("require", False)])
async def test_client_certificates(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    auth: str,
    answered: bool,
    tls_config: TlsConfig,
) -> None:
    network = MemoryNetwork()
    nameless = evolve(tls_config, tls_cert_path="")
    async with served(network, tls=evolve(tls_config, tls_client_auth=auth)) as (address,):
        assert await echoes(network, f"tls://{address}", TlsContexts(tls_config))
        try:  # in TLS 1.3 the client learns of the refusal only after its handshake
            result = await echoes(network, f"tls://{address}", TlsContexts(nameless))
        except trio.BrokenResourceError:
            result = False
        assert result == answered
        await trio.sleep(2)  # the server says so once the client has hung up, or after a second
        assert ("TLS handshake: peer did not return a certificate" in caplog.text) == (not answered)


async def test_a_plain_port_is_no_tls(autojump_clock: MockClock, tls: TlsContexts) -> None:
    network = MemoryNetwork()
    async with served(network) as (address,):
        with pytest.raises(ConnectFailed, match="TLS handshake: "):
            await echoes(network, f"tls://{address}", tls)


async def test_a_server_that_does_not_shake_hands(autojump_clock: MockClock, tls: TlsContexts) -> None:
    network = MemoryNetwork()
    listener = await network.listen("127.0.0.1:1")
    for scheme, stage in (("tls", "TLS"), ("ws", "WebSocket")):
        with pytest.raises(ConnectFailed, match=f"{stage} handshake: no answer within 3 s"):
            await echoes(network, f"{scheme}://{listener.address}", tls)
        assert await _closed(await listener.accept())


async def _closed(stream: trio.abc.Stream) -> bool:
    while await stream.receive_some():
        pass
    return True


async def test_a_peer_that_hangs_up_without_goodbye_breaks_the_stream(tls: TlsContexts) -> None:
    network = MemoryNetwork()
    raw = network.pair()
    client, server = await both(lambda: tls_client(raw[0], tls, "127.0.0.1"), lambda: tls_server(raw[1], tls))
    await server.send_all(b"last words")
    await raw[1].aclose()
    assert await client.receive_some() == b"last words"
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError, match="without close_notify"):
            await client.receive_some()


async def test_a_goodbye_is_the_end_though_the_transport_stays_open(tls: TlsContexts) -> None:
    network = MemoryNetwork()
    raw = network.pair()
    client, server = await both(lambda: tls_client(raw[0], tls, "127.0.0.1"), lambda: tls_server(raw[1], tls))
    assert isinstance(server, TlsStream)
    server._close_notify()
    with trio.fail_after(5):
        for _ in range(2):
            assert await client.receive_some() == b""


async def test_damaged_records_break_the_stream(tls: TlsContexts) -> None:
    network = MemoryNetwork()
    raw = network.pair()
    client, server = await both(lambda: tls_client(raw[0], tls, "127.0.0.1"), lambda: tls_server(raw[1], tls))
    await raw[0].send_all(b"\x17\x03\x03\x00\x20" + os.urandom(32))
    with pytest.raises(trio.BrokenResourceError, match=r"decryption failed|bad record"):
        await server.receive_some()
    assert client is not server


async def test_a_short_send_now_goes_on_where_it_stopped(tls: TlsContexts) -> None:
    network = MemoryNetwork()
    raw = network.pair()
    client, server = await both(lambda: tls_client(raw[0], tls, "127.0.0.1"), lambda: tls_server(raw[1], tls))
    assert isinstance(client, TlsStream)
    network.window = 1000
    data = os.urandom(50_000)
    assert client.send_now([data[:20_000], data[20_000:30_000]]) == 0  # encrypted, in part on its way
    assert client.send_now([data[:30_000]]) == 0
    received = bytearray()

    async def receive() -> None:
        while len(received) < len(data):
            received.extend(await server.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        await client.wait_send_all_might_not_block()
        sent = client.send_now([data[:30_000]])
        assert sent == 30_000
        while sent < 40_000:
            await client.wait_send_all_might_not_block()
            sent += client.send_now([data[sent:40_000]])
        assert client.send_now([data[sent:]]) == 0
        await client.send_all(data[sent:])
    assert bytes(received) == data


async def test_a_cancelled_wait_loses_no_record(autojump_clock: MockClock, tls: TlsContexts) -> None:
    network = MemoryNetwork(window=100)
    raw = network.pair()
    network.window = 10_000
    client, server = await both(lambda: tls_client(raw[0], tls, "127.0.0.1"), lambda: tls_server(raw[1], tls))
    network.window = 100
    assert isinstance(client, TlsStream)
    data = os.urandom(5000)
    sent = client.send_now([data])
    received = bytearray()

    async def receive() -> None:
        while len(received) < len(data):
            received.extend(await server.receive_some())
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        while sent < len(data):
            with trio.move_on_after(0.01):
                await client.wait_send_all_might_not_block()
                sent += client.send_now([data[sent:]])
    assert bytes(received) == data


async def test_key_updates_and_sends_do_not_disturb_each_other(tls: TlsContexts) -> None:
    """The reader has to send too, when OpenSSL says so; here it waits behind a task that is sending."""
    network = MemoryNetwork()
    raw = network.pair()
    client, server = await both(lambda: tls_client(raw[0], tls, "127.0.0.1"), lambda: tls_server(raw[1], tls))
    assert isinstance(server, TlsStream)
    network.window = 500
    data = os.urandom(20_000)
    received = bytearray()

    async def receive() -> None:
        while len(received) < len(data):
            received.extend(await client.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.send_all, data)
        await wait_all_tasks_blocked()
        nursery.start_soon(server._push)  # what a reader does in that case
        await wait_all_tasks_blocked()
        nursery.start_soon(receive)
    assert bytes(received) == data


async def test_a_connection_over_tls_to_a_slow_reader(
    autojump_clock: MockClock, tls_config: TlsConfig
) -> None:
    network = MemoryNetwork()
    async with (
        served(network, tls=tls_config, limits=Limits(pause_bytes=10_000)) as (address,),
        open_stream(network, f"tls://{address}", tls=TlsContexts(tls_config)) as stream,
        trio.open_nursery() as nursery,
    ):
        network.window = 3000
        peer = RawPeer(stream)
        many = [request(bytes([n % 256]) * 1500) for n in range(100)]

        async def flood() -> None:
            for one in many:
                await peer.send(one)

        nursery.start_soon(flood)
        await wait_all_tasks_blocked()
        assert [r.body for r in await peer.receive(100)] == [r.body for r in many]


async def test_passwords_of_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    caplog.set_level(logging.DEBUG)
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"sesame"))
    (tmp_path / "key.pem").write_bytes(secret)
    config = TlsConfig(
        tls_cert_path=str(tmp_path / "cert.pem"),
        tls_key_path=str(tmp_path / "key.pem"),
        tls_key_password="sesame",
    )
    TlsContexts(config).server()
    with pytest.raises(ConfigError) as error:
        TlsContexts(evolve(config, tls_key_password="guess")).server()
    assert "guess" not in str(error.value)
