"""The bound on a service's log."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.loglimit import KINDS_MAX, LINE_CHARACTERS, TRACE_LINES, LogFormat, LogLimit, start_log


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


def written(text: str, *values: object, error: BaseException | None = None) -> list[str]:
    """The lines that a record becomes, without their time."""
    record = line(text, *values)
    if error is not None:
        record.exc_info = (type(error), error, error.__traceback__)
    return LogFormat("%(levelname)s %(message)s").format(record).split("\n")


@given(st.text(max_size=60))
def test_a_record_is_one_line_whatever_it_holds(text: str) -> None:
    (one,) = written("client %s", text)
    assert one.isprintable()
    assert one.startswith("WARNING client ")


def test_what_strangers_name_forges_no_line() -> None:
    forged = "c1\n2026-01-05 10:00:00,123 INFO rmq.audit: admin who=manager\r\x1b[2K\x9b2J"
    (one,) = written("%s of group %s is silent", forged, "g\u202e")
    assert one == (
        "WARNING c1\\n2026-01-05 10:00:00,123 INFO rmq.audit: admin who=manager\\r\\x1b[2K\\x9b2J"
        " of group g\\u202e is silent"
    )


def test_a_line_has_an_end() -> None:
    (one,) = written("client %s", "x" * 100_000)
    assert one == f"WARNING client {'x' * (LINE_CHARACTERS - 15)} ... (100015 characters)"


def test_a_traceback_is_marked_as_one() -> None:
    def fails(depth: int) -> None:
        if depth:
            fails(depth - 1)
        raise ValueError("bad\n2026-01-05 10:00:00,123 INFO rmq.audit: admin\x1b[2J" + "x" * 5000)

    for depth in (0, 50):
        try:
            fails(depth)
        except ValueError as error:
            first, *trace = written("failed: %s", "why", error=error)
        assert first == "WARNING failed: why"
        assert all(text.startswith("| ") and len(text) < LINE_CHARACTERS + 50 for text in trace)
        assert all(text.isprintable() for text in trace)
        assert trace[-1].startswith("| 2026-01-05 10:00:00,123 INFO rmq.audit: admin\\x1b[2J")
        assert len(trace) <= TRACE_LINES + 1


def test_services_log_so(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        start_log()
        logging.getLogger("rmq.test").warning("client %s", "a\nb")
    finally:
        root.handlers = before
    assert capsys.readouterr().err.endswith(" WARNING rmq.test: client a\\nb\n")
