"""Rules for all calls of an application: the docstrings, and the twin without async."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.client import blocking

KINDS = [
    kind
    for name in rmq.__all__
    if inspect.isclass(kind := getattr(rmq, name)) and kind.__module__.startswith("rmq.client")
]


def async_methods() -> Iterator[Any]:
    for kind in KINDS:
        for name, method in vars(kind).items():
            if inspect.iscoroutinefunction(method) and not name.startswith("_"):
                yield pytest.param(method, id=f"{kind.__name__}.{name}")


@pytest.mark.parametrize("method", list(async_methods()))
def test_every_call_says_what_its_cancellation_leaves(method: Any) -> None:
    assert "ancelled" in inspect.getdoc(method)


def test_blocks_and_loops_say_it_where_they_are_described() -> None:
    described = (rmq.Delivery, rmq.Transaction, rmq.Consumer.__anext__, rmq.Consumer.__aenter__)
    assert [one for one in described if "ancelled" not in (one.__doc__ or "")] == []


PAIRS = [
    (rmq.Client, blocking.Client),
    (rmq.Producer, blocking.Producer),
    (rmq.TransactionalProducer, blocking.TransactionalProducer),
    (rmq.Consumer, blocking.Consumer),
    (rmq.PullConsumer, blocking.PullConsumer),
    (rmq.Delivery, blocking.Delivery),
]
OF_THE_LOOP = {
    "Client": {"config", "run"},  # the second door is for those who have a task group
    # for those who bring their own packing, and for one task that sends much: the twin has send_many
    "Producer": {"send_packed", "group", "pipeline"},
    "TransactionalProducer": {"check", "send_packed", "group", "pipeline"},
    "Consumer": {"group", "take_now"},  # which the twin itself calls
    "PullConsumer": {"group", "pull_raw", "raw_requests", "recorded"},
    "Delivery": {"begin"},  # likewise
}
CALLED_THERE = {"start": "open", "aclose": "close"}


@pytest.mark.parametrize(
    ("asynchronous", "twin"), PAIRS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}"
)
def test_the_twin_without_async_has_the_same_names(asynchronous: type, twin: type) -> None:
    names = {name for name in dir(asynchronous) if not name.startswith("_")}
    names = {CALLED_THERE.get(name, name) for name in names}
    missing = names - set(dir(twin)) - OF_THE_LOOP[asynchronous.__name__]
    assert missing == set()


@pytest.mark.parametrize(
    ("asynchronous", "twin"), PAIRS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}"
)
def test_the_twin_without_async_takes_the_same_arguments(asynchronous: type, twin: type) -> None:
    names = [name for name in vars(twin) if inspect.isfunction(getattr(asynchronous, name, None))]
    names = [name for name in names if not name.startswith("_")]
    assert names
    for name in names:
        there, here = inspect.signature(getattr(asynchronous, name)), inspect.signature(getattr(twin, name))
        assert list(here.parameters.values()) == list(there.parameters.values()), name
        assert inspect.getdoc(getattr(twin, name)), name


def test_types_are_shipped() -> None:
    assert (pathlib.Path(rmq.__file__).parent / "py.typed").exists()
