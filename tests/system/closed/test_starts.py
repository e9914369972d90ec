"""Messages of a closed cluster's servers at their start when settings do not fit; and secrets that no output
shows."""

from __future__ import annotations

import datetime
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import trustme

from tests.system.closed.cluster import ENVIRONMENT, ROOT, Closed

PATIENCE_SECONDS = 20


def started(
    closed: Closed,
    service: str,
    *settings: str,
    said: str = "",
    meanwhile: Callable[[], object] = lambda: None,
) -> tuple[int | None, str]:
    """Start one more server with changed settings; return its status, None if it went on, and its output.
    `meanwhile` is called once the output has `said`."""
    folder = closed.folder / ("names" if service == "namesrv" else "master-b")
    own = ("listenPort=0", "storePathRootDir=../spare", "kvConfigPath=../spare.json", "brokerName=spare")
    options = [word for text in (*own, *settings) for word in ("--set", text)]
    log = closed.folder / "spare.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "rmq", service, "-c", "secure.conf", *options],
            cwd=folder,
            env={**ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", "PYTHONUNBUFFERED": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    end = time.monotonic() + PATIENCE_SECONDS
    try:
        while process.poll() is None and time.monotonic() < end and not (said and said in log.read_text()):
            time.sleep(0.05)
        meanwhile()
        return process.poll(), log.read_text()
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("service", ["namesrv", "broker"])
@pytest.mark.parametrize(
    ("setting", "needs"),
    [
        ("tlsCertPath=../certs/none.pem", "rmq certs issue"),
        ("tlsTrustPath=", "rmq certs ca"),
        ("clusterSecretFile=../none.secret", "rmq certs secret"),
        ("aclFile=../none.yml", "rmq acl add"),
        ("tlsMode=permissive", "without tlsMode=permissive"),
    ],
)
def test_what_is_missing_ends_the_start(closed: Closed, service: str, setting: str, needs: str) -> None:
    status, said = started(closed, service, setting)
    assert status == 2
    assert needs in said.splitlines()[-1], said
    assert "Traceback" not in said


def test_another_cluster_secret_is_told_by_both_sides(closed: Closed) -> None:
    closed.ok("certs", "secret", str(closed.folder / "other.secret"))
    why = "signed with another cluster secret: compare the files"
    _, said = started(closed, "broker", "clusterSecretFile=../other.secret", said=why)
    assert why in said
    assert why in closed.log("names")
    assert "spare" not in closed.ok("cluster", "list")


def test_a_slave_with_another_secret_is_told(closed: Closed) -> None:
    closed.ok("certs", "secret", str(closed.folder / "ha.secret"))
    slave = ("brokerName=broker-b", "brokerRole=SLAVE", "brokerId=2", "haSecretFile=../ha.secret")
    found: list[str] = []

    def ask() -> None:
        status, out, _ = closed.rmq("doctor")
        found.extend((str(status), out))

    _, said = started(
        closed, "broker", *slave, said="it hung up in the middle of the handshake", meanwhile=ask
    )
    assert found[0] == "1"
    assert "copies nothing" in found[1] or "copy nothing" in found[1], found
    assert "haSecretFile or clusterSecretFile" in said
    assert "it has another secret" in closed.log("master-b")


def test_an_expired_certificate_is_told(closed: Closed, tmp_path: pathlib.Path) -> None:
    authority = trustme.CA()
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    issued = authority.issue_cert("127.0.0.1", not_after=yesterday)
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "old.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = (f"tlsCertPath={tmp_path / 'old.pem'}", "tlsKeyPath=", f"tlsTrustPath={tmp_path / 'ca.pem'}")
    status, said = started(closed, "namesrv", *own, said="expired")
    assert "expired on" in said, (status, said)


def test_no_secret_is_shown_anywhere(closed: Closed) -> None:
    """Last of this module: logs, audit logs, what commands printed, settings, exports."""
    closed.ok("pub", "Low", "x", who="low-user")
    for arguments in (
        ("acl", "list", "-o", "yaml"),
        ("admin", "getAclConfig", "-c", "Closed"),
        ("admin", "getBrokerConfig", "-c", "Closed"),
        ("admin", "getNamesrvConfig"),
        ("admin", "exportConfigs", "-c", "Closed", "-f", str(closed.folder / "export")),
        ("broker", "config", "get", "broker-a"),
        ("broker", "status", "broker-a"),
        ("context", "list", "-o", "yaml"),
        ("context", "show", "manager"),
        ("export", str(closed.folder / "cluster.yaml")),
    ):
        closed.ok(*arguments)
    for service in ("namesrv", "broker"):
        done = subprocess.run(
            [sys.executable, "-m", "rmq", service, "-c", "secure.conf", "-p"],
            cwd=closed.folder / ("names" if service == "namesrv" else "master-a"),
            env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        closed.said.append(done.stdout + done.stderr)
    closed.rmq("pub", "Secret", "x", who="low-user")  # refused, with an audit line

    secrets = [*closed.secrets.values()]
    secrets += [path.read_text().strip() for path in closed.folder.glob("*.secret")]
    written = [
        path for path in closed.folder.rglob("*") if path.suffix in (".log", ".yaml", ".json", ".properties")
    ]
    written = [path for path in written if path.name != "contexts.yaml"]
    assert len(written) > 8
    shown = "\n".join([*closed.said, *(path.read_text("utf-8", "replace") for path in written)])
    assert "low-user" in shown
    for secret in secrets:
        assert len(secret) > 20
        assert secret not in shown
