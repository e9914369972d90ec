"""Any request that the description allows is answered as it says, and no request fails inside."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rmq.dashboard.api.openapi import description
from rmq.dashboard.catalog import OPERATIONS
from rmq.message import Message
from rmq.testing.cluster import Cluster

from .site import BASE, Browser, Site, site

DOCUMENT: Final = description(list(OPERATIONS.values()))
TAIL: Final = "/clusters/{cluster}/topics/{topic}/events"
"""A stream without an end."""
NAMES: Final = (
    "Orders",
    "billing",
    "shop-a",
    "nobody",
    "",
    "*",
    "0",
    "%RETRY%billing",
    "%DLQ%billing",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "fileReservedTime",
    "0A000101000029F90000000000000000",
    "\u202e<b>",
    "a" * 300,
    "\x00",
)
"""Names that exist, names of RocketMQ's own things, and texts that are no names."""
PHASES: Final = (Phase.explicit, Phase.generate)
"""A failing example is not made smaller: each has a cluster of its own."""
texts = st.sampled_from(NAMES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema of the description allows."""
    if not schema:
        return st.none() | texts | st.integers(-1, 9)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(values, schema["anyOf"]))
    match schema.get("type"):
        case "string":
            return texts.map(lambda text: text or "x" * schema.get("minLength", 0))
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = schema.get("minimum", -5), schema.get("maximum", 2**63 - 1)
            return st.integers(low, min(low + 10, high)) | st.integers(low, high)
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", -5))
            return st.floats(low, schema.get("maximum", 1e6), exclude_min="exclusiveMinimum" in schema)
        case "array":
            return st.lists(values(schema["items"]), max_size=3)
        case "object":
            return st.dictionaries(texts, values(schema.get("additionalProperties", {})), max_size=3)
    raise AssertionError(f"no values for {schema}")


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request that the description allows: `name`, `method`, `path`, `query` and `body`."""
    path = draw(st.sampled_from(sorted(path for path in DOCUMENT["paths"] if path != TAIL)))
    method = draw(st.sampled_from(sorted(DOCUMENT["paths"][path])))
    one = DOCUMENT["paths"][path][method]
    query: dict[str, Any] = {}
    for place in one.get("parameters", ()):
        value = "test" if place["name"] == "cluster" else draw(values(place["schema"]))
        if place["in"] == "path":
            path = path.replace(f"{{{place['name']}}}", quote(str(value), safe="") or "x")
        elif place["required"] or draw(st.booleans()):
            query[place["name"]] = str(value).lower() if isinstance(value, bool) else value
    body = None
    if "requestBody" in one:
        schema = one["requestBody"]["content"]["application/json"]["schema"]
        needed = schema.get("required", ())
        body = {
            name: draw(values(own))
            for name, own in schema["properties"].items()
            if name in needed or draw(st.booleans())
        }
    return {"one": one, "method": method.upper(), "path": path, "query": query, "body": body}


async def filled(cluster: Cluster) -> None:
    """A group, and a message with a key."""
    async with cluster.connect() as client:
        await client.admin.create_group("billing")
        async with client.producer("checkout") as producer:
            await producer.send(Message("Orders", b"one", keys="k"))


async def ask(browser: Browser, request: dict[str, Any]) -> Any:
    """Send a request of the API; the answer."""
    return await browser.http.request(
        request["method"],
        f"/api/v1{request['path']}",
        params=request["query"],
        json=request["body"],
        headers={"origin": BASE, "x-csrf-token": browser.csrf},
    )


@settings(max_examples=8, phases=PHASES)
@given(st.lists(requests(), min_size=10, max_size=30))
async def test_any_request_is_answered_as_the_description_says(chosen: list[dict[str, Any]]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster:
        await filled(cluster)
        async with site(cluster) as made:
            admin = await made.admin()
            await admin.get("/c/test")
            for request in chosen:
                answer = await ask(admin, request)
                said = request["one"]["responses"].get(str(answer.status_code))
                assert said is not None, (request, answer.status_code, answer.text)
                kind = answer.headers["content-type"].partition(";")[0]
                body = answer.json() if kind == "application/json" else answer.text
                schema = said["content"][kind]["schema"]
                jsonschema.validate(body, {**schema, "components": DOCUMENT["components"]})


PAGES: Final = (
    "/topics",
    "/topics/{}",
    "/topics/{}/edit",
    "/topics/{}/events?limit=1",
    "/groups",
    "/groups/{}",
    "/groups/{}/check",
    "/groups/{}/member",
    "/groups/{}/times",
    "/groups/{}/reset",
    "/groups/{}/copy",
    "/messages",
    "/messages/show",
    "/dead-letters",
    "/dead-letters/export",
    "/brokers/{}",
    "/brokers/{}/setting",
    "/delayed",
    "/name-servers",
    "/accounts",
    "/new-account",
    "/{}",
)
ARGUMENTS: Final = (
    "topic", "group", "search", "kind", "page", "size", "sort", "key", "id", "broker", "queue", "offset",
    "since_ms", "cursor", "tags", "text", "count", "client_id", "stack", "name", "form", "as", "limit",
)  # fmt: skip
words = texts | st.integers(-1, 2**70).map(str) | st.sampled_from(["time", "jsonl", "csv", "true", "name"])


@settings(max_examples=8, phases=PHASES)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PAGES), words, st.dictionaries(st.sampled_from(ARGUMENTS), words, max_size=4)
        ),
        min_size=10,
        max_size=30,
    )
)
async def test_no_page_fails_inside(chosen: list[tuple[str, str, dict[str, str]]]) -> None:
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster:
        await filled(cluster)
        async with site(cluster) as made:
            admin = await made.admin()
            for page, word, query in chosen:
                if "events" in page and query.get("limit", "1") != "1":
                    continue  # it would wait for messages
                path = "/c/test" + page.format(quote(word, safe="") or "x")
                answer = await admin.get(path, params={**query, "limit": "x"} if "events" in page else query)
                assert answer.status_code in (200, 400, 404, 501, 502), (path, query, answer.status_code)


