"""Page: a request for HTML, the tools of its handler, and the registry of handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl

from attrs import define, field, frozen
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rmq.dashboard.access.guard import SAFE_METHODS
from rmq.dashboard.access.sessions import Notice
from rmq.dashboard.desk import Caller, Desk, address_of
from rmq.dashboard.errors import BadRequest, Problem, problem_of, status_of
from rmq.dashboard.operations.operation import Call
from rmq.dashboard.paths import link, path_value, quoted_path
from rmq.errors import RmqError

NAVIGATION: Final = (
    ("", "Overview", "o"),
    ("topics", "Topics", "t"),
    ("groups", "Groups", "g"),
    ("messages", "Messages", "m"),
    ("dead-letters", "Dead letters", "d"),
    ("brokers", "Brokers", "b"),
    ("delayed", "Delayed", "l"),
    ("transactions", "Transactions", "x"),
    ("name-servers", "Name servers", "n"),
    ("accounts", "Accounts", "a"),
    ("controllers", "Controllers", "c"),
    ("streams", "Spark streams", "s"),
    ("jobs", "Jobs", "j"),
)
"""Pages: path, title, and the key that goes there after `g`."""
FIELDS_MAX: Final = 5000
SERVER_FAILS: Final = 500


@define(eq=False)
class Page:
    """One request for a page of a cluster."""

    desk: Desk
    request: Request
    templates: Environment
    caller: Caller
    cluster: str
    form: Mapping[str, str] = field(factory=dict)
    fields: list[tuple[str, str]] = field(factory=list)

    @property
    def query(self) -> Mapping[str, str]:
        """The arguments of the URL."""
        return self.request.query_params

    @property
    def is_post(self) -> bool:
        """True if a form was sent."""
        return self.request.method not in SAFE_METHODS

    @property
    def is_part(self) -> bool:
        """True if a page that is open asks for a part of itself."""
        return self.request.headers.get("hx-request", "") == "true"

    @property
    def here(self) -> str:
        """The path of this page, quoted, and the query of a page that changes nothing, for a link back."""
        query = "" if self.is_post else self.request.url.query
        return quoted_path(self.request) + (f"?{query}" if query else "")

    def path(self, name: str) -> str:
        """A part of the URL's path."""
        return path_value(self.request, name)

    async def perform(self, operation: str, /, **given: Any) -> Any:
        """Perform an operation as the caller."""
        return await self.desk.perform(self.request, self.caller, self.cluster, operation, given)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[Call]:
        """A call on the cluster."""
        address = address_of(self.request)
        async with self.desk.call(self.caller.identity, self.cluster, address) as call:
            yield call

    def to(self, *segments: object, **query: object) -> str:
        """The path of a page of this cluster."""
        return link("c", self.cluster, *segments, **query)

    def show(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page from a template."""
        return self._html(template, status, values)

    def redirect(self, *segments: object, notice: str = "", **query: object) -> Response:
        """Go to a page after a change, which shows the notice."""
        if notice and self.caller.session is not None:
            self.caller.session.notices.append(Notice(notice))
        return RedirectResponse(self.to(*segments, **query), 303)

    def error(self, error: RmqError | OSError) -> Response:
        """The page of an error."""
        return self.failed(problem_of(error), status_of(error))

    def failed(self, problem: Problem, status: int) -> Response:
        """The page of a problem. A page that is open keeps its figures while servers fail, or while no broker
        is registered: its next request may find them again."""
        if self.is_part and (status >= SERVER_FAILS or problem.retriable):
            return Response(status_code=204)
        return self._html("error.html", status, {"problem": problem})

    def _html(self, template: str, status: int, values: dict[str, Any]) -> Response:
        session = self.caller.session
        notices: list[Notice] = []
        if session is not None and self.request.method == "GET" and not self.is_part:
            notices = [*session.notices]
            session.notices.clear()
        section = self.request.url.path.split("/")[3:4]
        text = self.templates.get_template(template).render(
            page=self,
            identity=self.caller.identity,
            csrf=self.caller.csrf,
            cluster=self.cluster,
            clusters=self.desk.clusters.names,
            navigation=NAVIGATION,
            section=section[0] if section else "",
            theme=theme_of(self.request),
            notices=notices,
            to=self.to,
            now_ms=self.desk.now_ms(),
            **values,
        )
        return HTMLResponse(text, status)


Handler = Callable[[Page], Awaitable[Response]]


@frozen
class PageRoute:
    """A handler, and where it is served below a cluster."""

    path: str
    handler: Handler
    methods: tuple[str, ...]


PAGES: Final[list[PageRoute]] = []
"""All pages; modules of this folder fill it when they are imported."""


def page(path: str, *methods: str) -> Callable[[Handler], Handler]:
    """Register a handler for GET, or for the methods that are named."""

    def register(handler: Handler) -> Handler:
        PAGES.append(PageRoute(path, handler, methods or ("GET",)))
        return handler

    return register


def theme_of(request: Request) -> str:
    """The theme that the viewer has chosen: light, dark, or auto."""
    chosen = request.cookies.get("rmq-theme", "")
    return chosen if chosen in ("light", "dark") else "auto"


async def read_form(request: Request) -> list[tuple[str, str]]:
    """The fields of a form. Raises BadRequest."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise BadRequest("the body is no form")
    try:
        return parse_qsl(
            (await request.body()).decode("ascii"),
            keep_blank_values=True,
            encoding="utf-8",
            errors="strict",
            max_num_fields=FIELDS_MAX,
        )
    except (ValueError, UnicodeError) as error:
        raise BadRequest(f"the form cannot be read: {error}") from None
