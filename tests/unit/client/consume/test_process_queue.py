from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rmq.client.consume.process_queue import UNLIMITED, ProcessQueue
from rmq.message import MessageQueue

QUEUE = MessageQueue("T", "b", 0)
ANY = 1 << 60


class WindowAgainstModel(RuleBasedStateMachine):
    """The window against a list of all that was ever pulled, with a mark for what is finished."""

    def __init__(self) -> None:
        super().__init__()
        self.window = ProcessQueue(QUEUE, 100)
        self.next_offset = 100
        self.pulled: list[tuple[int, int]] = []
        self.finished: set[int] = set()

    @rule(
        gaps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5000)), max_size=8), tail=st.integers(0, 3)
    )
    def pull(self, gaps: list[tuple[int, int]], tail: int) -> None:
        found = []
        for gap, size in gaps:
            found.append((self.next_offset + gap, size))
            self.next_offset += gap + 1
        self.next_offset += tail
        self.window.add([offset for offset, _ in found], [size for _, size in found], self.next_offset)
        self.pulled += found

    @precondition(lambda self: self.pulled)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        queue_offset, _ = data.draw(st.sampled_from(self.pulled))
        assert self.window.finish(queue_offset) is (queue_offset not in self.finished)
        self.finished.add(queue_offset)

    @rule(queue_offset=st.integers(-5, 2000))
    def finish_what_is_not_there(self, queue_offset: int) -> None:
        if queue_offset not in {offset for offset, _ in self.pulled}:
            assert not self.window.finish(queue_offset)

    @invariant()
    def agrees(self) -> None:
        open_ones = [(offset, size) for offset, size in self.pulled if offset not in self.finished]
        lowest = min((offset for offset, _ in open_ones), default=self.next_offset)
        assert self.window.commit_offset == lowest
        assert len(self.window) == len(open_ones)
        assert self.window.bytes == sum(size for _, size in open_ones)
        assert self.window.next_offset == self.next_offset
        assert self.window.span == self.next_offset - lowest
        assert self.window.last_offset == max((offset for offset, _ in open_ones), default=0)


TestWindow = WindowAgainstModel.TestCase


def test_what_is_committed_never_passes_an_unfinished_message() -> None:
    window = ProcessQueue(QUEUE, 10)
    window.add([10, 11, 15], [1, 1, 1], 20)
    window.finish(11)
    assert window.commit_offset == 10
    window.finish(10)
    assert window.commit_offset == 15
    window.finish(15)
    assert window.commit_offset == 20


@pytest.mark.parametrize(
    ("limits", "full"),
    [((3, ANY, ANY), True), ((4, ANY, ANY), False), ((ANY, 30, ANY), True), ((ANY, 31, ANY), False)],
)
def test_it_is_full_by_count_and_bytes(limits: tuple[int, int, int], full: bool) -> None:
    window = ProcessQueue(QUEUE, 0)
    window.set_limits(*limits)
    window.add([0, 1, 2], [10, 10, 10], 3)
    assert window.is_full is full


def test_it_is_full_when_one_message_holds_up_the_others() -> None:
    window = ProcessQueue(QUEUE, 0)
    window.set_limits(UNLIMITED, UNLIMITED, 5)
    window.add(range(5), [1] * 5, 5)
    for offset in (1, 2, 3, 4):
        window.finish(offset)
    assert window.is_full
    window.finish(0)
    assert not window.is_full


def test_an_empty_window_is_never_full() -> None:
    window = ProcessQueue(QUEUE, 0)
    window.set_limits(1, 1, 1)
    window.add([], [], 10_000)
    assert not window.is_full


def test_room_is_told_of_once_and_not_before_it_is_there() -> None:
    window = ProcessQueue(QUEUE, 0)
    window.set_limits(2, UNLIMITED, UNLIMITED)
    window.add([0, 1, 2], [1, 1, 1], 3)
    told: list[int] = []
    window.when_room(lambda: told.append(len(window)))
    window.finish(0)
    assert told == []
    window.finish(2)
    window.finish(1)
    assert told == [1]


def test_a_message_that_is_pulled_twice_is_a_bug() -> None:
    window = ProcessQueue(QUEUE, 0)
    window.add([0], [1], 1)
    with pytest.raises(AssertionError):
        window.add([0], [1], 1)
