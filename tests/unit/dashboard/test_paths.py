"""Names with a slash: our broker takes none, but one of RocketMQ may hold a group or topic of such a name."""

from __future__ import annotations

import pytest

from rmq.testing.cluster import Cluster

from .site import site, text_of


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
