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
import trio

from rmq.broker.admin.metrics_export import parts_text
from rmq.broker.broker import Broker
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import service
from rmq.config import dump_properties, from_options, is_loopback, load_all, read_file, with_changes
from rmq.controller.epochs import FILE as EPOCHS_FILE
from rmq.errors import ConfigError, PortInUse, RmqError, StoreLocked
from rmq.plugin import PluginRefused
from rmq.protocol import engine
from rmq.remoting.acceptor import raise_descriptor_limit
from rmq.remoting.loop import bare_errors
from rmq.remoting.tls import TlsConfig, with_file
from rmq.server.health import Health
from rmq.server.http import tell_supervisor
from rmq.server.log_limit import start_log
from rmq.server.process import return_large_blocks
from rmq.server.profile import applied, exposure, protect_files
from rmq.server.signals import PARENT, obey, stop_without_parent
from rmq.store.config import BrokerRole, StoreConfig

if TYPE_CHECKING:
    from rmq.broker.runtime.sibling_processes import Sibling

EXIT_FAILED: Final = 1
EXIT_SETTINGS: Final = 2
EXIT_TAKEN: Final = 3

log = logging.getLogger("rmq.broker")

_EPILOG = """exit status: 0 after SIGTERM or SIGINT, 2 for wrong settings, 3 when the port or the store folder
belongs to another process, 1 for any other failure. Settings come from the file, then from environment
variables RMQ_<NAME>, then from -n and --set."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; the letters are those of RocketMQ's mqbroker."""
    parser = argparse.ArgumentParser("python -m rmq.broker", description="RocketMQ broker", epilog=_EPILOG)
    parser.add_argument("-c", "--configFile", dest="file", help="broker.conf, or a TOML file with settings")
    parser.add_argument("-n", "--namesrvAddr", help="name servers to register at, host:port;host:port")
    parser.add_argument("-p", "--printConfigItem", action="store_true", help="print all settings and end")
    parser.add_argument("-m", "--printImportantConfig", action="store_true", help="print the important ones")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting, e.g. listenPort=10921"
    )
    return parser.parse_args(arguments)


Settings = tuple[BrokerConfig, StoreConfig, TlsConfig]
_CLASSES: Final = (BrokerConfig, StoreConfig, TlsConfig)


def settings(options: argparse.Namespace) -> Settings:
    """The settings that the options ask for. Raises ConfigError."""
    given = from_options(options.set)
    if options.namesrvAddr:
        given["namesrv_addr"] = options.namesrvAddr
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
    """Where a broker without a configuration file keeps the settings that are changed at run time."""
    return str(pathlib.Path(store_config.store_path_root_dir).expanduser() / "config" / "broker.properties")


def durability(store_config: StoreConfig) -> str:
    """What an acknowledged message survives, in words."""
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
    """What is said once the broker answers. `also`: what else it listens for, and where; `health`: what it
    may lack."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; returns the exit status."""
    start_log()
    options = parse(arguments)
    try:
        engine.check()
        loaded = settings(options)
        if options.printConfigItem or options.printImportantConfig:
            print(dump_properties(*loaded, important=not options.printConfigItem), end="")
            return 0
        protect_files(loaded[0], loaded[1].store_path_root_dir)
        texts = {entry.key: str(entry.value) for entry in read_file(options.file)} if options.file else {}
        start_log(loaded[0])
        trio.run(_serve, options, loaded, texts)
    except (ConfigError, PluginRefused) as error:
        return _failed(error, EXIT_SETTINGS)
    except (PortInUse, StoreLocked) as error:
        return _failed(error, EXIT_TAKEN)
    except (RmqError, OSError) as error:
        return _failed(error, EXIT_FAILED)
    return 0


async def _serve(options: argparse.Namespace, loaded: Settings, texts: dict[str, str]) -> None:
    """Be a broker until SIGTERM or SIGINT. Raises as `run`."""
    config, store_config, tls = loaded
    raise_descriptor_limit()
    return_large_blocks()
    stop, health, also = trio.Event(), Health(store="it is being opened"), dict[str, str]()
    brokers: list[Broker] = []

    sibling = _sibling()

    def opened(broker: Broker) -> None:
        brokers[:] = [broker]  # with controllers it is opened anew whenever its role changes
        if sibling is not None:
            sibling.join(broker)

    task = partial(
        _way_of_running(config, store_config),
        config,
        store_config,
        tls=tls,
        plugin_settings=texts,
        stop=stop,
        also=also,
        health=health,
        on_opened=opened,
    )

    def reload() -> None:
        for broker in brokers:
            _reload(broker, options)

    def parts() -> str:
        return "".join(f"{parts_text(broker)}\n" for broker in brokers) + health.text()

    with bare_errors():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(obey, config, stop, reload=reload, parts=parts))
            nursery.start_soon(tell_supervisor, health)
            nursery.start_soon(stop_without_parent, stop)
            if sibling is not None:
                nursery.start_soon(sibling.run)
            async with trio.open_nursery() as inner:
                addresses = await inner.start(task)
                if addresses:
                    calm_collector()
                    text = banner(config, store_config, tls, addresses, also, health=health)
                    print(text, flush=True)
                    if config.log_file:
                        for line in text.splitlines():
                            log.info("%s", line)
            nursery.cancel_scope.cancel()


def _way_of_running(config: BrokerConfig, store_config: StoreConfig) -> Callable[..., Awaitable[None]]:
    """The service itself where no controllers have or had a say, who take 20 ms to load."""
    path = pathlib.Path(store_config.store_path_root_dir) / EPOCHS_FILE
    if not config.controller_addr and not path.exists():
        return service.run
    from rmq.broker.runtime import failover_service

    return failover_service.run


def _sibling() -> Sibling | None:
    """The line to the other brokers of this service, where it has several."""
    if not os.environ.get(PARENT):
        return None
    from rmq.broker.runtime.sibling_processes import Sibling, line_of

    line = line_of(os.environ)
    return None if line is None else Sibling(line)


def _reload(broker: Broker, options: argparse.Namespace) -> None:
    """Take what the settings say now: what may change at run time, all or none; of others the log says that
    they need a restart."""
    try:
        wanted, wanted_store, _ = settings(options)
        config = with_changes(broker.settings.broker, wanted)
        store_config = with_changes(broker.settings.store, wanted_store)
    except (ConfigError, OSError) as error:
        log.error("the settings are not taken, all stay as they are: %s", error)
        return
    broker.settings.replace(config, store_config)


def calm_collector() -> None:
    """Let the collector of cycles look less often: requests leave none, and its looking costs them 5 %."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _failed(error: Exception, status: int) -> int:
    print(f"rmq broker: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
