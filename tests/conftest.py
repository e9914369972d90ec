"""What every test may use: the vectors taken from Apache RocketMQ 4.9.7."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is no failure of the code; the same examples each time make a failure repeatable.
settings.register_profile("checks", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "checks"))


LONG = ("interop", "crash", "campaign", "packages", "runbooks")
"""Marks of tests that take as long as they take: pyproject.toml's limit of time is for the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(mark) for mark in LONG):
            item.add_marker(pytest.mark.timeout(0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logs may hold lone surrogates; its report must be text that another process can be sent:
    else a worker of pytest-xdist dies of it."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the captured vectors; its README says what each file holds."""
    return Path(__file__).parent / "golden"
