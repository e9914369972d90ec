"""Acts by pages: a message given to a member or copied, offsets cloned, waiting messages, and settings that
two people change."""

from __future__ import annotations

import html
import re

import anyio
import pytest
from attrs import evolve

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq import UNKNOWN, Decision
from rmq.message import Message, StoredMessage
from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq.protocol.codes import PERM_READ
from rmq.testing.cluster import Cluster

from .site import BASE, site, text_of


async def test_a_message_is_given_to_a_member_and_the_page_says_what_became_of_it() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 1}) as cluster,
        site(cluster) as made,
        cluster.connect(client_id="10.0.0.7@worker") as client,
    ):
        async with client.producer("checkout") as producer:
            await producer.send(Message("Orders", b"book"))
            await producer.send(Message("Orders", b"broken"))
        seen: list[bytes] = []

        async def handle(message: StoredMessage) -> None:
            seen.append(message.body)
            if message.body == b"broken":
                raise ValueError("no such <b>article</b>")

        async with (
            client.consumer("billing", {"Orders": "*"}, consume_from="last") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await client.ready()
            book, broken = (one.offset_message_id for one in cluster.sent("Orders"))
            admin = await made.admin()
            page = await admin.get(f"/c/test/messages/show?topic=Orders&id={book}")
            assert "Give it to a group" in text_of(page.text)

            form = {"topic": "Orders", "group": "billing"}
            before = seen.count(b"book")
            done = await admin.post("/c/test/messages/give", id=book, **form)
            assert "The member says CR_SUCCESS" in text_of(done.text)
            assert seen.count(b"book") == before + 1
            failed = text_of((await admin.post("/c/test/messages/give", id=broken, **form)).text)
            assert "no such <b>article</b>" in failed
            gone = await admin.post("/c/test/messages/give", id=book, client_id="gone", **form)
            assert (gone.status_code, "members are 10.0.0.7@worker" in text_of(gone.text)) == (404, True)
            none = await admin.post("/c/test/messages/give", **{**form, "id": book, "group": "nobody"})
            assert none.status_code == 404
            tasks.cancel_scope.cancel()


async def test_a_copy_of_a_message_is_sent_to_its_topic_or_another() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 1, "Mail": 1}, auto_create_topic_enable=False) as cluster,
        site(cluster) as made,
        cluster.connect() as client,
    ):
        async with client.producer("checkout") as producer:
            given = {"colour": "red"}
            await producer.send(Message("Orders", b"book", tags="paid", keys="k", properties=given))
        (stored,) = cluster.sent("Orders")
        admin = await made.admin()
        await admin.get("/c/test")

        form = {"topic": "Orders", "id": stored.offset_message_id}
        done = await admin.post("/c/test/messages/copy", to_topic="Mail", **form)
        assert done.status_code == 200
        (copy,) = cluster.sent("Mail")
        assert (copy.body, copy.tags, copy.keys, copy.properties["colour"]) == (
            b"book",
            "paid",
            ("k",),
            "red",
        )
        assert copy.message_id != stored.message_id
        assert copy.message_id in done.text
        await admin.post("/c/test/messages/copy", to_topic="", **form)
        assert [one.body for one in cluster.sent("Orders")] == [b"book", b"book"]
        system = await admin.post("/c/test/messages/copy", to_topic="SCHEDULE_TOPIC_XXXX", **form)
        assert system.status_code == 400
        missing = await admin.post("/c/test/messages/copy", to_topic="Nothing", **form)
        assert missing.status_code == 404


