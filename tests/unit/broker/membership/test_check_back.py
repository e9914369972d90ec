"""The producer that is asked for the end of a half message."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from rmq.broker.membership.check_back import CheckBack
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.testing.front import Wire

REQUEST = Command.request(RequestCode.CHECK_TRANSACTION_STATE, None, oneway=True)


class Group:
    """A producer group of many members, and the looks at their permissions."""

    def __init__(self, members: int) -> None:
        self.wires = [Wire(f"10.0.0.{number}:1") for number in range(members)]
        self.able = set(self.wires)
        self.looks = 0

    def check_back(self) -> CheckBack:
        clients: Any = SimpleNamespace(
            producers=lambda group: [SimpleNamespace(connection=one) for one in self.wires]
        )
        hooks: Any = SimpleNamespace(may_act_for=self._may_act, may_publish=lambda wire, topic: True)
        return CheckBack(clients, Random(7), lambda: hooks)

    def _may_act(self, wire: Wire, account: str) -> bool:
        self.looks += 1
        return wire in self.able


def test_any_member_that_may_is_asked() -> None:
    group = Group(3)
    check_back = group.check_back()
    assert all(check_back.ask("g", "a", "t", REQUEST) for _ in range(100))
    assert all(len(wire.take()) > 10 for wire in group.wires)
    group.able = {group.wires[1]}
    assert all(check_back.ask("g", "a", "t", REQUEST) for _ in range(10))
    assert [len(wire.take()) for wire in group.wires] == [0, 10, 0]
    group.able = set()
    assert not check_back.ask("g", "a", "t", REQUEST)
    assert not Group(0).check_back().ask("g", "a", "t", REQUEST)


def test_not_all_members_of_a_large_group_are_looked_at() -> None:
    group = Group(200)
    check_back = group.check_back()
    for _ in range(100):
        check_back.ask("g", "a", "t", REQUEST)
    assert group.looks == 100
