"""The overview of a cluster, and the history of its figures."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from attrs import frozen

from rmq.dashboard.access.audit import AuditLine
from rmq.dashboard.errors import Forbidden
from rmq.dashboard.history.history import Series
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.figures import BrokerRow
from rmq.dashboard.operations.operation import Call, operation
from rmq.errors import RmqError
from rmq.operate.diagnosis import Finding, diagnose
from rmq.operate.examination import facts_of

TOP = 8
CHANGES = 10
HOUR_MS = 3_600_000


@frozen
class GroupLag:
    """A group, and the number of messages that it has not consumed."""

    group: str
    lag: int


@frozen
class Wakeup:
    """A problem or a note: place, text, and remedy. `kind` and `subject` name the thing."""

    level: Literal["wrong", "note"]
    where: str
    what: str
    what_to_do: str
    kind: str
    subject: str


@frozen
class Overview:
    """A cluster at a glance. Rates are messages a second. `incomplete` says what this account may not see."""

    brokers: list[BrokerRow]
    in_rate: float
    out_rate: float
    in_today: int
    lag: int
    topics: int
    groups: int
    alarms: list[Wakeup]
    top_groups: list[GroupLag]
    changes: list[AuditLine]
    incomplete: str


@operation("GET", "/overview")
async def overview(call: Call) -> Overview:
    """Brokers, rates, lag, alarms and the last changes of the cluster."""
    brokers = await figures.broker_rows(call)
    look = await figures.cluster_overview(call)
    incomplete = next((one.error or "" for one in look.overview.brokers if one.is_refused), "")
    topics, groups = 0, 0
    lags: dict[str, int] = {}
    try:
        system = await figures.system_topics(call)
        configs = await figures.all_topic_configs(call)
        topics = sum(figures.topic_kind(name, None, system) in ("user", "ordered") for name in configs)
        groups = len(await figures.all_group_configs(call))
        lags = {group: one.lag for group, one in (await figures.all_progress(call)).items()}
    except RmqError as error:
        incomplete = str(error)
    facts = facts_of(look.overview, lags, asked_at=look.asked_at)
    worst = sorted(lags.items(), key=lambda row: (-row[1], row[0]))[:TOP]
    return Overview(
        brokers,
        sum(row.in_rate for row in brokers if row.is_master),
        sum(row.out_rate for row in brokers if row.is_master),
        sum(row.in_today for row in brokers if row.is_master),
        sum(lags.values()),
        topics,
        groups,
        [_alarm(one) for one in diagnose(facts)],
        [GroupLag(group, lag) for group, lag in worst if lag],
        _changes(call, CHANGES),
        incomplete,
    )


def _alarm(one: Finding) -> Wakeup:
    kind, subject = one.subject
    return Wakeup(one.level, one.where, one.what, one.what_to_do, kind, subject)


Figure = Literal[
    "cluster_in",
    "cluster_out",
    "cluster_lag",
    "broker_in",
    "broker_out",
    "broker_disk",
    "group_lag",
    "topic_in",
]


@operation("GET", "/history")
async def history(
    call: Call,
    *,
    figure: Figure,
    subject: Annotated[
        str, msgspec.Meta(description="A broker, group or topic; empty for the cluster.")
    ] = "",
    hours: Annotated[float, msgspec.Meta(gt=0, le=2160)] = 1.0,
) -> Series:
    """The points of a figure over the last hours."""
    # The caller must be able to see the subject itself: the samples were taken by the dashboard's account.
    if figure == "group_lag":
        await figures.check_group(call, subject)
        await call.held(f"may see group {subject}", lambda: figures.progress_of_group(call, subject))
    elif figure == "topic_in":
        await call.held(f"may see topic {subject}", lambda: call.admin.topic_stats(subject))
    elif figure == "cluster_lag":
        await figures.all_group_configs(call)
    else:
        seen = (await figures.cluster_overview(call)).overview
        refused = [one for one in seen.brokers if one.is_refused]
        if refused:
            raise Forbidden(f"this account may not see the figures of brokers: {refused[0].error}")
    now = call.now_ms()
    return call.history.read(call.cluster, figure, subject, now - int(hours * HOUR_MS), now)


@operation("GET", "/changes")
async def changes(call: Call, *, count: Annotated[int, msgspec.Meta(ge=1, le=500)] = 100) -> list[AuditLine]:
    """The last changes that were made by this dashboard, and those of brokers, masters and topics that its
    samples showed (`who` is empty), newest first. An account of the cluster that is no administrator sees its
    own."""
    return _changes(call, count)


def _changes(call: Call, count: int) -> list[AuditLine]:
    identity = call.identity
    own = (identity.kind, identity.name) if identity.is_confined else None
    return call.audit.last(count, call.cluster, own)
