"""The mutation run; see the package."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

import hypothesis  # noqa: F401 - for the forks
import pytest
import trio.testing  # noqa: F401 - for the forks

from tests.mutants.coverage_map import CoverageMap
from tests.mutants.mutations import Mutation, choose, mutations
from tests.mutants.warm import OUT_OF_TIME, NotPlanted, Warm, wait

ROOT: Final = pathlib.Path(__file__).resolve().parents[2]
AREAS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "store": (90, ("rmq/store/*.py",)),
    "broker": (100, ("rmq/broker/**/*.py",)),
    "ha": (
        40,
        ("rmq/broker/replication/*.py", "rmq/broker/runtime/replication_*.py", "rmq/broker/produce/acks.py"),
    ),
    "client": (70, ("rmq/client/**/*.py",)),
    "acl": (30, ("plugins/rmq_acl/*.py",)),
    "protocol": (50, ("rmq/protocol/*.py", "rmq/remoting/*.py")),
    "controller": (40, ("rmq/controller/*.py",)),
}
"""Share of each area in 420 mutations, and its modules; a module belongs to the last area that names it."""
UNCOUNTED: Final = (
    "rmq/store/audit",
    "rmq/store/repair",
    "rmq/broker/tables/stats",
    "rmq/broker/admin/metrics",
)
"""Modules that no message passes."""
TESTS: Final = (
    *(f"tests/{name}" for name in ("unit", "wire", "stateful", "crash", "fuzz", "hostile")),
    "tests/sim/checks/test_controllers.py",
)
"""Of these the tests that always run."""
MOST_SECONDS: Final = 20.0
"""Of tests that are run for one mutation; those of its module, then the quickest, come first."""
AGAIN_SECONDS: Final = 120.0
"""For one that survived these."""
LEFT: Final = ("survived", "not covered", "not judged")
"""Outcomes of those that were not caught."""
SLACK_SECONDS: Final = 10.0
"""How long a test may take beside four times of what it took for the map."""
MOST_BYTES: Final = 8 << 30
"""Address space of a run: a loop without an end does not take the machine along."""
EQUIVALENT: Final = pathlib.Path(__file__).with_name("equivalent.txt")
"""Mutations that change nothing that anybody could see: `path|before|after`, and below it why."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=420, help="how many mutations (420)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--area", action="append", choices=sorted(AREAS), help="only these areas")
    parser.add_argument("--path", default="", help="only modules whose path contains this")
    parser.add_argument("--again", action="store_true", help="run the survivors in --state once more")
    parser.add_argument(
        "--jobs", type=int, default=1, help="how many processes (1), each with a copy of its own"
    )
    parser.add_argument("--list", action="store_true", help="only say which mutations there are")
    parser.add_argument("--folder", default=".mutants", help="where copy, map and results are kept")
    parser.add_argument("--fresh-map", action="store_true", help="learn anew which test executes which line")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; the next run goes on"))
    folder = (ROOT / chosen.folder).resolve()
    folder.mkdir(exist_ok=True, parents=True)
    found = _chosen(chosen.count, chosen.seed, chosen.area or sorted(AREAS), chosen.path)
    if chosen.list:
        print("\n".join(map(str, found)))
        return 0
    results = Results(folder / f"results-{chosen.seed}.jsonl")
    if chosen.again:
        harmless = _equivalent()
        left = {key for key, outcome in results.known.items() if outcome in LEFT and key not in harmless}
        found = [one for one in _all(sorted(AREAS), "") if one.key in left]
    trees = [_copy(folder / f"job{number}" / "tree") for number in range(chosen.jobs)]
    covered = _map(folder / "map.json", trees, fresh=chosen.fresh_map)
    left = [one for one in found if chosen.again or one.key not in results.known]
    most = AGAIN_SECONDS if chosen.again else MOST_SECONDS
    shares = [(left[number :: chosen.jobs], tree) for number, tree in enumerate(trees)]
    _in_processes([functools.partial(_try_all, some, covered, tree, most, results) for some, tree in shares])
    return _report(found, results.again())


def _try_all(
    some: list[Mutation], covered: CoverageMap, tree: pathlib.Path, most_seconds: float, results: Results
) -> None:
    """In a process of its own: collect the tests once, then fork for each mutation."""
    say = functools.partial(print, file=os.fdopen(os.dup(1), "w"), flush=True)
    ended = False

    def use(warm: Warm) -> None:
        nonlocal ended
        names: dict[str, list[Mutation]] = {}
        for number, mutation in enumerate(some):
            began = time.monotonic()
            outcome, test = _try(mutation, covered, tree, most_seconds, warm)
            results.add(mutation, outcome, time.monotonic() - began, test)
            say(f"{tree.parent.name} {number + 1}/{len(some)} {outcome}: {mutation}")
            names.setdefault(test, []).append(mutation)
        for test in _failing(warm, [name for name in names if "::" in name], tree):
            for mutation in names[test]:
                results.add(mutation, "not judged", 0.0, test)
                say(f"{tree.parent.name} {test} fails without it: {mutation}")
        ended = True

    _enter(tree)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        pytest.main([*_pytest(tree), *TESTS], plugins=[Warm(use)])
    if not ended:
        sys.exit("the tests could not be collected")


