"""Real controllers, accounts and groups of Spark on the pages, and two clusters in one dashboard."""

from __future__ import annotations

import pathlib
import re

import pytest
import trio.testing

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

import anyio

from rmq.client.settings.target import Target
from rmq.message import Message
from rmq.protocol.auth.signature import Credentials
from rmq.testing.cluster import Cluster
from tests.sim.real_brokers.brokers import controlled_set

from .site import BASE, Browser, Site, site, text_of

# --- controllers ---


async def test_controllers_and_a_set_are_shown_and_its_master_is_handed_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, _):
        await found.master()
        await found.until(inSync=[1, 2])
        async with site(found.cluster) as made:
            admin = await made.admin()
            text = text_of((await admin.get("/c/test/controllers")).text)
            assert len(re.findall(r"10\.0\.8\.\d:9878", text)) >= 3
            assert len(re.findall(r"\bleads\b", text)) == 1
            assert len(re.findall(r"\bfollows\b", text)) == 2
            assert len(re.findall(r"(?<!not )in sync", text)) == 2
            overview = text_of((await admin.get("/c/test")).text)
            assert "2 of 2 in sync" in overview
            assert re.search(r"lease renewed \d s ago", overview)
            slave = text_of((await admin.get("/c/test/brokers/s?id=2")).text)
            assert "slave 2" in slave or "master" in slave

            refused = await made.browser().post("/c/test/controllers", broker="s", number="2")
            assert refused.status_code == 401
            done = await admin.post("/c/test/controllers", broker="s", number="2")
            assert done.status_code == 303, text_of(done.text)
            assert (await found.until(master=2))["master"] == 2
            await trio.sleep(2.0)
            assert "s 2 is the master in epoch" in text_of((await admin.get(done.headers["location"])).text)
            api = (await admin.http.get("/api/v1/clusters/test/controllers")).json()
            (one,) = api["sets"]
            assert [row["number"] for row in one["replicas"] if row["is_master"]] == [2]

            await found.until(inSync=[1, 2])
            elected = await admin.http.post(
                "/api/v1/clusters/test/controllers/s/elect",
                json={"number": 1},
                headers={"origin": BASE, "x-csrf-token": admin.csrf},
            )
            assert elected.status_code == 200, elected.text
            await found.until(master=1)
            missing = await admin.post("/c/test/controllers", broker="nobody", number="0")
            await trio.sleep(2.0)
            text = text_of((await admin.get(missing.headers["location"])).text)
            assert "the controllers know no broker set nobody" in text


async def test_controllers_are_shown_while_no_broker_of_the_cluster_answers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, _):
        await found.until(inSync=[1, 2])
        async with site(found.cluster) as made:
            admin = await made.admin()
            assert "2 of 2 in sync" in text_of((await admin.get("/c/test")).text)
            assert "Make it the master" in (await admin.get("/c/test/controllers")).text
            for node in found.nodes:
                await found.kill(node)
            await trio.sleep(60.0)
            made.clock[0] += 60.0
            page = text_of((await admin.get("/c/test/controllers")).text)
            assert len(re.findall(r"\bleads\b", page)) == 1
            assert page.count("in sync no") == 2  # neither lives


# --- accounts ---

ACCOUNTS = """
accounts:
  - {accessKey: chief-one, secretKey: 12345678, admin: true}
  - {accessKey: clerk-one, secretKey: 87654321, admin: false, defaultTopicPerm: DENY, defaultGroupPerm: SUB,
     topicPerms: [Orders=PUB|SUB, Audit=SUB]}
"""
OWN = Credentials("chief-one", "12345678")


async def _logged_in(made: Site, name: str, secret: str) -> Browser:
    browser = made.browser()
    answer = await browser.post("/login", name=name, password=secret, cluster="test")
    assert answer.status_code == 303, text_of(answer.text)
    await browser.get("/c/test")
    return browser


