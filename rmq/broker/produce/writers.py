"""Writers: the parts of a broker that store messages, put together."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from rmq.broker.delay.delay_levels import Schedule
from rmq.broker.delay.recall import Recall
from rmq.broker.delay.timers import Timers
from rmq.broker.membership.check_back import CheckBack
from rmq.broker.produce.acks import Acknowledgement
from rmq.broker.produce.admission import FlowControl
from rmq.broker.produce.append import Append, OwnWrites
from rmq.broker.produce.delivery_records import DeliveryRecords
from rmq.broker.produce.idempotent import IdempotentSends
from rmq.broker.produce.send import Send
from rmq.broker.transactions import Transactions

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.role import Role
    from rmq.broker.state import Tables
    from rmq.broker.tables.histograms import Histograms
    from rmq.broker.wakeups import Wakeups
    from rmq.plugin import Hooks, Peer
    from rmq.remoting.connection import Connection
    from rmq.store.store import Store


class Writers(NamedTuple):
    """The parts that store messages, and the parts that decide when to answer their senders."""

    own_writes: OwnWrites
    schedule: Schedule
    timers: Timers
    acknowledgement: Acknowledgement
    transactions: Transactions
    flow: FlowControl
    append: Append
    send: Send
    idempotent: IdempotentSends
    recall: Recall
    delivery_records: DeliveryRecords


def make_writers(
    settings: Settings,
    store: Store,
    tables: Tables,
    role: Role,
    *,
    clock: Callable[[], float],
    chance: Random,
    histograms: Histograms,
    wake: Wakeups,
    hooks: Callable[[], Hooks],
    on_deadline: Callable[[float], None],
    commit: Callable[[], None],
    commit_pending: Callable[[], None],
    sender: Callable[[], Connection | None],
) -> Writers:
    """Put the writers together. `commit()` commits the pending messages and raises StoreError,
    `commit_pending()` reports a failure to their senders only; `sender()` is the connection whose requests
    are handled now; `clock` is in seconds."""

    def may_act_for(peer: Peer, account: str) -> bool:
        return hooks().may_act_for(peer, account)

    def may_publish(peer: Peer, topic: str) -> bool:
        return hooks().may_publish(peer, topic)

    topics, offsets = tables.topics, tables.offsets
    own_writes = OwnWrites(store, topics, clock)
    put = own_writes.put
    schedule = Schedule(store.config.message_delay_level, store, commit, wake.schedule, clock, put)
    timers = Timers(store, commit, on_earlier=wake.schedule, put=put)
    acknowledgement = Acknowledgement(
        settings,
        store,
        topics,
        role,
        clock=clock,
        histograms=histograms,
        on_deadline=on_deadline,
        on_sync_needed=wake.flush,
    )
    transactions = Transactions(
        settings,
        store,
        offsets,
        host=store.store_host,
        ask=CheckBack(tables.clients, chance, hooks).ask,
        may_act_for=may_act_for,
        may_publish=may_publish,
        put=put,
        commit=commit,
        answer=acknowledgement.answer,
    )
    flow = FlowControl(settings, store, acknowledgement, clock, role, sender)
    append = Append(
        settings,
        store,
        tables,
        own=own_writes,
        acknowledgement=acknowledgement,
        timers=timers,
        prepare=transactions.prepare,
        gate=flow.refusal,
        chance=chance,
        keeps_records=lambda: bool(hooks().stored),
    )
    send = Send(
        settings,
        store,
        tables,
        append=append,
        acknowledgement=acknowledgement,
        timers=timers,
        chance=chance,
    )
    idempotent = IdempotentSends(
        settings,
        store,
        acknowledgement,
        send=send.send,
        commit_pending=commit_pending,
        commit=commit,
    )
    recall = Recall(
        settings,
        timers=timers,
        topics=topics,
        store_host=store.store_host,
        put=send.put,
        may_act_for=may_act_for,
    )
    return Writers(
        own_writes,
        schedule,
        timers,
        acknowledgement,
        transactions,
        flow,
        append,
        send,
        idempotent,
        recall,
        DeliveryRecords(store, topics, append, acknowledgement),
    )