def _failing(warm: Warm, tests: list[str], tree: pathlib.Path) -> list[str]:
    """The tests that fail without a mutation: their result does not count."""
    failing: list[str] = []
    left = sorted(tests)
    while test := warm.run(dict.fromkeys(left, 60.0), lambda: None, tree.parent / "note.txt"):
        if test not in left:
            break
        failing.append(test)
        left = left[left.index(test) + 1 :]
    return failing


def _in_processes(tasks: list[Callable[[], None]]) -> None:
    """Run each in a process of its own. They are stopped with this one."""
    processes = []
    for task in tasks:
        process = os.fork()
        if not process:
            status = 1
            try:
                task()
                status = 0
            finally:
                os._exit(status)
        processes.append(process)
    try:
        ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    except BaseException:
        for process in processes:
            with suppress(OSError):
                os.kill(process, signal.SIGTERM)
        raise
    if any(ends):
        sys.exit("stopped; the next run goes on")


# ---- which ----


def _sources(areas: list[str], part: str) -> dict[str, list[str]]:
    owner: dict[str, str] = {}
    for area, (_, patterns) in AREAS.items():
        for pattern in patterns:
            owner |= {str(path.relative_to(ROOT)): area for path in ROOT.glob(pattern)}
    found: dict[str, list[str]] = {area: [] for area in areas}
    for path, area in sorted(owner.items()):
        if area in found and part in path and not path.startswith(UNCOUNTED):
            found[area].append(path)
    return found


def _all(areas: list[str], part: str) -> list[Mutation]:
    paths = [path for found in _sources(areas, part).values() for path in found]
    return [mutation for path in paths for mutation in mutations(path, (ROOT / path).read_text())]


