from __future__ import annotations

import logging
import pathlib
import shutil
import signal
import subprocess
import sys

import anyio
import click
import pytest
import trio
from click.testing import CliRunner

from rmq.cli import SECTIONS, SUBCOMMANDS, command
from rmq.cli.admin.command import java_text
from rmq.cli.clusters.broker import operations
from rmq.cli.clusters.controller import operations as controller_operations
from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq.server.process import ignore_unused

HEAVY = {"trio", "anyio", "rich", "yaml", "attrs", "rmq.broker", "rmq.client", "rmq.remoting", "rmq.protocol"}


def test_help_lists_every_subcommand_with_its_line() -> None:
    said = CliRunner().invoke(command, ["--help"])

    assert said.exit_code == 0
    for name, (_, text) in SUBCOMMANDS.items():
        assert name in said.output
        assert text.split()[-1] in said.output
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(SUBCOMMANDS)


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


def paths(name: str, found: click.Command) -> list[str]:
    """`found` and what is below it, as one types them."""
    if not isinstance(found, click.Group):
        return [name]
    return [path for below, child in found.commands.items() for path in paths(f"{name} {below}", child)]


def test_the_page_has_an_example_of_each_command() -> None:
    page = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "reference" / "cli.md").read_text("utf-8")
    context = click.Context(command)
    servers = {"broker": operations, "controller": controller_operations}

    typed: list[str] = []
    for name in command.list_commands(context):
        found = servers.get(name) or command.get_command(context, name)
        assert found is not None
        typed += [f"rmq {name}"] if name == "admin" else paths(f"rmq {name}", found)  # docs/admin.md has its
    assert len(typed) > 80
    assert [path for path in typed if path not in page] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_one_that_the_shell_reads(shell: str) -> None:
    said = CliRunner().invoke(command, ["completion", shell])
    assert said.exit_code == 0
    if shutil.which(shell) is None:
        assert "_RMQ_COMPLETE" in said.stdout
        return
    checked = subprocess.run([shell, "-n"], input=said.stdout, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(("sent", "status"), [(0, 1), (3, 0)])
def test_probes_that_no_broker_takes_end_with_1(
    monkeypatch: pytest.MonkeyPatch, sent: int, status: int
) -> None:
    async def probes(*arguments: object) -> list[dict[str, object]]:
        return [{"broker": "a", "sent": 3, "failed": 0}, {"broker": "b", "sent": sent, "failed": 3 - sent}]

    monkeypatch.setattr("rmq.cli.clusters.cluster._rt", probes)
    assert CliRunner().invoke(command, ["cluster", "rt"]).exit_code == status


def test_values_are_printed_as_javas_tools_of_49_print_them() -> None:
    topic = TopicConfig("Made", 3, 2)
    text = java_text(topic)
    assert text.startswith("TopicConfig [topicName=Made, readQueueNums=3, writeQueueNums=2, perm=RW-,")
    assert "creation" not in text
    assert "attributes" not in text
    assert "attributes={message.type=FIFO}" in java_text(
        TopicConfig("Made", 3, 2, attributes={"message.type": "FIFO"})
    )
    assert "Retry" not in java_text(SubscriptionGroupConfig("G"))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["publish"], "pub"),
        (["Send", "T"], "pub"),
        (["consume"], "sub or tail"),
        (["topci"], "topic"),
        (["topic", "make", "T"], "create"),
        (["group", "rm", "g"], "delete"),
    ],
)
def test_what_other_tools_call_it_is_suggested(arguments: list[str], found: str) -> None:
    said = CliRunner().invoke(command, arguments)
    assert said.exit_code == 2
    assert f": did you mean {found}?" in said.output


SERVICES = (
    ("namesrv", "--set", "listenPort=0"),
    ("broker", "--set", "listenPort=0"),
    ("broker", "--processes", "2", "--set", "listenPort=10911"),
    ("controller", "--set", "listenPort=0"),
    ("proxy", "--set", "listenPort=0"),
    ("dashboard", "-n", "127.0.0.1:1"),
    ("dev", "--namesrv-port", "0", "--broker-port", "0"),
    ("run", "orders_of_a_test:app"),
)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="no such signal here")
@pytest.mark.parametrize("words", SERVICES, ids=" ".join)
def test_no_service_ends_by_sigusr2(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    seen: list[object] = []

    def run(*arguments: object, **options: object) -> None:
        seen.append(signal.getsignal(signal.SIGUSR2))

    (tmp_path / "orders_of_a_test.py").write_text("import rmq\napp = rmq.App('127.0.0.1:1')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(trio, "run", run)
    monkeypatch.setattr(anyio, "run", run)
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    try:
        done = CliRunner().invoke(command, words)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (done.exit_code, seen) == (0, [signal.SIG_IGN]), done.output


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="no such signal here")
def test_a_programs_own_use_of_sigusr2_stays() -> None:
    def own(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGUSR2, own)
    try:
        ignore_unused()
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        (("listenPort=many",), 2, "listenPort"),
        (("listenPort=10911", "haMasterAddress=127.0.0.1:1"), 2, "haMasterAddress"),
        (("listenPort=10911", "storePathRootDir=/proc/nothing"), 2, "storePathRootDir"),
    ],
    ids=lambda value: str(value[-1]) if isinstance(value, tuple) else "",
)
def test_what_ends_the_start_of_several_brokers_is_in_the_log_s_file(
    given: tuple[str, ...], status: int, words: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "broker.log"
    options = [word for text in (f"logFile={file}", *given) for word in ("--set", text)]
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        done = CliRunner().invoke(command, ["broker", "--processes", "2", *options])
    finally:
        for handler in [one for one in root.handlers if one not in before]:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
    assert done.exit_code == status, done.output
    assert f"the broker ends: {words}" in file.read_text()
