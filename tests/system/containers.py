"""Containers without an engine: an image's commands in a network of their own, as its user, root read-only.

Where a test may make namespaces (Linux, root), `network` gives a loopback with a name for each container,
and `Network.start` runs one there as docker and Kubernetes do: uid 10001, nothing writable but its /data,
secrets as files.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from attrs import define, field, frozen

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
USER = 10_001
PLACE = "/mnt"
"""Where a container's folders lie here; every Linux has it, and nothing of ours is in it."""
PATIENCE_SECONDS = 120
SHARED = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
LOOPBACK_UP = """
import fcntl, socket, struct
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING
print("up", flush=True)
input()
"""
PROBE = """
import sys, urllib.request
for address in sys.argv[1:]:
    urllib.request.urlopen(f"http://{address}:5557/ready", timeout=5)
"""


def dockerfile() -> list[str]:
    """The instructions of the Dockerfile, each on one line."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def build_context(folder: pathlib.Path) -> None:
    """The files of this checkout that Dockerfile.dockerignore lets through."""
    lines = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in lines, "nothing but what is named"
    unwanted = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
    for name in (line[1:] for line in lines if line.startswith("!")):
        here, there = DEPLOY.parent / name, folder / name
        if here.is_dir():
            shutil.copytree(here, there, ignore=shutil.ignore_patterns(*unwanted))
        else:
            shutil.copy(here, there)


def image_environment() -> dict[str, str]:
    """The variables that ENV sets."""
    lines = [line.removeprefix("ENV ") for line in dockerfile() if line.startswith("ENV ")]
    return dict(pair.split("=", 1) for line in lines for pair in line.split())


@functools.cache
def python_of_others() -> str:
    """An interpreter that the image's user may run, with what this one imports; empty where there is none."""
    for name in (sys.executable, "/usr/bin/python3"):
        try:
            check = subprocess.run(
                [name, "-c", "import rmq.broker.runtime.service"], env=SHARED, user=USER, check=False
            )
        except OSError:
            continue
        if check.returncode == 0:
            return name
    return ""


@functools.cache
def why_not() -> str:
    """Why containers cannot be played here; empty where they can."""
    if os.geteuid() != 0:
        return "only root may make namespaces"
    if not all(map(shutil.which, ("unshare", "nsenter", "setpriv", "mount"))):
        return "no util-linux here"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    if tried.returncode:
        return "no namespaces may be made here"
    return "" if python_of_others() else "another user may run no interpreter here"