def _chosen(count: int, seed: int, areas: list[str], part: str) -> list[Mutation]:
    total = sum(AREAS[area][0] for area in areas)
    found: list[list[Mutation]] = []
    for area in areas:
        sources = {path: (ROOT / path).read_text() for path in _sources([area], part)[area]}
        every = [mutation for path, source in sources.items() for mutation in mutations(path, source)]
        found.append(choose(every, -(-count * AREAS[area][0] // total), seed, sources))
    # In turns, so that a run that is stopped has seen something of each area.
    return [one for turn in itertools.zip_longest(*found) for one in turn if one is not None]


# ---- one ----


def _copy(tree: pathlib.Path) -> pathlib.Path:
    """A copy of what git knows, beside which nothing is ever changed."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    shutil.rmtree(tree, ignore_errors=True)
    for name in names.decode().split("\0"):
        if name and (ROOT / name).is_file():
            target = tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return tree


def _map(path: pathlib.Path, trees: list[pathlib.Path], *, fresh: bool) -> CoverageMap:
    """Map tests to the lines that they execute; only new and changed files of tests are run."""
    found = sorted(file for name in TESTS for file in (ROOT / name).rglob("test_*.py"))
    tests = {str(file.relative_to(ROOT)): file.read_text() for file in found}
    known = CoverageMap.joined([]) if fresh or not path.exists() else CoverageMap.load(path)
    files = known.stale(tests)
    known = known.without([*files, *(set(known.files) - set(tests))])
    if files:
        print(f"running {len(files)} files of tests once, to learn which executes what", flush=True)
        parts = [path.with_name(f"map-{number}.json") for number in range(min(len(trees), len(files)))]
        shares = [(part, files[number :: len(parts)], trees[number]) for number, part in enumerate(parts)]
        _in_processes([functools.partial(_map_part, *share) for share in shares])
        known = CoverageMap.joined([known, *map(CoverageMap.load, parts)])
        known.save(path)
    return known


def _map_part(path: pathlib.Path, tests: list[str], tree: pathlib.Path) -> None:
    environment = _environment(tree) | {"RMQ_MUTANTS_MAP": str(path)}
    command = [sys.executable, "-m", "pytest", *_pytest(tree), "-p", "tests.mutants.coverage_map", *tests]
    subprocess.run(command, cwd=tree, env=environment, check=False)


def _environment(tree: pathlib.Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'plugins'}", "PYTHONHASHSEED": "0"}


def _pytest(tree: pathlib.Path) -> list[str]:
    folder = f"--basetemp={tree.parent / 'tmp'}"  # emptied by each run, and by no other one
    # The suite's own time limit would take the place of ours, which is shorter.
    return ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=1", "--tb=no", "-o", "timeout=0", folder]


def _try(
    mutation: Mutation, covered: CoverageMap, tree: pathlib.Path, most_seconds: float, warm: Warm
) -> tuple[str, str]:
    """The result of a mutation (caught, caught by the time limit, survived, no test executes the line), and
    the test that caught it."""
    path = tree / mutation.path
    good = path.read_text()
    seconds = covered.of(mutation.path, mutation.line, good, most_seconds)
    if not seconds:
        return "not covered", ""
    limits = {test: SLACK_SECONDS + 4 * taken for test, taken in seconds.items()}
    is_planted = True
    try:
        plant = functools.partial(warm.plant, str(path), good, mutation.apply(good))
        failed = warm.run(limits, plant, tree.parent / "note.txt")
    except NotPlanted:
        is_planted, failed = False, ""
    if not failed and (not is_planted or covered.is_at_import(mutation.path, mutation.line)):
        failed = _try_cold(mutation, good, list(seconds), tree, 60 + 4 * sum(seconds.values()))
    if failed == OUT_OF_TIME:
        return "caught by the time limit", ""
    return ("caught", failed) if failed else ("survived", "")


def _try_cold(mutation: Mutation, good: str, tests: list[str], tree: pathlib.Path, limit: float) -> str:
    """In a process that imports all of it after the line has changed."""
    path = tree / mutation.path
    arguments = tree.parent / "tests.txt"
    arguments.write_text("\n".join(tests))
    try:
        path.write_text(mutation.apply(good))
        _forget_bytecode(path)
        status = _run([*_pytest(tree), "-x", f"@{arguments}"], tree, limit)
    finally:
        path.write_text(good)
        _forget_bytecode(path)
    return {0: "", None: OUT_OF_TIME}.get(status, "a fresh start")


def _forget_bytecode(path: pathlib.Path) -> None:
    """Python knows stale bytecode by second and size only."""
    for old in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        old.unlink()


def _run(arguments: list[str], tree: pathlib.Path, seconds: float) -> int | None:
    """The exit status of pytest; None when it took too long."""
    process = os.fork()
    if not process:
        _be_pytest(arguments, tree)
    return wait(process, seconds)


def _be_pytest(arguments: list[str], tree: pathlib.Path) -> NoReturn:
    """In a fork: what pytest and others import is there already, and none of the code."""
    status = 1
    try:
        os.setsid()
        _enter(tree)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            status = int(pytest.main(arguments))
    finally:
        os._exit(status)


def _enter(tree: pathlib.Path) -> None:
    """Work in this copy from now on: modules that are imported come from it."""
    os.chdir(tree)
    os.environ.update(_environment(tree))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rmq", "tests")]:
        del sys.modules[name]
    sys.path[:] = [str(tree), str(tree / "plugins"), *(p for p in sys.path if not _is_ours(p))]
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_ours(folder: str) -> bool:
    return pathlib.Path(folder or ".").resolve() in (ROOT, ROOT / "plugins")


# ---- all ----


class Results:
    """The results, one line each in a file, so that a stopped run can continue."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.known: dict[str, str] = {}  # the outcome by key
        if path.exists():
            rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
            self.known = {row["key"]: row["outcome"] for row in rows}

    def again(self) -> Results:
        """Read once more: other processes write to the file, too."""
        return Results(self._path)

    def add(self, mutation: Mutation, outcome: str, seconds: float, test: str) -> None:
        self.known[mutation.key] = outcome
        row = {"key": mutation.key, "line": mutation.line, "outcome": outcome, "seconds": round(seconds, 1)}
        row["test"] = test
        with self._path.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _equivalent() -> set[str]:
    lines = EQUIVALENT.read_text().splitlines()
    return {line for line in lines if "|" in line and not line.startswith(("#", " "))}


def _report(found: list[Mutation], results: Results) -> int:
    harmless = _equivalent()
    judged = [one for one in found if one.key not in harmless]
    left = [one for one in judged if results.known.get(one.key) in LEFT]
    caught = len(judged) - len(left)
    print(
        f"\n{len(found)} mutations; {len(found) - len(judged)} change nothing; "
        f"{caught} of {len(judged)} caught"
    )
    for one in left:
        print(f"  {results.known[one.key]}: {one}")
    return 0 if caught >= 0.95 * len(judged) else 1


if __name__ == "__main__":
    sys.exit(main())
