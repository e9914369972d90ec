"""The policies promise what somebody has set up: no address that is not there, no time that nobody set."""

from __future__ import annotations

import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMBER = r"(?:\d+|one|two|three|four|five|six|seven|ten|fourteen|thirty|ninety)"
TIME = re.compile(rf"\b{NUMBER} (?:working |business )?(?:hours?|days?|weeks?|months?)\b")


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_a_policy_promises_what_is_there(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]

    assert TIME.findall(text) == [], "the owner of the project sets such a time first"
    if not project.keys() & {"authors", "maintainers"}:
        assert not re.search(r"metadata|\bby mail\b", text), "the metadata has no address"
