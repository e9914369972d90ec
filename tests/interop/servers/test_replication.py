"""Master and slave across the two: the logs are byte-equal, and the slave serves what it has copied."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import trio

import rmq

from ..rocketmq import Process, Processes, free_port, wait_until

pytestmark = pytest.mark.interop

FILE = 1 << 20
Start = Callable[..., Process]


def log_bytes(store: pathlib.Path) -> bytes:
    """The log up to its last written byte; files are longer than what is in them, and made ahead."""
    files = sorted((store / "commitlog").glob("0*"))
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def reach(store: pathlib.Path) -> int:
    return len(log_bytes(store))


def publish(namesrv: str, count: int, tag: str) -> list[str]:
    """Send messages one at a time; returns the statuses."""

    async def main() -> list[str]:
        async with rmq.connect(namesrv) as client, client.producer("ha-producers") as producer:
            results = [
                await producer.send(rmq.Message("HaTopic", b"x" * 700 + b"%s-%d" % (tag.encode(), number)))
                for number in range(count)
            ]
            return [str(result.status) for result in results]

    return trio.run(main)


@pytest.mark.parametrize("master_kind", ["rmq", "java"])
def test_a_slave_of_the_other_kind_copies_the_log(
    processes: Processes, tmp_path: pathlib.Path, master_kind: str
) -> None:
    namesrv = processes.rmq_namesrv()
    kinds: dict[str, Start] = {"rmq": processes.rmq_broker, "java": processes.java_broker}
    slave_kind = "java" if master_kind == "rmq" else "rmq"
    sizes = {"mappedFileSizeCommitLog": str(FILE), "brokerName": "pair"}
    master_port, slave_port = free_port(), free_port()
    master_store, slave_store = tmp_path / "master", tmp_path / "slave"
    kinds[master_kind](namesrv, master_store, brokerRole="SYNC_MASTER", listenPort=str(master_port), **sizes)
    slave_settings = sizes | {"brokerRole": "SLAVE", "brokerId": "1", "listenPort": str(slave_port)}
    slave = kinds[slave_kind](namesrv, slave_store, **slave_settings)
    publish(namesrv, 1, "warm")
    wait_until(lambda: reach(slave_store) == reach(master_store) > 0, 60, "the first copy")
    statuses = publish(namesrv, 3000, "first")
    assert set(statuses) == {"SEND_OK"}
    assert log_bytes(slave_store) == log_bytes(master_store)
    assert reach(master_store) > 2 * FILE

    slave.kill()
    publish(namesrv, 20, "alone")
    kinds[slave_kind](namesrv, slave_store, **slave_settings)
    wait_until(lambda: reach(slave_store) == reach(master_store), 60, "the copy after a kill")
    assert log_bytes(slave_store) == log_bytes(master_store)
