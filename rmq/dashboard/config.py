"""Settings of the dashboard."""

from __future__ import annotations

import ipaddress
import pathlib
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from rmq.client.settings.target import Target
from rmq.config import is_loopback
from rmq.dashboard.access.oidc_settings import OidcSettings
from rmq.errors import ConfigError

LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
PORT: Final = 8088
DAYS: Final = 14


@frozen(kw_only=True)
class DashboardConfig:
    """Settings of a dashboard. Raises ConfigError for settings that would let strangers in.

    `clusters`: name -> cluster; the first is shown first. `allowed_hosts` are names in URLs beside loopback's
    names and `host`. With `link_token`, the printed link logs in as admin, who acts as the dashboard's own
    account. `history` is the SQLite file of charts; None: in memory.
    """

    clusters: Mapping[str, Target]
    host: str = "127.0.0.1"
    port: int = PORT
    allowed_hosts: tuple[str, ...] = ()
    roles_file: pathlib.Path | None = None
    oidc: OidcSettings | None = None
    account_login: bool = True
    anonymous_read: bool = True
    link_token: str = field(default="", repr=False)
    tls_cert: pathlib.Path | None = None
    tls_key: pathlib.Path | None = None
    secure_cookies: bool = False
    audit_file: pathlib.Path | None = None
    history: pathlib.Path | None = None
    history_days: int = DAYS
    sample_seconds: float = 30.0

    def __attrs_post_init__(self) -> None:
        if not self.clusters:
            raise ConfigError("clusters", {}, "at least one cluster")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError(
                "tls", str(self.tls_cert or self.tls_key), "both --tls-certificate and --tls-certificate-key"
            )
        if is_loopback(self.host):
            return
        if self.link_token:
            raise ConfigError("host", self.host, "a loopback address, as long as a login link is printed")
        if not self.allowed_hosts and _is_any(self.host):
            raise ConfigError("host", self.host, "--allowed-host with the name that browsers will use")

    @property
    def is_secure(self) -> bool:
        """True if browsers use HTTPS: to the dashboard, or to a proxy before it."""
        return self.secure_cookies or self.tls_cert is not None

    @property
    def can_read_anonymously(self) -> bool:
        """True if pages are shown without a login: on loopback only, and only when the dashboard has no
        account of its own that a stranger would borrow."""
        own = any(target.credentials is not None for target in self.clusters.values())
        return self.anonymous_read and is_loopback(self.host) and not own

    def is_host(self, header: str) -> bool:
        """True if a request's Host names this dashboard."""
        name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
        name = name.lower()
        known = {host.lower() for host in self.allowed_hosts}
        if is_loopback(self.host):
            known |= set(LOOPBACK_HOSTS)
        if not _is_any(self.host):
            known.add(f"[{self.host}]" if ":" in self.host else self.host.lower())
        return name in known


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
