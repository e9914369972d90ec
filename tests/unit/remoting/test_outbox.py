from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmq.remoting.stream import SMALL_BYTES, Outbox

sizes = st.one_of(st.integers(0, 50), st.sampled_from([SMALL_BYTES - 1, SMALL_BYTES, 3 * SMALL_BYTES]))
steps = st.lists(
    st.one_of(st.tuples(st.just("add"), st.lists(sizes, max_size=4)), st.tuples(st.just("send"), sizes))
)


@given(steps)
def test_bytes_come_out_as_they_went_in(steps: list[tuple[str, object]]) -> None:
    outbox, expected, sent, counter = Outbox(), b"", b"", 0
    for name, value in steps:
        if name == "add":
            assert isinstance(value, list)
            buffers = []
            for size in value:
                counter += 1
                buffers.append(bytes([counter % 256]) * size)
            outbox.add(buffers if len(buffers) != 1 else buffers[0])
            expected += b"".join(buffers)
        else:
            assert isinstance(value, int)
            count = min(value, outbox.size)
            sent += b"".join(outbox.pieces())[:count]
            outbox.drop(count)
        assert sent + b"".join(outbox.pieces()) == expected
        assert outbox.size == len(expected) - len(sent)


def test_small_buffers_are_joined_and_large_ones_left_alone() -> None:
    outbox, large = Outbox(), memoryview(b"x" * SMALL_BYTES)
    for _ in range(3):
        outbox.add([b"a", b"b", large, b"c"])
    pieces = outbox.pieces()
    assert [len(piece) for piece in pieces] == [2, SMALL_BYTES, 3, SMALL_BYTES, 3, SMALL_BYTES, 1]
    assert pieces[1] is large


def test_many_small_buffers_are_one_piece() -> None:
    outbox = Outbox()
    for _ in range(100):
        outbox.add(b"x" * 100)
    assert len(outbox.pieces()) == 1


def test_what_comes_after_a_part_was_sent_is_joined_too() -> None:
    outbox, large = Outbox(), b"x" * SMALL_BYTES
    outbox.add([large, large, large])
    outbox.pieces()
    outbox.drop(2 * SMALL_BYTES + 1)
    for _ in range(100):
        outbox.add(b"y")
    assert [len(piece) for piece in outbox.pieces()] == [SMALL_BYTES - 1, 100]


def test_clear() -> None:
    outbox = Outbox()
    outbox.add([b"abc", b"def"])
    outbox.clear()
    assert (outbox.size, outbox.pieces()) == (0, [])
