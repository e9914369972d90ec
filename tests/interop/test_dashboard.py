"""The dashboard over Java's clusters of 4.9.7 and 5.3.3: every page, every act, and refusals that say why."""

from __future__ import annotations

import html
import pathlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx2 as httpx
import pytest
import trio

import rmq
from rmq.client.settings.target import Target
from rmq.dashboard.app import open_dashboard
from rmq.dashboard.config import DashboardConfig
from rmq.message import StoredMessage
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import RequestCode
from tests.interop.rocketmq import Java, Processes
from tests.unit.dashboard.site import BASE, LINK, Browser, text_of

pytestmark = pytest.mark.interop
PATIENT = rmq.ClientConfig(request_timeout_ms=15_000, send_timeout_ms=15_000)
BROKER = "board-a"
CREDENTIALS = "innerClientAuthenticationCredentials"
"""A setting of 5.x with a secret in it."""
SECRET = "of-the-inner-client"
PROVIDER = "LocalAuthenticationMetadataProvider"
SETTINGS = {
    "brokerName": BROKER,
    "traceTopicEnable": "true",
    "enablePropertyFilter": "true",
    CREDENTIALS: f'{{"accessKey":"inner","secretKey":"{SECRET}"}}',
    "authenticationMetadataProvider": f"org.apache.rocketmq.auth.authentication.provider.{PROVIDER}",
}
PAGES = (
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
    "/messages?topic=Orders&text=1&newest_first=false",
    "/messages?topic=Orders&key=k7",
    "/dead-letters",
    "/dead-letters?group=billing",
    "/dead-letters/export?group=billing",
    "/brokers",
    f"/brokers/{BROKER}",
    f"/brokers/{BROKER}?show=settings",
    f"/brokers/{BROKER}/setting?name=fileReservedTime",
    "/delayed",
    "/delayed/messages",
    "/transactions",
    "/transactions/open",
    "/name-servers",
    "/name-servers?topic=Orders",
    "/accounts",
    "/controllers",
    "/streams",
    "/jobs",
)


@attrs.frozen
class JavaCluster:
    """A name server and a broker of Java, of one version."""

    version: str
    namesrv: str

    def look(self, scenario: Callable[[Browser, rmq.Client], Coroutine[Any, Any, None]]) -> None:
        """Run `scenario(admin, client)` with a visitor of a dashboard over the cluster."""

        async def act() -> None:
            with trio.fail_after(300):
                async with (
                    dashboard(self.namesrv) as browser,
                    rmq.connect(self.namesrv, config=PATIENT) as client,
                ):
                    await scenario(browser, client)

        trio.run(act)


@asynccontextmanager
async def dashboard(namesrv: str) -> AsyncIterator[Browser]:
    """A visitor who has logged in by the link."""
    config = DashboardConfig(clusters={"java": Target(namesrv)}, link_token=LINK, sample_seconds=0)
    async with open_dashboard(config) as app:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, timeout=None) as http:
            browser = await Browser(http).log_in()
            await browser.get("/c/java")
            yield browser


async def fill(client: rmq.Client) -> None:
    """Topic Orders with 20 messages, all consumed by billing but one, which billing has given up."""
    await client.admin.create_topic("Orders", queues=4)
    await client.admin.create_topic("Mail", queues=1)
    await client.admin.create_group("billing")
    await client.admin.create_group("archive")
    async with client.producer("sellers") as producer:
        for number in range(20):
            await producer.send(rmq.Message("Orders", b"%d" % number, keys=[f"k{number}"]))
    options: dict[str, Any] = {"consume_from": "first", "max_reconsume_times": 0}
    async with (
        client.consumer("billing", {"Orders": "*"}, **options) as consumer,
        trio.open_nursery() as nursery,
    ):

        async def handle(message: StoredMessage) -> None:
            if message.body == b"7":
                raise ValueError("card declined")

        nursery.start_soon(consumer.run, handle)
        while not await is_consumed(client):
            await trio.sleep(0.2)
        nursery.cancel_scope.cancel()


async def is_consumed(client: rmq.Client) -> bool:
    """True if billing has committed all of Orders, and has made a dead letter."""
    try:
        progress = await client.admin.consume_stats("billing", "Orders")
        dead = await client.admin.topic_stats("%DLQ%billing")
    except rmq.RmqError:
        return False
    ends = sum(row.consumer_offset for row in progress.queues)
    return ends == 20 and any(one.max_offset for one in dead.values())


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaCluster]:
    kit: Java = request.getfixturevalue("java" if request.param == "4.9.7" else "java5")
    folder: pathlib.Path = tmp_path_factory.mktemp("board")
    with Processes(kit, folder, broker_heap="256m") as started:
        namesrv = started.java_namesrv()
        started.java_broker(namesrv, folder / "store", **SETTINGS)

        async def begin() -> None:
            with trio.fail_after(240):
                async with rmq.connect(namesrv, config=PATIENT) as client:
                    await fill(client)

        trio.run(begin)
        yield JavaCluster(request.param, namesrv)


