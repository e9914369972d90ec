"""A table of broker sets for tests: a set of three replicas, commands, heartbeats."""

from __future__ import annotations

from rmq.controller.heartbeat import Heartbeat
from rmq.controller.sets import (
    AlterInSync,
    BrokerSet,
    BrokerSets,
    Command,
    Outcome,
    Register,
    Replica,
    encode,
)


def replica(identity: str, life: int = 1) -> Replica:
    return Replica(identity, life, f"{identity}:10911", f"{identity}:10912")


def register(identity: str, life: int = 1, *, is_founder: bool = True, name: str = "s") -> Register:
    return Register("c", name, replica(identity, life), is_founder)


def do(sets: BrokerSets, *commands: Command) -> Outcome:
    outcome = Outcome()
    for command in commands:
        outcome = sets.apply(encode(command))
    return outcome


def three() -> tuple[BrokerSets, BrokerSet]:
    """A set of three replicas in sync, the first its master."""
    sets = BrokerSets()
    outcome = do(sets, register("a"), register("b"), register("c"), AlterInSync("s", 1, 1, (1, 2, 3)))
    assert outcome.broker_set is not None
    return sets, outcome.broker_set


def heartbeat(number: int, epoch: int = 1, reach: int = 0, life: int = 1) -> Heartbeat:
    return Heartbeat("s", number, life, epoch, reach)
