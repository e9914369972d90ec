"""Accounts and signatures: Java's clients and mqadmin against our broker, our client against Java's."""

from __future__ import annotations

import pathlib
import sys

import pytest
import trio

import rmq
from rmq.errors import RmqError
from rmq.protocol.auth.signature import Credentials
from tests.interop.rocketmq import Process, Processes, free_port, wait_until

pytestmark = pytest.mark.interop

ACCOUNTS = """globalWhiteRemoteAddresses: []
accounts:
  - {accessKey: manager, secretKey: admin-secret-1, admin: true}
  - accessKey: orders-app
    secretKey: orders-secret-1
    topicPerms: [Orders=PUB|SUB]
    groupPerms: [orders=SUB]
  - {accessKey: other-app, secretKey: other-secret-1, defaultTopicPerm: DENY, topicPerms: [Others=PUB|SUB]}
"""


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """The accounts of our broker."""
    path = tmp_path / "accounts" / "plain_acl.yml"
    path.parent.mkdir()
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return path


def guarded(processes: Processes, file: pathlib.Path, namesrv: str) -> Process:
    store = file.parents[1] / "store"
    return processes.rmq_broker(namesrv, store, aclEnable="true", aclFile=str(file))


def guarded_cluster(processes: Processes, file: pathlib.Path) -> str:
    """A name server and a broker with the same accounts; the broker registers with the cluster's secret."""
    secret = file.with_name("secret")
    secret.write_text("the secret of the servers of this cluster")
    port = free_port()
    shared = {"aclEnable": "true", "aclFile": str(file), "clusterSecretFile": str(secret)}
    kept = {"listenPort": str(port), "kvConfigPath": str(file.with_name("kv.json")), **shared}
    settings = processes.write_settings("namesrv-guarded", kept)
    processes.serve([sys.executable, "-m", "rmq.namesrv", "-c", str(settings)], "rmq-namesrv", port)
    path, broker_port = processes.broker_settings(file.parents[1] / "store", shared)
    command = [sys.executable, "-m", "rmq.broker", "-n", f"127.0.0.1:{port}", "-c", str(path)]
    process = processes.serve(command, "rmq-broker", broker_port)
    wait_until(lambda: any("is ready" in line for line in process.lines), 30, "the broker registered")
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("name_server", ["open", "guarded"])
def test_java_clients_with_right_wrong_and_missing_credentials(
    processes: Processes, file: pathlib.Path, name_server: str
) -> None:
    if name_server == "open":
        namesrv = processes.rmq_namesrv()
        guarded(processes, file, namesrv)
    else:
        namesrv = guarded_cluster(processes, file)
    who = (
        "orders-app:orders-secret-1",
        "orders-app:not-the-secret",
        "other-app:other-secret-1",
        "nobody1:x",
        "-",
    )
    java = processes.program("Acl", namesrv, "Orders", "orders", *who)

    wait_until(lambda: len([row for row in java.rows if "who" in row]) == len(who), 90, "five accounts tried")
    right, wrong, other, unknown, missing = (row for row in java.rows if "who" in row)
    assert (right["send"], right["batch"]) == ("SEND_OK", "SEND_OK")
    assert right["pull"] in ("FOUND", "NO_NEW_MSG")
    for row, text in (
        (wrong, "Check signature failed for accessKey=orders-app"),
        (unknown, "Check signature failed for accessKey=nobody1"),
        (missing, "No accessKey is configured"),
        (other, "No default permission for"),
    ):
        for step in ("send", "batch", "pull"):
            # A client that gets no route says so instead of passing the name server's words on.
            words = (text,) if name_server == "open" else (text, "No route info of this topic", "not exist")
            assert any(word in row[step] for word in words), (step, row)

    wait_until(lambda: len([row for row in java.rows if "body" in row]) >= 3, 60, "consumed in order")
    assert sorted(row["body"] for row in java.rows if "body" in row) == ["one-3", "three-3", "two-3"]
    java.close_input()


def test_mqadmin_manages_accounts(processes: Processes, file: pathlib.Path) -> None:
    namesrv = processes.rmq_namesrv()
    broker = guarded(processes, file, namesrv)
    address = f"127.0.0.1:{broker.port}"
    mqadmin = processes.mqadmin_shell(namesrv)

    processes.use_account("orders-app", "orders-secret-1")
    assert "Need admin permission" in mqadmin("getAclConfig", "-b", address)
    new = ("-a", "fresh-app", "-s", "fresh-secret-1", "-t", "Orders=PUB,Others=DENY", "-i", "SUB")
    assert "Need admin permission" in mqadmin("updateAclConfig", "-b", address, *new)
    assert file.read_text() == ACCOUNTS

    processes.use_account("manager", "admin-secret-1")
    assert "success" in mqadmin("updateAclConfig", "-c", "DefaultCluster", *new)
    said = mqadmin("getAclConfig", "-c", "DefaultCluster")
    assert "fresh-app" in said
    assert "[Orders=PUB, Others=DENY]" in said
    assert "-secret-" not in said
    assert "success" in mqadmin("updateGlobalWhiteAddr", "-b", address, "-g", "10.1.1.*,10.2.2.2")
    assert "10.1.1.*" in mqadmin("getAclConfig", "-b", address)
    version = mqadmin("clusterAclConfigVersion", "-c", "DefaultCluster")
    assert address in version
    assert str(file) in version
    assert "success" in mqadmin("deleteAclConfig", "-b", address, "-a", "fresh-app")
    assert "fresh-app" not in mqadmin("getAclConfig", "-b", address)
    assert "failed" in mqadmin("deleteAclConfig", "-b", address, "-a", "fresh-app")
    assert "counter: 3" in file.read_text()
    assert "success" in mqadmin("updateTopic", "-b", address, "-t", "Made")


async def test_our_client_signs_for_a_java_broker(processes: Processes, tmp_path: pathlib.Path) -> None:
    (processes.home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    namesrv = processes.java_namesrv()
    processes.java_broker(namesrv, tmp_path / "store", aclEnable="true")
    right = Credentials("orders-app", "orders-secret-1")

    with trio.fail_after(60):
        async with rmq.connect(namesrv, credentials=right) as client:
            async with client.producer("orders-producer") as producer:
                await producer.send(rmq.Message("Orders", b"signed"))
            async with client.consumer("orders", {"Orders": "*"}) as consumer:
                async for delivery in consumer:
                    async with delivery as message:
                        assert message.body == b"signed"
                    break
        for wrong in (
            None,
            Credentials("orders-app", "not-the-secret"),
            Credentials("other-app", "other-secret-1"),
        ):
            async with rmq.connect(namesrv, credentials=wrong) as client, client.producer("x") as producer:
                with pytest.raises(RmqError):
                    await producer.send(rmq.Message("Orders", b"refused"))
