"""Quotas of accounts in the file of accounts, and by request 50."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
import yaml

import rmq
from rmq.broker.broker import Broker
from rmq.client.client import Client
from rmq.protocol.auth.quota import Quota
from rmq.protocol.auth.signature import signed
from rmq.protocol.codes import RequestCode as Code
from rmq.protocol.command import Command
from rmq.protocol.headers import CreateAccessConfigRequestHeader
from rmq.testing.cluster import Cluster
from tests.unit.broker.rig import Wire, send
from tests.unit.plugins.guarded import OWNER, Guarded


def test_an_account_has_the_quota_of_the_file(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    assert guarded.plugin.quota("owner01") is None
    text = "produceMessages=2,consumeBytes=10m"
    assert guarded.ask(command(guarded, "owner01", quota=text)).code == 0
    assert guarded.plugin.quota("owner01") == Quota(2, 0, 0, 10 << 20)
    assert yaml.safe_load(guarded.file.read_text())["accounts"][1]["quota"] == text
    wrong = guarded.ask(command(guarded, "owner01", quota="produceMessages=fast"))
    assert "above 0" in (wrong.remark or "")
    wire = Wire("10.0.0.1:4")
    sends = [signed(send(), OWNER) for _ in range(5)]
    assert len(guarded.rig.ask(*sends, wire=wire)) == 3
    assert guarded.ask(command(guarded, "owner01", quota="")).code == 0
    assert guarded.plugin.quota("owner01") is None


def command(guarded: Guarded, name: str, *, quota: str) -> Command:
    header = CreateAccessConfigRequestHeader(name)
    request = Command.request(Code.UPDATE_AND_CREATE_ACL_CONFIG, header)
    return request.with_ext({**request.ext, "quota": quota})


MESSAGES, BODY_BYTES = 200, 100
AT_ONCE = 100
"""More messages than one request is answered with here."""


async def read_all(client: Client, kind: str) -> list[bytes]:
    """The bodies of all messages, in the order in which a consumer of this kind gets them."""
    found: list[bytes] = []
    if kind == "simple":
        async with client.simple_consumer("readers", {"Orders": "*"}, consume_from="first") as simple:
            while len(found) < MESSAGES:
                for message in await simple.receive(32, wait=20.0):
                    found.append(message.body)
                    await message.ack()
        return found
    leased = client.consumer("readers", {"Orders": "*"}, per_message=True, consume_from="first")
    plain = client.consumer("readers", {"Orders": "*"}, consume_from="first")
    with anyio.CancelScope() as scope:

        async def take(message: rmq.StoredMessage | rmq.ReceivedMessage) -> None:
            found.append(message.body)
            if len(found) == MESSAGES:
                scope.cancel()

        async with leased if kind == "leased" else plain as consumer:
            await consumer.run(take)
    return found


@pytest.mark.parametrize("kind", ["plain", "leased", "simple"])
@pytest.mark.parametrize(
    ("quota", "least_seconds"),
    [
        ("consumeMessages=10", (MESSAGES - AT_ONCE) / 10 - 1),
        ("consumeBytes=1k", (MESSAGES - AT_ONCE) * BODY_BYTES / 1024 - 1),
    ],
)
async def test_consumers_over_a_quota_wait_and_miss_nothing(
    tmp_path: Path, kind: str, quota: str, least_seconds: float
) -> None:
    """They are told nothing: the broker holds their requests. Others are not held."""
    reader = "secretKey: reader-secret-1, topicPerms: [Orders=PUB|SUB], groupPerms: [readers=SUB]"
    file = tmp_path / "plain_acl.yml"
    file.write_text(
        f"accounts:\n  - {{accessKey: metered01, {reader}, quota: {quota}}}\n"
        f"  - {{accessKey: another01, {reader}}}\n"
    )
    file.chmod(0o600)
    async with Cluster("a", plugins=("acl",), acl_file=str(file)) as cluster:
        broker = cluster["a"].server
        assert isinstance(broker, Broker)
        broker.topics.create_for_send("Orders", "TBW102", 4, "test")
        await cluster.advance(1)
        other = cluster.connect(credentials=rmq.Credentials("another01", "reader-secret-1"))
        metered = cluster.connect(credentials=rmq.Credentials("metered01", "reader-secret-1"))
        async with other, metered, other.producer("p") as producer:
            bodies = [b"%0*d" % (BODY_BYTES, number) for number in range(MESSAGES)]
            for body in bodies:
                await producer.send(rmq.Message("Orders", body))
            began = anyio.current_time()
            with anyio.fail_after(600):
                found = await read_all(metered, kind)
            took = anyio.current_time() - began
        assert sorted(found) == bodies
        assert least_seconds <= took, took
        ((account, what), row) = broker.quotas.throttled.popitem()
        assert (account, what, row.refused) == ("metered01", "consume", 0)
        assert row.held > 0
        assert not broker.quotas.throttled, "nobody else was held"
