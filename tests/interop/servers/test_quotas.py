"""Quotas of accounts as real clients meet them: RocketMQ's Java 4.9.7 and 5.x over gRPC, and qpid-proton.

Beyond its quota a client waits without knowing it; what it would have to wait for too long it is told.
"""

from __future__ import annotations

import pathlib
import time

import pytest

from tests.interop.amqp.broker import served
from tests.interop.clients5 import SECONDS, Broker, Jobs, Missing, client_of
from tests.interop.rocketmq import Processes

pytestmark = pytest.mark.interop

RATE = 4
"""Messages a second: a second's worth and the one that makes the debt pass at once."""
MESSAGES = 14
LEAST_SECONDS = (MESSAGES - RATE - 1) / RATE
ACCOUNTS = """accounts:
  - accessKey: metered-app
    secretKey: metered-secret
    quota: QUOTA
    topicPerms: [Orders=PUB|SUB]
    groupPerms: [readers=SUB, Orders=SUB]
  - {accessKey: manager, secretKey: admin-secret-1, admin: true}
"""


def accounts(folder: pathlib.Path, quota: str) -> pathlib.Path:
    """The file of accounts with a quota of `metered-app`."""
    file = folder / "plain_acl.yml"
    file.write_text(ACCOUNTS.replace("QUOTA", quota))
    file.chmod(0o600)
    return file


def java(processes: Processes, folder: pathlib.Path, quota: str, *words: str) -> list[dict[str, object]]:
    """The output of a producer of Java 4.9.7 under a quota."""
    namesrv = processes.rmq_namesrv()
    store = folder / "store"
    processes.rmq_broker(namesrv, store, aclEnable="true", aclFile=str(accounts(folder, quota)))
    program = processes.program("Quota", namesrv, "Orders", "metered-app", "metered-secret", *words)
    return program.finish(SECONDS)


def test_a_java_producer_beyond_its_quota_waits_for_its_answers(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    rows = java(processes, tmp_path, f"produceMessages={RATE}", str(MESSAGES), "10")
    assert [row.get("status") for row in rows] == ["SEND_OK"] * MESSAGES, rows
    held = [int(str(row["took"])) for row in rows[RATE + 1 :]]
    assert sum(held) >= 1_000 * LEAST_SECONDS * 0.8, held


def test_a_java_producer_that_would_wait_too_long_is_told_how_long(
    processes: Processes, tmp_path: pathlib.Path
) -> None:
    """RocketMQ 4.9 does not send again after code 2."""
    first, second = java(processes, tmp_path, "produceBytes=500", "2", "3000")
    assert first.get("status") == "SEND_OK", first
    assert second.get("code") == 2, second
    assert "[THROTTLED]account metered-app is over its quota to produce: retry in " in str(second["refused"])


def test_a_grpc_producer_beyond_its_quota_waits_for_its_answers(
    tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("h2")
    import rmq

    folder = pathlib.Path(request.config.cache.mkdir("grpc-clients")).resolve()
    try:
        client = client_of("java", folder)
    except Missing as why:
        pytest.skip(str(why))
    broker = Broker(tmp_path, plugins="acl,grpc", aclFile=accounts(tmp_path, f"produceMessages={RATE}"))
    jobs = Jobs(client, broker.env)
    try:
        broker.topic("Orders", account=rmq.Credentials("manager", "admin-secret-1"))
        account = {"user": "metered-app", "secret": "metered-secret", "topic": "Orders"}
        bodies = ",".join(map(str, range(MESSAGES)))
        job = jobs(broker.address, "send", bodies=bodies, **account).done()
        assert not job.told("error"), job.rows
        assert len(job.told("sent")) == MESSAGES
        at = job.times("sent")
        assert at[-1] - at[RATE] >= LEAST_SECONDS * 0.8, at
        # Twenty seconds' worth at once, then one more: it is told, as it could not wait so long.
        (tmp_path / "plain_acl.yml").write_text(ACCOUNTS.replace("QUOTA", "produceBytes=1k"))
        broker.stop()
        broker.start()
        job = jobs(broker.address, "send", bodies="one,two", padding=20_000, **account).done()
        assert [row[0] for row in job.told("sent")] == ["one"], job.rows
        (told,) = job.told("error")
        assert "over its quota to produce: retry in" in " ".join(told)
    finally:
        jobs.close()
        broker.close()


def test_an_amqp_client_beyond_its_quotas_waits(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("proton", reason="needs the extra amqp: pip install 'rmq[amqp]'")
    from proton import Message
    from proton.utils import BlockingConnection

    quota = f"produceMessages={RATE},consumeMessages={RATE}"
    with served(tmp_path, plugins="acl,amqp", aclFile=accounts(tmp_path, quota)) as broker:
        login = {"user": "metered-app", "password": "metered-secret", "allowed_mechs": "PLAIN"}
        connection = BlockingConnection(broker.url, timeout=SECONDS, allow_insecure_mechs=True, **login)
        sender, began = connection.create_sender("Orders"), time.monotonic()
        for number in range(MESSAGES):
            sender.send(Message(body=f"{number}", durable=True))  # raises when it is refused
        assert time.monotonic() - began >= LEAST_SECONDS * 0.8
        receiver, began = connection.create_receiver("Orders", credit=1), time.monotonic()
        found = []
        for _ in range(MESSAGES):
            found.append(receiver.receive(SECONDS).body)
            receiver.accept()
        assert sorted(map(int, found)) == list(range(MESSAGES))
        assert time.monotonic() - began >= LEAST_SECONDS * 0.5
        connection.close()