async def test_accounts_are_shown_explained_created_changed_and_deleted(tmp_path: pathlib.Path) -> None:
    file, log = tmp_path / "plain_acl.yml", tmp_path / "audit.log"
    file.write_text(ACCOUNTS)
    async with (
        Cluster("shop-a", acl_enable=True, acl_file=str(file)) as cluster,
        site(cluster, credentials=OWN, link_token="", audit_file=log) as made,
    ):
        async with cluster.connect(credentials=OWN) as client:
            await client.admin.create_topic("Orders")
        chief = await _logged_in(made, "chief-one", "12345678")
        page = await chief.get("/c/test/accounts")
        assert "clerk-one" in text_of(page.text)
        assert "Orders=PUB|SUB" in text_of(page.text)
        assert "87654321" not in page.text
        for topic, action, verdict in (
            ("Audit", "PUB", "may not write to topic Audit"),
            ("Orders", "PUB", "may write to topic Orders"),
            ("Other", "SUB", "may not read topic Other"),
        ):
            query = {"account": "clerk-one", "kind": "topic", "name": topic, "action": action}
            assert verdict in text_of((await chief.get("/c/test/accounts", params=query)).text)

        form = {"account": "guest-one", "default_topic": "DENY", "default_group": "SUB"}
        made_it = await chief.post(
            "/c/test/new-account", secret_key="a-secret-1", topics="Orders=SUB", **form
        )
        assert made_it.status_code == 303, text_of(made_it.text)
        guest = await _logged_in(made, "guest-one", "a-secret-1")
        assert (await guest.post("/c/test/topics/Orders/send", body="x")).status_code == 403
        late = await chief.post("/c/test/new-account", topics="Orders=PUB|SUB", **form)
        assert late.status_code == 409
        assert "guest-one exists already" in text_of(late.text)
        more = {"seen": await _seen(chief, "guest-one"), "topics": "Orders=PUB|SUB"}
        await chief.post("/c/test/new-account", **more, **form)  # the secret stays
        assert (await guest.post("/c/test/topics/Orders/send", body="x")).status_code == 200
        assert (await guest.get("/c/test/accounts")).status_code == 403
        old = await chief.post("/c/test/new-account", **more, **form)
        assert old.status_code == 409
        assert "another user has changed or deleted the account guest-one" in text_of(old.text)
        await chief.post("/c/test/new-account", seen=await _seen(chief, "guest-one"), topics="", **form)
        assert "Orders=" not in (await chief.get("/c/test/new-account?account=guest-one")).text.partition(
            "</textarea>"
        )[0].replace('placeholder="Orders=', "")
        assert (await guest.post("/c/test/topics/Orders/send", body="x")).status_code == 403

        assert (await chief.post("/c/test/accounts/guest-one/delete", confirm="guest")).status_code == 400
        assert (await chief.post("/c/test/accounts/guest-one/delete", confirm="guest-one")).status_code == 303
        await chief.get("/c/test")  # shows the notices
        assert "guest-one" not in text_of((await chief.get("/c/test/accounts")).text)
        assert (await guest.post("/c/test/topics/Orders/send", body="x")).status_code in (401, 403)
        assert (await chief.post("/c/test/accounts/gone-one/delete", confirm="gone-one")).status_code == 404
        written = log.read_text()
        assert "put_account" in written
        assert "a-secret-1" not in written


async def _seen(browser: Browser, account: str) -> str:
    """The fingerprint in the form of an account."""
    form = (await browser.get(f"/c/test/new-account?account={account}")).text
    found = re.search(r'name="seen" value="(\w+)"', form)
    assert found
    return found[1]


