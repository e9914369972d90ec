"""Metrics for Prometheus, as a plug-in: `plugins = metrics`, then GET http://127.0.0.1:5557/metrics.

Needs the extra `metrics` (prometheus-client). Nothing is done for a message: what the broker counts anyway is
read when somebody scrapes. For a request two clock readings are taken, and for a refused one a counter moves.
Every metric is listed in docs/metrics.md.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from time import perf_counter
from typing import Final

import trio

from rmq.config import is_loopback
from rmq.errors import ConfigError
from rmq.metrics import Histogram, Metric, single
from rmq.plugin import Host, Peer, Plugin, PulledEvent
from rmq.profile import cluster_secret
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting import TcpNetwork, join_address
from rmq_metrics.http import serve
from rmq_metrics.text import Exposition

__all__ = ["MetricsPlugin"]

NO_REFUSALS: Final = frozenset(
    (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
)
"""Answers in the usual course of things."""

OTHER: Final = "other"
"""The label of every code that RocketMQ does not have: peers choose them, and each label is kept for good."""
_REQUESTS: Final = {int(code): code.name for code in RequestCode}
_REASONS: Final = {int(code): code.name for code in ResponseCode}

log = logging.getLogger("rmq.metrics")


class MetricsPlugin(Plugin):
    """Serves the metrics of the service that it runs in. Raises ConfigError without prometheus-client."""

    def __init__(self, config: Mapping[str, str], host: Host) -> None:
        super().__init__(config, host)
        self.address: str = getattr(host.config, "metrics_address", "127.0.0.1")
        self.port: int = getattr(host.config, "metrics_port", 5557)
        self.listens_on: list[str] = []
        self._token = _token(getattr(host.config, "metrics_token_file", ""))
        self._began = 0.0
        self._pulls = Histogram()
        self._refusals: Counter[tuple[str, str]] = Counter()
        try:
            self._exposition = Exposition()
        except ImportError:
            wanted = "no `metrics` until prometheus-client is installed: pip install 'rmq[metrics]'"
            raise ConfigError("plugins", "metrics", wanted) from None

    def listens(self) -> dict[str, str]:
        """The address for scrapes, and whether anybody there may read them."""
        where = join_address(self.address, self.port) if self.port else f"{self.address}, a free port"
        is_open = not self._token and not is_loopback(self.address)
        return {"metrics": f"{where}, for anybody (metricsTokenFile)" if is_open else where}

    def on_request(self, peer: Peer, command: Command) -> None:
        """Note when the request's handling begins."""
        self._began = perf_counter()

    def on_response(self, peer: Peer, command: Command, response: Command) -> None:
        """Count refusals."""
        if response.code not in NO_REFUSALS:
            request, reason = _REQUESTS.get(command.code, OTHER), _REASONS.get(response.code, OTHER)
            self._refusals[request, reason] += 1

    def on_pulled(self, event: PulledEvent) -> None:
        """Note how long it took to hand messages out: since the pull came, or the send that it waited for."""
        self._pulls.observe(perf_counter() - self._began)

    def metrics(self) -> list[Metric]:
        """The service's metrics and this plug-in's own."""
        refused = list(self._refusals.items())
        labels = ("request", "reason")
        return [
            *self.host.metrics(),
            single(
                "pull_seconds",
                "histogram",
                "From a pull, or the send that fed it, to its answer",
                self._pulls.copy(),
            ),
            Metric("refusals", "counter", "Requests that were refused", refused, labels),
        ]

    async def page(self) -> bytes:
        """The metrics as text; they are read here and written in a thread, for that takes longer."""
        return await trio.to_thread.run_sync(self._exposition.text, self.metrics())

    async def run(self) -> None:
        """Serve scrapes for as long as the service runs."""
        listener = await TcpNetwork().listen(join_address(self.address, self.port))
        self.listens_on = [listener.address]
        log.info("metrics on http://%s/metrics", listener.address)
        await serve(listener, self.page, self._token)


def _token(path: str) -> bytes:
    """The token in a file; empty without one. Raises ConfigError when it cannot be read or is short."""
    secret = cluster_secret(path, "metricsTokenFile")
    return b"" if secret is None else secret.value
