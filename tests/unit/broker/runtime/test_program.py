"""The broker as a program: settings, banner, exit status."""

from __future__ import annotations

import pathlib

import pytest

from rmq.broker.__main__ import banner, durability, main, parse, settings
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import startup
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.health import Health
from rmq.store.config import BrokerRole, Durability, FlushDiskType, StoreConfig
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

from .serving import SMALL, broker

# --- as a program ---


def test_settings_that_were_changed_are_read_at_the_next_start(tmp_path: pathlib.Path) -> None:
    file, kept = tmp_path / "broker.conf", tmp_path / "kept.properties"
    file.write_text(f"brokerName=b\nlistenPort=1\nfileReservedTime=10\nconfigStorePath={kept}\n")
    kept.write_text("fileReservedTime=20\nlistenPort=2\n")
    config, store_config, _ = settings(parse(["-c", str(file), "--set", "listenPort=3"]))
    assert (config.broker_name, config.listen_port, store_config.file_reserved_time) == ("b", 3, 20)
    assert config.config_store_path == str(kept)
    kept.unlink()
    assert settings(parse(["-c", str(file)]))[1].file_reserved_time == 10


def test_the_command_line_and_the_file_give_the_settings(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=from-file\nlistenPort=20911\nflushDiskType=SYNC_FLUSH\nnamesrvAddr=a:1\n")
    options = parse(["-c", str(file), "-n", "b:2;c:3", "--set", "listenPort=0"])
    config, store_config, _ = settings(options)
    assert (config.broker_name, config.namesrv_addr, config.listen_port) == ("from-file", "b:2;c:3", 0)
    assert store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH


def test_the_banner_tells_address_durability_and_store_and_warns_when_open() -> None:
    config, store_config, tls = BrokerConfig(broker_name="b"), StoreConfig(**SMALL), TlsConfig()
    text = banner(config, store_config, tls, ["127.0.0.1:10911"])
    for words in ("b of DefaultCluster", "127.0.0.1:10911", "ASYNC_FLUSH", "/store"):
        assert words in text
    assert "WARNING" not in text
    wide = BrokerConfig(broker_name="b", broker_ip1="192.168.0.8")
    assert wide.bind_host == "0.0.0.0"
    assert "WARNING" in banner(wide, store_config, tls, ["0.0.0.0:10911"])
    assert "SYNC_FLUSH" in durability(StoreConfig(**SMALL, flush_disk_type=FlushDiskType.SYNC_FLUSH))
    for level in Durability:
        assert durability(StoreConfig(**SMALL, durability=level)).startswith(f"{level.name}: ")
    assert durability(StoreConfig(**SMALL, broker_role=BrokerRole.SYNC_MASTER)).startswith("replicated in m")


def test_printing_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-p", "--set", "brokerName=x"]) == 0
    printed = capsys.readouterr().out
    assert "brokerName=x\n" in printed
    assert "flushDiskType=ASYNC_FLUSH\n" in printed
    assert main(["-m"]) == 0
    assert len(capsys.readouterr().out) < len(printed)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "listenPort=many"],
        ["--set", "flushDiskType=SOMETIMES"],
        ["-c", "/no/such/file"],
        ["--set", "x"],
    ],
)
def test_wrong_settings_are_one_line_and_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "expected" in lines[0]


def test_a_long_recovery_says_once_a_second_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 0.5, 1.0, 1.9, 2.1])
    progress = startup.RecoveryProgress(health := Health(), clock=lambda: next(times))
    with caplog.at_level("INFO", "rmq.broker"):
        for done in (10, 20, 30, 50):
            progress("log", done, 80)
    assert [entry.getMessage() for entry in caplog.records] == [
        "opening the store: log, 25 % (20 of 80)",
        "opening the store: log, 62 % (50 of 80)",
    ]
    assert "log, 62 % (50 of 80)" in health.text()


async def test_a_transient_store_pool_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    async with broker(MemoryNetwork(), MemoryDisk(), {"transient_store_pool_enable": True}):
        pass
    assert caplog.text.count("transientStorePoolEnable") == 1
