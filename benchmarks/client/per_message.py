"""Per-message consumption by our client beside push consumption, on one broker of its own.

    python -m benchmarks.client.per_message [--messages 32000] [--rounds 5] [--pull 256]

A process has the broker, this one the client. Groups are new in each round, begin at the first message, and
their handlers return at once. Rounds alternate; the figures are medians: time, and CPU of the broker and of
the client, for 32 messages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import trio

import rmq
from benchmarks.per_message import COUNT, TOPIC, Peer, fill
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service
from rmq.namesrv import service as namesrv
from rmq.namesrv.config import NamesrvConfig
from rmq.store.config import StoreConfig

PUSH, LEASED = "push", "per message"


async def serve(folder: str) -> None:
    """The other process: a name server and a broker on free ports; prints their addresses."""
    async with trio.open_nursery() as nursery:
        (names, *_) = await nursery.start(partial(namesrv.run, NamesrvConfig(listen_port=0)))
        config = BrokerConfig(namesrv_addr=str(names), listen_port=0, broker_ip1="127.0.0.1")
        store = StoreConfig(store_path_root_dir=folder)
        (address, *_) = await nursery.start(partial(service.run, config, store))
        print(names, address, flush=True)


async def consume(names: str, kind: str, group: str, count: int, pull: int) -> float:
    """Consume so many messages; return the seconds since the consumer was open."""
    left, done = count, trio.Event()

    async def handle(message: rmq.StoredMessage) -> None:
        nonlocal left
        left -= len(message.body) > 0
        if not left:
            done.set()

    async with rmq.connect(names, pull_batch_size=pull) as client:
        if kind == PUSH:
            push = client.consumer(group, {TOPIC: "*"}, consume_from="first")
            return await timed(push, handle, done)
        leased = client.consumer(group, {TOPIC: "*"}, consume_from="first", per_message=True)
        return await timed(leased, handle, done)


async def timed(consumer: rmq.Consumer | rmq.LeasedConsumer, handle: object, done: trio.Event) -> float:
    """Run the handler until all has come, and drain."""
    began = time.perf_counter()
    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(partial(consumer.run, handle))  # type: ignore[arg-type]
        await done.wait()
        await consumer.drain()
    return time.perf_counter() - began


def measure(
    names: str, peer: Peer, messages: int, rounds: int, pull: int
) -> dict[str, list[tuple[float, ...]]]:
    """Seconds, and the CPU of the broker and the client in µs for 32 messages, of each round."""
    found: dict[str, list[tuple[float, ...]]] = {PUSH: [], LEASED: []}
    for number in range(rounds):
        for kind, rows in found.items():
            broker, own = peer.cpu(), time.process_time_ns()
            seconds = trio.run(consume, names, kind, f"{kind.replace(' ', '-')}{number}", messages, pull)
            spent = peer.cpu() - broker, time.process_time_ns() - own
            rows.append((seconds, *(one / 1000 / (messages / COUNT) for one in spent)))
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=32_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pull", type=int, default=256, help="messages of a pull")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        trio.run(serve, options.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.client.per_message", "--serve", folder]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        try:
            assert process.stdout is not None
            names, address = process.stdout.readline().split()
            peer = Peer(address, process.pid)
            fill(peer, options.messages // COUNT)
            found = measure(names, peer, options.messages, options.rounds, options.pull)
        finally:
            process.terminate()
            process.wait()
    for kind, rows in found.items():
        seconds, broker, client = (median(column) for column in zip(*rows, strict=True))
        print(f"{kind:12} {seconds:6.2f} s  broker {broker:7.1f} µs  client {client:7.1f} µs")


if __name__ == "__main__":
    main()
