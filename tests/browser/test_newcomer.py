"""The newcomer's path, in a browser: from an empty cluster to a dead letter that is resent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browser.consuming import consume

from .conftest import Dev

pytestmark = pytest.mark.browser


def test_a_newcomer_creates_sends_fails_resends_and_resets(dev: Dev, page: Any) -> None:
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Name", exact=True).fill("Letters")
    page.get_by_role("button", name="Preview").click()
    assert "are created" in page.get_by_role("status").inner_text()
    page.get_by_role("button", name="Create").click()
    page.wait_for_url(re.compile("/topics/Letters$"))

    page.get_by_role("link", name="Send a message").click()
    for body in ("small", "broken"):
        page.get_by_label("Body", exact=True).fill(body)
        page.get_by_role("button", name="Send").click()
        page.get_by_text("Stored in").wait_for()
    page.get_by_role("status").get_by_role("link").first.click()
    assert "broken" in page.locator("pre.content").inner_text()

    consume(dev, "posties", "Letters")
    page.get_by_role("link", name="Dead letters", exact=True).click()
    page.get_by_role("link", name="posties").click()
    assert "address unknown <b>here</b>" in page.locator("main").inner_text()
    page.get_by_label(re.compile("Choose [0-9A-F]+")).check()
    page.get_by_role("button", name="Resend chosen").click()
    assert "1 sent again" in page.get_by_role("status").inner_text()
    page.goto("/c/dev/messages?topic=Letters")
    assert page.locator("tbody tr").count() == 3

    page.goto("/c/dev/groups/posties")
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("Topic", exact=True).fill("Letters")
    page.get_by_label("At the first message: everything again").check()
    page.get_by_role("button", name="Preview").click()
    assert "2 messages to be delivered again" in page.get_by_role("status").inner_text()
    page.get_by_role("button", name="Reset", exact=True).click()
    assert "2 messages to come again" in page.get_by_role("status").first.inner_text()


def test_the_tail_shows_what_comes_and_search_narrows_the_list(dev: Dev, page: Any) -> None:
    page.goto("/c/dev/new-topic")
    for name in ("Tail-a", "Tail-b"):
        page.goto("/c/dev/new-topic")
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_role("button", name="Create").click()
        page.wait_for_url(re.compile(f"/topics/{name}$"))
    other = page.context.new_page()
    page.goto("/c/dev/topics/Tail-a/tail")
    page.get_by_text("waiting for messages").wait_for()
    page.wait_for_timeout(1000)
    other.goto("/c/dev/topics/Tail-a/send")
    other.get_by_label("Body", exact=True).fill("<img src=x onerror=alert(1)>")
    other.get_by_role("button", name="Send").click()
    page.get_by_role("link", name="<img src=x onerror=alert(1)>").wait_for()

    page.goto("/c/dev/topics")
    page.keyboard.press("/")
    page.keyboard.type("Tail-b")
    page.locator("#rows tbody tr").filter(has_text="Tail-a").wait_for(state="detached")
    assert page.locator("#rows tbody tr").count() == 1
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("g")
    page.wait_for_url(re.compile("/groups$"))


def test_a_visitor_without_a_login_reads_only(dev: Dev, chromium: Any, watcher: Any) -> None:
    context = chromium.new_context(base_url=dev.base)
    page = context.new_page()
    watcher.watch(page)
    page.goto("/c/dev")
    assert page.get_by_text("read only").is_visible()
    page.goto("/c/dev/new-topic")
    page.get_by_label("Name", exact=True).fill("Sneaked")
    page.get_by_role("button", name="Create").click()
    assert "this needs the role operator: log in first" in page.locator("main").inner_text()
    context.close()
