"""Acts on messages and offsets by pages: given to a member, copied, and offsets cloned after a preview."""

from __future__ import annotations

import re

import anyio
import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.message import Message, StoredMessage
from rmq.testing.cluster import Cluster

from .site import site, text_of


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
