"""The running part of `rmq bench`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from attrs import Factory, define

from rmq.cli.output import console
from rmq.cli.sub import may_consume
from rmq.cli.target import Target, first_error
from rmq.client.client import Client
from rmq.client.consumer import Consumer
from rmq.client.producer import Producer
from rmq.errors import NoRoute, RmqError
from rmq.message import Message, StoredMessage

if TYPE_CHECKING:
    from rmq.cli.bench import Load

LIVE_SECONDS = 0.5
STAMP = 16
"""Bytes at the start of a body: when it was sent, ns since 1970, in hex."""
ERROR_PAUSE_SECONDS = 0.05
BARS = 40
PRECISION_BITS = 8
"""Bits that are kept of a latency in µs."""
BOUNDS_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, float("inf"))


@define
class Meter:
    """Counts one role.

    `latencies`: µs, in steps of less than 1 %, -> how many; it stays small however long a run takes.
    """

    role: str
    size: int
    began: float = 0.0
    ended: float = 0.0
    count: int = 0
    failed: int = 0
    longest: float = 0.0
    latencies: Counter[int] = Factory(Counter)
    error: str = ""

    def took(self, seconds: float, times: int = 1) -> None:
        """Note a latency, of so many messages."""
        now = time.perf_counter()
        # A sender begins with its first send, a consumer with its first message.
        self.began = self.began or (now - seconds if self.role == "producer" else now)
        self.ended = now
        self.count += times
        self.longest = max(self.longest, seconds)
        micros = int(seconds * 1e6)
        shift = max(0, micros.bit_length() - PRECISION_BITS)
        self.latencies[micros >> shift << shift] += times

    def percentile(self, share: float) -> float:
        """The ms below which `share` (0 to 1) of the latencies lie; 0.0 when there are none."""
        before, wanted = 0, int(self.count * share)
        for micros in sorted(self.latencies):
            before += self.latencies[micros]
            if before > wanted:
                return micros / 1000
        return self.longest * 1000

    def row(self) -> dict[str, Any]:
        """The figures, as they are printed."""
        seconds = self.ended - self.began
        per_second = self.count / seconds if seconds > 0 else 0.0
        shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
        return {
            "role": self.role,
            "messages": self.count,
            "failed": self.failed,
            "seconds": round(seconds, 3),
            "per_second": round(per_second, 1),
            "mib_per_second": round(per_second * self.size / (1 << 20), 3),
            **{name: round(self.percentile(share), 3) for name, share in shares.items()},
            "max_ms": round(self.longest * 1000, 3),
        }

    def print_histogram(self) -> None:
        """How many took how long, as bars."""
        from rich.table import Table

        if not self.count:
            return
        table = Table(box=None, pad_edge=False, title=f"\n{self.role}: latency", title_justify="left")
        for heading, justify in (("UP TO MS", "right"), ("MESSAGES", "right"), ("", "left")):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        counts = [0] * len(BOUNDS_MS)
        for micros, many in self.latencies.items():
            counts[next(n for n, bound in enumerate(BOUNDS_MS) if micros / 1000 <= bound)] += many
        for bound, count in zip(BOUNDS_MS, counts, strict=True):
            if count:
                bar = "#" * max(1, round(BARS * count / self.count))
                table.add_row("more" if bound == float("inf") else f"{bound:g}", f"{count:,}", bar)
        console().print(table)


async def load_cluster(target: Target, load: Load, roles: tuple[str, ...]) -> list[Meter]:
    """Runs the roles side by side until the time, the count or a signal ends them. Raises RmqError for what
    no message could get past."""
    meters = {role: Meter(role, load.size) for role in roles}
    async with target.connect() as client:
        if "consumer" in meters:
            await may_consume(client, load.group, [load.topic])
        with first_error():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_show_rates, list(meters.values()))
                if "consumer" in meters:
                    alone = "producer" not in meters
                    await nursery.start(_consume, client, load, meters["consumer"], alone)
                if "producer" in meters:
                    await _produce(client, load, meters["producer"])
                    if "consumer" in meters:
                        await _drain(meters["producer"], meters["consumer"])
                else:
                    with trio.move_on_after(load.seconds):
                        while load.count is None or meters["consumer"].count < load.count:
                            await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
    return list(meters.values())


async def _produce(client: Client, load: Load, meter: Meter) -> None:
    """Sends with `in_flight` lanes; each sends on when the broker has answered."""
    left = load.count if load.count is not None else 1 << 62
    slot = trio.current_time()

    async def lane(producer: Producer) -> None:
        nonlocal left, slot
        while left > 0:
            size = min(load.batch, left)
            left -= size
            if load.rate is not None:
                slot = max(slot, trio.current_time()) + size / load.rate
                await trio.sleep_until(slot)
            await _send(producer, load, meter, size)

    async with client.producer("rmq-cli-bench") as producer:
        with first_error(), trio.move_on_after(load.seconds):
            async with trio.open_nursery() as nursery:
                for _ in range(load.in_flight):
                    nursery.start_soon(lane, producer)


async def _send(producer: Producer, load: Load, meter: Meter, size: int) -> None:
    body = f"{time.time_ns():0{STAMP}x}".encode()[:STAMP] + bytes(load.size - STAMP)
    began = time.perf_counter()
    try:
        if size == 1:
            await producer.send(Message(load.topic, body))
        else:
            await producer.send_batch([Message(load.topic, body) for _ in range(size)])
    except RmqError as error:
        if (isinstance(error, NoRoute) or not error.retriable) and not meter.count:
            raise
        meter.failed += size
        meter.error = str(error)
        await trio.sleep(ERROR_PAUSE_SECONDS)
        return
    meter.took(time.perf_counter() - began, size)


async def _consume(
    client: Client,
    load: Load,
    meter: Meter,
    alone: bool,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Consumes until cancelled; beside a producer only what is sent from now on counts."""
    began_ns = 0 if alone else time.time_ns()

    async def take(message: StoredMessage) -> None:
        sent = _stamp(message)
        if sent >= began_ns and (load.count is None or meter.count < load.count):
            meter.size = len(message.body)
            meter.took(max(0.0, (time.time_ns() - sent) / 1e9))

    start = "first" if alone else "last"
    async with client.consumer(load.group, {load.topic: "*"}, consume_from=start) as consumer:
        await _settled(consumer)
        task_status.started()
        await partial(consumer.run, take, concurrency=64)()