@frozen
class Container:
    """The arguments of an image. `name` is its host name for the other containers."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


@define
class Network:
    """Containers that reach each other by name."""

    folder: pathlib.Path
    pid: int
    secrets: pathlib.Path
    addresses: Mapping[str, str]
    python: str
    """The interpreter of the containers, and of the client beside them."""
    shared: Mapping[str, str]
    """Its environment, which says where it finds rmq."""
    running: list[subprocess.Popen[str]] = field(factory=list)

    def _words(self, data: pathlib.Path, command: Sequence[str]) -> list[str]:
        """A command of the image, in the network: its /data is `data`, all else is read-only."""
        inside = [
            f"mount --bind {shlex.quote(str(self.folder / 'hosts'))} /etc/hosts",
            f"mount -t tmpfs none {PLACE}",
            f"mkdir {PLACE}/data {PLACE}/secrets",
            f"mount --bind {shlex.quote(str(data))} {PLACE}/data",
            f"mount --bind -o ro {shlex.quote(str(self.secrets))} {PLACE}/secrets",
            "mount -o remount,bind,ro /",
            f"mount -o remount,ro {PLACE}",
            "! touch /written 2> /dev/null",
            f"! touch {PLACE}/written 2> /dev/null",
            f"cd {PLACE}/data",
            f"exec setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs --bounding-set=-all "
            f"--inh-caps=-all {shlex.join([self.python, *command])}",
        ]
        script = " && ".join(inside)
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "unshare", "--mount", "sh", "-c", script]

    def _data(self, name: str) -> pathlib.Path:
        data = self.folder / name
        if not data.exists():
            data.mkdir()
            os.chown(data, USER, USER)
        return data

    def start(self, container: Container) -> subprocess.Popen[str]:
        """Start a container; it listens on its own address only, since all containers share a loopback."""
        own = self.addresses[container.name]
        given = {**image_environment(), **container.environment}
        moved = {name: self._moved(value) for name, value in given.items() if name != "PATH"}
        settings = moved | {"RMQ_METRICS_ADDRESS": own, "RMQ_BIND_ADDRESS": own}
        command = [word.replace("bindAddress=0.0.0.0", f"bindAddress={own}") for word in container.command]
        command = [re.sub(r"=/data\b", f"={PLACE}/data", word) for word in command]
        with (self.folder / f"{container.name}.log").open("a") as log:
            process = subprocess.Popen(
                self._words(self._data(container.name), ["-m", "rmq", *command]),
                env={**self.shared, **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        self.running.append(process)
        return process

    def _moved(self, value: str) -> str:
        """A path of the container as it is here."""
        return re.sub(
            r"^/(?:run/secrets|etc/rmq)\b", f"{PLACE}/secrets", re.sub("^/data", f"{PLACE}/data", value)
        )

    def run(self, *arguments: str, **environment: str) -> str:
        """The output of `python ARGUMENTS` in a container of the network; it must end with 0."""
        done = subprocess.run(
            self._words(self._data("client"), arguments),
            env={**self.shared, "HOME": f"{PLACE}/data", "COLUMNS": "200", **environment},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr, self.logs())
        return done.stdout

    def wait_until_ready(self) -> None:
        """Wait until the probe of the image, and of Kubernetes, is green for all."""
        end = time.monotonic() + PATIENCE_SECONDS
        hosts = [name for name in self.addresses if (self.folder / name).exists()]
        while True:
            try:
                self.run("-c", PROBE, *hosts)
                return
            except AssertionError:
                assert time.monotonic() < end, self.logs()
                assert all(process.poll() is None for process in self.running), self.logs()

    def logs(self) -> str:
        """The output of all containers."""
        return "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log")))

    def stop(self) -> dict[int, int]:
        """Stop all containers as an engine does, by SIGTERM; return the number of each exit status."""
        for process in self.running:
            process.terminate()
        codes = [process.wait(60) for process in self.running]
        self.running.clear()
        return {code: codes.count(code) for code in set(codes)}

    def check_logs(self) -> None:
        """Everything that was said is the banner or JSON, and no error."""
        for log in self.folder.glob("*.log"):
            lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
            errors = [line for line in lines if line["level"] not in ("DEBUG", "INFO", "WARNING")]
            assert not errors, (log.stem, errors)


@contextmanager
def network(
    folder: pathlib.Path,
    hosts: Sequence[str],
    aliases: Mapping[str, str],
    published: str = "",
    installed: str = "",
) -> Iterator[Network]:
    """A network for these names until the end, when all its containers are stopped. `aliases` are further
    names of some; `published` is one whose ports are those of the clients' machine, 127.0.0.1.
    `installed` is the interpreter of an environment with rmq in it; without it this checkout is run."""
    addresses = {name: f"127.0.1.{number}" for number, name in enumerate(hosts, 1)}
    if published:
        addresses[published] = "127.0.0.1"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    lines += [f"{addresses[host]} {name}" for name, host in aliases.items()]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    (secrets := folder / "secrets").mkdir()
    holder = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", LOOPBACK_UP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        python, shared = installed or python_of_others(), {} if installed else SHARED
        made = Network(folder, holder.pid, secrets, addresses, python, shared)
        try:
            yield made
        finally:
            for process in made.running:
                process.kill()
                process.wait()
    finally:
        holder.communicate("\n", timeout=20)


def make_secrets(network: Network, hosts: Sequence[str]) -> str:
    """The files for `profile=secure`, made as docs say, for the image's user; the secret of `manager`."""
    names = [word for host in hosts for word in ("--host", host)]
    folder = f"{network.secrets}"
    rmq = [sys.executable, "-m", "rmq"]
    for words in (
        ["certs", "ca", folder],
        ["certs", "issue", folder, "server", *names],
        ["certs", "secret", f"{folder}/cluster.secret"],
    ):
        subprocess.run([*rmq, *words], env={**os.environ, **SHARED}, check=True, capture_output=True)
    made = subprocess.run(
        [*rmq, "acl", "add", "manager", "--admin", "--file", f"{folder}/plain_acl.yml"],
        env={**os.environ, **SHARED},
        check=True,
        capture_output=True,
        text=True,
    )
    may = ["--default-topic", "PUB|SUB", "--default-group", "SUB", "--secret-file", f"{folder}/proxy.secret"]
    subprocess.run(
        [*rmq, "acl", "add", "grpc-proxy", *may, "--file", f"{folder}/plain_acl.yml"],
        env={**os.environ, **SHARED},
        check=True,
        capture_output=True,
    )
    for file in network.secrets.iterdir():
        os.chown(file, USER, USER)
    return made.stdout.splitlines()[-1]
