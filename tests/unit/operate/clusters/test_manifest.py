"""The file of `rmq export`: what is written is read back; what is wrong is named with its line."""

from __future__ import annotations

import pytest

from rmq.errors import ConfigError
from rmq.operate.copies.manifest import (
    EVERYWHERE,
    GROUP_FIELDS,
    TOPIC_FIELDS,
    Manifest,
    Reader,
    spread,
    text_of,
)


def test_what_is_written_is_read_back() -> None:
    manifest = Manifest(
        {
            "Orders": {EVERYWHERE: {**TOPIC_FIELDS, "order": True}},
            "Old": {"broker-a": {**TOPIC_FIELDS, "perm": "r"}},
        },
        {"billing": {EVERYWHERE: {**GROUP_FIELDS, "retry_max": 3}}},
        {"billing": {"Orders": {"broker-a": {0: 17, 1: 0}}, "%RETRY%billing": {"broker-a": {0: 1}}}},
    )
    assert Reader(text_of(manifest), "f").manifest() == manifest
    assert Reader(text_of(Manifest()), "f").manifest() == Manifest()


def test_settings_are_gathered_only_when_all_masters_have_the_same() -> None:
    same = {"a": {"x": 1}, "b": {"x": 1}}
    assert spread(same, ["a", "b"]) == {EVERYWHERE: {"x": 1}}
    assert spread(same, ["a", "b", "c"]) == same
    assert spread({"a": {"x": 1}, "b": {"x": 2}}, ["a", "b"]) == {"a": {"x": 1}, "b": {"x": 2}}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("version: 1\ntopics:\n  T:\n    queues: 3\n", 4, "queues"),
        ("version: 1\nsecrets: {}\n", 2, "secrets"),
        ("version: 1\ntopics:\n  T: {read_queues: many}\n", 3, "int here"),
        ("version: 1\ntopics:\n  T: {order: 1}\n", 3, "bool here"),
        ("version: 1\ntopics:\n  T: {perm: x}\n", 3, "rw, r, w or none"),
        ("version: 1\ntopics:\n  T: {}\n  T: {}\n", 4, "each name once"),
        ("version: 1\naccounts:\n  me: {secret_key: hush}\n", 3, "secret_key"),
        ("version: 1\noffsets: {g: {T: {a: {x: 1}}}}\n", 2, "number of a queue"),
        ("version: 1\ntopics: [T]\n", 2, "a mapping"),
        ("version: 2\n", 1, "version: 1"),
        ("", 1, "version: 1"),
        ("version: 1\n  topics: {\n", 2, "YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Reader(text, "all.yaml").manifest()
    assert f"all.yaml:{line}" in str(caught.value)
    assert said in str(caught.value)
