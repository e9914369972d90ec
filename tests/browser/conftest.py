"""A real `rmq dev` with its dashboard, and headless Chromium (`nox -s browser`)."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest
from attrs import define, field

CHROMIUM = os.environ.get("RMQ_CHROMIUM") or shutil.which("chromium") or ""
SEVERE: Final = ("serious", "critical")
PHONE: Final = {"width": 390, "height": 800}


@define
class Dev:
    """An `rmq dev` that runs: its addresses, and the link that logs in."""

    link: str
    namesrv: str
    process: Any = field(repr=False)

    @property
    def base(self) -> str:
        """The dashboard's address."""
        return self.link.partition("/login")[0]


@pytest.fixture(scope="session")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """`rmq dev` on free ports."""
    folder = tmp_path_factory.mktemp("dev")
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--dashboard-port", "0", "--grpc-port", "0")
    quick = ("transactionTimeOut=1000", "transactionCheckInterval=1000", "transactionCheckMax=1")
    settings = [part for one in quick for part in ("--set", one)]
    command = [sys.executable, "-m", "rmq", "dev", "--data-dir", str(folder / "data"), *ports, *settings]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        yield _started(log, process)
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == 0, rest + log.read_text()


def _started(log: pathlib.Path, process: Any) -> Dev:
    """Read the banner to its end."""
    text = ""
    for line in process.stdout:
        text += line
        if "from Java" in line:
            break
    link = re.search(r"dashboard +(http\S+)", text)
    namesrv = re.search(r"name server +(\S+)", text)
    assert link, text + log.read_text()
    assert namesrv, text
    return Dev(link[1], namesrv[1], process)


@contextmanager
def dashboard(namesrv: str, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """`rmq dashboard` over a cluster: the address that it prints, which logs in with `--login-link`."""
    command = [sys.executable, "-m", "rmq", "dashboard", "-n", namesrv, "--port", "0", *options]
    given = {**os.environ, **(environment or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=given)
    assert process.stdout is not None
    try:
        for _ in range(1 + ("--login-link" in options)):
            found = re.search(r"(http://\S+)", process.stdout.readline())
        assert found, "no dashboard"
        yield found[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        process.stdout.close()


def faults_of(page: Any, name: str) -> list[str]:
    """Serious faults of access of the page as it is, in light and dark and in the width of a phone; takes
    pictures into RMQ_SCREENSHOTS."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    wide, faults = page.viewport_size, []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no colours on their way
        page.wait_for_timeout(200)
        found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
        faults += [
            f"{name}, {scheme}: {one['id']}: {node['html'][:120]}: {node['failureSummary']}"
            for one in found
            if one["impact"] in SEVERE
            for node in one["nodes"]
        ]
        picture(page, f"{name}-{scheme}")
    page.set_viewport_size(PHONE)
    if page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") > 0:
        faults.append(f"{name} is wider than a phone")
    picture(page, f"{name}-phone")
    page.set_viewport_size(wide)
    page.emulate_media(color_scheme="light")
    return faults


def picture(page: Any, name: str) -> None:
    """A picture of a page, if RMQ_SCREENSHOTS names a folder."""
    if folder := os.environ.get("RMQ_SCREENSHOTS"):
        page.screenshot(path=pathlib.Path(folder) / f"dashboard-{name}.png")


@define
class Watcher:
    """The rules of a page: keep the policy, log no error, fail no request, open no dialog."""

    found: list[str] = field(factory=list)

    def watch(self, page: Any) -> None:
        """Look at one page."""
        page.on("console", lambda message: self._console(message))
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.found.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._request(request))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            self.found.append(f"{message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:")):
            self.found.append(f"request: {request.url}")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's Chromium, or the one that RMQ_CHROMIUM names."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM:
        pytest.skip("no chromium: apt-get install chromium, or name it in RMQ_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    """Fail the test if a page breaks a rule of the Watcher."""
    made = Watcher()
    yield made
    assert made.found == []


@pytest.fixture
def page(chromium: Any, dev: Dev, watcher: Watcher) -> Iterator[Any]:
    """A page of a visitor who has logged in by the link."""
    context = chromium.new_context(viewport={"width": 1280, "height": 860}, base_url=dev.base)
    made = context.new_page()
    watcher.watch(made)
    made.goto(dev.link)
    yield made
    context.close()
