"""Settings with a path that cannot be written, or read: the start is refused with the setting, the path and
the remedy."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Any

import pytest
from rmq_acl.audit import Audit

import rmq.broker.__main__ as broker_main
import rmq.controller.__main__ as controller_main
import rmq.namesrv.__main__ as namesrv_main
from rmq.config import java_key
from rmq.errors import ConfigError
from rmq.remoting.transports.tls import TlsConfig, TlsContexts
from rmq.server.main import Program
from rmq.server.process import check_paths
from rmq.store.config import StoreConfig

CONTROLLERS = ["--set", "controllers=127.0.0.1:1", "--set", "controllerSelf=127.0.0.1:1"]
WRITTEN = [
    (broker_main.PROGRAM, "storePathRootDir"),
    (broker_main.PROGRAM, "storePathCommitLog"),
    (controller_main.PROGRAM, "controllerPath"),
    (namesrv_main.PROGRAM, "controllerPath"),
    (namesrv_main.PROGRAM, "kvConfigPath"),
    (namesrv_main.PROGRAM, "mastersPath"),
]


def refusal(
    program: Program, key: str, path: str, folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> str:
    """The error of a start with this path."""
    given = [] if program is broker_main.PROGRAM else CONTROLLERS
    own = ["--set", f"storePathRootDir={folder}", "--set", f"controllerPath={folder}"]
    assert program.main([*given, *own, "--set", f"{key}={path}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rmq {program.title}: {key} = {path!r}: expected a f")
    return line


@pytest.mark.parametrize(
    ("program", "key"), WRITTEN, ids=lambda one: one if isinstance(one, str) else one.title
)
def test_a_path_through_a_file_is_refused(
    program: Program, key: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    line = refusal(program, key, str(tmp_path / "file" / "x"), tmp_path, capsys)
    assert "a part of the path is a file: correct the path" in line


@pytest.mark.parametrize(
    ("program", "key"), WRITTEN, ids=lambda one: one if isinstance(one, str) else one.title
)
def test_a_file_for_a_folder_and_a_folder_for_a_file_are_refused(
    program: Program, key: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    wants_file = key in ("kvConfigPath", "mastersPath")
    path = tmp_path / ("folder" if wants_file else "file")
    line = refusal(program, key, str(path), tmp_path, capsys)
    assert ("name a file in this folder" if wants_file else "a file has this name") in line


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "give it to the user"),
        (errno.EROFS, "under systemd: name it in ReadWritePaths"),
        (errno.ENOENT, "cannot be made: correct the path, or create it"),
    ],
    ids=["no permission", "read-only", "missing"],
)
@pytest.mark.parametrize(
    ("program", "key"), WRITTEN, ids=lambda one: one if isinstance(one, str) else one.title
)
def test_a_path_that_cannot_be_written_is_refused_with_the_remedy(
    program: Program,
    key: str,
    number: int,
    remedy: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, refused = os.open, tmp_path / "mount"
    refused.mkdir()

    def no_writes(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(refused)):
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", no_writes)
    line = refusal(program, key, str(refused / "x"), tmp_path / "own", capsys)
    assert remedy in line
    assert os.strerror(number) in line


def test_a_store_whose_lock_belongs_to_another_user_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case after one start by root."""
    (tmp_path / "lock").touch()
    real = os.open

    def no_lock(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith("lock"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", no_lock)
    with pytest.raises(ConfigError, match=r"storePathRootDir.*/lock: Permission denied; .*\(chown -R\)"):
        check_paths(StoreConfig(store_path_root_dir=str(tmp_path)))


def test_an_empty_path_is_refused(tmp_path: pathlib.Path) -> None:
    """An empty path would be the current folder."""
    with pytest.raises(ConfigError, match="storePathRootDir = '': expected a folder to write to; name one"):
        check_paths(StoreConfig(store_path_root_dir=""))


def test_missing_folders_are_made_and_nothing_is_left_in_them(tmp_path: pathlib.Path) -> None:
    store, log = tmp_path / "a" / "b" / "store", tmp_path / "c" / "log"
    check_paths(StoreConfig(store_path_root_dir=str(store), store_path_commit_log=str(log)))
    assert list(store.iterdir()) == list(log.iterdir()) == []


def test_the_folder_of_a_file_is_not_made(tmp_path: pathlib.Path) -> None:
    """The folder is made with the file."""
    config, _ = namesrv_main.settings(
        namesrv_main.parse(["--set", f"kvConfigPath={tmp_path / 'a' / 'kv.json'}"])
    )
    check_paths(config)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_no_wrong_path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker serves consumers then."""

    def full(path: Any, *rest: Any, **more: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(os, "open", full)
    check_paths(StoreConfig(store_path_root_dir=str(tmp_path)))


def test_a_default_that_the_server_does_not_need_is_not_looked_at(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server without controllers starts in a home that cannot be written."""
    monkeypatch.setenv("HOME", "/proc/none")
    for given, data in ([], ""), (CONTROLLERS, "~/controller"):
        settings = namesrv_main.settings(namesrv_main.parse(given))
        assert namesrv_main.PROGRAM.folder(settings) == data
        if data:
            with pytest.raises(ConfigError, match="controllerPath = '~/controller'"):
                check_paths(*settings, data=data)
        else:
            check_paths(*settings, data=data)


@pytest.mark.parametrize("name", ["tls_cert_path", "tls_key_path", "tls_trust_path"])
def test_a_missing_file_of_tls_is_named_with_its_own_setting(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "there.pem").touch()
    given = {"tls_cert_path": str(tmp_path / "there.pem")} if name == "tls_key_path" else {}
    config = TlsConfig(**given, **{name: str(tmp_path / "missing.pem")})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"{java_key(name)} = .*No such file or directory.*rmq certs"):
        TlsContexts(config).client()


@pytest.mark.parametrize("key", ["tlsConfigFile", "configStorePath"])
def test_a_file_of_settings_is_named_with_its_own_setting(key: str, tmp_path: pathlib.Path) -> None:
    options = broker_main.parse(["--set", f"{key}={tmp_path}"])
    with pytest.raises(ConfigError, match=rf"^{key} = .*Is a directory\); correct the path"):
        broker_main.settings(options)


def test_a_file_for_the_audit_log_that_cannot_be_written_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"aclAuditFile = .*No such file or directory.*make its folder"):
        Audit(str(tmp_path / "missing" / "audit.log"), lambda: 0.0)
