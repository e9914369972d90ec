"""docs/tls.md, "A closed cluster in ten commands": run as it stands there, with real processes."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.ports import free_ports

ROOT = pathlib.Path(__file__).resolve().parents[3]

WAIT = 'for try in $(seq 1200); do grep -q "{said}" {log} && break; sleep 0.05; done; grep -q "{said}" {log}'


def commands() -> list[str]:
    """The lines of the page's first shell block, continued lines joined."""
    page = (ROOT / "docs" / "tls.md").read_text("utf-8")
    block = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    return block[1].replace("\\\n", "").splitlines()


def script(lines: list[str], namesrv: int, broker: int) -> str:
    """The lines with free ports, and each server waited for, as a person would."""
    # A function in the background is a shell of its own: what ends is the whole group of processes.
    end = "trap 'trap \"\" TERM; kill -- -$$; wait' EXIT"
    done = ["set -e", f'rmq() {{ "{sys.executable}" -m rmq "$@"; }}', end]
    for line in lines:
        line = line.replace("9876", str(namesrv))
        for service, port, said in (
            ("namesrv", namesrv, "name server listens"),
            ("broker", broker, "is ready"),
        ):
            if line.startswith(f"rmq {service} ") and line.endswith("&"):
                line = f"{line[:-1]} --set listenPort={port} > {service}.log 2>&1 &\n"
                line += WAIT.format(said=said, log=f"{service}.log")
        done.append(line)
    return "\n".join(done) + "\n"


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RMQ_")}
    python_path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1"}


def test_the_page_leads_to_a_closed_cluster(tmp_path: pathlib.Path, environment: dict[str, str]) -> None:
    lines = commands()
    assert len(lines) == 10
    namesrv, _, broker, _, _ = free_ports(5)
    text = script(lines, namesrv, broker + 1)
    plain = f"rmq pub -n 127.0.0.1:{namesrv} Orders stranger && exit 9 || true\n"
    nobody = (
        f"env -u RMQ_ACCESS_KEY -u RMQ_SECRET_KEY {sys.executable} -m rmq pub -n tls://127.0.0.1:{namesrv}"
    )
    nobody += " --tls-ca certs/ca.pem Orders stranger && exit 8 || true\n"
    done = subprocess.run(
        ["bash", "-c", text + plain + nobody],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        start_new_session=True,
    )
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "paid 42" in done.stdout.splitlines()
    assert "profile       secure" in logs
    assert "registered at name server" in logs
    secrets = [(tmp_path / name).read_text().split()[-1] for name in ("shop-app.secret", "cluster.secret")]
    assert not any(secret in done.stdout + done.stderr + logs for secret in secrets)


def test_what_is_missing_is_named_with_the_command_that_makes_it(
    tmp_path: pathlib.Path, environment: dict[str, str]
) -> None:
    for service in ("namesrv", "broker"):
        done = subprocess.run(
            [sys.executable, "-m", f"rmq.{service}", "--set", "profile=secure"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        for text in ("rmq certs issue", "rmq certs ca", "rmq certs secret", "rmq acl add", "tlsCertPath"):
            assert text in done.stderr, done.stderr
