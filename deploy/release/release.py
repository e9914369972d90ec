"""Makes a release: version, changelog, packages, hashes, and a statement of their origin to be signed.

    nox -s release -- 0.2.0                       # or: --python python3.11 --python python3.12 ...
    python deploy/release/release.py 0.2.0 --check --dist dist --notes notes.md

The first writes the version and the date into the files of the tree, and builds the packages in
`dist-VERSION`. It commits, tags and publishes nothing: its last lines are the commands for that. The second
is for the workflow of a tag: it checks that the tree has this version and a section of the changelog, and
writes the notes and the hashes of files that were built elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((a|b|rc)[1-9]\d*)?")
UNRELEASED = "## Unreleased\n"
VERSIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "pyproject.toml": ((r'(?m)^version = "([^"]+)"', 'version = "{}"'),),
    "deploy/client/pyproject.toml": ((r'(?m)^version = "([^"]+)"', 'version = "{}"'),),
    "deploy/helm/rmq/Chart.yaml": (
        (r"(?m)^version: (\S+)", "version: {}"),
        (r'(?m)^appVersion: "([^"]+)"', 'appVersion: "{}"'),
    ),
}
"""File -> where it has the version, and how it is written."""


class Refused(Exception):
    """A release that cannot be made, and what to do."""


def order(version: str) -> tuple[int, int, int, str]:
    """The place of a version among others. Raises Refused for another form."""
    found = VERSION.fullmatch(version)
    if found is None:
        raise Refused(f"{version!r} is no version: expected MAJOR.MINOR.PATCH, as 0.2.0 or 0.2.0rc1")
    return int(found[1]), int(found[2]), int(found[3]), found[4] or "~"  # behind a, b and rc


def version_of(tree: pathlib.Path) -> str:
    """The version of a tree. Raises Refused when its files disagree."""
    found = {
        name: {match[1] for pattern, _ in places for match in re.finditer(pattern, (tree / name).read_text())}
        for name, places in VERSIONS.items()
    }
    if len(set.union(*found.values())) != 1:
        listed = ", ".join(f"{name}: {' '.join(sorted(versions))}" for name, versions in found.items())
        raise Refused(f"the versions differ ({listed}): write the same in all")
    return set.union(*found.values()).pop()


def write_version(tree: pathlib.Path, version: str) -> None:
    """Write a version into all files that have it."""
    for name, places in VERSIONS.items():
        text = (tree / name).read_text("utf-8")
        for pattern, form in places:
            text = re.sub(pattern, form.format(version), text, count=1)
        (tree / name).write_text(text, "utf-8")


def released(changelog: str, version: str, day: str) -> str:
    """The changelog with its unreleased entries under a version. Raises Refused without entries."""
    if re.search(rf"(?m)^## {re.escape(version)} \(", changelog):
        raise Refused(f"CHANGELOG.md has a section {version} already: choose the next version")
    if UNRELEASED not in changelog or not section(changelog, "Unreleased"):
        raise Refused('CHANGELOG.md has no entry under "## Unreleased": write what users see')
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n## {version} ({day})\n", 1)


def section(changelog: str, heading: str) -> str:
    """The text below a heading of the second level, up to the next one; empty without."""
    found = re.search(rf"(?ms)^## {re.escape(heading)}( \([^)]*\))?\n(.*?)(?=^## |\Z)", changelog)
    return found[2].strip() if found else ""


def statement(hashes: str, version: str, commit: str, repository: str) -> dict[str, object]:
    """The origin of packages in the form of in-toto and SLSA, unsigned; `hashes` is SHA256SUMS."""
    lines = [line.split("  ", 1) for line in hashes.splitlines()]
    builder = f"{repository}/blob/{commit}/deploy/release/release.py"
    source = {"uri": f"git+{repository}@refs/tags/v{version}", "digest": {"gitCommit": commit}}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for digest, name in lines],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": builder,
                "externalParameters": {"version": version},
                "resolvedDependencies": [source],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def run(*command: str) -> str:
    """The output of a program. Raises Refused with its error."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def prepare(version: str, pythons: list[str]) -> None:
    """Write version and changelog, build the packages, and say what to do next. Raises Refused."""
    if changed := run("git", "status", "--porcelain").strip():
        raise Refused(f"uncommitted changes: commit or revert them first:\n{changed}")
    present, changes = version_of(ROOT), (ROOT / "CHANGELOG.md").read_text("utf-8")
    if order(version) <= order(present) and section(changes, present):
        raise Refused(f"the tree has version {present}: the next one is higher than that, not {version}")
    dist = ROOT / f"dist-{version}"
    if dist.exists():
        raise Refused(f"{dist} exists: remove it, and run the command again")
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    changelog = released(changes, version, day)
    write_version(ROOT, version)
    (ROOT / "CHANGELOG.md").write_text(changelog, "utf-8")
    options = [word for python in pythons for word in ("--python", python)]
    run(sys.executable, "deploy/packages/build_packages.py", str(dist), *options)
    finish(dist, version)
    print(f"{dist} has:\n{(dist / 'SHA256SUMS').read_text()}")
    print("Look at `git diff`, and then:")
    print(f"  git commit -am 'release: {version}' && git tag -s v{version} -m 'rmq {version}'")
    print(f"  git push origin main v{version}      # the workflow release.yml builds, signs and publishes")


def finish(dist: pathlib.Path, version: str) -> None:
    """Write the hashes of all packages, and the statement of their origin."""
    packages = runpy.run_path(str(ROOT / "deploy" / "packages" / "build_packages.py"))
    packages["write_hashes"](dist)
    commit = run("git", "rev-parse", "HEAD").strip()
    origin = statement((dist / "SHA256SUMS").read_text(), version, commit, repository())
    (dist / f"rmq-{version}.intoto.json").write_text(json.dumps(origin, indent=1) + "\n")


def repository() -> str:
    """The address of the repository: that of the workflow, or of the remote `origin`, or this folder."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    found = subprocess.run(("git", "remote", "get-url", "origin"), cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip().removesuffix(".git") or ROOT.as_uri()


def check(version: str, dist: pathlib.Path, notes: pathlib.Path) -> None:
    """Check the tree of a tag, and write notes and hashes. Raises Refused."""
    order(version)
    if (present := version_of(ROOT)) != version:
        raise Refused(
            f"the tag says {version}, the tree has {present}: run nox -s release -- {version} first"
        )
    text = section((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if not text:
        raise Refused(f"CHANGELOG.md has no section {version}: run nox -s release -- {version} first")
    notes.write_text(text + "\n", "utf-8")
    finish(dist, version)


def main() -> None:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description="Make a release.")
    parser.add_argument("version", help="MAJOR.MINOR.PATCH")
    parser.add_argument(
        "--python", action="append", default=[], help="A Python to build for, again and again."
    )
    parser.add_argument("--check", action="store_true", help="Only check a tagged tree, and finish --dist.")
    parser.add_argument("--dist", type=pathlib.Path, default=pathlib.Path("dist"))
    parser.add_argument("--notes", type=pathlib.Path, default=pathlib.Path("notes.md"))
    given = parser.parse_args()
    try:
        if given.check:
            check(given.version, given.dist.resolve(), given.notes)
        else:
            prepare(given.version, given.python)
    except Refused as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
