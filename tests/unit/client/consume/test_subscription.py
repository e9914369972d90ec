from __future__ import annotations

import json
import pathlib

import pytest

from rmq.client.consume.subscription import Sql, sql, subscription, subscriptions
from rmq.errors import ConfigError, InvalidName


def test_tag_expressions_mean_what_they_mean_in_java(golden: pathlib.Path) -> None:
    compared = 0
    for case in json.loads((golden / "subscription.json").read_text())["tag_expressions"]:
        text = case["in"]
        if text is None or "exception" in case or not (case["tagsSet"] or case["subString"] == "*"):
            continue
        if text.strip() == "*" and text != "*":
            continue  # Java takes " * " for a tag of that name; here it means all
        got = subscription("T", text, 1)
        assert got.sub_string == case["subString"]
        assert sorted(got.tags_set) == sorted(case["tagsSet"])
        assert sorted(got.code_set) == sorted(case["codeSet"])
        assert got.expression_type == "TAG"
        compared += 1
    assert compared > 15


@pytest.mark.parametrize("text", ["||", "|| ||"])
def test_an_expression_without_tags_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="subscription to T"):
        subscription("T", text, 1)


def test_sql_goes_to_the_broker_as_it_is() -> None:
    got = subscription("T", sql("a > 1"), 5)
    assert (got.sub_string, got.expression_type, got.sub_version) == ("a > 1", "SQL92", 5)
    assert got.tags_set == frozenset()


def test_empty_sql_is_refused() -> None:
    with pytest.raises(ConfigError, match="SQL92"):
        sql("  ")
    assert sql("a IS NULL") == Sql("a IS NULL")


def test_a_group_also_subscribes_to_its_retries() -> None:
    got = subscriptions({"T": "x"}, "g", 7, retry=True)
    assert got.keys() == {"T", "%RETRY%g"}
    assert got["%RETRY%g"].sub_string == "*"
    assert subscriptions({"T": "x"}, "g", 7, retry=False).keys() == {"T"}


def test_topics_are_checked() -> None:
    with pytest.raises(InvalidName, match="only letters"):
        subscriptions({"../x": "*"}, "g", 7, retry=True)
    with pytest.raises(ConfigError, match="at least one topic"):
        subscriptions({}, "g", 7, retry=True)
