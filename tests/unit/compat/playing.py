"""Programs of rocketmq-client-python, run here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rmq.client import blocking
from tests.unit.compat import programs

SECONDS = 60
"""More than any wait takes; a wait that lasts so long has failed."""


def play(program: str, names: str, topic: str, **given: object) -> None:
    """Run a moved program."""
    space: dict[str, Any] = {"name_srv": names, "topic": topic, **given}
    exec(compile(programs.moved(program), "program", "exec"), space)


def pulled(names: str, topic: str) -> list[bytes]:
    """The bodies of all messages of a topic."""
    with blocking.connect(names) as client, client.pull_consumer("lookers") as puller:
        return sorted(
            message.body
            for queue in puller.message_queues(topic)
            for message in puller.pull(queue, 0).messages
        )


def gathering(count: int) -> tuple[list[Any], Callable[[Any], None], Callable[[], bool]]:
    """A list, a function that adds to it, and a wait until it has `count` entries."""
    found: list[Any] = []
    done = threading.Event()

    def add(one: Any) -> None:
        found.append(one)
        if len(found) >= count:
            done.set()

    return found, add, lambda: done.wait(SECONDS)
