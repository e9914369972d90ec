"""The numbers equal those of RocketMQ 4.9.7."""

from __future__ import annotations

import json
import pathlib
from enum import Enum, StrEnum
from typing import Any

import pytest

from rmq.protocol import codes

ELSEWHERE = {"RequestCode", "ResponseCode"}
"""Enums that Java has as constants; other tests look at them."""


@pytest.fixture
def vectors(golden: pathlib.Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((golden / "codes.json").read_text())
    return content


def members(enum: Any) -> dict[str, Any]:
    plain = str if issubclass(enum, StrEnum) else int
    return {name: plain(member) for name, member in enum.__members__.items()}


def test_request_codes(vectors: dict[str, Any]) -> None:
    assert members(codes.RequestCode) == vectors["constants"]["RequestCode"]["values"]


def test_response_codes(vectors: dict[str, Any]) -> None:
    constants = vectors["constants"]
    expected = constants["RemotingSysResponseCode"]["values"] | constants["ResponseCode"]["values"]
    assert members(codes.ResponseCode) == expected


def test_every_enum(vectors: dict[str, Any]) -> None:
    for name, enum in vars(codes).items():
        if isinstance(enum, type) and issubclass(enum, Enum) and enum.__module__ == codes.__name__:
            java = vectors["enums"].get(name) or {"values": members(enum) if name in ELSEWHERE else None}
            assert members(enum) == java["values"], name


@pytest.mark.parametrize(
    ("source", "ours"),
    [
        (
            "MessageSysFlag",
            {
                "COMPRESSED_FLAG": codes.SYS_COMPRESSED,
                "MULTI_TAGS_FLAG": codes.SYS_MULTI_TAGS,
                "TRANSACTION_PREPARED_TYPE": codes.SYS_PREPARED,
                "TRANSACTION_COMMIT_TYPE": codes.SYS_COMMIT,
                "TRANSACTION_ROLLBACK_TYPE": codes.SYS_ROLLBACK,
                "BORNHOST_V6_FLAG": codes.SYS_BORNHOST_V6,
                "STOREHOSTADDRESS_V6_FLAG": codes.SYS_STOREHOST_V6,
                "COMPRESSION_TYPE_COMPARATOR": codes.SYS_COMPRESSION_MASK,
            },
        ),
        (
            "PullSysFlag",
            {
                "FLAG_COMMIT_OFFSET": codes.PULL_COMMIT_OFFSET,
                "FLAG_SUSPEND": codes.PULL_SUSPEND,
                "FLAG_SUBSCRIPTION": codes.PULL_SUBSCRIPTION,
            },
        ),
        ("TopicSysFlag", {"FLAG_UNIT": codes.TOPIC_UNIT, "FLAG_UNIT_SUB": codes.TOPIC_UNIT_SUB}),
        (
            "PermName",
            {
                "PERM_READ": codes.PERM_READ,
                "PERM_WRITE": codes.PERM_WRITE,
                "PERM_INHERIT": codes.PERM_INHERIT,
            },
        ),
    ],
)
def test_flags(vectors: dict[str, Any], source: str, ours: dict[str, int]) -> None:
    assert ours.items() <= vectors["constants"][source]["values"].items()


def test_what_we_say_of_ourselves(vectors: dict[str, Any]) -> None:
    current = vectors["MQVersion_current"]["4.9.7"]
    assert current["ordinal"] == codes.VERSION
    assert codes.MQVersion(codes.VERSION).name == current["name"]
    assert codes.LANGUAGE in codes.LanguageCode.__members__
    assert vectors["constants"]["MixAll"]["values"]["MASTER_ID"] == codes.MASTER_ID


def test_the_frame_flag_has_two_bits(vectors: dict[str, Any]) -> None:
    # Java names the bits: RPC_TYPE is the position of the response bit, RPC_ONEWAY that of the one-way bit.
    bits = vectors["constants"]["RemotingCommand"]["values"]
    assert 1 << bits["RPC_TYPE"] == codes.FLAG_RESPONSE
    assert 1 << bits["RPC_ONEWAY"] == codes.FLAG_ONEWAY
