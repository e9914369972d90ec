from __future__ import annotations

import pathlib
import re

import anyio
import pytest

import rmq
from tests.masters import Masters

from .conftest import Run


def fill(masters: Masters, mqadmin: Run, topic: str, sent: int, consumed: int) -> None:
    """A topic on the first master, with messages of which the group of its name has consumed some."""
    mqadmin("updateTopic", "-b", masters.first, "-t", topic, "-r", "1", "-w", "1")

    async def work(client: rmq.Client) -> None:
        async with client.producer("p") as producer:
            for number in range(sent):
                await producer.send(rmq.Message(topic, b"%d" % number))
        if consumed:
            async with client.consumer(topic, {topic: "*"}, consume_from="first") as consumer:
                for _ in range(consumed):
                    async with await anext(consumer):
                        pass

    masters.work(work)


def test_a_group_is_made_shown_and_deleted(masters: Masters, mqadmin: Run) -> None:
    made = mqadmin("updateSubGroup", "-c", "DefaultCluster", "-g", "made", "-r", "3", "-d", "true")
    assert f"create subscription group to {masters.second} success." in made.output
    assert "SubscriptionGroupConfig [groupName=made, consumeEnable=true" in made.output

    shown = mqadmin("getConsumerConfig", "-g", "made").output
    assert "DefaultCluster:embedded" in shown
    assert re.search(r"retryMaxTimes +=  3\n", shown)
    assert re.search(r"consumeBroadcastEnable +=  true\n", shown)

    gone = mqadmin("deleteSubGroup", "-c", "DefaultCluster", "-g", "made", "-r", "true")
    assert f"from broker [{masters.first}] in cluster [DefaultCluster] success." in gone.output
    assert mqadmin("getConsumerConfig", "-g", "made").exit_code == 1


def test_progress_of_one_group_and_of_all(masters: Masters, mqadmin: Run) -> None:
    fill(masters, mqadmin, "progress", sent=5, consumed=5)

    lines = mqadmin("consumerProgress", "-g", "progress").output.splitlines()
    heads = ["#Topic", "#Broker", "Name", "#QID", "#Broker", "Offset", "#Consumer", "Offset", "#Diff"]
    assert lines[0].split()[:9] == heads
    (queue,) = [line.split() for line in lines if line.startswith("progress")]
    assert queue[:6] == ["progress", "embedded", "0", "5", "5", "0"]
    assert lines[-1] == "Diff Total: 0"

    whole = mqadmin("consumerProgress").output.splitlines()
    (row,) = [line.split() for line in whole if line.startswith("progress")]
    assert (row[:3], row[-1]) == (["progress", "0", "OFFLINE"], "0")


def test_reset_by_time_and_skip(masters: Masters, mqadmin: Run) -> None:
    fill(masters, mqadmin, "reset", sent=4, consumed=4)

    back = mqadmin("resetOffsetByTime", "-g", "reset", "-t", "reset", "-s", "2020-01-01#00:00:00:000")
    assert "rollback consumer offset by specified group[reset], topic[reset], force[true]" in back.output
    assert back.output.splitlines()[-1].split() == ["embedded", "0", "0"]
    assert "Diff Total: 4" in mqadmin("consumerProgress", "-g", "reset").output

    skipped = mqadmin("skipAccumulatedMessage", "-g", "reset", "-t", "reset")
    assert skipped.output.splitlines()[-1].split() == ["embedded", "0", "4"]
    assert "Diff Total: 0" in mqadmin("consumerProgress", "-g", "reset").output

    wrong = mqadmin("resetOffsetByTime", "-g", "reset", "-t", "reset", "-s", "yesterday")
    assert wrong.exit_code == 2
    assert "yyyy-MM-dd#HH:mm:ss:SSS" in wrong.output


def test_offsets_are_cloned(masters: Masters, mqadmin: Run) -> None:
    fill(masters, mqadmin, "source", sent=3, consumed=3)

    said = mqadmin("cloneGroupOffset", "-s", "source", "-d", "target", "-t", "source")

    assert said.output.startswith("clone group offset success. srcGroup[source], destGroup=[target]")
    rows = masters.work(lambda client: client.admin.consumer_progress("target"))
    assert [row.consumer_offset for row in rows] == [3]
    assert mqadmin("cloneGroupOffset", "-s", "nobody", "-d", "target", "-t", "source").exit_code == 1


def test_members_are_shown_and_asked(
    masters: Masters, mqadmin: Run, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(masters, mqadmin, "members", sent=2, consumed=0)
    monkeypatch.chdir(tmp_path)
    said: dict[str, str] = {}

    def ask(client_id: str) -> None:
        for key, words in {
            "connection": ("consumerConnection", "-g", "members"),
            "status": ("consumerStatus", "-g", "members", "-i", client_id, "-s"),
            "files": ("consumerStatus", "-g", "members"),
            "owners": ("consumerProgress", "-g", "members", "-s", "true"),
            "all": ("consumerProgress",),
            "producers": ("producer", "-b", masters.first),
            "producer": ("producerConnection", "-g", "members-p", "-t", "members"),
            "watch": ("startMonitoring", "--rounds", "1"),
        }.items():
            result = mqadmin(*words)
            assert result.exit_code == 0, result.output
            said[key] = result.output

    async def work(client: rmq.Client) -> None:
        async with (
            client.producer("members-p") as producer,
            client.consumer("members", {"members": "TagA || TagB"}, consume_from="first") as consumer,
        ):
            await producer.send(rmq.Message("members", b"x", tags="TagA"))
            async with await anext(consumer):
                pass
            with anyio.fail_after(60):
                while True:
                    try:
                        await client.admin.producer_connection("members-p", "members")
                        await client.admin.consumer_connection("members")
                        break
                    except rmq.ResponseError:
                        await anyio.sleep(0.05)
            await anyio.to_thread.run_sync(ask, client.client_id)
            said["id"] = client.client_id

    masters.work(work)
    assert re.search(
        rf"^{re.escape(said['id'])} +127\.0\.0\.1:\d+ +PYTHON +V4_9_7$", said["connection"], re.M
    )
    assert re.search(r"^members +TagA \|\| TagB$", said["connection"], re.M)
    assert "ConsumeType: CONSUME_PASSIVELY" in said["connection"]
    assert "#Consumer Properties#" in said["status"]
    assert re.search(r"^members +embedded +0 ", said["status"], re.M)
    assert "Same subscription in the same group of consumer" in said["files"]
    (written,) = tmp_path.glob("*/*")
    assert "#Consumer RT&TPS#" in written.read_text("utf-8")
    assert re.search(r"^members +embedded +0 .* 127\.0\.0\.1 ", said["owners"], re.M)
    assert re.search(r"^members +1 +V4_9_7 +PUSH +CLUSTERING", said["all"], re.M)
    assert "producer group (members-p) instance : clientId=" in said["producers"]
    assert said["producer"].startswith("0001  ")
    assert "UndoneMsgs [consumerGroup=members, topic=members" in said["watch"]
