"""Metrics of this process, by prometheus-client."""

from __future__ import annotations


class ProcessMetrics:
    """Metrics of this process by the client library. Raises ImportError without the library."""

    def __init__(self) -> None:
        from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
        from prometheus_client.registry import CollectorRegistry

        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, GCCollector, PlatformCollector):
            collector(registry=self._registry)

    def text(self) -> bytes:
        """The process's part of the page. It counts all open descriptors: call this in a thread."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
