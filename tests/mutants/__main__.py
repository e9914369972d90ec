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

ROOT: Final = pathlib.Path(__file__).resolve().parents[2]
AREAS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "store": (90, ("rmq/store/*.py",)),
    "broker": (100, ("rmq/broker/*.py",)),
    "ha": (40, ("rmq/broker/ha*.py", "rmq/broker/replica*.py", "rmq/broker/acknowledgement.py")),
    "client": (70, ("rmq/client/*.py",)),
    "acl": (30, ("plugins/rmq_acl/*.py",)),
    "protocol": (50, ("rmq/protocol/*.py", "rmq/remoting/*.py")),
}
"""Share of each area in 380 mutations, and its modules; a module belongs to the last area that names it."""
UNCOUNTED: Final = ("rmq/store/audit", "rmq/store/repair", "rmq/broker/stats", "rmq/broker/metrics")
"""Modules that no message passes."""
TESTS: Final = ("tests/unit", "tests/wire", "tests/stateful")
MOST_SECONDS: Final = 10.0
"""Of tests that are run for one mutation; the quickest, and those of its module, come first."""
AGAIN_SECONDS: Final = 120.0
"""For one that survived these."""
GOOD: Final = 10
"""For so many lines the tests are run without a mutation first."""
SLACK_SECONDS: Final = 20.0
"""How long a run may take beside four times that of its tests."""
MOST_BYTES: Final = 8 << 30
"""Address space of a run: a loop without an end does not take the machine along."""
EQUIVALENT: Final = pathlib.Path(__file__).with_name("equivalent.txt")
"""Mutations that change nothing that anybody could see: `path|before|after`, and below it why."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=380, help="how many mutations (380)")
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
        found = [one for one in _all(sorted(AREAS), "") if results.known.get(one.key) == "survived"]
    trees = [_copy(folder / f"job{number}" / "tree") for number in range(chosen.jobs)]
    covered = _map(folder / "map.json", trees, fresh=chosen.fresh_map)
    _check_good(found, covered, trees[0])
    left = [one for one in found if chosen.again or one.key not in results.known]
    most = AGAIN_SECONDS if chosen.again else MOST_SECONDS
    shares = [(left[number :: chosen.jobs], tree) for number, tree in enumerate(trees)]
    _in_processes([functools.partial(_try_all, some, covered, tree, most, results) for some, tree in shares])
    return _report(found, results.again())


def _try_all(
    some: list[Mutation], covered: CoverageMap, tree: pathlib.Path, most_seconds: float, results: Results
) -> None:
    for number, mutation in enumerate(some):
        outcome, seconds = _try(mutation, covered, tree, most_seconds)
        results.add(mutation, outcome, seconds)
        print(f"{tree.parent.name} {number + 1}/{len(some)} {outcome}: {mutation}", flush=True)


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
    if fresh or not path.exists():
        print("running the tests once, to learn which executes what", flush=True)
        files = sorted(
            str(file.relative_to(ROOT)) for name in TESTS for file in (ROOT / name).rglob("test_*.py")
        )
        parts = [path.with_name(f"map-{number}.json") for number in range(len(trees))]
        shares = [(part, files[number :: len(trees)], trees[number]) for number, part in enumerate(parts)]
        _in_processes([functools.partial(_map_part, *share) for share in shares])
        CoverageMap.joined([CoverageMap.load(part) for part in parts]).save(path)
    return CoverageMap.load(path)


def _map_part(path: pathlib.Path, tests: list[str], tree: pathlib.Path) -> None:
    environment = _environment(tree) | {"RMQ_MUTANTS_MAP": str(path)}
    command = [sys.executable, "-m", "pytest", *_pytest(), "-p", "tests.mutants.coverage_map", *tests]
    subprocess.run(command, cwd=tree, env=environment, check=False)


def _environment(tree: pathlib.Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'plugins'}", "PYTHONHASHSEED": "0"}


def _pytest() -> list[str]:
    return ["-q", "-p", "no:cacheprovider", "--hypothesis-seed=1", "--tb=no"]


def _try(
    mutation: Mutation, covered: CoverageMap, tree: pathlib.Path, most_seconds: float
) -> tuple[str, float]:
    """What becomes of it: caught, caught by the time limit, survived, or no test executes the line."""
    path = tree / mutation.path
    good = path.read_text()
    tests, seconds = covered.of(mutation.path, mutation.line, good, most_seconds)
    if not tests:
        return "not covered", 0.0
    arguments = tree.parent / "tests.txt"
    arguments.write_text("\n".join(tests))
    began = time.monotonic()
    try:
        path.write_text(mutation.apply(good))
        _forget_bytecode(path)
        status = _run([*_pytest(), "-x", f"@{arguments}"], tree, SLACK_SECONDS + 4 * seconds)
    finally:
        path.write_text(good)
        _forget_bytecode(path)
    outcome = {0: "survived", None: "caught by the time limit"}.get(status, "caught")
    return outcome, time.monotonic() - began


def _check_good(mutations: list[Mutation], covered: CoverageMap, tree: pathlib.Path) -> None:
    """Without a mutation the tests pass. Exits when they do not: then nothing would be proved."""
    for mutation in mutations[:: max(1, len(mutations) // GOOD)]:
        source = (tree / mutation.path).read_text()
        tests, seconds = covered.of(mutation.path, mutation.line, source, MOST_SECONDS)
        arguments = tree.parent / "tests.txt"
        arguments.write_text("\n".join(tests))
        if tests and _run([*_pytest(), "-x", f"@{arguments}"], tree, SLACK_SECONDS + 4 * seconds) != 0:
            sys.exit(f"the tests of {mutation.path}:{mutation.line} fail without a mutation: see {arguments}")


def _forget_bytecode(path: pathlib.Path) -> None:
    """Python knows stale bytecode by second and size only."""
    for old in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        old.unlink()


def _run(arguments: list[str], tree: pathlib.Path, seconds: float) -> int | None:
    """The exit status of pytest; None when it took too long. Whatever it started is ended with it."""
    process = os.fork()
    if not process:
        _be_pytest(arguments, tree)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        return None
    finally:
        for number in (process, -process):  # before and after it has a session of its own
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)


def _be_pytest(arguments: list[str], tree: pathlib.Path) -> NoReturn:
    """In a fork: what pytest and others import is there already, and none of the code."""
    status = 1
    try:
        os.setsid()
        os.chdir(tree)
        os.environ.update(_environment(tree))
        for name in [name for name in sys.modules if name.partition(".")[0] in ("rmq", "tests")]:
            del sys.modules[name]
        sys.path[:] = [str(tree), str(tree / "plugins"), *(p for p in sys.path if not _is_ours(p))]
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            status = int(pytest.main(arguments))
    finally:
        os._exit(status)


def _is_ours(folder: str) -> bool:
    return pathlib.Path(folder or ".").resolve() in (ROOT, ROOT / "plugins")


# ---- all ----


class Results:
    """What was found out, one line each in a file, so that a run that was stopped goes on."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.known: dict[str, str] = {}  # the outcome by key
        if path.exists():
            rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
            self.known = {row["key"]: row["outcome"] for row in rows}

    def again(self) -> Results:
        """Read once more: other processes write to the file, too."""
        return Results(self._path)

    def add(self, mutation: Mutation, outcome: str, seconds: float) -> None:
        self.known[mutation.key] = outcome
        row = {"key": mutation.key, "line": mutation.line, "outcome": outcome, "seconds": round(seconds, 1)}
        with self._path.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _report(found: list[Mutation], results: Results) -> int:
    known = EQUIVALENT.read_text() if EQUIVALENT.exists() else ""
    harmless = {line for line in known.splitlines() if "|" in line and not line.startswith(("#", " "))}
    judged = [one for one in found if one.key not in harmless]
    left = [one for one in judged if results.known.get(one.key) in ("survived", "not covered")]
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
