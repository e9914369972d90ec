"""Selectors of JMS: syntax, three values, types, and texts that are none. Needs no extra."""

from __future__ import annotations

import time
from typing import Any

import pytest
from rmq_amqp.selectors import InvalidSelector, Selector

VALUES: dict[str, Any] = {
    "n": 3,
    "f": 0.5,
    "s": "abc",
    "yes": True,
    "no": False,
    "quoted": "it's",
    "percent": "10%",
    "a.b": 1,
}

TRUE = """
n = 3|n = 3.0|n <> 4|n > 2.5|n >= 3|n < 4|n <= 3|3 = n|n * 2 + 1 = 7|n / 2 = 1|-n = -3|- -n = 3|n - 1 - 1 = 1
2 + 2 * 3 = 8|(2 + 2) * 3 = 12|f = 0.5|f = 5E-1
f < 1|n BETWEEN 3 AND 4|n NOT BETWEEN 4 AND 5|s = 'abc'|s <> 'x'
s IN ('x', 'abc')|s NOT IN ('x')|s LIKE 'a%'|s LIKE '_b_'
s LIKE '%'|s LIKE 'abc'|s NOT LIKE 'b%'|quoted = 'it''s'
percent LIKE '10!%' ESCAPE '!'|missing IS NULL|n IS NOT NULL|yes|yes = TRUE|no = FALSE|NOT no|yes AND n = 3
missing = 1 OR n = 3|NOT (n = 4)|a.b = 1|s in ('x') or yes
not no and yes|no OR no OR yes|s LIKE '%b%'|s LIKE 'a%c'
"""

NOT_TRUE = """
n = 4|missing = 1|missing <> 1|NOT missing = 1|missing BETWEEN 1 AND 2|missing IN ('a')|missing NOT IN ('a')
missing LIKE '%'|missing NOT LIKE '%'|s = 3|n = '3'|s > 'a'
yes = 'true'|yes = 1|yes > no|n / 0 = 1|no|s LIKE 'ab'
percent LIKE '11!%' ESCAPE '!'|n IS NULL|missing OR no|yes AND missing = 1|NOT yes|s + 1 = 2|s|n|s LIKE 'c%a'
"""

NONE = """
n =|= 3|n = = 3|n BETWEEN 3|s IN ()|s IN (1)|s LIKE 3|s LIKE 'a' ESCAPE 'ab'|(n = 3|n = 3)|'abc|n = 3 AND|NOT
n IS 3|s NOT = 'x'|#|n = 3 n = 4|AND|s IN ('a' 'b')
"""


def rows(table: str) -> list[str]:
    return [text for line in table.strip("\n").split("\n") for text in line.split("|")]


@pytest.mark.parametrize("text", rows(TRUE))
def test_selects(text: str) -> None:
    assert Selector(text).selects(VALUES.get)


@pytest.mark.parametrize("text", rows(NOT_TRUE))
def test_does_not_select(text: str) -> None:
    assert not Selector(text).selects(VALUES.get)


@pytest.mark.parametrize("text", [*rows(NONE), "", "(" * 100 + "n" + ")" * 100, "n = " + "1" * 10_000])
def test_is_no_selector(text: str) -> None:
    with pytest.raises(InvalidSelector):
        Selector(text)


def test_a_pattern_takes_no_time_without_end() -> None:
    selector = Selector("s LIKE '" + "%a" * 2_000 + "b'")
    began = time.process_time()
    assert not selector.selects({"s": "a" * 4_000}.get)
    assert time.process_time() - began < 5


def test_a_long_chain_of_operators_is_no_recursion() -> None:
    for sign in "+-*/":
        text = sign.join(["1"] * 4_000)
        assert not Selector(f"{text} = a").selects(lambda name: None)
    assert Selector("10 - 2 - 3 = 5 AND 24 / 2 / 3 = 4 AND 1 - 2 * 2 + 3 = 0").selects(lambda name: None)
