"""Logins: by an account of the cluster, the roles file, the printed link, and by headers of programs."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from rmq.client.admin import Admin
from rmq.dashboard.access.oidc import Oidc
from rmq.dashboard.access.roles import Role, Roles, read_roles
from rmq.dashboard.access.sessions import Identity, LoginLimit, place_of_address, place_of_name
from rmq.dashboard.clusters import Clusters
from rmq.dashboard.config import DashboardConfig
from rmq.dashboard.errors import LoginFailed, NotFound, NotVerified, TooManyLogins
from rmq.errors import NETWORK_ERRORS, ResponseError
from rmq.protocol.auth.signature import Credentials

ANONYMOUS: Final = Identity("anonymous", Role.READER, "anonymous")
NOBODY: Final = Identity("nobody", Role.READER, "anonymous")
NEEDS_ADMIN: Final = "admin permission"
"""In the refusal of an account whose signature is right: RocketMQ's words, and ours."""
RunBlocking = Callable[..., Awaitable[Any]]


class RolesFile:
    """The roles file, read again when it has changed."""

    def __init__(self, config: DashboardConfig) -> None:
        self._path = config.roles_file
        self._stamp = (0, 0)
        self._roles = Roles()

    def current(self) -> Roles:
        """The present roles. Raises ConfigError for an unreadable file, which then admits no user."""
        if self._path is None:
            return self._roles
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
        except OSError:
            stamp = (-1, -1)
        if stamp != self._stamp:
            self._roles = read_roles(self._path)
            self._stamp = stamp
        return self._roles


