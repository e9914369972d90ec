"""The release script, on a copy of the files that it changes; and the files of the repository's host."""

from __future__ import annotations

import ast
import pathlib
import re
import runpy
import shutil
from typing import Any

import pytest
import yaml

from tests.system.shell import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- a thing\n\n## 0.1.0\n\nFirst.\n"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "deploy" / "release" / "release.py"))


@pytest.fixture
def tree(script: dict[str, Any], tmp_path: pathlib.Path) -> pathlib.Path:
    """The files that have a version."""
    for name in script["VERSIONS"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_all_files_have_the_same_version_and_get_the_next_one(
    script: dict[str, Any], tree: pathlib.Path
) -> None:
    before = script["version_of"](tree)
    script["write_version"](tree, "0.2.0rc1")
    assert script["version_of"](tree) == "0.2.0rc1"
    assert script["order"](before) < script["order"]("0.2.0rc1") < script["order"]("0.2.0")
    chart = tree / "deploy/helm/rmq/Chart.yaml"
    assert yaml.safe_load(chart.read_text())["appVersion"] == "0.2.0rc1"
    chart.write_text(chart.read_text().replace('"0.2.0rc1"', '"0.3.0"'))
    with pytest.raises(script["Refused"], match="the versions differ"):
        script["version_of"](tree)


@pytest.mark.parametrize("version", ["1.0", "01.0.0", "1.0.0-beta", "v1.0.0", "1.0.0rc0"])
def test_other_forms_of_a_version_are_refused(script: dict[str, Any], version: str) -> None:
    with pytest.raises(script["Refused"], match=r"expected MAJOR\.MINOR\.PATCH"):
        script["order"](version)


def test_the_changelog_gets_a_section_of_the_release(script: dict[str, Any]) -> None:
    made = script["released"](CHANGELOG, "0.2.0", "2026-12-01")
    assert made.startswith("# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-12-01)\n\n- a thing\n")
    assert script["section"](made, "0.2.0") == "- a thing"
    assert script["section"](made, "0.1.0") == "First."
    assert script["section"](made, "Unreleased") == ""
    with pytest.raises(script["Refused"], match='no entry under "## Unreleased"'):
        script["released"](made, "0.3.0", "2026-12-02")
    with pytest.raises(script["Refused"], match=r"has a section 0\.2\.0 already"):
        script["released"](made.replace("## Unreleased\n", "## Unreleased\n\n- b\n"), "0.2.0", "2026-12-02")
    assert script["section"]((ROOT / "CHANGELOG.md").read_text("utf-8"), "0.1.0")


def test_the_statement_names_each_package_with_its_hash(script: dict[str, Any]) -> None:
    made = script["statement"]("aa  rmq-1.whl\nbb  rmq 1.tar.gz\n", "1.0.0", "abc", "https://host/rmq")
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["subject"] == [
        {"name": "rmq-1.whl", "digest": {"sha256": "aa"}},
        {"name": "rmq 1.tar.gz", "digest": {"sha256": "bb"}},
    ]
    (source,) = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source == {"uri": "git+https://host/rmq@refs/tags/v1.0.0", "digest": {"gitCommit": "abc"}}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def test_a_second_finish_writes_the_same_hashes(script: dict[str, Any], tmp_path: pathlib.Path) -> None:
    (tmp_path / "rmq-0.2.0.tar.gz").write_bytes(b"a package")
    script["finish"](tmp_path, "0.2.0")
    first = (tmp_path / "SHA256SUMS").read_text()
    script["finish"](tmp_path, "0.2.0")
    assert (tmp_path / "SHA256SUMS").read_text() == first
    assert [line.split()[1] for line in first.splitlines()] == ["rmq-0.2.0.tar.gz"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_their_actions_and_call_sessions_that_exist(path: pathlib.Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    sessions = {
        node.name
        for node in ast.parse((ROOT / "noxfile.py").read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert workflow["permissions"] == {"contents": "read"}
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", step["uses"]), step
        for words in re.findall(r"nox -s ([^\n]+)", step.get("run", "")):
            matrices = [job["strategy"]["matrix"] for job in workflow["jobs"].values() if "strategy" in job]
            named = [one for matrix in matrices for one in matrix.get("session", ())]
            wanted = named if "${{" in words else words.split()
            assert set(wanted) <= sessions, (words, sorted(sessions))
    for job in workflow["jobs"].values():
        called = job.get("uses", "")
        assert not called or (ROOT / called).exists()


def test_workflows_try_each_python_that_the_package_supports() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]
    for name in ("tests", "client"):
        assert jobs[name]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_issue_forms_have_fields_with_names_of_their_own(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text("utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 1
    assert all("label" in field["attributes"] for field in form["body"] if field["type"] != "markdown")
