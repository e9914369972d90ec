"""`rmq dashboard`: its options, and the lines for a roles file."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import trio
from click.testing import CliRunner

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.cli import command
from rmq.cli.local import dashboard
from rmq.client.settings.target import Target
from rmq.dashboard import connections
from rmq.dashboard.access.roles import read_roles
from rmq.dashboard.config import DashboardConfig
from rmq.dashboard.serve import serve
from rmq.errors import PortInUse

from .site import roles_file


def config_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> DashboardConfig:
    """The settings that a command line makes."""
    found: list[Any] = []
    monkeypatch.setattr(dashboard, "run_service", lambda work, config: found.append(config))
    result = CliRunner().invoke(command, ["dashboard", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    config = found[0]
    assert isinstance(config, DashboardConfig)
    return config


def test_the_options_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(
        monkeypatch,
        *("-n", "10.0.0.1:9876", "--port", "9000", "--host", "10.0.0.5", "--allowed-host", "mq.example.com"),
        *("--tls-certificate", "cert.pem", "--tls-certificate-key", "key.pem", "--require-login"),
    )

    assert (config.host, config.port, config.allowed_hosts) == ("10.0.0.5", 9000, ("mq.example.com",))
    assert config.clusters["default"].namesrv == "10.0.0.1:9876"
    assert config.is_secure
    assert config.is_host("mq.example.com:9000")
    assert not config.is_host("localhost:9000")
    assert not config.can_read_anonymously


def test_without_options_it_is_for_this_machine_and_has_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(monkeypatch)

    assert (config.host, config.port, config.link_token) == ("127.0.0.1", 8088, "")
    assert config.can_read_anonymously
    assert len(config_of(monkeypatch, "--login-link").link_token) >= 32


def test_settings_that_do_not_fit_end_with_one_line() -> None:
    result = CliRunner().invoke(command, ["dashboard", "--host", "0.0.0.0"])

    assert result.exit_code == 2
    assert "--allowed-host" in result.output
    assert "Traceback" not in result.output


def test_lines_for_the_roles_file_are_printed(tmp_path: pathlib.Path) -> None:
    token = CliRunner().invoke(command, ["dashboard", "--new-token"]).output
    password = (
        CliRunner().invoke(command, ["dashboard", "--new-password"], input="pass word\npass word\n").output
    )
    lines = [re.search(r"(- {name: NAME.*})", text)[1] for text in (token, password)]
    roles = read_roles(roles_file(tmp_path, f"tokens:\n  {lines[0]}\nusers:\n  {lines[1]}\n"))

    assert roles.token(re.search(r"token: +(\S+)", token)[1])
    assert roles.user("NAME", "pass word")
    assert roles.user("NAME", "other") is None


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "is_installed", lambda: False)
    result = CliRunner().invoke(command, ["dashboard"])

    assert result.exit_code == 1
    assert "pip install 'rmq[dashboard]'" in result.output


async def test_it_serves_on_a_socket_and_a_taken_port_is_an_error() -> None:
    clusters = {"none": Target("127.0.0.1:1")}
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve, DashboardConfig(clusters=clusters, port=0, sample_seconds=0))
        port = int(address.rpartition(":")[2])
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        answer = await stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 200")

        with pytest.raises(PortInUse):
            await serve(DashboardConfig(clusters=clusters, port=port, sample_seconds=0))
        nursery.cancel_scope.cancel()


async def healthy(stream: trio.SocketStream) -> None:
    """Ask whether the dashboard runs, and have the answer."""
    await stream.send_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answer = b""
    while not answer.endswith(b"ok\n"):
        data = await stream.receive_some()
        assert data, answer
        answer += data
    assert answer.startswith(b"HTTP/1.1 200")


async def is_cut(stream: trio.SocketStream) -> bool:
    """True if the dashboard ends the connection."""
    try:
        return not await stream.receive_some()
    except trio.BrokenResourceError:
        return True


async def test_connections_that_say_nothing_keep_no_newcomer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was kept for a minute, and their number had no bound but the system's."""
    monkeypatch.setattr(connections, "CONNECTIONS", 16)
    config = DashboardConfig(clusters={"none": Target("127.0.0.1:1")}, port=0, sample_seconds=0)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(serve, config)
        port = int(address.rpartition(":")[2])
        user = await trio.open_tcp_stream("127.0.0.1", port)
        await healthy(user)
        silent = [
            await trio.open_tcp_stream("127.0.0.1", port, local_address=f"127.0.0.{2 + number % 2}")
            for number in range(40)
        ]
        await healthy(await trio.open_tcp_stream("127.0.0.1", port))
        for stream in silent[:20]:
            assert await is_cut(stream), "the first have made room"
        await healthy(user)  # a connection that has sent a request keeps its place
        nursery.cancel_scope.cancel()


def test_a_wrong_file_of_a_provider_ends_the_command(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "oidc.yaml"
    file.write_text("issuer: http://login.example.com\nclient_id: rmq\ndefault_role: reader\n")
    for path, named in ((file, "https"), (tmp_path / "gone.yaml", "readable")):
        result = CliRunner().invoke(command, ["dashboard", "-n", "127.0.0.1:1", "--oidc", str(path)])
        assert (result.exit_code, named in result.output) == (2, True), result.output