async def _refusals(made: Site) -> dict[str, int]:
    """Operation -> status of a request with an argument that is not known, and without the needed ones."""
    admin = await made.admin()
    await admin.get("/c/test")
    found = {}
    for path, methods in DOCUMENT["paths"].items():
        for method, one in methods.items():
            url = re.sub(r"{(\w+)}", lambda match: "test" if match[1] == "cluster" else "x", path)
            query, body = ({"colour": "red"}, None) if method in ("get", "delete") else ({}, {"colour": 1})
            request = {"method": method.upper(), "path": url, "query": query, "body": body}
            found[one["operationId"]] = (await ask(admin, request)).status_code
    return found


async def test_an_argument_that_is_not_known_is_refused_by_every_operation() -> None:
    async with Cluster("shop-a") as cluster, site(cluster) as made:
        found = await _refusals(made)

        assert {name: status for name, status in found.items() if status != 400} == {"clusters": 200}


FAULTS: Final = (
    ("GET", "/brokers/nobody", {}, 404, "UnknownName"),
    ("POST", "/brokers/nobody/writing", {"allowed": True}, 404, "UnknownName"),
    ("POST", "/brokers/nobody/clean", {"what": "logs"}, 404, "UnknownName"),
    ("POST", "/brokers/shop-a/settings", {"name": "nothing", "value": "1"}, 404, "UnknownName"),
    ("POST", "/brokers/shop-a/settings", {"name": "listenPort", "value": "1"}, 400, "BadRequest"),
    ("GET", "/groups/nobody", {}, 404, "UnknownName"),
    ("GET", "/groups/nobody/check", {}, 404, "UnknownName"),
    ("GET", "/groups/billing/member", {"client_id": "gone"}, 404, "ConsumerNotOnline"),
    ("DELETE", "/groups/nobody", {"confirm": "nobody"}, 404, "UnknownName"),
    ("DELETE", "/topics/Nothing", {"confirm": "Nothing"}, 404, "NoRoute"),
    ("POST", "/groups/nobody/reset", {"topic": "Orders", "to": "last"}, 404, "UnknownName"),
    ("POST", "/groups/nobody/copy", {"to_group": "other"}, 404, "UnknownName"),
    ("POST", "/transactions/resume", {"id": "gone"}, 400, "LocalProtocolError"),
    ("POST", "/topics/Orders/messages", {}, 400, "InvalidMessage"),
    ("GET", "/accounts", {}, 501, "RequestCodeNotSupported"),
    ("GET", "/nothing", {}, 404, "NotFound"),
    ("DELETE", "/topics", {}, 405, "BadRequest"),
)
"""Method, path, arguments, status and class of the error."""


async def test_a_fault_of_the_request_is_no_fault_of_a_server() -> None:
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster:
        await filled(cluster)
        async with site(cluster) as made:
            admin = await made.admin()
            await admin.get("/c/test")
            for method, path, arguments, status, name in FAULTS:
                is_query = method in ("GET", "DELETE")
                request = {
                    "method": method,
                    "path": f"/clusters/test{path}",
                    "query": arguments if is_query else {},
                    "body": None if is_query else arguments,
                }
                answer = await ask(admin, request)
                error = answer.json()["error"]
                assert (answer.status_code, error["name"]) == (status, name), (path, answer.text)
                assert error["hint"]
