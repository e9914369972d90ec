"""Routes of the pages, of logging in and out, and of the static files."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from rmq.dashboard.access.guard import SAFE_METHODS
from rmq.dashboard.access.sessions import Identity
from rmq.dashboard.desk import Caller, Desk, address_of
from rmq.dashboard.errors import INTERNAL, Forbidden, LoginNeeded, NotFound, problem_of, status_of
from rmq.dashboard.logins import NOBODY
from rmq.dashboard.web import catalog as catalog
from rmq.dashboard.web.page import PAGES, Handler, Page, read_form, theme_of
from rmq.dashboard.web.render import STATIC, environment, link
from rmq.errors import RmqError
from rmq.printable import printable

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
STATIC_SECONDS: Final = 3600


class CachedFiles(StaticFiles):
    """Static files that browsers keep for an hour."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = f"public, max-age={STATIC_SECONDS}"
        return response


def page_routes(desk: Desk) -> list[BaseRoute]:
    """All routes that give HTML."""
    templates = environment()
    routes: list[BaseRoute] = [
        Route("/", _start(desk), methods=["GET"]),
        Route("/login", _login(desk, templates), methods=["GET", "POST"]),
        Route("/logout", _logout(desk), methods=["POST"]),
        Route("/healthz", _health, methods=["GET"]),
        Mount("/static", CachedFiles(directory=STATIC)),
    ]
    for one in PAGES:
        endpoint = _endpoint(desk, templates, one.handler)
        path = "/c/{cluster}" + one.path
        routes.append(Route(path, endpoint, methods=list(one.methods)))
    routes.append(Route("/{path:path}", _endpoint(desk, templates, _missing), methods=["GET"]))
    return routes


async def _health(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _missing(page: Page) -> Response:
    raise NotFound(f"there is no page {page.request.url.path}")


def _start(desk: Desk) -> Endpoint:
    async def start(request: Request) -> Response:
        return RedirectResponse(link("c", desk.clusters.names[0]), 307)

    return start


def _endpoint(desk: Desk, templates: Environment, handler: Handler) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        cluster = request.path_params.get("cluster", desk.clusters.names[0])
        caller = Caller(NOBODY)
        try:
            caller = await desk.caller(request, cluster)
            fields = [] if request.method in SAFE_METHODS else await read_form(request)
            token = dict(fields).get("csrf", "") or request.headers.get("x-csrf-token", "")
            desk.check_csrf(request, caller, token)
            return await handler(Page(desk, request, templates, caller, cluster, dict(fields), fields))
        except (RmqError, OSError) as error:
            if isinstance(error, LoginNeeded) and caller.identity is NOBODY and request.method == "GET":
                return RedirectResponse(link("login", next=_here(request)), 303)
            return Page(desk, request, templates, caller, cluster).error(error)
        except Exception:
            log.exception("%s %s failed", request.method, printable(request.url.path))
            return Page(desk, request, templates, caller, cluster).failed(INTERNAL, 500)

    return endpoint


def _here(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _login(desk: Desk, templates: Environment) -> Endpoint:
    async def login(request: Request) -> Response:
        target = request.query_params.get("next", "/")
        # Only paths of our own: //host and /\host would lead elsewhere.
        target = target if target.startswith("/") and target[1:2] not in ("/", "\\") else "/"
        address = address_of(request)
        problem, status, name = None, 200, ""
        try:
            if request.method == "POST":
                form = dict(await read_form(request))
                name, cluster = form.get("name", ""), form.get("cluster", "")
                identity = await desk.logins.by_password(name, form.get("password", ""), cluster, address)
                return _logged_in(desk, request, identity, target)
            if token := request.query_params.get("key", ""):
                return _logged_in(desk, request, desk.logins.by_link(token, address), target)
        except (RmqError, OSError) as error:
            problem, status = problem_of(error), status_of(error)
            desk.audit.write(name, "", address, "", "login", {}, str(error))
        text = templates.get_template("login.html").render(
            problem=problem,
            target=target,
            name=name,
            clusters=desk.clusters.names,
            theme=theme_of(request),
            config=desk.config,
        )
        return HTMLResponse(text, status)

    return login


def _logged_in(desk: Desk, request: Request, identity: Identity, target: str) -> Response:
    desk.sessions.end(request.cookies.get(desk.cookie, ""))
    session = desk.sessions.begin(identity)
    address = address_of(request)
    desk.audit.write(identity.name, identity.role.label, address, identity.cluster, "login", {}, "done")
    response = RedirectResponse(target, 303)
    response.set_cookie(
        desk.cookie, session.id, httponly=True, secure=desk.config.is_secure, samesite="strict", path="/"
    )
    return response


def _logout(desk: Desk) -> Endpoint:
    async def logout(request: Request) -> Response:
        session = desk.session(request)
        if session is not None:
            form = dict(await read_form(request))
            if not session.is_csrf(form.get("csrf", "")):
                error = Forbidden("the form is not of this session")
                return PlainTextResponse(f"{error}\n", 403)
            desk.sessions.end(session.id)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(desk.cookie, path="/", secure=desk.config.is_secure, samesite="strict")
        return response

    return logout