async def test_an_account_sees_no_figures_changes_and_jobs_that_the_cluster_does_not_show_it(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS.replace("defaultGroupPerm: SUB", "defaultGroupPerm: DENY"))
    async with (
        Cluster("shop-a", acl_enable=True, acl_file=str(file)) as cluster,
        site(cluster, credentials=OWN, link_token="", sample_seconds=10) as made,
    ):
        async with cluster.connect(credentials=OWN) as client:
            for topic in ("Orders", "Salaries"):
                await client.admin.create_topic(topic)
            await client.admin.create_group("Orders")
            async with client.producer("checkout") as producer:
                await producer.send(Message("Orders", b"one"))
            async with client.pull_consumer("Orders") as reader:
                for queue in await reader.message_queues("Orders"):
                    await reader.commit(queue, 0)
        await cluster.advance(25)
        chief = await _logged_in(made, "chief-one", "12345678")
        await chief.post("/c/test/topics/Salaries/send", body="x", keys="key-of-chief")
        clerk = await _logged_in(made, "clerk-one", "87654321")
        api = "/api/v1/clusters/test"

        for figure, subject, status in (
            ("topic_in", "Orders", 200),
            ("group_lag", "Orders", 403),  # the topic of this name may be seen, the group may not
            ("topic_in", "Salaries", 403),
            ("cluster_lag", "", 403),
            ("cluster_in", "", 403),
            ("broker_disk", "shop-a", 403),
        ):
            query = {"figure": figure, "subject": subject}
            assert (await clerk.http.get(f"{api}/history", params=query)).status_code == status, query
            assert (await chief.http.get(f"{api}/history", params=query)).status_code == 200, query

        assert "key-of-chief" in (await chief.get("/c/test/changes")).text
        seen = await clerk.get("/c/test")
        assert "Need admin permission" in text_of(seen.text).partition("Alarms none")[0]
        assert "check that it runs" not in seen.text
        for path in ("/changes", "/overview"):
            assert "Salaries" not in (await clerk.http.get(f"{api}{path}")).text
        order = {"operation": "clean_cluster", "arguments": {"what": "logs"}}
        headers = {"origin": BASE, "x-csrf-token": chief.csrf}
        job = (await chief.http.post(f"{api}/jobs", json=order, headers=headers)).json()["id"]
        assert (await clerk.http.get(f"{api}/jobs")).json() == []
        assert (await clerk.http.get(f"{api}/jobs/{job}")).status_code == 404
        assert [one["id"] for one in (await chief.http.get(f"{api}/jobs")).json()] == [job]


# --- streams ---


async def test_a_stream_is_shown_with_its_lag_and_a_group_with_members_is_not() -> None:
    async with Cluster("shop-a", topics={"Orders": 2}) as cluster, cluster.connect() as client:
        async with client.producer("checkout") as producer:
            for _ in range(10):
                await producer.send(Message("Orders", b"one"))
        async with client.pull_consumer("nightly") as stream:
            for queue in await stream.message_queues("Orders"):
                await stream.commit(queue, 2)
        async with (
            client.consumer("billing", {"Orders": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, lambda message: None)
            await client.ready()
            await cluster.advance(10)
            async with site(cluster) as made:
                text = text_of((await made.browser().get("/c/test/streams")).text)
                assert "nightly Orders 6" in text
                assert "billing" not in text
                group = text_of((await made.browser().get("/c/test/groups/nightly")).text)
                assert "Waiting 6" in group
            tasks.cancel_scope.cancel()


# --- two clusters ---


async def test_two_clusters_in_one_dashboard_stay_apart(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    async with (
        Cluster("west-a", acl_enable=True, acl_file=str(file)) as west,
        Cluster("east-a", topics={"Orders": 1}) as east,
        west.connect(credentials=OWN) as client,
    ):
        await client.admin.create_topic("Parcels")
        clusters = {"east": Target(east.namesrv_address), "west": Target(west.namesrv_address, OWN)}
        hosts = {"east": east, "west": west}
        async with site(east, clusters=clusters, hosts=hosts, sample_seconds=10) as made:
            assert (await made.browser().get("/c/east")).status_code == 303  # west lends no account
            admin = await made.admin()
            page = await admin.get("/c/east/topics")
            assert 'value="/c/west"' in page.text
            assert ("Orders" in text_of(page.text), "Parcels" in text_of(page.text)) == (True, False)
            west_topics = text_of((await admin.get("/c/west/topics")).text)
            assert ("Orders" in west_topics, "Parcels" in west_topics) == (False, True)

            await admin.post("/c/west/new-topic", topic="Pallets", queues="1", act="save")
            assert (await admin.get("/c/east/topics/Pallets")).status_code == 404
            assert (await admin.get("/c/west/topics/Pallets")).status_code == 200
            assert "Pallets" not in text_of((await admin.get("/c/east/changes")).text)
            assert "Pallets" in text_of((await admin.get("/c/west/changes")).text)

            clerk = made.browser()
            form = {"name": "clerk-one", "password": "87654321"}
            assert (await clerk.post("/login", cluster="east", **form)).status_code == 401
            assert (await clerk.post("/login", cluster="west", **form)).status_code == 303
            assert (await clerk.get("/c/west")).status_code == 200
            assert (await clerk.get("/c/east")).status_code == 403

            await east.advance(25)
            names = (await admin.http.get("/api/v1/clusters")).json()
            assert names == ["east", "west"]
            for name in names:
                history = await admin.http.get(
                    f"/api/v1/clusters/{name}/history", params={"figure": "cluster_lag"}
                )
                assert len(history.json()["times"]) >= 2
