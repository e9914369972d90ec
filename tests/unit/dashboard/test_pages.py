"""Each page with real data of a cluster in memory, and that what others wrote shows as text."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from starlette.requests import ClientDisconnect

from rmq.client.observability.trace import MessageTrace
from rmq.dashboard.errors import TooMany
from rmq.dashboard.operations.tail import STREAMS, STREAMS_OF_ONE, Streams
from rmq.message import Message, StoredMessage
from rmq.testing.cluster import Cluster
from tests.unit.dashboard.site import consumed

from .site import Browser, Site, site, text_of

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202eend"
PATHS = (
    "",
    "/changes",
    "/topics",
    "/topics?kind=system",
    "/topics/Orders",
    "/topics/Orders/edit",
    "/topics/Orders/send",
    "/topics/Orders/delete",
    "/topics/Orders/tail",
    "/new-topic",
    "/groups",
    "/groups?sort=name&search=bill",
    "/groups/billing",
    "/groups/billing/check",
    "/groups/billing/edit",
    "/groups/billing/reset",
    "/groups/billing/copy",
    "/groups/billing/delete",
    "/groups/billing/times?topic=Orders",
    "/new-group",
    "/messages",
    "/messages?topic=Orders",
    "/messages?topic=Orders&key=order-1",
    "/messages?topic=Orders&text=book&newest_first=false",
    "/dead-letters",
    "/dead-letters?group=billing",
    "/brokers",
    "/brokers/shop-a",
    "/brokers/shop-a?show=settings",
    "/brokers/shop-a/setting?name=fileReservedTime",
    "/delayed",
    "/delayed/messages",
    "/transactions",
    "/transactions/open",
    "/name-servers",
    "/name-servers?topic=Orders",
    "/controllers",
    "/streams",
    "/jobs",
)


@asynccontextmanager
async def shop() -> AsyncIterator[Site]:
    """A shop: ten orders, consumed by billing, which gives two up."""
    async with (
        Cluster("shop-a", "shop-b", topics={"Orders": 4, "Mail": 2}) as cluster,
        cluster.connect() as client,
    ):
        async with client.producer("checkout") as producer:
            for number in range(10):
                body = json.dumps({"order": number, "item": "book" if number else "lamp"}).encode()
                await producer.send(Message("Orders", body, tags="paid", keys=[f"order-{number}"]))
                await cluster.advance(0.01)
        await consumed(client, "billing", "Orders", 10, fails="lamp")
        await cluster.advance(1)
        async with site(cluster) as made:
            yield made


async def test_every_page_shows_with_real_data() -> None:
    async with shop() as made:
        admin = await made.admin()

        for path in PATHS:
            answer = await admin.get(f"/c/test{path}")
            assert answer.status_code == 200, (path, text_of(answer.text))
            assert "<h1>" in answer.text, path


async def test_the_overview_has_brokers_lag_and_alarms() -> None:
    async with shop() as made:
        async with made.cluster.connect() as client, client.producer("checkout") as producer:
            await producer.send(Message("Orders", b"new"))
        text = text_of((await made.browser().get("/c/test")).text)

        assert "shop-a" in text
        assert "shop-b" in text
        assert "durability is memory" in text
        assert re.search(r"billing 1\b", text)


async def test_a_topic_is_created_changed_with_a_preview_sent_to_and_deleted_by_its_name() -> None:
    async with shop() as made:
        admin = await made.admin()
        await admin.get("/c/test/new-topic")

        preview = await admin.post("/c/test/new-topic", topic="New", queues="3", act="preview")
        assert "3 queues (read, write) are created" in text_of(preview.text)
        assert (await admin.get("/c/test/topics/New")).status_code == 404
        created = await admin.post("/c/test/new-topic", topic="New", queues="3", act="save")
        assert created.headers["location"] == "/c/test/topics/New"
        sent = await admin.post(
            "/c/test/topics/New/send", body="héllo", keys="k1 k2", properties="a=b\nc = d e"
        )
        assert "Stored in" in text_of(sent.text)
        (message,) = made.cluster.sent("New")
        assert (message.body.decode(), message.keys, message.properties["c"]) == (
            "héllo",
            ("k1", "k2"),
            "d e",
        )

        fewer = await admin.post("/c/test/topics/New/edit", queues="1", act="preview")
        assert "3 queues (read, write) become 1" in text_of(fewer.text)
        refused = await admin.post("/c/test/topics/New/delete", confirm="new")
        assert refused.status_code == 400
        assert (await admin.post("/c/test/topics/New/delete", confirm="New")).status_code == 303
        assert (await admin.get("/c/test/topics/New")).status_code == 404


async def test_messages_are_paged_by_time_and_found_by_key() -> None:
    async with shop() as made:
        browser = made.browser()

        seen: list[str] = []
        path = "/c/test/messages?topic=Orders&count=4"
        for _ in range(3):
            page = (await browser.get(path)).text
            seen += re.findall(r"&#34;order&#34;: (\d+)", page)
            following = re.search(r'rel="next" href="([^"]*)"', page)
            if following is None:
                break
            path = f"/c/test/messages{html.unescape(following[1])}"
        assert sorted(seen, key=int) == [str(number) for number in range(10)]
        assert seen[0] == "9"

        by_key = text_of((await browser.get("/c/test/messages?topic=Orders&key=order-7")).text)
        assert '"order": 7' in by_key
        assert '"order": 6' not in by_key


async def test_a_message_is_found_at_an_offset() -> None:
    async with shop() as made:
        browser = made.browser()
        form = (await browser.get("/c/test/messages")).text
        names = re.findall(r'name="(\w+)"', form.partition("At an offset")[2])
        assert names[:4] == ["topic", "broker", "queue", "offset"]

        rows = (await browser.http.get("/api/v1/clusters/test/messages?topic=Orders")).json()["rows"]
        place = {name: rows[3][name] for name in ("broker", "queue", "offset")}
        found = await browser.get("/c/test/messages/show", params={"topic": "Orders", **place})
        assert rows[3]["message_id"] in text_of(found.text)
        nowhere = await browser.get(
            "/c/test/messages/show", params={"topic": "Orders", **place, "offset": 99}
        )
        assert nowhere.status_code == 404


async def test_a_message_is_shown_as_text_json_and_hex_with_what_groups_did() -> None:
    async with shop() as made:
        browser = made.browser()
        found = made.cluster.sent("Orders")[3]
        path = f"/c/test/messages/show?topic=Orders&id={found.message_id}"

        page = text_of((await browser.get(path)).text)
        assert '"order": 3, "item": "book"' in page
        assert "billing no member" in page
        assert "7b 22 6f 72" in text_of((await browser.get(f"{path}&as=hex")).text)
        assert (await browser.get("/c/test/messages/show?topic=Orders&id=missing")).status_code == 404


async def test_dead_letters_are_shown_by_reason_resent_and_exported() -> None:
    async with shop() as made:
        admin = await made.admin()

        page = await admin.get("/c/test/dead-letters?group=billing")
        assert "card declined" in text_of(page.text)
        lines = (await admin.get("/c/test/dead-letters/export?group=billing")).text.splitlines()
        assert [json.loads(line)["topic"] for line in lines] == ["Orders"]
        assert "card declined" in (await admin.get("/c/test/dead-letters/export?group=billing&form=csv")).text

        (key,) = [html.unescape(key) for key in re.findall(r'name="chosen" value="([^"]*)"', page.text)]
        done = await admin.post("/c/test/dead-letters/resend", group="billing", chosen=key, act="chosen")
        assert "1 sent again" in text_of(done.text)
        assert len(made.cluster.sent("Orders")) == 11
        again = await admin.post("/c/test/dead-letters/resend", group="billing", chosen=key, act="chosen")
        assert "1 had been sent again before" in text_of(again.text)


async def test_offsets_are_reset_after_a_preview_that_says_what_comes_again() -> None:
    async with shop() as made:
        admin = await made.admin()
        await admin.get("/c/test/groups/billing/reset")

        preview = await admin.post("/c/test/groups/billing/reset", topic="Orders", to="first", act="preview")
        assert "10 messages to be delivered again" in text_of(preview.text)
        assert "Waiting 0" in text_of((await admin.get("/c/test/groups/billing")).text)
        await admin.post("/c/test/groups/billing/reset", topic="Orders", to="first", act="save")
        page = text_of((await admin.get("/c/test/groups/billing")).text)
        assert "10 messages to come again" in page
        assert "Waiting 10" in page


async def test_members_are_shown_with_their_stacks_and_check() -> None:
    async with shop() as made, made.cluster.connect(client_id="10.0.0.7@worker<b>") as client:
        admin = await made.admin()
        async with (
            client.consumer("billing", {"Orders": "paid || open"}) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, lambda message: None)
            await client.ready()

            group = await admin.get("/c/test/groups/billing")
            assert "10.0.0.7@worker<b>" in text_of(group.text)
            path = re.search(r'href="([^"]*member\?client_id=[^"]*stack=true)"', group.text)
            member = await admin.get(html.unescape(path[1]))
            assert member.status_code == 200
            assert "Stack" in text_of(member.text)
            assert "Orders paid || open TAG" in text_of(member.text)
            assert (await admin.get("/c/test/groups/billing/check")).status_code == 200
            tasks.cancel_scope.cancel()


async def test_a_trace_is_drawn() -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster:
        async with cluster.connect(plugins=[MessageTrace()]) as client:
            async with client.producer("checkout") as producer:
                sent = await producer.send(Message("Orders", b"one"))
            await consumed(client, "billing", "Orders", 1)
        await cluster.advance(5)
        async with site(cluster) as made:
            page = await made.browser().get(f"/c/test/messages/show?topic=Orders&id={sent.message_id}")

            assert '<svg class="timeline"' in page.text
            assert "send checkout" in text_of(page.text)
            assert "consume billing" in text_of(page.text)


async def test_what_others_wrote_is_shown_as_text_on_every_page() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 1}) as cluster,
        cluster.connect(client_id=f"10.0.0.8@{HOSTILE[:55]}") as client,
    ):
        async with client.producer("checkout") as producer:
            given = {HOSTILE: HOSTILE}
            message = Message("Orders", HOSTILE.encode(), tags=HOSTILE, keys="<b>key</b>", properties=given)
            await producer.send(message)

        async def handle(message: StoredMessage) -> None:
            raise ValueError(HOSTILE)

        topics = {"Orders": "*"}
        async with (
            client.consumer("billing", topics, consume_from="first", max_reconsume_times=0) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await cluster.advance(1)
            async with site(cluster) as made:
                await _is_text_everywhere(made)
            tasks.cancel_scope.cancel()


async def _is_text_everywhere(made: Site) -> None:
    admin = await made.admin()
    await admin.get("/c/test")
    await admin.post("/c/test/topics/Orders/send", body="x", tags=HOSTILE)
    await admin.post(f"/c/test/topics/{'%3Cb%3E'}/delete", confirm=HOSTILE)
    await admin.http.get("/login", params={"key": HOSTILE, "next": HOSTILE})
    paths = [path for path in PATHS if "shop" not in path or "shop-a" in path]
    paths += [
        "/messages/show?topic=Orders&broker=shop-a&queue=0&offset=0",
        "/messages/show?topic=Orders&broker=shop-a&queue=0&offset=0&as=text",
        "/topics?search=%3Cscript%3E",
        "/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/dead-letters?group=%22%3E%3Cscript%3E",
        "/changes",
    ]
    shown = 0
    for path in paths:
        text = (await admin.get(f"/c/test{path}")).text
        assert "<script>alert" not in text, path
        assert "<img src=x" not in text, path
        assert "<b>key" not in text, path
        assert not {"\x1b", "\u202e"} & set(text), path
        shown += "&lt;script&gt;alert" in text
    assert shown >= 8  # the strings were there to be seen


async def test_the_live_tail_sends_what_comes_as_data() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 2}) as cluster,
        site(cluster) as made,
        cluster.connect() as client,
    ):
        events: list[str] = []

        async def follow() -> None:
            answer = await made.browser().get("/c/test/topics/Orders/events?limit=2&text=book")
            events.extend(answer.text.split("\n\n"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await cluster.advance(1)
            async with client.producer("checkout") as producer:
                for body in (b"book 1", b"lamp", "book \u202e<b>".encode()):
                    await producer.send(Message("Orders", body))
        rows = [
            json.loads(event.partition("data: ")[2]) for event in events if event.startswith("event: message")
        ]
        assert [row["preview"] for row in rows] == ["book 1", "book \\u202e<b>"]


async def test_a_page_of_a_thing_that_is_not_there_says_what_to_do() -> None:
    async with shop() as made:
        for path, named in (("/topics/Nothing", "create the topic"), ("/none", "open the start page")):
            answer = await made.browser().get(f"/c/test{path}")
            assert answer.status_code == 404
            assert named in text_of(answer.text)
        assert (await made.browser().get("/c/other")).status_code == 404


async def test_an_empty_cluster_says_what_to_do_next() -> None:
    async with Cluster("shop-a") as cluster, site(cluster) as made:
        for path, words in (
            ("/topics", "No topics yet"),
            ("/groups", "No groups yet"),
            ("/dead-letters", "No dead letters"),
            ("/messages", "Which topic?"),
            ("/streams", "No streams"),
        ):
            assert words in text_of((await made.browser().get(f"/c/test{path}")).text)


async def test_settings_are_changed_and_delayed_messages_are_recalled() -> None:
    async with shop() as made:
        admin = await made.admin()
        await admin.get("/c/test/brokers/shop-a")
        done = await admin.post("/c/test/brokers/shop-a/setting", name="fileReservedTime", value="48")
        assert done.status_code == 303
        page = text_of((await admin.get("/c/test/brokers/shop-a")).text)
        assert "fileReservedTime is 48 now" in page
        refused = await admin.post("/c/test/brokers/shop-a/setting", name="listenPort", value="1")
        assert refused.status_code >= 400

        sent = await admin.post("/c/test/topics/Orders/send", body="later", delay_seconds="3600")
        handle = re.search(r"delayed\?handle=([^\"]+)\"", sent.text)
        assert handle
        page = await admin.get(f"/c/test/delayed?handle={handle[1]}")
        value = re.search(r'name="handle" type="text" value="([^"]*)"', page.text)
        assert (await admin.post("/c/test/delayed", handle=html.unescape(value[1]))).status_code == 303
        await made.cluster.advance(7200)
        assert len(made.cluster.sent("Orders")) == 10


async def test_name_servers_keep_and_forget_values() -> None:
    async with shop() as made:
        admin: Browser = await made.admin()
        await admin.get("/c/test/name-servers")
        await admin.post(
            "/c/test/name-servers", namespace="ORDER_TOPIC_CONFIG", key="Mail", value="shop-a:2", act="put"
        )
        assert "shop-a:2" in text_of((await admin.get("/c/test/name-servers")).text)
        await admin.post("/c/test/name-servers", namespace="ORDER_TOPIC_CONFIG", key="Mail", act="delete")
        assert "shop-a:2" not in text_of((await admin.get("/c/test/name-servers")).text)


def test_tails_of_one_viewer_leave_some_to_others() -> None:
    streams = Streams()
    for _ in range(STREAMS_OF_ONE):
        streams.enter("ada")
    with pytest.raises(TooMany):
        streams.enter("ada")
    streams.enter("otto")
    streams.leave("ada")
    streams.enter("ada")
    assert streams.open.total() == STREAMS_OF_ONE + 1


async def test_a_tail_whose_viewer_is_gone_before_it_begins_gives_its_place_back() -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:

        async def send(message: object) -> None:
            raise OSError("gone")

        async def receive() -> dict[str, str]:
            await anyio.sleep_forever()
            raise AssertionError("unreachable")

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/c/test/topics/Orders/events",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1:8088")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8088),
        }
        with pytest.raises(ClientDisconnect):
            await made.app(scope, receive, send)
        assert STREAMS.open.total() == 0
