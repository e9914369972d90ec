"""Names with odd characters: `%` and `|`, which RocketMQ allows, and `/` and dots, which a group of another
client at a broker of RocketMQ may have."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import pytest

from rmq.client.admin import Admin
from rmq.dashboard.paths import DOTS, link
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import Cluster

from .site import site, text_of

DELETIONS = (RequestCode.DELETE_SUBSCRIPTIONGROUP, RequestCode.DELETE_TOPIC_IN_BROKER)
GROUP_PAGES = ("", "edit", "delete", "reset", "copy", "check")


@pytest.mark.parametrize("page", ["topics/{}", "groups/{}", "groups/{}/reset", "groups/{}/check"])
async def test_a_page_takes_a_name_with_a_slash(page: str) -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        answer = await (await made.admin()).get(f"/c/test/{page.format('team%2F50%252Foff')}")
        text = text_of(answer.text)
        assert "team/50%2Foff" in text
        assert "there is no page" not in text


async def test_the_api_takes_a_name_with_a_slash() -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        answer = await made.browser().get("/api/v1/clusters/test/topics/team%2F50%252Foff")
        assert "'team/50%2Foff'" in answer.text


async def test_a_visitor_comes_back_to_a_page_whose_name_has_a_slash() -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        page = await made.browser().get("/c/test/topics/one%2Ftwo%25")
        assert "one/two%" in text_of(page.text)
        assert "next=%2Fc%2Ftest%2Ftopics%2Fone%252Ftwo%2525" in page.text
    login = html.unescape(re.search(r'href="(/login\?[^"]*)"', page.text)[1])
    assert parse_qs(urlsplit(login).query)["next"] == ["/c/test/topics/one%2Ftwo%25"]


async def test_a_visitor_who_logs_in_comes_back_to_the_same_search() -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        page = await made.browser().get("/c/test/messages?topic=Orders&text=a%26b")
        login = html.unescape(re.search(r'href="(/login\?[^"]*)"', page.text)[1])
        assert parse_qs(urlsplit(login).query)["next"] == ["/c/test/messages?topic=Orders&text=a%26b"]


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_name_of_dots_stays_a_name(name: str) -> None:
    path = link("c", "test", "groups", name, "check")
    assert urljoin("http://127.0.0.1/", path) == f"http://127.0.0.1{path}"
    assert not {".", "..", "%2e", "%2E%2E"} & set(path.split("/"))
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        answer = await (await made.admin()).get(path)
        assert f"no broker has a group {name} " in text_of(answer.text)
        assert DOTS not in answer.text
        missing = await made.browser().get(f"/api/v1/clusters/test/groups/{link(name)[1:]}")
        assert missing.json()["error"]["message"] == f"no broker has a group {name}"


async def test_a_topic_and_a_group_of_odd_characters_have_all_their_pages() -> None:
    name = "%2F|odd-_%"
    async with Cluster("shop-a", topics={name: 1}) as cluster:
        async with cluster.connect() as client:
            await client.admin.create_group(name)
        async with site(cluster) as made:
            admin = await made.admin()
            topics = html.unescape((await admin.get("/c/test/topics")).text)
            assert f'href="{link("c", "test", "topics", name)}"' in topics
            for kind, pages in (("topics", ("", "edit", "delete", "send", "tail")), ("groups", GROUP_PAGES)):
                for page in pages:
                    answer = await admin.get(link("c", "test", kind, name, *([page] if page else [])))
                    assert answer.status_code == 200, (kind, page, text_of(answer.text))
                    assert name in text_of(answer.text)
            figures = re.search(
                r'data-figures="topic_in([^"]*)"', (await admin.get(link("c", "test", "topics", name))).text
            )
            assert figures[1] == "|%252F%7Codd-_%25|in"
            sent = await admin.post(link("c", "test", "topics", name, "send"), body="lamp")
            assert "Stored in" in text_of(sent.text)
            deleted = await admin.post(link("c", "test", "topics", name, "delete"), confirm=name)
            assert deleted.status_code == 303


@pytest.mark.parametrize(("group", "topics"), [("team/one", 0), ("team-one", 2)])
async def test_a_group_whose_name_no_topic_may_have_is_deleted_alone(
    monkeypatch: pytest.MonkeyPatch, group: str, topics: int
) -> None:
    async with Cluster("shop-a") as cluster, cluster.connect() as client:
        asked: list[RequestCode] = []
        original = Admin._ask

        async def ask(self: Admin, address: str, code: RequestCode, *rest: Any, **more: Any) -> Any:
            if code in DELETIONS:
                asked.append(code)
                return None
            return await original(self, address, code, *rest, **more)

        monkeypatch.setattr(Admin, "_ask", ask)
        await client.admin.delete_group(group)

    assert asked == [DELETIONS[0], *[DELETIONS[1]] * topics]
