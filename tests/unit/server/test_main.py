"""Servers as programs: one frame reads the command line, maps errors to exit statuses, and gives plug-ins
their settings."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import rmq.broker.__main__ as broker_main
import rmq.controller.__main__ as controller_main
import rmq.namesrv.__main__ as namesrv_main
from rmq.errors import ConfigError, PortInUse, RmqError, StoreLocked
from rmq.plugin import PluginRefused
from rmq.server.main import Program, Start

PROGRAMS = [broker_main.PROGRAM, controller_main.PROGRAM, namesrv_main.PROGRAM]


def failing(error: Exception) -> Callable[[Start], Any]:
    async def serve(start: Start) -> None:
        raise error

    return serve


@pytest.fixture
def arguments(tmp_path: pathlib.Path) -> list[str]:
    return ["--set", f"storePathRootDir={tmp_path}", "--set", f"controllerPath={tmp_path}"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: str(one.title))
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("listenPort", "x", "a number"), 2),
        (PluginRefused("acl", "is not installed"), 2),
        (PortInUse("127.0.0.1:1"), 3),
        (RmqError("the rest"), 1),
    ],
)
def test_an_error_of_a_server_is_an_exit_status_and_one_line(
    program: Program,
    error: Exception,
    status: int,
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert attrs.evolve(program, serve=failing(error)).main(arguments) == status
    assert capsys.readouterr().err.splitlines()[-1] == f"rmq {program.title}: {error}"


@pytest.mark.parametrize(
    "error", [RmqError("the rest"), PortInUse("127.0.0.1:1"), ZeroDivisionError("a bug")], ids=repr
)
def test_an_error_that_ends_a_start_is_in_the_log_s_file(
    error: Exception, arguments: list[str], tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "server.log"
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        program = attrs.evolve(namesrv_main.PROGRAM, serve=failing(error))
        with contextlib.suppress(ZeroDivisionError):
            assert program.main([*arguments, "--set", f"logFile={file}"]) != 0
    finally:
        for handler in [one for one in root.handlers if one not in before]:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
    assert str(error) in file.read_text()
    assert "the name server ends" in file.read_text()


@pytest.mark.parametrize(
    ("program", "error", "status"),
    [
        (broker_main.PROGRAM, StoreLocked("/store"), 3),
        (broker_main.PROGRAM, OSError("no such address"), 1),
        (controller_main.PROGRAM, StoreLocked("/store"), 3),
        (controller_main.PROGRAM, OSError("no such address"), 3),
        (namesrv_main.PROGRAM, OSError("no such address"), 3),
    ],
)
def test_servers_differ_in_what_belongs_to_others(
    program: Program, error: Exception, status: int, arguments: list[str]
) -> None:
    assert attrs.evolve(program, serve=failing(error)).main(arguments) == status


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: str(one.title))
def test_every_server_gives_plugins_the_texts_of_its_file(program: Program, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "server.conf"
    file.write_text(f"linePort=7070\nlineEnd=7071\nstorePathRootDir={tmp_path}\n")
    seen = []

    async def serve(start: Start) -> None:
        seen.append(start)

    assert attrs.evolve(program, serve=serve).main(["-c", str(file), "--set", "lineEnd=9"]) == 0
    assert [(start.texts["linePort"], start.texts["lineEnd"]) for start in seen] == [("7070", "9")]
    assert [start.config for start in seen] == [start.settings[0] for start in seen]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: str(one.title))
def test_the_help_tells_the_exit_statuses(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"3 {program.taken_when}" in text
    assert ("--namesrvAddr" in text) == bool(program.name_servers)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: str(one.title))
@pytest.mark.parametrize("where", ["option", "file", "environment"])
def test_wrong_settings_reach_the_log_s_file(
    program: Program,
    arguments: list[str],
    tmp_path: pathlib.Path,
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service manager's operator looks there first."""
    file, given = tmp_path / "server.log", list[str]()
    if where == "option":
        given = ["--set", f"logFile={file}"]
    elif where == "file":
        (tmp_path / "server.conf").write_text(f"logFile={file}\n")
        given = ["-c", str(tmp_path / "server.conf")]
    else:
        monkeypatch.setenv("RMQ_LOG_FILE", str(file))
    assert program.main([*arguments, *given, "--set", "listenPort=many"]) == 2
    (line,) = file.read_text().splitlines()
    assert f"ERROR rmq.server: the {program.title} ends: listenPort" in line
