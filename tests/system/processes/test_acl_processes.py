"""`rmq acl` and accounts as people use them: a name server and a broker as processes, both with ACL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import yaml
from click.testing import CliRunner

import rmq
from rmq.cli.clusters.acl import acl
from rmq.errors import RmqError
from rmq.protocol.auth.signature import Credentials

ROOT = Path(__file__).parents[3]
SECRET = "admin-secret-1"
TEXT = f"""globalWhiteRemoteAddresses: []
accounts:
  - {{accessKey: manager, secretKey: {SECRET}, admin: true}}
"""


class Cluster:
    """A name server and a broker that share a file of accounts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "plain_acl.yml"
        self.file.write_text(TEXT)
        self.file.chmod(0o600)
        (folder / "secret").write_text("a secret of this cluster's servers")
        (folder / "manager").write_text(SECRET)
        self.processes: list[subprocess.Popen[str]] = []
        shared = (
            f"aclFile={self.file}",
            "aclEnable=true",
            f"clusterSecretFile={folder / 'secret'}",
            "listenPort=0",
        )
        self.namesrv = self.start("rmq.namesrv", f"kvConfigPath={folder / 'kv.json'}", *shared)
        self.broker = self.start(
            "rmq.broker",
            f"namesrvAddr={self.namesrv}",
            f"storePathRootDir={folder / 'store'}",
            f"aclAuditFile={folder / 'audit.log'}",
            "mappedFileSizeCommitLog=1m",
            "haEnable=false",
            *shared,
        )

    def start(self, module: str, *settings: str) -> str:
        """Start a server; return its address."""
        options = [word for setting in settings for word in ("--set", setting)]
        log = (self.folder / f"{module}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", module, *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"},
        )
        self.processes.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if "listens on" in line:
                return line.split("listens on")[1].split(",")[0].strip()
        raise AssertionError((self.folder / f"{module}.log").read_text())

    async def acl(
        self, *arguments: str, access_key: str = "manager", secret: str = "manager"
    ) -> tuple[int, str, str]:
        """Run `rmq acl`; return its status, its last line, and its output."""
        who = ["-n", self.namesrv, "--access-key", access_key, "--secret-key-file", str(self.folder / secret)]
        said = await trio.to_thread.run_sync(CliRunner().invoke, acl, [*arguments, *who])
        lines = said.stdout.splitlines()
        return said.exit_code, lines[-1] if lines else "", said.output


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path)
    yield started
    for process in started.processes:
        process.terminate()
    for process in started.processes:
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


async def sent(namesrv: str, account: Credentials | None) -> bool:
    """True if the account may write the topic."""
    try:
        async with rmq.connect(namesrv, credentials=account) as client, client.producer("app") as producer:
            await producer.send(rmq.Message("Orders", b"x"))
    except RmqError:
        return False
    return True


async def test_accounts_of_a_running_cluster(cluster: Cluster) -> None:
    status, secret, said = await cluster.acl("add", "orders-app", "--topic", "Orders=PUB")
    assert (status, len(secret)) == (0, 32), said
    accounts = yaml.safe_load(cluster.file.read_text())["accounts"]
    assert [account["accessKey"] for account in accounts] == ["manager", "orders-app"]
    _, _, listed = await cluster.acl("list")
    assert "Orders=PUB" in listed
    assert secret not in listed
    assert SECRET not in listed

    account = Credentials("orders-app", secret)
    with trio.fail_after(60):
        while not await sent(cluster.namesrv, account):  # until the name server has read its file again
            await trio.sleep(0.05)
    for wrong in (
        None,
        Credentials("orders-app", "no-such-secret"),
        Credentials("nobody1", "no-such-secret"),
    ):
        assert not await sent(cluster.namesrv, wrong)

    (cluster.folder / "app").write_text(secret)
    status, _, said = await cluster.acl("list", access_key="orders-app", secret="app")
    assert (status, "Need admin permission" in said) == (1, True), said
    assert (await cluster.acl("explain", "orders-app", "Orders", "SUB"))[0] == 1
    assert (await cluster.acl("remove", "orders-app", "--yes"))[0] == 0
    assert "orders-app" not in cluster.file.read_text()
    audit = (cluster.folder / "audit.log").read_text()
    assert "admin who=manager" in audit
    assert "action=DELETE_ACL_CONFIG(51) on=accessKey:orders-app result=allowed" in audit
    logs = "".join(path.read_text() for path in cluster.folder.glob("*.log"))
    assert secret not in logs
    assert SECRET not in logs
