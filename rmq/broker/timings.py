"""How long things took in a broker, in seconds."""

from __future__ import annotations

from attrs import Factory, define

from rmq.metrics import Histogram


@define
class Timings:
    """What is counted when it happens; all other figures are read from the tables when somebody looks."""

    write: Histogram = Factory(Histogram)
    """From a send's arrival until it is in the log, for each message."""
    flush: Histogram = Factory(Histogram)
    """A sync of the log."""
    flush_wait: Histogram = Factory(Histogram)
    """How long an acknowledgement waited for the disk."""
    replication_wait: Histogram = Factory(Histogram)
    """How long an acknowledgement waited for a slave."""