async def test_offsets_are_copied_to_another_group_after_a_preview() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 2, "Mail": 1}) as cluster,
        site(cluster) as made,
        cluster.connect() as client,
    ):
        await client.admin.create_group("billing")
        await client.admin.create_group("archive")
        async with client.producer("checkout") as producer:
            for topic in ("Orders", "Mail"):
                for _ in range(6):
                    await producer.send(Message(topic, b"one"))
        async with client.pull_consumer("billing") as consumer:
            for topic in ("Orders", "Mail"):
                for queue in await consumer.message_queues(topic):
                    await consumer.commit(queue, 2)
        admin = await made.admin()
        await admin.get("/c/test/groups/billing/copy")

        preview = await admin.post("/c/test/groups/billing/copy", to_group="archive", topic="Orders")
        assert "archive gets the offsets of 2 queues" in text_of(preview.text)
        assert re.search("Orders shop-a 0 (0|-) 2 Orders shop-a 1", text_of(preview.text))
        empty = await admin.get("/c/test/groups/archive/copy")
        assert "Nothing to copy" in text_of(empty.text)

        form = {"to_group": "archive", "act": "save"}
        assert (await admin.post("/c/test/groups/billing/copy", topic="", **form)).status_code == 303
        progress = await client.admin.consume_stats("archive")
        offsets = {(row.message_queue.topic, row.consumer_offset) for row in progress.queues}
        assert offsets == {("Orders", 2), ("Mail", 2)}
        missing = await admin.post("/c/test/groups/billing/copy", topic="Nothing", **form)
        assert missing.status_code == 404


# --- settings ---


async def test_a_change_keeps_the_settings_that_it_does_not_name() -> None:
    async with (
        Cluster("shop-a", topics={}) as cluster,
        site(cluster) as made,
        cluster.connect() as client,
    ):
        config = TopicConfig("Orders", 8, 4, attributes={"message.type": "FIFO"})
        await client.admin.put_topic(config)
        await client.admin.put_group(
            SubscriptionGroupConfig("billing", notify_consumer_ids_changed_enable=False, retry_queue_nums=3)
        )
        admin = await made.admin()
        form = form_of((await admin.get("/c/test/topics/Orders/edit")).text)
        assert form["queues"] == "8"
        done = await admin.post("/c/test/topics/Orders/edit", **{**form, "perm": "read"}, act="save")
        assert done.status_code == 303, text_of(done.text)
        (topic,) = (await client.admin.topic_config("Orders")).values()
        assert topic == evolve(config, perm=PERM_READ)

        form = form_of((await admin.get("/c/test/groups/billing/edit")).text)
        done = await admin.post("/c/test/groups/billing/edit", **{**form, "retries": "3"})
        assert done.status_code == 303, text_of(done.text)
        (group,) = (await client.admin.group_config("billing")).values()
        assert (group.retry_max_times, group.retry_queue_nums, group.notify_consumer_ids_changed_enable) == (
            *(3, 3),
            False,
        )


async def test_a_second_person_does_not_overwrite_the_change_of_the_first() -> None:
    async with Cluster("shop-a", topics={"Orders": 4}) as cluster, site(cluster) as made:
        ada, otto = await made.admin(), await made.admin()
        path = "/c/test/topics/Orders/edit"
        forms = [form_of((await one.get(path)).text) for one in (ada, otto)]
        assert (await ada.post(path, **{**forms[0], "queues": "6"}, act="save")).status_code == 303
        late = await otto.post(path, **{**forms[1], "queues": "5"}, act="save")
        assert "another user has changed or deleted the topic Orders" in text_of(late.text)
        assert "6 queues (read, write) become 5" in text_of(late.text)
        assert "6" in text_of((await ada.get("/c/test/topics/Orders")).text).partition("Queues ")[2][:3]
        again = form_of(late.text)
        assert (await otto.post(path, **again, act="save")).status_code == 303  # having seen the other's
        new = await ada.post("/c/test/new-topic", topic="Orders", queues="1", act="save")
        assert "the topic Orders exists already" in text_of(new.text)

        path = "/c/test/groups/billing/edit"
        assert (await ada.post("/c/test/new-group", group="billing", retries="3")).status_code == 303
        twice = await otto.post("/c/test/new-group", group="billing", retries="9")
        assert "the group billing exists already" in text_of(twice.text)
        forms = [form_of((await one.get(path)).text) for one in (ada, otto)]
        assert (await ada.post(path, **{**forms[0], "retries": "5"})).status_code == 303
        late = await otto.post(path, **{**forms[1], "retries": "7"})
        assert "another user has changed or deleted the group billing" in text_of(late.text)
        assert form_of(late.text)["retries"] == "5"


