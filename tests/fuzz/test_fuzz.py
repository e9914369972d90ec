"""No input ends a server or makes it grow: mutated requests, replication, files, filters, accounts, sockets.

`nox -s fuzz` gives RMQ_FUZZ_FRAMES of them (10,000,000) from RMQ_FUZZ_SEED (1) on; a small share runs always.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmq.broker.tables.offsets import Offsets
from rmq.protocol.command import Command
from rmq.server.process import return_large_blocks
from rmq.testing import MemoryNetwork
from tests.unit.remoting.serving import test_hostile
from tests.unit.remoting.transports import certificates

from .campaign import run
from .targets import (
    AccountFiles,
    Answers,
    Conversation,
    Fault,
    Filters,
    Lookups,
    Replication,
    Requests,
    Sockets,
    StoreFiles,
    Surprises,
    Target,
    watched,
)

FRAMES = int(os.environ.get("RMQ_FUZZ_FRAMES", "10_000_000"))
SEED = int(os.environ.get("RMQ_FUZZ_SEED", "1"))
GROWTH_MIB = 32


class Targets:
    """The targets of one era, each made when it is first wanted, with a folder of its own."""

    def __init__(self, folder: Path, surprises: Surprises) -> None:
        self._folder = folder
        self._surprises = surprises
        self._made: dict[str, Target] = {}

    def __call__(self, name: str) -> Target:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Target:
        place = self._folder / name.replace(" ", "-")
        place.mkdir(parents=True)
        match name:
            case "broker" | "broker with accounts":
                return Requests(place, self._surprises, acl=name != "broker")
            case "name server":
                return Lookups(self._surprises)
            case "filters":
                return Filters()
            case "answers":
                return Answers()
            case "replication":
                return Replication()
            case "accounts":
                return AccountFiles()
            case "store files":
                return StoreFiles()
        assert name == "sockets"
        return Sockets(certificates(place), _conversation(test_hostile.client_hello()))


def _conversation(hello: bytes) -> Conversation:
    async def converse(network: MemoryNetwork, address: str, seed: int) -> None:
        await test_hostile.attack(network, address, seed, hello)

    return converse


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The medium is not what is tried here, and waiting for it would take most of the time."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None, raising=False)


@pytest.mark.campaign
def test_millions_of_frames_meet_no_fault_and_leave_no_memory(tmp_path: Path) -> None:
    return_large_blocks()  # as each server does
    with watched() as surprises:
        result = run(SEED, FRAMES, lambda era: Targets(tmp_path / str(era), surprises), surprises, shows=True)
    print(f"\nseed {SEED}: {result.total:,} frames in {result.seconds:.0f} s", end="")
    print(
        f" ({result.total / result.seconds:,.0f}/s); {result.warm_mib:.0f} MiB after the first 100,000,",
        end="",
    )
    print(f" at most {result.most_mib:.0f}, {result.last_mib:.0f} at the end")
    for name, count in result.inputs.most_common():
        print(f"  {count:>12,} {name}")
    assert result.total == FRAMES
    assert result.most_mib - result.warm_mib < GROWTH_MIB or result.total < 200_000


SHARE = {
    "broker": 2_000,
    "broker with accounts": 2_000,
    "name server": 1_000,
    "filters": 1_000,
    "answers": 1_000,
    "replication": 200,
    "accounts": 60,
    "store files": 30,
    "sockets": 60,
}


@pytest.mark.parametrize("name", SHARE)
def test_some_frames_meet_no_fault(tmp_path: Path, name: str) -> None:
    with watched() as surprises:
        target = Targets(tmp_path, surprises)(name)
        target.feed(SHARE[name], Random(f"share/{name}"))
        surprises.check()


def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that a handler did not expect becomes an answer; it is a fault all the same."""
    lookup = Offsets._on_query

    def planted(self: Offsets, request: Command, connection: Any, now: int) -> Command:
        answer = lookup(self, request, connection, now)
        return answer.reply(0, "x" * (1 // min(1, answer.opaque % 3)))

    monkeypatch.setattr(Offsets, "_on_query", planted)
    with watched() as surprises, pytest.raises(Fault, match="ZeroDivisionError"):
        Targets(tmp_path, surprises)("broker").feed(2_000, Random("planted"))
