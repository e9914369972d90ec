"""Pulls that the compiled engine answers in runs: beside a broker with the pure engine, which is given every
request by itself, nobody can tell the difference by answers, offsets or figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import count
from random import Random
from types import ModuleType
from typing import Any

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from rmq.broker.consume.pull_runs import PullRuns
from rmq.plugin import Hooks, PulledEvent
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import (
    LITE_PULL_MESSAGE,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RequestCode,
)
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.store.config import BrokerRole
from rmq.store.files.consumequeue import UNIT, UNIT_FORM
from tests.compiled import COMPILED, HAS_COMPILED
from tests.stateful.engine_machine import EnginePair, Engines
from tests.stateful.engines import PEERS, SHORT, START, Side, json_frame, pull_frame

pytestmark = HAS_COMPILED

SEEDS = int(os.environ.get("RMQ_ENGINE_SEEDS", "8"))
TOPICS = ("Orders", "Orders", "Orders", "New1", "%RETRY%readers")
GROUPS = ("readers", "readers", "others")
EXPRESSIONS = ("*", "*", "TagA", "T || x", "T||TagA||none", "", "color = 'blue'", "é")
ODD_VALUES = ("01", "-0", "-1", "+1", "1.0", "", "x", "2147483648", "9" * 18, "9" * 19, "\\u0031", "é")


def odd_fields(chance: Random) -> dict[str, Any]:
    """Fields that make a pull unusual, or damage it."""
    names = ["queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis"]
    names += ["subVersion", "subscription", "expressionType", "consumerGroup", "topic", "bname", "zz"]
    names += ["rmqTopicCreatedMs"]
    name = chance.choice(names)
    return {name: chance.choice([None, *ODD_VALUES, "SQL92", "tag", "8", "12", "broker-a"])}


class PullEngines(Engines):
    """`sides[0]` has the compiled engine, and chunks as they come."""

    compiled: ModuleType | None = COMPILED
    # Rules of sends that say nothing about pulls:
    broken = round = long_chunk = synced = copied = topics_saved = dispatch = pulled = None  # type: ignore[assignment]

    def chunk(self, requests: list[tuple[str, int]], at: int, cuts: list[int], fails: bool) -> None:
        super().chunk(requests, at, [], fails=False)

    @initialize(seed=st.integers(0, 1 << 16), log_size=st.sampled_from([2_000, 10_000, 1 << 20]))
    def begin(self, seed: int, log_size: int, waits: str = "", plugins: bool = False) -> None:
        super().begin(seed=seed, log_size=log_size, waits="", plugins=False)
        for side in self.sides:
            for peer in side.peers:
                # Notices are numbered by the process, whichever side notifies.
                peer.notify = lambda response, frame=None: None  # type: ignore[method-assign]
        self.sends_in_a_row(seed=seed, count=40, at=0, others=0, fails=False)

    def compare(self) -> None:
        super().compare()
        one, other = (side.broker for side in self.sides)
        assert one.stats.totals_out() == other.stats.totals_out()
        assert one.stats.missed == other.stats.missed
        assert one.stats.runtime(START) == other.stats.runtime(START)
        assert one.parked_pulls.by_queue() == other.parked_pulls.by_queue()
        assert one.reader.unconfirmed == other.reader.unconfirmed
        assert one.saves().get("consumerOffset") == other.saves().get("consumerOffset")

    @rule(seed=st.integers(0, 1 << 32), at=st.integers(0, len(PEERS) - 1))
    def pulls(self, seed: int, at: int) -> None:
        """Pulls in a row, most of them plain."""
        chance = Random(seed)
        odd = chance.choice([0, 0, 0.05, 0.3])
        kinds = [chance.getrandbits(16) for _ in range(4)]
        for _ in range(2):  # the first opens lanes
            count = chance.choice([1, 1, 2, 5, 40])
            data = b"".join(self.pull(Random(chance.choice(kinds)), odd) for _ in range(count))
            self.both(partial(Side.receive, at=at, data=data))

    def frames(self, requests: Sequence[tuple[str, int]]) -> bytes:
        # A pull that waits gets what is there when the first message of a chunk is, which differs.
        self.both(lambda side: side.broker.parked_pulls.finish_where(lambda _: True))
        return super().frames(requests)

    def pull(self, chance: Random, odd: float) -> bytes:
        self.opaque += 1
        flags = chance.choice([0, PULL_SUBSCRIPTION, PULL_SUBSCRIPTION])
        flags |= chance.choice([0, 0, PULL_COMMIT_OFFSET]) | chance.choice([0, 0, 0, PULL_SUSPEND])
        topic, queue_id = chance.choice(TOPICS), chance.randrange(4)
        made = self.sides[0].broker.topics.table.get(topic)
        end = self.sides[0].store.max_offset(topic, queue_id)
        fields: dict[str, Any] = {
            "consumerGroup": chance.choice(GROUPS),
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(chance.choice([0, chance.randrange(end + 1), chance.randrange(end + 3)])),
            "maxMsgNums": chance.choice(["0", "1", "4", "32", "32", "1000", "-3"]),
            "sysFlag": str(flags),
            "commitOffset": str(chance.choice([0, 1, chance.randrange(end + 2)])),
            "suspendTimeoutMillis": chance.choice(["0", "20000"]),
            "subscription": chance.choice(EXPRESSIONS) if flags & PULL_SUBSCRIPTION else None,
            "subVersion": chance.choice(["0", "5", str(START)]),
            "expressionType": chance.choice(["TAG", "TAG", None]),
        }
        if made is not None and chance.random() < 0.3:
            fields["rmqTopicCreatedMs"] = str(made.created_ms + chance.choice([0, 0, 0, 1]))
        if "=" in (fields["subscription"] or ""):
            fields["expressionType"] = "SQL92"
        if chance.random() < odd:
            fields |= odd_fields(chance)
        self.asked.append(self.opaque)
        style = chance.choice(["java"] * 9 + ["backwards", "spaced", "escaped"])
        code = chance.choice([11, 11, 11, LITE_PULL_MESSAGE])
        return pull_frame(self.opaque, fields, style=style, code=code)

    @rule(
        topic=st.sampled_from(TOPICS),
        expression=st.sampled_from(["*", "TagA", "T || x"]),
        model=st.sampled_from(["CLUSTERING", "CLUSTERING", "BROADCASTING"]),
        version=st.integers(0, 9),
        at=st.integers(0, len(PEERS) - 1),
    )
    def heartbeat(self, topic: str, expression: str, model: Any, version: int, at: int) -> None:
        """A member of the group comes, or announces another subscription."""
        tags = frozenset(tag.strip() for tag in expression.split("||")) - {"*"}
        codes = frozenset({"TagA": 2598919, "T": 84, "x": 120}[tag] for tag in tags)
        subscription = SubscriptionData(topic, expression, tags, codes, version)
        place = "CONSUME_FROM_LAST_OFFSET"
        group = ConsumerData("readers", "CONSUME_PASSIVELY", model, place, [subscription])
        body = HeartbeatData(f"client-{at}", [], [group]).to_json()
        self.ask(Command.request(RequestCode.HEART_BEAT, body=body), at)

    def ask(self, request: Command, at: int = 0) -> None:
        self.opaque += 1
        request.opaque = self.opaque
        self.asked.append(self.opaque)
        self.both(partial(Side.receive, at=at, data=encode(request)))

    @rule(change=st.sampled_from(["consume", "forbid", "slave", "busy", "permission", "queues", "long"]))
    def change(self, change: str) -> None:
        """Something that pulls rest on changes."""
        for side in self.sides:
            broker, config = side.broker, side.broker.config
            row = broker.groups.table.get("readers")
            match change:
                case "consume" | "forbid" if row is not None:
                    broker.groups.table["readers"] = type(row)(
                        "readers", consume_enable=change == "consume", which_broker_when_consume_slowly=2
                    )
                case "busy":
                    for peer in side.peers[:2]:
                        peer.is_busy = not peer.is_busy
                case "slave":
                    new = evolve(config, slave_read_enable=not config.slave_read_enable)
                    broker.settings.replace(new, side.store.config)
                case "permission":
                    new = evolve(config, broker_permission=config.broker_permission ^ 4)
                    broker.settings.replace(new, side.store.config)
                case "queues":
                    topic = broker.topics.table.get("Orders")
                    if topic is not None:
                        number = 6 - topic.read_queue_nums if topic.read_queue_nums in (2, 4) else 4
                        broker.topics.table["Orders"] = evolve(topic, read_queue_nums=number)
                case "long":
                    limits = side.store.config
                    most = 1 if limits.max_transfer_bytes_on_message_in_memory > 2_000 else 1 << 10
                    limits = evolve(limits, max_transfer_bytes_on_message_in_memory=1_000 * most)
                    broker.settings.replace(config, limits)
        self.both(lambda side: None)

    @rule(back=st.sampled_from([None, 0, 1, 2, 5]))
    def replicas_have(self, back: int | None) -> None:
        """Consumers may read up to there."""
        reach = None if back is None else self.ends[max(-len(self.ends), -1 - back)]

        def move(side: Side) -> None:
            role: Any = side.broker.role
            role.high_watermark = lambda: reach
            side.broker.readers.read_on()

        self.both(move)

    @rule()
    def queues_are_written(self) -> None:
        self.both(lambda side: side.store._queues.write_all(START))

    @rule()
    def log_expires(self) -> None:
        """The oldest files of the log go."""

        def clean(side: Side) -> None:
            side.store.clean(side.now_ms + 100 * 3_600_000, asked=True)
            side.store.clean_queues()

        self.both(clean)

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            self.both(lambda side: side.broker.parked_pulls.finish_where(lambda _: True))
        super().teardown()


TestPulls = HAS_COMPILED(PullEngines.TestCase)
TestPulls.settings = settings(max_examples=40, stateful_step_count=25)


class Pulls(EnginePair[PullEngines]):
    """Pulls for brokers of both engines."""

    def __init__(self, log_size: int = 1 << 20) -> None:
        super().__init__(PullEngines(), log_size)

    def frame(self, **fields: Any) -> bytes:
        self.machine.opaque += 1
        self.machine.asked.append(self.machine.opaque)
        return pull_frame(self.machine.opaque, fields)

    def give(self, *frames: bytes, at: int = 0) -> None:
        self.machine.both(partial(Side.receive, at=at, data=b"".join(frames)))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of pulls that were answered in runs."""
    found: list[int] = []
    answer = PullRuns.answer

    def noted(runs: PullRuns, run: Any, connection: Any) -> int:
        found.append(answer(runs, run, connection))
        return found[-1]

    monkeypatch.setattr(PullRuns, "answer", noted)
    return found