def form_of(page: str) -> dict[str, str]:
    """The fields of the form in the middle of a page, as a browser sends them."""
    main = page.partition("<main")[2]
    found = {}
    for tag in re.findall(r"<input [^>]*>", main):
        given = dict(re.findall(r'([a-z]+)="([^"]*)"', tag))
        if "name" in given and given["name"] != "csrf" and (given["type"] != "checkbox" or " checked" in tag):
            found[given["name"]] = html.unescape(given["value"])
    for name, options in re.findall(r'<select [^>]*name="(\w+)">(.*?)</select>', main):
        chosen = re.findall(r'<option value="([^"]*)" selected>', options)
        found[name] = html.unescape(chosen[0]) if chosen else ""
    return found


# --- messages that wait ---


async def unknown(message: StoredMessage) -> Decision:
    return UNKNOWN


async def test_messages_that_wait_are_listed_and_one_is_recalled() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 2}) as cluster,
        site(cluster) as made,
        cluster.connect() as client,
    ):
        async with client.producer("checkout") as producer:
            await producer.send(Message("Orders", b"<i>at a level</i>", delay_level=14))
            for name in (b"first", b"second"):
                await producer.send(Message("Orders", name, delay_ms=3_600_000))
        admin = await made.admin()
        levels = await admin.get("/c/test/delayed")
        assert "level=14&amp;broker=shop-a" in levels.text
        waiting = await admin.get("/c/test/delayed/messages?level=14&broker=shop-a")
        assert "<i>at a level</i>" in text_of(waiting.text)
        assert "&lt;i&gt;" in waiting.text
        timed = await admin.get("/c/test/delayed/messages")
        assert "second" in text_of(timed.text)
        handles = re.findall(r'name="handle" value="([^"]+)"', timed.text)
        assert len(handles) == 2
        done = await admin.post("/c/test/delayed", handle=html.unescape(handles[0]))
        assert done.status_code == 303, text_of(done.text)
        left = text_of((await admin.get("/c/test/delayed/messages")).text)
        assert ("first" in left) + ("second" in left) == 1
        first = await admin.get("/c/test/delayed/messages?count=1")
        assert "Next page" in first.text
        assert (await admin.get("/c/test/delayed/messages?level=1&broker=shop-a&cursor=x")).status_code == 400
        assert (await admin.get("/c/test/delayed/messages?level=1&broker=10.0.0.1:9")).status_code == 404


async def test_open_transactions_are_listed() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 2}) as cluster,
        site(cluster) as made,
        cluster.connect() as client,
    ):
        admin = await made.admin()
        assert "None is open" in text_of((await admin.get("/c/test/transactions/open")).text)
        async with client.transactional_producer("payer", unknown) as producer:
            for body in (b"paid", b"open"):
                async with producer.transaction(Message("Orders", body)) as transaction:
                    if body == b"open":
                        transaction.decision = UNKNOWN
            text = text_of((await admin.get("/c/test/transactions/open")).text)
            assert "Orders payer 0 open" in text
            assert "paid" not in text
        assert (await admin.get("/c/test/transactions/open?broker=10.0.0.1:9")).status_code == 404


async def test_the_dashboard_connects_to_brokers_of_the_cluster_only() -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        admin = await made.admin()
        await admin.get("/c/test")
        own = cluster["shop-a"].address
        elsewhere = "0A00080100002A9F" + "0" * 16  # 10.0.8.1:10911
        assert own != "10.0.8.1:10911"
        api = "/api/v1/clusters/test"
        for path, given in (
            ("/message/give", {"topic": "", "id": elsewhere, "group": "billing"}),
            ("/message/copy", {"topic": "", "id": elsewhere}),
            ("/transactions/resume", {"id": elsewhere}),
        ):
            answer = await admin.http.post(
                f"{api}{path}", json=given, headers={"origin": BASE, "x-csrf-token": admin.csrf}
            )
            assert "where no broker of this cluster is" in answer.json()["error"]["message"], path
        put = {"json": {"broker": "10.0.8.1:10911"}, "headers": {"origin": BASE, "x-csrf-token": admin.csrf}}
        for path in ("/groups/billing", "/topics/New"):
            answer = await admin.http.put(f"{api}{path}", **put)
            assert "there is no master 10.0.8.1:10911" in answer.json()["error"]["message"], path
        for topic, error in (("", "UnknownName"), ("Orders", "QueryNotFound")):
            seen = await admin.http.get(f"{api}/message", params={"id": elsewhere, "topic": topic})
            assert seen.json()["error"]["name"] == error
