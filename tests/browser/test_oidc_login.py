"""A login by OpenID Connect in a browser: the provider is another site, and the session holds after it."""

from __future__ import annotations

import html
import json
import pathlib
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest

from .conftest import Dev, Watcher, dashboard

pytestmark = pytest.mark.browser


class Provider(BaseHTTPRequestHandler):
    """The provider's pages: a link to agree, the tokens, the keys."""

    key: ClassVar[Any] = None
    issuer: ClassVar[str] = ""
    nonces: ClassVar[dict[str, str]] = {}

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def answer(self, body: str, kind: str = "application/json") -> None:
        """Send an answer."""
        data = body.encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """Metadata, keys, and the page with the link."""
        from joserfc.jwk import KeySet

        parts = urlsplit(self.path)
        if parts.path == "/.well-known/openid-configuration":
            places = {"authorization_endpoint": "login", "token_endpoint": "token", "jwks_uri": "keys"}
            found = {name: f"{self.issuer}/{path}" for name, path in places.items()}
            self.answer(json.dumps({"issuer": self.issuer, **found}))
        elif parts.path == "/keys":
            self.answer(json.dumps(KeySet([self.key]).as_dict(private=False)))
        else:
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self.nonces["code"] = asked["nonce"]
            back = f"{asked['redirect_uri']}?{urlencode({'code': 'code', 'state': asked['state']})}"
            link = f'<!doctype html><link rel="icon" href="data:,"><a href="{html.escape(back)}">Agree</a>'
            self.answer(link, "text/html")

    def do_POST(self) -> None:
        """The token."""
        from joserfc import jwt

        form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": "rmq", "sub": "1", "exp": now + 60, "iat": now}
        claims |= {"nonce": self.nonces[form["code"]], "preferred_username": "ada", "groups": ["chiefs"]}
        token = jwt.encode({"alg": "RS256", "kid": "k"}, claims, self.key)
        self.answer(json.dumps({"id_token": token, "token_type": "Bearer"}))


@pytest.fixture
def issuer() -> Iterator[str]:
    """A provider on another site than the dashboard: localhost, not 127.0.0.1."""
    jwk = pytest.importorskip("joserfc.jwk")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    Provider.key = jwk.RSAKey.generate_key(2048, {"kid": "k"})
    Provider.issuer = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Provider.issuer
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def address(dev: Dev, issuer: str, tmp_path: pathlib.Path) -> Iterator[str]:
    """`rmq dashboard` with logins by the provider only: its address."""
    file = tmp_path / "oidc.yaml"
    file.write_text(f"issuer: {issuer}\nclient_id: rmq\nroles: {{admin: [chiefs]}}\n")
    options = ("--oidc", str(file), "--no-account-login", "--require-login")
    with dashboard(dev.namesrv, *options) as address:
        yield address


def test_a_person_logs_in_at_another_site_and_works_on_the_cluster(
    address: str, chromium: Any, watcher: Watcher
) -> None:
    context = chromium.new_context(base_url=address)
    page = context.new_page()
    page.on("pageerror", lambda error: watcher.found.append(str(error)))
    page.goto("/c/default/topics")
    page.get_by_role("link", name="Log in with localhost").click()
    page.get_by_role("link", name="Agree").click()
    page.wait_for_url(re.compile("/c/default/topics$"))
    assert "ada admin" in " ".join(page.locator(".foot").inner_text().split())
    page.goto("/c/default/new-topic")
    page.get_by_label("Name", exact=True).fill("By-ada")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url(re.compile("/topics/By-ada$"))
    context.close()
