"""Settlements: the outcomes of deliveries, collected, so that many acknowledgements make a single request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from rmq_amqp.conditions import EXPECTED

if TYPE_CHECKING:
    from rmq.errors import ResponseError
    from rmq.plugin import DoorHost

log = logging.getLogger("rmq.amqp")

HANDLES_MAX: Final = 1_000
"""Handles of one request."""

AGAIN_MS: Final = 5_000
"""Time to the redelivery of a message that could not become a dead letter."""

OnSettled = Callable[["Exception | None"], None]
"""Called when an acknowledgement is as safe as the broker's settings require, or with its refusal."""


class Settlements:
    """The settlements of a connection. `flush` sends; `wake()` starts the writing of answers."""

    def __init__(self, host: DoorHost, wake: Callable[[], None]) -> None:
        self._host = host
        self._wake = wake
        self._accepted: dict[tuple[str, str], list[tuple[str, OnSettled | None]]] = {}

    def accept(self, group: str, topic: str, handle: str, on_done: OnSettled | None = None) -> None:
        """Acknowledge a message."""
        self._accepted.setdefault((group, topic), []).append((handle, on_done))

    def flush(self) -> None:
        """Send the collected acknowledgements."""
        if not self._accepted:
            return
        accepted, self._accepted = self._accepted, {}
        for (group, topic), pairs in accepted.items():
            for start in range(0, len(pairs), HANDLES_MAX):
                part = pairs[start : start + HANDLES_MAX]
                try:
                    self._host.acknowledge(
                        group, topic, [handle for handle, _ in part], partial(self._done, topic, part)
                    )
                except EXPECTED as error:
                    # The messages are redelivered when their connection ends.
                    log.warning("%d messages of %s are not acknowledged: %s", len(part), topic, error)
                    for _, on_done in part:
                        if on_done is not None:
                            on_done(error)
                    self._wake()

    def _done(
        self,
        topic: str,
        pairs: Sequence[tuple[str, OnSettled | None]],
        outcomes: Sequence[ResponseError | None],
    ) -> None:
        for (_, on_done), error in zip(pairs, outcomes, strict=True):
            if error is not None:
                log.info("a message of %s is not acknowledged: %s", topic, error)
            if on_done is not None:
                on_done(error)
        self._wake()

    def nack(self, group: str, topic: str, handles: Sequence[str], *, counts: bool) -> None:
        """Redeliver messages at once; without `counts` no attempt has failed."""
        self.flush()
        for start in range(0, len(handles), HANDLES_MAX):
            try:
                self._host.nack(group, topic, handles[start : start + HANDLES_MAX], 0, counts=counts)
            except EXPECTED as error:
                log.warning(
                    "messages of %s are released only at the end of their connection: %s", topic, error
                )
                return

    def dead_letter(self, group: str, topic: str, handle: str, *, was_seen: bool) -> None:
        """Make a message a dead letter. If that fails, for example on a full disk, the message is redelivered
        soon; without `was_seen` no attempt has failed."""
        self.flush()
        try:
            self._host.dead_letter(group, topic, [handle], lambda outcomes: self._wake())
        except EXPECTED as error:
            log.warning("a message of %s did not become a dead letter, and is redelivered: %s", topic, error)
            try:
                self._host.nack(group, topic, [handle], AGAIN_MS, counts=was_seen)
            except EXPECTED as refusal:
                log.warning(
                    "a message of %s is released only at the end of its connection: %s", topic, refusal
                )
