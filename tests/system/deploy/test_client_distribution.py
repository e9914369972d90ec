"""`rmq-client`, the distribution of the client alone (deploy/client): modules, packages, and a run."""

from __future__ import annotations

import ast
import importlib.util
import os
import pathlib
import runpy
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator

import pytest

from rmq.errors import ConfigError
from rmq.server.process import check_installation
from tests.system.shell import ROOT, service

PROJECT = ROOT / "deploy" / "client"
SERVER_CODE = (
    *("broker", "cli", "controller", "dashboard", "doors", "embedded", "namesrv"),
    *("operate", "plugin", "server", "shares", "spark", "store", "testing"),
)
LAZY = {"rmq/remoting/__init__.py": {"rmq.remoting.serving.acceptor", "rmq.remoting.serving.server"}}
"""Names of servers that a package offers to servers, imported when one asks for them."""
TYPES = {
    "rmq/remoting/connection.py": {"rmq.remoting.poller"},
    "rmq/remoting/sending.py": {"rmq.remoting.poller"},
}
"""The same, for type checkers."""
BUILDS = all(importlib.util.find_spec(name) for name in ("build", "hatchling", "Cython", "setuptools"))
NEEDS = "what builds is not installed: the extra `dev` has it"
PROGRAM = """
import sys
import rmq

async def main():
    async with rmq.connect(sys.argv[1]) as client, client.producer("small") as producer:
        result = await producer.send(rmq.Message(sys.argv[3], b"hello", keys=["k"]))
        topics = {sys.argv[3]: "*"}
        async with client.consumer("small-" + sys.argv[3], topics, consume_from="first") as consumer:
            async with await anext(consumer) as message:
                print(result.status, message.body.decode())

import anyio
anyio.run(main, backend=sys.argv[2])
import rmq.client.admin, rmq.client.app, rmq.client.blocking
assert all(hasattr(rmq, name) for name in rmq.__all__)
from rmq.protocol import engine
print(engine.NAME, *sorted(name for name in sys.modules if name.startswith("rmq.")))
"""


def configuration(path: pathlib.Path) -> dict[str, object]:
    """The table `project` of a pyproject.toml."""
    table: dict[str, object] = tomllib.loads((path / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def is_of_servers(name: str) -> bool:
    """True if a file of a wheel is server code."""
    return name.split("/")[1].removesuffix(".py") in SERVER_CODE


@pytest.fixture(scope="module")
def names() -> list[str]:
    """The files of the client, as the build hook selects them."""
    pytest.importorskip("hatchling", reason=NEEDS)
    hook = runpy.run_path(str(PROJECT / "client_build.py"))
    files: list[str] = hook["client_files"](ROOT)
    return files


def imported(path: pathlib.Path) -> Iterator[str]:
    """The modules of ours that a file imports anywhere, in functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("rmq."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rmq"):
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                base = ROOT / inner.replace(".", "/")
                yield inner if base.is_dir() or base.with_suffix(".py").exists() else node.module


def test_the_client_imports_nothing_that_is_not_in_it(names: list[str]) -> None:
    modules = {name.rpartition(".")[0].replace("/", ".").removesuffix(".__init__") for name in names}
    missing = {
        (name, module)
        for name in names
        if name.endswith(".py")
        for module in set(imported(ROOT / name)) - LAZY.get(name, set()) - TYPES.get(name, set())
        if module not in modules
    }
    assert missing == set()
    assert not [name for name in names if is_of_servers(name)]
    assert len(names) == len(set(names))


def test_its_version_and_the_bounds_of_its_packages_are_those_of_the_whole() -> None:
    client, whole = configuration(PROJECT), configuration(ROOT)
    assert client["version"] == whole["version"]
    assert client["requires-python"] == whole["requires-python"]

    def bounds(table: dict[str, object], *extras: str) -> set[str]:
        optional = table["optional-dependencies"]
        assert isinstance(optional, dict)
        assert isinstance(table["dependencies"], list)
        return {*table["dependencies"], *(one for extra in extras for one in optional[extra])}

    shared = ("codecs", "otel", "metrics")
    assert bounds(client, "trio", "websocket", "contexts", *shared) <= bounds(whole, *shared)


@pytest.mark.parametrize(
    ("folders", "refused"),
    [
        (["rmq-1.0.dist-info"], False),
        (["rmq_client-1.0.dist-info"], False),
        (["rmq-1.0.dist-info", "rmq_client-1.0.dist-info"], False),
        (["rmq-1.1.dist-info", "rmq_client-1.0.dist-info"], True),
    ],
)
def test_mixed_files_of_two_versions_are_refused(
    tmp_path: pathlib.Path, folders: list[str], refused: bool
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    if not refused:
        check_installation([str(tmp_path)])
        return
    with pytest.raises(ConfigError, match=r"rmq 1\.1 and rmq-client 1\.0.*pip uninstall rmq-client rmq"):
        check_installation([str(tmp_path)])


def test_the_command_and_the_servers_refuse_mixed_files(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from click.testing import CliRunner

    from rmq.cli import command
    from rmq.namesrv.__main__ import main

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("rmq-8.1.dist-info", "rmq_client-9.0.dist-info"):
        (tmp_path / name).mkdir()
    said = CliRunner().invoke(command, ["context", "list"])
    assert said.exit_code != 0
    assert "rmq 8.1 and rmq-client 9.0" in said.output
    assert main(["-p"]) == 2
    assert "rmq 8.1 and rmq-client 9.0" in capsys.readouterr().err


@pytest.mark.packages
@pytest.mark.skipif(not BUILDS, reason=NEEDS)
def test_the_client_alone_is_small_and_works_on_both_loops(tmp_path: pathlib.Path) -> None:
    """Built by way of the source distribution, installed in an empty environment, with real servers."""
    ours = ("PYTHON", "RMQ_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}

    def run(*command: str, cwd: pathlib.Path = tmp_path, status: int = 0) -> str:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    out = tmp_path / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(PROJECT))
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
    assert not [name for name in held if is_of_servers(name)]
    assert not [name for name in held if not name.startswith(("rmq/", "rmq_client-"))]
    assert [name for name in held if name.endswith("licenses/LICENSE")]

    run(sys.executable, "-m", "venv", str(tmp_path / "empty"))
    python = str(tmp_path / "empty" / "bin" / "python")
    run(python, "-m", "pip", "install", "-q", str(wheel))
    listed = run(python, "-m", "pip", "list", "--format=freeze", "--exclude=pip", "--exclude=setuptools")
    packages = [line.partition("==")[0] for line in listed.split()]
    assert "rmq-client" in packages
    assert len(packages) <= 10, packages

    ports = ("--namesrv-port", "0", "--broker-port", "0", "--no-dashboard")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with service(
        tmp_path, r"name server\D*(127\.0\.0\.1:\d+)", "dev", *ports, "--data-dir", str(tmp_path / "data")
    ) as address:
        first = run(python, str(program), address, "asyncio", "Small")
        missing = run(python, str(program), f"ws://{address}", "asyncio", "Small", status=1)
        run(python, "-m", "pip", "install", "-q", f"{wheel}[trio]")
        second = run(python, str(program), address, "trio", "Smaller")
    assert "pip install 'rmq-client[websocket]'" in missing
    for said in (first, second):
        assert said.startswith("SEND_OK hello\n")
        loaded = said.splitlines()[1].split()
        assert not [name for name in loaded[1:] if name.split(".")[1] in SERVER_CODE], loaded