def test_every_page_shows(cluster: JavaCluster) -> None:
    async def look(browser: Browser, client: rmq.Client) -> None:
        shown = {path: await browser.get(f"/c/java{path}") for path in PAGES}
        failed = {path: text_of(page.text)[:500] for path, page in shown.items() if page.status_code != 200}
        assert failed == {}
        overview = text_of(shown[""].text)
        assert BROKER in overview
        assert f"V{cluster.version.replace('.', '_')}" in overview
        assert "Some figures are missing" not in overview
        assert "billing" in text_of(shown["/groups"].text)
        orders = text_of(shown["/topics/Orders"].text)
        assert "Messages held 20" in orders
        assert "billing" in orders
        assert (
            '"7"' in shown["/messages?topic=Orders&key=k7"].text
            or ">7<" in shown["/messages?topic=Orders&key=k7"].text
        )
        assert "No controllers" in text_of(shown["/controllers"].text)
        assert "No accounts can be shown" in text_of(shown["/accounts"].text)
        settings = text_of(shown[f"/brokers/{BROKER}?show=settings"].text)
        assert "fileReservedTime" in settings
        if cluster.version == "5.3.3":
            assert f"{CREDENTIALS} (not shown)" in settings
        assert all(SECRET not in page.text for page in shown.values())

    cluster.look(look)


def test_topics_are_created_changed_sent_to_and_deleted(cluster: JavaCluster) -> None:
    async def look(browser: Browser, client: rmq.Client) -> None:
        made = await browser.post("/c/java/new-topic", topic="New", queues="3", act="save")
        assert made.status_code == 303, text_of(made.text)
        edit = await browser.post("/c/java/topics/New/edit", queues="5", act="preview")
        assert "3 queues (read, write) become 5" in text_of(edit.text)
        assert (await browser.post("/c/java/topics/New/edit", queues="5", act="save")).status_code == 303
        sent = await browser.post("/c/java/topics/New/send", body="héllo", keys="k1", properties="a=b")
        assert "Stored in" in text_of(sent.text)
        path = html.unescape(re.search(r'href="(/c/java/messages/show[^"]*)"', sent.text)[1])
        message = text_of((await browser.get(path)).text)
        assert "héllo" in message
        copied = await browser.post(
            "/c/java/messages/copy", topic="New", id=re.search("id=([0-9A-F]+)", path)[1], to_topic="Mail"
        )
        assert copied.status_code == 200, text_of(copied.text)
        tail = await browser.get("/c/java/topics/New")
        assert "Messages held 1" in text_of(tail.text)
        assert (await browser.post("/c/java/topics/New/delete", confirm="New")).status_code == 303
        assert (await browser.get("/c/java/topics/New")).status_code == 404

    cluster.look(look)


def test_groups_are_created_reset_copied_and_deleted(cluster: JavaCluster) -> None:
    async def look(browser: Browser, client: rmq.Client) -> None:
        made = await browser.post("/c/java/new-group", group="fresh", retries="3", consume="true")
        assert made.status_code == 303, text_of(made.text)
        assert "3" in text_of((await browser.get("/c/java/groups/fresh")).text)
        preview = await browser.post(
            "/c/java/groups/billing/reset", topic="Orders", to="first", act="preview"
        )
        assert "20 messages to be delivered again" in text_of(preview.text), text_of(preview.text)
        done = await browser.post("/c/java/groups/billing/reset", topic="Orders", to="first", act="save")
        assert done.status_code == 303, text_of(done.text)
        assert "Waiting 20" in text_of((await browser.get("/c/java/groups/billing")).text)
        copied = await browser.post(
            "/c/java/groups/billing/copy", to_group="archive", topic="Orders", act="save"
        )
        assert copied.status_code == 303, text_of(copied.text)
        assert (await client.admin.consume_stats("archive", "Orders")).lag == 20
        job = await browser.post("/c/java/jobs", operation="reset_all", group="billing", to="last")
        assert await ended(browser, job) == "done"
        assert (await client.admin.consume_stats("billing", "Orders")).lag == 0
        gone = await browser.post("/c/java/groups/fresh/delete", confirm="fresh")
        assert gone.status_code == 303, text_of(gone.text)
        assert (await browser.get("/c/java/groups/fresh")).status_code == 404

    cluster.look(look)


