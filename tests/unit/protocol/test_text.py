"""Texts where bytes and text do not fit: the answers are those that Java gave."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.header_binary import read_binary
from rmq.protocol.json import JAVA, java_text


def test_java_gave_the_same_texts(golden: Path) -> None:
    known = json.loads((golden / "utf8.json").read_text())
    assert len(known) > 1000
    assert {data: java_text(bytes.fromhex(data)) for data in known} == known


def test_half_a_surrogate_pair_is_written_as_a_question_mark() -> None:
    assert "a\ud800\ud800b\udc00".encode("utf-8", JAVA) == b"a??b?"  # as Java's getBytes


def test_other_codecs_do_not_use_it() -> None:
    with pytest.raises(UnicodeTranslateError):
        codecs.lookup_error(JAVA)(UnicodeTranslateError("x", 0, 1, "no"))


@given(st.binary(max_size=40))
def test_any_bytes_make_a_text_that_can_be_stored(data: bytes) -> None:
    text = java_text(data)
    assert java_text(text.encode()) == text
    if "\ufffd" not in text:
        assert text.encode() == data


ODD = st.binary(min_size=1, max_size=12) | st.sampled_from(["标签".encode("gbk"), b"\xed\xa0\x80", b"\xe4"])


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
@given(odd=ODD, code=st.sampled_from([310, 105, 11]))
def test_a_header_with_any_bytes_in_a_value_is_read(form: int, odd: bytes, code: int) -> None:
    """Put in after the frame was made, as a client does that knows nothing of UTF-8. What ends a text of JSON
    or begins an escape is left out."""
    if form == JSON:
        odd = bytes(byte for byte in odd if byte >= 32 and byte not in b'"\\')
    mark = "?" * len(odd)
    whole = {"b": "T", "i": f"TAGS\x01{mark}", "topic": "T"}
    frame = encode(Command(code, 7, ext=whole, body=b"body", serialization=form))
    before, after = frame.split(b"0001" + mark.encode() if form == JSON else b"\x01" + mark.encode(), 1)
    joint = b"0001" if form == JSON else b"\x01"
    (command,) = Decoder().feed(before + joint + odd + after)
    assert dict(command.ext) == whole | {"i": f"TAGS\x01{java_text(odd)}"}
    assert command.body == b"body"


def test_a_name_that_was_read_leniently_is_no_different_later() -> None:
    header = encode(Command(105, 7, ext={"??": "v"}, serialization=ROCKETMQ))[8:].replace(b"??", b"\xff\xfe")
    assert [dict(read_binary(header).ext) for _ in range(2)] == [{"\ufffd\ufffd": "v"}] * 2
