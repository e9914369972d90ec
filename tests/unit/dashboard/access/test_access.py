"""Access to the dashboard, and permissions: hosts, origins, logins, roles, tokens, forms, the audit log."""

from __future__ import annotations

import base64
import pathlib
import re
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")

from rmq.client.settings.target import Target
from rmq.dashboard.access.audit import KEPT
from rmq.dashboard.access.roles import password_hash, read_roles, token_hash
from rmq.dashboard.config import DashboardConfig
from rmq.errors import ConfigError
from rmq.protocol.auth.signature import Credentials
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.testing.cluster import Cluster

from ..site import BASE, LINK, roles_file, site, text_of

SHOP = ("shop-a",)
PASSWORD = "correct horse"
TOKEN = "token-of-a-program"
ROLES = f"""
users:
  - {{name: ada, role: admin, password: {password_hash(PASSWORD, b"s" * 16)}}}
  - {{name: otto, role: operator, password: {password_hash(PASSWORD, b"t" * 16)}}}
  - {{name: rita, role: reader, password: {password_hash(PASSWORD, b"u" * 16)}}}
tokens:
  - {{name: ci, role: reader, sha256: {token_hash(TOKEN)}}}
"""


async def test_without_a_login_pages_are_shown_and_nothing_can_be_changed() -> None:
    async with Cluster(*SHOP, topics={"Orders": 2}) as cluster, site(cluster) as made:
        visitor = made.browser()

        page = await visitor.get("/c/test/topics/Orders")
        assert page.status_code == 200
        assert "read only" in text_of(page.text)

        refused = await visitor.post("/c/test/topics/Orders/send", body="hello")
        assert refused.status_code == 401
        assert cluster.sent("Orders") == []


async def test_every_answer_has_a_strict_policy_and_no_page_has_a_script_or_style_of_its_own() -> None:
    async with Cluster(*SHOP, topics={"Orders": 2}) as cluster, site(cluster) as made:
        admin = await made.admin()

        for path in (
            "/",
            "/login",
            "/c/test",
            "/c/test/topics",
            "/static/dashboard.js",
            "/api/v1/clusters",
            "/none",
        ):
            answer = await admin.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert not re.search(
                    r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", answer.text
                )


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.:8088"])
async def test_another_host_name_is_refused(host: str) -> None:
    async with Cluster(*SHOP) as cluster, site(cluster) as made:
        assert (await made.browser().get("/c/test", headers={"host": host})).status_code == 403
        assert (await made.browser().get("/c/test", headers={"host": "localhost:8088"})).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999"])
async def test_a_form_of_another_site_is_refused(origin: str) -> None:
    async with Cluster(*SHOP, topics={"Orders": 2}) as cluster, site(cluster) as made:
        admin = await made.admin()
        await admin.get("/c/test/topics/Orders/send")

        assert (await admin.post("/c/test/topics/Orders/send", origin=origin, body="x")).status_code == 403
        assert cluster.sent("Orders") == []


@pytest.mark.parametrize("csrf", ["", "wrong"])
async def test_a_form_without_the_token_of_the_session_is_refused(csrf: str) -> None:
    async with Cluster(*SHOP, topics={"Orders": 2}) as cluster, site(cluster) as made:
        admin = await made.admin()

        assert (await admin.post("/c/test/topics/Orders/send", csrf=csrf, body="x")).status_code == 403
        assert (
            await admin.http.put(
                "/api/v1/clusters/test/groups/billing",
                json={},
                headers={"origin": BASE, "x-csrf-token": csrf},
            )
        ).status_code == 403
        assert cluster.sent("Orders") == []


async def test_the_link_logs_in_and_the_cookie_is_kept_from_scripts_and_other_sites() -> None:
    async with Cluster(*SHOP) as cluster, site(cluster) as made:
        answer = await made.browser().get(f"/login?key={LINK}")

        cookie = answer.headers["set-cookie"].lower()
        assert answer.status_code == 303
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await made.browser().get("/login?key=wrong")).status_code == 401


