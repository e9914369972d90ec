"""Logins by OpenID Connect, against a provider in the process: roles, and answers that are forged."""

from __future__ import annotations

import base64
import hashlib
import pathlib
import re
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest

pytest.importorskip("starlette")
pytest.importorskip("hypercorn")
pytest.importorskip("jinja2")
pytest.importorskip("joserfc")
pytest.importorskip("httpx2")

import httpx2 as httpx
from attrs import define, evolve, field
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rmq.dashboard.access.oidc import PENDING_OF_ONE, Oidc
from rmq.dashboard.access.oidc_settings import OidcSettings, read_oidc
from rmq.dashboard.access.roles import Role
from rmq.errors import ConfigError
from rmq.testing.cluster import Cluster

from ..site import Browser, Site, roles_file, site, text_of

ROOT: Final = pathlib.Path(__file__).parents[4]
ISSUER: Final = "https://login.example.com/realms/shop"
SETTINGS: Final = OidcSettings(
    issuer=ISSUER,
    client_id="rmq",
    client_secret="of-the-client",
    roles={"chiefs": Role.ADMIN, "clerks": Role.OPERATOR, "staff": Role.READER},
)
Claims = dict[str, Any]


@define(eq=False)
class Provider:
    """A provider of logins. `forge` changes the claims of a token, `claims` are of the person's page."""

    now: Callable[[], int] = field(default=lambda: 0)
    key: Any = field(factory=lambda: RSAKey.generate_key(2048, {"kid": "first"}))
    signer: Any = None
    header: Claims = field(factory=dict)
    groups: Any = field(factory=lambda: ["clerks"])
    forge: Claims = field(factory=dict)
    person: Claims = field(factory=dict)
    codes: dict[str, Claims] = field(factory=dict)
    asked: list[str] = field(factory=list)

    def app(self) -> Starlette:
        """The provider as an application."""
        base = "/realms/shop"
        return Starlette(
            routes=[
                Route(f"{base}/.well-known/openid-configuration", self.metadata),
                Route(f"{base}/keys", self.keys),
                Route(f"{base}/token", self.token, methods=["POST"]),
                Route(f"{base}/person", self.page),
            ]
        )

    async def metadata(self, request: Request) -> Response:
        self.asked.append("metadata")
        names = {"authorization_endpoint": "login", "token_endpoint": "token", "jwks_uri": "keys"}
        names["userinfo_endpoint"] = "person"
        return JSONResponse({"issuer": ISSUER, **{key: f"{ISSUER}/{path}" for key, path in names.items()}})

    async def keys(self, request: Request) -> Response:
        self.asked.append("keys")
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def page(self, request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer access"
        return JSONResponse(self.person)

    def agree(self, place: str) -> dict[str, str]:
        """Agree at the provider's page as a person does; return the arguments of the way back."""
        asked = {key: values[0] for key, values in parse_qs(urlsplit(place).query).items()}
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return {"code": code, "state": asked["state"], "iss": ISSUER}

    async def token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        asked = self.codes.pop(form["code"], None)
        basic = base64.b64encode(b"rmq:of-the-client").decode()
        if asked is None or request.headers.get("authorization") != f"Basic {basic}":
            return JSONResponse({"error": "invalid_grant"}, 400)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
        assert form["redirect_uri"] == asked["redirect_uri"]
        now = self.now()
        claims = {
            "iss": ISSUER,
            "aud": "rmq",
            "sub": "248289761001",
            "preferred_username": "otto<b>",
            "exp": now + 300,
            "iat": now,
            "nonce": asked["nonce"],
            "groups": self.groups,
        }
        claims = {key: value for key, value in {**claims, **self.forge}.items() if value is not None}
        signer = self.signer or self.key
        header = {"alg": "RS256", "kid": signer.kid, **self.header}
        algorithms = ["RS256", "HS256"]
        token = jwt.encode(header, claims, signer, algorithms=algorithms)
        return JSONResponse({"id_token": token, "access_token": "access", "token_type": "Bearer"})


@asynccontextmanager
async def shop(settings: OidcSettings = SETTINGS, **more: Any) -> AsyncIterator[tuple[Site, Provider]]:
    """A dashboard that takes logins by a provider only."""
    async with Cluster("shop-a", topics={"Orders": 1}) as cluster:
        provider = Provider(lambda: cluster.now_ms() // 1000)
        transport = httpx.ASGITransport(app=provider.app())
        given = {"oidc": settings, "account_login": False, "anonymous_read": False, **more}
        async with site(cluster, oidc_transport=transport, **given) as made:
            yield made, provider


async def _back(browser: Browser, provider: Provider, target: str = "/c/test/topics") -> Any:
    """Go to the provider, agree, and come back; the answer of the dashboard."""
    there = await browser.get("/login/oidc", params={"next": target})
    assert there.status_code == 303
    return await browser.get("/login/oidc/callback", params=provider.agree(there.headers["location"]))


@pytest.mark.parametrize(
    ("groups", "role"), [(["clerks"], "operator"), (["staff", "chiefs"], "admin"), ("staff", "reader")]
)
async def test_a_person_gets_the_role_of_their_groups(groups: Any, role: str) -> None:
    async with shop() as (made, provider):
        provider.groups = groups
        browser = made.browser()
        assert "Log in with login.example.com" in (await browser.get("/login?next=/c/test/topics")).text

        back = await _back(browser, provider)
        assert back.status_code == 200
        assert 'content="0; url=/c/test/topics"' in back.text
        page = await browser.get("/c/test/topics")
        assert f"otto<b> {role}" in text_of(page.text)
        sent = await browser.post("/c/test/topics/Orders/send", body="x")
        assert sent.status_code == (403 if role == "reader" else 200)


async def test_the_answer_leads_on_by_a_page_and_its_cookies_are_kept_from_other_sites() -> None:
    async with shop(secure_cookies=True) as (made, _):
        browser = made.browser()
        there = await browser.get("/login/oidc")
        cookie = there.headers["set-cookie"].lower()
        assert "samesite=lax" in cookie
        assert "httponly" in cookie
        assert "secure" in cookie
        wanted = parse_qs(urlsplit(there.headers["location"]).query)
        assert wanted["redirect_uri"] == ["https://127.0.0.1:8088/login/oidc/callback"]


async def test_somebody_without_a_role_and_somebody_whom_the_provider_refuses_stay_out() -> None:
    async with shop() as (made, provider):
        provider.groups = ["visitors"]
        refused = await _back(made.browser(), provider)
        assert (refused.status_code, "has no role here" in text_of(refused.text)) == (401, True)

        browser = made.browser()
        there = await browser.get("/login/oidc")
        given = provider.agree(there.headers["location"])
        params = {"state": given["state"], "error": "access_denied", "error_description": "<b>no</b>"}
        denied = await browser.get("/login/oidc/callback", params=params)
        assert (denied.status_code, "refused the login: <b>no</b>" in text_of(denied.text)) == (401, True)
        assert "<b>no" not in denied.text


@pytest.mark.parametrize(
    ("forge", "named"),
    [
        ({"iss": "https://evil.example"}, "iss"),
        ({"aud": "other"}, "aud"),
        ({"nonce": "of-another-login"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"sub": None}, "sub"),
        ({"azp": "other"}, "another program"),
    ],
)
async def test_a_token_with_wrong_claims_is_refused(forge: Claims, named: str) -> None:
    async with shop() as (made, provider):
        provider.forge = forge
        browser = made.browser()
        answer = await _back(browser, provider)

        assert answer.status_code == 401
        assert named in text_of(answer.text)
        assert (await browser.get("/c/test")).status_code == 303


async def test_a_token_that_the_provider_has_not_signed_is_refused() -> None:
    async with shop() as (made, provider):
        provider.signer = RSAKey.generate_key(2048, {"kid": "first"})
        assert (await _back(made.browser(), provider)).status_code == 401
        provider.signer, provider.header = OctKey.import_key("of-the-client" * 4), {"alg": "HS256"}
        provider.header["kid"] = "first"
        assert (await _back(made.browser(), provider)).status_code == 401


async def test_a_new_key_of_the_provider_is_fetched_but_not_for_every_token() -> None:
    async with shop() as (made, provider):
        assert (await _back(made.browser(), provider)).status_code == 200
        provider.key = RSAKey.generate_key(2048, {"kid": "second"})
        assert (await _back(made.browser(), provider)).status_code == 401
        made.clock[0] += 61
        assert (await _back(made.browser(), provider)).status_code == 200
        assert provider.asked.count("keys") == 2
        assert provider.asked.count("metadata") == 1


async def test_an_answer_counts_once_in_time_and_in_the_browser_that_began() -> None:
    async with shop() as (made, provider):
        browser, thief = made.browser(), made.browser()
        there = await browser.get("/login/oidc")
        given = provider.agree(there.headers["location"])
        stolen = await thief.get("/login/oidc/callback", params=given)
        assert (stolen.status_code, "another browser" in text_of(stolen.text)) == (401, True)
        assert (await browser.get("/login/oidc/callback", params=given)).status_code == 401

        there = await browser.get("/login/oidc")
        given = provider.agree(there.headers["location"])
        mixed = await browser.get("/login/oidc/callback", params={**given, "iss": "https://evil.example"})
        assert mixed.status_code == 401

        there = await browser.get("/login/oidc")
        given = provider.agree(there.headers["location"])
        made.clock[0] += 601
        assert (await browser.get("/login/oidc/callback", params=given)).status_code == 401


async def test_a_place_that_begins_many_logins_ends_its_own_only() -> None:
    transport = httpx.ASGITransport(app=Provider().app())
    oidc = Oidc(SETTINGS, lambda: 0.0, lambda: 0, transport)
    await oidc.begin("http://h/back", "/", "of another")
    for _ in range(2 * PENDING_OF_ONE):
        await oidc.begin("http://h/back", "/", "of a stranger")
    places = [one.place for one in oidc.pending]
    assert (places.count("of a stranger"), places.count("of another")) == (PENDING_OF_ONE, 1)


async def test_roles_may_come_from_the_page_on_the_person_if_it_is_the_same_person() -> None:
    settings = evolve(SETTINGS, role_claim="realm_access.roles", name_claim="email")
    async with shop(settings) as (made, provider):
        provider.person = {
            "sub": "248289761001",
            "email": "ada@example.com",
            "realm_access": {"roles": ["chiefs"]},
        }
        browser = made.browser()
        assert (await _back(browser, provider)).status_code == 200
        assert "ada@example.com admin" in text_of((await browser.get("/c/test/topics")).text)
        provider.person = {**provider.person, "sub": "somebody-else"}
        assert (await _back(made.browser(), provider)).status_code == 401


async def test_many_failures_are_slowed_down_and_written_to_the_audit_log(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "audit.log"
    async with shop(audit_file=log) as (made, provider):
        provider.groups = ["visitors"]
        statuses = [(await _back(made.browser(), provider)).status_code for _ in range(6)]
        assert statuses == [401] * 5 + [429]
        assert (await made.browser().get("/login/oidc/callback")).status_code == 429
        assert len(re.findall("operation=login", log.read_text())) == 5, "nobody fills the log"


async def test_a_login_leads_to_no_other_site_by_a_character_that_browsers_leave_out() -> None:
    async with shop() as (made, provider):
        for target in ("/\t/evil.example", "/\n\\evil.example", "/\r/evil.example"):
            back = await _back(made.browser(), provider, target)
            assert 'content="0; url=/"' in back.text
            assert "evil" not in back.text


async def test_a_provider_that_fails_is_an_error_that_says_so() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response("<html>", 200)(scope, receive, send)

    async with (
        Cluster("shop-a") as cluster,
        site(cluster, oidc=SETTINGS, oidc_transport=httpx.ASGITransport(app=app)) as made,
    ):
        answer = await made.browser().get("/login/oidc")
        assert (answer.status_code, "without a JSON object" in text_of(answer.text)) == (502, True)
    async with Cluster("shop-a") as cluster, site(cluster) as made:
        assert (await made.browser().get("/login/oidc")).status_code == 404


FILE = """
issuer: https://login.example.com
client_id: rmq
client_secret_file: secret.txt
roles: {admin: [chiefs], reader: [staff, guests]}
default_role: reader
"""


def test_the_file_is_read_with_the_secret_beside_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "secret.txt").write_text("of-the-client\n")
    found = read_oidc(roles_file(tmp_path, FILE))

    assert found.client_secret == "of-the-client"
    assert found.role_of({"groups": ["guests", "chiefs"]}) is Role.ADMIN
    assert found.role_of({}) is Role.READER
    assert "of-the-client" not in repr(found)


def test_the_file_of_the_docs_is_a_right_one(tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs" / "dashboard.md").read_text("utf-8")
    (block,) = (part for part in page.split("\n\n") if part.startswith("    issuer:"))
    (tmp_path / "oidc-secret.txt").write_text("of-the-client\n")
    found = read_oidc(roles_file(tmp_path, textwrap.dedent(block)))

    assert found.role_of({"groups": ["rmq-admins"]}) is Role.ADMIN
    assert found.role_of({}) is Role.READER


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (FILE.replace("https", "http"), "https"),
        (FILE.replace("admin:", "chief:"), "admin, operator or reader"),
        (FILE.replace("client_id", "client"), "client"),
        (FILE + "scopes: [profile]\n", "openid"),
        ("issuer: https://login.example.com\nclient_id: rmq\n", "default_role"),
        ("issuer: [", "YAML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: pathlib.Path, text: str, named: str) -> None:
    (tmp_path / "secret.txt").write_text("of-the-client\n")
    with pytest.raises(ConfigError, match=named):
        read_oidc(roles_file(tmp_path, text))
