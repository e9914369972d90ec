"""The page on the client, docs/design/client.md: its paths and modules are there."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
import re
import sys
from typing import Any

import pytest
from trio.testing import MockClock

import rmq.client
from rmq.message import Message
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection

from .world import World

SEND_PATH = ["Producer.send", "Sender.send", "Sender._exchange", "Connection.call"]
"""At most four frames: each is paid for by every send."""
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "design" / "client.md"


async def test_a_send_goes_to_the_connection_in_few_steps(
    setting: World, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[list[str]] = []
    call = Connection.call

    async def seen(connection: Connection, command: Command, timeout: float) -> Command:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            frame: Any = sys._getframe(1)
            path = ["Connection.call"]
            while frame is not None and frame.f_code.co_qualname.startswith(("Pool", "Sender", "Producer")):
                path.append(frame.f_code.co_qualname)
                frame = frame.f_back
            paths.append(path[::-1])
        return await call(connection, command, timeout)

    monkeypatch.setattr(Connection, "call", seen)
    async with setting.connect() as client, client.producer("p") as producer:
        await producer.send(Message("T", b"dials"))
        await producer.send(Message("T", b"x"))
        await producer.send(Message("T", b"x"), sharding_key="k")
    assert "Sender._patiently" in paths[0]  # it dials
    assert paths[1:] == [SEND_PATH] * 2


def test_what_the_page_draws_is_there() -> None:
    drawn = set(re.findall(r"\b([A-Z]\w+)\.(\w+)\b(?!\()", PAGE.read_text("utf-8")))
    kinds: dict[str, type] = {}
    for module in pkgutil.walk_packages(rmq.client.__path__, "rmq.client."):
        if module.name != "rmq.client.observability.otel":
            kinds |= {
                name: one
                for name, one in vars(importlib.import_module(module.name)).items()
                if isinstance(one, type)
            }
    assert len(drawn) > 25
    block = PAGE.read_text("utf-8").split("```")[1]
    assert re.findall(r"^ *(\w+\.\w+) ", block, re.M) == SEND_PATH
    assert sorted(f"{kind}.{name}" for kind, name in drawn if not hasattr(kinds.get(kind), name)) == []


def test_the_page_names_every_module() -> None:
    folders = pathlib.Path(rmq.client.__path__[0])
    files = {str(path.relative_to(folders).with_suffix("")) for path in folders.rglob("[a-z]*.py")}
    whole = "admin/", "consume/deliveries/"  # named as folders
    there = {name for name in files if not name.startswith(whole)} | {one.rstrip("/") for one in whole}
    table = PAGE.read_text("utf-8").split("## The life of a send")[0]
    rows = re.findall(r"^\| (`[a-z_`, /]+`) \|", table, re.M)
    assert {name for row in rows for name in re.findall(r"`([a-z_/]+)`", row)} == there
