from __future__ import annotations

import pathlib
import re
import tempfile

import anyio
import pytest

import rmq
from tests.masters import Masters

from .conftest import Run


@pytest.fixture(autouse=True)
def bodies(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder of the written bodies."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def fill(masters: Masters, mqadmin: Run, topic: str, count: int = 3) -> list[rmq.SendResult]:
    """A topic of one queue on the first master, with messages."""
    mqadmin("updateTopic", "-b", masters.first, "-t", topic, "-r", "1", "-w", "1")

    async def work(client: rmq.Client) -> list[rmq.SendResult]:
        async with client.producer("p") as producer:
            return [
                await producer.send(
                    rmq.Message(topic, b"body %d" % number, keys=[f"k{number}"], tags=f"Tag{number % 2}")
                )
                for number in range(count)
            ]

    return masters.work(work)


def test_one_message_by_every_way(masters: Masters, mqadmin: Run, bodies: pathlib.Path) -> None:
    one = fill(masters, mqadmin, "ways")[1]
    assert one.offset_message_id is not None
    for words in (
        ("queryMsgById", "-i", one.offset_message_id),
        ("queryMsgByUniqueKey", "-t", "ways", "-i", one.message_id),
        ("queryMsgByOffset", "-t", "ways", "-b", "embedded", "-i", "0", "-o", "1"),
    ):
        said = mqadmin(*words).output
        assert re.search(rf"^OffsetID: +{one.offset_message_id}$", said, re.M)
        assert re.search(r"^Keys: +\[k1\]$", said, re.M)
        assert re.search(r"^Queue Offset: +1$", said, re.M)
        assert "WARN: No Consumer" in said
        path = re.search(r"^Message Body Path: +(.+)$", said, re.M)
        assert path is not None
        assert pathlib.Path(path[1]).read_bytes() == b"body 1"
        assert pathlib.Path(path[1]).parent.stat().st_mode & 0o077 == 0
    found = mqadmin("queryMsgByKey", "-t", "ways", "-k", "k2").output.splitlines()
    assert found[1].split()[1:] == ["0", "2"]
    for words in (
        ("queryMsgByKey", "-t", "ways", "-k", "none"),
        ("queryMsgByUniqueKey", "-t", "ways", "-i", "none"),
        ("queryMsgByOffset", "-t", "ways", "-b", "embedded", "-i", "0", "-o", "99"),
        ("queryMsgById", "-i", "nonsense"),
    ):
        assert mqadmin(*words).exit_code == 1


def test_a_message_is_sent_again_and_consumed_directly(masters: Masters, mqadmin: Run) -> None:
    one = fill(masters, mqadmin, "again", 1)[0]
    assert one.offset_message_id is not None
    seen: list[str] = []
    said: list[str] = []

    async def handle(message: rmq.StoredMessage) -> None:
        seen.append(message.body.decode())

    async def work(client: rmq.Client) -> None:
        def ask(*words: str) -> None:
            said.append(mqadmin(*words, "-g", "again", "-d", client.client_id).output)

        consumer = client.consumer("again", {"again": "*"}, consume_from="first")
        async with consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handle)
            with anyio.fail_after(60):
                while not seen:
                    await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(ask, "queryMsgById", "-i", one.offset_message_id)
            await anyio.to_thread.run_sync(ask, "queryMsgByUniqueKey", "-t", "again", "-i", one.message_id)
            tasks.cancel_scope.cancel()

    masters.work(work)
    assert seen == ["body 0"] * 3
    assert all("consumeResult=CR_SUCCESS" in text for text in said)

    sent = mqadmin("queryMsgById", "-i", one.offset_message_id, "-s", "true").output
    assert f"prepare resend msg. originalMsgId={one.offset_message_id}" in sent
    assert "SendResult [sendStatus=SEND_OK" in sent


def test_print_and_consume_and_count(masters: Masters, mqadmin: Run) -> None:
    fill(masters, mqadmin, "print", 4)

    printed = mqadmin("printMsg", "-t", "print").output
    assert re.findall(r"BODY: (.+)$", printed, re.M) == ["body 0", "body 1", "body 2", "body 3"]
    assert "minOffset=0, maxOffset=4, MessageQueue [topic=print, brokerName=embedded, queueId=0]" in printed
    hidden = mqadmin("printMsg", "-t", "print", "-d", "false", "-s", "Tag1").output
    assert hidden.count("BODY: NOT PRINT BODY") == 2
    later = mqadmin("printMsg", "-t", "print", "-b", "2099-01-01#00:00:00:000").output
    assert "MSGID" not in later

    queue = ("printMsgByQueue", "-t", "print", "-a", "embedded", "-i", "0")
    counted = mqadmin(*queue, "-f", "true").output.splitlines()
    assert sorted(line.split() for line in counted) == [
        ["Tag:", "Tag0", "Count:", "2"],
        ["Tag:", "Tag1", "Count:", "2"],
    ]
    assert mqadmin(*queue, "-p", "true", "-d", "true").output.count("BODY: body") == 4

    consumed = mqadmin("consumeMessage", "-t", "print", "-c", "3").output
    assert consumed.count("Consume ok") == 3
    one = mqadmin("consumeMessage", "-t", "print", "-b", "embedded", "-i", "0", "-o", "3").output
    assert re.findall(r"BODY: (.+)$", one, re.M) == ["body 3"]
    for words in (("-i", "0"), ("-b", "embedded", "-o", "1"), ("-s", "2099-01-01#00:00:00:000")):
        assert mqadmin("consumeMessage", "-t", "print", *words).exit_code == 2


def test_send_message_and_its_trace(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-b", masters.second, "-t", "sent", "-r", "2", "-w", "2")

    said = mqadmin(
        "sendMessage", "-t", "sent", "-p", "hello", "-k", "a b", "-c", "TagA", "-b", "second", "-i", "1",
        "-m", "true",
    )  # fmt: skip

    broker, queue, status, message_id = said.output.splitlines()[1].split()
    assert (broker, queue, status) == ("second", "1", "SEND_OK")
    lookup = masters.work(lambda client: client.admin.query_message("sent", "b"))
    assert [message.body for message in lookup.messages] == [b"hello"]
    trace = mqadmin("queryMsgTraceById", "-i", message_id).output.splitlines()
    assert trace[0].split() == [
        "#Type",
        "#ProducerGroup",
        "#ClientHost",
        "#SendTime",
        "#CostTimes",
        "#Status",
    ]
    assert trace[1].split()[:2] == ["Pub", "RMQ_ADMIN"]
    assert trace[1].split()[-1] == "success"
    assert mqadmin("queryMsgTraceById", "-i", "none").exit_code == 1
    assert mqadmin("sendMessage", "-t", "sent", "-p", "x", "-i", "1").exit_code == 2
    assert mqadmin("sendMessage", "-t", "sent", "-p", "x", "-b", "embedded").exit_code == 1


def test_what_others_wrote_does_not_steer_the_terminal(masters: Masters, mqadmin: Run) -> None:
    mqadmin("updateTopic", "-b", masters.first, "-t", "steer", "-r", "1", "-w", "1")

    async def work(client: rmq.Client) -> None:
        async with client.producer("p") as producer:
            await producer.send(rmq.Message("steer", b"\x1b[2Jgone\r\n", properties={"a": "\x1b]0;x"}))

    masters.work(work)
    said = mqadmin("printMsg", "-t", "steer").output
    assert "\x1b" not in said
    assert "\\x1b[2Jgone" in said
