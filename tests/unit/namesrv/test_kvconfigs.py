"""KvConfigs: bounds, and what is saved."""

from __future__ import annotations

import pytest

from rmq.errors import RemoteProtocolError, SystemFailure
from rmq.namesrv import kvconfigs
from rmq.namesrv.kvconfigs import MAX_NAME, MAX_TEXT, KvConfigs
from rmq.protocol.bodies import KVConfigSerializeWrapper


def test_what_was_saved_is_read_again() -> None:
    saved: list[bytes] = []
    configs = KvConfigs(saved.append)
    configs.put("ns", "k", "v")
    configs.put("other", "k", "w")
    again = KvConfigs(saved.append, saved[-1])
    assert again.get("ns", "k") == "v"
    assert again.get("other", "k") == "w"
    assert again.get("ns", "other") is None


def test_javas_file_is_read() -> None:
    text = b'{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"\n\t\t}\n\t}\n}'
    assert KvConfigs(lambda data: None, text).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [("", "k", "v"), ("ns", "", "v"), ("n" * (MAX_NAME + 1), "k", "v"), ("ns", "k", "v" * (MAX_TEXT + 1))],
)
def test_texts_have_bounds(namespace: str, key: str, value: str) -> None:
    saved: list[bytes] = []
    with pytest.raises(SystemFailure, match="characters"):
        KvConfigs(saved.append).put(namespace, key, value)
    assert saved == []


def test_the_number_of_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvconfigs, "MAX_ENTRIES", 2)
    configs = KvConfigs(lambda data: None)
    configs.put("a", "k", "v")
    configs.put("b", "k", "v")
    with pytest.raises(SystemFailure, match="already keeps 2 texts"):
        configs.put("c", "k", "v")
    configs.put("b", "k", "w")
    configs.delete("a", "k")
    configs.put("c", "k", "v")


def test_all_texts_together_are_bounded() -> None:
    """The order of topics goes with every answer to a registration: no broker could read it."""
    configs = KvConfigs(lambda data: None, most=100)
    configs.put("a", "k", "v" * 40)
    with pytest.raises(SystemFailure, match="keeps 47 characters, maxKvConfigBytes is 100"):
        configs.put("b", "k", "v" * 60)
    assert configs.namespace("b") is None
    configs.put("b", "k", "v" * 40)
    more = KvConfigs(lambda data: None, KVConfigSerializeWrapper({"a": {"k": "v" * 300}}).to_json(), most=100)
    more.put("a", "k", "v" * 200)  # one with too much may get smaller
    with pytest.raises(SystemFailure):
        more.put("a", "l", "v")


def test_an_answer_is_a_copy() -> None:
    configs = KvConfigs(lambda data: None)
    configs.put("ns", "k", "v")
    table = configs.namespace("ns")
    assert table is not None
    table.table.clear()
    assert configs.get("ns", "k") == "v"


def test_damage_is_said_with_the_file() -> None:
    assert kvconfigs.load(None, "f") is None
    assert kvconfigs.load(b" \n", "f") is None
    with pytest.raises(RemoteProtocolError, match="f is damaged, repair or remove it"):
        kvconfigs.load(b"[1]", "f")
