"""Answers for the stock Java client and mqadmin beyond plain messages: replies, SQL92, resets, relayed
calls."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.interop.conftest import Servers
from tests.interop.rocketmq import Process, Processes, wait_until

pytestmark = pytest.mark.interop


def bodies(process: Process) -> list[str]:
    return [row["body"] for row in process.rows if "body" in row]


def said(process: Process, key: str) -> list[Any]:
    return [row[key] for row in process.rows if key in row]


@pytest.mark.usefixtures("broker")
def test_questions_of_a_java_client_are_answered_by_another(processes: Processes, servers: Servers) -> None:
    processes.make_topic(servers.namesrv, "Questions")
    answerer = processes.program("Request", servers.namesrv, "Questions", "answer")
    wait_until(lambda: said(answerer, "ready"), 30, "the answering client")

    asker = processes.program("Request", servers.namesrv, "Questions", "ask", "5")

    assert [row["answer"] for row in asker.finish()] == [f"aq{number}" for number in range(5)]
    wait_until(lambda: len(said(answerer, "replied")) == 5, 30, "what the broker says to the answers")
    assert set(said(answerer, "replied")) == {"SEND_OK"}
    assert said(answerer, "failed") == []


def test_sql_selects_in_the_broker(processes: Processes, servers: Servers, tmp_path: pathlib.Path) -> None:
    servers.broker(tmp_path / "store", enablePropertyFilter="true")
    processes.program("Produce", servers.namesrv, "Sql", "sync", "30", "m").finish()

    consumer = processes.program(
        "ConsumeSql", servers.namesrv, "Sql", "sql", "TAGS IN ('T0', 'T2') AND KEYS <> 'm-0'"
    )
    wait_until(lambda: len(bodies(consumer)) >= 19, 60, "19 messages")
    assert sorted(bodies(consumer)) == sorted(f"m-{i}" for i in range(1, 30) if i % 3 != 1)

    wrong = processes.program("ConsumeSql", servers.namesrv, "Sql", "wrong", "a >")
    (row,) = wrong.finish()
    assert "CODE: 23" in row["refused"]


@pytest.mark.usefixtures("broker")
def test_a_consumer_is_asked_through_the_broker(processes: Processes, servers: Servers) -> None:
    sent = processes.program("Produce", servers.namesrv, "Relay", "sync", "4", "m").finish()
    consumer = processes.program("Consume", servers.namesrv, "Relay", "relay")
    wait_until(lambda: len(bodies(consumer)) >= 4, 60, "4 messages")

    listed = processes.mqadmin("consumerStatus", "-n", servers.namesrv, "-g", "relay")
    client = next(word for line in listed.splitlines() for word in line.split() if "@consume-" in word)
    status = processes.mqadmin("consumerStatus", "-n", servers.namesrv, "-g", "relay", "-i", client)
    assert "#Consumer Subscription#" in status
    assert "Relay" in status

    topic = ("-t", "Relay") if processes.java.version >= "5" else ()
    named = ("-n", servers.namesrv, "-i", sent[0]["offset_id"], "-g", "relay", "-d", client, *topic)
    said = processes.mqadmin("queryMsgById", *named)
    assert "CR_SUCCESS" in said
    wait_until(lambda: bodies(consumer).count(sent[0]["sent"]) == 2, 30, "the message, consumed directly")


@pytest.mark.usefixtures("broker")
def test_a_running_group_is_reset_by_time(processes: Processes, servers: Servers) -> None:
    processes.program("Produce", servers.namesrv, "Again", "sync", "20", "m").finish()
    consumer = processes.program("Consume", servers.namesrv, "Again", "again")
    wait_until(lambda: len(bodies(consumer)) >= 20, 60, "20 messages")
    progress = ("consumerProgress", "-n", servers.namesrv, "-g", "again")
    wait_until(
        lambda: "Diff Total: 0" in processes.mqadmin(*progress), 60, "the offsets at the broker", every=1
    )

    said = processes.mqadmin(
        "resetOffsetByTime", "-n", servers.namesrv, "-g", "again", "-t", "Again", "-s", "0"
    )

    assert "consumer offset by specified" in said
    wait_until(lambda: len(bodies(consumer)) >= 40, 60, "all messages once more")
