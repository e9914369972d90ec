"""Wakeups: the loops of a service that a broker wakes when it has something for them to do."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


def _nothing() -> None:
    return


@frozen
class Wakeups:
    """What wakes each loop, by its name in the service's tree. The callbacks are called often, and must not
    block. A broker without a service wakes nobody: its owner calls `step_deadlines`, `step_schedule` and
    `on_synced`; and what has None here is done at once, in the middle of a chunk.
    """

    deadlines: Callable[[], None] = _nothing
    schedule: Callable[[], None] = _nothing
    reput: Callable[[], None] = _nothing
    flush: Callable[[], None] = _nothing
    follower: Callable[[], None] = _nothing
    register: Callable[[], None] = _nothing
    new_topics: Callable[[], None] | None = None
    sliced_answers: Callable[[], None] | None = None
    clean: Callable[[], None] | None = None
    deferred_saves: Callable[[], None] | None = None
