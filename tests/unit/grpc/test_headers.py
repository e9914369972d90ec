"""Headers of gRPC calls against the libraries whose work they do: the same is taken, the same is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("h2")

import h2.exceptions
import h2.utilities
import hpack
from rmq_grpc.headers import DONE, HEAD, HeaderDecoder, HeaderEncoder, checked

from rmq.errors import RemoteProtocolError

Pairs = list[tuple[bytes, bytes]]
GOOD: Pairs = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/b"),
    (b":authority", b"broker:8081"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
    (b"x-mq-client-id", b"one"),
]
FLAGS = h2.utilities.HeaderValidationFlags(
    is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False
)


def is_taken(headers: Pairs) -> bool:
    """True if `checked` accepts headers."""
    try:
        checked(headers)
    except RemoteProtocolError:
        return False
    return True


def is_taken_by_h2(headers: Pairs) -> bool:
    """True if h2 accepts headers, and they are texts."""
    try:
        for name, value in h2.utilities.validate_headers(headers, FLAGS):
            name.decode()
            value.decode()
    except (h2.exceptions.ProtocolError, UnicodeDecodeError):
        return False
    return True


NAMES = st.sampled_from(
    [name for name, _ in GOOD] + [b"host", b"connection", b"x-a", b":status", b":protocol"]
)
VALUES = st.sampled_from([value for _, value in GOOD] + [b"", b" a", b"a\t", b"a\nb", b"\xff", b"Trailers"])
ODD_NAMES = st.binary(min_size=1, max_size=3)
ODD_VALUES = st.binary(max_size=3)


@given(
    st.permutations(GOOD),
    st.lists(st.tuples(st.integers(0, 7), NAMES | ODD_NAMES, VALUES | ODD_VALUES), max_size=2),
    st.integers(0, 7),
    st.booleans(),
)
@settings(deadline=None)
def test_what_h2_takes_is_taken(
    mixed: Pairs, more: list[tuple[int, bytes, bytes]], kept: int, is_mixed: bool
) -> None:
    headers = (mixed if is_mixed else list(GOOD))[: max(kept, 4)]
    for place, name, value in more:
        headers.insert(place, (name, value))
    assert is_taken(headers) == is_taken_by_h2(headers)
    assert is_taken(headers) == is_taken_by_h2(headers), "known headers are judged in the same way"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([(b"", b"a")], "the name of the header"),
        ([(b"X-A", b"a")], "the name of the header"),
        ([(b"x:a", b"a")], "the name of the header"),
        ([(b"x-a", b"a\r\nb: c")], "the value of the header"),
        ([(b"x-a", b"\xff")], "no UTF-8"),
        ([(b"transfer-encoding", b"chunked")], "transfer-encoding"),
        ([(b":path", b"/c")], "pseudo-header ':path'"),
        ([(b"host", b"another")], "differ"),
        ([(b"host", b"broker:8081"), (b"host", b"broker:8081")], "two headers"),
        ([(b"x-long", b"a" * 4_000 + b"\0")], "the value of the header"),
    ],
)
def test_what_no_request_may_have_is_named(change: Pairs, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        checked([*GOOD, *change])


@pytest.mark.parametrize("missing", [b":method", b":scheme", b":path", b":authority"])
def test_a_request_names_its_method_and_path(missing: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=missing.decode()):
        checked([pair for pair in GOOD if pair[0] != missing])


def test_headers_are_texts() -> None:
    assert checked([*GOOD, (b"x-name", "ü".encode())])["x-name"] == "ü"


def outcome(decoder: hpack.Decoder, data: bytes) -> object:
    """The headers of a block, or the kind of error."""
    try:
        return [tuple(pair) for pair in decoder.decode(data, raw=True)]
    except hpack.HPACKError as error:
        return type(error)


BLOCKS = st.lists(
    st.lists(
        st.tuples(NAMES, st.sampled_from([b"a", b"b" * 40, b"long" * 300])),
        min_size=1,
        max_size=6,
    ),
    max_size=6,
)


@given(BLOCKS, st.booleans(), st.sampled_from([4096, 100, 0]))
@settings(deadline=None)
def test_blocks_are_decoded_as_by_hpack(blocks: list[Pairs], huffman: bool, size: int) -> None:
    encoder, ours, theirs = hpack.Encoder(), HeaderDecoder(3_000), hpack.Decoder(3_000)
    for number, block in enumerate(blocks):
        if number == 2:
            encoder.header_table_size = size
        data = encoder.encode(block, huffman)
        found = outcome(ours, data)
        assert found == outcome(theirs, data)
        if isinstance(found, type):
            break


@given(st.lists(st.binary(max_size=12), max_size=4))
@settings(deadline=None)
def test_nonsense_is_refused_as_by_hpack(blocks: list[bytes]) -> None:
    ours, theirs = HeaderDecoder(200), hpack.Decoder(200)
    for data in blocks:
        with contextlib.suppress(UnicodeDecodeError):
            found = outcome(ours, data)
            assert found == outcome(theirs, data)
            if isinstance(found, type):
                break


def test_answers_are_read_in_any_state_of_the_tables() -> None:
    encoder, decoder = HeaderEncoder(), hpack.Decoder()
    failed = (("grpc-status", "13"), ("grpc-message", "why"))
    for size in (4096, 64, 0, 4096):
        encoder.header_table_size = size
        for made in (HEAD, DONE, HEAD + DONE, failed, HEAD + failed, DONE):
            assert [tuple(pair) for pair in decoder.decode(encoder.encode(list(made)))] == list(made)