def test_pulls_are_answered_in_runs_once_their_subscription_is_known(answered: list[int]) -> None:
    pulls = Pulls()
    pulls.give(pulls.frame())
    assert answered == [], "the first opens the lane"
    pulls.give(pulls.frame(maxMsgNums="1"))
    pulls.give(*(pulls.frame(queueOffset=str(number)) for number in range(5)))
    pulls.give(*(pulls.frame() for _ in range(40)))
    assert answered == [1, 5, 32, 8]


def test_pulls_without_an_expression_are_answered_by_that_of_the_members(answered: list[int]) -> None:
    pulls = Pulls()
    pulls.machine.heartbeat("Orders", "TagA", "CLUSTERING", 3, 0)
    plain = {"sysFlag": "0", "subscription": None}
    pulls.give(pulls.frame(**plain), pulls.frame(**plain))
    pulls.give(pulls.frame(**plain), pulls.frame(**plain))
    assert answered == [2]
    pulls.machine.heartbeat("Orders", "*", "CLUSTERING", 4, 0)
    pulls.give(pulls.frame(**plain))
    pulls.give(pulls.frame(**plain))
    assert answered == [2, 0, 1], "a new subscription has a lane of its own"
    pulls.give(pulls.frame(**plain, subVersion="5"))
    assert answered[-1] == 0, "that of the members is older than the puller's"


