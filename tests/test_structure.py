"""Rules on the code as a whole that no linter knows."""

from __future__ import annotations

import ast
import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Where `async` may be written; everything else is plain functions over bytes and `now`.
ASYNC_PLACES = (
    "rmq/remoting/",
    "rmq/client/",
    "rmq/cli/",
    "rmq/testing/",
    "rmq/namesrv/service.py",
    "rmq/namesrv/__main__.py",
    "rmq/broker/service.py",
    "rmq/broker/startup.py",  # ports and names are opened and looked up
    "rmq/broker/__main__.py",
    "rmq/broker/flusher.py",  # its flush task
    "rmq/broker/replication.py",  # the loops of master and slave, a part of the service
    "rmq/embedded.py",
    "rmq/spark/cluster.py",
    "rmq/spark/reading.py",
    "rmq/spark/sink.py",
    "rmq/plugin.py",  # Plugin.run, which a plugin may override
)

SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "rmq").rglob("*.py"))
PAGES = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("source", [name for name in SOURCES if not name.startswith(ASYNC_PLACES)])
def test_async_stays_in_the_shells(source: str) -> None:
    tree = ast.parse((ROOT / source).read_text("utf-8"))

    asynchronous = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = [node.lineno for node in ast.walk(tree) if isinstance(node, asynchronous)]
    assert not found, f"{source} is asynchronous in lines {found}"


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text("utf-8"))

    missing = [link for link in targets if "://" not in link and not (path.parent / link).exists()]
    assert not missing


def test_the_settings_page_is_what_the_code_says() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "reference" / "make_settings.py"))["page"]

    written = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
    assert written == page(), "run docs/reference/make_settings.py"