async def _settled(consumer: Consumer) -> None:
    """Waits, for a while, until this member has its queues."""
    with trio.move_on_after(5):
        while not consumer.queues:
            await trio.sleep(0.02)


def _stamp(message: StoredMessage) -> int:
    """When a message was sent, ns since 1970: to the ns for those of `rmq bench`, else to the ms."""
    try:
        return int(message.body[:STAMP], 16)
    except ValueError:
        return message.born_timestamp * 1_000_000


async def _drain(sent: Meter, consumed: Meter) -> None:
    """Waits until what was sent has come, as long as something still comes."""
    seen = -1
    while consumed.count < sent.count and consumed.count != seen:
        seen = consumed.count
        with trio.move_on_after(2):
            while consumed.count < sent.count:
                await trio.sleep(0.02)


async def _show_rates(meters: list[Meter]) -> None:
    """Live rates on the error output, when that is a terminal."""
    if not sys.stderr.isatty():
        return
    from rich.live import Live

    counts = [0] * len(meters)
    with Live(console=console(stderr=True), transient=True, auto_refresh=False) as live:
        while True:
            await trio.sleep(LIVE_SECONDS)
            now = [meter.count for meter in meters]
            rates = [(new - old) / LIVE_SECONDS for new, old in zip(now, counts, strict=True)]
            counts = now
            parts = [
                f"{meter.role} {rate:,.0f}/s, {meter.count:,} messages, {meter.failed:,} failed"
                for meter, rate in zip(meters, rates, strict=True)
            ]
            live.update("   ".join(parts), refresh=True)
