"""Peers of a door."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.broker.doors import DoorPeer
from rmq.doors import TakenMessage
from rmq.errors import ResponseError
from rmq.testing.front import Wire
from tests.unit.broker.rig import Rig


class Stream(Wire):
    """The connection of a door."""

    has_proved = False


class Peer(DoorPeer):
    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.broker, "test", Stream())
        self.found: list[Sequence[TakenMessage] | ResponseError] = []
        self.outcomes: list[ResponseError | None] = []

    def handled(self, outcomes: Sequence[ResponseError | None]) -> None:
        self.outcomes += outcomes
