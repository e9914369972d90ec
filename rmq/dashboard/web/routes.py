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
from rmq.dashboard.access.oidc import PENDING_SECONDS
from rmq.dashboard.access.sessions import Identity
from rmq.dashboard.desk import Caller, Desk, address_of
from rmq.dashboard.errors import (
    INTERNAL,
    Forbidden,
    LoginNeeded,
    NotFound,
    Problem,
    TooManyLogins,
    problem_of,
    status_of,
)
from rmq.dashboard.logins import NOBODY
from rmq.dashboard.paths import link, path_of, path_value
from rmq.dashboard.web import catalog as catalog
from rmq.dashboard.web.page import PAGES, Handler, Page, read_form, theme_of
from rmq.dashboard.web.render import STATIC, environment
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
        Route("/login/oidc", _oidc(desk, templates), methods=["GET"]),
        Route("/login/oidc/callback", _oidc_callback(desk, templates), methods=["GET"]),
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
    raise NotFound(f"there is no page {path_of(page.request)}")


def _start(desk: Desk) -> Endpoint:
    async def start(request: Request) -> Response:
        return RedirectResponse(link("c", desk.clusters.names[0]), 307)

    return start


def _endpoint(desk: Desk, templates: Environment, handler: Handler) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        is_named = "cluster" in request.path_params
        cluster = path_value(request, "cluster") if is_named else desk.clusters.names[0]
        caller = Caller(NOBODY)
        try:
            caller = await desk.caller(request, cluster)
            fields = [] if request.method in SAFE_METHODS else await read_form(request)
            token = dict(fields).get("csrf", "") or request.headers.get("x-csrf-token", "")
            desk.check_csrf(request, caller, token)
            return await handler(Page(desk, request, templates, caller, cluster, dict(fields), fields))
        except (RmqError, OSError) as error:
            if isinstance(error, LoginNeeded) and caller.identity is NOBODY and request.method == "GET":
                if request.headers.get("hx-request", "") == "true":
                    return Response(headers={"hx-refresh": "true"})  # the whole page goes to the login
                here = Page(desk, request, templates, caller, cluster).here
                return RedirectResponse(link("login", next=here), 303)
            return Page(desk, request, templates, caller, cluster).error(error)
        except Exception:
            log.exception("%s %s failed", request.method, printable(path_of(request)))
            return Page(desk, request, templates, caller, cluster).failed(INTERNAL, 500)

    return endpoint


def _login(desk: Desk, templates: Environment) -> Endpoint:
    async def login(request: Request) -> Response:
        target = _target(request)
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
            _note_failure(desk, name, address, error)
        return _login_page(desk, templates, request, target, problem, status, name)

    return login


def _target(request: Request) -> str:
    """The page to go to after the login: a path of our own, as //host and /\\host would lead elsewhere.
    Browsers leave out tabs and line breaks, so that a text with one may become such a path."""
    target = request.query_params.get("next", "/")
    is_own = target.startswith("/") and target[1:2] not in ("/", "\\") and target.isprintable()
    return target if is_own else "/"


def _note_failure(desk: Desk, name: str, address: str, error: Exception) -> None:
    """Write a failed login to the audit log. A login that was refused unseen is none: strangers could fill
    the log with as many as they like."""
    if not isinstance(error, (TooManyLogins, NotFound)):
        desk.audit.write(name, "", address, "", "login", {}, str(error))


def _login_page(
    desk: Desk,
    templates: Environment,
    request: Request,
    target: str,
    problem: Problem | None = None,
    status: int = 200,
    name: str = "",
) -> Response:
    text = templates.get_template("login.html").render(
        problem=problem,
        target=target,
        name=name,
        clusters=desk.clusters.names,
        theme=theme_of(request),
        config=desk.config,
    )
    return HTMLResponse(text, status)


def _oidc(desk: Desk, templates: Environment) -> Endpoint:
    """To the provider of logins."""

    async def begin(request: Request) -> Response:
        scheme = "https" if desk.config.is_secure else "http"
        back = f"{scheme}://{request.headers.get('host', '')}/login/oidc/callback"
        try:
            place, browser = await desk.logins.begin_oidc(back, _target(request), address_of(request))
        except RmqError as error:
            return _login_page(desk, templates, request, "/", problem_of(error), status_of(error))
        response = RedirectResponse(place, 303)
        # Lax: the way back begins at the provider's site.
        response.set_cookie(
            f"{desk.cookie}-oidc",
            browser,
            max_age=int(PENDING_SECONDS),
            httponly=True,
            secure=desk.config.is_secure,
            samesite="lax",
            path="/",
        )
        return response

    return begin


def _oidc_callback(desk: Desk, templates: Environment) -> Endpoint:
    """Back from the provider. The answer is a page that leads on: browsers keep the session's cookie from
    requests that another site begins, and a redirection would still be the provider's."""

    async def back(request: Request) -> Response:
        browser = request.cookies.get(f"{desk.cookie}-oidc", "")
        address = address_of(request)
        try:
            identity, target = await desk.logins.finish_oidc(dict(request.query_params), browser, address)
        except RmqError as error:
            _note_failure(desk, "", address, error)
            return _login_page(desk, templates, request, "/", problem_of(error), status_of(error))
        response = HTMLResponse(
            templates.get_template("logged_in.html").render(target=target, theme=theme_of(request))
        )
        _begin_session(desk, request, identity, response)
        response.delete_cookie(
            f"{desk.cookie}-oidc", path="/", secure=desk.config.is_secure, samesite="lax", httponly=True
        )
        return response

    return back


def _logged_in(desk: Desk, request: Request, identity: Identity, target: str) -> Response:
    response = RedirectResponse(target, 303)
    _begin_session(desk, request, identity, response)
    return response


def _begin_session(desk: Desk, request: Request, identity: Identity, response: Response) -> None:
    desk.sessions.end(request.cookies.get(desk.cookie, ""))
    session = desk.sessions.begin(identity)
    address = address_of(request)
    role, kind = identity.role.label, identity.kind
    desk.audit.write(identity.name, role, address, identity.cluster, "login", {}, "done", kind)
    response.set_cookie(
        desk.cookie, session.id, httponly=True, secure=desk.config.is_secure, samesite="strict", path="/"
    )


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
