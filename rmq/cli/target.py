"""Common parts of the commands on a cluster: cluster and account, running, and confirmation before
destruction.

    @click.command()
    @target_options
    def lag(target: Target) -> None:
        run(_lag, target)

    async def _lag(target: Target) -> None:
        async with target.connect() as client:
            ...

Commands find a cluster in the same places as `rmq.connect()` (`rmq.client.settings.target`); -n and --context
are the arguments. This module imports trio and the client only to run.
"""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
from attrs import frozen

import rmq.client.settings.target as client_target
from rmq.cli.context import complete_context, tls_options
from rmq.cli.output import EXIT_INTERRUPTED, echo, end_quietly, fail, refuse
from rmq.cli.values import read_secret
from rmq.client.settings.contexts import Context
from rmq.client.settings.target import SECRET_VARIABLE
from rmq.errors import ConfigError, RmqError
from rmq.server.process import ignore_unused

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.client.client import Client
    from rmq.client.config import ClientConfig
    from rmq.client.session.observer import Observer

P = ParamSpec("P")
T = TypeVar("T")


@frozen
class Target(client_target.Target):
    """A cluster, as `rmq.client.settings.target` finds it."""

    def connect(self, config: ClientConfig | None = None, plugins: tuple[Observer, ...] = ()) -> Client:
        """A client of the cluster, to be entered with `async with`. Raises ConfigError."""
        from rmq.client.client import connect

        return connect(
            self.namesrv, credentials=self.credentials, tls=self.tls, config=config, plugins=plugins
        )


_OPTIONS = (
    click.option("-n", "--namesrvAddr", "namesrv", metavar="HOST:PORT;...", help="Name servers."),
    click.option(
        "--context",
        "context_name",
        metavar="NAME",
        shell_complete=complete_context,
        help="A named cluster, see `rmq context`.",
    ),
    click.option(
        "--access-key", metavar="NAME", help=f"Account; the secret is read from a file or {SECRET_VARIABLE}."
    ),
    click.option(
        "--secret-key-file",
        type=click.Path(dir_okay=False, path_type=pathlib.Path),
        help="File with the account's secret.",
    ),
)


def target_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that name a cluster; the command gets one argument `target`."""

    @functools.wraps(command)
    def with_target(
        namesrv: str | None,
        context_name: str | None,
        access_key: str | None,
        secret_key_file: pathlib.Path | None,
        tls: bool,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        tls_insecure: bool,
        **rest: Any,
    ) -> T:
        given = Context(
            namesrv=namesrv or "",
            access_key=access_key or "",
            secret_key=read_secret(secret_key_file) if secret_key_file else "",
            tls=tls,
            tls_ca=tls_ca or "",
            tls_cert=tls_cert or "",
            tls_key=tls_key or "",
            tls_insecure=tls_insecure,
        )
        try:
            named = resolve(given, context_name, os.environ)
        except ConfigError as error:
            fail(error)
        return command(target=named, **rest)

    made = tls_options(with_target)
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


def resolve(given: Context, name: str | None, environment: Mapping[str, str]) -> Target:
    """See `rmq.client.settings.target`. Raises ConfigError."""
    found = client_target.resolve(given, name, environment)
    return Target(found.namesrv, found.credentials, found.tls, found.origin)


# --- running ---


def run(work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Run `work(*arguments)` under trio and return its result.

    An RmqError or OSError becomes a line on the error output and an exit status (see `rmq --help`). SIGINT
    and SIGTERM cancel the work, which leaves its group and commits its offsets, and end with 130. A closed
    output (`rmq tail | head`) ends the command quietly with 0.
    """
    return _run(functools.partial(work, *arguments), EXIT_INTERRUPTED)


def run_service(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Run a service as `run` does, but with status 0 after a signal, the usual end of a service."""
    ignore_unused()
    _run(functools.partial(work, *arguments), 0)


def _run(work: Callable[[], Awaitable[T]], interrupted: int) -> T:
    import trio

    try:
        return trio.run(_until_signal, work)
    except BrokenPipeError:
        end_quietly()
    except KeyboardInterrupt:
        sys.exit(interrupted)
    except (RmqError, OSError) as error:
        fail(error)


async def _until_signal(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work()` until it ends or a signal cancels it, which raises KeyboardInterrupt. Its own error is
    raised unchanged, without an ExceptionGroup."""
    import trio

    if threading.current_thread() is not threading.main_thread():
        with first_error():
            return await work()
    results: list[T] = []

    async def stop_by_signal() -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                nursery.cancel_scope.cancel()
                return

    with first_error():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_by_signal)
            results.append(await work())
            nursery.cancel_scope.cancel()
    if not results:
        raise KeyboardInterrupt
    return results[0]


@contextmanager
def first_error() -> Iterator[None]:
    """For a nursery of equal tasks: raise the first of their errors instead of an ExceptionGroup."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


def run_admin(target: Target, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run `work` with `client.admin` of the cluster and return its result; see `run`."""

    async def within() -> T:
        async with target.connect() as client:
            return await work(client.admin)

    return run(within)


# --- changing a cluster ---


def part_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add -c CLUSTER and -b BROKER: arguments `cluster` and `broker`, empty without the option."""
    cluster = click.option("-c", "--cluster", default="", help="Only this cluster. [default: all]")
    broker = click.option("-b", "--broker", default="", help="Only this broker: its name or address.")
    return cluster(broker(command))


def yes_option(command: Callable[..., T]) -> Callable[..., T]:
    """Add --yes for commands that ask before they destroy something."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def confirm(yes: bool, question: str) -> None:
    """Ask, unless `yes`; end the command with 1 when the answer is no, or without a terminal for the
    question."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        refuse("nothing was changed: there was no answer; --yes answers for you")
    if not agreed:
        refuse("nothing was changed")


def report_done(what: str, addresses: Any) -> None:
    """Print the action and the servers that did it; end with 1 without any server."""
    if not (servers := ", ".join(addresses)):
        refuse("nothing was done: no broker is registered there; `rmq cluster list` shows registered brokers")
    echo(f"{what} at {servers}")
