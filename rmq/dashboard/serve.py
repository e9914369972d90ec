"""The dashboard as a service: Hypercorn on trio, in the caller's nursery or as a program of its own."""

from __future__ import annotations

import errno
import logging
from functools import partial
from typing import Any, Final

import trio
from hypercorn.config import Config

from rmq.dashboard import connections
from rmq.dashboard.app import open_dashboard
from rmq.dashboard.config import DashboardConfig
from rmq.errors import PortInUse, RmqError

GRACE_SECONDS: Final = 2.0
HEADERS_MAX: Final = 32 * 1024


async def serve(
    config: DashboardConfig, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled, and report the address after the listener is open. Raises PortInUse,
    HistoryError."""
    try:
        async with open_dashboard(config) as app, trio.open_nursery() as nursery:
            application: Any = app  # Hypercorn and Starlette type the same interface differently
            run = partial(connections.serve, application, hypercorn_config(config))
            task_status.started(await nursery.start(run))
    except BaseExceptionGroup as group:
        error = _first(group)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(f"{config.host}:{config.port}", "--port") from None
        if isinstance(error, (RmqError, OSError)):
            raise error from None
        raise


def hypercorn_config(config: DashboardConfig) -> Config:
    """Hypercorn's settings."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    settings: dict[str, Any] = {
        "bind": [f"{host}:{config.port}"],
        "accesslog": None,
        "errorlog": logging.getLogger("rmq.dashboard.http"),
        "include_server_header": False,
        "graceful_timeout": GRACE_SECONDS,
        "h11_max_incomplete_size": HEADERS_MAX,
        "keep_alive_timeout": 60,
        "backlog": 64,
    }
    if config.tls_cert is not None:
        settings |= {"certfile": str(config.tls_cert), "keyfile": str(config.tls_key)}
    return Config.from_mapping(settings)


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