@pytest.mark.parametrize("change", ["forbid", "permission", "queues"])
def test_pulls_that_are_not_allowed_any_more_are_refused(change: str, answered: list[int]) -> None:
    pulls = Pulls()
    pulls.give(pulls.frame(queueId="3"))
    pulls.give(pulls.frame(queueId="3"))
    assert answered == [1]
    pulls.machine.change(change)
    pulls.give(pulls.frame(queueId="3"))
    pulls.give(pulls.frame(queueId="3"))
    assert 1 not in answered[1:]


def test_members_that_broadcast_from_now_on_may_be_refused(
    answered: list[int],
) -> None:
    pulls = Pulls()
    pulls.machine.heartbeat("Orders", "*", "CLUSTERING", 3, 0)
    for side in pulls.sides:
        group = side.broker.groups.table["readers"]
        side.broker.groups.table["readers"] = evolve(group, consume_broadcast_enable=False)
    plain = {"sysFlag": "0", "subscription": None}
    pulls.give(pulls.frame(**plain))
    pulls.give(pulls.frame(**plain))
    pulls.machine.heartbeat("Orders", "*", "BROADCASTING", 3, 0)
    pulls.give(pulls.frame(**plain))
    assert answered == [1, 0]


def test_a_group_that_takes_messages_one_by_one_is_refused(answered: list[int]) -> None:
    pulls = Pulls()
    for _ in range(2):
        pulls.give(pulls.frame())
    pulls.machine.both(lambda side: side.broker.reader.refuse_pulls("readers", "Orders"))
    for _ in range(2):
        pulls.give(pulls.frame())
    pulls.machine.both(lambda side: side.broker.reader.allow_pulls("readers", "Orders"))
    pulls.machine.time_passes(ms=6_000, backwards=False)
    for _ in range(2):
        pulls.give(pulls.frame())
    assert answered == [1, 0, 1]


