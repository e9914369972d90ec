"""Random walks of per-message delivery with old handles: acknowledgements, nacks, extensions, dead letters,
resets, kills, failed writes and a wall clock that is set, in any order and several in one turn.

Checked after each step: no message that was acknowledged comes again, order by message group, and the number
of messages in flight; in the end: each message is acknowledged or one dead letter.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from rmq.broker.consume.per_message import ledger
from rmq.errors import ResponseError
from rmq.message import dlq_topic
from rmq.protocol.bodies import SubscriptionGroupConfig
from tests.unit.broker.rig import Rig
from tests.unit.broker.taking import GROUP, TOPIC, Consumer, Taken, restarted, step

QUEUES = 2
STEPS = 250
Place = tuple[int, int]
"""A queue and an offset: the body of a message."""


class Walk:
    def __init__(self, seed: int, *, in_order: bool, resets: bool) -> None:
        self.chance = Random(seed)
        self.in_order, self.resets = in_order, resets
        self.rig = Rig()
        self.rig.topic(TOPIC, QUEUES)
        self.retries = self.chance.choice([0, 1, 3, 16])
        self.keys: dict[Place, str] = {}
        self.finished: set[Place] = set()
        self.handles: list[tuple[Taken, Place]] = []
        self.consumers: list[Consumer] = []
        self.start()
        for _ in range(40):
            self.put()

    def start(self) -> None:
        self.rig.groups.update(SubscriptionGroupConfig(GROUP, retry_max_times=self.retries))
        self.consumers = [Consumer(self.rig) for _ in range(3)]

    # ---- steps ----

    def put(self) -> None:
        queue_id = self.chance.randrange(QUEUES)
        offset, key = self.rig.store.max_offset(TOPIC, queue_id), f"k{self.chance.randrange(3)}"
        self.rig.put(TOPIC, queue_id, b"%d:%d" % (queue_id, offset), properties={"__SHARDINGKEY": key})
        self.keys[queue_id, offset] = key
        self.rig.broker.deliveries.arrived(TOPIC)

    def take(self, consumer: Consumer, count: int, seconds: float, queue_id: int = -1) -> list[Taken]:
        in_order = self.in_order or self.chance.random() < 0.2  # members may differ
        found = consumer.take(count, seconds, in_order=in_order, queue_id=queue_id)
        for taken in found:
            place = place_of(taken.body)
            assert place not in self.finished, "a message comes after its acknowledgement was answered"
            earlier = [(place[0], offset) for offset in range(place[1])]
            if self.in_order:
                line = {one for one in earlier if self.keys[one] == self.keys[place]}
                assert line <= self.finished | self.dead(), "a message overtakes another of its group"
            self.handles.append((taken, place))
        return found

    def ack(self, consumer: Consumer, some: list[tuple[Taken, Place]]) -> None:
        for (_, place), outcome in zip(some, consumer.ack(*(taken for taken, _ in some)), strict=True):
            if outcome is None:
                self.finished.add(place)

    def forward(self, taken: Taken) -> None:
        """Make a dead letter, by one handle, by the same twice, or by two requests."""
        times, requests = self.chance.choice([(1, 1), (2, 1), (1, 2)])
        for _ in range(requests):
            self.rig.broker.deliveries.dead_letter(
                GROUP, TOPIC, [taken.handle] * times, lambda outcomes: None
            )
        self.rig.broker.group_commit.commit_pending()

    def kill(self) -> None:
        now_ms = self.rig.now_ms + self.chance.choice([0, 10, -5_000])
        self.rig = Rig(disk=self.rig.disk.copy(), now_ms=now_ms, seconds=self.rig.seconds)
        self.start()

    def reset(self) -> None:
        queue_id = self.chance.randrange(QUEUES)
        base = self.rig.offsets.get(GROUP, TOPIC, queue_id)
        if base >= 0:
            to = self.chance.choice([0, base, max(0, base - 2)])
            self.rig.offsets.put(GROUP, TOPIC, {queue_id: to})
            self.rig.broker.group_commit.commit_pending()
            self.finished = {one for one in self.finished if one[0] != queue_id or one[1] < to}
            self.handles = [one for one in self.handles if one[1][0] != queue_id]

    def fail_write(self, consumer: Consumer) -> None:
        self.rig.disk.fail("write", "commitlog", times=1)
        self.ack(consumer, self.chance.sample(self.handles[-30:], min(1, len(self.handles))))
        self.rig.disk.heal()

    def close(self, at: int, *, at_once: bool) -> None:
        consumer = self.consumers[at]
        if at_once:
            consumer.close()
        else:
            consumer.wire.close()
            self.rig.broker.deliveries.on_close(consumer.wire)
        self.consumers[at] = Consumer(self.rig)

    def one(self) -> None:
        chance, at = self.chance, self.chance.randrange(3)
        consumer, recent = self.consumers[at], self.handles[-30:]
        what = chance.choices(
            (
                "take",
                "ack",
                "nack",
                "extend",
                "forward",
                "pass",
                "close",
                "clock",
                "kill",
                "put",
                "fail",
                "reset",
            ),
            (25, 20, 10, 5, 4, 11, 6, 3, 3, 3, 2, 1.5 * self.resets),
        )[0]
        if what == "take":
            self.take(
                consumer, chance.choice([1, 2, 5, 32]), chance.choice([1, 5, 30]), chance.choice([-1, 0])
            )
        elif what == "pass":
            step(self.rig, chance.choice([0, 0.5, 2, 10]))
        elif what == "close":
            self.close(at, at_once=chance.random() < 0.5)
        elif what == "clock":
            self.rig.now_ms += chance.choice([-100_000, 100_000, -1_000, 5_000])
        elif what == "kill":
            self.kill()
        elif what == "put":
            self.put()
        elif what == "fail":
            self.fail_write(consumer)
        elif what == "reset":
            self.reset()
        elif recent:
            self.with_handles(what, consumer, recent)

    def with_handles(self, what: str, consumer: Consumer, recent: list[tuple[Taken, Place]]) -> None:
        chance, (taken, _) = self.chance, self.chance.choice(recent)
        if what == "ack":
            self.ack(consumer, chance.sample(recent, min(len(recent), chance.randrange(1, 4))))
        elif what == "nack":
            consumer.nack(taken, after=chance.choice([0, 0.5, 3, None]), counts=chance.random() < 0.8)
        elif what == "forward":
            self.forward(taken)
        else:
            with suppress(ResponseError):
                consumer.extend(taken, chance.choice([0.001, 1, 20]))

    # ---- what holds ----

    def letters(self) -> list[Place]:
        topic = dlq_topic(GROUP)
        known = self.rig.topics.get(topic) is not None
        return [place_of(one.body) for one in self.rig.messages(topic)] if known else []

    def dead(self) -> set[Place]:
        return set(self.letters())

    def check_counts(self) -> None:
        deliveries: Any = self.rig.broker.deliveries
        self.rig.broker.group_commit.commit_pending()
        topics = deliveries._table.values()
        for topic in topics:
            held = sum(batch.count for queue in topic.queues.values() for batch in queue.batches())
            assert topic.out == held
        assert deliveries.out == sum(topic.out for topic in topics)

    def finish(self) -> None:
        """Acknowledge all that comes, until nothing is left."""
        for _ in range(400):
            found = self.take(self.consumers[0], 32, 5)
            self.ack(self.consumers[0], [(taken, place_of(taken.body)) for taken in found])
            step(self.rig, 5)
            if self.keys.keys() <= self.finished | self.dead() and not self.rig.broker.deliveries.out:
                break
            if not found:
                self.rig.let_pass(4_000_000)
        self.check_counts()
        assert self.keys.keys() <= self.finished | self.dead()
        assert self.rig.broker.deliveries.out == 0
        assert self.resets or len(self.letters()) == len(self.dead())
        assert self.resets or Consumer(restarted(self.rig)).take(in_order=self.in_order) == []


def place_of(body: bytes) -> Place:
    queue_id, offset = map(int, body.split(b":"))
    return queue_id, offset


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("resets", [False, True])
def test_a_walk(seed: int, in_order: bool, resets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "SNAPSHOT_RECORDS", 30)
    walk = Walk(seed, in_order=in_order, resets=resets)
    for _ in range(STEPS):
        walk.one()
        walk.check_counts()
    walk.finish()
