"""python -m rmq.controller: a controller as a program of its own."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from rmq.config import dump_properties, from_options, is_loopback, load_all
from rmq.controller.config import ControllerConfig, check_reach
from rmq.controller.service import run_until_signalled
from rmq.errors import ConfigError, PortInUse, RmqError, StoreLocked
from rmq.plugin import PluginRefused
from rmq.remoting.tls import TlsConfig, with_file
from rmq.server.log_limit import start_log
from rmq.server.profile import applied, exposure, protect_files

EXIT_SETTINGS: Final = 2
EXIT_LISTEN: Final = 3
EXIT_FAILED: Final = 1

log = logging.getLogger("rmq.controller")

_EPILOG = """exit status: 0 after SIGTERM or SIGINT, 2 for wrong settings, 3 when it cannot listen or its
folder is taken, 1 for any other failure. Settings come from the file, then from environment variables
RMQ_<NAME>, then from --set."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; the letters are those of the name server's."""
    parser = argparse.ArgumentParser(
        "python -m rmq.controller", description="Elects the masters of broker sets", epilog=_EPILOG
    )
    parser.add_argument("-c", "--configFile", dest="file", help="properties or TOML file with settings")
    parser.add_argument("-p", "--printConfigItem", action="store_true", help="print all settings and end")
    parser.add_argument("-m", "--printImportantConfig", action="store_true", help="print the important ones")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, e.g. listenPort=9879"
    )
    return parser.parse_args(arguments)


def settings(options: argparse.Namespace) -> tuple[ControllerConfig, TlsConfig]:
    """The settings that the options ask for. Raises ConfigError."""
    config, tls = load_all((ControllerConfig, TlsConfig), options.file, from_options(options.set))
    if options.file and not config.config_store_path:
        config = attrs.evolve(config, config_store_path=options.file)
    config, tls = applied(config, with_file(tls))
    check_reach(config, tls)
    return config, tls


def banner(
    config: ControllerConfig, tls: TlsConfig, addresses: Sequence[str], also: Mapping[str, str] | None = None
) -> str:
    """What is said once the controller listens. `also`: what else it listens for, and where."""
    lines = [f"rmq controller listens on {', '.join(addresses)}"]
    lines += [f"  {what:<13} {where}" for what, where in (also or {}).items()]
    if not is_loopback(config.bind_address):
        unguarded = "register brokers and elect masters"
        lines += exposure(config, tls, secret=config.cluster_secret_file, unguarded=unguarded)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; returns the exit status."""
    start_log()
    options = parse(arguments)
    try:
        config, tls = settings(options)
        if options.printConfigItem or options.printImportantConfig:
            print(dump_properties(config, tls, important=not options.printConfigItem), end="")
            return 0
        protect_files(config, config.controller_path)
        start_log(config)

        def announce(addresses: Sequence[str], also: Mapping[str, str]) -> None:
            text = banner(config, tls, addresses, also)
            print(text, flush=True)
            if config.log_file:
                for line in text.splitlines():
                    log.info("%s", line)

        run_until_signalled(config, tls, announce)
    except (ConfigError, PluginRefused) as error:
        return _failed(error, EXIT_SETTINGS)
    except (PortInUse, StoreLocked, OSError) as error:
        return _failed(error, EXIT_LISTEN)
    except RmqError as error:
        return _failed(error, EXIT_FAILED)
    return 0


def _failed(error: Exception, status: int) -> int:
    print(f"rmq controller: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
