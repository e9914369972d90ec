"""rmq.config: the readers of settings and the texts they write."""

from __future__ import annotations

import enum
import logging
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from rmq import config
from rmq.broker.config import BrokerConfig
from rmq.config import at_least, between, one_of, setting
from rmq.errors import ConfigError
from rmq.namesrv.config import NamesrvConfig
from rmq.store.config import StoreConfig


class Flush(enum.Enum):
    ASYNC_FLUSH = 0
    SYNC_FLUSH = 1


@frozen
class Service:
    listen_port: int = setting(10911, help="Port", validator=between(0, 65535), important=True)
    broker_ip1: str = setting("127.0.0.1", help="Address")
    flush: Flush = setting(Flush.ASYNC_FLUSH, help="When", java="flushDiskType")
    wait_ms: int = setting(200, help="Wait", unit="ms", java="waitTimeMillsInSendQueue", runtime=True)
    trace: bool = setting(False, help="Trace", java="traceTopicEnable")
    plugins: tuple[str, ...] = setting((), help="Plugins")
    secret_key: str = setting("", help="Key", secret=True)
    role: str = setting("MASTER", help="Role", validator=[one_of("MASTER", "SLAVE")], runtime=True)
    folder: str | None = setting(None, help="Folder")


@frozen
class Storage:
    file_size: int = setting(1 << 30, help="Size", unit="bytes", java="mappedFileSizeCommitLog")
    ratio: float = setting(0.75, help="Ratio", validator=at_least(0))
    flush: Flush = setting(Flush.ASYNC_FLUSH, help="When", java="flushDiskType")


def written(tmp_path: Path, text: str, name: str = "broker.conf") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


# ---- names ----


def test_java_keys_are_mechanical_but_for_aliases() -> None:
    assert config.java_key("listen_port") == "listenPort"
    assert config.java_key("broker_ip1") == "brokerIP1"
    assert config.java_key("check_crc_on_recover") == "checkCRCOnRecover"
    assert config.java_key(attrs.fields(Service).wait_ms) == "waitTimeMillsInSendQueue"


# ---- sources and their order ----


def test_defaults_without_any_source() -> None:
    assert config.load(Service, environment={}) == Service()


def test_later_sources_win(tmp_path: Path) -> None:
    file = written(tmp_path, "listenPort=1\nwaitTimeMillsInSendQueue=1\ntraceTopicEnable=true\n")
    environment = {"RMQ_LISTEN_PORT": "2", "RMQ_WAIT_MS": "2"}
    loaded = config.load(Service, file, {"listen_port": "3"}, environment)
    assert (loaded.listen_port, loaded.wait_ms, loaded.trace) == (3, 2, True)


def test_arguments_may_be_typed_and_none_is_not_given() -> None:
    arguments = {
        "listenPort": 5,
        "trace": True,
        "folder": None,
        "wait_ms": None,
        "flush": Flush.SYNC_FLUSH,
        "plugins": ["a", "b"],
    }
    loaded = config.load(Service, None, arguments, {})
    assert loaded == Service(listen_port=5, trace=True, flush=Flush.SYNC_FLUSH, plugins=("a", "b"))


def test_the_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_LISTEN_PORT", "77")
    assert config.load(Service).listen_port == 77


def test_one_file_feeds_several_classes(tmp_path: Path) -> None:
    file = written(
        tmp_path, "brokerIP1 = 10.0.0.1\nmappedFileSizeCommitLog = 64k\nflushDiskType=SYNC_FLUSH\n"
    )
    service, storage = config.load_all((Service, Storage), file, None, {})
    assert service.broker_ip1 == "10.0.0.1"
    assert storage.file_size == 65536
    assert service.flush is storage.flush is Flush.SYNC_FLUSH


def test_unknown_keys_are_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path, "listenPort=1\nnoSuchKey=1\nratio=0.5\notherKey=2\n")
    with caplog.at_level(logging.WARNING, "rmq.config"):
        config.load_all((Service, Storage), file, None, {"RMQ_SOMETHING_ELSE": "1"})
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert f"noSuchKey ({file}:2)" in text
    assert f"otherKey ({file}:4)" in text
    assert "ratio" not in text


# ---- file forms ----