def test_plug_ins_that_look_at_requests_see_each_pull(answered: list[int]) -> None:
    seen: list[int] = []
    pulls = Pulls()
    pulls.give(pulls.frame())
    gate = lambda peer, command: seen.append(command.opaque)  # noqa: E731
    pulls.broker.use_plugins(Hooks(requests=(gate,)))
    pulls.give(pulls.frame(), pulls.frame())
    assert len(seen) == 2
    assert answered == []


def test_plug_ins_that_look_at_what_is_handed_out_see_each_answer(answered: list[int]) -> None:
    pulls = Pulls()
    events: list[list[Any]] = [[], []]
    for side, found in zip(pulls.sides, events, strict=True):

        def seen(event: PulledEvent, found: list[Any] = found) -> None:
            found.append((event.topic, event.group, event.queue_id, event.count, event.size))

        side.broker.use_plugins(Hooks(pulled=(seen,)))
    pulls.give(pulls.frame())
    pulls.give(pulls.frame(queueOffset="1"), pulls.frame(maxMsgNums="2"))
    assert answered == [2]
    assert events[0] == events[1]
    assert len(events[0]) == 3


def test_a_pull_that_waits_ends_a_run_and_is_answered_later(answered: list[int]) -> None:
    pulls = Pulls()
    end = pulls.sides[0].store.max_offset("Orders", 0)
    waits = {"sysFlag": "6", "suspendTimeoutMillis": "20000"}
    pulls.give(pulls.frame(), pulls.frame(queueId="1"))
    pulls.give(pulls.frame(), pulls.frame(queueOffset=str(end), **waits), pulls.frame(queueId="1"))
    assert answered == [1, 1]
    assert pulls.broker.parked_pulls.count == 1
    pulls.machine.teardown()


def test_offsets_that_come_with_pulls_are_committed(answered: list[int]) -> None:
    pulls = Pulls()
    pulls.give(pulls.frame())
    pulls.give(*(pulls.frame(sysFlag="5", commitOffset=str(number)) for number in (3, 2, 4)))
    assert answered == [3]
    assert pulls.broker.offsets.get("readers", "Orders", 0) == 4


def test_a_queue_that_was_made_again_has_a_lane_of_its_own(answered: list[int]) -> None:
    pulls = Pulls()
    for _ in range(2):
        pulls.give(pulls.frame())
    pulls.machine.both(lambda side: side.store.remove_topic("Orders"))
    pulls.machine.sends_in_a_row(seed=3, count=40, at=0, others=0, fails=False)
    for _ in range(2):
        pulls.give(pulls.frame())
    assert answered == [1, 0, 1]


def test_pulls_in_runs_end_where_all_replicas_have_the_log(answered: list[int]) -> None:
    pulls = Pulls()
    pulls.give(pulls.frame())
    unit = pulls.sides[0].store.unit("Orders", 0, 4)
    assert unit is not None
    for side in pulls.sides:
        role: Any = side.broker.role
        role.high_watermark = lambda: unit[0] + unit[1]
    written: list[bytes] = []

    def keep(frame: bytes | Sequence[bytes]) -> None:
        written.append(frame if isinstance(frame, bytes) else b"".join(frame))

    for side in pulls.sides:
        side.peers[1].write = keep  # type: ignore[method-assign]
    pulls.give(pulls.frame(), pulls.frame(queueOffset="4"), at=1)
    assert answered == [2]
    assert b'"maxOffset":"5","nextBeginOffset":"5"' in written[0]
    assert pulls.broker.reader.unconfirmed == {("Orders", 0): None}
    pulls.give(pulls.frame(queueOffset="5"))
    assert answered == [2, 0]


