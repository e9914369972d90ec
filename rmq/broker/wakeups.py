"""Wakeups: callbacks by which a broker wakes the loops of its service when work is due."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


def _nothing() -> None:
    return


@frozen
class Wakeups:
    """Callbacks that wake the loops, by their names in the service's tree. They are called often, and must
    not block. A broker without a service has no loops: its owner calls `Steps` and
    `on_synced`; work whose callback is None is done at once, in the middle of a chunk."""

    deadlines: Callable[[], None] = _nothing
    schedule: Callable[[], None] = _nothing
    reput: Callable[[], None] = _nothing
    flush: Callable[[], None] = _nothing
    follower: Callable[[], None] = _nothing
    register: Callable[[], None] = _nothing
    new_topics: Callable[[], None] | None = None
    sliced_answers: Callable[[], None] | None = None
    routes: Callable[[], None] | None = None
    clean: Callable[[], None] | None = None
    deferred_saves: Callable[[], None] | None = None