async def test_behind_https_cookies_are_secure() -> None:
    async with Cluster(*SHOP) as cluster, site(cluster, secure_cookies=True) as made:
        answer = await made.browser().get(f"/login?key={LINK}")

        assert answer.headers["set-cookie"].startswith("__Host-rmq=")
        assert "secure" in answer.headers["set-cookie"].lower()
        assert "strict-transport-security" in answer.headers


@pytest.mark.parametrize(
    "target", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)"]
)
async def test_a_login_leads_to_no_other_site(target: str) -> None:
    async with Cluster(*SHOP) as cluster, site(cluster) as made:
        answer = await made.browser().get("/login", params={"key": LINK, "next": target})

        assert answer.headers["location"] == "/"


async def test_roles_allow_reading_changing_and_deleting(tmp_path: pathlib.Path) -> None:
    async with (
        Cluster(*SHOP, topics={"Orders": 2}) as cluster,
        site(cluster, roles_file=roles_file(tmp_path, ROLES), link_token="") as made,
    ):
        for name, sends, deletes in (("rita", 403, 403), ("otto", 200, 403), ("ada", 200, 303)):
            browser = made.browser()
            assert (
                await browser.post("/login", name=name, password=PASSWORD, cluster="test")
            ).status_code == 303
            await browser.get("/c/test")
            sent = await browser.post("/c/test/topics/Orders/send", body=name)
            assert sent.status_code == sends
            deleted = await browser.post("/c/test/topics/Orders/delete", confirm="Orders")
            assert deleted.status_code == deletes
        assert (await browser.get("/c/test/topics/Orders")).status_code == 404


