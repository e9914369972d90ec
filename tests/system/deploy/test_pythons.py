"""The package in an empty environment of each Python that it supports: installed, and the demo run there."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tomllib

import pytest

from tests.system.shell import ROOT

VERSIONS = ("3.11", "3.12", "3.13")


def python_of(version: str) -> str:
    """An interpreter of this version, of the path or of pyenv; empty without one."""
    folders = sorted(pathlib.Path("~/.pyenv/versions").expanduser().glob(f"{version}.*"))
    for found in (shutil.which(f"python{version}"), *(str(folder / "bin/python") for folder in folders)):
        if found:
            code = "import sys, ensurepip; print('.'.join(map(str, sys.version_info[:2])))"
            done = subprocess.run([found, "-c", code], capture_output=True, text=True)
            if done.stdout.strip() == version:
                return found
    return ""


def test_the_oldest_that_is_tried_is_the_oldest_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={VERSIONS[0]}"


@pytest.mark.packages
@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_installed_and_runs(tmp_path: pathlib.Path, version: str) -> None:
    python = python_of(version)
    if not python:
        pytest.skip(f"there is no python{version}")
    subprocess.run([python, "-m", "venv", str(tmp_path / "env")], check=True)
    inside = str(tmp_path / "env" / "bin" / "python")
    subprocess.run([inside, "-m", "pip", "install", "-q", str(ROOT)], check=True, timeout=800)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    demo = [inside, "-m", "rmq", "demo", "--no-keep"]
    done = subprocess.run(demo, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
