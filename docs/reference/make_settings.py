"""Writes docs/reference/settings.md from the fields of the configuration classes.

python docs/reference/make_settings.py
"""

from __future__ import annotations

import pathlib
from typing import Any

import attrs

from rmq.broker.config import BrokerConfig
from rmq.client.config import ClientConfig
from rmq.config import Description, describe
from rmq.controller.config import ControllerConfig
from rmq.namesrv.config import NamesrvConfig
from rmq.proxy.config import ProxyConfig
from rmq.remoting.transports.tls import TlsConfig
from rmq.server.settings import ServerSettings
from rmq.store.config import StoreConfig

PAGE = pathlib.Path(__file__).with_name("settings.md")

SECTIONS: tuple[tuple[type[Any], str], ...] = (
    (ServerSettings, "All servers: name server, broker, controller"),
    (NamesrvConfig, "Name server"),
    (BrokerConfig, "Broker"),
    (StoreConfig, "Broker: the store"),
    (ControllerConfig, "Controller that is a process of its own"),
    (ProxyConfig, "Proxy"),
    (TlsConfig, "TLS, of all services"),
    (ClientConfig, "Client: the fields of `rmq.ClientConfig`"),
)

HEAD = """# Settings

Written by `make_settings.py` from the code. In a properties file the key is RocketMQ's; in TOML, in the
environment (`RMQ_LISTEN_PORT`) and with `--set` either name will do. R: may be changed while the service
runs. Sizes in bytes also take `64k`, `4m`, `1g`.
"""

SHARED = "Beside these, those of [all servers](#all-servers-name-server-broker-controller)."

NOTES: dict[type[Any], str] = {
    ServerSettings: "A server with another default, such as its port, names it again in its own table.",
    NamesrvConfig: SHARED,
    BrokerConfig: SHARED,
    ControllerConfig: SHARED,
    ProxyConfig: SHARED,
    ClientConfig: """`rmq.connect` without `config` reads them from environment variables, such as
`RMQ_SEND_TIMEOUT_MS=10000`, and so do `rmq.App`, `blocking.connect` and the commands.
They are keywords of these, too: `rmq.connect(send_timeout_ms=10_000)`, which go before the environment.
`rmq.ClientConfig.from_environment(retry_times=5)` does the same, and what is given there goes before the
environment; `rmq.ClientConfig(retry_times=5)` reads none. A value that does not fit is a `ConfigError`,
which names the variable. The cluster's address and the account are no settings: see
[which cluster, as whom](cli.md#which-cluster-as-whom).""",
}


def default_of(cls: type[Any], setting: Description) -> str:
    """The default as text, without what belongs to the machine on which this runs."""
    default: Any = attrs.fields_dict(cls)[setting.name].default
    if isinstance(default, attrs.Factory) and not default.takes_self:  # type: ignore[arg-type]
        return "(this machine's name)"
    text = setting.default.replace(str(pathlib.Path.home()), "~")
    return f"`{text}`" if text else ""


def row(cls: type[Any], setting: Description) -> str:
    """One line of the table."""
    default = " ".join(filter(None, (default_of(cls, setting), setting.unit)))
    text = setting.help.replace("|", "\\|")
    return f"| `{setting.key}` | `{setting.name}` | {default} | {'R' if setting.runtime else ''} | {text} |"


def is_shared(cls: type[Any], setting: Description) -> bool:
    """Whether the table of all servers has the row already."""
    is_server = issubclass(cls, ServerSettings) and cls is not ServerSettings
    return is_server and setting in describe(ServerSettings)


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for cls, title in SECTIONS:
        lines = [f"## {title}", "", "| key | name | default | | |", "|---|---|---|---|---|"]
        lines[1:1] = ["", NOTES[cls]] if cls in NOTES else []
        rows = [row(cls, setting) for setting in describe(cls) if not is_shared(cls, setting)]
        parts.append("\n".join([*lines, *rows]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
