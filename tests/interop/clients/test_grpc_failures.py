"""RocketMQ's official Java client of 5.x while our broker is killed, and while a proxy harms its calls: what
the checker says of either.
"""

from __future__ import annotations

import pathlib
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.interop.clients5 import (
    BUILDS,
    HERE,
    INVISIBLE,
    SECONDS,
    Broker,
    Job,
    Jobs,
    Missing,
    client_of,
    judge,
)
from tests.interop.rocketmq import wait_for_port
from tests.ports import free_ports

pytest.importorskip("h2")
pytestmark = pytest.mark.interop

KILLS = 4
PATIENCE = 600.0
"""Seconds for 1,500 messages and their acknowledgements, one after the other, by a JVM on a busy machine."""


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> pathlib.Path:
    return pathlib.Path(request.config.cache.mkdir("grpc-clients")).resolve()


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[Broker]:
    made = Broker(tmp_path, flushDiskType="SYNC_FLUSH")
    yield made
    made.close()


@pytest.fixture
def jobs(folder: pathlib.Path, broker: Broker) -> Iterator[Jobs]:
    try:
        made = Jobs(client_of("java", folder), broker.env)
    except Missing as why:
        pytest.skip(str(why))
    yield made
    made.close()


def finished(sender: Job, consumers: list[Job], seconds: float) -> None:
    """Wait until everything was acknowledged, and for what comes again after that."""
    sent = {row[0] for row in sender.told("sent")}
    end = time.monotonic() + seconds
    while not sent <= {row[0] for job in consumers for row in job.told("acked")} and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(INVISIBLE + 3)


def test_nothing_is_lost_or_comes_again_when_the_broker_is_killed(jobs: Jobs, broker: Broker) -> None:
    topic = broker.topic("Kept")
    options = {"topic": topic, "consumer": "g", "seconds": 600, "batch": 8}
    consumers = [jobs(broker.address, "simple", **options).started() for _ in range(2)]
    bodies = ",".join(f"m{number}" for number in range(1_500))
    sender = jobs(broker.address, "send", topic=topic, bodies=bodies, retry="yes", every=10).started()
    kills = []
    for number in range(KILLS):
        acked = sum(len(job.told("acked")) for job in consumers)
        consumers[0].until(
            lambda job, least=acked + 150: sum(len(one.told("acked")) for one in consumers) >= least,
            PATIENCE,
        )
        time.sleep(0.05 * number)
        kills.append(time.monotonic())
        broker.kill()
        broker.start()
    sender.until(lambda job: job.child.poll() is not None, PATIENCE)
    finished(sender, consumers, SECONDS)
    assert len(sender.told("sent")) == 1_500
    verdict = judge(sender, consumers, 0.01, kills)
    assert (verdict.lost, verdict.again, verdict.doubled) == ([], [], [])


@pytest.mark.parametrize(
    ("fault", "found"),
    [("none", None), ("drop", "lost"), ("double", "doubled"), ("swap", "swapped"), ("forget", "again")],
)
def test_the_checker_sees_what_a_proxy_does(
    jobs: Jobs, broker: Broker, folder: pathlib.Path, fault: str, found: str | None
) -> None:
    python = BUILDS["python"](folder)[0]
    (port,) = free_ports(1)
    command = [python, str(HERE / "proxy.py"), str(port), broker.address, fault]
    proxy = subprocess.Popen(command)
    try:
        wait_for_port(port)
        address = f"127.0.0.1:{port}"
        topic = broker.topic("Harmed", queues=1)
        consumer = jobs(address, "simple", topic=topic, consumer="g", seconds=600, batch=1).started()
        bodies = ",".join(f"m{number}" for number in range(30))
        sender = jobs(address, "send", topic=topic, bodies=bodies, group="one", every=20).done()
        finished(sender, [consumer], 10)
        verdict = judge(sender, [consumer], 0.02)
    finally:
        proxy.kill()
        proxy.wait()
    harms = {name for name in ("lost", "doubled", "swapped", "again") if getattr(verdict, name)}
    assert harms == ({found} if found else set()), verdict
