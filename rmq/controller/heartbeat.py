"""Heartbeats of brokers: controllers learn from them that a broker lives and how far its log reaches."""

from __future__ import annotations

from typing import Final

from attrs import frozen

UNKNOWN: Final = -1
"""The reach of a log that is not open yet; in `acted`: the sender's version does not report it."""
Point = tuple[int, int]
"""An epoch, and the end of a record that all replicas in sync had on their disks in it."""


@frozen
class Heartbeat:
    """State that a replica reports: the epoch that it follows, and `reach`, the physical offset up to which
    its log is flushed (UNKNOWN before the log is open).

    `resigned`: a master that has stepped down and acts no more in its epoch, whatever the controllers answer,
    so that another epoch may begin at once. `leaving`: the replica has stopped, and acknowledgements need not
    wait for it. `hangs`: the replica's disk has taken no write for a while, so that the replica could not
    begin an epoch. `identity` is empty from an older version.

    `knows`: the epoch and version of the latest set that the replica knows. `acted`: the epoch that the
    replica has led or followed since its start, 0 for none. `confirmed`, from a master: the end of a record
    that all replicas in sync had on their disks, and the epoch in which they reported that end. Older
    versions send none of these three.

    `lease_s`: seconds of the longest lease that may be valid, by the controllers' answers to this replica; 0
    from an older version.
    """

    name: str
    number: int
    incarnation: int
    epoch: int = 0
    reach: int = 0
    resigned: bool = False
    leaving: bool = False
    hangs: bool = False
    identity: str = ""
    knows: tuple[int, int] = (0, 0)
    acted: int = UNKNOWN
    confirmed: Point = (0, 0)
    lease_s: float = 0.0
