"""Login by OpenID Connect: the way to the provider and back, by a code with PKCE, and the token's checks.

The signature and the claims are verified by joserfc, requests are made by httpx2: the extra `dashboard-oidc`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import msgspec
from attrs import define, field, frozen

from rmq.dashboard.access.oidc_settings import OidcSettings, is_safe, values_of
from rmq.dashboard.access.sessions import Identity
from rmq.dashboard.errors import DashboardError, LoginFailed

if TYPE_CHECKING:
    import httpx2
    from joserfc.jwk import KeySet

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a private key of the provider; never `none`, and none by a shared secret."""
PENDING_MAX: Final = 1000
PENDING_OF_ONE: Final = 20
"""Logins on their way of one place: nobody ends the logins of others."""
PENDING_SECONDS: Final = 600.0
"""For how long a person may stay at the provider's pages."""
METADATA_SECONDS: Final = 3600.0
KEYS_PAUSE_SECONDS: Final = 60.0
"""A token of an unknown key has the keys loaded again, no more often than so."""
LEEWAY_SECONDS: Final = 60
ANSWER_MAX: Final = 1 << 20
TIMEOUT_SECONDS: Final = 10.0


class ProviderFailed(DashboardError):
    """The provider of logins cannot be reached, or gives a wrong answer."""

    status = 502
    hint = "try again; if it stays so, check the issuer in the file of --oidc"


@frozen
class Pending:
    """A login on its way. `browser` is the secret in the cookie of the browser that brings the answer."""

    browser: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)
    redirect: str
    target: str
    place: str
    ends_at: float


