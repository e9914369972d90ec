"""A dashboard over a cluster in memory, and browsers of it: HTTP clients with cookies, without a socket."""

from __future__ import annotations

import html
import pathlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2 as httpx
from attrs import define, field

from rmq.client.client import Client
from rmq.client.settings.target import Target
from rmq.dashboard.app import World, open_dashboard
from rmq.dashboard.config import DashboardConfig
from rmq.message import StoredMessage
from rmq.protocol.auth.signature import Credentials
from rmq.testing.cluster import Cluster
from rmq.testing.network import MemoryNetwork

BASE = "http://127.0.0.1:8088"
LINK = "the-link-of-the-test"


@define(eq=False)
class Browser:
    """A visitor: its cookies stay; forms are sent with the token of the page, as a browser does."""

    http: httpx.AsyncClient
    csrf: str = ""

    async def get(self, path: str, **options: Any) -> httpx.Response:
        """Load a page."""
        answer = await self.http.get(path, **options)
        if found := re.search(r'name="csrf" value="([^"]*)"', answer.text):
            self.csrf = html.unescape(found[1])
        return answer

    async def post(
        self, path: str, *, origin: str = BASE, csrf: str | None = None, **form: str
    ) -> httpx.Response:
        """Send a form."""
        data = {"csrf": self.csrf if csrf is None else csrf, **form}
        return await self.http.post(path, data=data, headers={"origin": origin})

    async def log_in(self) -> Browser:
        """By the printed link, as admin."""
        await self.get(f"/login?key={LINK}", follow_redirects=True)
        return self


@define(eq=False)
class Site:
    """A dashboard, its cluster, and a time that tests set."""

    cluster: Cluster
    app: Any = None
    clock: list[float] = field(factory=lambda: [0.0])

    def browser(self, **options: Any) -> Browser:
        """A new visitor, who has not logged in."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=True)
        return Browser(httpx.AsyncClient(transport=transport, base_url=BASE, timeout=None, **options))

    async def admin(self) -> Browser:
        """A visitor who has logged in by the link."""
        return await self.browser().log_in()


async def inline(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a slow function at once: a thread would let virtual time run on."""
    return function(*arguments)


@asynccontextmanager
async def site(cluster: Cluster, **settings: Any) -> AsyncIterator[Site]:
    """A dashboard over a cluster that runs. `settings` are those of DashboardConfig; `hosts`: name ->
    cluster, for several."""
    hosts: Mapping[str, Cluster] = settings.pop("hosts", {})
    target = Target(cluster.namesrv_address, settings.pop("credentials", None))
    transport = settings.pop("oidc_transport", None)
    given: dict[str, Any] = {"link_token": LINK, "sample_seconds": 0, "clusters": {"test": target}}
    config = DashboardConfig(**{**given, **settings})
    made = Site(cluster)

    def connect(name: str, target: Target, credentials: Credentials | None) -> Client:
        return hosts.get(name, cluster).connect(credentials=credentials)

    network = cluster.network.host("10.0.9.2") if isinstance(cluster.network, MemoryNetwork) else None
    world = World(lambda: made.clock[0], cluster.now_ms, inline, network, transport)
    async with open_dashboard(config, connect=connect, world=world) as made.app:
        yield made


def text_of(page: str) -> str:
    """The text of a page, as a person reads it."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def roles_file(folder: pathlib.Path, text: str) -> pathlib.Path:
    """A roles file."""
    path = folder / "roles.yaml"
    path.write_text(text, "utf-8")
    return path


async def consumed(client: Client, group: str, topic: str, count: int, *, fails: str = "") -> None:
    """Consume so many messages; those whose body has `fails` fail."""
    left, done = count, anyio.Event()
    async with client.consumer(group, {topic: "*"}, consume_from="first", max_reconsume_times=0) as consumer:

        async def handle(message: StoredMessage) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()
            if fails and fails.encode() in message.body:
                raise ValueError("card declined")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run, handle)
            await done.wait()
            await anyio.sleep(1)
            tasks.cancel_scope.cancel()
