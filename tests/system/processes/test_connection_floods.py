"""Floods of connections against a real broker that has few descriptors."""

from __future__ import annotations

import os
import pathlib
import re
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest

from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from tests.interop.rocketmq import wait_until
from tests.unit.broker.rig import send

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and 127.0.0.2")

DESCRIPTORS = 200
FLOOD = 250


def listening_ports(pid: int) -> set[int]:
    """The TCP ports that a process listens on, of this machine's tables."""
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # it was closed meanwhile
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    sockets = {match[1] for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link))}
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in sockets}


def flood(port: int, stack: ExitStack) -> None:
    for _ in range(FLOOD):
        peer = stack.enter_context(socket.socket())
        peer.bind(("127.0.0.2", 0))
        peer.settimeout(5)
        peer.connect(("127.0.0.1", port))


def asked(peer: socket.socket, request: Command) -> Command:
    peer.sendall(encode(request))
    decoder, answers = Decoder(), []
    while not answers:
        data = peer.recv(65536)
        assert data, "the broker hung up"
        answers = decoder.feed(data)
    return answers[0]


def test_every_port_of_a_broker_with_few_descriptors_is_flooded(tmp_path: pathlib.Path) -> None:
    """Clients', slaves' and scrapers': files can be opened, and other machines are served."""
    settings = {
        "listenPort": "0",
        "metricsPort": "0",
        "plugins": "metrics",
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": "1m",
    }
    command = [sys.executable, "-m", "rmq.broker"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS // 2, DESCRIPTORS)),
    )
    with ExitStack() as stack:
        stack.callback(process.communicate)
        stack.callback(process.kill)
        assert process.stdout is not None
        line = next(line for line in process.stdout if "listens on" in line)
        main = int(line.rsplit(":", 1)[1])
        # The scrapers' port may open behind the banner, after those of clients and slaves.
        wait_until(lambda: len(listening_ports(process.pid)) == 3, 60, "three ports")
        ports = listening_ports(process.pid)
        known = stack.enter_context(socket.create_connection(("127.0.0.1", main), 5))
        for port in sorted(ports):
            flood(port, stack)
        for number in range(10):  # each makes files
            assert asked(known, send(f"Topic{number}")).code == ResponseCode.SUCCESS
        new = stack.enter_context(socket.create_connection(("127.0.0.1", main), 5))
        assert asked(new, send("Orders")).code == ResponseCode.SUCCESS
        assert process.poll() is None
    text = (tmp_path / "log").read_text("utf-8")
    assert f"may open {DESCRIPTORS} files" in text  # it began with half as many
    assert ", which has sent no valid request, to make room for" in text  # silent connections make room
    assert "Traceback" not in text
