"""The page on plug-ins, docs/design/plugins.md: its tables have every hook, and its example works."""

from __future__ import annotations

import pathlib
import re
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.errors import AccessDenied
from rmq.plugin import Host, Plugin, hooks_of
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "design" / "plugins.md").read_text("utf-8")


def public(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_"))


def rows_under(heading: str) -> list[str]:
    """The names in the first column of the table under a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", section, re.M)
    return sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))


def test_the_tables_have_every_hook_and_all_of_the_host() -> None:
    assert rows_under("Hooks, and when they are called") == public(Plugin)
    assert rows_under("What a plug-in is given") == public(Host)


def test_the_example_refuses_at_night() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict[str, Any] = {}
    exec(program, names)
    hour = 3
    host = SimpleNamespace(now_ms=lambda: hour * 3_600_000 + 5)
    hooks = hooks_of([("night", names["NightPlugin"]({}, host))])
    peer: Any = None

    with pytest.raises(AccessDenied, match="closed"):
        hooks.admit(peer, Command.request(RequestCode.SEND_MESSAGE))
    hooks.admit(peer, Command.request(RequestCode.HEART_BEAT))
    hour = 4
    hooks.admit(peer, Command.request(RequestCode.SEND_MESSAGE))
