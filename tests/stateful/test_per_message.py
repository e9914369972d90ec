"""Per-message delivery against a model: whatever is taken, acknowledged, lost or restarted, in any order.

The model knows each message's state. Checked: an acknowledged message never comes again, a leased one comes
to nobody else, the others come at their time with their attempts counted, in order by message group where
that is asked for, and in the end each message is finished or a dead letter.
"""

from __future__ import annotations

from typing import Any

from attrs import define, evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmq.broker.consume.per_message import ledger
from rmq.message import dlq_topic
from tests.unit.broker.rig import Rig
from tests.unit.broker.taking import GROUP, TOPIC, Consumer, Taken, step

QUEUES = 2
LEASES = (1, 5, 30)
RETRIES = 3


@define(eq=False)
class Known:
    """A message as the model knows it. Times are the rig's seconds."""

    body: bytes
    key: str
    attempt: int = 0
    lease: Taken | None = None
    holder: int = -1
    until: float = 0.0
    is_finished: bool = False
    is_unsure: bool = False
    """Whether a failed write or a kill may have finished it, or counted an attempt."""


class PerMessage(RuleBasedStateMachine):
    @initialize(in_order=st.booleans(), records=st.sampled_from([3, 10, 1000]))
    def begin(self, in_order: bool, records: int) -> None:
        self.snapshots = ledger.SNAPSHOT_RECORDS
        ledger.SNAPSHOT_RECORDS = records  # type: ignore[misc]
        self.in_order = in_order
        self.rig = Rig()
        self.rig.topic(TOPIC, QUEUES)
        config = self.rig.groups.get(GROUP)
        assert config is not None
        self.rig.groups.update(evolve(config, retry_max_times=RETRIES))
        self.consumers = [Consumer(self.rig) for _ in range(3)]
        self.messages: dict[bytes, Known] = {}

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.drain()
        ledger.SNAPSHOT_RECORDS = self.snapshots  # type: ignore[misc]

    # ---- what happens ----

    @rule(key=st.sampled_from("abc"), count=st.integers(1, 5))
    def send(self, key: str, count: int) -> None:
        for _ in range(count):
            body = b"%d" % len(self.messages)
            self.rig.put(TOPIC, ord(key) % QUEUES, body, properties={"__SHARDINGKEY": key})
            self.messages[body] = Known(body, key)

    @rule(who=st.integers(0, 2), count=st.integers(1, 6), seconds=st.sampled_from(LEASES))
    def take(self, who: int, count: int, seconds: int) -> None:
        self.take_some(who, count, seconds)

    def take_some(self, who: int, count: int, seconds: float) -> list[Known]:
        found = self.consumers[who].take(count, seconds, in_order=self.in_order)
        return [self.taken(one, who, seconds) for one in found]

    def taken(self, one: Taken, who: int, seconds: float) -> Known:
        known = self.messages[one.body]
        now = self.rig.seconds
        assert not known.is_finished, f"{one.body!r} was acknowledged"
        assert known.lease is None or known.until <= now, f"{one.body!r} is leased"
        assert known.lease is not None or known.until <= now, f"{one.body!r} comes before its time"
        if known.is_unsure:
            assert known.attempt < one.attempt <= known.attempt + 2
        else:
            assert one.attempt == known.attempt + 1
        assert one.told == one.attempt - 1
        assert one.attempt <= RETRIES + 1
        if self.in_order:
            for other in self.messages.values():
                if other is known:
                    break
                assert other.key != known.key or other.is_finished or other.is_unsure, "out of order"
        known.attempt, known.lease, known.holder = one.attempt, one, who
        known.until, known.is_unsure = now + seconds, False
        return known

    def leased(self) -> list[Known]:
        now = self.rig.seconds
        return [one for one in self.messages.values() if one.lease is not None and one.until > now]

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), fails=st.booleans(), twice=st.booleans())
    def acknowledge(self, data: st.DataObject, fails: bool, twice: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.leased()), unique_by=id, min_size=1))
        consumer = self.consumers[data.draw(st.integers(0, 2))]
        if fails and not twice:
            self.rig.disk.fail("write", "commitlog")
        leases = [one.lease for one in chosen if one.lease is not None]
        for _ in range(1 + twice):
            outcomes = consumer.ack(*leases)
            assert all((outcome is None) is not (fails and not twice) for outcome in outcomes)
        self.rig.disk.heal()
        if not fails or twice:
            for one in chosen:
                one.is_finished, one.lease = True, None

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), after=st.sampled_from([0, 2, 60]))
    def nack(self, data: st.DataObject, after: int) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.leased()), unique_by=id, min_size=1))
        leases = [one.lease for one in chosen if one.lease is not None]
        assert self.consumers[0].nack(*leases, after=after) == [None] * len(chosen)
        for one in chosen:
            one.lease, one.until = None, self.rig.seconds + after
        self.bury(chosen)

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), seconds=st.sampled_from(LEASES), who=st.integers(0, 2))
    def extend(self, data: st.DataObject, seconds: int, who: int) -> None:
        one: Known = data.draw(st.sampled_from(self.leased()))
        assert one.lease is not None
        one.lease.handle = self.consumers[who].extend(one.lease, seconds)
        one.until, one.holder = self.rig.seconds + seconds, who

    @rule(seconds=st.sampled_from([0.5, 2, 10, 100]))
    def let_pass(self, seconds: float) -> None:
        step(self.rig, seconds)
        self.end(lambda one: one.until <= self.rig.seconds)

    @rule(who=st.integers(0, 2))
    def close(self, who: int) -> None:
        self.consumers[who].close()
        self.consumers[who] = Consumer(self.rig)
        step(self.rig)
        self.end(lambda one: one.holder == who)

    def end(self, where: Any) -> None:
        """Leases have ended."""
        ended = [one for one in self.messages.values() if one.lease is not None and where(one)]
        for one in ended:
            one.lease, one.until = None, min(one.until, self.rig.seconds)
        self.bury(ended)

    def bury(self, failed: list[Known]) -> None:
        """Messages of the last attempt are dead letters."""
        step(self.rig)
        letters = set(self.rig.bodies(dlq_topic(GROUP)))
        for one in failed:
            assert (one.body in letters) is (one.attempt > RETRIES), one
            one.is_finished |= one.body in letters

    @rule()
    def kill(self) -> None:
        """Kill -9: all connections end, what was leased comes again."""
        retries = self.rig.groups.table[GROUP]
        self.rig = restarted_at(self.rig)
        self.rig.groups.update(retries)
        self.consumers = [Consumer(self.rig) for _ in range(3)]
        for one in self.messages.values():
            if one.lease is not None:
                one.lease, one.until, one.is_unsure = None, self.rig.seconds, True
                one.attempt -= 1
        step(self.rig)

    # ---- what holds ----

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "rig"):
            return
        deliveries = self.rig.broker.deliveries
        leased = [batch for queue in deliveries.ledger.rows.values() for batch in queue.leased.values()]
        assert all(batch.mask for batch in leased)
        assert sum(batch.count for batch in leased) == len(self.leased())
        letters = set(self.rig.bodies(dlq_topic(GROUP)))
        finished = sum(one.is_finished or one.body in letters for one in self.messages.values())
        lag = sum(
            self.rig.store.max_offset(TOPIC, number) - max(0, self.rig.offsets.get(GROUP, TOPIC, number))
            for number in range(QUEUES)
        )
        assert lag >= len(self.messages) - finished

    def drain(self) -> None:
        """In the end each message comes, and is finished."""
        for _ in range(60 + len(self.messages)):  # in order a key gives one message at a time
            found = self.take_some(0, 6, 1)
            leases = [one.lease for one in found if one.lease is not None]
            assert self.consumers[0].ack(*leases) == [None] * len(leases)
            for one in found:
                one.is_finished, one.lease = True, None
            if not found:
                self.let_pass(100)
            letters = set(self.rig.bodies(dlq_topic(GROUP)))
            if all(one.is_finished or one.body in letters for one in self.messages.values()):
                break
        letters = set(self.rig.bodies(dlq_topic(GROUP)))
        left = [one for one in self.messages.values() if not one.is_finished and one.body not in letters]
        assert not left, left
        assert self.rig.broker.deliveries.out == 0
        ends = {number: self.rig.store.max_offset(TOPIC, number) for number in range(QUEUES)}
        kept = self.rig.offsets.of(GROUP, TOPIC)
        assert all(kept.get(number, 0) == end for number, end in ends.items()), (kept, ends)


def restarted_at(rig: Rig) -> Rig:
    """The broker after kill -9, at the same time."""
    return Rig(disk=rig.disk.copy(), now_ms=rig.now_ms, seconds=rig.seconds)


TestPerMessage = PerMessage.TestCase
TestPerMessage.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
