"""What one request costs in remoting alone: an echo service, no broker.

    python benchmarks/micro_remoting.py                      # all tables
    python benchmarks/micro_remoting.py windows --calls 20000
    python benchmarks/micro_remoting.py connections

The service and the client run in processes of their own; what is printed is CPU time (user and system)
of each per request, which a busy machine disturbs less than rates. Each figure is the lowest of `--rounds`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import attrs
import trio

from rmq.protocol.command import Command
from rmq.remoting import Connection, Pool, TcpNetwork, TlsConfig, serve
from rmq.remoting.endpoint import Endpoint

BODY = b"x" * 128
HEADER = {"producerGroup": "bench", "topic": "Bench", "queueId": "1", "sysFlag": "0", "bornTimestamp": "17"}
CODE = 9999  # no code of RocketMQ: the general decoder
WARM_CALLS = 500


class Echo(Endpoint):
    """Answers every request with its own body."""

    def handle(self, requests: list[Command], connection: Connection) -> None:
        for request in requests:
            connection.reply(request.reply(body=request.body))

    def on_close(self, connection: Connection) -> None:
        pass


@attrs.frozen
class Shape:
    """How the load is spread."""

    scheme: str = "tcp"
    backend: str = "trio"
    connections: int = 1
    window: int = 1


@attrs.frozen
class Cost:
    """Microseconds of CPU per request, and requests per second."""

    client: float
    server: float
    rate: float


def certificates(folder: Path) -> TlsConfig:
    """A self-signed certificate for loopback."""
    import trustme

    authority = trustme.CA()
    pem = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    pem.write_to_path(folder / "server.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return config(folder)


def config(folder: Path) -> TlsConfig:
    paths = {"tls_cert_path": str(folder / "server.pem"), "tls_trust_path": str(folder / "authority.pem")}
    return TlsConfig(tls_mode="permissive", **paths)


async def run_server(folder: Path) -> None:
    """Serve until the input ends; prints the address, then its own CPU seconds for each line of input."""
    async with trio.open_nursery() as nursery:
        (address,) = await nursery.start(
            partial(serve, TcpNetwork(), ["127.0.0.1:0"], Echo(), tls=config(folder))
        )
        print(address, flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            print(time.process_time(), flush=True)
        nursery.cancel_scope.cancel()


class Server:
    """The echo service in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, __file__, "serve", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._line()

    def cpu(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


async def measure(server: Server, folder: Path, shape: Shape, calls: int) -> Cost:
    """`calls` requests over all connections, `shape.window` of them in flight on each."""
    address = server.address if shape.scheme == "tcp" else f"{shape.scheme}://{server.address}"
    async with contextlib.AsyncExitStack() as stack:
        pools = [Pool(TcpNetwork(), Echo(), tls=config(folder)) for _ in range(shape.connections)]
        for pool in pools:
            await stack.enter_async_context(pool)
        await drive(pools, address, shape.window, WARM_CALLS)
        server_before, before, began = server.cpu(), time.process_time(), time.perf_counter()
        done = await drive(pools, address, shape.window, calls)
        elapsed = time.perf_counter() - began
        client = time.process_time() - before
        return Cost(client / done * 1e6, (server.cpu() - server_before) / done * 1e6, done / elapsed)


async def drive(pools: list[Pool], address: str, window: int, calls: int) -> int:
    turns = max(5, calls // (len(pools) * window))

    async def caller(pool: Pool) -> None:
        for _ in range(turns):
            await pool.call(address, Command.request(CODE, HEADER, BODY), 10)

    async with anyio.create_task_group() as tasks:
        for pool in pools:
            for _ in range(window):
                tasks.start_soon(caller, pool)
    return len(pools) * window * turns


def best(server: Server, folder: Path, shape: Shape, options: argparse.Namespace) -> Cost:
    """The lowest cost of some rounds: what disturbs a measurement only ever adds."""
    costs = [
        anyio.run(measure, server, folder, shape, options.calls, backend=shape.backend)
        for _ in range(options.rounds)
    ]
    return Cost(min(c.client for c in costs), min(c.server for c in costs), max(c.rate for c in costs))


def windows(server: Server, folder: Path, options: argparse.Namespace) -> None:
    print(
        f"{'transport':>16} {'window':>7} {'client µs':>10} {'server µs':>10} {'both µs':>8} {'calls/s':>9}"
    )
    for scheme, backend in [("tcp", "trio"), ("tcp", "asyncio"), ("tls", "trio"), ("ws", "trio")]:
        for window in (1, 16, 100, 128):
            cost = best(server, folder, Shape(scheme, backend, window=window), options)
            row(f"{scheme} {backend}", window, cost)


def connections(server: Server, folder: Path, options: argparse.Namespace) -> None:
    print(
        f"{'connections':>16} {'window':>7} {'client µs':>10} {'server µs':>10} {'both µs':>8} {'calls/s':>9}"
    )
    # A process with thousands of calling tasks mostly pays for garbage collection; the service counts here.
    gc.set_threshold(1_000_000)
    for count in (1, 10, 100, 1000):
        for window in (1, 16):
            shape = Shape(connections=count, window=window)
            row(str(count), window, best(server, folder, shape, options))


def row(name: str, window: int, cost: Cost) -> None:
    both = cost.client + cost.server
    print(f"{name:>16} {window:>7} {cost.client:>10.1f} {cost.server:>10.1f} {both:>8.1f} {cost.rate:>9.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["all", "windows", "connections", "serve"], default="all")
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.what == "serve":
        trio.run(run_server, options.folder)
        return
    tables: list[Callable[[Server, Path, argparse.Namespace], None]] = [windows, connections]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates(folder)
        server = Server(folder)
        try:
            for table in tables:
                if options.what in ("all", table.__name__):
                    table(server, folder, options)
        finally:
            server.close()


if __name__ == "__main__":
    main()
