"""Replica: a broker's side of a set with controllers: its epoch, its lease, the offsets at which epochs begin
in its log, and how far it may acknowledge.

All of these rules are needed:

- A master acts only while its lease lasts. The lease counts from the request for it, less the drift of two
  clocks.
- The offsets at which epochs begin are kept beside the log. Two logs are equal up to the end of the last
  epoch that both have, in the shorter log: a replica cuts its log at that end before it follows another
  master.
- Each report of a slave names its epoch; a report of another epoch does not count.
- A message is acknowledged when all replicas in sync have it on their disks: the replicas in sync of the set
  that the controllers know, and of each proposed set that may still take effect.
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
    """A broker's knowledge of its set. `drift` is that of `Timing`. `lag_s`: a replica that has not caught up
    for so many seconds leaves the in-sync set. `now` is in seconds of a clock that goes on while the machine
    sleeps.

    `broker_set` is the newest set from the controllers, `epoch` the epoch that this broker leads or follows.
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
        self.longest_lease_s = 0.0
        """Seconds of the longest lease that may be valid, by the answers of the controllers."""
        self._longest_until = -math.inf
        self.has_stepped_down = False
        self._reach: dict[int, int] = {}
        self._caught_up_at: dict[int, float] = {}
        self._proposed: set[tuple[int, ...]] = set()

    # ---- sets and leases of the controllers ----

    def take_set(self, broker_set: BrokerSet) -> bool:
        """Take a set of the controllers. Return whether it has a new epoch, which `lead` or `follow` must
        begin.

        An older set is ignored. A set in which this master's epoch has a replica in sync that the master
        never proposed comes from an old table of the controllers, and is ignored too; the known set then gets
        a later version, which the controllers are to adopt.
        """
        known = self.broker_set
        if known is not None and (broker_set.epoch, broker_set.version) < (known.epoch, known.version):
            return False
        is_ours = known is not None and self._leads(known) and broker_set.epoch == known.epoch
        if known is not None and is_ours and not set(broker_set.in_sync).issubset(self._possible(known)):
            self.broker_set = evolve(known, version=broker_set.version + 1)
            return False
        if known is None or (broker_set.epoch, broker_set.version) > (known.epoch, known.version):
            self._proposed.clear()  # a proposal on another version can no longer take effect
        self.broker_set = broker_set
        return broker_set.epoch > self.epoch

    def lease(self, epoch: int, asked_at: float, lease_s: float) -> None:
        """Take a lease of the controllers for an epoch. It counts from `asked_at`, the time of the
        request."""
        if epoch == self.epoch and not self.has_stepped_down:
            self._lease_until = max(self._lease_until, asked_at + lease_s * (1 - self._drift))

    def take_lease_length(self, lease_s: float, now: float) -> None:
        """Take the length of leases from any answer of the controllers."""
        if lease_s >= self.longest_lease_s or now >= self._longest_until:
            self.longest_lease_s, self._longest_until = lease_s, now + lease_s

    def step_down(self) -> None:
        """Stop acting in this epoch, whatever the controllers answer. Called before the controllers are
        informed."""
        self.has_stepped_down, self._lease_until = True, -math.inf

    # ---- roles ----

    def lead(self, epoch: int, end: int, now: float) -> None:
        """Begin an epoch as its master, with a log that ends at `end` on the disk. The owner saves `epochs`
        before it asks for the lease."""
        assert self.broker_set is not None, "no set is known"
        self.epoch, self.epochs = epoch, begun(self.epochs, epoch, end)
        self._lease_until, self.has_stepped_down = -math.inf, False
        self._reach, self._proposed = {}, set()
        self._caught_up_at = dict.fromkeys(self.broker_set.in_sync, now)

    def follow(self, epoch: int, epochs: Epochs) -> None:
        """Follow the master of an epoch. `epochs` are the master's; our log was cut to the common end, also
        on the disk, so that it is a part of the master's log even after a crash."""
        self.epoch, self.epochs = epoch, epochs
        self._lease_until, self.has_stepped_down = -math.inf, False

    def is_master(self, now: float) -> bool:
        """True if this replica may take and acknowledge messages now."""
        known = self.broker_set
        return known is not None and self._leads(known) and now < self._lease_until

    def _leads(self, broker_set: BrokerSet) -> bool:
        return broker_set.master == self.number and broker_set.epoch == self.epoch

    # ---- a master: the replicas in sync, the acknowledged messages ----

    def report(self, number: int, epoch: int, reach: int, end: int, now: float) -> None:
        """Take a slave's report: the end of its log on the disk; ours ends at `end`."""
        if epoch == self.epoch:
            self._reach[number] = max(reach, self._reach.get(number, 0))
            if reach >= end:
                self._caught_up_at[number] = now

    def left(self, number: int) -> None:
        """Note a slave's graceful shutdown: acknowledgements need not wait for it until it has caught up
        again."""
        self._caught_up_at.pop(number, None)

    def awaited(self) -> frozenset[int]:
        """Numbers of the replicas that must have a message before it is acknowledged."""
        assert self.broker_set is not None, "no set is known"
        return self._possible(self.broker_set)

    def _possible(self, broker_set: BrokerSet) -> frozenset[int]:
        return frozenset(broker_set.in_sync).union(*self._proposed)

    def ack_limit(self, flushed: int, now: float, *, least: int = 1) -> int:
        """The offset up to which messages are acknowledged now; `flushed` is our own disk. With fewer than
        `least` replicas in sync, and without a lease, it does not grow."""
        known = self.broker_set
        if known is not None and self.is_master(now) and len(known.in_sync) >= least:
            self.acknowledged = max(self.acknowledged, min(flushed, self._awaited_reach(flushed)))
        return self.acknowledged

    def confirm(self, flushed: int, now: float) -> int | None:
        """Compute the high watermark of a master again, and return it. Unlike the acknowledgement limit it
        does not begin at the end of the log with which an epoch begins."""
        agreed = self.agreed(flushed, now)
        if agreed is not None:
            self.high_watermark = max(self.high_watermark or 0, agreed)
        return self.high_watermark

    def agreed(self, flushed: int, now: float) -> int | None:
        """The end of the log that all awaited replicas have reported in this epoch; None unless this broker
        is the master."""
        return min(flushed, self._awaited_reach(flushed)) if self.is_master(now) else None

    def _awaited_reach(self, flushed: int) -> int:
        """The end of the log that all awaited replicas have; `flushed` when none is awaited."""
        return min((self._reach.get(one, 0) for one in self.awaited() - {self.number}), default=flushed)

    def change(self, flushed: int, now: float) -> tuple[int, ...] | None:
        """The change of the in-sync set to propose; None when the set is right. From now on acknowledgements
        wait for each replica that might join, and still for each that might leave. The same set again, as
        another version, withdraws an earlier proposal; so the owner calls this only when it waits for no
        answer."""
        known = self.broker_set
        if known is None or not self.is_master(now):
            return None
        needed = {self.number}
        for number in known.replicas:
            is_behind = now - self._caught_up_at.get(number, -math.inf) > self._lag_s
            has_all = self._reach.get(number, -1) >= max(self.acknowledged, self.high_watermark or 0)
            if not is_behind and (number in known.in_sync or has_all):
                needed.add(number)
        found = tuple(sorted(needed))
        if found == known.in_sync and not self._proposed:
            return None
        self._proposed.add(found)
        return found
