"""Operations on a cluster (rmq.operate) against Java's servers: values as on our own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import attrs
import pytest
import trio

import rmq
from rmq.message import StoredMessage
from rmq.operate import brokers, groups, members, name_servers, topics
from rmq.operate.diagnosis import diagnose
from rmq.operate.examination import examine
from rmq.operate.messages import dead_letters, delayed, lookup, pages, traces, transactions
from rmq.operate.overview import overview
from tests.interop.rocketmq import Java, Processes
from tests.masters import work

pytestmark = pytest.mark.interop
T = TypeVar("T")


@attrs.frozen
class JavaCluster:
    """A Java name server and a Java broker `interop-a`."""

    namesrv: str

    def work(self, scenario: Callable[[rmq.Client], Coroutine[Any, Any, T]]) -> T:
        """Run `scenario(client)`."""
        return work(self.namesrv, scenario)


@pytest.fixture(scope="module")
def cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    folder = tmp_path_factory.mktemp("operate")
    with Processes(java, folder, broker_heap="256m") as started:
        namesrv = started.java_namesrv()
        started.java_broker(
            namesrv, folder / "store", traceTopicEnable="true", transactionCheckInterval="1000"
        )
        made = JavaCluster(namesrv)
        made.work(fill)
        yield made


async def fill(client: rmq.Client) -> None:
    """Topic Orders with 40 messages, of which group billing has consumed 30."""
    await client.admin.create_topic("Orders", queues=4)
    await client.admin.create_group("billing")
    async with client.producer("sellers") as producer:
        for number in range(40):
            await producer.send(rmq.Message("Orders", b"%d" % number, keys=[f"k{number}"]))
    async with client.consumer("billing", {"Orders": "*"}, consume_from="first") as consumer:
        for _ in range(30):
            async with await anext(consumer):
                pass


def test_overview_and_settings(cluster: JavaCluster) -> None:
    async def look(client: rmq.Client) -> None:
        (one,) = (await overview(client.admin)).brokers
        assert (one.kind, one.version, one.role, one.error) == ("java", "V4_9_7", "master", None)
        assert one.messages_today is not None
        assert one.messages_today >= 40
        assert one.disk_ratio is not None
        assert one.log_end
        known = {row.key: row for row in await brokers.settings(client.admin, one.name)}
        assert known["fileReservedTime"].may_change is None
        assert known["fileReservedTime"].help
        (change,) = await brokers.preview_settings(client.admin, one.name, {"fileReservedTime": "71"})
        assert (change.before, change.error) == (known["fileReservedTime"].value, "")
        assert "putTps" in brokers.sections(one.runtime)["messages"]
        (server,) = await name_servers.name_servers(lambda _: rmq.connect(cluster.namesrv), [cluster.namesrv])
        assert (server.brokers, server.error) == ((one.name,), "")
        await name_servers.put(client.admin, "N", "k", "v")
        assert await name_servers.key_values(client.admin, "N") == {"k": "v"}

    cluster.work(look)


def test_topics(cluster: JavaCluster) -> None:
    async def look(client: rmq.Client) -> None:
        names = {one.name: one for one in await topics.topics(client.admin)}
        assert (names["Orders"].read_queues, names["Orders"].perm) == (4, "rw")
        assert "SCHEDULE_TOPIC_XXXX" not in names
        assert sum(one.messages for one in await topics.queues(client.admin, "Orders")) == 40
        (reader,) = [one for one in await topics.readers(client.admin, "Orders") if one.group == "billing"]
        assert reader.lag == 10
        wanted = await topics.preview_change(client.admin, "Orders", {"read_queue_nums": 1})
        assert not wanted.is_empty
        assert sum(wanted.hidden.values()) <= 10
        assert await topics.create(client.admin, "Other", queues=2)
        await topics.change(client.admin, await topics.preview_change(client.admin, "Other", {"perm": 4}))
        assert (await topics.topic(client.admin, "Other")).perm == "r"

    cluster.work(look)


def test_groups_and_members(cluster: JavaCluster) -> None:
    async def look(client: rmq.Client) -> None:
        rows = {one.name: one for one in await groups.groups(client.admin)}
        assert (rows["billing"].lag, rows["billing"].members) == (10, 0)
        assert (await groups.progress(client.admin, "billing", "Orders")).lag == 10
        stalled = await groups.stalled(client, "billing", now_ms=4_000_000_000_000)
        assert stalled
        assert all(one.message is not None for one in stalled)
        back = await groups.preview_reset(client, "billing", "Orders", groups.EARLIEST)
        assert (back.again, back.skipped) == (30, 0)
        ahead = await groups.preview_reset(client, "billing", "Orders", groups.TO_THE_END)
        assert (ahead.again, ahead.skipped) == (0, 10)
        async with client.consumer("audit", {"Orders": "*"}, consume_from="first"):
            (one,) = await members.members(client.admin, "audit", stack=True)
            assert one.subscriptions is not None
            assert one.subscriptions["Orders"] == "*"
            (broker,) = (await overview(client.admin)).brokers
            found = await members.connections(client.admin, broker.name)
            assert ("consumer", "audit") in {(row.kind, row.group) for row in found}
        await groups.clone(client.admin, "billing", "copy", "Orders")
        assert (await groups.progress(client.admin, "copy", "Orders")).lag == 10

    cluster.work(look)


def test_messages_in_pages(cluster: JavaCluster) -> None:
    async def look(client: rmq.Client) -> None:
        for newest_first in (True, False):
            seen: list[int] = []
            cursor: str | None = None
            while True:
                page = await pages.read_page(
                    client, "Orders", count=7, cursor=cursor, newest_first=newest_first
                )
                assert page.total == 40
                seen += [int(message.body) for message in page.messages]
                cursor = page.cursor
                if cursor is None:
                    break
            assert sorted(seen) == list(range(40))
            assert len(seen) == 40
        found = await lookup.find(client.admin, "Orders", "k7", now_ms=rmq_now(page.messages))
        assert [message.body for message in found.messages] == [b"7"]
        detail = await lookup.detail(client.admin, found.messages[0].message_id, "Orders")
        assert detail.body.text == "7"
        assert "billing" in {track.group for track in detail.tracks}

    cluster.work(look)


def rmq_now(messages: object) -> int:
    """A time after all that were stored."""
    assert isinstance(messages, list)
    return max(message.store_timestamp for message in messages) + 1000


def test_delayed_dead_and_half_messages(cluster: JavaCluster) -> None:
    async def unknown(message: StoredMessage) -> rmq.Decision:
        return rmq.UNKNOWN

    async def look(client: rmq.Client) -> None:
        async with client.producer("sellers") as producer:
            await producer.send(rmq.Message("Orders", b"later", delay_level=18))
        with trio.fail_after(30):
            while not (waiting := [one for one in await delayed.delay_levels(client.admin) if one.waiting]):
                await trio.sleep(0.5)
        ((later,),) = [await delayed.waiting_at_level(client, one) for one in waiting]
        assert (later.topic, later.message.body, later.level) == ("Orders", b"later", 18)
        assert 7_100_000 < later.due_ms - later.message.born_timestamp < 7_300_000

        async with client.transactional_producer("halves", unknown) as transactional:
            for number in range(3):
                async with transactional.transaction(
                    rmq.Message("Orders", b"half%d" % number)
                ) as transaction:
                    transaction.decision = rmq.UNKNOWN if number else rmq.ROLLBACK
        with trio.fail_after(60):  # a broker of RocketMQ tells of its half messages once it has checked them
            while not (found := (await transactions.open_halves(client))[0]).halves:
                await trio.sleep(0.5)
        assert sorted(half.message.body for half in found.halves) == [b"half1", b"half2"]
        assert {half.group for half in found.halves} == {"halves"}

        await client.admin.create_topic("Bad", queues=1)
        async with client.producer("sellers") as producer:
            await producer.send(rmq.Message("Bad", b"dead"))
        options = {"consume_from": "first", "max_reconsume_times": 0, "on_error": "retry"}
        async with client.consumer("failing", {"Bad": "*"}, **options) as consumer:  # type: ignore[arg-type]
            delivery = await anext(consumer)
            async with delivery:
                raise ValueError("no")
        with trio.fail_after(60):
            while not (letters := await dead_letters.groups_with_letters(client.admin)):
                await trio.sleep(0.5)
        assert [(one.group, one.count) for one in letters] == [("failing", 1)]
        (letter,) = (await dead_letters.read_letters(client, "failing")).letters
        assert (letter.topic, letter.message.body) == ("Bad", b"dead")
        assert [one.count for one in await dead_letters.by_reason(client, "failing")] == [1]

    cluster.work(look)


def test_a_trace_and_a_diagnosis(cluster: JavaCluster) -> None:
    async def look() -> None:
        async with rmq.connect(cluster.namesrv, plugins=[rmq.MessageTrace()]) as client:
            async with client.producer("sellers") as producer:
                sent = await producer.send(rmq.Message("Orders", b"traced"))
            with trio.fail_after(60):
                while not (line := await traces.timeline(client.admin, sent.message_id)).steps:
                    await trio.sleep(0.5)
            assert [one.kind for one in line.steps] == ["send"]
        facts = await examine(lambda some: rmq.connect(some), [cluster.namesrv], lag_limit=5)
        found = {(finding.subject, finding.level) for finding in diagnose(facts)}
        assert (("group", "billing"), "wrong") in found

    trio.run(look)
