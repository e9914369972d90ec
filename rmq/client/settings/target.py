"""Target: cluster and account, from arguments, else the environment, else the current context.

The address, first found counts:

    1. an argument: the address, or the name of a context
    2. RMQ_NAMESRV_ADDR, else the context that RMQ_CONTEXT names, else NAMESRV_ADDR, RocketMQ's own variable
    3. the context that `rmq context use` made the current one
    4. 127.0.0.1:9876

Account and TLS are those of the same context. For a cluster given by an address, no context's account is
used; arguments, or RMQ_ACCESS_KEY and RMQ_SECRET_KEY, apply to any cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from attrs import evolve, field

from rmq.client.settings.contexts import Context, context_called, read_contexts
from rmq.errors import ConfigError

if TYPE_CHECKING:
    from attrs import frozen

    from rmq.protocol.auth.signature import Credentials
    from rmq.remoting.transports.tls import TlsConfig
else:
    from rmq.lazy_attrs import frozen

DEFAULT_ADDRESS: Final = "127.0.0.1:9876"
ADDRESS_VARIABLE: Final = "RMQ_NAMESRV_ADDR"
CONTEXT_VARIABLE: Final = "RMQ_CONTEXT"
JAVA_VARIABLE: Final = "NAMESRV_ADDR"
ACCESS_VARIABLE: Final = "RMQ_ACCESS_KEY"
SECRET_VARIABLE: Final = "RMQ_SECRET_KEY"
DEFAULT: Final = "the default"


@frozen
class Target:
    """A cluster: its name servers, the account (None: none), TLS (None: plain); `origin` says which setting
    named it."""

    namesrv: str
    credentials: Credentials | None = field(default=None, repr=False)
    tls: TlsConfig | None = field(default=None, repr=False)
    origin: str = DEFAULT


def resolve(
    given: Context, name: str | None, environment: Mapping[str, str], *, with_account: bool = True
) -> Target:
    """The target that arguments (`given`, empty where not given, and the `name` of a context), environment
    and contexts name together; see the module. Without `with_account` the account may be incomplete. Raises
    ConfigError."""
    base, origin = _base(given.namesrv, name, environment)
    if given.access_key and given.access_key != base.access_key:
        base = evolve(base, secret_key="")  # the key belongs to another account
    merged = evolve(
        base, **{key: value for key, value in given.options().items() if value not in ("", False)}
    )
    if not merged.namesrv:  # a context with an account only
        address, origin = _address(environment)
        merged = evolve(merged, namesrv=address)
    tls = merged.tls_config()
    scheme = "tls://" if tls else ""
    pieces = [piece.strip() for piece in merged.namesrv.replace(",", ";").split(";") if piece.strip()]
    addresses = [piece if "://" in piece else scheme + piece for piece in pieces]
    account = _credentials(merged, environment) if with_account else None
    return Target(";".join(addresses), account, tls, origin)


def _base(address: str, name: str | None, environment: Mapping[str, str]) -> tuple[Context, str]:
    """The base of the arguments, and the setting that named the cluster."""
    if name:
        return context_called(name), "-n" if address else f"context {name}"
    if address:
        return Context(), "-n"
    named = environment.get(CONTEXT_VARIABLE)
    if named and not environment.get(ADDRESS_VARIABLE):
        return context_called(named, CONTEXT_VARIABLE), f"context {named}"
    address, origin = _address(environment)
    if origin == DEFAULT and (current := read_contexts().current):
        return context_called(current, "the current one"), f"context {current}"
    return Context(namesrv=address), origin


def _address(environment: Mapping[str, str]) -> tuple[str, str]:
    """The environment's target without contexts, and the name of the variable."""
    for variable in (ADDRESS_VARIABLE, JAVA_VARIABLE):
        if environment.get(variable):
            return environment[variable], variable
    return DEFAULT_ADDRESS, DEFAULT


def _credentials(merged: Context, environment: Mapping[str, str]) -> Credentials | None:
    access_key = merged.access_key or environment.get(ACCESS_VARIABLE, "")
    if not access_key:
        return None
    secret = merged.secret_key or environment.get(SECRET_VARIABLE, "")
    if not secret:
        raise ConfigError(
            "account",
            access_key,
            f"a secret for the access key: --secret-key-file, {SECRET_VARIABLE} or a context with one",
        )
    from rmq.protocol.auth.signature import Credentials

    return Credentials(access_key, secret)
