"""The page on remoting, docs/design/remoting.md: what it names is there, and it names all there is."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil
import re

import attrs

import rmq.remoting
from rmq.remoting import Endpoint, Limits

PAGE = (pathlib.Path(__file__).parents[4] / "docs" / "design" / "remoting.md").read_text("utf-8")

FOUND = pkgutil.walk_packages(rmq.remoting.__path__, "rmq.remoting.")
MODULES = [module.name for module in FOUND if not module.ispkg]


def rows_under(heading: str) -> list[str]:
    """The first column of the table under a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.M)


def test_the_page_names_every_module() -> None:
    rows = re.findall(r"^\| (`[a-z_/`, ]+`) \|", PAGE.split("\n## ")[0], re.M)

    named = {name for row in rows for name in re.findall(r"`([a-z_/]+)`", row)}
    assert named == {module.removeprefix("rmq.remoting.").replace(".", "/") for module in MODULES}


def test_the_page_names_every_limit_and_its_default() -> None:
    assert rows_under("Limits") == [field.name for field in attrs.fields(Limits)]

    for name, text in re.findall(r"^\| `(\w+)` \| ([\d,]+)", PAGE, re.M):
        default, number = getattr(Limits(), name), int(text.replace(",", ""))
        assert default in (number, number * 1024, number * 1024 * 1024), name


def test_the_page_names_every_callback() -> None:
    callbacks = [name for name, one in vars(Endpoint).items() if callable(one) and not name.startswith("_")]

    assert sorted(rows_under("Callbacks")) == sorted(callbacks)


def test_what_the_page_draws_is_there() -> None:
    there: set[str] = set()
    for module in MODULES:
        for name, one in vars(importlib.import_module(module)).items():
            there |= {name} | {f"{name}.{method}" for method in getattr(one, "__dict__", ())}
    (drawn,) = re.findall(r"```\n(.*?)```", PAGE, re.S)

    names = re.findall(r"^ *([\w.]+)", drawn, re.M) + re.findall(r"`([A-Z]\w+\.\w+)`", PAGE)
    assert len(names) > 15
    assert [name for name in names if name not in there] == []