def test_properties_syntax(tmp_path: Path) -> None:
    text = (
        "# comment\\\n"
        "! another\n"
        "\n"
        "   listenPort : 12\n"
        "brokerIP1=10.0.\\\n    0.7\n"
        "plugins acl,\\\r\n\ttrace\r\n"
        "role=SLAVE   \n"
        "folder=C\\:\\\\d\\u00e4\\ud83d\\ude00\\tx\n"
        "secretKey=a=b:c"
    )
    loaded = config.load(Service, written(tmp_path, text), None, {})
    assert loaded == Service(
        listen_port=12,
        broker_ip1="10.0.0.7",
        plugins=("acl", "trace"),
        role="SLAVE",
        folder="C:\\dä\U0001f600\tx",
        secret_key="a=b:c",
    )


def test_properties_key_escapes_and_missing_values() -> None:
    assert config.parse_properties("!x=1\n#y=2\na\\ b\\=c=1\nempty\nblank=\n=x\nend\\") == {
        "a b=c": "1",
        "empty": "",
        "blank": "",
        "": "x",
        "end": "",
    }


def test_files_that_are_not_utf8_are_latin1(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"folder=d\xe4ta\n")
    assert config.load(Service, path, None, {}).folder == "däta"


def test_toml_takes_both_names_and_tables(tmp_path: Path) -> None:
    text = (
        'listen_port = 9\nplugins = ["acl", "trace"]\n[store]\nmappedFileSizeCommitLog = "1m"\nratio = 0.5\n'
        "[x.y]\ntraceTopicEnable = true\n"
    )
    service, storage = config.load_all((Service, Storage), written(tmp_path, text, "b.toml"), None, {})
    assert (service.listen_port, service.plugins, service.trace) == (9, ("acl", "trace"), True)
    assert (storage.file_size, storage.ratio) == (1 << 20, 0.5)


def test_a_missing_or_broken_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.conf"):
        config.load(Service, tmp_path / "nowhere.conf", None, {})
    with pytest.raises(ConfigError, match="TOML"):
        config.load(Service, written(tmp_path, "= 1", "b.toml"), None, {})


# ---- wrong values ----


@pytest.mark.parametrize(
    ("line", "key", "expected"),
    [
        ("listenPort=ten", "listenPort", "a whole number"),
        ("listenPort=70000", "listenPort", "from 0 to 65535"),
        ("listenPort=1_0", "listenPort", "a whole number"),
        ("listenPort=10k", "listenPort", "a whole number"),
        ("waitTimeMillsInSendQueue=1s", "waitTimeMillsInSendQueue", "a whole number of ms"),
        ("traceTopicEnable=yes", "traceTopicEnable", "true or false"),
        ("flushDiskType=SYNC", "flushDiskType", "ASYNC_FLUSH, SYNC_FLUSH"),
        ("role=KING", "role", "MASTER, SLAVE"),
        ("ratio=-1", "ratio", "at least 0"),
        ("ratio=a", "ratio", "a number"),
        ("mappedFileSizeCommitLog=4x", "mappedFileSizeCommitLog", "64k, 4m"),
    ],
)
def test_wrong_values_name_key_value_expectation_and_source(
    tmp_path: Path, line: str, key: str, expected: str
) -> None:
    file = written(tmp_path, f"# first\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        config.load_all((Service, Storage), file, None, {})
    text = str(caught.value)
    assert key in text
    assert line.partition("=")[2] in text
    assert expected in text
    assert f"{file}:2" in text


def test_the_source_of_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="environment variable RMQ_LISTEN_PORT"):
        config.load(Service, None, None, {"RMQ_LISTEN_PORT": "x"})


def test_numbers_of_other_scripts_are_refused() -> None:
    with pytest.raises(ConfigError):
        config.load(Service, None, {"listen_port": "١٢"}, {})


# ---- changes at run time ----


def test_evolve_changes_only_what_may_change() -> None:
    before = Service()
    after = config.evolve(before, {"waitTimeMillsInSendQueue": "5", "role": "SLAVE"})
    assert (after.wait_ms, after.role) == (5, "SLAVE")
    assert before == Service()
    with pytest.raises(ConfigError, match="restart"):
        config.evolve(before, {"role": "SLAVE", "listenPort": "1"})
    with pytest.raises(ConfigError, match="not known"):
        config.evolve(before, {"noSuchKey": "1"})
    with pytest.raises(ConfigError, match="MASTER, SLAVE"):
        config.evolve(before, {"role": "KING"})


