"""`rmq run`: an `rmq.App` as one process or several, until a signal; restarted when its files change."""

from __future__ import annotations

import importlib
import logging
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from attrs import Factory, define, field

from rmq.cli.output import EXIT_DONE, EXIT_INTERRUPTED, EXIT_USAGE, echo, fail, status_of
from rmq.cli.values import as_duration
from rmq.errors import ConfigError, RmqError
from rmq.printable import counted
from rmq.server.process import ignore_unused

if TYPE_CHECKING:
    import anyio
    import trio

    from rmq.client.app import App

PARENT: Final = "RMQ_RUN_PARENT"
"""In a worker's environment: the process id of its supervisor."""
SCAN_SECONDS: Final = 0.5
"""Seconds between two looks at files, and between a worker's looks for its supervisor."""
PAUSE_SECONDS: Final = (1.0, 30.0)
"""First and longest pause before a worker that died is started again."""
LASTING_SECONDS: Final = 60.0
"""Lifetime in seconds after which a worker's death is not one of its start."""
GRACE_SECONDS: Final = 2.0
"""Seconds for handlers in threads after all other work has ended; after them the process ends."""
SKIPPED: Final = frozenset(("__pycache__", "node_modules", "site-packages"))
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"

Loop = Literal["asyncio", "uvloop", "trio"]


@click.command("run")
@click.argument("application", metavar="MODULE:APP")
@click.option(
    "--loop", type=click.Choice(["asyncio", "uvloop", "trio"]), default="asyncio", show_default=True
)
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes.")
@click.option(
    "--drain", callback=as_duration, metavar="20s", help="Handlers get so long to finish in the end."
)
@click.option("--reload", "reloads", is_flag=True, help="Restart when a .py file below --dir changes.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path),
    default=".",
    show_default=True,
    help="Where MODULE is.",
)
@click.option(
    "-n", "--namesrvAddr", "namesrv", metavar="HOST:PORT;...", help="For an App without an address."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def run_command(
    application: str,
    loop: Loop,
    workers: int,
    drain: int | None,
    reloads: bool,
    folder: pathlib.Path,
    namesrv: str | None,
    log_level: str,
) -> None:
    """Run the rmq.App with the name APP in MODULE, until SIGINT or SIGTERM.

    At the signal the app stops pulling, lets running handlers finish (--drain, else the app's setting, else
    20 s), commits and leaves its groups, and ends with 0. The process does not wait longer for a handler in a
    thread: it ends within the drain's time and some seconds. A second signal ends the process at once with
    130, and unfinished messages are redelivered. Logs go to the error output unless MODULE says otherwise.

    With --workers, processes share the queues of each topic as members of its group; a dead process is
    restarted. --reload is for development.
    """
    ignore_unused()
    if namesrv:
        os.environ["RMQ_NAMESRV_ADDR"] = namesrv
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)
    try:
        parent = int(os.environ.pop(PARENT, 0))
        if (workers > 1 or reloads) and not parent:
            sys.exit(_supervise(workers, folder if reloads else None))
        app = load(application, folder)
        if drain is not None:
            app.drain = drain / 1000
        _serve(app, loop, parent)
    except (RmqError, OSError) as error:
        try:
            fail(error)
        finally:
            _end(status_of(error))
    _end(EXIT_DONE)


def load(application: str, folder: pathlib.Path) -> App:
    """The app of ``module:name``; the name is `app` by default. Raises ConfigError, and the errors of the
    module."""
    from rmq.client.app import App

    module_name, _, name = application.partition(":")
    sys.path.insert(0, str(folder.resolve()))
    try:
        module = importlib.import_module(module_name)
    except (ModuleNotFoundError, ValueError, TypeError) as error:
        missing = getattr(error, "name", None) or module_name
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise  # a module that it imports is missing
        where = f"a module below {folder.resolve()}, and the app in it: orders:app"
        raise ConfigError("MODULE:APP", application, where) from None
    found: Any = module
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise ConfigError(
            "MODULE:APP", application, f"the name of an rmq.App in {module_name}, not {found!r:.80}"
        )
    return found


# --- one process ---


def _serve(app: App, loop: Loop, parent: int) -> None:
    """Run the app until a signal, or until the process `parent` (0: none) has ended. Raises the errors of
    handlers."""
    import anyio

    options: dict[str, Any] = {"use_uvloop": True} if loop == "uvloop" else {}
    backend = "trio" if loop == "trio" else "asyncio"
    try:
        anyio.run(_until_signal, app, parent, backend=backend, backend_options=options)
    except ImportError as error:
        if error.name != "uvloop":
            raise
        raise ConfigError("--loop", loop, "a loop that is installed: pip install uvloop") from None


