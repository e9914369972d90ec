"""python -m rmq.broker: a broker as a program of its own."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import pathlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from rmq.broker.admin.metrics_export import parts_text
from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service
from rmq.config import is_loopback, load_all, read_file, with_changes
from rmq.controller.epochs import FILE as EPOCHS_FILE
from rmq.errors import ConfigError
from rmq.protocol import engine
from rmq.remoting.transports.tls import TlsConfig, with_file
from rmq.server.health import Health
from rmq.server.main import Program, Start, given_settings, run_until_signalled
from rmq.server.profile import applied, exposure
from rmq.server.signals import PARENT
from rmq.store.config import BrokerRole, StoreConfig

if TYPE_CHECKING:
    from rmq.broker.runtime.sibling_processes import Sibling

log = logging.getLogger("rmq.broker")

Settings = tuple[BrokerConfig, StoreConfig, TlsConfig]
_CLASSES: Final = (BrokerConfig, StoreConfig, TlsConfig)
_SELDOM: Final = (20_000, 20, 20)
"""Thresholds of the collector of cycles: new objects before a run, and runs on younger objects before one on
older objects."""


def settings(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for. Raises ConfigError."""
    given = given_settings(options, "namesrv_addr")
    file = options.file
    config, store_config, tls = load_all(_CLASSES, file, given)
    kept = config.config_store_path or file or _kept_file(store_config)
    if kept != file and os.path.exists(kept):  # settings that were changed while the broker ran
        config, store_config, tls = load_all(_CLASSES, file, given, kept=kept)
    if not config.config_store_path:
        config = attrs.evolve(config, config_store_path=kept)
    config, tls = applied(config, with_file(tls))
    return config, store_config, tls


def _kept_file(store_config: StoreConfig) -> str:
    """The path at which a broker without a configuration file keeps the settings that are changed at run
    time."""
    return str(pathlib.Path(store_config.store_path_root_dir).expanduser() / "config" / "broker.properties")


def durability(store_config: StoreConfig) -> str:
    """The failures that an acknowledged message survives, in words."""
    level = store_config.level
    if level == "replicated":
        return f"{level}: acknowledged when on disk and with a slave (SYNC_FLUSH, SYNC_MASTER)"
    if level == "replicated in memory":
        return f"{level}: acknowledged when a slave has it, not yet on disk (SYNC_MASTER, ASYNC_FLUSH)"
    if level == "disk":
        return f"{level}: acknowledged when the message is on disk (SYNC_FLUSH)"
    seconds = store_config.flush_interval_commit_log / 1000
    return (
        "memory: acknowledged when the operating system has the message; it survives a crash of the broker, "
        f"and of the machine after {seconds:g} s (ASYNC_FLUSH)"
    )


def banner(
    config: BrokerConfig,
    store_config: StoreConfig,
    tls: TlsConfig,
    addresses: Sequence[str],
    also: Mapping[str, str] | None = None,
    health: Health | None = None,
) -> str:
    """Announce that the broker serves. `also`: further listeners and their addresses; `health`: the parts
    that it may lack."""
    lacks = "; ".join(f"{part}: {why}" for part, why in health.lacking.items()) if health else ""
    state = f"answers, but is NOT READY ({lacks})" if lacks else "is ready"
    port = addresses[0].rpartition(":")[2]
    lines = [
        f"rmq broker {config.broker_name} of {config.broker_cluster_name} {state}",
        f"  listens on    {', '.join(addresses)}",
        f"  clients use   {config.address(int(port))}",
        *(f"  {what:<13} {where}" for what, where in (also or {}).items()),
        f"  name servers  {config.namesrv_addr or 'none (-n HOST:9876 names one)'}",
        f"  profile       {config.profile}",
        f"  durability    {durability(store_config)}",
        f"  store         {store_config.store_path_root_dir}",
        f"  engine        {engine.shown()}",
    ]
    if not is_loopback(config.bind_host):
        hands_out = config.ha_enable and store_config.broker_role is not BrokerRole.SLAVE
        copy = "copy the whole log from the HA port" if hands_out else ""
        secret = config.ha_secret_file or config.cluster_secret_file
        lines += exposure(config, tls, secret=secret, unguarded=copy)
    return "\n".join(lines)


def _checked_settings(options: argparse.Namespace) -> Settings:
    engine.check()
    return settings(options)


async def serve(start: Start) -> None:
    """Be a broker until SIGTERM or SIGINT. Raises as `service.run`."""
    gc.set_threshold(*_SELDOM)  # a store with many queues makes a million objects while it is opened
    config, store_config, tls = start.settings
    brokers: list[Broker] = []
    sibling = _sibling()

    def opened(broker: Broker) -> None:
        brokers[:] = [broker]  # with controllers it is opened again at each change of its role
        if sibling is not None:
            sibling.join(broker)

    def reload() -> None:
        for broker in brokers:
            _reload(broker, start.options)

    way = _way_of_running(config, store_config)
    await run_until_signalled(
        partial(way, config, store_config, tls=tls, plugin_settings=start.texts, on_opened=opened),
        config,
        partial(banner, config, store_config, tls),
        health=Health(store="it is being opened"),
        log=log,
        reload=reload,
        parts=lambda: "".join(f"{parts_text(broker)}\n" for broker in brokers),
        beside=[] if sibling is None else [sibling.run],
        on_started=lambda: calm_collector(),
        on_stop=lambda: stop_collector(),
    )


def _way_of_running(config: BrokerConfig, store_config: StoreConfig) -> Callable[..., Awaitable[None]]:
    """The service without controllers, now or before. The service with controllers takes 20 ms to load."""
    path = pathlib.Path(store_config.store_path_root_dir) / EPOCHS_FILE
    if not config.controller_addr and not path.exists():
        return service.run
    from rmq.broker.runtime import failover_service

    return failover_service.run


def _sibling() -> Sibling | None:
    """The channel to the other brokers of this service, if it has several."""
    if not os.environ.get(PARENT):
        return None
    from rmq.broker.runtime.sibling_processes import Sibling, line_of

    line = line_of(os.environ)
    return None if line is None else Sibling(line)


def _reload(broker: Broker, options: argparse.Namespace) -> None:
    """Read the settings again and apply the changed ones, all or none. The log names settings that need a
    restart."""
    try:
        if options.file and not read_file(options.file):
            # Half-written files are mostly empty, and the defaults remove messages that were to stay.
            raise ConfigError(
                "configuration file", options.file, "at least one setting while the broker runs"
            )
        requested, requested_store, _ = settings(options)
        config = with_changes(broker.settings.broker, requested)
        store_config = with_changes(broker.settings.store, requested_store)
    except (ConfigError, OSError) as error:
        log.error("the settings are refused, nothing changed: %s", error)
        return
    broker.settings.replace(config, store_config)


def calm_collector() -> None:
    """Let the collector of cycles run less often: requests leave no cycles, and its scans cost 5 %."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_SELDOM)


def stop_collector() -> None:
    """Switch the collector of cycles off: the process is about to end. While thousands of connections end,
    and once more at the exit of the interpreter, its scans took twice as long as all the rest."""
    gc.freeze()
    gc.disable()


PROGRAM: Final = Program(
    module="rmq.broker",
    title="broker",
    description="RocketMQ broker",
    example="listenPort=10921",
    settings=_checked_settings,
    serve=serve,
    folder=lambda settings: str(settings[1].store_path_root_dir),
    taken_when="when the port or the store folder belongs to another process",
    name_servers="name servers to register at, host:port;host:port",
)
parse, main = PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    sys.exit(main())
