"""Routes of the API: /api/v1/clusters/{cluster}/..., one for each operation, and its description."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from rmq.dashboard.api.openapi import description
from rmq.dashboard.catalog import OPERATIONS
from rmq.dashboard.desk import Desk
from rmq.dashboard.errors import (
    INTERNAL,
    BadRequest,
    DashboardError,
    NotFound,
    Problem,
    ProblemBody,
    problem_of,
    status_of,
)
from rmq.dashboard.operations.operation import Operation
from rmq.dashboard.paths import path_of, path_value
from rmq.dashboard.stream import Stream, answer_of
from rmq.errors import RmqError
from rmq.printable import printable

log = logging.getLogger(__name__)

PREFIX: Final = "/api/v1/clusters/{cluster}"
METHODS: Final = ["GET", "POST", "PUT", "DELETE", "PATCH"]
Handler = Callable[[Request], Awaitable[Response]]


def api_routes(desk: Desk) -> list[Route]:
    """The routes of all operations, of the list of clusters, and of the description."""

    async def clusters(request: Request) -> Response:
        await desk.caller(request, desk.clusters.names[0])
        return _answer(desk.clusters.names)

    async def openapi(request: Request) -> Response:
        return _answer(description(list(OPERATIONS.values())))

    routes = [
        Route("/api/v1/openapi.json", _guarded(openapi), methods=["GET"]),
        Route("/api/v1/clusters", _guarded(clusters), methods=["GET"]),
    ]
    by_path: dict[str, dict[str, Operation]] = {}
    for one in OPERATIONS.values():
        by_path.setdefault(one.path, {})[one.method] = one
    # Fixed paths go before those with a name in them.
    for path in sorted(by_path, key=lambda text: (text.count("{"), text)):
        handler = _handler(desk, by_path[path])
        routes.append(Route(PREFIX + path, _guarded(handler), methods=list(by_path[path])))

    async def missing(request: Request) -> Response:
        near = [route for route in routes if route.matches(request.scope)[0] is Match.PARTIAL]
        if near:
            return _refused_method(request, sorted({one for route in near for one in route.methods or ()}))
        raise NotFound(f"the API has no {path_of(request)}; /api/v1/openapi.json describes it")

    return [*routes, Route("/api/{path:path}", _guarded(missing), methods=METHODS)]


async def refused_method(request: Request, error: Exception) -> Response:
    """The answer to a method that a page does not take."""
    allowed = (error.headers or {}).get("Allow", "") if isinstance(error, HTTPException) else ""
    return _refused_method(request, allowed.split(", "))


def _refused_method(request: Request, allowed: list[str]) -> Response:
    text = f"{printable(path_of(request))} takes {' or '.join(allowed)}, not {request.method}"
    response = _answer(ProblemBody(Problem("BadRequest", 0, text, "use another method")), 405)
    response.headers["allow"] = ", ".join(allowed)
    return response


def _handler(desk: Desk, methods: dict[str, Operation]) -> Handler:
    async def handle(request: Request) -> Response:
        one = methods["GET" if request.method == "HEAD" else request.method]
        cluster = path_value(request, "cluster")
        caller = await desk.caller(request, cluster)
        desk.check_csrf(request, caller, request.headers.get("x-csrf-token", ""))
        given = await _given(request, one)
        result = await desk.perform(request, caller, cluster, one.name, given)
        return answer_of(result) if isinstance(result, Stream) else _answer(result)

    return handle


async def _given(request: Request, one: Operation) -> dict[str, Any]:
    """The arguments: of the path, and of the query (GET, DELETE) or the JSON body. Raises BadRequest."""
    path = {name: path_value(request, name) for name in one.path_names}
    if one.method in ("GET", "DELETE"):
        return {**_query(request, one), **path}
    body = await request.body()
    try:
        given = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise BadRequest("the body is no JSON object")
    return {**given, **path}


def _query(request: Request, one: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lists = {field.name for field in msgspec.structs.fields(one.arguments) if _is_list(field.type)}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        found[name] = values if name in lists else values[-1]
    return found


def _is_list(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is list


def _answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _guarded(handler: Handler) -> Handler:
    """Turns errors into answers: the body is a ProblemBody."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except (RmqError, OSError) as error:
            response = _answer(ProblemBody(problem_of(error)), status_of(error))
            if isinstance(error, DashboardError) and error.status == 401:
                response.headers["www-authenticate"] = "Bearer"
            return response
        except Exception:
            log.exception("%s %s failed", request.method, printable(path_of(request)))
            return _answer(ProblemBody(INTERNAL), 500)

    return guarded
