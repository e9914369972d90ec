"""Heartbeats of brokers, by which controllers know that they live and how far their logs reach."""

from __future__ import annotations

from typing import Final

from attrs import frozen

UNKNOWN: Final = -1
"""The reach of a log that is not open yet; of `acted`: the sender is of a version that does not say it."""
Point = tuple[int, int]
"""An epoch, and the end of a record that all in sync had on their disks in it."""


@frozen
class Heartbeat:
    """What a replica says of itself: the epoch that it follows, and the physical offset up to which its log
    is flushed, UNKNOWN before it has opened it. A master that `resigned` acts no more in its epoch, whatever
    it is answered: another epoch may begin at once. Who is `leaving` has stopped: others need not wait for
    it. The disk of one that `hangs` has taken nothing for a while: it could not begin an epoch. `identity` is
    the replica's, empty of an older version.

    `knows` is the epoch and version of the set that it was told last; `acted` the epoch that it has led or
    followed since it started, 0 for none yet; `confirmed` a master's: the end of a record that all in sync
    had on their disks, and the epoch in which they said so. Older versions say none of the three."""

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