@define(eq=False)
class Oidc:
    """A provider of logins. `now` is monotonic, in seconds; `wall_seconds` are seconds since 1970.

    `transport` replaces the network, for tests.
    """

    settings: OidcSettings
    now: Callable[[], float]
    wall_seconds: Callable[[], int]
    transport: Any = None
    _pending: OrderedDict[str, Pending] = field(factory=OrderedDict)
    _metadata: dict[str, Any] = field(factory=dict)
    _metadata_until: float = 0.0
    _keys: Any = None
    _keys_at: float = 0.0

    @property
    def pending(self) -> list[Pending]:
        """The logins in progress, the oldest first."""
        return list(self._pending.values())

    async def begin(self, redirect: str, target: str, place: str) -> tuple[str, str]:
        """Begin a login: the provider's address to go to, and the secret for the browser's cookie. The way
        back leads to `redirect`, and from it to the page `target`. `place` is the visitor's place: logins on
        their way are bounded for each. Raises ProviderFailed."""
        metadata = await self._provider()
        state, browser = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        pending = Pending(
            browser,
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(48),
            redirect,
            target,
            place,
            self.now() + PENDING_SECONDS,
        )
        mine = [name for name, one in self._pending.items() if one.place == place]
        if len(mine) >= PENDING_OF_ONE:
            del self._pending[mine[0]]
        self._pending[state] = pending
        while len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": pending.nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        page = str(metadata["authorization_endpoint"])
        return f"{page}{'&' if '?' in page else '?'}{urlencode(query)}", browser

    async def finish(self, given: Mapping[str, str], browser: str) -> tuple[Identity, str]:
        """End a login with the arguments that the provider sent back, and the browser's secret: the identity,
        and the page to go to. Raises LoginFailed, ProviderFailed."""
        pending = self._pending.pop(given.get("state", ""), None)
        if pending is None or pending.ends_at < self.now():
            raise LoginFailed("this login has ended, or did not begin here: start again")
        if not hmac.compare_digest(pending.browser.encode(), browser.encode()):
            raise LoginFailed("this login began in another browser: start again")
        if given.get("iss", self.settings.issuer) != self.settings.issuer:
            raise LoginFailed("the answer is of another provider")
        if "error" in given or not given.get("code"):
            text = given.get("error_description") or given.get("error") or "no code"
            raise LoginFailed(f"the provider refused the login: {text}")
        tokens = await self._exchange(given["code"], pending)
        claims = await self._claims(str(tokens.get("id_token", "")), pending.nonce)
        claims = await self._completed(claims, str(tokens.get("access_token", "")))
        role = self.settings.role_of(claims)
        name = self.settings.name_of(claims)
        if role is None:
            raise LoginFailed(f"{name} has no role here: {self.settings.role_claim} names none of the file's")
        return Identity(name, role, "oidc", own=True), pending.target

    # --- the provider ---

    async def _provider(self) -> dict[str, Any]:
        """The provider's description."""
        if self._metadata and self.now() < self._metadata_until:
            return self._metadata
        place = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await self._ask("GET", place)
        if found.get("issuer") != self.settings.issuer:
            raise ProviderFailed(f"{place} is of the issuer {found.get('issuer')!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_safe(str(found.get(name, ""))):
                raise ProviderFailed(f"{place} has no {name} with https")
        self._metadata, self._metadata_until = found, self.now() + METADATA_SECONDS
        return found

    async def _exchange(self, code: str, pending: Pending) -> dict[str, Any]:
        """The tokens for a code."""
        metadata, settings = await self._provider(), self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect,
            "code_verifier": pending.verifier,
        }
        methods = metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        auth = None
        if settings.client_secret and "client_secret_basic" in methods:
            auth = (settings.client_id, settings.client_secret)
        else:
            form["client_id"] = settings.client_id
            if settings.client_secret:
                form["client_secret"] = settings.client_secret
        return await self._ask("POST", str(metadata["token_endpoint"]), data=form, auth=auth)

    async def _completed(self, claims: dict[str, Any], access_token: str) -> dict[str, Any]:
        """The claims, with those of the provider's page on the person, where the token has no roles."""
        place = str((await self._provider()).get("userinfo_endpoint", ""))
        if values_of(claims, self.settings.role_claim) or not access_token or not is_safe(place):
            return claims
        found = await self._ask("GET", place, headers={"authorization": f"Bearer {access_token}"})
        if found.get("sub") != claims["sub"]:
            raise LoginFailed("the provider's user info belongs to another person")
        return {**found, **claims}

    async def _claims(self, token: str, nonce: str) -> dict[str, Any]:
        """The claims of an id token, verified. Raises LoginFailed."""
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        try:
            try:
                found = jwt.decode(token, await self._key_set(), list(ALGORITHMS))
            except (InvalidKeyIdError, ValueError):
                found = jwt.decode(token, await self._key_set(again=True), list(ALGORITHMS))
            registry = jwt.JWTClaimsRegistry(
                now=self.wall_seconds(),
                leeway=LEEWAY_SECONDS,
                iss={"essential": True, "value": self.settings.issuer},
                aud={"essential": True, "value": self.settings.client_id},
                sub={"essential": True},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            registry.validate(found.claims)
        except (JoseError, ValueError) as error:
            raise LoginFailed(f"the provider's token is not valid: {error}") from None
        claims = dict(found.claims)
        if claims.get("azp", self.settings.client_id) != self.settings.client_id:
            raise LoginFailed("the provider's token is for another program")
        return claims

    async def _key_set(self, *, again: bool = False) -> KeySet:
        """The provider's keys; `again`: a key was not among them."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        is_fresh = self._keys is not None and self.now() - self._keys_at < KEYS_PAUSE_SECONDS
        if self._keys is None or (again and not is_fresh):
            found: Any = await self._ask("GET", str((await self._provider())["jwks_uri"]))
            try:
                keys = KeySet.import_key_set(found)
            except (JoseError, ValueError, KeyError, TypeError) as error:
                raise ProviderFailed(f"the provider's keys cannot be read: {error}") from None
            self._keys, self._keys_at = keys, self.now()
        known: KeySet = self._keys
        return known

    async def _ask(self, method: str, place: str, **options: Any) -> dict[str, Any]:
        """The JSON object that the provider answers. Raises ProviderFailed, LoginFailed."""
        import httpx2

        try:
            async with (
                httpx2.AsyncClient(transport=self.transport, timeout=TIMEOUT_SECONDS) as http,
                http.stream(method, place, **options) as answer,
            ):
                body = await _read(answer)
        except httpx2.HTTPError as error:
            raise ProviderFailed(f"{place} cannot be reached: {error or type(error).__name__}") from None
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        if answer.status_code == 400 and isinstance(found, dict) and "error" in found:
            raise LoginFailed(f"the provider refused the login: {found['error']}")
        if answer.status_code != 200 or not isinstance(found, dict):
            raise ProviderFailed(f"{place} answered {answer.status_code} without a JSON object")
        return found


async def _read(answer: httpx2.Response) -> bytes:
    parts, size = [], 0
    async for part in answer.aiter_bytes():
        size += len(part)
        if size > ANSWER_MAX:
            raise ProviderFailed(f"the provider's answer has more than {ANSWER_MAX} bytes")
        parts.append(part)
    return b"".join(parts)
