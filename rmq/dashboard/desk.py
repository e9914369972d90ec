"""The parts that every request uses, and a request's caller: session, identity, and a call on a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from attrs import frozen
from starlette.requests import Request

from rmq.dashboard.access.audit import AuditLog
from rmq.dashboard.access.guard import SAFE_METHODS
from rmq.dashboard.access.roles import Role
from rmq.dashboard.access.sessions import Identity, Session, Sessions
from rmq.dashboard.checks import Checks
from rmq.dashboard.clusters import Clusters
from rmq.dashboard.config import DashboardConfig
from rmq.dashboard.errors import Forbidden, LoginNeeded
from rmq.dashboard.history.history import History
from rmq.dashboard.jobs import Jobs, Progress
from rmq.dashboard.logins import Logins
from rmq.dashboard.operations.operation import OPERATIONS, Call, RunBlocking, check_role, perform
from rmq.remoting.network import Network


@frozen
class Caller:
    """The sender of a request."""

    identity: Identity
    session: Session | None = None

    @property
    def csrf(self) -> str:
        """The token for forms; empty without a session."""
        return self.session.csrf if self.session else ""


@frozen(kw_only=True)
class Desk:
    """The parts of a dashboard."""

    config: DashboardConfig
    clusters: Clusters
    logins: Logins
    sessions: Sessions
    history: History
    audit: AuditLog
    now_ms: Callable[[], int]
    jobs: Jobs
    checks: Checks
    run_blocking: RunBlocking
    network: Network | None = None

    @property
    def cookie(self) -> str:
        """The name of the session's cookie: dashboards on other ports of a host have another one."""
        return "__Host-rmq" if self.config.is_secure else f"rmq-{self.config.port}"

    async def caller(self, request: Request, cluster: str) -> Caller:
        """The caller of a request. Raises LoginNeeded, LoginFailed."""
        header = request.headers.get("authorization", "")
        if header:
            return Caller(await self.logins.by_header(header, cluster, address_of(request)))
        session = self.session(request)
        if session is not None:
            return Caller(session.identity, session)
        anonymous = self.logins.anonymous()
        if anonymous is None:
            raise LoginNeeded("no user has logged in")
        return Caller(anonymous)

    def session(self, request: Request) -> Session | None:
        """The session of a request's cookie, with the role of now."""
        session = self.sessions.find(request.cookies.get(self.cookie, ""))
        if session is None:
            return None
        identity = self.logins.refreshed(session.identity)
        if identity is None:
            self.sessions.end(session.id)
            return None
        session.become(identity)
        return session

    def check_csrf(self, request: Request, caller: Caller, token: str) -> None:
        """Raises Forbidden for a change in a session without the right token."""
        if request.method in SAFE_METHODS or caller.session is None:
            return
        if not caller.session.is_csrf(token):
            raise Forbidden("the form is not of this session: load the page again, and send it once more")

    @asynccontextmanager
    async def call(
        self,
        identity: Identity,
        cluster: str,
        address: str,
        progress: Progress | None = None,
        is_current: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[Call]:
        """A call on a cluster as an identity. Raises UnknownCluster, Forbidden."""

        async def again(progress: Progress, name: str, given: dict[str, Any]) -> Any:
            progress.guard(partial(self._check_owner, identity, OPERATIONS[name].role))
            async with self.call(identity, cluster, address, progress) as call:
                return await perform(call, name, given)

        if identity.cluster and identity.cluster != cluster:
            raise Forbidden(f"{identity.name} is an account of {identity.cluster}: log in to {cluster}")
        async with self.clusters.use(cluster, identity) as handle:
            yield Call(
                handle.client,
                handle.cache,
                cluster,
                identity,
                self.history,
                self.audit,
                self.now_ms,
                self.jobs,
                again,
                partial(self.call, identity, cluster, address, is_current=is_current),
                self.run_blocking,
                progress or Progress(),
                address,
                handle.target,
                handle.credentials,
                self.network,
                is_current,
            )

    async def perform(
        self, request: Request, caller: Caller, cluster: str, name: str, given: dict[str, Any]
    ) -> Any:
        """Perform one operation; see `operations.operation.perform`."""
        current = partial(self._is_current, caller)
        async with self.call(caller.identity, cluster, address_of(request), is_current=current) as call:
            return await perform(call, name, given)

    def _check_owner(self, identity: Identity, needed: Role) -> None:
        """Raises LoginNeeded or Forbidden when the owner of a job is no longer known, or lacks the role now.
        A job goes on behind a logout."""
        now = self.logins.refreshed(identity)
        if now is None:
            raise LoginNeeded(f"{identity.name} is not in the roles file any more: the job has ended")
        check_role(now, needed)

    def _is_current(self, caller: Caller) -> bool:
        """True if the caller of a request is still logged in, with the same role."""
        session = caller.session
        if session is not None and not self.sessions.has(session):
            return False
        return self.logins.refreshed(caller.identity) == caller.identity


def address_of(request: Request) -> str:
    """The address that a request came from."""
    return request.client.host if request.client else ""
