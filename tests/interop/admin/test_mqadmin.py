"""The list of mqadmin's commands, as the tool prints it; what each does is asserted in test_mqadmin_*.py."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.interop.rocketmq import Processes

pytestmark = pytest.mark.interop

COMMANDS = 57


def commands(processes: Processes) -> list[str]:
    """The names that mqadmin lists when it is called without any."""
    said = processes.mqadmin()
    return re.findall(r"^   (\w+) ", said, re.MULTILINE)


def test_each_command_of_the_tool_has_a_test(processes: Processes) -> None:
    names = commands(processes)
    assert len(set(names)) == COMMANDS
    tests = pathlib.Path(__file__).parent.glob("test_mqadmin_*.py")
    text = "".join(path.read_text("utf-8") for path in tests)
    assert [name for name in names if f'"{name}"' not in text] == []
