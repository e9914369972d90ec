"""The loops that a broker wakes when it has something for them to do."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen


def _nothing() -> None:
    return


@frozen
class Wakeups:
    """The loops of a service that a broker wakes, by their names in the service's tree. They are called
    often, and must not block. Without a service there are none: whoever drives the broker calls `step_waits`,
    `step_schedule` and `flushed`, and what has to be done beside the loop is done at once.
    """

    waits: Callable[[], None] = _nothing
    schedule: Callable[[], None] = _nothing
    reput: Callable[[], None] = _nothing
    flush: Callable[[], None] = _nothing
    follower: Callable[[], None] = _nothing
    register: Callable[[], None] = _nothing
    new_topics: Callable[[], None] | None = None
    long_answers: Callable[[], None] | None = None
    clean: Callable[[], None] | None = None