def _end(status: int) -> None:
    """End the process, if necessary, with handlers still running: an ordinary function in a thread cannot be
    stopped, and Python would wait for its end."""
    until = time.monotonic() + GRACE_SECONDS
    threads = [one for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if left := sum(map(threading.Thread.is_alive, threads)):
        echo(f"{counted(left, 'handler')} still running in threads: the process ends now", err=True)
        logging.shutdown()
        os._exit(status)


async def _until_signal(app: App, parent: int) -> None:
    import anyio

    from rmq.remoting.loop import unwrap_groups

    # A terminal sends SIGINT to the workers too; their parent signals them, and once.
    kinds = (signal.SIGTERM,) if parent else (signal.SIGINT, signal.SIGTERM)
    if parent:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with anyio.open_signal_receiver(*kinds) as signals, unwrap_groups():
        async with anyio.create_task_group() as tasks:

            async def stop_by_signal() -> None:
                async for _ in signals:
                    if is_stopping.is_set():
                        os._exit(EXIT_INTERRUPTED)  # handlers may swallow whatever is raised in them
                    _stop(app, is_stopping, running)

            async def stop_without_parent() -> None:
                while os.getppid() == parent:
                    await anyio.sleep(SCAN_SECONDS)
                _stop(app, is_stopping, running)

            is_stopping, running = anyio.Event(), anyio.CancelScope()
            tasks.start_soon(stop_by_signal)
            if parent:
                tasks.start_soon(stop_without_parent)
            with running:
                async with app:
                    echo(f"{app!r} runs as process {os.getpid()}", err=True)
                    await is_stopping.wait()
            tasks.cancel_scope.cancel()


def _stop(app: App, is_stopping: anyio.Event, running: anyio.CancelScope) -> None:
    """Stop the open app; cancel an app that is not open yet."""
    echo("stopping: handlers that run may finish", err=True)
    is_stopping.set()
    if not app.is_open:
        running.cancel()


# --- several processes, and files that change ---


@define
class Workers:
    """The processes that run the app, restarted when they end."""

    command: list[str]
    reloads: bool
    processes: dict[int, trio.Process] = Factory(dict)
    status: int | None = None
    """Set when all workers must end: the exit status."""
    changed: trio.Event = field(init=False)

    def __attrs_post_init__(self) -> None:
        import trio

        self.changed = trio.Event()

    async def keep(self, number: int) -> None:
        """Keep a process running until all must end."""
        import trio

        pause = PAUSE_SECONDS[0]
        while self.status is None:
            began = trio.current_time()
            changed = self.changed
            environment = {**os.environ, PARENT: str(os.getpid())}
            process = await trio.lowlevel.open_process(self.command, env=environment)
            self.processes[number] = process
            if changed.is_set():  # a stop came during the start of the process
                process.terminate()
            status = await process.wait()
            del self.processes[number]
            if changed.is_set():
                continue
            if status == EXIT_USAGE and not self.reloads:
                self.end(status)
                return
            if status == 0:  # the app stopped itself
                return
            echo(f"worker {number} ended with {status}", err=True)
            if self.reloads:
                await self.changed.wait()
                continue
            if trio.current_time() - began > LASTING_SECONDS:
                pause = PAUSE_SECONDS[0]
            with trio.move_on_after(pause):
                await self.changed.wait()
            pause = min(2 * pause, PAUSE_SECONDS[1])

    def reload(self) -> None:
        """Restart all processes."""
        import trio

        before, self.changed = self.changed, trio.Event()
        before.set()
        self.send_signal(signal.SIGTERM)

    def end(self, status: int) -> None:
        """End all processes."""
        self.status = status
        self.changed.set()
        self.send_signal(signal.SIGTERM)

    def send_signal(self, what: signal.Signals) -> None:
        for process in list(self.processes.values()):
            process.send_signal(what)


def _supervise(count: int, folder: pathlib.Path | None) -> int:
    import trio

    return trio.run(_keep_all, [sys.executable, "-m", "rmq", *sys.argv[1:]], count, folder)


async def _keep_all(command: list[str], count: int, folder: pathlib.Path | None) -> int:
    """Keep `count` workers until a signal, or until all have ended; returns the status."""
    import trio

    workers = Workers(command, folder is not None)

    async def stop_by_signal() -> None:
        async for _ in signals:
            if workers.status is None:
                workers.end(0)
            else:
                workers.status = EXIT_INTERRUPTED
                workers.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has no SIGKILL

    async def reload_by_files(folder: pathlib.Path) -> None:
        before = snapshot(folder)
        while True:
            await trio.sleep(SCAN_SECONDS)
            now = await trio.to_thread.run_sync(snapshot, folder)
            if now != before:
                names = sorted(str(path) for path, _ in now.items() ^ before.items())
                echo(f"changed: {', '.join(dict.fromkeys(names))}; restarting", err=True)
                before = now
                workers.reload()

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as watching:
            watching.start_soon(stop_by_signal)
            if folder is not None:
                watching.start_soon(reload_by_files, folder)
            async with trio.open_nursery() as keeping:
                for number in range(1, count + 1):
                    keeping.start_soon(workers.keep, number)
            watching.cancel_scope.cancel()
    return workers.status or 0


def snapshot(folder: pathlib.Path) -> dict[pathlib.Path, int]:
    """The Python files below a folder, with the times of their last change."""
    return {path: written for path in _python_files(folder) if (written := _written(path))}


def _python_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                yield pathlib.Path(place, name)


def _written(path: pathlib.Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # removed in between
        return 0
