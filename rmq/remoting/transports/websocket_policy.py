"""Policy of WebSocket upgrades: a server accepts or refuses them by their headers Origin and Host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from attrs import field

from rmq.config import is_loopback
from rmq.remoting.address import is_literal

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

ANY_ORIGIN: Final = "*"


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower().rstrip("/") for name in names if name.strip())


@frozen(kw_only=True)
class WebSocketAccess:
    """WebSocket upgrades that a server accepts: no upgrade of a web page, unless the page is listed.

    A browser lets any page open a WebSocket to any address, also on loopback, and names the page in the
    header `Origin`, which the page cannot change (RFC 6455, 10.2). Clients that are no browsers send no
    `Origin`, or the server's own address. A page whose own name was made to lead to the server's address (DNS
    rebinding) shows that name in `Host`.

    `origins` are the pages that may connect (``https://console.example.com``; ``*``: all pages). `hosts` are
    names under which clients know the server, besides addresses and localhost. Without `hosts`, an upgrade
    without `Origin` may name any host, unless it came in over loopback.
    """

    origins: frozenset[str] = field(default=(), converter=_lowered)
    hosts: frozenset[str] = field(default=(), converter=_lowered)
    own: frozenset[str] = field(default=(), converter=_lowered)
    """Names of the machine: accepted as well, but they make the check no stricter."""

    def refusal(self, host: str, headers: Sequence[tuple[bytes, bytes]], local: str) -> str:
        """The reason to refuse an upgrade that came to our address `local`; empty when it is accepted."""
        origins = [value.decode("latin-1").strip() for name, value in headers if name.lower() == b"origin"]
        for origin in origins:
            listed = ANY_ORIGIN in self.origins or origin.lower().rstrip("/") in self.origins
            if not listed and not _is_own(origin, host):
                return f"a web page of {origin!r} may not connect: webSocketOrigins does not list its origin"
        strict = bool(self.hosts or origins) or is_loopback(local.rpartition(":")[0])
        return self.page_refusal(host) if strict else ""

    def page_refusal(self, host: str) -> str:
        """The reason to refuse a browser that asks for this host; empty when it is accepted."""
        name = _name_of(host)
        if _is_safe(name) or name in self.hosts or name in self.own:
            return ""
        return f"it asks for host {host!r}, which webSocketHosts does not list"


def _is_own(origin: str, host: str) -> bool:
    """True if an origin is the server's own port, which serves no pages: some clients other than browsers
    send it, for example Netty's. `page_refusal` checks the host."""
    scheme, _, authority = origin.lower().rstrip("/").partition("://")
    return scheme in ("http", "https") and bool(authority) and authority == host.strip().lower()


def _name_of(host: str) -> str:
    """The name in a `Host` header, without its port."""
    name, colon, port = host.strip().lower().rpartition(":")
    if not colon or not (port.isdigit() or not port) or (":" in name and not name.endswith("]")):
        name = host.strip().lower()
    return name.removeprefix("[").removesuffix("]").rstrip(".")


def _is_safe(name: str) -> bool:
    """True if the name leads to its machine without a name service."""
    return is_literal(name) or name == "localhost" or name.endswith(".localhost")
