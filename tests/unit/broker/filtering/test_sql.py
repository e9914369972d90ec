"""SQL92 filters against the vectors of the real filter, and against random text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.filtering.sql92 import (
    MAX_DEPTH,
    MAX_LENGTH,
    EvaluationError,
    FilterSyntaxError,
    compile_sql,
    java_double,
)

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "golden" / "sql92.json").read_text(encoding="utf-8")
)


def outcome(text: str, properties: dict[str, str]) -> object:
    """The result in the vectors' own words."""
    try:
        value = compile_sql(text).evaluate(properties)
    except EvaluationError as error:
        return f"exception:{error.kind}:{error}"
    return "null" if value is None else value


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["expr"][:40])
def test_every_vector_of_the_java_filter(vector: dict[str, Any]) -> None:
    if vector["compile"] == "error":
        with pytest.raises(FilterSyntaxError):
            compile_sql(vector["expr"])
        return
    for properties, expected in zip(VECTORS["properties"], vector["results"], strict=True):
        got = outcome(vector["expr"], properties)
        if isinstance(expected, str) and expected.startswith("exception:ClassCastException"):
            assert isinstance(got, str)
            assert got.startswith("exception:ClassCastException"), properties
        else:
            assert got == expected, properties
            assert type(got) is type(expected), properties


def test_matches_is_true_only_for_certain_truth() -> None:
    expression = compile_sql("a > 1")
    assert expression.matches({"a": "2"})
    assert not expression.matches({"a": "1"})
    assert not expression.matches({})
    assert not expression.matches({"a": "two"})


@pytest.mark.parametrize(
    ("text", "value"),
    [(" 5 ", 5.0), ("5d", 5.0), ("0x1p4", 16.0), ("-Infinity", float("-inf")), ("1e400", float("inf"))],
)
def test_java_double_reads_what_java_reads(text: str, value: float) -> None:
    assert java_double(text) == value


@pytest.mark.parametrize("text", ["", " ", "1_0", "inf", "nan", "0x10", "5dd", "1e"])
def test_java_double_refuses_what_java_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"input string|empty String"):
        java_double(text)


@pytest.mark.parametrize("text", ["(" * 8_000 + "a = 1", "NOT " * 2_000 + "a", "a" + " = 1" * 2_000])
def test_deep_nesting_is_refused_not_crashing(text: str) -> None:
    with pytest.raises(FilterSyntaxError, match=str(MAX_DEPTH)):
        compile_sql(text)


def test_a_long_chain_of_conditions_is_evaluated_without_recursion() -> None:
    assert compile_sql(" OR ".join(f"a='{i}'" for i in range(700))).matches({"a": "699"})


def test_an_expression_is_as_long_as_allowed_and_no_longer() -> None:
    text = "a = 'x'".ljust(MAX_LENGTH)
    assert compile_sql(text).matches({"a": "x"})
    with pytest.raises(FilterSyntaxError, match="8193 characters, at most 8192") as caught:
        compile_sql(text + " ")
    assert len(str(caught.value)) < 400  # logs and answers quote it


def test_chains_within_chains_are_refused_before_they_are_too_deep_to_evaluate() -> None:
    text = "a" + "=a" * 70
    for _ in range(20):
        text = f"({text})" + "=a" * 70
    with pytest.raises(FilterSyntaxError, match="too many comparisons"):
        compile_sql(text)


def test_as_high_as_allowed_is_evaluated() -> None:
    text = "(" * 70 + "a = 'x'" + ") = TRUE" * 70
    assert compile_sql(text).evaluate({"a": "x"}) is True
    assert compile_sql("NOT " * 78 + "(a = 'x')").evaluate({"a": "x"}) is True


def test_a_number_of_more_digits_than_python_reads_is_refused() -> None:
    with pytest.raises(FilterSyntaxError, match="is above"):
        compile_sql("a = " + "9" * 5_000)


@pytest.mark.parametrize("digits", ["1" * 30_000 + "x", "0x" + "1" * 30_000 + "x", "1" * 30_000 + ".1x"])
def test_what_is_no_number_is_told_in_one_pass(digits: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match="input string"):
        java_double(digits)
    assert time.process_time() - began < 2  # backtracking took 20 s for 30,000 digits


TOKENS = "a b 1 2.5 'x' TRUE NULL NOT AND OR IN IS BETWEEN ( ) , = <> > <= + - * -- /* '"
words = st.lists(
    st.sampled_from(TOKENS.split()),
    max_size=14,
).map(" ".join)


@given(words, st.dictionaries(st.sampled_from("ab"), st.text(max_size=4)))
def test_any_text_compiles_or_is_refused_and_evaluates_or_errs(text: str, properties: dict[str, str]) -> None:
    try:
        expression = compile_sql(text)
    except FilterSyntaxError:
        return
    assert expression.matches(properties) in (True, False)