@pytest.mark.parametrize("flag", [1, 2])
def test_one_way_requests_and_responses_are_no_plain_pulls(flag: int, answered: list[int]) -> None:
    pulls = Pulls()
    for _ in range(2):
        pulls.give(pulls.frame())
    pulls.give(pull_frame(1_000, {}, flag=flag))
    assert answered == [1]


def test_a_busy_connection_gets_one_message_a_pull(answered: list[int]) -> None:
    pulls = Pulls()
    for is_busy in (False, False, True):
        for side in pulls.sides:
            side.peers[0].is_busy = is_busy
        pulls.give(pulls.frame(), pulls.frame())
    assert answered == [2, 0]
    count_of_one = pulls.sides[0].store.get("Orders", 0, 0, 32).count
    assert pulls.broker.stats.totals_out()[0][1] == 4 * count_of_one + 2


def test_a_broker_that_stops_answers_no_pull(answered: list[int]) -> None:
    pulls = Pulls()
    pulls.give(pulls.frame())
    for side in pulls.sides:
        side.peers[0].reset_on_close = lambda: None  # type: ignore[attr-defined]
    pulls.machine.both(lambda side: side.broker.readers.fall_silent())
    pulls.give(pulls.frame(sysFlag="6"))
    assert answered == [0]
    assert pulls.broker.parked_pulls.count == 1


def test_a_slave_commits_no_offset(answered: list[int]) -> None:
    pulls = Pulls()
    pulls.give(pulls.frame())
    for side in pulls.sides:
        limits = evolve(side.store.config, broker_role=BrokerRole.SLAVE)
        side.broker.settings.replace(side.broker.config, limits)
    for _ in range(2):
        pulls.give(pulls.frame(sysFlag="5", commitOffset="3"))
    assert answered == [1]
    assert pulls.broker.offsets.get("readers", "Orders", 0) == -1


def test_readers_far_behind_are_sent_to_the_broker_that_their_group_names(answered: list[int]) -> None:
    pulls = Pulls()
    pulls.give(pulls.frame())
    for side in pulls.sides:
        group = side.broker.groups.table["readers"]
        side.broker.groups.table["readers"] = evolve(group, which_broker_when_consume_slowly=2)
        side.store._memory = 5_000  # of which two fifths count
        config = evolve(side.broker.config, slave_read_enable=True)
        side.broker.settings.replace(config, side.store.config)
    end = pulls.sides[0].store.max_offset("Orders", 0)
    pulls.give(pulls.frame())
    for offset in (0, end - 1):
        pulls.give(pulls.frame(queueOffset=str(offset), maxMsgNums="1"))
    assert answered == [1, 1]
    found = [pulls.sides[0].store.get("Orders", 0, offset, 1).suggests_slave for offset in (0, end - 1)]
    assert found == [True, False]


def test_a_pull_of_expired_messages_is_sent_to_the_first_that_is_left(answered: list[int]) -> None:
    pulls = Pulls(log_size=4_000)
    for _ in range(2):
        pulls.give(pulls.frame())
    for side in pulls.sides:  # the queues are not trimmed yet
        late = side.now_ms + 100 * 3_600_000
        assert side.store.retention.take(side.store.config, late, asked=True)
    pulls.give(pulls.frame())
    assert answered == [1, 0]
    first = pulls.sides[0].store.min_offset("Orders", 0)
    assert first > 0
    pulls.give(pulls.frame(queueOffset=str(first)))
    assert answered == [1, 0, 1]


