"""Replica: a broker's side of a controlled set: its epoch, its lease, where epochs begin in its log, and what
may be acknowledged.

The rules, of which each is needed:

- A master acts only while its lease lasts, counted from when it asked for it, less the drift of two clocks.
- Where an epoch begins in the log is kept beside the log. Two logs are the same up to the end of the last
  epoch that both have, in the shorter of them: a replica cuts its log there before it follows another master.
- Each report of a slave is of an epoch; those of another count for nothing.
- A message is acknowledged when all in sync have it on their disks: all of the set that the controllers know,
  and of each set that was proposed to them and may come to hold.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attrs import evolve

from rmq.controller.epochs import Epochs as Epochs
from rmq.controller.epochs import as_epochs as as_epochs
from rmq.controller.epochs import begun as begun
from rmq.controller.epochs import common_end as common_end

if TYPE_CHECKING:
    from rmq.controller.sets import BrokerSet


class Replica:
    """What a broker knows of its set. `drift` is that of `Timing`; `lag_s`: who has not caught up for so long
    is in sync no more. `now` is in seconds of a clock that goes on while the machine sleeps.

    `broker_set` is the newest that the controllers told, `epoch` the one that this broker leads or follows.
    """

    def __init__(self, number: int, epochs: Epochs, *, drift: float = 0.1, lag_s: float = 10.0) -> None:
        self.number = number
        self.epochs = epochs
        self.broker_set: BrokerSet | None = None
        self.epoch = 0
        self.acknowledged = 0
        self.high_watermark: int | None = None
        """Up to where all that are waited for have the log, now and in every later epoch, as far as this
        replica knows; None before it knows anything. Consumers read no further."""
        self._drift = drift
        self._lag_s = lag_s
        self._lease_until = -math.inf
        self.has_stepped_down = False
        self._reach: dict[int, int] = {}
        self._caught_up_at: dict[int, float] = {}
        self._proposed: set[tuple[int, ...]] = set()

    # ---- what the controllers say ----

    def tell(self, broker_set: BrokerSet) -> bool:
        """Take a set of the controllers; returns whether there is a new epoch, which `lead` or `follow` must
        begin. What is older than what is known is left aside, and so is what was not agreed on with this
        master: within its epoch nobody comes in sync but by its proposal, so the controllers' table was an
        old one. What is known gets a later version then, which they are to take over."""
        known = self.broker_set
        if known is not None and (broker_set.epoch, broker_set.version) < (known.epoch, known.version):
            return False
        is_ours = known is not None and self._leads(known) and broker_set.epoch == known.epoch
        if known is not None and is_ours and not set(broker_set.in_sync).issubset(self._possible(known)):
            self.broker_set = evolve(known, version=broker_set.version + 1)
            return False
        if known is None or (broker_set.epoch, broker_set.version) > (known.epoch, known.version):
            self._proposed.clear()  # what was proposed from another version never comes to hold now
        self.broker_set = broker_set
        return broker_set.epoch > self.epoch

    def lease(self, epoch: int, asked_at: float, lease_s: float) -> None:
        """The controllers let this replica act as master of an epoch, as an answer to what was asked then."""
        if epoch == self.epoch and not self.has_stepped_down:
            self._lease_until = max(self._lease_until, asked_at + lease_s * (1 - self._drift))

    def step_down(self) -> None:
        """Act no more in this epoch, whatever the controllers answer, before they are told so."""
        self.has_stepped_down, self._lease_until = True, -math.inf

    # ---- roles ----

    def lead(self, epoch: int, end: int, now: float) -> None:
        """Begin an epoch as its master, with a log that ends at `end` on the disk. The owner keeps `epochs`
        before it asks for the lease."""
        assert self.broker_set is not None, "no set is known"
        self.epoch, self.epochs = epoch, begun(self.epochs, epoch, end)
        self._lease_until, self.has_stepped_down = -math.inf, False
        self._reach, self._proposed = {}, set()
        self._caught_up_at = dict.fromkeys(self.broker_set.in_sync, now)

    def follow(self, epoch: int, epochs: Epochs) -> None:
        """Follow the master of an epoch, whose epochs these are, with a log that was cut to the common end,
        on the disk too: it is a part of the master's then, whatever of it a crash takes."""
        self.epoch, self.epochs = epoch, epochs
        self._lease_until, self.has_stepped_down = -math.inf, False

    def is_master(self, now: float) -> bool:
        """Whether it may take and acknowledge messages now."""
        known = self.broker_set
        return known is not None and self._leads(known) and now < self._lease_until

    def _leads(self, broker_set: BrokerSet) -> bool:
        return broker_set.master == self.number and broker_set.epoch == self.epoch

    # ---- a master: who is in sync, what is acknowledged ----

    def report(self, number: int, epoch: int, reach: int, end: int, now: float) -> None:
        """A slave says up to where it has the log on its disk; ours ends at `end`."""
        if epoch == self.epoch:
            self._reach[number] = max(reach, self._reach.get(number, 0))
            if reach >= end:
                self._caught_up_at[number] = now

    def left(self, number: int) -> None:
        """A slave has stopped in order: it need not be waited for until it has caught up again."""
        self._caught_up_at.pop(number, None)

    def awaited(self) -> frozenset[int]:
        """Who must have a message before it is acknowledged."""
        assert self.broker_set is not None, "no set is known"
        return self._possible(self.broker_set)

    def _possible(self, broker_set: BrokerSet) -> frozenset[int]:
        return frozenset(broker_set.in_sync).union(*self._proposed)

    def ack_limit(self, flushed: int, now: float, *, least: int = 1) -> int:
        """Up to where messages are acknowledged now; `flushed` is our own disk. With fewer than `least` in
        sync, and without a lease, no more than before."""
        known = self.broker_set
        if known is not None and self.is_master(now) and len(known.in_sync) >= least:
            self.acknowledged = max(self.acknowledged, min(flushed, self._awaited_reach(flushed)))
        return self.acknowledged

    def confirm(self, flushed: int, now: float) -> int | None:
        """A master: look again at up to where all have the log, and return it. Unlike what may have been
        acknowledged it does not begin at the end of the log that an epoch begins with."""
        agreed = self.agreed(flushed, now)
        if agreed is not None:
            self.high_watermark = max(self.high_watermark or 0, agreed)
        return self.high_watermark

    def agreed(self, flushed: int, now: float) -> int | None:
        """Up to where all that are waited for have said in this epoch that they have the log; None unless
        this is the master."""
        return min(flushed, self._awaited_reach(flushed)) if self.is_master(now) else None

    def _awaited_reach(self, flushed: int) -> int:
        """How far all others have it that are waited for; `flushed` when there are none."""
        return min((self._reach.get(one, 0) for one in self.awaited() - {self.number}), default=flushed)

    def change(self, flushed: int, now: float) -> tuple[int, ...] | None:
        """Who should be in sync, when that is not so: to be proposed to the controllers. From now on it is
        waited for who might come in, and still for who might go. The same again takes an earlier proposal
        back, by another version; so the owner calls this when it waits for no answer."""
        known = self.broker_set
        if known is None or not self.is_master(now):
            return None
        wanted = {self.number}
        for number in known.replicas:
            is_behind = now - self._caught_up_at.get(number, -math.inf) > self._lag_s
            has_all = self._reach.get(number, -1) >= max(self.acknowledged, self.high_watermark or 0)
            if not is_behind and (number in known.in_sync or has_all):
                wanted.add(number)
        found = tuple(sorted(wanted))
        if found == known.in_sync and not self._proposed:
            return None
        self._proposed.add(found)
        return found
