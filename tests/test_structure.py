"""Rules on the code as a whole that no linter knows."""

from __future__ import annotations

import ast
import pathlib
import re
import runpy
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Final

import rmq
from tests import pointing_words

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Where `async` may be written; everything else is plain functions over bytes and `now`.
ASYNC_PLACES = (
    "rmq/remoting/",
    "rmq/server/http.py",
    "rmq/server/main.py",
    "rmq/server/pages.py",
    "rmq/server/port_handover.py",
    "rmq/server/ports.py",
    "rmq/server/saving.py",
    "rmq/server/signals.py",
    "rmq/client/",
    "rmq/cli/",
    "rmq/dashboard/",
    "rmq/operate/",
    "rmq/testing/",
    "rmq/controller/service.py",
    "rmq/controller/__main__.py",
    "rmq/namesrv/service.py",
    "rmq/namesrv/__main__.py",
    "rmq/broker/runtime/",  # the loops, ports and threads of a broker
    "rmq/broker/disk_work.py",  # what tasks wait for at the disk
    "rmq/broker/__main__.py",
    "rmq/embedded.py",
    "rmq/proxy/",  # over the client, whose functions wait
    "rmq/spark/cluster.py",
    "rmq/spark/pull.py",
    "rmq/spark/sink.py",
    "rmq/doors.py",
    "rmq/plugin.py",  # Plugin.run, which a plugin may override
)

SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "rmq").rglob("*.py"))
ALL_POINTING: Final = 0.03
"""Share of pointing words in all docstrings together; it only falls."""
TESTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py"))


@cache
def tree_of(source: str) -> ast.Module:
    """A file of ours, read once."""
    return ast.parse((ROOT / source).read_text("utf-8"))


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """All nodes of a file of ours: the rules of this file look at each file, and walk it once."""
    return tuple(ast.walk(tree_of(source)))


PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
)


def test_async_stays_in_the_shells() -> None:
    asynchronous = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = [
        f"{source}:{node.lineno}"
        for source in SOURCES
        if not source.startswith(ASYNC_PLACES)
        for node in nodes_of(source)
        if isinstance(node, asynchronous)
    ]
    assert found == []


def test_the_page_on_the_design_names_all_asynchronous_places() -> None:
    rules = (ROOT / "docs" / "design" / "README.md").read_text("utf-8").split("## Packages")[0]

    entries = [place for place in ASYNC_PLACES if not place.endswith("/__main__.py")]
    assert [place for place in entries if f"`{place}`" not in rules] == []


def test_links_between_pages_lead_somewhere() -> None:
    missing = [
        f"{page}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text("utf-8"))
        if "://" not in link and not ((ROOT / page).parent / link).exists()
    ]
    assert missing == []


def test_the_settings_page_is_what_the_code_says() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "reference" / "make_settings.py"))["page"]

    written = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
    assert written == page(), "run docs/reference/make_settings.py"


def test_the_pages_on_the_api_are_what_the_docstrings_say() -> None:
    folder = ROOT / "docs" / "reference"
    pages = runpy.run_path(str(folder / "make_api.py"))["pages"]()

    written = {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.glob("api/*.md")}
    written["api.md"] = (folder / "api.md").read_text("utf-8")
    assert written == pages, "run docs/reference/make_api.py"
    whole = "".join(written.values())
    assert [name for name in rmq.__all__ if f"\n### rmq.{name}\n" not in whole] == []
    assert "api/more.md" not in pages, "give each public name a page in SECTIONS"


def test_the_map_is_what_the_modules_say() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "design" / "make_map.py"))["page"]

    written = (ROOT / "docs" / "design" / "map.md").read_text("utf-8")
    assert written == page(), "run docs/design/make_map.py"


def test_sessions_of_nox_name_tests_that_exist() -> None:
    texts = [node for node in nodes_of("noxfile.py") if isinstance(node, ast.Constant | ast.JoinedStr)]
    made = [ast.unparse(node) for node in texts if isinstance(node, ast.JoinedStr)]
    assert [text for text in made if "tests/" in text] == [], (
        "write paths out: a test looks whether they exist"
    )
    named = {str(node.value) for node in texts if isinstance(node, ast.Constant)}
    assert [name for name in sorted(named) if name.startswith("tests/") and not (ROOT / name).exists()] == []


LINES: Final = 700
LONG_FILES: Final = {
    "rmq/protocol/bodies.py": "one table: the bodies of all requests and answers",
    "rmq/protocol/headers.py": "one table: the headers of all requests",
}
"""Files of more lines, and why. Everything else is divided by meaning before it grows over the limit."""


