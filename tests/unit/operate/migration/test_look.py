"""The look at a cluster before a migration, and the command that prints its findings."""

from __future__ import annotations

import json
import pathlib

import pytest

import rmq
from rmq.operate.migration.findings import findings
from rmq.operate.migration.look import look
from rmq.testing.cluster import Cluster
from tests.masters import running
from tests.system.shell import Shell


@pytest.fixture
def shell(tmp_path: pathlib.Path) -> Shell:
    return Shell(tmp_path)


async def test_facts_of_a_cluster() -> None:
    async with Cluster("a", "b", topics={"Orders": 2}) as cluster, cluster.connect() as client:
        async with client.producer("shop") as producer:
            for _ in range(3):
                await producer.send(rmq.Message("Orders", b"later", delay_level=3))
        await client.admin.put_kv_config("ORDER_TOPIC_CONFIG", "Orders", "a:2")
        topics = {"Orders": rmq.sql("amount > 1")}
        async with (
            client.producer("shop"),
            client.consumer("sifters", topics, consume_from="first"),
            client.consumer("all", {"Orders": "*"}, broadcasting=True),
        ):
            facts = await look(client.admin)
        assert [(one.name, one.is_java, one.is_5, one.error) for one in facts.brokers] == [
            ("a", False, False, ""),
            ("b", False, False, ""),
        ]
        assert sum(one.stored.get("SCHEDULE_TOPIC_XXXX", 0) for one in facts.brokers) == 3
        assert facts.sql_groups == ("sifters",)
        assert facts.broadcasting_groups == ("all",)
        assert facts.order_topics == ("Orders",)
        (kind,) = facts.clients
        assert kind.language == "PYTHON"
        assert set(kind.groups) <= {"all", "shop", "sifters"}
        assert {one.level for one in findings(facts)} == {"act", "note"}


def test_the_command(shell: Shell, tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as masters:
        done = shell.run("migrate", "check", masters.namesrv)
        assert done.exit_code == 0, done.stderr
        assert "already brokers of rmq" in done.stdout
        assert "brokers, " in done.stderr
        rows = json.loads(shell.run("migrate", "check", "-n", masters.namesrv, "--json").stdout)
        assert rows[0].keys() == {"level", "where", "what", "what_to_do"}
    assert shell.run("migrate", "check", "nowhere").exit_code == 2