def test_units_that_cannot_be_right_are_left_to_python() -> None:
    """Places and sizes of any kind, in memory and in files: nothing outside of the log is read."""
    pulls, chance = Pulls(log_size=4_000), Random(5)
    pulls.give(*(pulls.frame(queueId=str(queue_id)) for queue_id in range(4)))
    log_end = pulls.sides[0].store.max_physical_offset
    places = [-1, -(1 << 63), (1 << 63) - 1, 1 << 40, 0, 1, 3_999, 4_000, log_end, log_end - 1]
    sizes = [0, -1, -(1 << 31), (1 << 31) - 1, 1, 200, 3_000, 5_000]
    for _ in range(300):
        queue_id, index = chance.randrange(4), chance.randrange(8)
        place, size = chance.choice([*places, chance.randrange(log_end)]), chance.choice(sizes)
        for side in pulls.sides:
            queue: Any = side.store.lane("Orders", queue_id)
            queue.tail[index * UNIT : (index + 1) * UNIT] = UNIT_FORM.pack(place, size, 7)
        fields = {"queueId": str(queue_id), "maxMsgNums": chance.choice(["1", "3", "32"])}
        pulls.give(pulls.frame(queueOffset=str(chance.randrange(8)), **fields))


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_damaged_pulls_come_to_the_same(seed: int) -> None:
    """Each byte of the header may be any other, go, or come twice; the lengths of the frame hold."""
    pulls, chance = Pulls(), Random(seed)
    for number in range(400):
        odd = odd_fields(chance) if chance.random() < 0.3 else {}
        frame = bytearray(pulls.frame(**{"queueId": str(number % 2)} | odd))
        stop = len(frame)
        for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
            at = chance.randrange(8, stop)
            match chance.randrange(4):
                case 0:
                    frame[at] = chance.choice(b'"\\{}:,0123456789-abcdefghijklmnopq\0\1\2\x7f\xc3 ')
                case 1:
                    frame[at] = chance.randrange(256)
                case 2:
                    del frame[at]
                    stop -= 1
                case 3:
                    frame.insert(at, frame[at])
                    stop += 1
        frame[:4], frame[5:8] = (len(frame) - 4).to_bytes(4, "big"), (stop - 8).to_bytes(3, "big")
        pulls.give(bytes(frame))


def test_reads_that_take_long_end_a_turn(answered: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may be slow, and other connections wait."""
    pulls = Pulls()
    fields = dict(
        zip(SHORT, ["p", "Orders", "", "4", "3", "0", str(START), "0", "a\x01b", "0"], strict=False)
    )
    for _ in range(20):
        pulls.machine.opaque += 1
        pulls.machine.asked.append(pulls.machine.opaque)
        pulls.give(json_frame(310, pulls.machine.opaque, 0, fields, bytes(7_000), "java"))
    end = pulls.sides[0].store.max_offset("Orders", 3)
    large = {"queueId": "3", "queueOffset": str(end - 8), "maxMsgNums": "8"}
    pulls.give(pulls.frame(**large))
    pulls.give(*(pulls.frame(**large) for _ in range(9)))
    assert answered == [9]
    ticks = count()
    monkeypatch.setattr(pulls.broker._pull_runs, "_clock", lambda: next(ticks) * 0.003)
    for side in pulls.sides:
        peer: Any = side.peers[0]
        requests = side.decoders[0].feed(b"".join(pulls.frame(**large) for _ in range(9)))
        while requests:
            requests = requests[side.broker.handle(requests, peer) :]
    size = pulls.sides[0].store.get("Orders", 3, end - 8, 8).size
    assert answered == [9, -(-(1 << 17) // size)]


def test_units_read_ahead_are_dropped_when_the_queue_is_cut(answered: list[int]) -> None:
    pulls = Pulls()
    pulls.machine.queues_are_written()
    for _ in range(2):
        pulls.give(pulls.frame(maxMsgNums="2"))
    sizes = [[size for _, size, _ in UNIT_FORM.iter_unpack(bytes(one.units(0, 8)))] for one in _queues(pulls)]
    assert sizes[0] == sizes[1]

    def cut(side: Side) -> None:
        queue: Any = side.store.lane("Orders", 0)
        end = queue.unit(3)[0]
        queue.truncate(end)
        queue.append((0, 100, 7), START)

    pulls.machine.both(cut)
    pulls.give(pulls.frame(queueOffset="1"))
    pulls.give(pulls.frame(queueOffset="3"))
    assert answered == [1, 1, 1]


def _queues(pulls: Pulls) -> list[Any]:
    return [side.store.lane("Orders", 0) for side in pulls.sides]