async def test_logins_of_strangers_fill_no_audit_log(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "audit.log"
    async with Cluster(*SHOP, topics={"Orders": 1}) as cluster, site(cluster, audit_file=log) as made:
        admin = await made.admin()
        await admin.get("/c/test")
        await admin.post("/c/test/topics/Orders/send", body="b")
        for _ in range(20):
            await made.browser().post("/login", name="eve", password="guessed", cluster="test")
            assert (await made.browser().get("/login/oidc/callback")).status_code == 404
        assert len(log.read_text().splitlines()) == 7, "a login, a message, and 5 failures"
        for number in range(2 * KEPT):
            made.clock[0] += 61
            await made.browser().get(f"/login?key={number}")
        admin = await made.admin()
        assert "send_message" in text_of((await admin.get("/c/test")).text)


@pytest.mark.parametrize("ending", ["logout", "removed", "other role"])
async def test_a_tail_ends_with_its_login(
    tmp_path: pathlib.Path, autojump_clock: MockClock, ending: str
) -> None:
    path = roles_file(tmp_path, ROLES)
    async with (
        Cluster(*SHOP, topics={"Orders": 1}) as cluster,
        site(cluster, roles_file=path, anonymous_read=False) as made,
    ):
        browser, texts = made.browser(), []
        await browser.post("/login", name="ada", password=PASSWORD, cluster="test")
        await browser.get("/c/test")

        async def follow() -> None:
            texts.append((await browser.http.get("/c/test/topics/Orders/events")).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.sleep(60)
            assert not texts
            if ending == "logout":
                await browser.post("/logout")
            else:
                text = "users: []\n" if ending == "removed" else ROLES.replace("role: admin", "role: reader")
                path.write_text(text)
            await anyio.sleep(60)
            assert "event: problem" in texts[0]


async def test_a_user_who_is_taken_out_of_the_roles_file_is_logged_out(tmp_path: pathlib.Path) -> None:
    path = roles_file(tmp_path, ROLES)
    async with Cluster(*SHOP) as cluster, site(cluster, roles_file=path, anonymous_read=False) as made:
        browser = made.browser()
        await browser.post("/login", name="ada", password=PASSWORD, cluster="test")
        assert (await browser.get("/c/test")).status_code == 200

        path.write_text("users: []\n")
        assert (await browser.get("/c/test")).headers["location"].startswith("/login")


async def test_wrong_logins_are_slowed_down_even_for_who_knows_the_password_then(
    tmp_path: pathlib.Path,
) -> None:
    path = roles_file(tmp_path, ROLES)
    async with Cluster(*SHOP) as cluster, site(cluster, roles_file=path, account_login=False) as made:
        browser = made.browser()
        for _ in range(5):
            assert (
                await browser.post("/login", name="ada", password="wrong", cluster="test")
            ).status_code == 401
        assert (
            await browser.post("/login", name="ada", password=PASSWORD, cluster="test")
        ).status_code == 429

        made.clock[0] += 61
        assert (
            await browser.post("/login", name="ada", password=PASSWORD, cluster="test")
        ).status_code == 303


async def test_a_login_that_no_server_could_check_is_no_wrong_login(tmp_path: pathlib.Path) -> None:
    async with Cluster(name_servers=1) as cluster:
        for path, last in ((None, 503), (roles_file(tmp_path, ROLES), 429)):
            async with site(cluster, roles_file=path) as made:
                browser = made.browser()
                form = {"name": "chief-one", "password": "12345678", "cluster": "test"}
                answers = [(await browser.post("/login", **form)).status_code for _ in range(6)]
                assert answers == [*[503] * 5, last]


async def test_sessions_end_when_they_are_idle_and_when_people_log_out() -> None:
    async with Cluster(*SHOP) as cluster, site(cluster, anonymous_read=False) as made:
        admin = await made.admin()
        assert (await admin.get("/c/test")).status_code == 200
        made.clock[0] += 1801
        assert (await admin.get("/c/test")).status_code == 303

        again = await made.admin()
        await again.get("/c/test")
        cookies = dict(again.http.cookies)
        assert (await again.post("/logout")).status_code == 303
        assert (await made.browser(cookies=cookies).get("/c/test")).status_code == 303


async def test_tokens_of_programs_need_no_form_and_no_cookie(tmp_path: pathlib.Path) -> None:
    path = roles_file(tmp_path, ROLES)
    async with (
        Cluster(*SHOP, topics={"Orders": 2}) as cluster,
        site(cluster, roles_file=path, anonymous_read=False, account_login=False) as made,
    ):
        http = made.browser().http
        api = "/api/v1/clusters/test/topics"
        assert (await http.get(api)).status_code == 401
        assert (await http.get(api, headers={"authorization": "Bearer wrong"})).status_code == 401
        answer = await http.get(api, headers={"authorization": f"Bearer {TOKEN}"})
        assert [row["name"] for row in answer.json()["rows"]] == ["Orders"]

        refused = await http.put(f"{api}/New", json={}, headers={"authorization": f"Bearer {TOKEN}"})
        assert refused.status_code == 403
        assert refused.json()["error"]["name"] == "Forbidden"
        basic = base64.b64encode(f"otto:{PASSWORD}".encode()).decode()
        done = await http.put(f"{api}/New", json={}, headers={"authorization": f"Basic {basic}"})
        assert done.json()["done"] is True


ACCOUNTS = """
accounts:
  - {accessKey: chief-one, secretKey: 12345678, admin: true}
  - {accessKey: clerk-one, secretKey: 12345678, admin: false, defaultTopicPerm: DENY, defaultGroupPerm: SUB,
     topicPerms: [Orders=PUB|SUB]}
"""


async def test_an_account_of_the_cluster_acts_as_itself(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    own = Credentials("chief-one", "12345678")
    async with Cluster(*SHOP, acl_enable=True, acl_file=str(file)) as cluster:
        async with cluster.connect(credentials=own) as client:
            await client.admin.create_topic("Orders")
            await client.admin.create_topic("Salaries")
        async with site(cluster, credentials=own, link_token="") as made:
            # The dashboard has an account: nobody else may borrow it.
            assert (await made.browser().get("/c/test")).headers["location"].startswith("/login")

            clerk = made.browser()
            for secret in ("wrong", ""):
                answer = await clerk.post("/login", name="clerk-one", password=secret, cluster="test")
                assert answer.status_code == 401
            assert (
                await clerk.post("/login", name="clerk-one", password="12345678", cluster="test")
            ).status_code == 303
            await clerk.get("/c/test/topics/Orders/send")
            assert (await clerk.post("/c/test/topics/Orders/send", body="x")).status_code == 200
            assert (await clerk.post("/c/test/topics/Salaries/send", body="x")).status_code == 403
            assert (await clerk.get("/c/test/topics/Salaries")).status_code == 403
            assert (await clerk.post("/c/test/topics/Orders/delete", confirm="Orders")).status_code == 403

            chief = made.browser()
            await chief.post("/login", name="chief-one", password="12345678", cluster="test")
            assert (await chief.get("/c/test/topics/Salaries")).status_code == 200


async def test_an_account_logs_in_where_name_servers_refuse_a_wrong_secret(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    own = Credentials("chief-one", "12345678")

    def refused(request: Command, connection: Any) -> Command:
        return request.reply(ResponseCode.NO_PERMISSION, "Check signature failed for accessKey=chief-one")

    async with (
        Cluster(*SHOP, acl_enable=True, acl_file=str(file)) as cluster,
        site(cluster, credentials=own, link_token="") as made,
    ):
        (namesrv,) = cluster.name_servers
        for secret, refusals, status in (("wrong", 2, 401), ("12345678", 1, 303)):
            namesrv.script(RequestCode.GET_BROKER_CLUSTER_INFO, *[refused] * refusals)
            answer = await made.browser().post("/login", name="chief-one", password=secret, cluster="test")
            assert answer.status_code == status


async def test_nobody_logs_in_by_an_account_where_the_cluster_checks_none() -> None:
    async with Cluster(*SHOP) as cluster, site(cluster) as made:
        answer = await made.browser().post("/login", name="any", password="any", cluster="test")

        assert answer.status_code == 401
        assert "no access control" in text_of(answer.text)


async def test_changes_and_logins_are_written_down_without_secrets(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "audit.log"
    async with Cluster(*SHOP, topics={"Orders": 2}) as cluster, site(cluster, audit_file=log) as made:
        await made.browser().post("/login", name="eve", password="guessed-secret", cluster="test")
        admin = await made.admin()
        await admin.get("/c/test")
        await admin.post(
            "/c/test/topics/Orders/send", body="the body is private", tags="a\nat=forged who=root"
        )
        await admin.post("/c/test/topics/Orders/delete", confirm="Wrong")

        lines = log.read_text().splitlines()
        assert [re.search(r"operation=(\w+)", line)[1] for line in lines if "operation=" in line] == [
            "login",
            "login",
            "send_message",
            "delete_topic",
        ]
        text = log.read_text()
        assert "guessed-secret" not in text
        assert "the body is private" not in text
        assert 'outcome="NotConfirmed' in lines[-1]
        assert "send_message" in text_of((await admin.get("/c/test")).text)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"host": "0.0.0.0"}, "--allowed-host"),
        ({"host": "10.0.0.1", "link_token": "x"}, "loopback"),
        ({"tls_cert": pathlib.Path("a")}, "--tls-certificate"),
    ],
)
def test_settings_that_let_strangers_in_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        DashboardConfig(clusters={"a": Target("127.0.0.1:9876")}, **settings)


def test_beyond_loopback_nothing_is_shown_without_a_login() -> None:
    config = DashboardConfig(clusters={"a": Target("127.0.0.1:9876")}, host="10.0.0.1")

    assert not config.can_read_anonymously


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "users: 1",
        "users: [{name: a, role: boss, password: x}]",
        "tokens: [{name: a, role: reader, sha256: Z}]",
        "users: [{name: a, role: admin, password: plain-secret}]",
        "{",
    ],
)
def test_a_wrong_roles_file_is_refused_without_showing_a_secret(tmp_path: pathlib.Path, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_roles(roles_file(tmp_path, text))

    assert "plain-secret" not in str(refused.value)
