"""python -m rmq.broker: where its settings come from, and where changed ones go."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.broker.__main__ import _reload, calm_collector, parse, settings
from rmq.broker.config import BrokerConfig, Settings


def test_changed_settings_go_into_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\n")
    config, _, _ = settings(parse(["-c", str(file)]))
    assert (config.broker_name, config.config_store_path) == ("a", str(file))


def test_without_a_file_changed_settings_go_into_the_store_and_are_read_from_there(tmp_path: Path) -> None:
    arguments = parse(["--set", f"storePathRootDir={tmp_path}", "--set", "transactionTimeOut=7000"])
    config, _, _ = settings(arguments)
    kept = tmp_path / "config" / "broker.properties"
    assert config.config_store_path == str(kept)
    kept.parent.mkdir()
    kept.write_text("transactionCheckMax=9\ntransactionTimeOut=9000\n")
    config, _, _ = settings(arguments)
    assert config.transaction_check_max == 9
    assert config.transaction_time_out == 7000  # the command line comes last


def test_a_broker_of_its_own_process_lets_the_collector_rest() -> None:
    before = gc.get_threshold()
    gc.unfreeze()
    try:
        calm_collector()
        assert gc.get_threshold()[0] > 10_000
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


@pytest.mark.parametrize(("ip", "address"), [("10.0.0.1", "10.0.0.1:77"), ("fe80::1", "[fe80::1]:77")])
def test_clients_are_told_an_address_that_they_can_read(ip: str, address: str) -> None:
    assert BrokerConfig(broker_ip1=ip).address(77) == address


def test_the_place_of_changed_settings_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("configStorePath=/elsewhere/x.conf\n")
    assert settings(parse(["-c", str(file)]))[0].config_store_path == "/elsewhere/x.conf"


@pytest.mark.parametrize(
    ("text", "hours"), [("", 720), ("# written soon\n", 720), ("fileReservedTime=48\n", 48)]
)
def test_a_file_that_is_empty_when_it_is_read_again_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, hours: int
) -> None:
    """SIGHUP comes while the file is written, which begins with an empty file: with its defaults messages
    would be removed that are to stay for 720 h."""
    path = tmp_path / "broker.conf"
    path.write_text(f"fileReservedTime=720\nstorePathRootDir={tmp_path}\n")
    options = parse(["-c", str(path)])
    config, store_config, _ = settings(options)
    broker: Any = SimpleNamespace(settings=Settings(config, store_config))
    path.write_text(text)
    _reload(broker, options)
    assert broker.settings.store.file_reserved_time == hours
    assert ("nothing changed" in caplog.text) == (hours == 720)
