"""Balance of brokers: a plan of moves of topics, with its state in a file, so that the next run continues an
interrupted one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import asdict, define, field

from rmq.errors import ConfigError, RmqError
from rmq.files import read_file, replace_file
from rmq.operate.placement import Move, Report, Step, moved

if TYPE_CHECKING:
    from rmq.client.admin import Admin

PLANNED, MOVING, DONE = "planned", "moving", "done"
_STATES: Final = (PLANNED, MOVING, DONE)
VERSION: Final = 1


def _skip(count: object) -> None:
    return


@define
class PlannedMove:
    """A move and its state: `planned`, `moving` or `done`. `note`: the result, or the missing part."""

    topic: str
    source: str
    goal: str
    messages: int
    state: str = PLANNED
    note: str = ""


@define
class BalancePlan:
    """The moves of one balance, and their file."""

    path: Path
    moves: list[PlannedMove] = field(factory=list)

    @classmethod
    def of(cls, path: Path, moves: Iterable[Move]) -> BalancePlan:
        """A new plan, not saved yet."""
        return cls(path, [PlannedMove(one.topic, one.source, one.goal, one.messages) for one in moves])

    @classmethod
    def load(cls, path: Path) -> BalancePlan | None:
        """The plan in a file; None without a file. Raises ConfigError for a file that is no plan, OSError."""
        data = read_file(path)
        if data is None:
            return None
        try:
            table = json.loads(data)
            if table["version"] != VERSION:
                raise ValueError(f"version {table['version']}")
            moves = [_move(row) for row in table["moves"]]
        except (ValueError, TypeError, KeyError) as error:
            text = f"the state of a balance, and not: {error!r}; remove the file to plan again"
            raise ConfigError("state", str(path), text) from None
        return cls(path, moves)

    def save(self) -> None:
        """Replace the file. Raises OSError."""
        table = {"version": VERSION, "moves": [asdict(one) for one in self.moves]}
        replace_file(self.path, json.dumps(table, indent=1).encode() + b"\n")

    @property
    def left(self) -> list[PlannedMove]:
        """The moves that are not done."""
        return [one for one in self.moves if one.state != DONE]


def _move(row: Any) -> PlannedMove:
    one = PlannedMove(**row)
    texts = (one.topic, one.source, one.goal, one.state, one.note)
    if not all(isinstance(text, str) for text in texts) or one.state not in _STATES:
        raise ValueError(f"a move of {str(row)[:80]}")
    return one


async def balance(
    admin: Admin,
    plan: BalancePlan,
    seconds: float,
    *,
    delete: bool = False,
    in_order: bool = False,
    parallel: int = 4,
    report: Report = _skip,
    step: Step = _skip,
) -> list[PlannedMove]:
    """Do the moves of a plan that are left, `parallel` at a time and each as `placement.moved` does it,
    within `seconds` each; return the moves that are still left, with the reasons in their notes. The file has
    each change of a state before the next request, so a run may end at any time. `step` is called after each
    move.

    Raises OSError when the file cannot be written.
    """
    waiting = iter(plan.left)

    async def work() -> None:
        for one in waiting:
            one.state = MOVING
            plan.save()
            report(f"{one.topic}: from {one.source} to {one.goal}")
            try:
                one.note = await moved(
                    *(admin, one.topic, one.source, one.goal, seconds),
                    delete=delete,
                    in_order=in_order,
                    report=partial(_report_topic, report, one.topic),
                )
            except RmqError as error:
                one.note = str(error)
            else:
                one.state = DONE
            plan.save()
            report(f"{one.topic}: {one.state}: {one.note}")
            step(1)

    plan.save()
    async with anyio.create_task_group() as tasks:
        for _ in range(parallel):
            tasks.start_soon(work)
    return plan.left


def _report_topic(report: Report, topic: str, line: str) -> None:
    report(f"{topic}: {line}")
