"""The dashboard as a whole: its parts, its ASGI application, and the block in which it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
from attrs import frozen
from starlette.applications import Starlette
from starlette.types import ASGIApp

from rmq.clock import wall_clock_ms
from rmq.dashboard.access.audit import AuditLog
from rmq.dashboard.access.guard import Guard
from rmq.dashboard.access.oidc import Oidc
from rmq.dashboard.access.sessions import LoginLimit, Sessions
from rmq.dashboard.api.routes import api_routes, refused_method
from rmq.dashboard.checks import Checks
from rmq.dashboard.clusters import Clusters, Connect, connect_target
from rmq.dashboard.config import DashboardConfig
from rmq.dashboard.desk import Desk
from rmq.dashboard.folders import exports_folder
from rmq.dashboard.history.history import History
from rmq.dashboard.history.sampler import OWN, Sampler
from rmq.dashboard.jobs import Jobs
from rmq.dashboard.logins import Logins
from rmq.dashboard.operations.operation import perform
from rmq.dashboard.web.routes import page_routes
from rmq.errors import RmqError
from rmq.remoting.network import Network

log = logging.getLogger(__name__)

RunBlocking = Callable[..., Awaitable[Any]]


@frozen
class World:
    """World of a dashboard, replaced by tests: monotonic seconds, wall time in ms, the runner of slow
    functions, the network to the cluster, and the transport to a provider of logins."""

    now: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = wall_clock_ms
    run_blocking: RunBlocking = anyio.to_thread.run_sync
    network: Network | None = None
    oidc_transport: Any = None


@asynccontextmanager
async def open_dashboard(
    config: DashboardConfig, *, connect: Connect = connect_target, world: World | None = None
) -> AsyncIterator[ASGIApp]:
    """The application, with its clients and its sampler, for the length of the block. Raises ConfigError,
    HistoryError."""
    world = world or World()
    history = History(config.history, config.history_days)
    try:
        with exports_folder() as folder:
            async with anyio.create_task_group() as tasks:
                clusters = Clusters(config.clusters, tasks, world.now, connect)
                audit = AuditLog(world.now_ms, config.audit_file)
                desk = Desk(
                    config=config,
                    clusters=clusters,
                    logins=_logins(config, clusters, world),
                    sessions=Sessions(world.now),
                    history=history,
                    audit=audit,
                    now_ms=world.now_ms,
                    jobs=Jobs(tasks, world.now_ms, folder),
                    checks=Checks(tasks, world.now, world.now_ms),
                    run_blocking=world.run_blocking,
                    network=world.network,
                )
                seconds, run_blocking = config.sample_seconds, world.run_blocking
                sampler = Sampler(clusters, history, world.now_ms, seconds, run_blocking, audit.notice)
                tasks.start_soon(sampler.run)
                if config.sample_seconds > 0:
                    tasks.start_soon(_warm, desk)
                yield make_app(desk)
                tasks.cancel_scope.cancel()
    finally:
        history.close()


async def _warm(desk: Desk) -> None:
    """Ask for the answers about whole clusters before the first viewer does: large clusters need long."""
    for name in desk.clusters.names:
        try:
            async with desk.call(OWN, name, "") as call:
                await perform(call, "overview", {})
        except (RmqError, OSError):
            pass  # the page shows the error
        except Exception:
            log.exception("the overview of cluster %s failed", name)


def _logins(config: DashboardConfig, clusters: Clusters, world: World) -> Logins:
    oidc = None
    if config.oidc is not None:
        oidc = Oidc(config.oidc, world.now, lambda: world.now_ms() // 1000, world.oidc_transport)
    return Logins(config, clusters, LoginLimit(world.now), world.run_blocking, oidc)


def make_app(desk: Desk) -> ASGIApp:
    """The application over its parts."""
    routes = [*api_routes(desk), *page_routes(desk)]
    app = Starlette(routes=routes, exception_handlers={405: refused_method})
    return Guard(app, desk.config.is_host, is_secure=desk.config.is_secure)
