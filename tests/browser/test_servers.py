"""Pages of servers in a browser: controllers and a hand-over, accounts and why, name servers, contexts."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.ports import free_ports
from tests.system.failover import Processes

from .conftest import Dev, Watcher, dashboard, faults_of

pytestmark = pytest.mark.browser

SECONDS = 90.0
SECRET = "secret-of-chief"
ACCOUNTS = f"""
accounts:
  - {{accessKey: chief-one, secretKey: {SECRET}, admin: true}}
  - {{accessKey: clerk-one, secretKey: secret-of-clerk, admin: false, defaultTopicPerm: DENY,
     defaultGroupPerm: SUB, topicPerms: [Orders=PUB|SUB, Salaries=DENY]}}
"""


def main_of(page: Any) -> str:
    """The text of a page, as a person reads it."""
    return " ".join(page.locator("main").inner_text().split())


@pytest.fixture
def controlled(tmp_path: pathlib.Path) -> Iterator[Processes]:
    """A name server, three controllers, and a set of two brokers that they look after."""
    found = Processes(tmp_path, 2)
    found.start()
    yield found
    found.stop()


def test_controllers_show_their_sets_and_a_button_hands_the_master_over(
    controlled: Processes, chromium: Any, watcher: Watcher
) -> None:
    with dashboard(controlled.namesrv, "--login-link") as link:
        page = chromium.new_context(base_url=link.partition("/login")[0]).new_page()
        watcher.watch(page)
        page.goto(link)
        end = time.monotonic() + SECONDS
        button = page.get_by_role("button", name="Make it the master")
        while not button.count():
            assert time.monotonic() < end, main_of(page)
            page.goto("/c/default/controllers")
            page.wait_for_timeout(500)
        rows = page.locator("main table").first.locator("tbody tr")
        assert rows.count() == 3
        assert sorted(page.locator("main table").first.locator(".badge").all_inner_texts()) == [
            *("follows", "follows", "leads")
        ]
        assert faults_of(page, "controllers") == []
        replica = page.locator("tr", has=button)
        address = replica.locator("td").nth(1).inner_text()
        assert "slave" in replica.inner_text()

        button.click()
        page.wait_for_url(re.compile("/jobs/[0-9a-f]+$"))
        page.locator(".note.good").wait_for(timeout=60_000)
        assert "is the master in epoch" in main_of(page)
        assert faults_of(page, "handed-over") == []
        page.goto("/c/default/controllers")
        assert "master" in page.locator("tr", has_text=address).inner_text()
        while "2 of 2 in sync" not in main_of(page):
            assert time.monotonic() < end, main_of(page)
            page.wait_for_timeout(500)
            page.goto("/c/default")
        assert "lease renewed 0 s ago" in main_of(page) or "lease renewed 1 s ago" in main_of(page)
        assert faults_of(page, "overview-set") == []
        page.context.close()


@pytest.fixture
def guarded(tmp_path: pathlib.Path) -> Iterator[str]:
    """A cluster with access control: the address of its name server."""
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    (tmp_path / "cluster-secret").write_text("a secret of these servers")
    port, *_, broker = free_ports(4)
    namesrv = f"127.0.0.1:{port}"
    given = ("aclEnable=true", f"aclFile={tmp_path / 'plain_acl.yml'}")
    shared = (*given, f"clusterSecretFile={tmp_path / 'cluster-secret'}")
    servers = {
        "rmq.namesrv": (f"listenPort={port}", f"kvConfigPath={tmp_path / 'kv.json'}"),
        "rmq.broker": (
            *(f"listenPort={broker}", f"namesrvAddr={namesrv}", "brokerName=guarded", "haEnable=false"),
            *(f"storePathRootDir={tmp_path / 'store'}", "mappedFileSizeCommitLog=4m"),
        ),
    }
    running = []
    for module, own in servers.items():
        options = [word for setting in (*own, *shared) for word in ("--set", setting)]
        with (tmp_path / f"{module}.log").open("w") as log:
            process = subprocess.Popen([sys.executable, "-m", module, *options], stdout=log, stderr=log)
        running.append(process)
    yield namesrv
    for process in running:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def log_in(page: Any, name: str, secret: str) -> None:
    """Log in, again until the cluster is up."""
    end = time.monotonic() + SECONDS
    while True:
        page.goto("/login")
        page.get_by_label("Name", exact=True).fill(name)
        page.get_by_label("Secret", exact=True).fill(secret)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_load_state()
        if "/login" not in page.url:
            return
        assert time.monotonic() < end, main_of(page)
        page.wait_for_timeout(1000)


def test_accounts_act_as_themselves_and_a_page_says_why_one_may_do_something(
    guarded: str, chromium: Any, watcher: Watcher
) -> None:
    with dashboard(guarded) as address:
        page = chromium.new_context(base_url=address).new_page()
        log_in(page, "chief-one", SECRET)  # answered with 503 until the cluster is up
        watcher.watch(page)
        page.goto("/c/default/accounts")
        assert "clerk-one" in main_of(page)
        for action, kind, name, verdict in (
            *(("write to", "topic", "Orders", "may"), ("read", "topic", "Salaries", "may not")),
            *(("read", "topic", "Other", "may not"), ("read", "group", "billing", "may")),
        ):
            page.get_by_label("Account", exact=True).select_option("clerk-one")
            page.get_by_label("Action", exact=True).select_option(label=action)
            page.get_by_label("Kind", exact=True).select_option(kind)
            page.get_by_label("Name", exact=True).fill(name)
            page.get_by_role("button", name="Why", exact=False).click()
            page.wait_for_load_state()
            text = main_of(page)
            assert f"clerk-one {verdict} {'write to' if action == 'write to' else 'read'}" in text, text
        assert faults_of(page, "accounts-why") == []
        page.goto("/c/default/new-account")
        page.get_by_label("Access key").fill("newcomer")
        page.get_by_label("Secret key").fill("secret-of-newcomer")
        page.get_by_label("Topics", exact=True).fill("Orders=SUB")
        assert faults_of(page, "account-form") == []
        page.get_by_role("button", name="Create").click()
        page.wait_for_url(re.compile("/accounts$"))
        assert "newcomer" in main_of(page)
        assert "secret-of" not in page.content()
        page.goto("/c/default/accounts/newcomer/delete")
        page.get_by_label("Type the name to delete it").fill("newcomer")
        page.get_by_role("button", name="Delete").click()
        page.wait_for_url(re.compile("/accounts$"))

        page.goto("/c/default/new-topic")
        page.get_by_label("Name", exact=True).fill("Orders")
        page.get_by_role("button", name="Create").click()
        page.wait_for_url(re.compile("/topics/Orders$"))
        clerk = chromium.new_context(base_url=address).new_page()
        watcher.watch(clerk)
        log_in(clerk, "clerk-one", "secret-of-clerk")
        clerk.goto("/c/default/topics/Orders/send")
        clerk.get_by_label("Body", exact=True).fill("of a clerk")
        clerk.get_by_role("button", name="Send").click()
        clerk.get_by_text("Stored in").wait_for()
        clerk.goto("/c/default/topics/Salaries/send")
        clerk.get_by_label("Body", exact=True).fill("of a clerk")
        clerk.get_by_role("button", name="Send").click()
        clerk.wait_for_load_state()
        assert "That did not work" in main_of(clerk)
        assert faults_of(clerk, "refused-by-the-cluster") == []
        page.context.close()
        clerk.context.close()


def test_several_clusters_are_chosen_by_context(
    dev: Dev, chromium: Any, watcher: Watcher, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "rmq"
    folder.mkdir()
    (folder / "contexts.yaml").write_text(yaml.safe_dump({"contexts": {"abroad": {"namesrv": dev.namesrv}}}))
    (folder / "contexts.yaml").chmod(0o600)
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with dashboard(dev.namesrv, "--login-link", "--cluster", "abroad", environment=environment) as link:
        page = chromium.new_context(base_url=link.partition("/login")[0]).new_page()
        watcher.watch(page)
        page.goto(link)
        assert "Cluster default" in main_of(page)
        page.get_by_label("Cluster").select_option("abroad")
        page.wait_for_url(re.compile("/c/abroad$"))
        assert "Cluster abroad" in main_of(page)
        assert faults_of(page, "clusters") == []
        page.context.close()


def test_key_value_configs_of_name_servers_are_kept_and_deleted(dev: Dev, page: Any) -> None:
    page.goto("/c/dev/name-servers?namespace=shop")
    page.get_by_label("Key", exact=True).fill("colour")
    page.get_by_label("Value", exact=True).fill("<b>blue</b>")
    page.get_by_role("button", name="Keep").click()
    page.locator("tr", has_text="colour").wait_for()
    assert "<b>blue</b>" in main_of(page)
    page.get_by_text("settings").first.click()
    assert faults_of(page, "name-servers-settings") == []
    page.locator("tr", has_text="colour").get_by_role("button", name="Delete").click()
    page.wait_for_load_state()
    assert "blue" not in main_of(page).partition("Key-value")[2]
