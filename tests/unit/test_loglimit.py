"""The bound on a service's log."""

from __future__ import annotations

import logging

from rmq.loglimit import KINDS_MAX, LogLimit


def line(text: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("rmq.test", logging.WARNING, __file__, 1, text, values, None)


def test_what_repeats_is_counted_and_what_is_left_out_is_told() -> None:
    now = 0.0
    limit = LogLimit(2, lambda: now)

    assert [limit.filter(line("refused %d", number)) for number in range(5)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert limit.filter(line("another")), "one kind hides no other"

    now = 1.0
    told, next_one = line("refused %d", 6), line("refused %d", 7)
    assert limit.filter(told)
    assert told.getMessage() == "refused 6 (3 lines like this one were left out)"
    assert limit.filter(next_one)
    assert next_one.getMessage() == "refused 7"


def test_texts_that_are_made_anew_each_time_do_not_pile_up() -> None:
    limit = LogLimit(2, lambda: 0.0)
    for number in range(3 * KINDS_MAX):
        limit.filter(line(f"line {number}"))
    assert len(limit._counts) <= KINDS_MAX + 1
