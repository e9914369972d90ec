"""Our client against clusters of Apache RocketMQ 5.3.3: accounts, TLS, slaves, the controller's failover."""

from __future__ import annotations

import pathlib

import pytest
import trio
from click.testing import CliRunner

import rmq
from rmq.cli.local.certs import certs
from rmq.remoting import TlsConfig
from tests.interop.five import client_of, in_thread, take, topic_of, until
from tests.interop.rocketmq import Processes, free_port

pytestmark = pytest.mark.interop

AUTH = "org.apache.rocketmq.auth"
ACCOUNTS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"admin","password":"12345678"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"admin","secretKey":"12345678"}',
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


async def send_one(names: str, topic: str = "T", **options: object) -> rmq.SendResult:
    async with client_of(names, **options) as client, client.producer("five") as producer:
        return await producer.send(rmq.Message(topic, b"x"), timeout=60)


async def test_accounts_of_5(five: Processes, tmp_path: pathlib.Path) -> None:
    names = await in_thread(five.java_namesrv)
    settings = {**ACCOUNTS, "authConfigPath": str(tmp_path / "auth")}
    await in_thread(five.java_broker, names, tmp_path / "store", **settings)
    right = rmq.Credentials("admin", "12345678")
    assert (await send_one(names, credentials=right)).status == "SEND_OK"
    async with (
        client_of(names, credentials=right) as client,
        client.consumer("accounts", {"T": "*"}, consume_from="first") as consumer,
    ):
        assert len(await take(consumer, 1)) == 1
    for wrong in (rmq.Credentials("admin", "wrong secret"), rmq.Credentials("nobody", "12345678"), None):
        began = trio.current_time()
        with pytest.raises(rmq.AccessDenied):
            await send_one(names, credentials=wrong)
        assert trio.current_time() - began < 10


# --- TLS ---


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """An authority and a server's certificate."""
    made = str(tmp_path / "certs")
    for arguments in (["ca", made], ["issue", made, "server", "--host", "127.0.0.1"]):
        assert CliRunner().invoke(certs, arguments).exit_code == 0
    return tmp_path / "certs"


async def exchange(names: str, **options: object) -> None:
    """Send a message and consume it."""
    await send_one(names, **options)
    async with (
        client_of(names, **options) as client,
        client.consumer("tls", {"T": "*"}, consume_from="first") as consumer,
    ):
        assert [one.body for one in await take(consumer, 1)] == [b"x"]


async def test_tls_with_the_certificate_that_java_makes_up(five: Processes, tmp_path: pathlib.Path) -> None:
    """The default of 5.3.3: TLS and plain on one port (permissive), and nobody can verify the certificate."""
    names = await in_thread(five.java_namesrv)
    await in_thread(five.java_broker, names, tmp_path / "store")
    await exchange(f"tls://{names}", tls=TlsConfig(tls_insecure_skip_verify=True))
    with pytest.raises(rmq.NoRoute, match=r"untrusted|self-signed"):
        await send_one(f"tls://{names}", tls=TlsConfig())


async def test_tls_only_with_a_certificate_that_is_verified(
    five: Processes, tmp_path: pathlib.Path, folder: pathlib.Path
) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.test.mode.enable=false\ntls.server.certPath={folder}/server.pem\n"
        f"tls.server.keyPath={folder}/server.key\ntls.client.trustCertPath={folder}/ca.pem\n"
        "tls.client.authServer=true\n"
    )
    options = ("-Dtls.enable=true", "-Dtls.server.mode=enforcing", f"-Dtls.config.file={file}")
    names = await in_thread(five.java_namesrv, options=options)
    settings, port = five.broker_settings(tmp_path / "store", {})
    main = "org.apache.rocketmq.broker.BrokerStartup"
    command = five.java.command(
        main, "-n", names, "-c", str(settings), heap="512m", home=five.home, options=options
    )
    await in_thread(five.serve, command, "java-broker", port)
    await exchange(f"tls://{names}", tls=TlsConfig(tls_trust_path=str(folder / "ca.pem")))
    with pytest.raises(rmq.RmqError):
        await send_one(names)


# --- slaves, the controller ---


async def test_a_slave_serves_consumers_when_its_master_is_gone(
    five: Processes, tmp_path: pathlib.Path
) -> None:
    """A slave of 5.3 copies topics and offsets once a minute, and inSyncReplicas says who waits for it."""
    names = await in_thread(five.java_namesrv)
    pair = {"brokerName": "pair", "slaveReadEnable": "true", "inSyncReplicas": "2"}
    master = await in_thread(five.java_broker, names, tmp_path / "master", brokerRole="SYNC_MASTER", **pair)
    slave = await in_thread(
        five.java_broker, names, tmp_path / "slave", brokerRole="SLAVE", brokerId="1", **pair
    )
    async with client_of(names, seconds=180) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Copied")

        async def is_known() -> bool:
            return topic in await client.admin.topic_configs(f"127.0.0.1:{slave.port}")

        await until(is_known, 90, "the topic at the slave")
        for number in range(20):
            result = await producer.send(rmq.Message(topic, b"%d" % number), timeout=60)
            assert result.status == "SEND_OK"
        master.kill()
        async with client.consumer("readers", {topic: "*"}, consume_from="first") as consumer:
            got = await take(consumer, 20)
    assert {one.body for one in got} == {b"%d" % number for number in range(20)}


async def test_the_controllers_failover(five: Processes, tmp_path: pathlib.Path) -> None:
    election = await in_thread(free_port)
    controller = {
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-127.0.0.1:{election}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(tmp_path / "controller"),
    }
    names = await in_thread(five.java_namesrv, **controller)
    common = {
        "brokerName": "pair",
        "enableControllerMode": "true",
        "controllerAddr": f"127.0.0.1:{election}",
        "allAckInSyncStateSet": "true",
    }
    brokers = [
        await in_thread(five.java_broker, names, tmp_path / name, brokerId="-1", **common)
        for name in ("one", "two")
    ]
    async with client_of(names, seconds=240) as client, client.producer("five") as producer:
        topic = await topic_of(client, "Over")

        sent = [b"%d" % number for number in range(40)]
        for body in sent[:20]:
            await producer.send(rmq.Message(topic, body), timeout=60)
        admin = await in_thread(five.mqadmin_shell, names)

        async def is_in_sync() -> bool:
            """The slave has the topic (it asks every 10 s), and may be elected."""
            said = await in_thread(admin.run, "getSyncStateSet", "-a", common["controllerAddr"], "-b", "pair")
            known = [topic in await client.admin.topic_configs(f"127.0.0.1:{one.port}") for one in brokers]
            return "#SyncStateSetNums\t2" in said and all(known)

        await until(is_in_sync, 90, "the slave in sync")
        (master,) = await client.admin.broker_addresses()
        (first,) = [one for one in brokers if master.endswith(f":{one.port}")]
        first.kill()
        for body in sent[20:]:
            await producer.send(rmq.Message(topic, body), timeout=60)
        async with client.consumer("over", {topic: "*"}, consume_from="first") as consumer:
            got: set[bytes] = set()
            while not set(sent) <= got:
                got |= {one.body for one in await take(consumer, 1)}
