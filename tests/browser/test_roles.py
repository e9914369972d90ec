"""Logins by the roles file: each role sees and does what it may; forms of other sites and without a token."""

from __future__ import annotations

import html
import pathlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from .conftest import Dev, Watcher, dashboard, faults_of

pytestmark = pytest.mark.browser

PASSWORD = "correct horse"
USERS = {"ada": "admin", "otto": "operator", "rita": "reader"}


@pytest.fixture
def people(dev: Dev, tmp_path: pathlib.Path) -> Iterator[str]:
    """A dashboard for three people, with its audit log in `audit.log`."""
    from rmq.dashboard.access.roles import password_hash

    line = password_hash(PASSWORD)
    rows = [f"  - {{name: {name}, role: {role}, password: {line}}}\n" for name, role in USERS.items()]
    file = tmp_path / "roles.yaml"
    file.write_text("users:\n" + "".join(rows))
    options = ("--roles", str(file), "--audit-log", str(tmp_path / "audit.log"), "--require-login")
    with dashboard(dev.namesrv, *options) as address:
        yield address


def logged_in(chromium: Any, watcher: Watcher, address: str, name: str) -> Any:
    """A page of a person who has logged in."""
    page = chromium.new_context(base_url=address).new_page()
    watcher.watch(page)
    page.goto("/c/default/topics")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Secret", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(re.compile("/c/default/topics$"))
    assert f"{name} {USERS[name]}" in " ".join(page.locator(".foot").inner_text().split())
    return page


def create(page: Any, name: str) -> None:
    """Ask for a topic."""
    page.goto("/c/default/new-topic")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create").click()
    page.wait_for_load_state()


def delete(page: Any, name: str) -> None:
    """Ask for the end of a topic."""
    page.goto(f"/c/default/topics/{name}/delete")
    page.get_by_label("Type the name to delete it").fill(name)
    page.get_by_role("button", name="Delete").click()
    page.wait_for_load_state()


def main_of(page: Any) -> str:
    """The text of a page, as a person reads it."""
    return str(page.locator("main").inner_text())


def test_each_role_sees_and_does_what_it_may_and_is_told_why_not(
    people: str, chromium: Any, watcher: Watcher, tmp_path: pathlib.Path
) -> None:
    rita = logged_in(chromium, watcher, people, "rita")
    create(rita, "By-rita")
    assert "this needs the role operator; rita is reader" in main_of(rita)
    assert faults_of(rita, "refused") == []
    rita.goto("/c/default/accounts")
    assert "only administrators see accounts" in main_of(rita)
    rita.goto("/c/default/brokers/embedded")
    assert "Settings" in main_of(rita)
    rita.get_by_role("button", name="Clean empty queues").click()
    assert "this needs the role admin; rita is reader" in main_of(rita)

    otto = logged_in(chromium, watcher, people, "otto")
    create(otto, "By-otto")
    otto.wait_for_url(re.compile("/topics/By-otto$"))
    delete(otto, "By-otto")
    assert "this needs the role admin; otto is operator" in main_of(otto)
    rita.goto("/c/default/topics/By-otto")
    assert "By-otto" in main_of(rita)

    ada = logged_in(chromium, watcher, people, "ada")
    delete(ada, "By-otto")
    assert "Topic By-otto is deleted" in main_of(ada)
    ada.goto("/c/default/brokers/embedded/setting?name=fileReservedTime")
    ada.get_by_label("New value").fill("71")
    ada.get_by_role("button", name="Change", exact=True).click()
    assert "fileReservedTime is 71 now" in main_of(ada)

    ada.get_by_role("button", name="Log out").click()
    ada.goto("/c/default")
    assert ada.get_by_role("heading", name="Log in").is_visible()
    lines = (tmp_path / "audit.log").read_text().splitlines()
    done = [re.search(r'who="(\w+)".* operation=(\w+)', line).groups() for line in lines]
    for who, operation in (("otto", "put_topic"), ("ada", "delete_topic"), ("ada", "change_setting")):
        assert (who, operation) in done
    assert PASSWORD not in "".join(lines)


def test_a_wrong_secret_is_refused_and_the_sixth_attempt_has_to_wait(
    people: str, chromium: Any, watcher: Watcher
) -> None:
    page = chromium.new_context(base_url=people).new_page()
    watcher.watch(page)
    page.goto("/login")
    assert faults_of(page, "login") == []
    for attempt in range(6):
        page.get_by_label("Name", exact=True).fill("ada")
        page.get_by_label("Secret", exact=True).fill(PASSWORD if attempt == 5 else "guess")
        page.get_by_role("button", name="Log in").click()
        text = page.get_by_role("alert").inner_text()
        assert ("wait" in text) == (attempt == 5), text
    assert faults_of(page, "login-refused") == []


class Site(BaseHTTPRequestHandler):
    """A page of somebody else, whose forms and scripts act on the dashboard."""

    target: ClassVar[str] = ""

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """The page."""
        there = html.escape(f"{self.target}/c/default/new-topic")
        text = (
            '<!doctype html><link rel="icon" href="data:,">'
            f'<form method="post" action="{there}"><input name="topic" value="Forged">'
            '<input name="queues" value="4"><input name="act" value="save"><button>Win</button></form>'
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def other_site(people: str) -> Iterator[int]:
    """The port of a site of somebody else on the same machine: browsers give it the dashboard's cookies."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    Site.target = people
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


SENT_BY_SCRIPT = """async (target) => {
    const form = new URLSearchParams({topic: "Forged", queues: "4", act: "save"});
    try { await fetch(target, {method: "POST", body: form, mode: "no-cors", credentials: "include"}); }
    catch (error) { return String(error); }
}"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_form_of_another_site_changes_nothing(
    people: str, other_site: int, chromium: Any, watcher: Watcher, host: str
) -> None:
    ada = logged_in(chromium, watcher, people, "ada")
    victim = ada.context.new_page()
    victim.goto(f"http://{host}:{other_site}/")
    victim.evaluate(SENT_BY_SCRIPT, f"{people}/c/default/new-topic")
    with victim.expect_response(re.compile("/c/default/new-topic$")) as answer:
        victim.get_by_role("button", name="Win").click()
    assert answer.value.status == 403
    assert "own pages only" in victim.content()

    ada.goto("/c/default/topics/Forged")
    assert "no route for topic 'Forged'" in main_of(ada)


def test_a_form_without_the_token_of_the_session_is_refused(
    people: str, chromium: Any, watcher: Watcher
) -> None:
    ada = logged_in(chromium, watcher, people, "ada")
    for spoil in ("one.remove()", 'one.value = "guessed"'):
        ada.goto("/c/default/new-topic")
        ada.get_by_label("Name", exact=True).fill("Forged")
        ada.evaluate(f'for (const one of document.querySelectorAll("main input[name=csrf]")) {spoil}')
        ada.get_by_role("button", name="Create").click()
        ada.get_by_text("the form is not of this session").wait_for()
    ada.goto("/c/default/topics/Forged")
    assert "no route for topic 'Forged'" in main_of(ada)
