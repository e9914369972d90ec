"""The cost of samples for a broker, and the changes of a cluster that they show."""

from __future__ import annotations

import math
import re

import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.client.admin import Admin
from rmq.dashboard.access.audit import AuditLog, ClusterChange
from rmq.dashboard.history.cluster_changes import View, changes_between, view_of
from rmq.dashboard.history.history import History, HistoryError, Sample
from rmq.dashboard.history.sampler import ROW_SECONDS, SHARE, pause_after
from rmq.protocol.bodies import BrokerData, ClusterInfo
from rmq.protocol.codes import RequestCode
from rmq.testing.cluster import Cluster

from .site import BASE, site, text_of


@pytest.mark.parametrize("rows", [0, 100, 5_000, 10_000, 200_000])
def test_a_broker_spends_at_most_its_share_on_being_sampled(rows: int) -> None:
    pause = pause_after(rows, 30.0)
    assert pause >= 30
    assert rows * ROW_SECONDS / pause <= SHARE * (1 + 1e-9)


def test_few_queues_are_sampled_as_often_as_asked_for() -> None:
    assert pause_after(1_000, 30.0) == 30
    assert pause_after(10_000, 30.0) == pytest.approx(60)


async def test_pages_use_the_progress_of_all_groups_that_was_sampled() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 2}) as cluster,
        site(cluster, sample_seconds=30) as made,
    ):
        await cluster.advance(31)
        asked = cluster["shop-a"].count(RequestCode.GET_BROKER_CONSUME_STATS)
        browser = made.browser()
        for path in ("", "/groups", "/streams"):
            assert (await browser.get(f"/c/test{path}")).status_code == 200
        assert cluster["shop-a"].count(RequestCode.GET_BROKER_CONSUME_STATS) == asked == 2


@pytest.mark.parametrize("text", ["nan", "inf", "1e999 2"])
async def test_odd_figures_of_a_broker_cost_no_others(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    runtime = Admin.broker_runtime

    async def odd(admin: Admin, address: str) -> dict[str, str]:
        return {**await runtime(admin, address), "putTps": text}

    monkeypatch.setattr(Admin, "broker_runtime", odd)
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, site(cluster, sample_seconds=30) as made:
        await cluster.advance(31)
        answer = await made.browser().get("/api/v1/clusters/test/history?figure=cluster_lag")
        assert answer.json()["values"][-1:] == [0.0]


async def test_an_answer_that_nobody_expects_ends_no_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def odd(admin: Admin, address: str) -> dict[str, str]:
        raise KeyError("a field that no broker leaves out")

    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, site(cluster, sample_seconds=30) as made:
        monkeypatch.setattr(Admin, "broker_runtime", odd)
        await cluster.advance(31)
        monkeypatch.undo()
        await cluster.advance(31)
        assert (await made.browser().get("/c/test")).status_code == 200
        answer = await made.browser().get("/api/v1/clusters/test/history?figure=broker_in&subject=shop-a")
        assert answer.json()["values"]


@pytest.mark.parametrize("odd", [Sample("group_lag", "\ud800", 1.0), Sample("group_lag", "g", math.nan)])
def test_a_sample_that_cannot_be_kept_leaves_the_history_usable(odd: Sample) -> None:
    history = History()
    with pytest.raises(HistoryError):
        history.add("test", 1_000, [odd])
    history.add("test", 2_000, [Sample("group_lag", "g", 2.0)])
    assert history.read("test", "group_lag", "g", 0, 9_000).values == [2.0]
    history.close()


def view(brokers: dict[tuple[str, int], str], *topics: str) -> View:
    table: dict[str, dict[int, str]] = {}
    for (name, number), address in brokers.items():
        table.setdefault(name, {})[number] = address
    data = {name: BrokerData("Shop", name, addresses) for name, addresses in table.items()}
    return view_of(ClusterInfo(data, {"Shop": sorted(table)}), topics)


def test_a_view_leaves_out_topics_of_the_system_retries_and_dead_letters() -> None:
    topics = (
        "Orders",
        "%RETRY%g",
        "%DLQ%g",
        "shop-a",
        "Shop",
        "TBW102",
        "rmq_sys_wheel_timer",
        "Shop_REPLY_TOPIC",
    )
    assert view({("shop-a", 0): "a:1"}, *topics).topics == {"Orders"}


def test_an_election_is_one_notice_and_a_broker_that_is_gone_another() -> None:
    before = view({("shop", 0): "a:1", ("shop", 1): "b:1", ("shop", 2): "c:1"})
    now = view({("shop", 0): "b:1", ("shop", 2): "c:1"})
    assert [(one.kind, one.text) for one in changes_between(before, now)] == [
        ("master changed", "b:1 instead of a:1"),
        ("broker left", "id 0 at a:1"),
    ]
    assert [one.kind for one in changes_between(now, before)] == ["master changed", "broker came"]
    assert list(changes_between(now, now)) == []


async def test_topics_that_others_create_and_delete_are_changes_and_those_made_here_are_there_once() -> None:
    async with (
        Cluster("shop-a", topics={"Orders": 2}) as cluster,
        site(cluster, sample_seconds=30) as made,
    ):
        admin = await made.admin()
        await cluster.advance(31)
        async with cluster.connect() as client:
            await client.admin.create_topic("Bills", queues=1)
            headers = {"origin": BASE, "x-csrf-token": admin.csrf}
            path = "/api/v1/clusters/test/topics/Crates"
            assert (await admin.http.put(path, json={"queues": 1}, headers=headers)).status_code == 200
            await cluster.advance(31)
            await client.admin.delete_topic("Bills")
            await cluster.advance(31)
        page = await admin.get("/c/test/changes")
        rows = re.findall(r"<tr><td>.*?</tr>", page.text, re.S)
        text = [text_of(row) for row in rows]
        assert len(text) == 3, text
        assert "noticed" in text[0]
        assert 'topic deleted name="Bills"' in text[0]
        assert 'topic created name="Bills"' in text[1]
        assert "Crates" in text[2]
        assert "noticed" not in text[2]


def test_many_changes_at_once_push_out_no_line_of_a_person() -> None:
    log = AuditLog(lambda: 1_000)
    log.write("ada", "admin", "", "test", "create_topic", {"topic": "Own"}, "done", "account")
    for _ in range(30):
        log.notice("test", [ClusterChange("topic created", f"t{number}", "") for number in range(500)], 2_000)
    lines = log.last(1_000, "test")
    assert len(lines) == 201
    assert sum(line.who == "ada" for line in lines) == 1
    assert "480 others" in "".join(line.arguments for line in lines)
    assert [line.who for line in log.last(1_000, "test", ("account", "ada"))] == ["ada"]
    assert log.last(1_000, "test", ("user", "ada")) == []  # another, of the same name
    assert log.last(10, "other") == []
