"""Rules on the code as a whole that no linter knows."""

from __future__ import annotations

import ast
import pathlib
import re
import runpy
import tomllib

import pytest

import rmq

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Where `async` may be written; everything else is plain functions over bytes and `now`.
ASYNC_PLACES = (
    "rmq/remoting/",
    "rmq/server/http.py",
    "rmq/server/pages.py",
    "rmq/server/port_handover.py",
    "rmq/server/signals.py",
    "rmq/client/",
    "rmq/cli/",
    "rmq/testing/",
    "rmq/controller/service.py",
    "rmq/controller/__main__.py",
    "rmq/namesrv/service.py",
    "rmq/namesrv/__main__.py",
    "rmq/broker/runtime/",  # the loops, ports and threads of a broker
    "rmq/broker/disk_work.py",  # what tasks wait for at the disk
    "rmq/broker/__main__.py",
    "rmq/embedded.py",
    "rmq/spark/cluster.py",
    "rmq/spark/pull.py",
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


def test_the_page_on_the_design_names_all_asynchronous_places() -> None:
    rules = (ROOT / "docs" / "design" / "README.md").read_text("utf-8").split("## Packages")[0]

    entries = [place for place in ASYNC_PLACES if not place.endswith("/__main__.py")]
    assert [place for place in entries if f"`{place}`" not in rules] == []


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


def test_the_page_on_the_api_is_what_the_docstrings_say() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "reference" / "make_api.py"))

    written = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    assert written == made["page"](), "run docs/reference/make_api.py"
    assert [name for name in rmq.__all__ if f"\n### rmq.{name}\n" not in written] == []


def test_the_map_is_what_the_modules_say() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "design" / "make_map.py"))["page"]

    written = (ROOT / "docs" / "design" / "map.md").read_text("utf-8")
    assert written == page(), "run docs/design/make_map.py"


TABLES = ("rmq/protocol/headers.py",)
"""Files that are one table, and may be longer."""


@pytest.mark.parametrize("source", [name for name in SOURCES if name not in TABLES])
def test_no_file_is_longer_than_700_lines(source: str) -> None:
    assert (ROOT / source).read_text("utf-8").count("\n") <= 700


CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
LAYERS = tuple(
    {name.strip(" ()"): " : " in layer for name in re.split(r"[|:]", layer)} for layer in CONTRACT["layers"]
)
"""From the top down: the packages of a layer, and whether they may import each other."""


def layer_of(module: str) -> tuple[int, str]:
    """How far down the package of `module` stands, and the package."""
    for depth, packages in enumerate(LAYERS):
        for package in packages:
            if module == package or module.startswith(package + "."):
                return depth, package
    raise AssertionError(f"{module} stands in no layer")


def imports_of(source: str) -> set[str]:
    """The modules of ours that a file imports when it runs, wherever in it the imports stand."""
    tree = ast.parse((ROOT / source).read_text("utf-8"))
    typing = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    skipped = {id(inner) for node in typing for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = source.removesuffix(".py").split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *filter(None, [node.module])])
            found |= {f"{module}.{one.name}" for one in node.names} if module == "rmq" else {module}
    return {name for name in found if name.split(".")[0] == "rmq"}


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "rmq/__init__.py"])
def test_imports_go_down(source: str) -> None:
    depth, package = layer_of(source.removesuffix(".py").removesuffix("/__init__").replace("/", "."))

    wrong = set()
    for name in imports_of(source) - {"rmq"}:
        below, other = layer_of(name)
        beside = below == depth and LAYERS[depth][package]
        if other != package and below <= depth and not beside:
            wrong.add(name)
    assert not wrong, f"{source} imports what stands beside or above it"


TESTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py"))
WITH_PROCESSES = ("tests/system/", "tests/crash/", "tests/hostile/", "tests/interop/", "tests/mutants/")
"""Whose tests run servers as processes: there time is real, and is waited for, looking again and again."""
VIRTUAL_CLOCKS = {"autojump_clock", "clock", "in_memory", "mock_clock"}
SHORTEST = 0.01


@pytest.mark.parametrize("source", [name for name in TESTS if not name.startswith(WITH_PROCESSES)])
def test_no_test_waits_for_real_time(source: str) -> None:
    """On a real clock a test only looks again, in a `while`, or lets others run for 10 ms."""
    tree = ast.parse((ROOT / source).read_text("utf-8"))

    blocking = [call.lineno for call in calls_of(tree, "time", "sleep")]
    assert not blocking, f"{source} sleeps in lines {blocking}"
    for test in ast.walk(tree):
        if not isinstance(test, ast.AsyncFunctionDef | ast.FunctionDef) or not test.name.startswith("test_"):
            continue
        if VIRTUAL_CLOCKS & {argument.arg for argument in test.args.args}:
            continue
        looking = {
            id(call)
            for block in ast.walk(test)
            if isinstance(block, ast.While) or is_virtual(block)
            for call in ast.walk(block)
        }
        slept = [call for loop in ("trio", "anyio", "asyncio") for call in calls_of(test, loop, "sleep")]
        long = [call.lineno for call in slept if id(call) not in looking and not is_short(call.args[0])]
        assert not long, f"{source} waits in lines {long}"


def calls_of(tree: ast.AST, module: str, name: str) -> list[ast.Call]:
    """The calls of `module.name` in it."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == module
    ]


def is_virtual(block: ast.AST) -> bool:
    """Whether it is a block in virtual time of its own."""
    return isinstance(block, ast.With) and any("virtual_time()" in ast.unparse(one) for one in block.items)


def is_short(seconds: ast.expr) -> bool:
    """Whether it is a number of seconds that is not felt."""
    return isinstance(seconds, ast.Constant) and seconds.value <= SHORTEST
