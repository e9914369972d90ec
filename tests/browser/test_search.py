"""A search of which little fits, in a browser, and names of odd characters through all their pages."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from .conftest import Dev, faults_of

pytestmark = pytest.mark.browser

HAY: int = 100_000
FILL = """
import sys
import rmq
from rmq.client.blocking import connect

with connect(sys.argv[1]) as client:
    client.admin.create_topic("Hay", queues=4)
    with client.producer("farm") as producer:
        for number in range(3):
            producer.send(rmq.Message("Hay", b"needle <b>%d</b>" % number))
        for _ in range(int(sys.argv[2]) // 100):
            producer.send_batch([rmq.Message("Hay", b"straw") for _ in range(100)])
"""


def left_of(page: Any) -> int:
    """The messages that are left to search."""
    found = re.search(r"([\d,]+) of [\d,]+ messages left to search", page.locator("#end").inner_text())
    return int(found[1].replace(",", "")) if found else 0


def test_a_search_shows_how_far_it_is_and_is_stopped_and_goes_on(dev: Dev, page: Any) -> None:
    subprocess.run([sys.executable, "-c", FILL, dev.namesrv, str(HAY)], check=True)
    page.goto("/c/dev/messages?topic=Hay")
    page.get_by_label("Body contains").fill("needle")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_role("button", name="Stop").wait_for()
    first = left_of(page)
    assert 0 < first < HAY
    page.wait_for_function(
        "(first) => !document.querySelector('#end').innerText.includes(first)", arg=f"{first:,}"
    )
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Go on").wait_for()
    page.wait_for_timeout(1500)  # a part that was asked for may still come
    stopped = left_of(page)
    assert 0 < stopped <= first
    page.wait_for_timeout(1500)
    assert left_of(page) == stopped
    assert page.get_by_role("button", name="Go on").is_visible()
    assert faults_of(page, "search-stopped") == []
    page.get_by_role("button", name="Go on").click()
    page.get_by_text(f"3 shown, of {HAY + 3:,} in this span").wait_for(timeout=60_000)
    rows = page.locator("#rows tr")
    assert rows.count() == 3
    shown = sorted(row.split()[-1] for row in rows.all_inner_texts())  # some are of the same ms
    assert shown == [f"<b>{number}</b>" for number in range(3)]
    assert rows.first.locator("time").get_attribute("title").endswith(")")  # in the viewer's zone, too
    assert page.get_by_role("button", name="Stop").count() == 0
    assert faults_of(page, "search-done") == []


def test_a_search_that_finds_nothing_says_so_at_its_end(dev: Dev, page: Any) -> None:
    page.goto("/c/dev/messages?topic=Hay&text=pitchfork")
    page.get_by_text("No message fits").wait_for(timeout=60_000)
    assert page.locator("#rows tr").count() == 0
    assert not page.locator("#rows").is_visible()
    assert faults_of(page, "search-nothing") == []


def test_without_scripts_a_search_goes_on_by_a_link(dev: Dev, chromium: Any) -> None:
    context = chromium.new_context(java_script_enabled=False, base_url=dev.base)
    page = context.new_page()
    page.goto("/c/dev/messages?topic=Hay&text=pitchfork")
    first = left_of(page)
    page.get_by_role("link", name="Go on").click()
    assert left_of(page) < first
    context.close()


def test_a_name_of_odd_characters_has_all_its_pages(dev: Dev, page: Any) -> None:
    name = "%2Fodd|_-%25"
    failed: list[str] = []
    page.on("response", lambda one: failed.append(one.url) if one.status >= 400 else None)
    page.goto("/c/dev/new-topic")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name=name, exact=True).wait_for()
    page.goto("/c/dev/topics")
    with page.expect_response(re.compile("/history")) as chart:
        page.get_by_role("link", name=name, exact=True).click()
    assert "subject=%252Fodd%7C_-%2525" in chart.value.url
    page.get_by_role("link", name="Send a message").click()
    page.get_by_label("Body", exact=True).fill("odd")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("status").get_by_role("link").first.click()
    page.get_by_role("heading", name="Body").wait_for()
    page.goto("/c/dev/new-group")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create").click()
    for link in ("Reset offsets", "Check", "Copy offsets", "Dead letters", "Change", "Delete"):
        page.goto("/c/dev/groups?sort=name&search=odd")
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_role("link", name=link, exact=True).last.click()
        page.wait_for_load_state()
        assert name in page.locator("main").inner_text()
    page.get_by_label("Type the name to delete it").fill(name)
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url(re.compile("/groups$"))
    page.goto("/c/dev/topics?search=odd")
    page.get_by_role("link", name=name, exact=True).click()
    page.get_by_role("link", name="Live tail").click()
    page.get_by_text("waiting for messages").wait_for()
    page.go_back()
    page.get_by_role("link", name="Delete", exact=True).click()
    page.get_by_label("Type the name to delete it").fill(name)
    page.get_by_role("button", name="Delete").click()
    page.wait_for_url(re.compile("/topics$"))
    assert failed == []
