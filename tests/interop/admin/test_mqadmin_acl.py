"""mqadmin's five commands on accounts, with and without the right account, on two masters with aclEnable."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import yaml

from tests.interop.cluster import Cluster, rows
from tests.interop.rocketmq import Java, Processes

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        os.environ.get("RMQ_INTEROP_SERVERS") == "java", reason="a Java broker answers these only in part"
    ),
]

ADMIN = ("manager1", "admin-secret-1")
ACCOUNTS = """globalWhiteRemoteAddresses: []
accounts:
- {accessKey: manager1, secretKey: admin-secret-1, admin: true}
- {accessKey: reader01, secretKey: reader-secret-1, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture(scope="module")
def secured(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two masters with accounts of their own, and mqadmin as the administrator of both."""
    folder = tmp_path_factory.mktemp("secured")

    def settings(name: str) -> dict[str, str]:
        file = folder / f"{name}.yml"
        file.write_text(ACCOUNTS)
        file.chmod(0o600)
        return {"aclEnable": "true", "aclFile": str(file)}

    with Processes(java, folder) as processes:
        processes.use_account(*ADMIN)
        yield Cluster(processes, folder, "rmq", settings)


def accounts(cluster: Cluster, name: str) -> dict[str, dict[str, object]]:
    """Access key -> account, from the broker's file."""
    saved = yaml.safe_load((cluster.folder / f"{name}.yml").read_text())
    return {account["accessKey"]: account for account in saved["accounts"]}


def test_update_acl_config_makes_and_changes_an_account(secured: Cluster) -> None:
    options = ("-i", "DENY", "-u", "SUB", "-t", "Orders=PUB,Bills=SUB", "-g", "billing=SUB", "-w", "10.1.1.1")
    new = ("-a", "newuser", "-s", "newuser-secret")
    said = secured.admin("updateAclConfig", "-c", "DefaultCluster", *new, *options)
    for name in secured.brokers:
        assert f"create or update plain access config to {secured.address(name)} success." in said
        made = accounts(secured, name)["newuser"]
        assert (made["secretKey"], made["defaultTopicPerm"]) == ("newuser-secret", "DENY")
        assert made["topicPerms"] == ["Orders=PUB", "Bills=SUB"]
    secured.admin("updateAclConfig", "-b", secured.a, *new, "-i", "PUB")
    assert accounts(secured, "broker-a")["newuser"]["defaultTopicPerm"] == "PUB"
    assert accounts(secured, "broker-b")["newuser"]["defaultTopicPerm"] == "DENY"
    said = secured.admin("updateAclConfig", "-b", secured.a, "-a", "newuser", "-s", "x")
    assert "CODE: 209" in said


def test_get_acl_config_shows_accounts_without_secrets(secured: Cluster) -> None:
    said = secured.admin("getAclConfig", "-b", secured.a)
    assert "globalWhiteRemoteAddresses" in said
    shown = [line.split(":", 1)[1].strip() for line in said.splitlines() if "accessKey" in line]
    assert {"manager1", "reader01"} <= set(shown)
    assert "secret-1" not in said


def test_cluster_acl_config_version_moves_with_each_change(secured: Cluster) -> None:
    def versions() -> dict[str, list[str]]:
        said = secured.admin("clusterAclConfigVersion", "-c", "DefaultCluster")
        assert "get cluster's plain access config version success." in said
        return {row[1]: row for row in rows(said, "DefaultCluster")}

    before = versions()
    assert set(before) == {"broker-a", "broker-b"}
    assert before["broker-a"][2] == secured.a
    assert before["broker-a"][3] == str(secured.folder / "broker-a.yml")
    secured.admin("updateAclConfig", "-b", secured.a, "-a", "versioned", "-s", "versioned-secret")
    after = versions()
    assert after["broker-a"] != before["broker-a"]
    assert after["broker-b"] == before["broker-b"]
    assert "version success." in secured.admin("clusterAclConfigVersion", "-b", secured.b)


def test_update_global_white_addr(secured: Cluster) -> None:
    said = secured.admin("updateGlobalWhiteAddr", "-b", secured.b, "-g", "10.1.1.1,192.168.0.*")
    assert f"update global white remote addresses to {secured.b} success." in said
    saved = yaml.safe_load((secured.folder / "broker-b.yml").read_text())
    assert saved["globalWhiteRemoteAddresses"] == ["10.1.1.1", "192.168.0.*"]
    elsewhere = secured.folder / "elsewhere.yml"
    said = secured.admin("updateGlobalWhiteAddr", "-b", secured.b, "-g", "10.1.1.1", "-p", str(elsewhere))
    assert "CODE: 211" in said
    assert not elsewhere.exists()


def test_delete_acl_config(secured: Cluster) -> None:
    secured.admin("updateAclConfig", "-c", "DefaultCluster", "-a", "leaving", "-s", "leaving-secret")
    said = secured.admin("deleteAclConfig", "-c", "DefaultCluster", "-a", "leaving")
    assert "account's accesskey is:leaving" in said
    for name in secured.brokers:
        assert f"delete plain access config account from {secured.address(name)} success." in said
        assert "leaving" not in accounts(secured, name)


@pytest.mark.parametrize(
    "account", [("reader01", "reader-secret-1"), ("manager1", "wrong-secret"), ("nobody01", "x" * 8)]
)
def test_other_accounts_reach_none_of_the_five(secured: Cluster, account: tuple[str, str]) -> None:
    before = {name: (secured.folder / f"{name}.yml").read_text() for name in secured.brokers}
    secured.processes.use_account(*account)
    try:
        for command, *options in (
            ("updateAclConfig", "-b", secured.a, "-a", "reader01", "-s", "reader-secret-2", "-m", "true"),
            ("deleteAclConfig", "-b", secured.a, "-a", "manager1"),
            ("updateGlobalWhiteAddr", "-b", secured.a, "-g", "*"),
            ("clusterAclConfigVersion", "-b", secured.a),
            ("getAclConfig", "-b", secured.a),
        ):
            said = secured.admin(command, *options)
            assert "CODE: 16" in said, command
            assert "secret-1" not in said
    finally:
        secured.processes.use_account(*ADMIN)
    assert {name: (secured.folder / f"{name}.yml").read_text() for name in secured.brokers} == before
