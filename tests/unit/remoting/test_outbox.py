from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from rmq.remoting.transports.stream import SMALL_BYTES, Buffer, Outbox, Stream

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
            sent += b"".join(outbox.peek())[:count]
            outbox.consume(count)
        assert sent + b"".join(outbox.peek()) == expected
        assert outbox.size == len(expected) - len(sent)


def test_small_buffers_are_joined_and_large_ones_left_alone() -> None:
    outbox, large = Outbox(), memoryview(b"x" * SMALL_BYTES)
    for _ in range(3):
        outbox.add([b"a", b"b", large, b"c"])
    pieces = outbox.peek()
    assert [len(piece) for piece in pieces] == [2, SMALL_BYTES, 3, SMALL_BYTES, 3, SMALL_BYTES, 1]
    assert pieces[1] is large


def test_many_small_buffers_are_one_piece() -> None:
    outbox = Outbox()
    for _ in range(100):
        outbox.add(b"x" * 100)
    assert len(outbox.peek()) == 1


def test_what_comes_after_a_part_was_sent_is_joined_too() -> None:
    outbox, large = Outbox(), b"x" * SMALL_BYTES
    outbox.add([large, large, large])
    outbox.peek()
    outbox.consume(2 * SMALL_BYTES + 1)
    for _ in range(100):
        outbox.add(b"y")
    assert [len(piece) for piece in outbox.peek()] == [SMALL_BYTES - 1, 100]


def test_clear() -> None:
    outbox = Outbox()
    outbox.add([b"abc", b"def"])
    outbox.clear()
    assert (outbox.size, outbox.peek()) == (0, [])


class Taking(Stream):
    """Takes so many bytes of each send; a negative number breaks it."""

    def __init__(self, *takes: int) -> None:
        self.takes, self.taken = list(takes), b""

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        most = self.takes.pop(0)
        if most < 0:
            raise trio.BrokenResourceError("gone")
        taken = b"".join(buffers)[:most]
        self.taken += taken
        return len(taken)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        raise NotImplementedError

    async def send_all(self, data: Buffer) -> None:
        raise NotImplementedError

    async def wait_send_all_might_not_block(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.sampled_from([0, 1, 10, 100])), max_size=12))
def test_what_is_sent_at_once_keeps_its_place(steps: list[tuple[bool, int, int]]) -> None:
    outbox, stream, expected = Outbox(), Taking(), b""
    for number, (at_once, size, takes) in enumerate(steps, 1):
        frame = bytes([number]) * size
        expected += frame
        if not at_once:
            outbox.add(frame)
            continue
        stream.takes.append(takes)
        before = b"".join(outbox.peek()) + frame
        outbox.send(stream, frame)
        assert stream.takes == [], "it is asked once"
        assert outbox.size == max(0, len(before) - takes)
        # A transport that took a part wants the same bytes again, so what begins them must stay as it is.
        assert not outbox.size or b"".join(outbox.peek()) == before[takes:]
    assert stream.taken + b"".join(outbox.peek()) == expected
    assert outbox.taken == len(stream.taken)


@pytest.mark.parametrize("waiting", [b"", b"before"])
def test_what_cannot_be_sent_at_once_is_queued(waiting: bytes) -> None:
    outbox = Outbox()
    outbox.add(waiting)
    with pytest.raises(trio.BrokenResourceError):
        outbox.send(Taking(-1), b"frame")
    assert b"".join(outbox.peek()) == waiting + b"frame"
