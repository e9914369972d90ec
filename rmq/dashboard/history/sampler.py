"""The sampler: queries each cluster for its figures, and keeps them in the history.

It uses the dashboard's own account, with two requests to each master: its metrics, and the progress of all
groups; and two to a name server: brokers and topics, whose changes since the last sample it reports. Missing
figures are left out, and queried at the next turn. The progress costs a broker up to `ROW_SECONDS` for each
queue that a group reads: the more rows, the longer the pause.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from rmq.client.admin import GroupProgress
from rmq.client.admin.reports import first_number
from rmq.dashboard.access.audit import ClusterChange
from rmq.dashboard.access.roles import Role
from rmq.dashboard.access.sessions import Identity
from rmq.dashboard.clusters import Clusters, Handle
from rmq.dashboard.history.cluster_changes import View, changes_between, view_of
from rmq.dashboard.history.history import History, HistoryError, Sample
from rmq.dashboard.progress import progress_of
from rmq.errors import RmqError
from rmq.message import MessageQueue
from rmq.protocol.codes import MASTER_ID

log = logging.getLogger(__name__)

OWN: Final = Identity("dashboard", Role.READER, "sampler", own=True)
SUBJECTS_MAX: Final = 2000
"""Groups and topics of a cluster that are sampled; of more, those with the largest figures."""
ROW_SECONDS: Final = 60e-6
"""Processor time of a broker for a queue of a group's progress: 28 to 62 µs on a busy machine."""
LATE_MS: Final = 60_000
"""A change that is made here shows in a sample as late as this: brokers register every 30 s at least."""
SHARE: Final = 0.01
"""Of one core, which a broker may spend on being sampled."""


class Sampler:
    """Samples all clusters every `seconds`."""

    def __init__(
        self,
        clusters: Clusters,
        history: History,
        now_ms: Callable[[], int],
        seconds: float,
        run_blocking: Callable[..., Awaitable[Any]],
        on_changes: Callable[[str, list[ClusterChange], int], None],
    ) -> None:
        """`on_changes` gets a cluster, the changes since its last sample, and the time since which
        they may have been made here."""
        self._on_changes = on_changes
        self._views: dict[str, tuple[int, View]] = {}
        self._clusters, self._history, self._now_ms = clusters, history, now_ms
        self._seconds, self._run_blocking = seconds, run_blocking
        self._ends: dict[str, tuple[int, dict[str, int]]] = {}
        self._rows = 0

    async def run(self) -> None:
        """Sample until cancelled."""
        while self._seconds > 0:
            self._rows = 0
            for name in self._clusters.names:
                await self.sample(name)
            await anyio.sleep(pause_after(self._rows, self._seconds))

    async def sample(self, name: str) -> None:
        """Sample one cluster once; errors are logged."""
        try:
            async with self._clusters.use(name, OWN) as handle:
                samples = await self._figures(name, handle)
            await self._run_blocking(self._history.add, name, self._now_ms(), samples)
        except (RmqError, OSError, HistoryError) as error:
            log.info("cluster %s was not sampled: %s", name, error)
        except Exception:
            # A stranger may register as a broker, with any figures and names: the dashboard stays.
            log.exception("cluster %s was not sampled", name)

    async def _figures(self, name: str, handle: Handle) -> list[Sample]:
        admin = handle.client.admin
        info = await admin.cluster_info()
        self._compare(name, view_of(info, await admin.topics()))
        table = info.broker_addr_table
        samples: list[Sample] = []
        groups: list[GroupProgress] = []
        for broker, data in table.items():
            address = data.broker_addrs.get(MASTER_ID)
            if address is None:
                continue
            try:
                samples += _broker_samples(broker, await admin.broker_runtime(address))
                progress = await progress_of(handle.cache, admin, address, renewed=True)
                self._rows = max(self._rows, sum(len(group.queues) for group in progress))
                groups += progress
            except RmqError as error:
                log.info("broker %s was not sampled: %s", broker, error)
        lags, ends = _sums(groups)
        samples += _largest("group_lag", lags)
        samples += _largest("topic_in", self._rates(name, ends))
        samples.append(Sample("cluster_lag", "", float(sum(lags.values()))))
        for figure in ("in", "out"):
            rates = [one.value for one in samples if one.figure == f"broker_{figure}"]
            samples.append(Sample(f"cluster_{figure}", "", sum(rates)))
        return samples

    def _compare(self, name: str, view: View) -> None:
        """Report the changes since the last sample."""
        if (before := self._views.get(name)) is not None:
            since, earlier = before
            self._on_changes(name, list(changes_between(earlier, view)), since - LATE_MS)
        self._views[name] = (self._now_ms(), view)

    def _rates(self, name: str, ends: dict[str, int]) -> dict[str, float]:
        """Messages a second into each topic that a group reads, since the last sample."""
        now = self._now_ms()
        before, known = self._ends.get(name, (now, {}))
        self._ends[name] = (now, ends)
        seconds = (now - before) / 1000
        if seconds <= 0:
            return {}
        return {topic: max(end - known[topic], 0) / seconds for topic, end in ends.items() if topic in known}


def pause_after(rows: int, seconds: float) -> float:
    """Seconds until the next sample: `seconds`, or longer when a broker had to tell so many `rows` that it
    would spend more than `SHARE` of a core on them.
    """
    return max(seconds, rows * ROW_SECONDS / SHARE)


def _broker_samples(broker: str, metrics: dict[str, str]) -> list[Sample]:
    figures = {
        "broker_in": metrics.get("putTps", ""),
        "broker_out": metrics.get("getTransferedTps", ""),
        "broker_disk": metrics.get("commitLogDiskRatio", ""),
    }
    samples = [Sample(figure, broker, first_number(text)) for figure, text in figures.items() if text]
    return [one for one in samples if math.isfinite(one.value)]


def _sums(groups: list[GroupProgress]) -> tuple[dict[str, float], dict[str, int]]:
    """The lag of each group, and the sum of the ends of each topic's queues."""
    lags: dict[str, float] = defaultdict(float)
    queues: dict[MessageQueue, int] = {}
    for group in groups:
        lags[group.group] += group.lag
        for row in group.queues:
            queues[row.message_queue] = max(row.broker_offset, queues.get(row.message_queue, 0))
    ends: dict[str, int] = defaultdict(int)
    for queue, end in queues.items():
        ends[queue.topic] += end
    return lags, ends


def _largest(figure: str, values: dict[str, float]) -> list[Sample]:
    rows = sorted(values.items(), key=lambda row: -row[1])[:SUBJECTS_MAX]
    return [Sample(figure, subject, value) for subject, value in rows]