class Logins:
    """Turns proofs into identities. `run_blocking` runs a slow function in a thread."""

    def __init__(
        self,
        config: DashboardConfig,
        clusters: Clusters,
        limit: LoginLimit,
        run_blocking: RunBlocking,
        oidc: Oidc | None = None,
    ) -> None:
        self._config, self._clusters, self._limit = config, clusters, limit
        self._run_blocking, self._oidc = run_blocking, oidc
        self._file = RolesFile(config)

    async def by_password(self, name: str, password: str, cluster: str, address: str) -> Identity:
        """A user of the roles file, else an account of `cluster`. Raises LoginFailed, TooManyLogins, and
        NotVerified or NETWORK_ERRORS when no broker answers."""
        places = place_of_address(address), place_of_name(name)
        if (wait := self._limit.wait_seconds(*places)) > 0:
            raise TooManyLogins(f"too many failed logins: wait {wait:.0f} s")
        # Noted before the check, so that many tries at once count too.
        self._limit.failed(*places)
        try:
            identity = await self._checked(name, password, cluster)
        except (*NETWORK_ERRORS, NotVerified):
            # No server said that the secret is wrong; a roles file has said so.
            if self._config.roles_file is None:
                self._limit.succeeded(*places)
            raise
        if identity is None:
            raise LoginFailed("the name or the secret is wrong")
        self._limit.succeeded(*places)
        return identity

    async def _checked(self, name: str, password: str, cluster: str) -> Identity | None:
        if self._config.roles_file is not None:
            roles = self._file.current()
            user = await self._run_blocking(roles.user, name, password)
            if user is not None:
                return Identity(user.name, user.role, "user", own=True)
        if not self._config.account_login or not name or not password:
            return None
        return await self._account(name, password, cluster)

    async def _account(self, name: str, secret: str, cluster: str) -> Identity | None:
        """An account, if the cluster takes its secret and refuses another one: a cluster without access
        control takes any."""
        proof = Identity(name, Role.READER, "account", cluster, Credentials(name, secret))
        wrong = Identity(name, Role.READER, "account", cluster, Credentials(name, secrets.token_hex(8)))
        async with self._clusters.use(cluster, wrong) as handle:
            if await _is_let_in(handle.client.admin):
                raise LoginFailed(
                    "this cluster has no access control, so no login by its accounts is possible"
                )
        async with self._clusters.use(cluster, proof) as handle:
            if not await _is_let_in(handle.client.admin):
                return None
            role = Role.ADMIN if await _is_admin(handle.client.admin) else Role.OPERATOR
        return Identity(name, role, "account", cluster, Credentials(name, secret))

    def by_link(self, token: str, address: str) -> Identity:
        """The identity for the link that was printed at the start. Raises LoginFailed, TooManyLogins."""
        place = place_of_address(address)
        if self._limit.wait_seconds(place) > 0:
            raise TooManyLogins("too many failed logins: wait a minute")
        known = self._config.link_token
        if not known or not hmac.compare_digest(known.encode(), token.encode()):
            self._limit.failed(place)
            raise LoginFailed("this link belongs to an earlier run of the dashboard")
        return Identity("local", Role.ADMIN, "link", own=True)

    async def begin_oidc(self, redirect: str, target: str, address: str) -> tuple[str, str]:
        """See `Oidc.begin`. Raises NotFound without a provider, ProviderFailed."""
        return await self._provider().begin(redirect, target, place_of_address(address)[0])

    async def finish_oidc(self, given: Mapping[str, str], browser: str, address: str) -> tuple[Identity, str]:
        """See `Oidc.finish`. Raises NotFound without a provider, LoginFailed, ProviderFailed,
        TooManyLogins."""
        provider, place = self._provider(), place_of_address(address)
        if self._limit.wait_seconds(place) > 0:
            raise TooManyLogins("too many failed logins: wait a minute")
        self._limit.failed(place)
        found = await provider.finish(given, browser)
        self._limit.succeeded(place)
        return found

    def _provider(self) -> Oidc:
        if self._oidc is None:
            raise NotFound("this dashboard has no login by OpenID Connect; see --oidc")
        return self._oidc

    async def by_header(self, header: str, cluster: str, address: str) -> Identity:
        """A program, by `Authorization: Bearer` with a token of the roles file, or `Basic` with an account.
        Raises LoginFailed, TooManyLogins."""
        scheme, _, proof = header.partition(" ")
        if scheme.lower() == "bearer":
            place = place_of_address(address)
            if self._limit.wait_seconds(place) > 0:
                raise TooManyLogins("too many wrong tokens: wait a minute")
            token = self._file.current().token(proof.strip())
            if token is None:
                self._limit.failed(place)
                raise LoginFailed("this token is not known")
            return Identity(token.name, token.role, "token", own=True)
        if scheme.lower() == "basic":
            try:
                name, mark, secret = base64.b64decode(proof, validate=True).decode().partition(":")
            except ValueError:
                mark = ""
            if mark:
                return await self.by_password(name, secret, cluster, address)
        raise LoginFailed("the header Authorization takes Bearer TOKEN, or Basic with a name and its secret")

    def refreshed(self, identity: Identity) -> Identity | None:
        """The identity of a session or token as of now; None for one that is no longer in the roles file."""
        if identity.kind == "token":
            token = next((one for one in self._file.current().tokens if one.name == identity.name), None)
            return Identity(token.name, token.role, "token", own=True) if token else None
        if identity.kind != "user":
            return identity
        user = self._file.current().users.get(identity.name)
        return Identity(user.name, user.role, "user", own=True) if user else None

    def anonymous(self) -> Identity | None:
        """The identity without any proof; None when a login is needed."""
        return ANONYMOUS if self._config.can_read_anonymously else None


async def _is_let_in(admin: Admin) -> bool:
    """True if the servers take the client's signature: name servers with access control, then brokers. Raises
    NETWORK_ERRORS, ConfigError, NotVerified."""
    try:
        addresses = await admin.broker_addresses(slaves=True)
    except ResponseError as error:
        return NEEDS_ADMIN in error.remark
    failure: Exception | None = None
    for address in addresses:
        try:
            await admin.broker_runtime(address)
        except ResponseError as error:
            return NEEDS_ADMIN in error.remark  # refused by its rights, not by its signature
        except NETWORK_ERRORS as error:
            failure = error
            continue
        return True
    if failure is not None:
        raise failure
    raise NotVerified("no broker is registered, so no account can be checked")


async def _is_admin(admin: Admin) -> bool:
    """True if the account may ask for accounts, which needs an administrator."""
    for address in await admin.broker_addresses():
        try:
            await admin.acl_config(address)
        except ResponseError:
            return False
    return True
