"""python -m rmq.broker: where its settings come from, and where changed ones go."""

from __future__ import annotations

from pathlib import Path

from rmq.broker.__main__ import parse, settings


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


def test_the_place_of_changed_settings_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("configStorePath=/elsewhere/x.conf\n")
    assert settings(parse(["-c", str(file)]))[0].config_store_path == "/elsewhere/x.conf"
