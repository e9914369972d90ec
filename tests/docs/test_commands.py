"""Commands and options of `rmq` that the pages name exist."""

from __future__ import annotations

import pathlib
import re

import click
import pytest

from rmq.cli import command as rmq_command

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if not page.match("design/add_*.md")]  # they add commands
FENCE = re.compile(r"^ *```(?P<language>\w*)\n(?P<block>.*?)^ *```", re.S | re.M)
SHELL = ("sh", "bash", "")


def commands(text: str) -> list[list[str]]:
    """The words of each command in code of a page."""
    blocks = [found["block"] for found in FENCE.finditer(text) if found["language"] in SHELL]
    spans = re.findall(r"`(rmq [^`\n]+)`", FENCE.sub("", text))
    lines = [line.strip() for code in (*blocks, *spans) for line in code.replace("\\\n", " ").splitlines()]
    found = [match for line in lines for match in re.findall(r"(?:^|&& |\$ |bin/)rmq ([^#|>;&]*)", line)]
    return [command.split() for command in found]


def unknown(words: list[str]) -> str | None:
    """The first word of a command that no command or option is named by."""
    command: click.Command = rmq_command
    context = click.Context(rmq_command, info_name="rmq")
    rest = list(words)
    while isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z][a-z0-9-]*", rest[0]):
        name = rest.pop(0)
        inner = command.get_command(context, name)
        if inner is None:
            return name
        command, context = inner, click.Context(inner, info_name=name, parent=context)
    if command.context_settings.get("ignore_unknown_options"):
        return None
    parents = [context, *([context.parent] if context.parent else [])]
    known = {"--help", *(name for one in parents for name in _options(one))}
    for word in [] if words[0] == "admin" else rest:  # mqadmin has its own parser
        option = word.split("=")[0].rstrip(",")
        if re.fullmatch(r"--[a-z][a-z-]+", option) and option not in known:
            return option
    return None


def _options(context: click.Context) -> list[str]:
    parameters = context.command.get_params(context)
    return [name for one in parameters for name in (*one.opts, *one.secondary_opts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_exist(page: pathlib.Path) -> None:
    wrong = [
        f"rmq {' '.join(words)}: {word}"
        for words in commands(page.read_text("utf-8"))
        if (word := unknown(words))
    ]
    assert wrong == []
