"""The least versions of dependencies have no flaw that is known of, and whatever is imported is declared."""

from __future__ import annotations

import pathlib
import re
import tomllib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXED = {
    "anyio": ("4.14.2", "CVE-2026-63374, CVE-2026-64847"),
    "click": ("8.4.2", "PYSEC-2026-2132"),
    "cryptography": ("50", "PYSEC-2026-3552, GHSA-537c-gmf6-5ccf, CVE-2026-39892, CVE-2026-26007"),
    "h11": ("0.16", "CVE-2025-43859: request smuggling"),
    "h2": ("4.4.1", "CVE-2026-71554, CVE-2025-57804: request smuggling"),
    "hpack": ("4.2", "CVE-2026-59980: long numbers take quadratic time"),
    "hypercorn": ("0.16", "SNYK-PYTHON-HYPERCORN-6371005: denial of service"),
    "jinja2": ("3.1.6", "CVE-2025-27516: out of the sandbox"),
    "protobuf": ("6.33.5", "CVE-2026-0994, CVE-2025-4565: endless recursion"),
    "pyarrow": ("23.0.1", "CVE-2026-25087: use after free"),
    "pyspark": ("4.0.1", "CVE-2025-54920: code out of an event log"),
    "setuptools": ("78.1.1", "CVE-2025-47273: files outside its folder"),
    "starlette": ("1.3.1", "CVE-2026-48710, CVE-2026-54282, CVE-2026-54283"),
}
"""Of each dependency that had one: the first version without it, and the advisories."""


def _declared() -> Iterator[tuple[str, str]]:
    """Name and least version of all requirements of the package, its extras and its build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    texts = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for some in project["project"]["optional-dependencies"].values():
        texts += some
    for text in texts:
        if found := re.fullmatch(
            r"([A-Za-z0-9._-]+)(?:\[[^]]*])?[~>]=([0-9.]+)(?:,<[0-9.]+)?(?:;.*)?", text.replace(" ", "")
        ):
            yield found[1].lower(), found[2]
        else:
            assert text.startswith("rmq["), f"{text} names no least version"


def _numbers(version: str) -> list[int]:
    return [*map(int, version.split(".")), 0, 0, 0][:4]


@pytest.mark.parametrize("name", FIXED)
def test_no_dependency_may_be_older_than_the_mending_of_its_known_flaws(name: str) -> None:
    fixed, flaws = FIXED[name]
    least = [version for declared, version in _declared() if declared == name]
    assert least, f"{name} is imported, and not declared"
    for version in least:
        assert _numbers(version) >= _numbers(fixed), f"{name} {version}: {flaws}"


def test_the_client_by_itself_asks_for_no_older_versions() -> None:
    text = (ROOT / "deploy" / "client" / "pyproject.toml").read_text("utf-8")
    for name, version in re.findall(r'"([a-z0-9_-]+)>=([0-9.]+)', text):
        if name in FIXED:
            assert _numbers(version) >= _numbers(FIXED[name][0]), f"{name} {version}: {FIXED[name][1]}"


def test_what_servers_read_from_strangers_with_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert any(text.startswith("h11") for text in project["dependencies"])
    for extra in ("grpc", "dashboard"):
        names = {re.split("[<>=~]", text)[0] for text in project["optional-dependencies"][extra]}
        assert {"h2", "hpack"} <= names, extra
