"""A closed cluster of real processes, made with the commands of docs/tls.md: profile=secure everywhere.

A name server, the masters broker-a (SYNC_MASTER) and broker-b, and a slave of broker-a. Each has its own
folder with settings and accounts, as on four machines. Accounts: `manager` (administrator), `owner-app`
(topic Orders and its groups), `low-user` (may write topic Low, and nothing else).
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field
from click.testing import CliRunner

from rmq.cli import command

ROOT = pathlib.Path(__file__).resolve().parents[3]
ACCOUNTS: dict[str, tuple[str, ...]] = {
    "manager": ("--admin",),
    "owner-app": (
        "--topic",
        "Orders=PUB|SUB",
        "--group",
        "readers=SUB",
        "--topic",
        "BenchmarkTest=PUB|SUB",
        "--group",
        "rmq-cli-bench=SUB",
    ),
    "low-user": ("--topic", "Low=PUB"),
}
SMALL = (
    "brokerClusterName=Closed",
    "autoCreateTopicEnable=false",
    "mappedFileSizeCommitLog=16777216",
    "mappedFileSizeConsumeQueue=400000",
    "maxHashSlotNum=100000",
    "maxIndexNum=400000",
    "traceTopicEnable=true",
    "registerNameServerPeriod=10000",
)
BROKERS: dict[str, tuple[str, ...]] = {
    "master-a": ("brokerName=broker-a", "brokerRole=SYNC_MASTER"),
    "master-b": ("brokerName=broker-b",),
    "slave-a": ("brokerName=broker-a", "brokerRole=SLAVE", "brokerId=1"),
}
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RMQ_")}


@define
class Server:
    """One process; `addresses` are those it listens on."""

    process: subprocess.Popen[str]
    addresses: list[str] = field(factory=list)


@define
class Closed:
    """The running cluster, and what opens it."""

    folder: pathlib.Path
    secrets: dict[str, str] = field(factory=dict, repr=False)
    servers: dict[str, Server] = field(factory=dict)
    said: list[str] = field(factory=list, repr=False)
    """All that `rmq` has printed here, for a look at what it gives away."""

    @property
    def namesrv(self) -> str:
        return self.servers["names"].addresses[0]

    @property
    def ca(self) -> str:
        return str(self.folder / "certs" / "ca.pem")

    def rmq(self, *arguments: str, who: str = "manager", given: str | None = None) -> tuple[int, str, str]:
        """A command as `who` of ACCOUNTS, or as nobody: status, output, error output."""
        variables = {
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / ".config"),
            "COLUMNS": "200",
        }
        if "names" in self.servers:
            variables["RMQ_CONTEXT"] = who
        done = CliRunner(env=variables).invoke(command, arguments, input=given, catch_exceptions=False)
        if arguments[:2] not in (("acl", "add"), ("acl", "rotate")):
            self.said.append(done.output)
        return done.exit_code, done.stdout, done.stderr

    def ok(self, *arguments: str, who: str = "manager", given: str | None = None) -> str:
        """The output of a command that must end with 0."""
        status, out, error = self.rmq(*arguments, who=who, given=given)
        assert status == 0, (arguments, out, error)
        return out

    def launch(self, *arguments: str, who: str = "manager") -> subprocess.Popen[str]:
        """A command as a process of its own."""
        variables = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / ".config")}
        return subprocess.Popen(
            [sys.executable, "-m", "rmq", *arguments],
            env={**ENVIRONMENT, **variables, "PYTHONPATH": str(ROOT), "RMQ_CONTEXT": who},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def start(self, name: str, *changes: str) -> Server:
        """Start a server, which takes a while to be `ready`; `changes` are settings of this start only."""
        service = "namesrv" if name == "names" else "broker"
        options = [word for text in changes for word in ("--set", text)]
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rmq", service, "-c", "secure.conf", *options],
                cwd=self.folder / name,
                env={**ENVIRONMENT, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.servers[name] = Server(process)
        return self.servers[name]

    def ready(self, name: str) -> None:
        """Wait until a server reports that it listens."""
        server = self.servers[name]
        assert server.process.stdout is not None
        for line in server.process.stdout:
            if found := re.search(r"listens on +(.*)", line):
                server.addresses = found[1].split(", ")
                return
        raise AssertionError(self.log(name))

    def stop(self, name: str) -> None:
        """End a server with SIGTERM."""
        process = self.servers.pop(name).process
        process.terminate()
        process.communicate(timeout=20)

    def until_followed(self) -> None:
        """Wait until the slave is connected to its master."""
        while '"slaves": "1"' not in self.ok("broker", "status", "broker-a", "-o", "json"):
            time.sleep(0.05)

    def log(self, name: str) -> str:
        """All that a server has logged."""
        return (self.folder / f"{name}.log").read_text()

    def configure(self, name: str, *settings: str) -> None:
        """Write a server's folder: secure.conf and a copy of the accounts."""
        (self.folder / name).mkdir()
        lines = (
            "profile=secure",
            "tlsCertPath=../certs/server.pem",
            "tlsKeyPath=../certs/server.key",
            "tlsTrustPath=../certs/ca.pem",
            "clusterSecretFile=../cluster.secret",
            "aclAuditFile=audit.log",
            "listenPort=0",
            *settings,
        )
        (self.folder / name / "secure.conf").write_text("\n".join(lines) + "\n")
        shutil.copy(self.folder / "plain_acl.yml", self.folder / name)


@contextmanager
def closed_cluster(folder: pathlib.Path) -> Iterator[Closed]:
    """The cluster for the length of the block."""
    made = Closed(folder)
    try:
        _prepare(made)
        made.configure("names", "kvConfigPath=kv.json")
        made.start("names")
        made.ready("names")
        _name_contexts(made)
        for name, own in BROKERS.items():
            made.configure(name, f"namesrvAddr={made.namesrv}", "storePathRootDir=store", *SMALL, *own)
            made.start(name)
        for name in BROKERS:
            made.ready(name)
        made.until_followed()
        for topic in ("Orders", "Low", "Secret"):
            made.ok("topic", "create", topic, "--queues", "2")
        yield made
    finally:
        for name in list(made.servers):
            made.servers[name].process.terminate()
        for name in list(made.servers):
            made.servers.pop(name).process.communicate(timeout=20)


def _prepare(made: Closed) -> None:
    """Certificates, the cluster's secret, accounts."""
    folder = made.folder
    made.ok("certs", "ca", str(folder / "certs"))
    made.ok("certs", "issue", str(folder / "certs"), "server", "--host", "127.0.0.1")
    made.ok("certs", "secret", str(folder / "cluster.secret"))
    for who, permissions in ACCOUNTS.items():
        said = made.ok("acl", "add", who, *permissions, "--file", str(folder / "plain_acl.yml"))
        made.secrets[who] = said.splitlines()[-1]
        (folder / f"{who}.secret").write_text(made.secrets[who])


def _name_contexts(made: Closed) -> None:
    """A context for each account, and one without."""
    where = ("-n", made.namesrv, "--tls", "--tls-ca", made.ca)
    made.ok("context", "add", "nobody", *where)
    for who in made.secrets:
        account = ("--access-key", who, "--secret-key-file", str(made.folder / f"{who}.secret"))
        made.ok("context", "add", who, *where, *account)
