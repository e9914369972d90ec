"""The rules of an audit hold for a record and for arrays of them alike."""

from __future__ import annotations

import itertools

import numpy as np

from rmq.protocol.codes import SYS_PREPARED, SYS_ROLLBACK
from rmq.protocol.properties import has_unit
from rmq.store.audit.rules import differences, is_compared, is_kept, is_pending, is_replaced, kept_topics
from rmq.store.files.consumequeue import FILLER_SIZE, is_unit

NUMBERS = (-5, -1, 0, 1, 7, 100)
PAIRS = np.array(list(itertools.product(NUMBERS, NUMBERS)))


def test_what_retention_removed_needs_no_record() -> None:
    assert not is_kept(99, 100)
    assert is_kept(100, 100)
    assert is_kept(-1, 100), "no place of a log is negative"
    expected = [is_kept(place, start) for place, start in PAIRS.tolist()]
    assert is_kept(PAIRS[:, 0], PAIRS[:, 1]).tolist() == expected


def test_a_later_record_with_no_higher_offset_replaces() -> None:
    assert is_replaced(10, 5, 20, 0)
    assert is_replaced(10, 5, 20, 5)
    assert not is_replaced(10, 4, 20, 5), "the queue goes on"
    assert not is_replaced(20, 5, 10, 0), "it is the later one"
    expected = [is_replaced(place, 3, 7, offset) for place, offset in PAIRS.tolist()]
    assert is_replaced(PAIRS[:, 0], 3, 7, PAIRS[:, 1]).tolist() == expected


def test_only_units_after_the_last_of_an_open_store_are_pending() -> None:
    assert is_pending(5, 4, True)
    assert is_pending(0, -1, True)
    assert not is_pending(4, 4, True)
    assert not is_pending(5, 4, False)


def test_what_is_a_unit() -> None:
    sizes = [-1, 0, 1, 91, FILLER_SIZE - 1, FILLER_SIZE]
    assert [bool(is_unit(size)) for size in sizes] == [False, False, True, True, True, False]
    assert is_unit(np.array(sizes)).tolist() == [False, False, True, True, True, False]


def test_half_and_rolled_back_records_have_no_unit() -> None:
    flags = [0, 1, SYS_PREPARED, SYS_ROLLBACK, SYS_PREPARED | 1, 8]
    assert [has_unit(flag) for flag in flags] == [True, True, False, False, False, True]
    found: list[bool] = np.asarray(has_unit(np.array(flags))).tolist()  # type: ignore[arg-type]
    assert found == [True, True, False, False, False, True]


def test_each_difference_has_its_kind() -> None:
    assert not any(differences((1, 2, 3), (1, 2, 3)).values())
    wrong = [
        [kind for kind, is_wrong in differences((1, 2, 3), unit).items() if is_wrong]
        for unit in ((0, 2, 3), (1, 0, 3), (1, 2, 0))
    ]
    assert wrong == [["queue unit offset"], ["queue unit size"], ["queue unit tags code"]]


def test_topics() -> None:
    assert is_compared("LMQ")
    assert not is_compared("%LMQ%group")
    assert kept_topics(["A"], ["B"]) == {"A", "B"}
    assert kept_topics(None, ["B"]) is None
