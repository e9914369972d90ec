"""Brokers: figures, settings and their changes, connections, write permission, cleaning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Literal

import msgspec
from attrs import frozen

from rmq.broker.config import BrokerConfig
from rmq.config import describe
from rmq.dashboard.access.hidden import is_secret, shown
from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import BadRequest, UnknownName
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.figures import BrokerRow
from rmq.dashboard.operations.operation import Call, operation
from rmq.errors import RmqError, SystemFailure
from rmq.operate.members import by_version, connections
from rmq.protocol.codes import MASTER_ID
from rmq.store.config import StoreConfig


@operation("GET", "/brokers")
async def brokers(call: Call) -> list[BrokerRow]:
    """All brokers, masters and slaves, with their figures."""
    return await figures.broker_rows(call)


@frozen
class Setting:
    """A setting. `can_change`: at run time; None where that is not known, as of Java's brokers. `is_secret`:
    the value is never shown."""

    name: str
    value: str
    can_change: bool | None
    help: str
    is_secret: bool


@frozen
class ClientCount:
    """Connected clients of one language and version."""

    language: str
    version: str
    clients: int


@frozen
class Connected:
    """A connected client, once for each of its groups."""

    kind: str
    group: str
    client_id: str
    address: str
    language: str
    version: str


@frozen
class BrokerDetail:
    """All about a broker. `metrics` are under RocketMQ's names; `incomplete` says what could not be read."""

    row: BrokerRow
    metrics: dict[str, str]
    settings: list[Setting]
    versions: list[ClientCount]
    clients: list[Connected]
    incomplete: str


@operation("GET", "/brokers/{broker}")
async def broker(
    call: Call,
    *,
    broker: str,
    id: Annotated[int, msgspec.Meta(ge=0, description="0: the master.")] = 0,
) -> BrokerDetail:
    """A broker: figures, settings, and its connections by language and version."""
    row = await _row(call, broker, id)
    metrics = await call.admin.broker_runtime(row.address)
    incomplete, settings, found = "", {}, []
    try:
        settings = await call.admin.broker_config(row.address)
        if row.is_master:
            found = await connections(call.admin, row.address)
    except RmqError as error:
        incomplete = str(error)
    known = KNOWN if "rmqVersion" in metrics else {}
    return BrokerDetail(
        row,
        metrics,
        [_setting(name, value, known) for name, value in sorted(settings.items())],
        [ClientCount(*key, count) for key, count in by_version(found).items()],
        [
            Connected(one.kind, one.group, one.client_id, one.address, one.language, one.version)
            for one in found
        ],
        incomplete,
    )


def _setting(name: str, value: str, known: Mapping[str, tuple[bool, str]]) -> Setting:
    can_change, text = known.get(name, (None, ""))
    return Setting(name, shown(name, value), can_change, text, is_secret(name))


async def _row(call: Call, broker: str, number: int) -> BrokerRow:
    rows = await figures.broker_rows(call)
    for row in rows:
        if (row.name, row.id) == (broker, number):
            return row
    names = ", ".join(sorted({row.name for row in rows})) or "none"
    raise UnknownName(f"no broker {broker} with the id {number} is registered; brokers are {names}")


def _known() -> dict[str, tuple[bool, str]]:
    """Setting -> whether it changes at run time, and its help; of our brokers."""
    return {
        one.key: (one.runtime, one.help) for config in (BrokerConfig, StoreConfig) for one in describe(config)
    }


KNOWN = _known()


@frozen
class Changed:
    """The servers that carried out a change."""

    servers: list[str]


@operation("POST", "/brokers/{broker}/settings", Role.ADMIN)
async def change_setting(
    call: Call,
    *,
    broker: str,
    name: Annotated[str, msgspec.Meta(min_length=1)],
    value: str,
    id: Annotated[int, msgspec.Meta(ge=0)] = 0,
) -> Changed:
    """Change one setting of a broker until its next start (Java's brokers write it into their file)."""
    row = await _row(call, broker, id)
    if name not in await call.admin.broker_config(row.address):
        raise UnknownName(f"{broker} has no setting {name}")
    try:
        return Changed(await call.admin.update_broker_config({name: value}, broker=row.address))
    except SystemFailure as error:  # the value, or a setting that is fixed while the broker runs
        raise BadRequest(f"{name} = {shown(name, value)}: {error.remark}") from None


@operation("POST", "/brokers/{broker}/writing", Role.ADMIN)
async def set_writing(call: Call, *, broker: str, allowed: bool) -> Changed:
    """Take the write permission from all topics of a broker at the name servers, or give it back."""
    await _row(call, broker, MASTER_ID)
    act = call.admin.add_write_perm if allowed else call.admin.wipe_write_perm
    return Changed(list(await act(broker)))


@operation("POST", "/brokers/{broker}/clean", Role.ADMIN)
async def clean_broker(call: Call, *, broker: str, what: Literal["queues", "topics", "logs"]) -> Changed:
    """Remove files that are not needed: of emptied queues, of deleted topics, or expired logs."""
    await _row(call, broker, MASTER_ID)
    return Changed(await _cleaning(call, what)(broker=broker))


@operation("POST", "/clean", Role.ADMIN, is_long=True)
async def clean_cluster(call: Call, *, what: Literal["queues", "topics", "logs"]) -> Changed:
    """Remove files that are not needed at all masters, one after the other."""
    names = list(await figures.masters(call))
    done: list[str] = []
    for number, name in enumerate(names):
        call.progress.report(number, len(names), name)
        done += await _cleaning(call, what)(broker=name)
    call.progress.report(len(names), len(names))
    return Changed(done)


def _cleaning(call: Call, what: str) -> Callable[..., Awaitable[list[str]]]:
    return {
        "queues": call.admin.clean_expired_queues,
        "topics": call.admin.clean_unused_topics,
        "logs": call.admin.delete_expired_logs,
    }[what]
