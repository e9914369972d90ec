"""`rmq admin` against a Java broker and name server: it works, and prints what mqadmin prints."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator

import attrs
import pytest
import trio
from click.testing import CliRunner

import rmq
from rmq.cli.admin import admin
from tests.interop.rocketmq import Java, Mqadmin, Processes

pytestmark = pytest.mark.interop


@attrs.frozen
class JavaCluster:
    """A Java name server, a Java broker `interop-a`, and the real tool, kept running."""

    namesrv: str
    broker: str
    mqadmin: Mqadmin
    sent: list[rmq.SendResult]

    def ours(self, name: str, *words: str) -> str:
        """The output of `rmq admin`."""
        said = CliRunner().invoke(admin, [name, "-n", self.namesrv, *words])
        assert said.exit_code == 0, said.output
        return said.output


@pytest.fixture(scope="module")
def cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    folder = tmp_path_factory.mktemp("rmq-admin")
    with Processes(java, folder, broker_heap="256m") as started:
        namesrv = started.java_namesrv()
        broker = started.java_broker(namesrv, folder / "store")
        sent = trio.run(fill, namesrv)
        yield JavaCluster(namesrv, f"127.0.0.1:{broker.port}", started.mqadmin_shell(namesrv), sent)


async def fill(namesrv: str) -> list[rmq.SendResult]:
    """Topic Orders with 6 messages, of which group billing has consumed all; one more comes then."""
    async with rmq.connect(namesrv) as client:
        await client.admin.create_topic("Orders", cluster="DefaultCluster", queues=2)
        async with client.producer("sellers") as producer:
            sent = [
                await producer.send(rmq.Message("Orders", b"%d" % number, keys=[f"k{number}"], tags="TagA"))
                for number in range(6)
            ]
        async with client.consumer("billing", {"Orders": "*"}, consume_from="first") as consumer:
            for _ in sent:
                async with await anext(consumer):
                    pass
        async with client.producer("sellers") as producer:
            sent.append(await producer.send(rmq.Message("Orders", b"6"), queue=sent[0].message_queue))
        return sent


def cells(text: str) -> list[list[str]]:
    """The words of each line; order aside, since Java prints maps in the order of hashes."""
    return sorted(line.split() for line in text.splitlines() if line.strip())


SAME = [
    ("topicStatus", "-t", "Orders"),
    ("topicClusterList", "-t", "Orders"),
    ("topicRoute", "-t", "Orders", "-l"),
    ("topicList",),
    ("topicList", "-c"),
    ("consumerProgress", "-g", "billing"),
    ("getConsumerConfig", "-g", "billing"),
    ("queryMsgByKey", "-t", "Orders", "-k", "k3"),
    ("queryCq", "-t", "Orders", "-q", "0", "-i", "0"),
    ("brokerConsumeStats", "-b", "BROKER"),
    ("getBrokerConfig", "-b", "BROKER"),
    ("getNamesrvConfig",),
    ("updateTopic", "-b", "BROKER", "-t", "Made", "-r", "3", "-w", "2"),
    ("updateSubGroup", "-b", "BROKER", "-g", "made", "-r", "4"),
    ("updateKvConfig", "-s", "ns", "-k", "key", "-v", "value"),
    ("deleteKvConfig", "-s", "ns", "-k", "key"),
    ("wipeWritePerm", "-b", "interop-a"),
    ("addWritePerm", "-b", "interop-a"),
    ("updateBrokerConfig", "-b", "BROKER", "-k", "fileReservedTime", "-v", "50"),
    ("cleanUnusedTopic", "-b", "BROKER"),
    ("cloneGroupOffset", "-s", "billing", "-d", "copied", "-t", "Orders"),
    ("deleteSubGroup", "-b", "BROKER", "-g", "made"),
]


@pytest.mark.parametrize("words", SAME, ids=" ".join)
def test_prints_the_same_as_mqadmin(cluster: JavaCluster, words: tuple[str, ...]) -> None:
    name, *options = [cluster.broker if word == "BROKER" else word for word in words]

    ours = cells(cluster.ours(name, *options))
    theirs = cells(cluster.mqadmin(name, *options))

    assert ours == theirs


def test_figures_have_the_same_names_and_columns(cluster: JavaCluster) -> None:
    ours = cluster.ours("brokerStatus", "-b", cluster.broker)
    theirs = cluster.mqadmin("brokerStatus", "-b", cluster.broker)
    assert [line.split()[0] for line in ours.splitlines()] == [
        line.split()[0] for line in theirs.splitlines()
    ]

    for words in (
        ("clusterList",),
        ("clusterList", "-m"),
        ("statsAll", "-t", "Orders"),
        ("consumerProgress",),
    ):
        ours, theirs = cluster.ours(*words), cluster.mqadmin(*words)
        first, second = (text.splitlines() for text in (ours, theirs))
        assert first[0].split() == second[0].split()
        assert sorted(line.split()[:2] for line in first) == sorted(line.split()[:2] for line in second)


def test_queues_are_shared_out_in_the_same_form(cluster: JavaCluster) -> None:
    words = ("allocateMQ", "-t", "Orders", "-i", "10.0.0.1")
    # With one member only the order differs: mqadmin does not sort the queues before it shares them out.
    assert sorted(cluster.ours(*words)) == sorted(cluster.mqadmin(*words))


def test_one_message_is_shown_alike(cluster: JavaCluster) -> None:
    one = cluster.sent[2]
    assert one.offset_message_id is not None
    for words in (
        ("queryMsgById", "-i", one.offset_message_id),
        ("queryMsgByUniqueKey", "-t", "Orders", "-i", one.message_id),
    ):
        ours = shown(cluster.ours(*words))
        theirs = shown(cluster.mqadmin(*words))
        assert ours.items() >= theirs.items()


def shown(text: str) -> dict[str, str]:
    """The rows of a message; paths of bodies and maps of properties are each tool's own."""
    rows = dict(re.findall(r"^([A-Z][\w ]+): +(.*)$", text, re.M))
    return {name: value for name, value in rows.items() if name not in ("Message Body Path", "Properties")}


