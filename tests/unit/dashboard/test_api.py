"""The HTTP API: every operation, its description, and errors as the client's."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from attrs import evolve

from rmq.dashboard.access.roles import Role
from rmq.dashboard.api.openapi import description
from rmq.dashboard.catalog import OPERATIONS
from rmq.dashboard.clusters import Cache
from rmq.dashboard.errors import status_of
from rmq.errors import NoRoute, NotNameServers, RequestTimeout, RmqError, Unreachable
from rmq.message import Message
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import Cluster

from .site import BASE, Browser, consumed, site

API = "/api/v1/clusters/test"


async def _change(browser: Browser, method: str, path: str, **arguments: Any) -> Any:
    headers = {"origin": BASE, "x-csrf-token": browser.csrf}
    if method == "DELETE":
        return await browser.http.request(method, API + path, params=arguments, headers=headers)
    return await browser.http.request(method, API + path, json=arguments, headers=headers)


def test_the_description_is_valid_and_names_every_operation() -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    found = description(list(OPERATIONS.values()))

    validator.validate(found)
    ids = [one["operationId"] for path in found["paths"].values() for one in path.values()]
    assert sorted(ids) == sorted({*OPERATIONS, "clusters"})
    summaries = [one["summary"] for path in found["paths"].values() for one in path.values()]
    assert all(text.endswith(".") for text in summaries)


def test_what_changes_something_needs_more_than_a_reader() -> None:
    assert [name for name, one in OPERATIONS.items() if one.changes and one.role is Role.READER] == []


async def test_every_reading_operation_answers_as_its_description_says() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = description(list(OPERATIONS.values()))
    samples = {
        "topic": "Orders",
        "group": "billing",
        "broker": "shop-a",
        "figure": "cluster_in",
        "key": "k",
        "client_id": "nobody",
        "id": "0A000101000029F90000000000000000",
        "account": "nobody",
        "kind": "topic",
        "name": "Orders",
        "action": "PUB",
        "job": "none",
    }
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, cluster.connect() as client:
        await client.admin.create_group("billing")
        async with client.producer("checkout") as producer:
            await producer.send(Message("Orders", b"one", keys="k"))
        async with site(cluster) as made:
            admin = await made.admin()
            for path, methods in found["paths"].items():
                if "get" not in methods or methods["get"]["operationId"] == "tail":  # the tail has no end
                    continue
                one = methods["get"]
                needed = [item["name"] for item in one.get("parameters", ()) if item["required"]]
                query = {
                    name: samples[name] for name in needed if f"{{{name}}}" not in path and name != "cluster"
                }
                url = re.sub(r"{(\w+)}", lambda match: {"cluster": "test", **samples}[match[1]], path)
                answer = await admin.http.get(f"/api/v1{url}", params=query)
                content = one["responses"][str(answer.status_code)]["content"]
                kind = answer.headers["content-type"].partition(";")[0]
                body = answer.json() if kind == "application/json" else answer.text
                jsonschema.validate(body, {**content[kind]["schema"], "components": found["components"]})
                assert answer.status_code in (200, 400, 403, 404, 501, 502), (url, answer.text)


async def test_the_api_has_the_powers_of_the_pages() -> None:
    async with Cluster("shop-a", topics={}) as cluster, site(cluster) as made:
        admin = await made.admin()
        await admin.get("/c/test")

        preview = await _change(admin, "PUT", "/topics/Orders", queues=3, preview=True)
        assert preview.json()["after"][0]["read_queues"] == 3
        assert (await admin.http.get(f"{API}/topics")).json()["total"] == 0
        assert (await _change(admin, "PUT", "/topics/Orders", queues=3)).json()["done"] is True
        sent = (
            await _change(admin, "POST", "/topics/Orders/messages", body="one", properties={"a": "b"})
        ).json()
        shown = (
            await admin.http.get(f"{API}/message", params={"topic": "Orders", "id": sent["message_id"]})
        ).json()
        assert (shown["text"], shown["properties"]["a"]) == ("one", "b")
        await _change(admin, "PUT", "/groups/billing", retries=3)
        reset = await _change(admin, "POST", "/groups/billing/reset", topic="Orders", to="last", preview=True)
        assert reset.json()["skipped"] == 1
        assert (await _change(admin, "DELETE", "/topics/Orders", confirm="no")).status_code == 400
        assert (await _change(admin, "DELETE", "/topics/Orders", confirm="Orders")).json()["name"] == "Orders"


async def test_the_api_gives_streams_as_the_pages_do() -> None:
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, cluster.connect() as client:
        async with client.producer("checkout") as producer:
            await producer.send(Message("Orders", b"lamp"))
        await consumed(client, "billing", "Orders", 1, fails="lamp")
        await cluster.advance(1)
        async with site(cluster) as made:
            browser = made.browser()
            shown: list[str] = []

            async def follow() -> None:
                path = f"{API}/topics/Orders/events"
                answer = await browser.http.get(path, params={"limit": 1, "text": "book", "tags": "paid"})
                assert answer.headers["content-type"].startswith("text/event-stream")
                shown.append(answer.text)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                await cluster.advance(1)
                async with client.producer("checkout") as producer:
                    await producer.send(Message("Orders", b"book", tags="open"))
                    await producer.send(Message("Orders", b"book 2", tags="paid"))
            (event,) = re.findall("event: message\ndata: (.*)", shown[0])
            assert json.loads(event)["preview"] == "book 2"

            for form, lines in (("jsonl", 1), ("csv", 2)):
                answer = await browser.http.get(f"{API}/dead-letters/billing/export", params={"form": form})
                assert len(answer.text.splitlines()) == lines
                assert f'filename="dead-letters-billing.{form}"' in answer.headers["content-disposition"]
            refused = await browser.http.get(f"{API}/dead-letters/billing/export?form=xml")
            assert (refused.status_code, refused.json()["error"]["name"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("path", "status", "name", "named"),
    [
        ("/topics/Nothing", 404, "NoRoute", "Nothing"),
        ("/topics?size=many", 400, "BadRequest", "size"),
        ("/topics?size=100000", 400, "BadRequest", "size"),
        ("/topics?colour=red", 400, "BadRequest", "colour"),
        ("/messages", 400, "BadRequest", "topic"),
        ("/messages?topic=Orders&cursor=x", 400, "ConfigError", "cursor"),
        ("/accounts", 401, "LoginNeeded", "admin"),
        ("/message?id=7F00000100002A9F0000000000000000", 404, "UnknownName", "127.0.0.1:10911"),
    ],
)
async def test_errors_have_class_code_and_hint(path: str, status: int, name: str, named: str) -> None:
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, site(cluster) as made:
        answer = await made.browser().http.get(API + path)

        error = answer.json()["error"]
        assert (answer.status_code, error["name"]) == (status, name)
        assert named in error["message"]
        assert error["hint"]


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff"])
async def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    async with Cluster("shop-a") as cluster, site(cluster) as made:
        admin = await made.admin()
        await admin.get("/c/test")
        headers = {"origin": BASE, "x-csrf-token": admin.csrf}
        answer = await admin.http.put(f"{API}/topics/Orders", content=body, headers=headers)

        assert (answer.status_code, answer.json()["error"]["name"]) == (400, "BadRequest")


async def test_a_failure_inside_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: object) -> None:
        raise ZeroDivisionError("secret")

    async with Cluster("shop-a") as cluster, site(cluster) as made:
        monkeypatch.setattr("rmq.dashboard.desk.perform", fail)
        for path in (f"{API}/topics", "/c/test"):
            answer = await made.browser().get(path)
            assert answer.status_code == 500
            assert "InternalError" in answer.text
            assert "secret" not in answer.text


# --- history ---


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NoRoute("Orders"), 404),
        (NoRoute("Orders", refused=True), 403),
        (Unreachable("Orders", {}), 502),
        (NotNameServers("Orders", ["10.0.0.1:10911"]), 502),
        (RequestTimeout("10.0.0.1:10911", 105, 3.0), 504),
    ],
)
def test_a_status_tells_a_refusal_and_a_server_that_fails_from_a_name_that_is_none(
    error: RmqError, status: int
) -> None:
    assert status_of(error) == status


async def test_a_group_that_never_consumed_has_a_chart_without_points() -> None:
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, site(cluster) as made:
        async with cluster.connect() as client:
            await client.admin.create_group("billing")
        query = {"figure": "group_lag", "subject": "billing"}
        answer = await made.browser().http.get(f"{API}/history", params=query)
        assert (answer.status_code, answer.json()["values"]) == (200, [])


async def test_charts_have_what_was_sampled_and_only_for_who_may_see_it() -> None:
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, cluster.connect() as client:
        async with client.producer("checkout") as producer:
            for _ in range(6):
                await producer.send(Message("Orders", b"one"))
        async with client.pull_consumer("billing") as consumer:
            for queue in await consumer.message_queues("Orders"):
                await consumer.commit(queue, 0)
        async with site(cluster, sample_seconds=10) as made:
            await cluster.advance(25)
            browser = made.browser()

            lag = await browser.http.get(
                f"{API}/history", params={"figure": "group_lag", "subject": "billing"}
            )
            assert lag.json()["values"][-1] == 6.0
            assert len(lag.json()["times"]) >= 2
            other = await browser.http.get(
                f"{API}/history", params={"figure": "group_lag", "subject": "other"}
            )
            assert other.status_code == 404


async def test_the_answers_about_the_cluster_are_there_before_the_first_page() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 2}) as cluster,
        site(cluster, sample_seconds=10) as made,
    ):
        await cluster.advance(1)
        asked = cluster["shop-a"].requests(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert len(asked) == 1
        assert (await made.browser().get("/c/test")).status_code == 200
        assert cluster["shop-a"].requests(RequestCode.GET_ALL_TOPIC_CONFIG) == asked


async def test_a_broker_that_answered_a_while_ago_has_no_clock_that_is_late() -> None:
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, site(cluster) as made:
        browser = made.browser()
        assert "its clock" not in (await browser.get("/c/test")).text
        await cluster.advance(100)
        assert "its clock" not in (await browser.get("/c/test")).text  # the same answer, shown again


async def test_a_slow_answer_is_kept_a_minute_at_most() -> None:
    clock, asked = [0.0], []

    async def ask() -> int:
        asked.append(clock[0])
        clock[0] += 20
        return len(asked)

    cache = Cache(lambda: clock[0])
    assert await cache.get("brokers", 2, ask) == 1
    clock[0] = 79
    assert await cache.get("brokers", 2, ask) == 1
    clock[0] = 81
    assert await cache.get("brokers", 2, ask) == 2


async def test_an_open_page_keeps_its_figures_while_no_broker_is_registered() -> None:
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, site(cluster) as made:
        browser = made.browser()
        for headers, status in (({}, 404), ({"hx-request": "true"}, 204)):
            assert (await browser.get("/c/test/topics/Gone", headers=headers)).status_code == status


async def test_a_change_that_fails_inside_is_written_down_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def odd(*given: object, **named: object) -> None:
        raise KeyError("a bug")

    async with Cluster("shop-a", topics={"Orders": 1}) as cluster, site(cluster) as made:
        admin = await made.admin()
        await admin.get("/c/test")
        monkeypatch.setitem(OPERATIONS, "send_message", evolve(OPERATIONS["send_message"], function=odd))
        assert (await admin.post("/c/test/topics/Orders/send", body="b")).status_code == 500
        lines = (await admin.get("/api/v1/clusters/test/changes")).json()
        assert lines[0]["outcome"] == "failed: KeyError"


async def test_an_answer_of_before_a_change_is_not_kept_behind_it() -> None:
    cache = Cache(lambda: 0.0)

    async def late() -> str:
        cache.clear()  # a change, while the cluster is asked
        return "old"

    async def now() -> str:
        return "new"

    assert await cache.get("topics", 60, late) == "old"
    assert await cache.get("topics", 60, now) == "new"
    assert await cache.get("topics", 60, late) == "new"
