"""A broker: its figures in groups, its settings including those that may change at run time, and changes of
settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
from attrs import frozen

from rmq.broker.config import BrokerConfig
from rmq.config import evolve, java_key
from rmq.errors import ConfigError
from rmq.operate.several import ask_each
from rmq.store.config import StoreConfig

if TYPE_CHECKING:
    from rmq.client.admin import Admin

SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "broker": (
        "brokerVersion",
        "rmqVersion",
        "engine",
        "bootTimestamp",
        "runtime",
        "durability",
        "startAccept",
    ),
    "messages": ("put", "get", "msg"),
    "disk": (
        "commitLog",
        "consumeQueue",
        "disk",
        "dispatch",
        "remain",
        "flush",
        "earliest",
        "pageCache",
        "logAside",
    ),
    "replication": ("replication", "slaves", "controller", "setRe", "setRefuses", "inSync", "master", "ha"),
    "delay": ("scheduleMessageOffset", "timer"),
    "queues of requests": ("send", "pull", "query", "EndTransaction"),
}
"""Section -> the beginnings of its metrics; other metrics belong to the section `other`."""


@frozen
class Setting:
    """A setting of a broker. `may_change` is true if it may change at run time, None for a broker of
    RocketMQ, which accepts any change. `help` and `unit` are empty for an unknown setting."""

    key: str
    value: str
    may_change: bool | None
    help: str = ""
    unit: str = ""


@frozen
class SettingChange:
    """A change of a setting before it is made; `error` is the reason why the broker would refuse it."""

    key: str
    before: str
    after: str
    error: str = ""


@frozen
class SettingDifference:
    """A setting that differs among brokers: value -> the brokers' names."""

    key: str
    values: Mapping[str, tuple[str, ...]]


def sections(metrics: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The metrics of a broker by section, sections without metrics left out."""
    found: dict[str, dict[str, str]] = {name: {} for name in (*SECTIONS, "other")}
    for name, value in sorted(metrics.items()):
        place = next((kind for kind, heads in SECTIONS.items() if name.startswith(heads)), "other")
        found[place][name] = value
    return {name: rows for name, rows in found.items() if rows}


def _known() -> dict[str, attrs.Attribute[Any]]:
    """The settings of a broker of rmq, by RocketMQ's key."""
    return {
        java_key(field): field
        for kind in (StoreConfig, BrokerConfig)
        for field in attrs.fields(kind)
        if field.init
    }


async def settings(admin: Admin, broker: str) -> list[Setting]:
    """Read the settings of a broker, by key. Two requests. Raises ConfigError for an unknown name."""
    values = await admin.broker_config(broker)
    is_ours = "rmqVersion" in await admin.broker_runtime(broker)
    known = _known()
    return [_setting(key, value, known.get(key), is_ours=is_ours) for key, value in sorted(values.items())]


def _setting(key: str, value: str, field: attrs.Attribute[Any] | None, *, is_ours: bool) -> Setting:
    if field is None:
        return Setting(key, value, False if is_ours else None)
    metadata = field.metadata
    may_change = bool(metadata.get("runtime")) if is_ours else None
    return Setting(key, value, may_change, str(metadata.get("help") or ""), str(metadata.get("unit") or ""))


async def preview_settings(admin: Admin, broker: str, changes: Mapping[str, str]) -> list[SettingChange]:
    """Compare new values with a broker's; nothing is changed. A broker of rmq refuses all changes when one
    has an `error`."""
    present = {one.key: one for one in await settings(admin, broker)}
    known = _known()
    found = []
    for key, after in changes.items():
        now = present.get(key)
        error = "" if now is not None else "the broker has no such setting"
        if now is not None and now.may_change is not None and key in known:
            error = _refusal(key, after)
        elif now is not None and now.may_change is False:
            error = "it cannot change while the broker runs"
        found.append(SettingChange(key, now.value if now is not None else "", after, error))
    return found


def _refusal(key: str, text: str) -> str:
    """The reason why a broker of rmq would refuse a value; empty when it accepts."""
    kind = BrokerConfig if key in {java_key(field) for field in attrs.fields(BrokerConfig)} else StoreConfig
    try:
        evolve(kind(), {key: text})
    except ConfigError as error:
        return error.expected
    return ""


async def change_settings(
    admin: Admin, changes: Mapping[str, str], *, cluster: str = "", broker: str = ""
) -> list[str]:
    """Change settings of a broker, of all masters of a cluster, or of all masters; return the addresses.

    Raises ResponseError for a setting that cannot change at run time; that broker has changed nothing.
    """
    return await admin.update_broker_config(changes, cluster=cluster, broker=broker)


async def differences(admin: Admin, brokers: Mapping[str, str]) -> list[SettingDifference]:
    """Compare the settings of brokers (name -> address), by key; names, addresses and folders count too."""
    configs = await ask_each(brokers, lambda name: admin.broker_config(brokers[name]))
    keys = sorted({key for config in configs.values() for key in config})
    found = []
    for key in keys:
        values: dict[str, list[str]] = {}
        for name, config in configs.items():
            values.setdefault(config.get(key, ""), []).append(name)
        if len(values) > 1:
            found.append(SettingDifference(key, {value: tuple(names) for value, names in values.items()}))
    return found