def test_a_group_is_reset_by_time_and_to_the_end(cluster: JavaCluster) -> None:
    cluster.ours("resetOffsetByTime", "-g", "billing", "-t", "Orders", "-s", "0")
    assert "Diff Total: 7" in cluster.mqadmin("consumerProgress", "-g", "billing")
    cluster.ours("skipAccumulatedMessage", "-g", "billing", "-t", "Orders")
    assert "Diff Total: 0" in cluster.mqadmin("consumerProgress", "-g", "billing")


def test_messages_are_sent_and_printed(cluster: JavaCluster) -> None:
    said = cluster.ours("sendMessage", "-t", "Orders", "-p", "from the tool", "-k", "tool")
    assert said.splitlines()[1].split()[2] == "SEND_OK"
    assert "BODY: from the tool" in cluster.ours("printMsg", "-t", "Orders")
    assert cluster.ours("sendMsgStatus", "-b", "interop-a", "-c", "2").count("SEND_OK") == 2


def test_exports_hold_what_mqadmin_exports(cluster: JavaCluster, tmp_path: pathlib.Path) -> None:
    for name, file in (
        ("exportMetadata", "metadata"),
        ("exportConfigs", "configs"),
        ("exportMetrics", "metrics"),
    ):
        cluster.ours(name, "-c", "DefaultCluster", "-f", str(tmp_path / "ours"))
        cluster.mqadmin(name, "-c", "DefaultCluster", "-f", str(tmp_path / "theirs"))
        ours, theirs = (
            json.loads((tmp_path / who / f"{file}.json").read_text("utf-8")) for who in ("ours", "theirs")
        )
        assert paths(ours) == paths(theirs)


def paths(value: object, path: str = "") -> set[str]:
    """The names of all members, in full."""
    if not isinstance(value, dict):
        return {path}
    return {one for key, item in value.items() for one in paths(item, f"{path}/{key}")}
