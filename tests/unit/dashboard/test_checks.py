"""Checks of groups whose members do not answer: the page is there at once, and the members are named soon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
import trio.testing

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.dashboard.checks import KEPT, KEPT_SECONDS, OF_ONE_MAX, RUNNING_MAX, CheckKey, Checks
from rmq.dashboard.errors import TooMany
from rmq.dashboard.jobs import Progress
from rmq.message import Message
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.pool import Pool
from rmq.testing.cluster import Cluster

from .site import Site, site, text_of

CHECK = "/c/test/groups/billing/check"
PART = {"hx-request": "true"}
"""A page that is open asks for a part of itself."""


class Silent(Endpoint):
    """A client that hears requests and answers none."""

    def handle(self, requests: list[Command], connection: Any) -> None:
        """Do nothing."""


@asynccontextmanager
async def members(*names: str, silent: int = 0) -> AsyncIterator[Site]:
    """A dashboard over a cluster whose group billing has these members that answer, and so many that do
    not."""
    async with Cluster("shop-a", topics={"Orders": 4}) as cluster, AsyncExitStack() as stack:
        for name in names:
            client = await stack.enter_async_context(cluster.connect(client_id=name))
            await stack.enter_async_context(client.consumer("billing", {"Orders": "*"}))
            await client.ready()
        for number in range(silent):
            pool = await stack.enter_async_context(Pool(cluster.network, Silent()))
            data = ConsumerData("billing", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
            data.subscription_data_set.append(SubscriptionData("Orders", "*"))
            body = HeartbeatData(f"silent@{number}", consumer_data_set=[data]).to_json()
            await pool.call(cluster["shop-a"].address, Command.request(RequestCode.HEART_BEAT, None, body), 3)
        yield await stack.enter_async_context(site(cluster))


async def test_a_check_shows_its_progress_at_once_and_names_silent_members_after_three_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with members("a@1", "b@2", silent=3) as made:
        browser = made.browser()
        began = trio.current_time()
        page = await browser.get(CHECK)

        assert trio.current_time() - began < 1
        assert "2 of 5 members have answered" in text_of(page.text)
        assert 'hx-trigger="every 500ms"' in page.text
        while "every 500ms" in (page := await browser.get(CHECK)).text:
            await anyio.sleep(0.5)
        assert 3 <= trio.current_time() - began < 4
        text = text_of(page.text)
        assert "Members that did not answer 3 of 5" in text
        for number in range(3):
            assert f"silent@{number} no answer within 3 s" in text
        assert "All members that answered subscribe to the same." in text


async def test_the_page_of_a_silent_member_is_there_at_once_and_gives_up_after_three_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    path = "/c/test/groups/billing/member?client_id=silent@0"
    async with members("a@1", silent=1) as made:
        browser = made.browser()
        began = trio.current_time()
        page = await browser.get(path)
        assert page.status_code == 200
        assert trio.current_time() - began < 1
        assert "The member has 3 s." in text_of(page.text)

        while "every 500ms" in (page := await browser.get(path, headers=PART)).text:
            await anyio.sleep(0.5)
        assert 3 <= trio.current_time() - began < 4
        assert "silent@0 of billing has not answered within 3 s" in text_of(page.text)
        answer = await browser.get(
            "/api/v1/clusters/test/groups/billing/member?client_id=silent@0&answer_seconds=1"
        )
        assert (answer.status_code, answer.json()["error"]["name"]) == (504, "NoAnswer")


async def test_members_are_asked_side_by_side(autojump_clock: trio.testing.MockClock) -> None:
    async with members(silent=30) as made:
        began = trio.current_time()
        found = await made.browser().get("/api/v1/clusters/test/groups/billing/check?answer_seconds=0.5")

        assert len(found.json()["silent"]) == 30
        assert trio.current_time() - began < 1


async def test_a_group_whose_members_answer_is_checked_without_a_progress_page() -> None:
    async with members("a@1") as made:
        page = await made.browser().get(CHECK)

        assert "every 500ms" not in page.text
        assert "1 member asked" in text_of(page.text)


async def test_a_result_is_shown_again_until_another_check_is_wanted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with members("a@1") as made:
        browser = made.browser()
        async with made.cluster.connect() as client, client.producer("checkout") as producer:
            await browser.get(CHECK)
            await producer.send(Message("Orders", b"one"))
            await anyio.sleep(70)
            assert "none" in (await browser.get(CHECK)).text.split("Stalled queues")[1][:80]
            again = await browser.get(f"{CHECK}?again=true")
            assert again.headers["location"] == CHECK
            assert "oldest message" in (await browser.get(CHECK)).text


async def test_a_check_of_a_group_that_is_not_there_fails_as_its_page_does() -> None:
    async with members("a@1") as made:
        page = await made.browser().get("/c/test/groups/nobody/check")

        assert page.status_code == 404
        assert "nobody" in text_of(page.text)


async def test_checks_have_shares_and_results_are_forgotten() -> None:
    clock = [0.0]
    hold = anyio.Event()

    async def wait(progress: Progress) -> str:
        await hold.wait()
        return "found"

    async def soon(progress: Progress) -> str:
        return "found"

    async with anyio.create_task_group() as tasks:
        checks = Checks(tasks, lambda: clock[0], lambda: 7)
        mine = [checks.start(CheckKey("me", number), wait) for number in range(OF_ONE_MAX)]
        assert checks.start(CheckKey("me", 0), wait) is mine[0]
        assert checks.start(CheckKey("me", 0), wait, again=True) is mine[0]
        with pytest.raises(TooMany, match="of yours"):
            checks.start(CheckKey("me", "more"), wait)
        for number in range(RUNNING_MAX - OF_ONE_MAX):
            checks.start(CheckKey(number, 0), wait)
        with pytest.raises(TooMany, match="already"):
            checks.start(CheckKey("another", 0), wait)
        hold.set()
        await anyio.wait_all_tasks_blocked()
        assert (mine[0].result, mine[0].ended_at) == ("found", 7)
        assert checks.start(CheckKey("me", 0), soon) is mine[0]
        clock[0] = KEPT_SECONDS
        assert checks.start(CheckKey("me", 0), soon) is not mine[0]
        await anyio.wait_all_tasks_blocked()
        for number in range(KEPT):
            checks.start(CheckKey("another", number), soon)
            await anyio.wait_all_tasks_blocked()
        assert checks.start(CheckKey("me", 1), soon) is not mine[1]


async def test_an_overview_whose_brokers_are_slow_is_there_at_once_and_loads_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with Cluster("shop-a", topics={"Orders": 4}) as cluster:
        answers: list[Any] = []

        def late(request: Command, connection: Any) -> None:
            answers.append((request, connection))

        cluster["shop-a"].hook(RequestCode.GET_BROKER_RUNTIME_INFO, late)
        async with site(cluster) as made:
            browser = made.browser()
            began = trio.current_time()
            page = await browser.get("/c/test")

            assert trio.current_time() - began < 1
            assert "data-reload" in page.text
            cluster["shop-a"].hook(RequestCode.GET_BROKER_RUNTIME_INFO, None)
            for request, connection in answers:
                connection.reply(cluster["shop-a"].answer(request, connection))
            await anyio.sleep(1)
            page = await browser.get("/c/test")
            assert "data-reload" not in page.text
            assert "shop-a" in text_of(page.text)


async def test_an_open_overview_waits_for_its_figures(autojump_clock: trio.testing.MockClock) -> None:
    async with Cluster("shop-a") as cluster, site(cluster) as made:
        answers: list[Any] = []
        cluster["shop-a"].hook(RequestCode.GET_BROKER_RUNTIME_INFO, lambda *one: answers.append(one))
        async with anyio.create_task_group() as tasks:

            async def answer_late() -> None:
                await anyio.sleep(2)
                cluster["shop-a"].hook(RequestCode.GET_BROKER_RUNTIME_INFO, None)
                for request, connection in answers:
                    connection.reply(cluster["shop-a"].answer(request, connection))

            tasks.start_soon(answer_late)
            part = await made.browser().get("/c/test", headers=PART)
        assert 'id="live"' in part.text


async def test_an_open_page_keeps_its_figures_while_servers_fail(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with members("a@1") as made:
        browser = made.browser()
        made.cluster.name_servers[0].hook(RequestCode.GET_BROKER_CLUSTER_INFO, 1)
        await anyio.sleep(60)
        whole = await browser.get("/c/test/brokers")
        part = await browser.get("/c/test/brokers", headers=PART)
        assert whole.status_code >= 500
        assert (part.status_code, part.text) == (204, "")


async def test_an_open_page_whose_session_has_ended_goes_to_the_login() -> None:
    async with Cluster("shop-a") as cluster, site(cluster, anonymous_read=False) as made:
        part = await made.browser().get("/c/test", headers=PART)
        assert (part.status_code, part.headers["hx-refresh"], part.text) == (200, "true", "")
