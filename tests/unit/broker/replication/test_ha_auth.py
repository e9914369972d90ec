"""The right to follow a master, and to register: no byte leaves the HA port before the proof."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from attrs import evolve
from trio.testing import MockClock

from rmq.broker.config import BrokerConfig
from rmq.broker.plugin_host import plugin_host
from rmq.broker.replication.replica_state import SLAVE_CODES
from rmq.broker.replication.sessions import (
    FRAME,
    GREETING_BYTES,
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    REPORT,
    Challenge,
)
from rmq.broker.runtime import service
from rmq.errors import AccessDenied, ConfigError, RemoteProtocolError
from rmq.namesrv import service as namesrv
from rmq.namesrv.config import NamesrvConfig
from rmq.plugin import Peer, Plugin, hooks_of
from rmq.protocol.auth.server_auth import NONCE, PROOF, TIME, WINDOW_MS, ClusterSecret, ServerAuth
from rmq.protocol.bodies import ClusterInfo, KVTable
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.pool import Pool
from rmq.remoting.transports.stream import Stream
from rmq.remoting.transports.tls import TlsConfig, TlsContexts, tls_client
from rmq.server.profile import cluster_secret
from rmq.store.config import BrokerRole, StoreConfig
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

from ..rig import START, Rig, send

SECRET = b"a secret of the cluster, 32 byte"
HA = "127.0.0.1:10912"
SMALL = {
    "store_path_root_dir": "/store",
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 64,
    "max_index_num": 1024,
}


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    return write_secret(tmp_path / "secret", SECRET)


def write_secret(path: Path, value: bytes) -> str:
    path.write_bytes(value + b"\n")
    path.chmod(0o600)
    return str(path)


@asynccontextmanager
async def broker(
    network: MemoryNetwork,
    *,
    store: dict[str, Any] | None = None,
    tls: TlsConfig | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[Pool, MemoryDisk]]:
    """A broker for the length of the block, with a client's pool and the disk that it writes."""
    given = {"broker_name": "b", "listen_port": 10911, "vip_channel_enabled": False} | changes
    stop = trio.Event()
    start_ms = time.time_ns() // 1_000_000  # name servers compare with the machine's clock
    run = partial(
        service.run,
        BrokerConfig(**given),
        StoreConfig(**SMALL | (store or {})),
        tls=tls,
        network=network,
        disk=MemoryDisk(1),
        now_ms=lambda: start_ms + int(trio.current_time() * 1000),
        stop=stop,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        async with Pool(network, ClientOnlyEndpoint(), tls=tls) as pool:
            yield pool
            stop.set()


async def store_some(pool: Pool, count: int = 3) -> None:
    for _ in range(count):
        answer = await pool.call("127.0.0.1:10911", send("Orders", b"confidential"), 5)
        assert answer.code == ResponseCode.SUCCESS


async def all_of(stream: Stream) -> bytes:
    """The bytes of a peer until it hangs up."""
    said = b""
    try:
        while data := await stream.receive_some():
            said += data
    except trio.BrokenResourceError:
        pass
    return said


# --- the exchange, as bytes ---


def pair(master: bytes = SECRET, slave: bytes = SECRET) -> tuple[Challenge, Challenge]:
    return Challenge(master, b"m" * 32, master=True), Challenge(slave, b"s" * 32, master=False)


def test_both_sides_prove_that_they_have_the_secret() -> None:
    master, slave = pair()
    master.greeted(slave.greeting)
    slave.greeted(master.greeting)
    master.check(slave.proof())
    slave.check(master.proof())
    assert SECRET not in slave.greeting + slave.proof() + master.proof()


def test_another_secret_proves_nothing_on_either_side() -> None:
    master, slave = pair(slave=b"x" * 32)
    master.greeted(slave.greeting)
    slave.greeted(master.greeting)
    for one, other in ((master, slave), (slave, master)):
        with pytest.raises(RemoteProtocolError, match="another secret"):
            one.check(other.proof())


def test_a_proof_cannot_be_sent_back_to_its_maker() -> None:
    master, slave = pair()
    master.greeted(slave.greeting)
    with pytest.raises(RemoteProtocolError):
        master.check(master.proof())
    with pytest.raises(RemoteProtocolError, match="repeats"):
        slave.greeted(slave.greeting)


def test_the_magic_is_no_offset() -> None:
    assert REPORT.unpack(MAGIC)[0] > 1 << 60
    assert len(MAGIC) == REPORT.size


# --- the port ---


@pytest.mark.parametrize(
    "said",
    [
        REPORT.pack(0),
        REPORT.pack(100),
        MAGIC + bytes(NONCE_BYTES),
        MAGIC + bytes(NONCE_BYTES) + bytes(PROOF_BYTES) + REPORT.pack(0),
        b"\xff" * 200,
        b"\x16\x03\x01" + bytes(50),
    ],
)
async def test_a_stranger_gets_no_byte_of_the_log(
    autojump_clock: MockClock, secret_file: str, said: bytes
) -> None:
    network = MemoryNetwork(1)
    async with broker(network, cluster_secret_file=secret_file) as pool:
        await store_some(pool)
        stream = await network.dial(HA)
        await stream.send_all(said)
        answer = await all_of(stream)
        assert len(answer) <= GREETING_BYTES  # a challenge at most
        assert b"confidential" not in answer
        await stream.aclose()


async def test_who_is_refused_is_hung_up_on(autojump_clock: MockClock, secret_file: str) -> None:
    network = MemoryNetwork(1)
    async with broker(network, cluster_secret_file=secret_file):
        for said in (b"\xff" * 200, REPORT.pack(0)):
            stream = await network.dial(HA)
            await stream.send_all(said)
            with trio.fail_after(30):
                await all_of(stream)


async def test_without_a_secret_anybody_gets_the_log_as_from_rocketmq(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(1)
    async with broker(network) as pool:
        await store_some(pool)
        stream = await network.dial(HA)
        await stream.send_all(REPORT.pack(0))
        data = b""
        while b"confidential" not in data:
            data += await stream.receive_some()
        assert FRAME.unpack_from(data)[0] == 0
        await stream.aclose()


async def test_a_recorded_handshake_opens_nothing(autojump_clock: MockClock, secret_file: str) -> None:
    network = MemoryNetwork(1)
    async with broker(network, cluster_secret_file=secret_file) as pool:
        await store_some(pool)
        stream = await network.dial(HA)
        slave = Challenge(SECRET, os.urandom(32), master=False)
        recorded = slave.greeting
        await stream.send_all(slave.greeting)
        slave.greeted(await exactly(stream, GREETING_BYTES))
        recorded += slave.proof() + REPORT.pack(0)
        await stream.send_all(slave.proof())
        slave.check(await exactly(stream, PROOF_BYTES))
        await stream.send_all(REPORT.pack(0))
        assert FRAME.unpack(await exactly(stream, FRAME.size))[1] > 0  # the right one works
        await stream.aclose()
        again = await network.dial(HA)
        await again.send_all(recorded)
        assert len(await all_of(again)) == GREETING_BYTES
        await again.aclose()


async def proved_slave(network: MemoryNetwork) -> Stream:
    stream = await network.dial(HA)
    slave = Challenge(SECRET, os.urandom(32), master=False)
    await stream.send_all(slave.greeting)
    slave.greeted(await exactly(stream, GREETING_BYTES))
    await stream.send_all(slave.proof())
    slave.check(await exactly(stream, PROOF_BYTES))
    return stream


async def test_silent_connections_take_no_slave_s_place(
    autojump_clock: MockClock, secret_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """64 of them filled the port: no slave got in, and sends that wait for one were not replicated."""
    network = MemoryNetwork(1)
    async with broker(network, cluster_secret_file=secret_file) as pool:
        await store_some(pool)
        silent = [await network.dial(HA) for _ in range(100)]
        streams = [await proved_slave(network) for _ in range(3)]
        for _ in range(100):
            silent.append(await network.dial(HA))
        for stream in streams:
            await stream.send_all(REPORT.pack(0))
            assert FRAME.unpack(await exactly(stream, FRAME.size))[1] > 0
        for stream in (*silent, *streams):
            await stream.aclose()


async def test_silent_connections_take_no_place_without_a_secret_either(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(1)
    async with broker(network) as pool:
        await store_some(pool)
        silent = [await network.dial(HA) for _ in range(100)]
        stream = await network.dial(HA)
        await stream.send_all(REPORT.pack(0))
        assert FRAME.unpack(await exactly(stream, FRAME.size))[1] > 0
        for one in (*silent, stream):
            await one.aclose()


async def exactly(stream: Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += await stream.receive_some(count - len(data))
    return data


async def test_a_lie_about_what_was_copied_ends_the_link(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An acknowledgement above what was sent would make messages count as replicated."""
    network = MemoryNetwork(1)
    async with broker(network) as pool:
        await store_some(pool)
        stream = await network.dial(HA)
        await stream.send_all(REPORT.pack(0))
        await exactly(stream, FRAME.size)
        await stream.send_all(REPORT.pack(1 << 40))
        with trio.fail_after(1):  # before its silence would end it too
            await all_of(stream)
        await stream.aclose()
    assert "acknowledges 1099511627776, but only" in caplog.text


@asynccontextmanager
async def cluster(
    network: MemoryNetwork,
    tmp_path: Path,
    master: str,
    slave: str,
    namesrv_secret: str,
    tls: TlsConfig | None,
    **of_master: int,
) -> AsyncIterator[Pool]:
    """Name server, master and slave with these secrets, the master with more settings; yields a pool."""
    names = NamesrvConfig(cluster_secret_file=namesrv_secret, kv_config_path=str(tmp_path / "kv.json"))
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(namesrv.run, names, tls=tls, network=network))
        named: dict[str, Any] = {"cluster_secret_file": master, "namesrv_addr": address, **of_master}
        async with broker(network, tls=tls, **named) as pool:
            follower = broker(
                network,
                store={"broker_role": BrokerRole.SLAVE},
                tls=tls,
                cluster_secret_file=slave,
                namesrv_addr=address,
                broker_id=1,
                listen_port=10921,
            )
            async with follower:
                yield pool
        nursery.cancel_scope.cancel()


async def reached(pool: Pool, address: str) -> int:
    answer = await pool.call(address, Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), 5)
    return int(KVTable.from_json(answer.body).table["commitLogMaxOffset"])


def both_ways(folder: Path) -> TlsConfig:
    """Mutual TLS for everybody on loopback."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    leaf = authority.issue_cert("127.0.0.1")
    leaf.private_key_and_cert_chain_pem.write_to_path(folder / "leaf.pem")
    return TlsConfig(
        tls_mode="enforcing",
        tls_enable=True,
        tls_cert_path=str(folder / "leaf.pem"),
        tls_trust_path=str(folder / "ca.pem"),
        tls_client_auth="require",
    )


@pytest.mark.parametrize("over", ["plain", "tls"])
@pytest.mark.parametrize("guarded", [True, False])
async def test_a_slave_with_the_secret_follows(
    autojump_clock: MockClock, tmp_path: Path, secret_file: str, over: str, guarded: bool
) -> None:
    secret = secret_file if guarded else ""
    tls = both_ways(tmp_path) if over == "tls" else None
    async with cluster(MemoryNetwork(1), tmp_path, secret, secret, secret, tls) as pool:
        await store_some(pool)
        target = await reached(pool, "127.0.0.1:10911")
        with trio.fail_after(120):
            while await reached(pool, "127.0.0.1:10921") < target:
                await trio.sleep(1)


@pytest.mark.parametrize("guarded", [True, False])
async def test_the_log_of_a_slave_that_finds_no_place_says_so(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    secret_file: str,
    guarded: bool,
) -> None:
    network, secret = MemoryNetwork(1), secret_file if guarded else ""
    async with cluster(network, tmp_path, secret, secret, secret, None, ha_max_connections=2) as pool:
        await store_some(pool)
        target = await reached(pool, "127.0.0.1:10911")
        with trio.fail_after(120):
            while await reached(pool, "127.0.0.1:10921") < target:
                await trio.sleep(1)
        third = broker(
            network,
            store={"broker_role": BrokerRole.SLAVE, "ha_master_address": HA},
            cluster_secret_file=secret,
            namesrv_addr="127.0.0.1:9876",
            broker_id=2,
            listen_port=10931,
        )
        async with third:
            await trio.sleep(60)
            assert await reached(pool, "127.0.0.1:10931") == 0
    assert "refused: full (haMaxConnections of the master)" in caplog.text


@pytest.mark.parametrize("wrong", ["another", "none"])
async def test_a_slave_with_another_secret_does_not_follow(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, tmp_path: Path, secret_file: str, wrong: str
) -> None:
    other = write_secret(tmp_path / "other", b"y" * 32) if wrong == "another" else ""
    # Without a secret the name server lets both in, so that the slave knows its master.
    async with cluster(MemoryNetwork(1), tmp_path, secret_file, other, "", None) as pool:
        await store_some(pool)
        await trio.sleep(60)
        assert await reached(pool, "127.0.0.1:10921") == 0
    said = "it has another secret" if wrong == "another" else "does not prove that it has the secret"
    assert said in caplog.text
    assert "a secret of the cluster" not in caplog.text


async def test_the_ha_port_asks_for_a_client_certificate(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, tls = MemoryNetwork(1), both_ways(tmp_path)
    nameless = TlsContexts(evolve(tls, tls_cert_path=""))
    async with broker(network, tls=tls):
        plain = await network.dial(HA)
        await plain.send_all(REPORT.pack(0))
        assert await all_of(plain) == b""
        stream = await tls_client(await network.dial(HA), nameless, "127.0.0.1")
        assert await all_of(stream) == b""
        good = await tls_client(await network.dial(HA), TlsContexts(tls), "127.0.0.1")
        await good.send_all(REPORT.pack(0))
        assert await exactly(good, FRAME.size)
        for one in (plain, stream, good):
            await one.aclose()
    assert "tlsMode=enforcing asks for" in caplog.text
    assert "peer did not return a certificate" in caplog.text


# --- registration ---


async def test_a_name_server_with_a_secret_refuses_who_does_not_sign(
    autojump_clock: MockClock, tmp_path: Path, secret_file: str
) -> None:
    network = MemoryNetwork(1)
    async with cluster(network, tmp_path, secret_file, "", secret_file, None) as pool:
        answer = await pool.call("127.0.0.1:9876", Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), 5)
        known = ClusterInfo.from_json(answer.body).broker_addr_table
        assert known["b"].broker_addrs == {0: "127.0.0.1:10911"}  # the slave has no secret
        for code in (
            RequestCode.REGISTER_BROKER,
            RequestCode.UNREGISTER_BROKER,
            RequestCode.QUERY_DATA_VERSION,
        ):
            header = {
                "brokerName": "b",
                "brokerAddr": "127.0.0.1:10911",
                "clusterName": "DefaultCluster",
                "brokerId": "0",
                "haServerAddr": "6.6.6.6:10912",
            }
            refused = await pool.call("127.0.0.1:9876", Command.request(code, header), 5)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "clusterSecretFile" in (refused.remark or "")


def gate(now_ms: int = 1_000_000) -> tuple[ServerAuth, list[int]]:
    clock = [now_ms]
    return ServerAuth(ClusterSecret(SECRET), lambda: clock[0]), clock


def vouched(now_ms: int = 1_000_000, nonce: bytes = b"n" * 16, **header: str) -> Command:
    request = Command.request(RequestCode.UNREGISTER_BROKER, {"brokerName": "b"} | header, b"body")
    return ClusterSecret(SECRET).sign(request, now_ms, nonce)


def test_a_signed_request_passes_once() -> None:
    checked, clock = gate()
    checked.check(vouched())
    with pytest.raises(AccessDenied, match="sent before"):
        checked.check(vouched())
    checked.check(vouched(nonce=b"o" * 16))
    clock[0] += WINDOW_MS  # the latest moment at which it could be replayed
    with pytest.raises(AccessDenied, match="sent before"):
        checked.check(vouched(nonce=b"o" * 16))


def test_nonces_are_kept_as_long_as_they_could_be_replayed_and_no_longer() -> None:
    checked, clock = gate()
    for minute in range(60):
        clock[0] = 1_000_000 + minute * 60_000
        checked.check(vouched(clock[0] + WINDOW_MS, nonce=b"%16d" % minute))  # a clock that is ahead
        for older in range(max(0, minute - 10), minute + 1):
            with pytest.raises(AccessDenied):
                checked.check(vouched(1_000_000 + older * 60_000 + WINDOW_MS, nonce=b"%16d" % older))
    assert len(checked._seen) + len(checked._seen_before) < 30


@pytest.mark.parametrize("late", [WINDOW_MS + 1, -WINDOW_MS - 1])
def test_a_request_of_another_time_is_refused(late: int) -> None:
    checked, clock = gate()
    clock[0] += late
    with pytest.raises(AccessDenied, match="compare the clocks"):
        checked.check(vouched())


@pytest.mark.parametrize("change", ["code", "header", "more", "body", "time", "nonce", "proof", "shift"])
def test_whatever_is_changed_is_noticed(change: str) -> None:
    good = vouched(a="1", b="2")
    ext, code, body = dict(good.ext), good.code, good.body
    if change == "code":
        code = int(RequestCode.REGISTER_BROKER)
    elif change == "body":
        body = b"bodz"
    elif change == "shift":
        ext["a"] = "1" + "b" + ext.pop("b")  # the same bytes, were they only joined
    else:
        key = {"header": "brokerName", "more": "x", "time": TIME, "nonce": NONCE, "proof": PROOF}[change]
        ext[key] = ext.get(key, "")[:-1] + "_"
    with pytest.raises(AccessDenied, match="another cluster secret"):
        gate()[0].check(Command(code, 1, 0, ext, body))


def test_an_unsigned_request_is_told_what_is_missing() -> None:
    with pytest.raises(AccessDenied, match="clusterSecretFile"):
        gate()[0].check(Command.request(RequestCode.REGISTER_BROKER, {}))


class Closed(Plugin):
    """Lets nobody in, as ACL does with who has no account."""

    def on_request(self, peer: Peer, command: Command) -> None:
        raise AccessDenied(remark="no account")


def test_a_slave_needs_no_account_for_what_slaves_ask_and_for_nothing_else() -> None:
    auth = ServerAuth(ClusterSecret(SECRET), lambda: START)
    rig = Rig(given={"server_auth": auth})
    rig.broker.use_plugins(hooks_of([("closed", Closed({}, plugin_host(rig.broker)))]))
    for number, code in enumerate(sorted(SLAVE_CODES)):
        header = {"offset": "0"} if code == RequestCode.VIEW_MESSAGE_BY_ID else {}
        request = Command.request(code, header)
        assert rig.one(request).remark == "no account"
        good = ClusterSecret(SECRET).sign(request, rig.now_ms, b"%16d" % number)
        assert rig.one(good).code != ResponseCode.NO_PERMISSION
        assert rig.one(good).remark == "no account"  # once is all
        forged = ClusterSecret(b"x" * 32).sign(request, rig.now_ms, b"y%15d" % number)
        assert rig.one(forged).remark == "no account"
    stored = ClusterSecret(SECRET).sign(send("Orders"), rig.now_ms, b"z" * 16)
    assert rig.one(stored).remark == "no account"


async def test_files_that_cannot_be_used_end_the_start(tmp_path: Path) -> None:
    tls = TlsConfig(tls_enable=True, tls_trust_path=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match="tlsTrustPath"):
        await service.run(BrokerConfig(listen_port=0), StoreConfig(**SMALL), tls=tls, disk=MemoryDisk(1))


# --- the file ---


def test_a_secret_is_read_from_its_file_and_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    secret = cluster_secret(write_secret(path, SECRET))
    assert secret == ClusterSecret(SECRET)
    assert "secret of" not in repr(secret)
    assert not caplog.records
    path.chmod(0o644)
    cluster_secret(str(path))
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("text", [None, b"short"])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, text: bytes | None) -> None:
    if text is not None:
        (tmp_path / "secret").write_bytes(text)
    with pytest.raises(ConfigError, match="rmq certs secret") as caught:
        cluster_secret(str(tmp_path / "secret"))
    assert "short" not in str(caught.value)


def test_a_master_takes_the_secret_that_comes_and_the_one_that_goes() -> None:
    for given in (b"new secret", b"old secret"):
        master = Challenge(b"old secret", b"m" * 32, master=True, others=(b"new secret",))
        slave = Challenge(given, b"s" * 32, master=False)
        master.greeted(slave.greeting)
        slave.greeted(master.greeting)
        master.check(slave.proof())
        slave.check(master.proof())
    master = Challenge(b"old secret", b"m" * 32, master=True, others=(b"new secret",))
    master.greeted(slave.greeting)
    with pytest.raises(RemoteProtocolError, match="another secret"):
        master.check(Challenge(b"no secret", b"s" * 32, master=False).greeting)


def test_requests_signed_by_either_of_two_secrets_are_taken(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("the-first-secret-0123456789abcdef\n  the-other-secret-0123456789abcdef\n\n")
    file.chmod(0o600)
    both = cluster_secret(str(file))
    assert both is not None
    request = Command.request(RequestCode.REGISTER_BROKER)
    for name, known in (("the-first", True), ("the-other", True), ("the-third", False)):
        one = ClusterSecret(f"{name}-secret-0123456789abcdef".encode())
        assert both.verifies(one.sign(request, 0, b"n" * 16)) is known
    assert ClusterSecret(both.value).verifies(both.sign(request, 0, b"n" * 16)), "the first signs"
    file.write_text("the-first-secret-0123456789abcdef\nshort\n")
    with pytest.raises(ConfigError, match="clusterSecretFile"):
        cluster_secret(str(file))
