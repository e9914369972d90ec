"""Lists that are read in parts: a search of which little fits, and dead letters by reason."""

from __future__ import annotations

import html
import re

import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.dashboard.web.search import Search, search_of
from rmq.message import Message
from rmq.operate.messages import pages
from rmq.testing.cluster import Cluster

from .site import Browser, consumed, site, text_of

MORE = re.compile(r'id="end" data-more hx-get="([^"]*)"')


async def parts_of(browser: Browser, path: str) -> list[str]:
    """All parts of a page, as the open page asks for them."""
    found = [(await browser.get(path)).text]
    while more := MORE.search(found[-1]):
        part = await browser.get(html.unescape(more[1]), headers={"hx-request": "true"})
        found.append(part.text)
        assert len(found) < 100
    return found


def rows_of(page: str) -> list[str]:
    """The bodies of a page's rows."""
    table = re.search(r'<tbody id="rows">(.*?)</tbody>', page, re.DOTALL)
    return [] if table is None else [text_of(row) for row in re.findall("<tr>.*?</tr>", table[1], re.DOTALL)]


async def test_a_search_shows_its_first_part_and_goes_on_until_the_page_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "LOOKED_AT_MAX", 8)
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        async with cluster.connect() as client, client.producer("checkout") as producer:
            for number in range(100):
                body = b"book %d" % number if number % 10 == 0 else b"lamp"
                await producer.send(Message("Orders", body))
                await cluster.advance(0.01)
        browser = made.browser()

        first, *rest = await parts_of(browser, "/c/test/messages?topic=Orders&text=book&count=6")
        assert re.search(r"\d of 100 messages left to search", text_of(first))
        assert 'rel="next"' in first.partition("<noscript>")[2]
        assert len(rest) >= 3
        bodies = [row.rpartition("book ")[2] for part in (first, *rest) for row in rows_of(part)]
        assert bodies == ["90", "80", "70", "60", "50", "40"]
        assert "6 shown, of 100 in this span" in text_of(rest[-1])
        following = html.unescape(re.search(r'rel="next" href="([^"]*)"', rest[-1])[1])
        assert "rest=" not in following

        last = await parts_of(browser, f"/c/test/messages{following}")
        bodies = [row.rpartition("book ")[2] for part in last for row in rows_of(part)]
        assert bodies == ["30", "20", "10", "0"]
        assert "4 shown, of 100 in this span" in text_of(last[-1])
        assert 'rel="next"' not in last[-1]

        nothing = await parts_of(browser, "/c/test/messages?topic=Orders&text=chair")
        assert "No message fits" not in nothing[0]
        assert "0 found" in text_of(nothing[0])
        assert "No message fits" in nothing[-1]


async def test_dead_letters_with_a_reason_are_looked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        async with cluster.connect() as client:
            async with client.producer("checkout") as producer:
                for _ in range(40):
                    await producer.send(Message("Orders", b"lamp"))
            await consumed(client, "billing", "Orders", 40, fails="lamp")
        monkeypatch.setattr(pages, "LOOKED_AT_MAX", 8)
        browser = made.browser()

        found = await parts_of(browser, "/c/test/dead-letters?group=billing&reason=declined")
        assert sum(len(rows_of(part)) for part in found) == 40
        found = await parts_of(browser, "/c/test/dead-letters?group=billing&reason=elsewhere")
        assert len(found) > 1
        assert "0 shown, of 40; none of these has this reason" in text_of(found[-1])


@pytest.mark.parametrize(
    ("query", "found", "cursor", "expected"),
    [
        ({"text": "x"}, 50, "", Search(50, None, None)),
        ({"text": "x"}, 50, "c", Search(50, {"text": "x", "cursor": "c"}, None)),
        ({}, 7, "c", Search(7, {"cursor": "c"}, {"cursor": "c", "rest": "43"})),
        ({"rest": "43", "cursor": "a"}, 3, "c", Search(10, {"cursor": "c"}, {"cursor": "c", "rest": "40"})),
        ({"rest": "43", "cursor": "a"}, 43, "c", Search(50, {"cursor": "c"}, None)),
        ({"count": "²"}, 50, "c", Search(50, {"count": "²", "cursor": "c"}, None)),
    ],
)
def test_a_page_goes_on_where_its_part_has_ended(
    query: dict[str, str], found: int, cursor: str, expected: Search
) -> None:
    assert search_of(query, found, cursor, 50) == expected
