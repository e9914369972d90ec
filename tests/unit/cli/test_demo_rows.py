from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from rmq.cli.demo.rows import BadInput, Row, bundled, read_rows

ROOT = pathlib.Path(__file__).resolve().parents[3]


def write(folder: pathlib.Path, name: str, content: str | bytes) -> pathlib.Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_csv_rows_become_json_objects_in_file_order(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "a.csv", 'id,step,note\n7,created,"a, ""b"""\n8,paid,ü\n\n7,paid,\n')

    rows = read_rows(path, "id")

    assert [(row.number, row.key) for row in rows] == [(0, "7"), (1, "8"), (2, "7")]
    assert json.loads(rows[0].body) == {"id": "7", "step": "created", "note": 'a, "b"'}
    assert rows[1].body == '{"id":"8","step":"paid","note":"ü"}'.encode()


def test_the_first_column_orders_when_none_is_named(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "a.csv", "step,id\ncreated,7\n")

    assert read_rows(path) == [Row(0, "created", b'{"step":"created","id":"7"}')]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_separators_are_taken_from_the_header(tmp_path: pathlib.Path, delimiter: str) -> None:
    path = write(tmp_path, "a.csv", f"id{delimiter}amount\n7{delimiter}1,5\n")

    assert json.loads(read_rows(path, "id")[0].body) == {"id": "7", "amount": "1,5"}


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "a.csv", b"\xef\xbb\xbfid,step\r\n7,created\r\n")

    assert read_rows(path, "id") == [Row(0, "7", b'{"id":"7","step":"created"}')]


def test_json_lines_keep_their_types_and_numbers_are_keys(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"id": 7, "amount": 1.50}\n\n{"id": 8, "lines": [1, 2]}\n')

    rows = read_rows(path, "id")

    assert [(row.key, json.loads(row.body)) for row in rows] == [
        ("7", {"id": 7, "amount": 1.5}),
        ("8", {"id": 8, "lines": [1, 2]}),
    ]


def test_json_lines_are_known_by_their_content_too(tmp_path: pathlib.Path) -> None:
    assert read_rows(write(tmp_path, "events.log", '{"id":"7"}\n'), "id")[0].key == "7"


BAD = {
    "empty.csv": (b"", None, "the file is empty"),
    "blank.csv": (b"\n \n", None, "the file is empty"),
    "header.csv": (b"id,step\n", "id", "no rows"),
    "column.csv": (b"id,step\n7,paid\n", "order", "line 2: no column 'order'; columns there: id, step"),
    "width.csv": (b"id,step\n7,paid\n8\n", "id", "line 3: 1 values where the header has 2 columns"),
    "quote.csv": (b'id,step\n7,"paid\n', "id", "not CSV"),
    "twice.csv": (b"id,id\n7,8\n", "id", "the header names id twice"),
    "nameless.csv": (b"id,\n7,8\n", "id", "column without a name"),
    "nokey.csv": (b"id,step\n,paid\n", "id", "line 2: column 'id' has no value"),
    "latin.csv": ("id,step\n7,grün\n".encode("latin-1"), "id", "line 2: not UTF-8"),
    "utf16.csv": ("id,step\n7,paid\n".encode("utf-16-le"), "id", "zero bytes"),
    "bad.jsonl": (b'{"id": 7}\n{"id": 8\n', "id", "line 2: not JSON"),
    "deep.jsonl": (b'{"id":' + b"[" * 100_000, "id", "line 1: not JSON"),
    "list.json": (b"[1, 2]\n", "id", "line 1: not a JSON object"),
    "lacks.jsonl": (b'{"id": 7}\n{"no": 8}\n', "id", "line 2: no column 'id'; columns there: no"),
    "null.jsonl": (b'{"id": null}\n', "id", "line 1: column 'id' has no value"),
    "bare.jsonl": (b"{}\n", None, "line 1: no column at all; columns there: none"),
    "surrogate.jsonl": (b'{"id": "\\ud800"}\n', "id", "line 1: holds half a surrogate pair"),
    "big.jsonl": (b'{"id": 7, "x": "' + b"x" * (4 << 20) + b'"}\n', "id", "line 1: 4,194,"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_file_and_line(tmp_path: pathlib.Path, name: str) -> None:
    content, key, expected = BAD[name]
    path = write(tmp_path, name, content)

    with pytest.raises(BadInput) as caught:
        read_rows(path, key)

    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["absent.csv", ""])
def test_what_cannot_be_opened_is_said_so(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(BadInput, match=r"cannot be read: (No such file|Is a directory)"):
        read_rows(tmp_path / name)


def test_the_bundled_orders_are_whole_and_pass_through_their_steps() -> None:
    rows = read_rows(bundled(), "order_id")

    steps: dict[str, list[str]] = {}
    for row in rows:
        steps.setdefault(row.key, []).append(json.loads(row.body)["step"])
    assert len(rows) == 5122
    assert len(steps) == 1070
    assert {tuple(one) for one in steps.values()} == {
        ("created", "paid", "packed", "shipped", "delivered"),
        ("created", "paid", "packed", "shipped", "delivered", "refunded"),
        ("created", "paid", "cancelled", "refunded"),
        ("created", "cancelled"),
    }


def test_the_bundled_orders_are_what_their_script_makes() -> None:
    script = ROOT / "examples" / "data" / "make_orders.py"
    made = subprocess.run([sys.executable, str(script)], capture_output=True, check=True).stdout

    assert made == bundled().read_bytes()
    assert len(made) <= 600_000
