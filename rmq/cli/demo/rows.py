"""Reader of a CSV or JSON-lines file for `rmq demo`: makes the rows to send. Pure but for reading the file.

The whole file is read and checked before the first row is used, so that bad input ends the demo before it
starts.
"""

from __future__ import annotations

import csv
import importlib.resources
import io
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import frozen

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
DELIMITERS = ",;\t|"
MAX_BODY = 4 * 1024 * 1024  # a broker's default limit (maxMessageSize)


class BadInput(Exception):
    """A file that cannot be sent; the text has the place and the reason, in one line."""


@frozen
class Row:
    """A row of a file: its number among the rows, the key that orders it, the message body."""

    number: int
    key: str
    body: bytes


def bundled() -> pathlib.Path:
    """The order events that come with rmq: inside the wheel, or in a checkout's examples/data."""
    installed = pathlib.Path(str(importlib.resources.files("rmq.cli.demo"))) / "orders.csv"
    checkout = pathlib.Path(__file__).resolve().parents[3] / "examples" / "data" / "orders.csv"
    return installed if installed.is_file() else checkout


def read_rows(path: pathlib.Path, key: str | None = None) -> list[Row]:
    """Read the whole file. `key` is the column whose equal values stay in order; None: the first column.

    CSV needs a header line; the separator is the most frequent of `,;|` and tab in the header. JSON lines
    hold an object each. Raises BadInput.
    """
    text = _text(path)
    records = _json_records(path, text) if _is_json(path, text) else _csv_records(path, text)
    rows = list(_rows(path, records, key))
    if not rows:
        raise BadInput(f"{path}: no rows: the file has nothing to send")
    return rows


def _text(path: pathlib.Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{path}: line {line}: not UTF-8 text; convert the file first") from error
    if not text.strip():
        raise BadInput(f"{path}: the file is empty")
    if "\0" in text:
        raise BadInput(f"{path}: holds zero bytes: neither CSV nor JSON lines")
    return text


def _is_json(path: pathlib.Path, text: str) -> bool:
    return path.suffix.lower() in JSON_SUFFIXES or text.lstrip()[:1] == "{"


def _csv_records(path: pathlib.Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, column -> value)."""
    header_line = text.split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=header_line.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        _check_header(path, header)
        for values in reader:
            if not values:
                continue
            if len(values) != len(header):
                expected = f"{len(values)} values where the header has {len(header)} columns"
                raise BadInput(f"{path}: line {reader.line_num}: {expected}")
            yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise BadInput(f"{path}: line {reader.line_num}: not CSV: {error}") from error


def _check_header(path: pathlib.Path, header: list[str]) -> None:
    if any(not name for name in header):
        raise BadInput(f"{path}: line 1: the header has a column without a name")
    doubled = sorted({name for name in header if header.count(name) > 1})
    if doubled:
        raise BadInput(f"{path}: line 1: the header names {', '.join(doubled)} twice")


def _json_records(path: pathlib.Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, the line's object)."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or "nested too deeply"
            raise BadInput(f"{path}: line {number}: not JSON: {reason}") from error
        if not isinstance(record, dict):
            raise BadInput(f"{path}: line {number}: not a JSON object; expected one object a line")
        yield number, record


def _rows(
    path: pathlib.Path, records: Iterable[tuple[int, dict[str, Any]]], key: str | None
) -> Iterator[Row]:
    for number, (line, record) in enumerate(records):
        if key is None:
            key = next(iter(record), None)
        if key is None or key not in record:
            columns = ", ".join(record) or "none"
            expected = "no column at all" if key is None else f"no column {key!r}"
            raise BadInput(f"{path}: line {line}: {expected}; columns there: {columns}")
        yield Row(number, _key_text(path, line, key, record[key]), _body(path, line, record))


def _key_text(path: pathlib.Path, line: int, key: str, value: object) -> str:
    if value is None or value == "" or isinstance(value, (dict, list)):
        raise BadInput(f"{path}: line {line}: column {key!r} has no value to order by")
    return value if isinstance(value, str) else json.dumps(value)


def _body(path: pathlib.Path, line: int, record: dict[str, Any]) -> bytes:
    try:
        body = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{path}: line {line}: holds half a surrogate pair, which is no text") from error
    if len(body) > MAX_BODY:
        raise BadInput(f"{path}: line {line}: {len(body):,} bytes; a message holds {MAX_BODY:,} at most")
    return body
