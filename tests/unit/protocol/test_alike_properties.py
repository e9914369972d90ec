"""Properties that are read by what is known of others are the same as those that are read from scratch."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from rmq.protocol import properties
from rmq.protocol.json import JAVA
from rmq.protocol.properties import AlikeProperties, decode_properties

PIECES = st.sampled_from(
    [
        b"UNIQ_KEY\x01",
        b"UNIQ_KEY",
        b"\x01",
        b"\x02",
        b"a",
        b"TAGS\x01t",
        b"\xc3",
        b"\xa9",
        b"X_UNIQ_KEY\x01v",
        b"\xff",
    ]
)
TEXTS = st.lists(PIECES, max_size=8).map(b"".join)


def from_scratch(data: bytes) -> dict[str, str]:
    return decode_properties(data.decode("utf-8", JAVA))


@given(st.lists(TEXTS, max_size=12))
@example([b"UNIQ_KEY\x01a\x02TAGS\x01t", b"UNIQ_KEY\x01\x02TAGS\x01t"])
@example([b"X_UNIQ_KEY\x01a", b"X_UNIQ_KEY\x01b"])
@example([b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b", b"UNIQ_KEY\x01c\x02UNIQ_KEY\x01b"])
@example([b"UNIQ_KEY\x01\xc3\x02a\x01b", b"UNIQ_KEY\x01\xa9\x02a\x01b"])
@example([b"a\x01b", b"a\x01c", b""])
@example([b"UNIQ_KEY\x01a\x02TAGS\x01t", b"UNIQ_KEY\x01b\x02c\x01d\x02TAGS\x01t"])
@example([b"UNIQ_KEY\x01a\x02a", b"UNIQ_KEY\x01\x02a", b"UNIQ_KEY\x01UNIQ_KEY\x01\x02a"])
def test_any_texts_in_any_order(texts: list[bytes]) -> None:
    read = AlikeProperties()
    for text in [*texts, *texts]:
        assert read(text) == from_scratch(text)
        assert list(read(text)) == list(from_scratch(text)), "in another order"


def test_the_maps_are_the_callers_own() -> None:
    read = AlikeProperties()
    first = read(b"UNIQ_KEY\x011\x02TAGS\x01t")
    first["TAGS"] = "changed"
    again = read(b"UNIQ_KEY\x012\x02TAGS\x01t")
    assert again == {"UNIQ_KEY": "2", "TAGS": "t"}
    again.clear()
    assert read(b"UNIQ_KEY\x013\x02TAGS\x01t") == {"UNIQ_KEY": "3", "TAGS": "t"}


def test_what_is_not_alike_is_not_kept() -> None:
    """Strangers choose the texts: what is kept of them is bounded, and they stop costing more."""
    read = AlikeProperties()
    for number in range(properties._ALIKE_MAX + 1 + properties._ALIKE_REST):
        assert read(b"KEYS\x01%d\x02UNIQ_KEY\x01x" % number)["KEYS"] == str(number)
        assert len(read._known) <= properties._ALIKE_MAX
    assert read._known == {}, "it learned again before its rest was over"
    read(b"KEYS\x01a\x02UNIQ_KEY\x01x")
    assert len(read._known) == 1
    read(b"UNIQ_KEY\x01x\x02LONG\x01" + b"x" * 2000)
    assert len(read._known) == 1
