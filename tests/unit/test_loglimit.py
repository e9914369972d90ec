"""The bound on a service's log."""

from __future__ import annotations

import json
import logging
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.errors import ConfigError
from rmq.server.log_limit import (
    FORM,
    KINDS_MAX,
    LINE_CHARACTERS,
    TRACE_LINES,
    JsonFormat,
    LogConfig,
    LogFormat,
    LogLimit,
    leaves_out,
    reopen_log,
    start_log,
)


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


def test_a_line_that_is_left_out_is_not_made() -> None:
    seconds, written = [0.0], list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = written.append  # type: ignore[method-assign]
    handler.addFilter(LogLimit(2, lambda: seconds[0]))
    log = logging.Logger("rmq.crowd")
    log.addHandler(handler)

    made = 0
    for seconds[0] in (0.0, 1.0):
        for number in range(5):
            if not leaves_out(log, "come %d"):
                made += 1
                log.warning("come %d", number)

    assert made == len(written) == 4
    assert written[2].getMessage() == "come 0 (3 lines like this one were left out)"
    log.addHandler(logging.NullHandler())
    assert not leaves_out(log, "come %d"), "a handler without a limit wants all lines"


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


def test_a_line_as_json_has_its_time_in_utc_and_no_line_of_its_own() -> None:
    record = logging.makeLogRecord({"name": "rmq.x", "levelname": "INFO", "msg": "a %s", "args": ("b\nc",)})
    record.created = 1_700_000_000.25
    (line,) = JsonFormat().format(record).split("\n")
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "rmq.x",
        "message": "a b\\nc",
    }
    assert LogFormat(FORM).format(record).startswith("2023-11-14T22:13:20.250Z INFO rmq.x: a b")


def test_a_log_file_is_bounded_and_opened_anew(tmp_path: pathlib.Path) -> None:
    root, file = logging.getLogger(), tmp_path / "log"
    before, level = root.handlers, root.level
    root.handlers = []
    try:
        start_log(LogConfig(log_file=str(file), log_file_bytes=200, log_files=2, log_level="WARNING"))
        for number in range(20):
            logging.getLogger("rmq.test").warning("number %d", number)
            logging.getLogger("rmq.test").info("not this")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
        text = file.read_text()
        assert "number 19" in text
        assert "not this" not in text
        file.rename(tmp_path / "moved")
        reopen_log()
        logging.getLogger("rmq.test").error("here")
        assert file.read_text().endswith("ERROR rmq.test: here\n")
        with pytest.raises(ConfigError, match="logFile"):
            start_log(LogConfig(log_file=str(tmp_path / "none" / "log")))
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers = before
        root.setLevel(level)
