"""AdminParts: the parts of a broker that serve its operators and do its housekeeping, put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq.broker.admin.assignments import Assignments
from rmq.broker.admin.config_requests import ConfigRequests
from rmq.broker.admin.consume_stats import ConsumeProgress, SlicedAnswers
from rmq.broker.admin.expiry import Expiry
from rmq.broker.admin.query import Query
from rmq.broker.admin.topic_retention import TopicRetention
from rmq.broker.admin.topics_and_groups import Admin

if TYPE_CHECKING:
    from rmq.broker.admin.pending_changes import PendingChanges
    from rmq.broker.config import Settings
    from rmq.broker.role import Role
    from rmq.broker.state import Tables
    from rmq.broker.wakeups import Wakeups
    from rmq.protocol.command import Command
    from rmq.server.deferred import DeferredSaves
    from rmq.store.store import Store


class AdminParts(NamedTuple):
    """The parts that serve operators, and expiry and retention."""

    query: Query
    admin: Admin
    config_requests: ConfigRequests
    assignments: Assignments
    sliced_answers: SlicedAnswers
    progress: ConsumeProgress
    expiry: Expiry
    topic_retention: TopicRetention


def make_admin_parts(
    settings: Settings,
    store: Store,
    tables: Tables,
    role: Role,
    *,
    changes: PendingChanges,
    deferred_saves: DeferredSaves,
    gauges: Callable[[], Mapping[str, str]],
    delay_offsets: Callable[[], Mapping[int, int]],
    commit_pending: Callable[[], None],
    on_deleted: Callable[[str, Collection[int]], None],
    respond: Callable[[Command, Command, Any], None],
    is_slave: Callable[[], bool],
    wake: Wakeups,
    clock: Callable[[], float],
) -> AdminParts:
    """Put the parts together. `gauges()` are more rows of the runtime metrics, `on_deleted(topic, queue_ids)`
    is called for a deleted topic, `clock` is in seconds."""
    sliced_answers = SlicedAnswers(wake.sliced_answers, settings.holders_of)
    return AdminParts(
        Query(store, tables.clients, tables.filters, role=role),
        Admin(
            settings,
            store,
            tables,
            role=role,
            changes=changes,
            deferred_saves=deferred_saves,
            commit_pending=commit_pending,
            gauges=gauges,
            delay_offsets=delay_offsets,
            on_deleted=on_deleted,
            wake_clean=wake.clean,
        ),
        ConfigRequests(settings, tables, changes),
        Assignments(settings, tables, tables.clients, clock=clock, respond=respond, on_pending=wake.routes),
        sliced_answers,
        ConsumeProgress(settings, store, tables, sliced_answers),
        Expiry(settings, store, tables),
        TopicRetention(settings, store, tables.topics, tables.offsets, role=role, is_slave=is_slave),
    )