# ---- showing ----


def test_describe_lists_every_field() -> None:
    rows = {row.name: row for row in config.describe(Service)}
    assert list(rows) == [field.name for field in attrs.fields(Service)]
    assert rows["wait_ms"].key == "waitTimeMillsInSendQueue"
    assert (rows["wait_ms"].default, rows["wait_ms"].unit, rows["wait_ms"].runtime) == ("200", "ms", True)
    assert rows["flush"].default == "ASYNC_FLUSH"


def test_dump_leaves_secrets_out_and_important_is_a_subset() -> None:
    text = config.dump_properties(Service(secret_key="hush", trace=True), Storage())
    assert "hush" not in text
    assert "secretKey" not in text
    assert "traceTopicEnable=true\n" in text
    assert "mappedFileSizeCommitLog=1073741824\n" in text
    assert config.dump_properties(Service(), Storage(), important=True) == "listenPort=10911\n"


def test_a_wrong_secret_is_not_shown(tmp_path: Path) -> None:
    @frozen
    class Guarded:
        token: int = setting(0, help="Token", secret=True)

    with pytest.raises(ConfigError) as caught:
        config.load(Guarded, None, {"token": "hush"}, {})
    assert "hush" not in str(caught.value)


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@given(st.dictionaries(texts, texts, max_size=8))
def test_properties_text_round_trips(pairs: dict[str, str]) -> None:
    text = config.properties_text(pairs)
    assert text.isascii()
    assert config.parse_properties(text) == pairs


@given(
    st.builds(
        Service,
        listen_port=st.integers(0, 65535),
        broker_ip1=texts.map(str.strip),
        flush=st.sampled_from(Flush),
        wait_ms=st.integers(-(2**63), 2**63 - 1),
        trace=st.booleans(),
        plugins=st.lists(st.text("abc_", min_size=1), max_size=3).map(tuple),
        folder=texts.map(str.strip).map(lambda text: text or None),
    )
)
def test_a_dump_loads_back(value: Service) -> None:
    pairs = config.parse_properties(config.dump_properties(value))
    assert config.load(Service, None, pairs, {}) == value


@given(st.text(max_size=60))
def test_any_text_parses(text: str) -> None:
    config.parse_properties(text)


# ---- addresses ----


def test_parse_addresses() -> None:
    assert config.parse_addresses("") == []
    assert config.parse_addresses("a:1; b.c:2,[::1]:3;a:1;wss://x:4") == [
        "a:1",
        "b.c:2",
        "[::1]:3",
        "wss://x:4",
    ]


@pytest.mark.parametrize("text", ["localhost", "a:0", "a:99999", "http://a:1", "a b:1", ":9876", "a:1:2"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        config.parse_addresses(text)


def test_a_setting_has_one_value_whatever_it_is_called() -> None:
    both = {"waitTimeMillsInSendQueue": "5", "wait_ms": "6"}
    with pytest.raises(ConfigError, match="one value, not two, by the names waitTime"):
        config.evolve(Service(), both)
    assert config.canonical({"wait_ms": "6", "other": "x"}, Service) == {
        "waitTimeMillsInSendQueue": "6",
        "other": "x",
    }


@pytest.mark.parametrize("kind", [BrokerConfig, StoreConfig, NamesrvConfig])
def test_what_changes_at_run_time_has_an_end(kind: Any) -> None:
    """A transaction that is checked in 292 million years, a pull of 2**62 bytes."""
    for row in config.describe(kind):
        assert config.spellings(row.key) == (row.key, row.name)
        if row.runtime and row.default.isdigit() and row.name != "delete_when":
            for text in (str(2**31), str(2**62)):
                if not row.name.endswith(("_free_bytes", "_reserved_bytes")) or text == str(2**62):
                    with pytest.raises(ConfigError):
                        config.evolve(kind(), {row.key: text})
            assert config.evolve(kind(), {row.key: row.default}) is not None
