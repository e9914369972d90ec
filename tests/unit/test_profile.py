"""profile = secure: what it turns on, what it refuses, and what is said of a port that is open wider."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from rmq.broker.__main__ import banner, parse, settings
from rmq.broker.config import BrokerConfig
from rmq.errors import ConfigError
from rmq.namesrv.config import NamesrvConfig
from rmq.protocol import engine
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.profile import applied, protect_files
from rmq.store.config import BrokerRole, StoreConfig


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Paths of everything that is needed; nobody reads what is in it here."""
    paths = {name: tmp_path / name for name in ("cert", "trust", "secret", "accounts")}
    for path in paths.values():
        path.write_text("x")
    return {name: str(path) for name, path in paths.items()}


def secure(kind: Any, files: dict[str, str]) -> tuple[Any, TlsConfig]:
    config = kind(profile="secure", cluster_secret_file=files["secret"], acl_file=files["accounts"])
    return config, TlsConfig(tls_cert_path=files["cert"], tls_trust_path=files["trust"])


@pytest.mark.parametrize("kind", [BrokerConfig, NamesrvConfig])
def test_one_line_turns_all_of_it_on(kind: Any, files: dict[str, str]) -> None:
    config, tls = applied(*secure(kind, files))
    assert config.acl_enable
    assert (tls.tls_mode, tls.tls_enable) == ("enforcing", True)
    assert applied(config, evolve(tls, tls_mode="enforcing")) == (config, tls)


@pytest.mark.parametrize("kind", [BrokerConfig, NamesrvConfig])
def test_compat_changes_nothing(kind: Any) -> None:
    assert applied(kind(), TlsConfig()) == (kind(), TlsConfig())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cert", "rmq certs issue"),
        ("trust", "rmq certs ca"),
        ("secret", "rmq certs secret"),
        ("accounts", "rmq acl add"),
    ],
)
def test_what_is_missing_is_named_alone(name: str, said: str, files: dict[str, str]) -> None:
    config, tls = secure(BrokerConfig, files)
    Path(files[name]).unlink()
    with pytest.raises(ConfigError, match=said) as caught:
        applied(config, tls)
    assert str(caught.value).count("rmq ") == 1


@pytest.mark.parametrize(
    "change", [{"tls_mode": "permissive"}, {"tls_insecure_skip_verify": True}, {"tls_test_mode": True}]
)
def test_what_would_undo_it_is_refused(change: dict[str, Any], files: dict[str, str]) -> None:
    config, tls = secure(BrokerConfig, files)
    with pytest.raises(ConfigError, match="which weaken the profile"):
        applied(config, evolve(tls, **change))


def test_accounts_beside_the_settings_file_are_found(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "plain_acl.yml").write_text("accounts: []")
    (tmp_path / "broker.conf").write_text(
        f"profile=secure\ntlsCertPath={files['cert']}\ntlsTrustPath={files['trust']}\n"
        f"clusterSecretFile={files['secret']}\n"
    )
    config, _, tls = settings(parse(["-c", str(tmp_path / "broker.conf")]))
    assert (config.acl_enable, tls.tls_mode) == (True, "enforcing")


def said(config: BrokerConfig, tls: TlsConfig, **store: Any) -> str:
    return banner(config, StoreConfig(**store), tls, ["0.0.0.0:10911"])


def test_the_banner_says_what_others_can_do_at_an_open_port() -> None:
    wide, tls = BrokerConfig(bind_address="0.0.0.0"), TlsConfig(tls_mode="enforcing")
    assert "WARNING" not in said(BrokerConfig(), TlsConfig())
    assert said(wide, TlsConfig()).count("WARNING") == 3
    assert "copy the whole log" in said(evolve(wide, acl_enable=True), tls)
    assert "copy the whole log" not in said(wide, tls, broker_role=BrokerRole.SLAVE)
    for closed in (
        (evolve(wide, acl_enable=True, cluster_secret_file="s"), tls),
        (evolve(wide, acl_enable=True, ha_secret_file="s"), tls),
        (evolve(wide, acl_enable=True, ha_enable=False), tls),
        (evolve(wide, acl_enable=True), evolve(tls, tls_client_auth="require")),
    ):
        assert "WARNING" not in said(*closed)


def test_what_a_secure_server_writes_is_its_users_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = os.umask(0o022)
    try:
        protect_files(BrokerConfig(), str(tmp_path))
        (tmp_path / "open").write_text("x")
        tmp_path.chmod(0o700)
        protect_files(BrokerConfig(profile="secure"), str(tmp_path))
        assert not caplog.messages
        (tmp_path / "closed").write_text("x")
        (tmp_path / "folder").mkdir()
        tmp_path.chmod(0o755)
        protect_files(BrokerConfig(profile="secure"), str(tmp_path))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("open", "closed", "folder")]
    assert modes == [0o644, 0o600, 0o700]
    assert "can read the store in" in caplog.text


def test_the_banner_names_all_ports() -> None:
    also = {"slaves": "0.0.0.0:10912", "metrics": "127.0.0.1:5557"}
    text = banner(BrokerConfig(), StoreConfig(), TlsConfig(), ["127.0.0.1:10911"], also)
    assert "  slaves        0.0.0.0:10912\n  metrics       127.0.0.1:5557\n" in text


@pytest.mark.parametrize("name", ["pure", "compiled"])
def test_the_banner_names_the_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "NAME", name)
    monkeypatch.setenv(engine.VARIABLE, name)  # maybe an engine of other sources is here
    text = banner(BrokerConfig(), StoreConfig(), TlsConfig(), ["127.0.0.1:10911"])
    assert f"  engine        {name}" in text.splitlines()
