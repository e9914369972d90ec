"""Settings of a login by OpenID Connect, and the file that holds them.

issuer: https://login.example.com/realms/shop
client_id: rmq-dashboard
client_secret: ...            # or client_secret_file: PATH; neither for a public client
scopes: [openid, profile, groups]
name_claim: preferred_username
role_claim: groups            # or a path: realm_access.roles
roles:
  admin: [rmq-admins]
  operator: [rmq-operators]
  reader: [staff]
default_role: reader          # for everybody that the provider knows; without it they are refused
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from attrs import field, frozen

from rmq.config import is_loopback
from rmq.dashboard.access.roles import Role
from rmq.errors import ConfigError

SCOPES: Final = ("openid", "profile", "email")


@frozen(kw_only=True)
class OidcSettings:
    """Settings of a login by OpenID Connect. Raises ConfigError.

    `roles`: value of the claim -> role; the highest role of a person counts. `name_claim` empty: the first of
    preferred_username, email and sub.
    """

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    scopes: tuple[str, ...] = SCOPES
    name_claim: str = ""
    role_claim: str = "groups"
    roles: Mapping[str, Role] = field(factory=dict)
    default_role: Role | None = None

    def __attrs_post_init__(self) -> None:
        if not is_safe(self.issuer):
            raise ConfigError("oidc.issuer", self.issuer, "a URL with https (http on loopback only)")
        if "openid" not in self.scopes:
            raise ConfigError("oidc.scopes", list(self.scopes), "openid among them")
        if not self.roles and self.default_role is None:
            raise ConfigError(
                "oidc.roles", {}, "roles, or default_role: without either, no login is possible"
            )

    @property
    def host(self) -> str:
        """The provider's host, for people."""
        return urlsplit(self.issuer).hostname or ""

    def role_of(self, claims: Mapping[str, Any]) -> Role | None:
        """The role of a person by the claims; None when no role is meant for them."""
        found = [self.roles[value] for value in values_of(claims, self.role_claim) if value in self.roles]
        return max(found, default=self.default_role)

    def name_of(self, claims: Mapping[str, Any]) -> str:
        """The name of a person by the claims."""
        names = [self.name_claim] if self.name_claim else ["preferred_username", "email"]
        return next((values[0] for one in names if (values := values_of(claims, one))), str(claims["sub"]))


def values_of(claims: Mapping[str, Any], path: str) -> list[str]:
    """The texts of a claim: a text, or a list of texts; `path` may lead into objects by points."""
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return [found]
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def is_safe(url: str) -> bool:
    """True if requests of a URL are safe from others on the way."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    issuer: str
    client_id: str
    client_secret: str = ""
    client_secret_file: str = ""
    scopes: list[str] = msgspec.field(default_factory=lambda: list(SCOPES))
    name_claim: str = ""
    role_claim: str = "groups"
    roles: dict[str, list[str]] = msgspec.field(default_factory=dict)
    default_role: str = ""


def read_oidc(path: pathlib.Path) -> OidcSettings:
    """Read the file. Raises ConfigError, which shows no secret."""
    import yaml

    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
        found = msgspec.convert(tree, _File)
        secret = found.client_secret
        if found.client_secret_file:
            secret = (path.parent / found.client_secret_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("oidc", str(path), f"a readable file ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else "?"
        raise ConfigError("oidc", str(path), f"YAML, wrong at line {line}") from None
    except msgspec.ValidationError as error:
        raise ConfigError("oidc", str(path), f"settings of OpenID Connect ({error})") from None
    return OidcSettings(
        issuer=found.issuer,
        client_id=found.client_id,
        client_secret=secret,
        scopes=tuple(found.scopes),
        name_claim=found.name_claim,
        role_claim=found.role_claim,
        roles={value: _role(name) for name, values in found.roles.items() for value in values},
        default_role=_role(found.default_role) if found.default_role else None,
    )


def _role(name: str) -> Role:
    known = {one.label: one for one in Role}
    if name not in known:
        raise ConfigError("oidc.roles", name, "admin, operator or reader")
    return known[name]
