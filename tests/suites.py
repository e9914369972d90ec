"""Test suites of users, which are run as they would run them."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLUGIN = "rmq.testing.pytest_plugin"


def run_suite(folder: pathlib.Path, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, with the plug-in of rmq also where this package was not installed since."""
    installed = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", PLUGIN]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        [*command, *plugin, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
