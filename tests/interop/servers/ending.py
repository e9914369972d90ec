"""Ends of servers."""

from __future__ import annotations

from tests.interop.rocketmq import Process


def end(broker: Process, how: str) -> None:
    """End a broker cleanly or by SIGKILL."""
    if how == "kill":
        broker.kill()
    else:
        assert broker.stop() in (0, 143)  # a JVM reports the signal
