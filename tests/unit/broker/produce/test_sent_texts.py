"""Properties texts of sends: what is remembered of one text is true of the next."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq.message import tags_code
from rmq.protocol.properties import SentProperties, decode_properties, index_keys, unit_code

SUFFIX = "CLUSTER\x01c"
NAMES = st.sampled_from(["UNIQ_KEY", "XUNIQ_KEY", "WAIT", "TAGS", "KEYS", "DELAY", "a", ""])
VALUES = st.sampled_from(["true", "false", "TRUE", "1", "a b", "", "ü", "UNIQ_KEY\x01", "\x01", "trueish"])
PIECES = st.tuples(NAMES, VALUES).map("\x01".join) | st.sampled_from(["", "UNIQ_KEY", "junk"])
TEXTS = st.lists(PIECES, max_size=5).map("\x02".join)
KEYS = st.sampled_from(["", "A1", "A2", "true", "x\x01y", "UNIQ_KEY\x01z", "WAIT\x01true"])
AROUND = st.tuples(TEXTS, st.booleans(), TEXTS, st.booleans())


def around(shape: tuple[str, bool, str, bool], key: str) -> str:
    before, parted, after, closed = shape
    return f"{before}{parted * chr(2)}UNIQ_KEY\x01{key}{closed * chr(2)}{after}"


@given(st.lists(TEXTS | st.builds(around, AROUND, KEYS), max_size=6), AROUND, st.lists(KEYS, max_size=4))
@example([], ("", False, "TAGS\x01a", True), ["A1", "", "A2"])
@example(["UNIQ_KEY\x01A1\x02KEYS\x01o", "UNIQ_KEY\x01A2\x02KEYS\x01o"], ("", False, "", False), [])
@example(["UNIQ_KEY\x01A1\x02UNIQ_KEY\x01A1", "UNIQ_KEY\x01A2\x02UNIQ_KEY\x01A1"], ("", False, "", False), [])
@example(["XUNIQ_KEY\x01A1\x02KEYS\x01A1", "XUNIQ_KEY\x01A2\x02KEYS\x01A1"], ("", False, "", False), [])
def test_remembered_is_read_anew(
    texts: list[str], shape: tuple[str, bool, str, bool], keys: list[str]
) -> None:
    rare = frozenset({"DELAY"})
    sent = SentProperties(SUFFIX, rare)
    for text in (*texts, *(around(shape, key) for key in keys)):
        assert sent(text) == sent(text) == SentProperties(SUFFIX, rare).read(text)


@given(TEXTS | st.builds(around, AROUND, KEYS))
@example("TAGS\x01a\x02TAGS\x01b")
@example("TAGS\x01a\x02TAGS\x01")
@example("UNIQ_KEY\x01\x02KEYS\x01a")
def test_a_start_makes_the_same_of_what_is_stored(text: str) -> None:
    """Units and index are made again from the log: of a name that comes twice the same value must count."""
    stored, _, code, found, _ = SentProperties(SUFFIX, frozenset({"DELAY"})).read(text)
    assert (unit_code(b"Orders", stored.encode(), 0, {}), index_keys(stored.encode())) == (code, found)


def test_a_java_producer_s_text() -> None:
    sent = SentProperties(SUFFIX, frozenset({"DELAY"}))
    for key in ("K1", "K2"):
        stored = f"UNIQ_KEY\x01{key}\x02TAGS\x01t\x02{SUFFIX}"
        text = f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01t"
        assert sent(text) == (stored, True, tags_code("t"), (key,), False)
    assert sent("WAIT\x01false\x02DELAY\x013") == (f"DELAY\x013\x02{SUFFIX}", False, 0, (), True)
    assert sent("") == (SUFFIX, True, 0, (), False)


@pytest.mark.parametrize(
    "text",
    [
        "A\x01b\x02WAIT\x01true",
        "WAIT\x01true\x02A\x01b",
        "A\x01b\x02WAIT\x01true\x02WAIT\x01true",
        "WAIT\x01true\x02A\x01b\x02WAIT\x01true\x02",
        "A\x01b\x02WAIT\x01trueish\x02WAIT\x01true",
        "A\x01b\x02WAIT\x01true\x02WAIT\x01false\x02",
    ],
)
def test_whether_to_wait_is_not_stored_however_often_it_is_said(text: str) -> None:
    stored = SentProperties(SUFFIX, frozenset())(text)[0]
    assert decode_properties(stored) == {"A": "b", "CLUSTER": "c"}


def test_only_so_many_are_remembered() -> None:
    sent = SentProperties(SUFFIX, frozenset())
    for number in range(5000):
        sent(f"UNIQ_KEY\x01K\x02a\x01{number}")
    sent("UNIQ_KEY\x01K\x02a\x01" + 5000 * "x")
    assert 0 < len(sent._known) <= 2048
    assert max(len(after) for _, after in sent._known) < 100
