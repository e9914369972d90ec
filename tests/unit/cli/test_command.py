from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from rmq.cli import SUBCOMMANDS, command

HEAVY = {"trio", "anyio", "rich", "yaml", "attrs", "rmq.broker", "rmq.client", "rmq.remoting", "rmq.protocol"}


def test_help_lists_every_subcommand_with_its_line() -> None:
    said = CliRunner().invoke(command, ["--help"])

    assert said.exit_code == 0
    for name, (_, text) in SUBCOMMANDS.items():
        assert name in said.output
        assert text.split()[-1] in said.output


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, rmq.__main__ as m\ntry: m.main()\nexcept SystemExit: print(*sys.modules, sep=chr(10))"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)

    assert "Usage: rmq" in done.stdout
    assert not HEAVY & set(done.stdout.splitlines())


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_subcommand_has_help(name: str) -> None:
    said = CliRunner().invoke(command, [name, "--help"])

    assert said.exit_code == 0
    assert said.output.lower().startswith("usage:")


def test_an_unknown_subcommand_is_a_usage_error() -> None:
    said = CliRunner().invoke(command, ["nonsense"])

    assert said.exit_code == 2
    assert "No such command 'nonsense'" in said.output


def test_services_pass_their_arguments_and_status_on() -> None:
    said = CliRunner().invoke(command, ["namesrv", "--set", "listenPort=none"])

    assert said.exit_code == 2
    assert "listenPort" in said.output
