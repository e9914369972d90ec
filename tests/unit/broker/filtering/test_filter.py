"""rmq.broker.filtering.filters: subscriptions against the captured vectors of the Java client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmq.broker.filtering import filters
from rmq.broker.filtering.filters import message_filter, tag_matcher
from rmq.broker.filtering.subscription import parse_subscription
from rmq.errors import ResponseError
from rmq.message import tags_code
from rmq.protocol.bodies import SubscriptionData

GOLDEN = Path(__file__).parents[3] / "golden"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "subscription.json").read_text())
UNPARSABLE = 23


@pytest.mark.parametrize("vector", VECTORS["tag_expressions"], ids=lambda vector: repr(vector["in"]))
def test_tag_expressions_give_what_java_gives(vector: dict[str, Any]) -> None:
    if "exception" in vector:
        with pytest.raises(ResponseError, match="names no tag") as caught:
            parse_subscription("TopicTest", vector["in"])
        assert caught.value.code == UNPARSABLE
        return
    made = parse_subscription("TopicTest", vector["in"])
    assert made.sub_string == vector["subString"]
    assert made.tags_set == set(vector["tagsSet"])
    assert made.code_set == set(vector["codeSet"])
    assert made.expression_type == vector["expressionType"]
    assert made.class_filter_mode is vector["classFilterMode"]


@pytest.mark.parametrize(
    "vector", VECTORS["build_with_type"], ids=lambda vector: f"{vector['in']} {vector['type']}"
)
def test_types_give_what_java_gives(vector: dict[str, Any]) -> None:
    if "exception" in vector:
        with pytest.raises(ResponseError, match="can't be null"):
            parse_subscription("TopicTest", vector["in"], vector["type"])
        return
    made = parse_subscription("TopicTest", vector["in"], vector["type"], sub_version=7)
    assert (made.sub_string, made.expression_type) == (vector["subString"], vector["expressionType"])
    assert made.tags_set == set(vector["tagsSet"])
    assert made.sub_version == 7


@pytest.mark.parametrize("expression", ["*", "", None])
def test_every_message_needs_no_matcher(expression: str | None) -> None:
    assert tag_matcher(parse_subscription("T", expression)) is None


def test_matcher_compares_codes() -> None:
    matches = tag_matcher(parse_subscription("T", "TagA || TagB"))
    assert matches is not None
    assert matches(tags_code("TagA"))
    assert matches(tags_code("TagB"))
    assert not matches(tags_code("TagC"))
    assert not matches(0)  # a message without tags


def test_matcher_takes_the_codes_that_the_client_sent() -> None:
    matches = tag_matcher(SubscriptionData("T", "TagA", frozenset({"TagA"}), frozenset({-5})))
    assert matches is not None
    assert matches(-5)
    assert not matches(tags_code("TagA"))


def test_an_expression_of_blanks_matches_nothing() -> None:
    matches = tag_matcher(parse_subscription("T", " || "))
    assert matches is not None
    assert not matches(0)


def test_sql_and_class_filters_pass_the_queue_units() -> None:
    assert tag_matcher(parse_subscription("T", "a > 1", "SQL92")) is None
    assert tag_matcher(SubscriptionData("T", "TagA", class_filter_mode=True)) is None


def test_equal_codes_are_told_apart_by_the_tags() -> None:
    subscription = parse_subscription("T", "AaAa")
    matches = tag_matcher(subscription)
    assert matches is not None
    assert matches(tags_code("BBBB"))


def test_message_filter_evaluates_sql() -> None:
    wanted = message_filter(parse_subscription("T", "a > 1 AND b = 'x'", "SQL92"))
    assert wanted is not None
    assert wanted({"a": "2", "b": "x"})
    assert not wanted({"a": "1", "b": "x"})
    assert not wanted({"b": "x"})
    assert message_filter(parse_subscription("T", "TagA")) is None


@pytest.mark.parametrize(("expression", "kind"), [("a >", "SQL92"), ("a > 1", "OTHER")])
def test_message_filter_refuses_what_it_cannot_compile(expression: str, kind: str) -> None:
    with pytest.raises(ResponseError) as caught:
        message_filter(parse_subscription("T", expression, kind))
    assert caught.value.code == UNPARSABLE


def test_no_type_means_tags() -> None:
    assert filters.is_tag_type(None)
    assert filters.is_tag_type("")
    assert not filters.is_tag_type("SQL92")
