"""An engine of containers that keeps its images in a folder of its own, a base image made of Debian's
packages, and a package index with a certificate of its own authority."""

from __future__ import annotations

import os
import pathlib
import re
import resource
import shlex
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from attrs import frozen

from tests.system.containers import SHARED, dockerfile

BASE: Final = "localhost/rmq-test-python:bookworm"
TOOLS: Final = ("buildah", "podman", "debootstrap")
PACKAGES: Final = "python3-venv,ca-certificates"
PATIENCE_SECONDS: Final = 300
PROCESSES: Final = 4_096


def why_not() -> str:
    """Why no image can be built here; empty where it can."""
    if os.geteuid() != 0:
        return "only root may run containers"
    missing = [name for name in TOOLS if shutil.which(name) is None]
    return f"no {' and no '.join(missing)} here (Debian's packages)" if missing else ""


@frozen
class Engine:
    """buildah and podman over one folder, without systemd and with no more rights than this process."""

    folder: pathlib.Path

    def configure(self) -> None:
        """Write the settings of both. Containers may have as many files as this process, since a limit can be
        raised by few; runc takes cgroups of version 1, too."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        lines = [
            "[containers]",
            f'default_ulimits = ["nofile={files}:{files}", "nproc={PROCESSES}:{PROCESSES}"]',
            "[engine]",
            'cgroup_manager = "cgroupfs"',
            'events_logger = "file"',
            *['runtime = "runc"' for _ in filter(None, [shutil.which("runc")])],
        ]
        (self.folder / "containers.conf").write_text("\n".join(lines))

    @property
    def _places(self) -> list[str]:
        return ["--root", f"{self.folder}/storage", "--runroot", f"{self.folder}/run"]

    @property
    def podman_words(self) -> list[str]:
        """podman with the options that keep all its files in the folder."""
        here = ["--tmpdir", f"{self.folder}/tmp", "--network-config-dir", f"{self.folder}/networks"]
        return [*self._settings, "podman", *self._places, *here]

    @property
    def _settings(self) -> list[str]:
        return ["env", f"CONTAINERS_CONF={self.folder}/containers.conf"]

    def podman_program(self) -> pathlib.Path:
        """The same as a program, for those that call podman."""
        program = self.folder / "podman"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(self.podman_words)} "$@"\n')
        program.chmod(0o755)
        return program

    def podman(self, *words: str, status: int | None = 0) -> str:
        """The output of a command of podman; `status` is the exit status to expect, None for any."""
        return _run([*self.podman_words, *words], status)

    def build(self, context: pathlib.Path, tag: str, *words: str, status: int | None = 0) -> str:
        """Build the image of the context's Dockerfile by buildah; all that was said."""
        file = context / "deploy" / "docker" / "Dockerfile"
        # In a chroot, which has this machine's network and so its loopback, where the index listens.
        how = ["--isolation", "chroot", "--pull-never", "--layers", "--build-arg", f"PYTHON_IMAGE={BASE}"]
        command = [
            *self._settings,
            "buildah",
            *self._places,
            "build",
            *how,
            *words,
            "--tag",
            tag,
            "--file",
            str(file),
        ]
        return _run([*command, str(context)], status)

    def import_base(self) -> None:
        """Make the base image: Debian's Python, with `python` as its name, as Docker's image has it."""
        root = self.folder / "base"
        _run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)])
        (root / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
        archive = self.folder / "base.tar"
        _run(["tar", "--create", "--file", str(archive), "--directory", str(root), "."])
        shutil.rmtree(root)
        self.podman("import", str(archive), BASE)
        archive.unlink()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Look again and again, until it holds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < end, self.podman("ps", "--all")
            time.sleep(0.2)

    def succeeds(self, *words: str) -> bool:
        """Whether a command of podman ends with 0."""
        done = subprocess.run([*self.podman_words, *words], capture_output=True, check=False)
        return done.returncode == 0

    def is_healthy(self, container: str) -> bool:
        """Run the image's health check once, as an engine does by itself where there is systemd."""
        return self.succeeds("healthcheck", "run", container)


def _run(command: list[str], status: int | None = 0) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    assert status in (None, done.returncode), (command, done.returncode, done.stdout[-8000:])
    return done.stdout


@contextmanager
def engine() -> Iterator[Engine]:
    """An engine; its containers, images and folder are gone afterwards."""
    # podman takes at most 50 characters, which a folder for temporary files in a project's folder may exceed.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rmq-image-", dir="/tmp"))
    made = Engine(folder)
    made.configure()
    try:
        yield made
    finally:
        made.podman("rm", "--all", "--force", "--time", "5", status=None)
        made.podman("volume", "prune", "--force", status=None)
        made.podman("network", "prune", "--force", status=None)
        made.podman("rmi", "--all", "--force", status=None)
        mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([one for one in mounts if one.startswith(f"{folder}/")]):
            _run(["umount", "--lazy", mount], None)
        shutil.rmtree(folder)


class Index(ThreadingHTTPServer):
    """A package index on loopback that speaks TLS only. It passes on what the index has that the image uses
    by default; links to files lead to it, too."""

    daemon_threads = True

    def __init__(self, folder: pathlib.Path) -> None:
        """Listen. `folder` is for the authority, made as docs/tls.md says, and gets `ca.pem`."""
        super().__init__(("127.0.0.1", 0), _Passing)
        rmq = [sys.executable, "-m", "rmq", "certs"]
        for words in (["ca", str(folder)], ["issue", str(folder), "index", "--host", "localhost"]):
            subprocess.run([*rmq, *words], env={**os.environ, **SHARED}, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "index.pem", folder / "index.key")
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.authority = folder / "ca.pem"
        self.here = f"https://localhost:{self.server_address[1]}"
        self.url = f"{self.here}/simple"
        self.asked: list[str] = []
        """Paths that were asked for."""
        self.refused: list[str] = []
        """Connections that ended by an error, as those of clients without the authority."""
        (step,) = [line for line in dockerfile() if "pip install" in line]
        (self.behind,) = re.findall(r"PIP_INDEX_URL:-(\S+?)}", step)

    def handle_error(self, request: object, client_address: object) -> None:
        self.refused.append(str(sys.exc_info()[1]))


class _Passing(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        place, _, rest = self.path.removeprefix("/").partition("/")
        url = f"{self.server.behind}/{rest}" if place == "simple" else f"https://{rest}"
        asked = urllib.request.Request(url, headers={"Accept": self.headers.get("Accept", "*/*")})
        try:
            with urllib.request.urlopen(asked, timeout=120) as answer:
                body, kind = answer.read(), answer.headers.get("Content-Type", "")
        except urllib.error.HTTPError as refusal:
            self.send_error(refusal.code)
            return
        if place == "simple":
            body = body.replace(b'"https://', f'"{self.server.here}/files/'.encode())
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def index(folder: pathlib.Path) -> Iterator[Index]:
    """An index that answers."""
    with Index(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
