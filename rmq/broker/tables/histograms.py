"""Histograms of a broker: durations of writes and waits, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import Factory, define

from rmq.metrics import Histogram

if TYPE_CHECKING:
    pass


@define
class Histograms:
    """Figures that are counted as they happen; all other metrics are read from the tables on demand."""

    write: Histogram = Factory(Histogram)
    """Time from the arrival of a send until the log has the message, for each message."""
    flush: Histogram = Factory(Histogram)
    """A sync of the log."""
    flush_wait: Histogram = Factory(Histogram)
    """Waits of acknowledgements for the disk."""
    replication_wait: Histogram = Factory(Histogram)
    """Waits of acknowledgements for a slave."""
    loop_lag: Histogram = Factory(Histogram)
    """Delays of the event loop: its lateness for due tasks, and the time of its rounds."""