def test_a_group_of_another_client_with_a_slash_in_its_name_has_its_pages(cluster: JavaCluster) -> None:
    async def look(browser: Browser, client: rmq.Client) -> None:
        name = "team/one"
        code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, SubscriptionGroupConfig(name).to_json()
        for address in await client.admin.broker_addresses():  # as a client does that allows the name
            await client.admin._ask(address, code, None, body)
        shown = ""
        while 'href="/c/java/groups/team%2Fone"' not in shown:  # the list of groups is shared for a while
            await trio.sleep(0.5)
            shown = (await browser.get("/c/java/groups?search=team")).text
        for page in ("", "/edit", "/reset", "/copy", "/check", "/delete"):
            answer = await browser.get(f"/c/java/groups/team%2Fone{page}")
            assert answer.status_code == 200, (page, text_of(answer.text))
            assert name in text_of(answer.text)
        found = (await browser.http.get("/api/v1/clusters/java/groups/team%2Fone")).json()
        assert found["name"] == name
        gone = await browser.post("/c/java/groups/team%2Fone/delete", confirm=name)
        assert gone.status_code == 303, text_of(gone.text)
        assert (await browser.get("/c/java/groups/team%2Fone")).status_code == 404

    cluster.look(look)


async def ended(browser: Browser, answer: Any) -> str:
    """The state of a job at its end."""
    assert answer.status_code == 303, text_of(answer.text)
    job = answer.headers["location"].rpartition("/")[2]
    while True:
        found = (await browser.http.get(f"/api/v1/clusters/java/jobs/{job}")).json()
        if found["state"] != "running":
            return str(found["state"])
        await trio.sleep(0.1)


def test_members_are_shown_and_get_a_message_by_hand(cluster: JavaCluster) -> None:
    async def look(browser: Browser, client: rmq.Client) -> None:
        seen: list[bytes] = []
        async with client.consumer("archive", {"Mail": "*"}) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, lambda message: seen.append(message.body))
            await client.ready()
            with trio.fail_after(60):
                while "stack=true" not in (group := await browser.get("/c/java/groups/archive")).text:
                    await trio.sleep(0.2)
            path = re.search(r'href="([^"]*member\?client_id=[^"]*stack=true)"', group.text)
            with trio.fail_after(60):
                while "The member is asked" in (member := await browser.get(html.unescape(path[1]))).text:
                    await trio.sleep(0.5)
            assert "Stack" in text_of(member.text)
            async with client.producer("sellers") as producer:
                sent = await producer.send(rmq.Message("Mail", b"by hand"))
            form = {"topic": "Mail", "id": sent.offset_message_id, "group": "archive"}
            given = await browser.post("/c/java/messages/give", **form)
            assert "CR_SUCCESS" in text_of(given.text)
            nursery.cancel_scope.cancel()

    cluster.look(look)


def test_dead_letters_are_resent_and_exported(cluster: JavaCluster) -> None:
    async def look(browser: Browser, client: rmq.Client) -> None:
        page = await browser.get("/c/java/dead-letters?group=billing")
        assert "1 shown" in text_of(page.text), text_of(page.text)
        assert len((await browser.get("/c/java/dead-letters/export?group=billing")).text.splitlines()) == 1
        job = await browser.post("/c/java/dead-letters/resend", group="billing", act="all", to_topic="Mail")
        assert await ended(browser, job) == "done"
        job = await browser.post("/c/java/jobs", operation="export_dead_letters", group="billing")
        assert await ended(browser, job) == "done"

    cluster.look(look)


def test_settings_name_servers_and_cleaning(cluster: JavaCluster) -> None:
    async def look(browser: Browser, client: rmq.Client) -> None:
        path = f"/c/java/brokers/{BROKER}"
        changed = await browser.post(f"{path}/setting", name="fileReservedTime", value="71")
        assert changed.status_code == 303, text_of(changed.text)
        assert "fileReservedTime is 71 now" in text_of((await browser.get(path)).text)
        assert (await browser.post(f"{path}/setting", name="noSuchThing", value="1")).status_code == 404
        for act in ("wipe", "add", "queues", "topics", "logs"):
            done = await browser.post(f"{path}/act", act=act)
            assert done.status_code == 303, (act, text_of(done.text))
        form = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Mail"}
        await browser.post("/c/java/name-servers", value=f"{BROKER}:1", act="put", **form)
        assert f"{BROKER}:1" in text_of((await browser.get("/c/java/name-servers")).text)
        await browser.post("/c/java/name-servers", act="delete", **form)
        assert f"{BROKER}:1" not in text_of((await browser.get("/c/java/name-servers")).text)

    cluster.look(look)


def test_requests_that_java_does_not_know_are_refused_with_the_reason(cluster: JavaCluster) -> None:
    async def look(browser: Browser, client: rmq.Client) -> None:
        handed = await browser.post("/c/java/controllers", broker=BROKER, number="2")
        await ended(browser, handed)
        shown = text_of((await browser.get(handed.headers["location"])).text)
        assert re.search("no controller|Error|NotNameServers|Unreachable", shown), shown
        recalled = await browser.post("/c/java/delayed", handle="nothing")
        assert recalled.status_code == 400
        account = {"account": "somebody", "secret_key": "12345678"}
        refused = await browser.post("/c/java/new-account", **account)
        assert refused.status_code in (403, 501, 502)
        for page in (recalled, refused):
            assert "What to do" in text_of(page.text)

    cluster.look(look)
