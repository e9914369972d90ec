"""Foreign text, made fit for a terminal."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rmq.cli.output import echo, echo_json, show
from rmq.printable import counted, printable, printable_json, printable_lines

ODD = "a\x1b[31m\x9b2J\x85\u2028\u202e\ud800\x7f\r\n\tz"
ROOT = pathlib.Path(__file__).parents[2]


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_that_steers_is_left(text: str) -> None:
    assert printable(text).isprintable()
    assert all(letter.isprintable() or letter in "\n\t" for letter in printable_lines(text))
    assert printable_lines(text).count("\n") == text.count("\n")
    if text.isprintable():
        assert printable(text) == printable_lines(text) == printable_json(text) == text


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_keeps_its_value(value: object) -> None:
    text = printable_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(text) == value
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_what_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    echo(ODD)
    echo(ODD, err=True)
    said = capsys.readouterr()
    assert said.out == said.err == "a\\x1b[31m\\x9b2J\\x85\\u2028\\u202e\\ud800\\x7f\\r\n\tz\n"
    plain = ODD.replace("\ud800", "")
    for value, output in (({"name": plain}, "json"), ({"name": plain}, "yaml"), ([{"name": plain}], "table")):
        show(value, output)  # type: ignore[arg-type]
        text = capsys.readouterr().out
        assert all(letter.isprintable() or letter == "\n" for letter in text), output
        if output != "table":
            assert (json.loads if output == "json" else yaml.safe_load)(text) == value
    echo_json(plain, indent=None)
    assert json.loads(capsys.readouterr().out) == plain


def test_commands_print_through_one_function() -> None:
    others = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in (ROOT / "rmq" / "cli").rglob("*.py")
        if path.name != "output.py"
        for found in re.findall(r"(?:click\.s?echo|(?<![\w.])print)\([^\n]*", path.read_text("utf-8"))
    ]
    assert not others


@pytest.mark.parametrize(
    ("number", "noun", "form", "text"),
    [
        (1, "topic", "", "1 topic"),
        (0, "topic", "", "0 topics"),
        (2, "entry", "", "2 entries"),
        (2, "day", "", "2 days"),
        (2, "process", "", "2 processes"),
        (12345, "message", ",", "12,345 messages"),
        (1.0, "message", ",.0f", "1 message"),
    ],
)
def test_a_noun_follows_its_number(number: float, noun: str, form: str, text: str) -> None:
    assert counted(number, noun, form) == text


NOUNS = (
    "accounts|brokers|bytes|changes|controllers|days|dead letters|engines|entries|faults|files|groups"
    "|handlers|letters|log files|members|messages|moves|name servers|parts|queues|records|replicas|slaves"
    "|topics|units"
)
SEVERAL = {
    *("{SHOWN_BYTES} bytes", "{len(body):,} bytes", "{text} files"),
    *("{count} controllers", "{len(one.replicas)} replicas"),
}
"""Numbers that are never 1."""


def test_commands_write_no_plural_beside_a_number_that_may_be_one() -> None:
    """Texts of commands and of the operations behind them take `counted`. mqadmin's texts are Java's."""
    places = [*(ROOT / "rmq/cli").rglob("*.py"), *(ROOT / "rmq/operate").rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {hit[0]}"
        for path in places
        if "rmq/cli/admin/" not in path.as_posix()
        for hit in re.finditer(rf"\{{[^{{}}]*\}} ({NOUNS})\b", path.read_text("utf-8"))
        if hit[0] not in SEVERAL and "counted(" not in hit[0]
    ]
    assert found == []
