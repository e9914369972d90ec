"""Settings of a client from environment variables and contexts, if no arguments give them."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import attrs
import click
import pytest

import rmq
from rmq.client import blocking
from rmq.client.config import ClientConfig
from rmq.client.settings.contexts import Context, Contexts, contexts_path, write_contexts
from rmq.errors import ConfigError, InvalidType

PROD = Context(namesrv="10.0.0.1:9876;10.0.0.2:9876", access_key="ops", secret_key="hush", tls=True)
DEV = Context(namesrv="10.9.9.9:1")


@pytest.fixture(autouse=True)
def no_environment(own_home: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "RMQ_NAMESRV_ADDR", "RMQ_CONTEXT", "NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def contexts(no_environment: None) -> None:
    write_contexts(Contexts("prod", {"prod": PROD, "dev": DEV}))


def servers(client: object) -> list[str]:
    inner = client._inner if isinstance(client, blocking.Client) else client
    assert isinstance(inner, rmq.Client)
    return inner._name_servers


@pytest.mark.parametrize("connect", [rmq.connect, blocking.connect])
@pytest.mark.parametrize(
    ("argument", "environment", "expected"),
    [
        (("a:1",), {"RMQ_NAMESRV_ADDR": "b:2", "RMQ_CONTEXT": "dev", "NAMESRV_ADDR": "c:3"}, ["a:1"]),
        ((), {"RMQ_NAMESRV_ADDR": "b:2;b:3", "RMQ_CONTEXT": "dev", "NAMESRV_ADDR": "c:3"}, ["b:2", "b:3"]),
        ((), {"RMQ_CONTEXT": "dev", "NAMESRV_ADDR": "c:3"}, ["10.9.9.9:1"]),
        ((), {"NAMESRV_ADDR": "c:3"}, ["c:3"]),
        ((), {}, ["tls://10.0.0.1:9876", "tls://10.0.0.2:9876"]),
    ],
)
@pytest.mark.usefixtures("contexts")
def test_an_argument_goes_before_the_environment_and_that_before_the_current_context(
    connect: Callable[..., object],
    argument: tuple[str, ...],
    environment: dict[str, str],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert servers(connect(*argument)) == expected


def test_with_nothing_said_it_is_this_machine() -> None:
    assert servers(rmq.connect()) == ["127.0.0.1:9876"]
    assert servers(blocking.connect()) == ["127.0.0.1:9876"]


@pytest.mark.usefixtures("contexts")
def test_a_context_brings_its_account_and_tls_and_an_address_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for client in (rmq.connect(), rmq.connect(context="prod")):
        assert client._credentials == rmq.Credentials("ops", "hush")
        assert client._tls is not None
    own = rmq.Credentials("me", "mine")
    assert rmq.connect(credentials=own)._credentials == own
    assert rmq.connect(context="dev")._credentials is None
    monkeypatch.setenv("RMQ_NAMESRV_ADDR", "b:2")
    assert (rmq.connect()._credentials, rmq.connect()._tls) == (None, None)
    assert servers(rmq.connect(context="dev")) == ["10.9.9.9:1"]


def test_an_account_of_the_environment_is_for_the_cluster_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RMQ_ACCESS_KEY", "me")
    with pytest.raises(
        ConfigError, match=r"account = 'me': expected a secret for the access key.*RMQ_SECRET_KEY"
    ):
        rmq.connect()
    assert rmq.connect(credentials=rmq.Credentials("x", "y"))._credentials == rmq.Credentials("x", "y")
    monkeypatch.setenv("RMQ_SECRET_KEY", "mine")
    assert rmq.connect()._credentials == rmq.Credentials("me", "mine")
    assert rmq.connect("other:1")._credentials is None


@pytest.mark.usefixtures("contexts")
def test_what_is_wrong_is_named_with_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"context = 'nobody': expected a context that .* prod, dev"):
        rmq.connect(context="nobody")
    with pytest.raises(InvalidType, match="context"):
        rmq.connect(context=5)  # type: ignore[arg-type]
    monkeypatch.setenv("RMQ_CONTEXT", "nobody")
    with pytest.raises(ConfigError, match=r"context = 'nobody' \(RMQ_CONTEXT\): expected a context that"):
        rmq.connect()
    monkeypatch.setenv("RMQ_NAMESRV_ADDR", "http://b:2")
    with pytest.raises(ConfigError, match=r"namesrv = 'http://b:2' \(RMQ_NAMESRV_ADDR\): expected"):
        rmq.connect()
    monkeypatch.delenv("RMQ_NAMESRV_ADDR")
    monkeypatch.delenv("RMQ_CONTEXT")
    write_contexts(Contexts("odd", {"odd": Context(namesrv="noport")}))
    with pytest.raises(ConfigError, match=r"namesrv = 'noport' \(context odd\): expected"):
        rmq.connect()
    write_contexts(Contexts("gone", {"odd": DEV}))
    with pytest.raises(ConfigError, match=r"context = 'gone' \(the current one\): expected"):
        rmq.connect()


def test_each_setting_has_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"send_timeout_ms": "1234", "max_message_size": "64k", "avoid_slow_brokers": "false"}
    given |= {"offset_reset": "first", "namespace": "shop"}
    for name, text in given.items():
        monkeypatch.setenv(f"RMQ_{name.upper()}", text)
    expected = ClientConfig(
        send_timeout_ms=1234,
        max_message_size=65536,
        avoid_slow_brokers=False,
        offset_reset="first",
        namespace="shop",
    )
    assert expected.max_body_size == 4 * 65536
    assert rmq.connect("a:1").config == expected
    assert rmq.connect().config == expected
    assert blocking.connect("a:1")._inner.config == expected
    assert ClientConfig.from_environment(namespace="own") == attrs.evolve(expected, namespace="own")
    assert rmq.connect("a:1", config=ClientConfig()).config == ClientConfig()
    with pytest.raises(TypeError, match="nonsense"):
        ClientConfig.from_environment(nonsense=1)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("RMQ_SEND_TIMEOUT_MS", "3s", "sendMsgTimeout = '3s' (the environment variable RMQ_SEND_TIMEOUT_MS)"),
        ("RMQ_SEND_WINDOW", "0", "sendWindow = '0' (the environment variable RMQ_SEND_WINDOW)"),
        ("RMQ_PULL_TIMEOUT_MS", "1", "pull_timeout_ms = 1 (the environment variable RMQ_PULL_TIMEOUT_MS)"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_variable(
    variable: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        rmq.connect("a:1")


async def test_an_app_without_an_address_takes_the_contexts(contexts: None) -> None:
    write_contexts(Contexts("odd", {"odd": Context(namesrv="noport")}))
    with pytest.raises(ConfigError, match=r"namesrv = 'noport' \(context odd\)"):
        async with rmq.App():
            pass


def test_the_file_of_contexts_is_where_click_would_have_it() -> None:
    assert contexts_path() == pathlib.Path(click.get_app_dir("rmq")) / "contexts.yaml"


def test_connecting_loads_no_yaml_where_there_are_no_contexts() -> None:
    code = "import sys, rmq; rmq.connect(); assert not {'yaml', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
