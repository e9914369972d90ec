"""A master's tables, and the link to a slave that has them."""

from __future__ import annotations

from functools import partial
from typing import Any

from rmq.broker.replication.sessions import HELLO, REPORT, MasterSession, SlaveSession
from rmq.broker.replication.table_replication import OFFSETS_SECONDS, TableSender
from rmq.broker.state import unlisted_topics
from rmq.store.config import BrokerRole
from tests.unit.broker.rig import Rig


def slave(**store: Any) -> Rig:
    return Rig(store={"broker_role": BrokerRole.SLAVE, **store}, broker_id=1)


class Link:
    """A master's link to one slave of ours; what has been sent and not taken lies in `wire`."""

    def __init__(self, master: Rig, to: Rig, now: float = 0.0) -> None:
        self.master, self.to, self.now = master, to, now
        broker = master.broker
        feed = TableSender(
            broker.followed.tables,
            lambda: master.store.max_physical_offset,
            unlisted=partial(unlisted_topics, broker.store, broker.topics),
            deletions=broker.topics.deletions.all,
        )
        self.session = MasterSession(master.store, now, greet=broker.replica.greeting, tables=feed.note)
        self.session.received(HELLO)
        self.session.frame(now)  # the greeting
        to.broker.followed.begin()
        self.slave = SlaveSession(
            to.broker.copied_log.append,
            lambda: to.store.max_physical_offset,
            now,
            safe=lambda: to.broker.followed.reportable(to.store.max_physical_offset),
            noted=to.broker.followed.take,
        )
        self.session.received(REPORT.pack(to.store.max_physical_offset))
        self.wire = b""

    def send(self, frames: int = 1 << 30) -> None:
        for _ in range(frames):
            frame = self.session.frame(self.now)
            if not frame:
                return
            self.wire += frame

    def take(self, count: int = 1 << 30) -> None:
        data, self.wire = self.wire[:count], self.wire[count:]
        self.slave.received(data)
        self.to.broker.followed.drop_deleted_queues()

    def run(self) -> None:
        self.now += 2 * OFFSETS_SECONDS
        self.send()
        self.take()


def queues_of(rig: Rig) -> set[str]:
    return {topic for topic, _ in rig.store.queues()}
