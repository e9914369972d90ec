"""Metrics for Prometheus, as a plug-in: `plugins = metrics`, then GET http://127.0.0.1:5557/metrics.

With `?queues=true` the page has a row for each queue beside the sums by topic. A page is kept for a second,
and concurrent scrapes share it. Needs the extra `metrics` (prometheus-client). Messages cost nothing: a
scrape reads figures that the broker counts anyway. A request costs two clock readings, and a refusal a
counter.

Every metric is listed in docs/metrics.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

import anyio
import anyio.to_thread
import trio.lowlevel

from rmq.config import is_loopback
from rmq.errors import ConfigError
from rmq.metrics import CONTENT_TYPE, Histogram, Metric, single, text_of
from rmq.plugin import Answer, Asked, Host, Page, Peer, Plugin, PulledEvent
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting import join_address
from rmq.remoting.loop import run_cooperatively
from rmq.server.http import brings_token
from rmq.server.profile import cluster_secret
from rmq_metrics.process import ProcessMetrics

__all__ = ["MetricsPlugin"]

NO_REFUSALS: Final = frozenset(
    (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
)
"""Response codes that are no faults."""

OTHER: Final = "other"
"""The label of all codes that RocketMQ does not have: peers choose them, and each label is kept for good."""
_REQUESTS: Final = {int(code): code.name for code in RequestCode}
FRESH_SECONDS: Final = 1.0
"""Seconds for which a page is used again: more scrapers cost no more than one."""
QUEUES: Final = b"queues=true"
"""In the query: a row for each queue."""
_REASONS: Final = {int(code): code.name for code in ResponseCode}


class MetricsPlugin(Plugin):
    """Serves the metrics of the service that it runs in. Raises ConfigError without prometheus-client."""

    def __init__(self, config: Mapping[str, str], host: Host) -> None:
        super().__init__(config, host)
        self.address: str = getattr(host.config, "metrics_address", "127.0.0.1")
        self.port: int = getattr(host.config, "metrics_port", 5557)
        self._token = _token(getattr(host.config, "metrics_token_file", ""))
        self._made = {queues: _Made() for queues in (False, True)}
        self._pulls = Histogram()
        self._refusals: Counter[tuple[str, str]] = Counter()
        try:
            self._process = ProcessMetrics()
        except ImportError:
            expected = "no `metrics` until prometheus-client is installed: pip install 'rmq[metrics]'"
            raise ConfigError("plugins", "metrics", expected) from None

    def listens(self) -> dict[str, str]:
        """The address for scrapes, with a mark if it needs a token."""
        where = join_address(self.address, self.port) if self.port else f"{self.address}, a free port"
        is_open = not self._token and not is_loopback(self.address)
        return {"metrics": f"{where}, for anybody (metricsTokenFile)" if is_open else where}

    def on_response(self, peer: Peer, command: Command, response: Command) -> None:
        """Count refusals."""
        if response.code not in NO_REFUSALS:
            request, reason = _REQUESTS.get(command.code, OTHER), _REASONS.get(response.code, OTHER)
            self._refusals[request, reason] += 1

    def on_pulled(self, event: PulledEvent) -> None:
        """Count the delay of delivered messages: since the pull came, or since the send that it waited
        for."""
        self._pulls.observe(event.seconds)

    def metrics(self) -> list[Metric]:
        """The service's metrics and this plug-in's own."""
        return [*self.host.metrics(), *self._own()]

    def _own(self) -> list[Metric]:
        refused = list(self._refusals.items())
        labels = ("request", "reason")
        return [
            single(
                "pull_seconds",
                "histogram",
                "Time from a pull, or from the send that woke it, to its response",
                self._pulls.copy(),
            ),
            Metric("refusals", "counter", "Requests that were refused", refused, labels),
            single("tasks", "gauge", "Tasks of the service", _tasks()),
        ]

    def pages(self) -> dict[str, Page]:
        """The page of all metrics."""
        return {"/metrics": self.page, "/": self.page}

    async def page(self, asked: Asked) -> Answer:
        """The metrics as text, for requests with the token; made in slices, so that other requests are
        served."""
        if self._token and not brings_token(asked, self._token):
            text = b"a token is needed: Authorization: Bearer TOKEN\n"
            return Answer(text, 401, more=(("WWW-Authenticate", "Bearer"),))
        queues = QUEUES in asked.query.split(b"&")
        made = self._made[queues]
        async with made.lock:
            if anyio.current_time() >= made.stale_at:
                metrics = await run_cooperatively(self.host.metrics_in_slices(queues=queues))
                text = await run_cooperatively(text_of([*metrics, *self._own()]))
                made.text = await anyio.to_thread.run_sync(self._process.text) + text
                made.stale_at = anyio.current_time() + FRESH_SECONDS
        return Answer(made.text, content_type=CONTENT_TYPE)


class _Made:
    """The last page, and the time at which it was made."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.text = b""
        self.stale_at = -math.inf


def _tasks() -> int:
    """The number of tasks of the running loop."""
    return trio.lowlevel.current_statistics().tasks_living if trio.lowlevel.in_trio_run() else 0


def _token(path: str) -> bytes:
    """The token in a file; empty without a file. Raises ConfigError for an unreadable or short token."""
    secret = cluster_secret(path, "metricsTokenFile")
    return b"" if secret is None else secret.value
