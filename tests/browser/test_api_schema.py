"""Schemathesis over the API of a real dashboard: every answer is as the description says."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

from .conftest import Dev, dashboard

pytestmark = pytest.mark.browser

TOKEN: Final = "token-of-a-program"
CHECKS: Final = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
"""The description has no 500: an answer with it breaks the first rule."""
TAIL: Final = "/clusters/{cluster}/topics/{topic}/events"
"""A stream without an end, which the unit tests read."""
KNOWN: Final = {"topic": "Schemas", "group": "readers", "broker": "embedded"}
"""Names that exist, which are tried beside any others."""


@pytest.fixture
def address(dev: Dev, tmp_path: pathlib.Path) -> Iterator[str]:
    """`rmq dashboard` with a token."""
    from rmq.dashboard.access.roles import token_hash

    file = tmp_path / "roles.yaml"
    file.write_text(f"tokens:\n  - {{name: ci, role: admin, sha256: {token_hash(TOKEN)}}}\n")
    with dashboard(dev.namesrv, "--roles", str(file)) as address:
        yield address


def described(address: str) -> dict[str, Any]:
    """The description, with the cluster's name and names that exist."""
    with urllib.request.urlopen(f"{address}/api/v1/openapi.json", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    del found["paths"][TAIL]
    for methods in found["paths"].values():
        for one in methods.values():
            for place in one.get("parameters", ()):
                if place["name"] == "cluster":
                    place["schema"] = {"type": "string", "enum": ["default"]}
                elif place["name"] in KNOWN and place["required"]:
                    known = {"type": "string", "enum": [KNOWN[place["name"]]]}
                    place["schema"] = {"anyOf": [known, place["schema"]]}
    return found


def test_schemathesis_finds_no_answer_against_the_description(
    dev: Dev, address: str, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("schemathesis")
    command = [sys.executable, "-m", "rmq", "topic", "create", KNOWN["topic"], "-n", dev.namesrv]
    subprocess.run(command, check=True, capture_output=True)
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(described(address)))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", f"{address}/api/v1"]
    command += ["--checks", ",".join(CHECKS), "--max-examples", "15", "--seed", "1"]
    command += ["--generation-database", "none", "-H", f"Authorization: Bearer {TOKEN}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
