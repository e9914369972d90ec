"""Every page in light, dark and phone width: policy, accessibility, names that are markup, screenshots."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
from starlette.routing import compile_path

from rmq.dashboard.web import catalog as catalog
from rmq.dashboard.web import page as routes
from tests.browser.consuming import consume

from .conftest import Dev, Watcher

pytestmark = pytest.mark.browser

PAGES = {
    "overview": "",
    "topics": "/topics",
    "topic": "/topics/Parcels",
    "new-topic": "/new-topic",
    "topic-form": "/topics/Parcels/edit",
    "delete": "/topics/Parcels/delete",
    "send": "/topics/Parcels/send",
    "tail": "/topics/Parcels/tail",
    "groups": "/groups",
    "group": "/groups/couriers",
    "check": "/groups/couriers/check",
    "reset": "/groups/couriers/reset",
    "copy": "/groups/couriers/copy",
    "times": "/groups/couriers/times?topic=Parcels",
    "group-form": "/new-group",
    "group-edit": "/groups/couriers/edit",
    "group-delete": "/groups/couriers/delete",
    "messages": "/messages?topic=Parcels",
    "dead-groups": "/dead-letters",
    "dead-letters": "/dead-letters?group=couriers",
    "brokers": "/brokers",
    "broker": "/brokers/embedded",
    "setting": "/brokers/embedded/setting?name=fileReservedTime",
    "delayed": "/delayed",
    "delayed-messages": "/delayed/messages",
    "transactions": "/transactions",
    "open-transactions": "/transactions/open",
    "name-servers": "/name-servers?topic=Parcels",
    "accounts": "/accounts",
    "account-form": "/new-account",
    "account-delete": "/accounts/clerk-one/delete",
    "controllers": "/controllers",
    "streams": "/streams",
    "jobs": "/jobs",
    "changes": "/changes",
    "error": "/topics/Nothing",
}
ELSEWHERE = {
    "/groups/{group}/member": "test_work",
    "/jobs/{job}": "test_work",
    "/jobs/{job}/file": "a download",
    "/dead-letters/export": "a download",
    "/messages/show": "the first message of the list",
    "/topics/{topic}/events": "the stream of the tail",
}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b[31m"
SEVERE = ("serious", "critical")


FILL = """
import sys
import rmq
from rmq.client.blocking import connect

with connect(sys.argv[1]) as client:
    client.admin.create_topic("Parcels", queues=4)
    with client.producer("shop") as producer:
        for number in range(40):
            body = f'{{"parcel": {number}, "to": "Harbour Street {number}"}}'.encode()
            producer.send(rmq.Message("Parcels", body, tags="paid", keys=[f"parcel-{number}"]))
        hostile = sys.argv[2]
        own = {hostile: hostile}
        producer.send(rmq.Message("Parcels", hostile.encode(), tags=hostile, keys="<b>x</b>", properties=own))
        producer.send(rmq.Message("Parcels", b"broken", keys="parcel-41"))
"""


@pytest.fixture(scope="module")
def filled(dev: Dev) -> Dev:
    """A cluster with parcels, hostile texts and dead letters."""
    subprocess.run([sys.executable, "-c", FILL, dev.namesrv, HOSTILE], check=True)
    consume(dev, "couriers", "Parcels")
    return dev


def _paths(page: Any) -> dict[str, str]:
    page.goto("/c/dev/messages?topic=Parcels")
    shown = page.locator("tbody a").first.get_attribute("href")
    return {name: f"/c/dev{path}" for name, path in PAGES.items()} | {"message": shown}


def test_no_page_is_left_out() -> None:
    paths = {path.partition("?")[0] for path in PAGES.values()}
    shown = {one.path for one in routes.PAGES if "GET" in one.methods}
    left_out = {path for path in shown if not any(compile_path(path)[0].match(one) for one in paths)}
    assert left_out == set(ELSEWHERE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_keep_the_policy_and_have_no_serious_fault_of_access(
    filled: Dev, chromium: Any, watcher: Watcher, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = chromium.new_context(
        color_scheme=scheme,
        viewport={"width": 1280, "height": 860},
        base_url=filled.base,
        timezone_id="Asia/Tokyo",
    )
    page = context.new_page()
    watcher.watch(page)
    page.goto(filled.link)
    faults = []
    for name, path in _paths(page).items():
        page.goto(path)
        page.wait_for_timeout(300)
        found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
        faults += [
            f"{name}: {one['id']}: {node['html'][:120]}: {node['failureSummary']}"
            for one in found
            if one["impact"] in SEVERE
            for node in one["nodes"]
        ]
        if folder := os.environ.get("RMQ_SCREENSHOTS"):
            page.screenshot(path=pathlib.Path(folder) / f"dashboard-{name}-{scheme}.png")
    context.close()
    assert faults == []


def test_pages_fit_a_phone_and_show_times_in_the_viewers_zone(
    filled: Dev, chromium: Any, watcher: Watcher
) -> None:
    context = chromium.new_context(
        viewport={"width": 390, "height": 800}, base_url=filled.base, timezone_id="Asia/Tokyo", locale="en-GB"
    )
    page = context.new_page()
    watcher.watch(page)
    page.goto(filled.link)
    for name, path in _paths(page).items():
        page.goto(path)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, name
    page.goto("/c/dev/messages?topic=Parcels")
    shown = page.locator("tbody time").first
    assert "Asia/Tokyo" in shown.get_attribute("title")
    stamp = shown.get_attribute("datetime")
    hour = (int(re.search(r"T(\d\d)", stamp)[1]) + 9) % 24
    assert f", {hour:02}:" in shown.inner_text()
    context.close()


def test_without_scripts_pages_and_forms_work(filled: Dev, chromium: Any) -> None:
    context = chromium.new_context(java_script_enabled=False, base_url=filled.base)
    page = context.new_page()
    page.goto(filled.link)
    page.goto("/c/dev/topics/Parcels/send")
    page.get_by_label("Body", exact=True).fill("without a script")
    page.get_by_role("button", name="Send").click()
    assert page.get_by_text("Stored in").is_visible()
    context.close()


def test_all_dead_letters_are_resent_in_a_job(filled: Dev, chromium: Any, watcher: Watcher) -> None:
    context = chromium.new_context(base_url=filled.base)
    page = context.new_page()
    watcher.watch(page)
    page.goto(filled.link)
    page.goto("/c/dev/dead-letters?group=couriers")
    page.get_by_role("button", name="Resend all").click()
    page.wait_for_url(re.compile("/jobs/[0-9a-f]+$"))
    page.locator("#live .badge.good").wait_for()
    assert '"sent": 1' in page.locator("pre.content").inner_text()
    page.goto("/c/dev/dead-letters?group=couriers")
    page.get_by_role("button", name="Export in the background").click()
    page.locator("#live .badge.good").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "dead-letters-couriers.jsonl"
    context.close()
