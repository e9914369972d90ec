"""Errors: the text says what and where, the class says what to do about it."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

import rmq
from rmq import errors
from rmq.errors import (
    AccessDenied,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    CorruptRecord,
    InvalidName,
    NoPermission,
    NoRoute,
    PortInUse,
    RequestTimeout,
    ResponseError,
    RmqError,
    SendFailed,
    ServiceNotAvailable,
    StoreError,
    StoreLocked,
    SystemBusy,
    SystemFailure,
    TopicNotExist,
    for_code,
)
from rmq.protocol.codes import ResponseCode

NEEDS_EXTRAS = {
    "rmq.client.observability.otel",
    "rmq.__main__",
    "rmq.broker.__main__",
    "rmq.namesrv.__main__",
}


def test_every_error_is_an_rmq_error() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 30
    assert all(issubclass(kind, RmqError) for kind in kinds)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, SystemFailure),
        (2, SystemBusy),
        (14, ServiceNotAvailable),
        (16, NoPermission),
        (17, TopicNotExist),
        (26, errors.SubscriptionGroupNotExist),
    ],
)
def test_a_response_code_picks_its_class(code: int, kind: type[ResponseError]) -> None:
    error = for_code(code, "why", "127.0.0.1:10911")
    assert type(error) is kind
    assert (error.code, error.remark, error.address) == (code, "why", "127.0.0.1:10911")


def all_kinds() -> list[type[RmqError]]:
    for module in pkgutil.walk_packages(rmq.__path__, "rmq."):
        if module.name not in NEEDS_EXTRAS and not module.name.startswith("rmq.spark"):
            importlib.import_module(module.name)
    found: dict[type[RmqError], None] = {}
    waiting: list[type[RmqError]] = [RmqError]
    while waiting:
        kind = waiting.pop()
        found |= {kind: None} if kind.__module__.startswith("rmq.") else {}
        waiting += kind.__subclasses__()
    return list(found)


def test_every_kind_says_whether_to_try_again_and_what_to_do() -> None:
    kinds = [kind for kind in all_kinds() if kind is not RmqError]
    assert len(kinds) > 35
    assert {type(kind.retriable) for kind in kinds} == {bool}
    assert [kind.__name__ for kind in kinds if not is_one_sentence(kind.hint)] == []
    assert [kind.__name__ for kind in kinds if not isinstance(kind.broker, str)] == []


def is_one_sentence(hint: object) -> bool:
    return isinstance(hint, str) and 10 < len(hint) < 110 and hint[0].islower() and hint[-1] not in ".!"


@pytest.mark.parametrize("code", [code for code in ResponseCode if code != ResponseCode.SUCCESS])
def test_every_response_code_says_what_to_do(code: ResponseCode) -> None:
    error = for_code(code, "why", "127.0.0.1:10911")
    assert is_one_sentence(error.hint), error.hint
    assert (error.broker, error.code) == ("127.0.0.1:10911", code)
    own = code not in (200, 201, 202)  # a client says these of a transaction, and no server
    assert (error.hint != ResponseError.hint) is own


@pytest.mark.parametrize(
    ("error", "broker"),
    [
        (ConnectFailed("h:1", "refused"), "h:1"),
        (ConnectionLost("h:1"), "h:1"),
        (RequestTimeout("h:1", 310, 3.0), "h:1"),
        (SendFailed([("a", ConnectionLost("h:1"), 0.1)]), "a"),
        (NoRoute("T"), ""),
    ],
)
def test_what_went_wrong_on_the_way_may_be_tried_again(error: RmqError, broker: str) -> None:
    assert (error.retriable, error.broker) == (True, broker)
    assert is_one_sentence(error.hint)


def test_an_unknown_code_is_a_plain_response_error() -> None:
    error = for_code(4711, None)
    assert type(error) is ResponseError
    assert (error.code, error.remark, error.address) == (4711, "", "")
    assert "4711" in str(error)


def test_what_the_java_producer_sends_again_is_retriable() -> None:
    """DefaultMQProducer.retryResponseCodes of 4.9.7, and SYSTEM_BUSY, which another broker may take."""
    java = {17, 14, 1, 16, 204, 205}
    assert {code for code in range(400) if for_code(code).retriable} == java | {2}


def test_only_a_missing_topic_asks_for_a_new_route() -> None:
    assert {code for code in range(400) if for_code(code).refresh_route} == {17}


def test_codes_with_a_class_exist_in_rocketmq(golden: Path) -> None:
    constants = json.loads((golden / "codes.json").read_text())["constants"]
    known = set(constants["ResponseCode"]["values"].values())
    known |= set(constants["RemotingSysResponseCode"]["values"].values())
    assert {code for code in range(400) if type(for_code(code)) is not ResponseError} <= known


def test_a_response_error_says_who_what_and_why() -> None:
    text = str(for_code(17, "topic[T] not exist", "10.0.0.1:10911"))
    assert "10.0.0.1:10911" in text
    assert "TopicNotExist" in text
    assert "17" in text
    assert "topic[T] not exist" in text
    assert "autoCreateTopicEnable" in for_code(17).hint


def test_a_gate_refuses_with_no_permission() -> None:
    assert AccessDenied(remark="no").code == NoPermission.code == 16
    assert type(for_code(16)) is NoPermission


def test_builtin_kinds() -> None:
    assert isinstance(RequestTimeout("h:1", 310, 3.0), TimeoutError)
    assert isinstance(ConnectFailed("h:1", "refused"), ConnectionError)
    assert isinstance(ConnectionLost("h:1"), ConnectionError)
    assert isinstance(PortInUse("h:1"), OSError)
    assert isinstance(InvalidName("topic", "x/y", "why"), ValueError)
    assert isinstance(CorruptRecord("p", 1, "why"), StoreError)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ConfigError("listenPort", "x", "a number", "broker.conf"),
            ["listenPort", "'x'", "a number", "broker.conf"],
        ),
        (InvalidName("topic", "a/b", "only letters"), ["topic", "'a/b'", "only letters"]),
        (ConnectFailed("h:1", "refused"), ["h:1", "refused"]),
        (ConnectionLost("h:1", "reset"), ["h:1", "reset"]),
        (RequestTimeout("h:1", 310, 1.5), ["h:1", "310", "1.5 s"]),
        (NoRoute("T", ["n:9876"]), ["'T'", "n:9876"]),
        (StoreLocked("/data"), ["/data", "storePathRootDir"]),
        (PortInUse("h:1"), ["h:1", "another port"]),
        (CorruptRecord("/data/0", 12, "bad size"), ["/data/0", "12", "bad size"]),
    ],
)
def test_texts(error: RmqError, words: list[str]) -> None:
    assert [word for word in words if word not in str(error)] == []


def test_the_last_attempt_is_the_cause_of_a_failed_send() -> None:
    first, last = ConnectionLost("a:1"), for_code(14, "disk full", "b:1")
    error = SendFailed([("a", first, 0.1), ("b", last, 0.25)])
    assert error.__cause__ is last
    assert error.attempts == [("a", first, 0.1), ("b", last, 0.25)]
    assert "2 attempt(s)" in str(error)
    assert "disk full" in str(error)
    assert error.hint == last.hint
