"""Names and options are those of the real tool, as tests/golden/mqadmin_options.json has them."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from rmq.cli.admin import COMMANDS, admin

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "golden" / "mqadmin_options.json"
OPTIONS = json.loads(GOLDEN.read_text("utf-8"))


def long_form(text: str) -> str:
    """Some of mqadmin's long names have blanks, hard to type: ours are written together."""
    first, *rest = text.split()
    return "--" + first + "".join(word[:1].upper() + word[1:] for word in rest)


def parameters(name: str) -> dict[str, click.Parameter]:
    """Option as typed -> the parameter that it sets; `-h` among them."""
    command = admin.get_command(click.Context(admin), name)
    assert command is not None
    context = command.make_context(name, [], resilient_parsing=True)
    return {option: parameter for parameter in command.get_params(context) for option in parameter.opts}


def test_the_57_names_are_there_and_no_other() -> None:
    assert len(OPTIONS) == 57
    assert sorted(COMMANDS) == sorted(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_there_under_both_its_names(name: str) -> None:
    ours = parameters(name)

    for wanted in OPTIONS[name]:
        parameter = ours[f"-{wanted['short']}"]
        assert isinstance(parameter, click.Option)
        assert long_form(wanted["long"]) in parameter.opts
        assert parameter.is_flag is not wanted["argument"]
        assert parameter.required == wanted["required"]


@pytest.mark.parametrize("name", OPTIONS)
def test_no_other_letter_is_taken(name: str) -> None:
    letters = {option[1:] for option in parameters(name) if not option.startswith("--")}

    assert letters == {wanted["short"] for wanted in OPTIONS[name]}


def test_help_lists_the_names_by_group() -> None:
    said = CliRunner().invoke(admin, ["--help"])

    assert said.exit_code == 0
    assert [name for name in OPTIONS if f"  {name} " not in said.output] == []
    assert "Groups and offsets:" in said.output


def test_help_imports_no_client() -> None:
    code = (
        "import sys\nfrom rmq.cli.admin import admin\n"
        "try: admin()\nexcept SystemExit: print(*sys.modules, sep=chr(10))"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)

    assert not {"trio", "anyio", "rich", "attrs", "rmq.client"} & set(done.stdout.splitlines())


@pytest.mark.parametrize("name", ["brokerStatus", "updateTopic", "getAclConfig"])
def test_neither_a_broker_nor_a_cluster_is_a_usage_error(name: str) -> None:
    words = ["-t", "Orders"] if name == "updateTopic" else []

    said = CliRunner().invoke(admin, [name, "-n", "127.0.0.1:1", *words])

    assert said.exit_code == 2
    assert "-b" in said.output


@pytest.mark.parametrize("name", OPTIONS)
def test_no_option_hides_another(name: str) -> None:
    command = admin.get_command(click.Context(admin), name)
    assert command is not None
    names = [parameter.name for parameter in command.params]

    assert len(names) == len(set(names))
