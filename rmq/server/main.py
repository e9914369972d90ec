"""A server as a program of its own: command line, settings, log, banner, signals, exit status."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import attrs
import trio

from rmq.config import dump_properties, from_options, load_all, read_file
from rmq.errors import ConfigError, PortInUse, RmqError, StoreLocked
from rmq.plugin import PluginRefused
from rmq.remoting.loop import unwrap_groups
from rmq.remoting.serving.acceptor import raise_descriptor_limit
from rmq.remoting.transports.tls import TlsConfig, with_file
from rmq.server.health import Health
from rmq.server.http import report_to_supervisor
from rmq.server.log_limit import FORM, LogFormat, start_log
from rmq.server.process import check_installation, check_paths, ignore_unused, return_large_blocks
from rmq.server.profile import applied, protect_files
from rmq.server.settings import ServerSettings
from rmq.server.signals import obey, stop_without_parent

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

C = TypeVar("C", bound=ServerSettings)

log = logging.getLogger("rmq.server")

EXIT_FAILED: Final = 1
EXIT_SETTINGS: Final = 2
EXIT_TAKEN: Final = 3

Banner = Callable[[Sequence[str], Mapping[str, str], Health], str]
"""The text of a start: the addresses for clients, further listeners and their addresses, and the health."""


class Start(NamedTuple):
    """Input of a start: the command line, the resulting settings (the server's first), and the texts of the
    configuration file and of `--set`, for plug-ins."""

    options: argparse.Namespace
    settings: tuple[Any, ...]
    texts: Mapping[str, str]

    @property
    def config(self) -> ServerSettings:
        """The settings of the server."""
        config: ServerSettings = self.settings[0]
        return config


@frozen(kw_only=True)
class Program:
    """A server as a program: `python -m MODULE`.

    `settings(options)` reads the settings and raises ConfigError; `folder(settings)` is the server's data
    folder. `serve(start)` runs the server until it is stopped; its errors decide the exit status: `taken` are
    the errors of a port or a folder that another process uses. `name_servers` and `port` are the help of the
    options -n and --port, empty without the option.
    """

    module: str
    title: str
    description: str
    example: str
    settings: Callable[[argparse.Namespace], tuple[Any, ...]]
    serve: Callable[[Start], Awaitable[None]]
    folder: Callable[[tuple[Any, ...]], str] = lambda settings: ""
    taken: tuple[type[Exception], ...] = (PortInUse, StoreLocked)
    taken_when: str = "when it cannot listen"
    name_servers: str = ""
    port: str = ""

    def parse(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Read the command line; the letters are those of RocketMQ's mqnamesrv and mqbroker."""
        last = "-n and --set" if self.name_servers else "--set"
        epilog = (
            f"exit status: 0 after SIGTERM or SIGINT, 2 for wrong settings, 3 {self.taken_when}, 1 for any"
            f" other failure. Settings come from the file, then from environment variables RMQ_<NAME>, then"
            f" from {last}."
        )
        parser = argparse.ArgumentParser(
            f"python -m {self.module}", description=self.description, epilog=epilog
        )
        add = parser.add_argument
        add("-c", "--configFile", dest="file", help="properties or TOML file with settings")
        add("-p", "--printConfigItem", action="store_true", help="print all settings and end")
        add("-m", "--printImportantConfig", action="store_true", help="print the important ones")
        if self.name_servers:
            add("-n", "--namesrvAddr", help=self.name_servers)
        if self.port:
            add("--port", help=self.port)
        help = f"one setting, e.g. {self.example}"
        add("--set", action="append", default=[], metavar="KEY=VALUE", help=help)
        return parser.parse_args(arguments)

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the program until a signal; returns the exit status."""
        start_log()
        options = self.parse(arguments)
        ignore_unused()
        try:
            check_installation()
            settings = self.settings(options)
            if options.printConfigItem or options.printImportantConfig:
                print(dump_properties(*settings, important=not options.printConfigItem), end="")
                return 0
            texts = {entry.key: str(entry.value) for entry in read_file(options.file)} if options.file else {}
            texts |= {key: str(value) for key, value in from_options(options.set).items()}
            start = Start(options, settings, texts)
            folder = self.folder(settings)
            protect_files(start.config, folder)
            check_paths(*settings, data=folder)
            start_log(start.config)
            trio.run(self.serve, start)
        except (ConfigError, PluginRefused) as error:
            return self._failed(error, EXIT_SETTINGS, options)
        except self.taken as error:
            return self._failed(error, EXIT_TAKEN, options)
        except (RmqError, OSError) as error:
            return self._failed(error, EXIT_FAILED, options)
        except Exception:
            log.exception("the %s ends with an unexpected error", self.title)
            raise
        return 0

    def _failed(self, error: Exception, status: int, options: argparse.Namespace) -> int:
        """Print the reason of the program's end to the error output, and to the log's file if one is set."""
        print(f"rmq {self.title}: {error}", file=sys.stderr)
        note_failure(self.title, error, options)
        return status


def note_failure(title: str, error: Exception, options: argparse.Namespace) -> None:
    """Write the reason of a program's end to the log's file, if one is set. The file may not be open yet."""
    if any(
        isinstance(handler, logging.FileHandler) and isinstance(handler.formatter, LogFormat)
        for handler in logging.getLogger().handlers
    ):
        log.error("the %s ends: %s", title, error)
    elif path := _log_file(options):
        try:
            handler = logging.FileHandler(path, encoding="utf-8")
        except OSError:
            return  # the error output has the text
        handler.setFormatter(LogFormat(FORM))
        text = ("the %s ends: %s", (title, error), None)
        handler.handle(log.makeRecord(log.name, logging.ERROR, __file__, 0, *text))
        handler.close()


def _log_file(options: argparse.Namespace) -> str:
    """The setting logFile, if it can be read although other settings are wrong; empty without it."""
    found = ""
    with suppress(ConfigError, OSError):
        for entry in read_file(options.file) if options.file else ():
            found = str(entry.value) if python_name(entry.key) == "log_file" else found
    found = os.environ.get("RMQ_LOG_FILE", found)
    for option in options.set:
        key, _, value = option.partition("=")
        found = value if python_name(key.strip()) == "log_file" else found
    return found


def python_name(key: str) -> str:
    """The name of a setting's field: `logFile` and `log_file` are the same setting."""
    return re.sub("([A-Z])", r"_\1", key).lower()


def given_settings(options: argparse.Namespace, name_servers: str) -> dict[str, str]:
    """The settings that the command line gives; -n is the setting `name_servers`. Raises ConfigError."""
    given = from_options(options.set)
    if options.namesrvAddr:
        given[name_servers] = options.namesrvAddr
    return given


def server_settings(kind: type[C], file: str, given: Mapping[str, str]) -> tuple[C, TlsConfig]:
    """The settings of a server and of TLS: of the file, the environment and `given`, as their profile says.
    Raises ConfigError."""
    config, tls = load_all((kind, TlsConfig), file, given)
    if file and not config.config_store_path:
        config = attrs.evolve(config, config_store_path=file)
    return applied(config, with_file(tls))


async def run_until_signalled(
    run: Callable[..., Awaitable[None]],
    config: ServerSettings,
    banner: Banner,
    *,
    health: Health,
    log: logging.Logger,
    reload: Callable[[], None] = lambda: None,
    parts: Callable[[], str] = lambda: "",
    beside: Sequence[Callable[[], Awaitable[None]]] = (),
    on_started: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Run a server until SIGTERM or SIGINT, or until its parent process has ended.

    `run(stop=, also=, health=, task_status=)` is the server: it shuts down gracefully once `stop` is set, and
    its `started` gives the addresses for clients, none if the stop comes first. The banner is printed when
    the server has started, and logged if the log is a file. SIGHUP calls `reload`; SIGUSR1 and SIGQUIT write
    a dump with `parts()`; `beside` are tasks that last as long as the server. `on_stop` is called when the
    stop begins. Raises as `run`.
    """
    raise_descriptor_limit()
    return_large_blocks()
    stop, also = trio.Event(), dict[str, str]()
    with unwrap_groups():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(obey, config, stop, reload=reload, parts=lambda: parts() + health.text())
            )
            nursery.start_soon(report_to_supervisor, health)
            nursery.start_soon(stop_without_parent, stop)
            nursery.start_soon(_call_at, stop, on_stop)
            for task in beside:
                nursery.start_soon(task)
            async with trio.open_nursery() as inner:
                addresses = await inner.start(partial(run, stop=stop, also=also, health=health))
                if addresses:
                    on_started()
                    _announce(banner(addresses, also, health), config, log)
            nursery.cancel_scope.cancel()


async def serve(
    run: Callable[..., Awaitable[None]], banner: Callable[..., str], log: logging.Logger, start: Start
) -> None:
    """Run a server without a store, whose settings are its config and TLS, until SIGTERM or SIGINT. Raises as
    `run`."""
    config, tls = start.settings
    server = partial(run, config, tls=tls, plugin_settings=start.texts)
    health = Health(port="it does not listen yet")
    await run_until_signalled(server, config, partial(banner, config, tls), health=health, log=log)


async def _call_at(stop: trio.Event, on_stop: Callable[[], None]) -> None:
    await stop.wait()
    on_stop()


def _announce(text: str, config: ServerSettings, log: logging.Logger) -> None:
    print(text, flush=True)
    if config.log_file:
        for line in text.splitlines():
            log.info("%s", line)
