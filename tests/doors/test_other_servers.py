"""Doors of a name server and of a controller: a protocol over what a plug-in has, without messages."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmq import Message
from rmq.controller import service as controller_service
from rmq.controller.config import ControllerConfig
from rmq.errors import PortInUse, RmqError
from rmq.namesrv import service as namesrv_service
from rmq.namesrv.config import NamesrvConfig
from rmq.plugin import Door, DoorHost, DoorStream, Plugin
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

from .lines import Line

HOST, PORT = "10.0.1.1", 7070


class Asking(Plugin):
    """Answers each line."""

    def doors(self) -> list[Door]:
        goodbye = b"BYE\n"
        port = int(self.config["askPort"])
        return [
            Door(name="ask", port=port, first_bytes=b"ASK\n", serve=self.serve, goodbye=lambda _: goodbye)
        ]

    async def serve(self, stream: DoorStream, host: DoorHost) -> None:
        while (line := await stream.receive_until(b"\n", 100)) is not None:
            try:
                if line == b"put":
                    host.append(Message("T", b"x"))
                elif line == b"later":
                    host.defer(5.0, lambda: stream.write(b"now\n"))
                elif line == b"who":
                    host.authenticate("anybody", "secret")
                    stream.write(f"{host.config.bind_address} {host.may('publish', 'T')}\n".encode())
            except RmqError as error:
                stream.write(f"{error}\n".encode())


@asynccontextmanager
async def running(
    kind: str, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, network: MemoryNetwork
) -> AsyncIterator[tuple[MemoryNetwork, trio.Event, dict[str, str], str]]:
    monkeypatch.setattr("rmq.plugin._installed", lambda: {"ask": lambda: Asking})
    settings: dict[str, Any] = {"bind_address": HOST, "plugins": ("ask",)}
    stop, also = trio.Event(), dict[str, str]()
    given: dict[str, Any] = {
        "network": network.host(HOST),
        "stop": stop,
        "also": also,
        "plugin_settings": {"askPort": str(PORT)},
    }
    if kind == "controller":
        config = ControllerConfig(controller_path="/controller", **settings)
        given |= {"disk": MemoryDisk(), "clock": trio.current_time}
        run = partial(controller_service.run, config, **given)
    else:
        names = NamesrvConfig(kv_config_path=str(folder / "kv.json"), **settings)
        run = partial(namesrv_service.run, names, **given)
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(run)
        yield network, stop, also, addresses[0]
        stop.set()


KINDS = pytest.mark.parametrize("kind", ["name server", "controller"])


@KINDS
async def test_a_door_has_accounts_and_time_and_no_messages(
    autojump_clock: MockClock, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with running(kind, tmp_path, monkeypatch, MemoryNetwork()) as (network, stop, also, _):
        assert also == {"ask": f"{HOST}:{PORT}"}
        line = await Line.dial(network.host("10.0.8.1"), f"{HOST}:{PORT}")
        assert f"append: a {kind} stores no messages" in await line.ask("put")
        assert await line.ask("who") == f"{HOST} True"
        began = trio.current_time()
        assert await line.ask("later") == "now"
        assert trio.current_time() - began == pytest.approx(5, abs=0.1)
        stop.set()
        while await line.read():
            pass
        assert line.said[-1] == "BYE"


@KINDS
async def test_a_door_shares_the_port_of_clients_by_its_first_bytes(
    autojump_clock: MockClock, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with running(kind, tmp_path, monkeypatch, MemoryNetwork()) as (network, _, _, address):
        line = await Line.dial(network.host("10.0.8.1"), address)
        await line.send("ASK")
        assert await line.ask("who") == f"{HOST} True"


@KINDS
async def test_a_taken_port_of_a_door_ends_the_start(
    autojump_clock: MockClock, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    network = MemoryNetwork()
    taken = await network.host(HOST).listen(f"{HOST}:{PORT}")
    with pytest.RaisesGroup(PortInUse, flatten_subgroups=True):
        async with running(kind, tmp_path, monkeypatch, network):
            raise AssertionError("it has started")
    await taken.aclose()