def test_the_second_part_of_the_tests_names_tests_that_exist() -> None:
    missing = []
    for line in (ROOT / "tests/slow.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            file, _, name = line.split(" ", 1)[1].partition("::")
            text = (ROOT / file).read_text("utf-8") if (ROOT / file).exists() else ""
            if name.partition("::")[0] not in text:
                missing.append(line)
    assert missing == []


def test_no_file_is_long_without_a_reason() -> None:
    long = {name for name in (*SOURCES, *TESTS) if (ROOT / name).read_text("utf-8").count("\n") > LINES}
    assert sorted(long ^ set(LONG_FILES)) == []


def test_helpers_of_tests_stand_in_modules_of_their_own() -> None:
    shared = {
        f"{test}: {node.module}"
        for test in TESTS
        for node in ast.walk(ast.parse((ROOT / test).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_")
    }
    assert sorted(shared) == []


MODULES: Final = 15


def test_no_folder_is_wide() -> None:
    folders = Counter(
        pathlib.PurePath(name).parent.as_posix()
        for name in (*SOURCES, *TESTS)
        if not name.endswith("__init__.py")
    )
    assert {name: count for name, count in folders.items() if count > MODULES} == {}


CLASS_LINES: Final = 450
LONG_CLASSES: Final = {
    "Raft": "the whole algorithm, which is read beside the paper",
}
"""Classes of more lines, and why."""


def test_no_class_is_long_without_a_reason() -> None:
    long = {
        node.name
        for source in SOURCES
        for node in nodes_of(source)
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= CLASS_LINES
    }
    assert sorted(long ^ set(LONG_CLASSES)) == []


SIBLINGS: Final = 6
ROOTS: Final = "puts the parts of its folder together"
MANY_SIBLINGS: Final = {
    "rmq/broker/admin/parts.py": ROOTS,
    "rmq/broker/broker.py": ROOTS,
    "rmq/broker/consume/per_message/deliveries.py": ROOTS,
    "rmq/client/app.py": "handlers on consumers of both kinds",
    "rmq/client/client.py": ROOTS,
    "rmq/client/consume/assignments.py": "takes, pulls and gives up queues",
    "rmq/client/consume/group_member.py": ROOTS,
    "rmq/controller/service.py": ROOTS,
    "rmq/dashboard/app.py": ROOTS,
    "rmq/dashboard/desk.py": "the parts that every request uses, in one value",
    "rmq/embedded.py": "name server and broker in one process",
    "rmq/remoting/connection.py": "reads by a poller of its loop",
    "rmq/remoting/pool.py": "dials by any transport",
    "rmq/server/main.py": ROOTS,
    "rmq/store/store.py": ROOTS,
}
"""Modules that import more modules or folders beside them, and why."""


def test_no_module_imports_many_siblings_without_a_reason() -> None:
    many = set()
    for source in SOURCES:
        folder = source.rpartition("/")[0].replace("/", ".") + "."
        beside = {
            name.removeprefix(folder).split(".")[0] for name in imports_of(source) if name.startswith(folder)
        }
        if len(beside) > SIBLINGS and not source.endswith("__init__.py"):
            many.add(source)
    assert sorted(many ^ set(MANY_SIBLINGS)) == []


CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
LAYERS = tuple(
    {name.strip(" ()"): " : " in layer for name in re.split(r"[|:]", layer)} for layer in CONTRACT["layers"]
)
"""From the top down: the packages of a layer, and whether they may import each other."""


def layer_of(module: str) -> tuple[int, str]:
    """The depth of the package of `module`, and the package."""
    for depth, packages in enumerate(LAYERS):
        for package in packages:
            if module == package or module.startswith(package + "."):
                return depth, package
    raise AssertionError(f"{module} stands in no layer")


def imports_of(source: str) -> set[str]:
    """The modules of ours that a file imports, for types too, wherever in it the imports stand."""
    found = set()
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = source.removesuffix(".py").split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *filter(None, [node.module])])
            found |= {f"{module}.{one.name}" for one in node.names} if module == "rmq" else {module}
    return {name for name in found if name.split(".")[0] == "rmq"}


def test_imports_go_down() -> None:
    wrong = []
    for source in SOURCES:
        if source == "rmq/__init__.py":
            continue
        depth, package = layer_of(source.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        for name in imports_of(source) - {"rmq"}:
            below, other = layer_of(name)
            beside = below == depth and LAYERS[depth][package]
            if other != package and below <= depth and not beside:
                wrong.append(f"{source} imports {name}, which stands beside or above it")
    assert wrong == []


WITH_PROCESSES = ("tests/system/", "tests/crash/", "tests/hostile/", "tests/interop/", "tests/mutants/")
"""Whose tests run servers as processes: there time is real, and is waited for, looking again and again."""
VIRTUAL_CLOCKS = {"autojump_clock", "clock", "in_memory", "mock_clock"}
SHORTEST = 0.01


def test_no_test_waits_for_real_time() -> None:
    """On a real clock a test only looks again, in a `while`, or lets others run for 10 ms."""
    waiting = []
    for source in TESTS:
        if source.startswith(WITH_PROCESSES):
            continue
        if "sleep" not in (ROOT / source).read_text("utf-8"):
            continue
        tree = tree_of(source)
        waiting += [f"{source}:{call.lineno}" for call in calls_of(tree, "time", "sleep")]
        for test in nodes_of(source):
            if isinstance(test, ast.AsyncFunctionDef | ast.FunctionDef) and test.name.startswith("test_"):
                waiting += [f"{source}:{line}" for line in waits_of(test)]
    assert waiting == []


def waits_of(test: ast.AsyncFunctionDef | ast.FunctionDef) -> list[int]:
    """The lines in which a test sleeps on a real clock, and longer than is felt."""
    if VIRTUAL_CLOCKS & {argument.arg for argument in test.args.args}:
        return []
    looking = {
        id(call)
        for block in ast.walk(test)
        if isinstance(block, ast.While) or is_virtual(block)
        for call in ast.walk(block)
    }
    slept = [call for loop in ("trio", "anyio", "asyncio") for call in calls_of(test, loop, "sleep")]
    return [call.lineno for call in slept if id(call) not in looking and not is_short(call.args[0])]


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
    """True if this is a block in virtual time of its own."""
    return isinstance(block, ast.With) and any("virtual_time()" in ast.unparse(one) for one in block.items)


def is_short(seconds: ast.expr) -> bool:
    """True if this is a number of seconds too short to be felt."""
    return isinstance(seconds, ast.Constant) and seconds.value <= SHORTEST


VALUES: Final = {
    "a record, message, request or response that this code makes or reads": (
        "command message record request response result route"
    ),
    "a row of a table, or a figure in one": (
        "alone batch broker check counted course group guest held in_flight info known lane link made moved"
        " one place pull queue replica round row senders shares topic"
    ),
    "the state of a run of the same module": "done report run taking window",
    "a value of the compiled engine": "lanes",
    "a file in memory": "checkpoint",
}
"""Names of objects whose attributes others assign, since they are values and not parts."""
ASSIGNED: Final = {
    "a counter": ("self._stats.failed_puts",),
    "a field that applications assign": ("transaction.decision",),
    "a limit that a setting changes": ("self._shares.most", "self.shares.most"),
    "not mended yet": (
        "self._log.timestamp",
        "self._stream.has_proved",
    ),
    "an object of the standard library or of trio": (
        "context.check_hostname",
        "context.options",
        "context.verify_mode",
        "failure.__cause__",
        "handler.stream",
        "runner.io_manager",
        "scope.deadline",
        "self._runner.io_manager",
        "self._timer.deadline",
    ),
}
"""Other attributes that are assigned from outside, and why."""
NOT_PARTS: Final = ("rmq/cli/", "rmq/spark/", "rmq/testing/")


def test_attributes_are_assigned_by_their_own_object() -> None:
    """A part gets what it needs in its constructor, or by a method; nothing is put into it from outside."""
    values = {name for names in VALUES.values() for name in names.split()}
    named = {target for targets in ASSIGNED.values() for target in targets}
    wrong, used = [], set()
    for source in SOURCES:
        if source.startswith(NOT_PARTS):
            continue
        for function in nodes_of(source):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for target, root in assigned_in(function):
                    used |= {root, target}
                    if root not in values and target not in named:
                        wrong.append(f"{source}: {target}")
    assert sorted(set(wrong)) == []
    assert sorted((values | named) - used) == []


def test_no_attribute_is_read_before_a_wait_that_is_part_of_its_new_value() -> None:
    """`self.found += await ...` reads `self.found` first: changes by others during the wait are undone."""
    wrong = [
        f"{source}:{node.lineno}"
        for source in SOURCES
        for node in nodes_of(source)
        if isinstance(node, ast.AugAssign | ast.Assign)
        and any(isinstance(part, ast.Await) for part in ast.walk(node.value))
        and is_read_and_written(node)
    ]
    assert wrong == []


def is_read_and_written(node: ast.AugAssign | ast.Assign) -> bool:
    """True if an assignment to an attribute or an item uses its old value."""
    targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
    written = {ast.unparse(one) for one in targets if not isinstance(one, ast.Name)}
    read = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
    return bool(written) and (isinstance(node, ast.AugAssign) or not written.isdisjoint(read))


def assigned_in(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    """The attributes that a function assigns, but for those of `self`, `cls` and objects that it has made."""
    own = {"self", "cls"}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_construction(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            own |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            root = ast.unparse(node.value)
            if root not in own:
                yield f"{root}.{node.attr}", root


def is_construction(value: ast.expr | None) -> bool:
    """True if an expression makes a new object: a call of a class, of `cls`, or of `evolve`."""
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func).rpartition(".")[2].lstrip("_")
    return name[:1].isupper() or name in ("cls", "evolve", "new__")


def test_docstrings_name_what_they_speak_of() -> None:
    """At most 5 % of a file's docstring words only point; listed files have more, and only improve."""
    allowed, shares = pointing_words.allowed(), pointing_words.shares()
    worse = {
        name: f"{share:.1f} %"
        for name, share in shares.items()
        if share > allowed.get(name, pointing_words.FILE_SHARE)
    }
    assert worse == {}, "say the noun: python -m tests.pointing_words FILE shows the words"


def test_the_docstrings_of_all_files_together_name_what_they_speak_of() -> None:
    counts = pointing_words.counts().values()
    assert sum(pointing for pointing, _ in counts) <= ALL_POINTING * sum(words for _, words in counts)
