"""Takes that the compiled engine answers in runs: beside a broker with the pure engine, nobody can tell the
difference by answers, leases, offsets, figures or the log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from random import Random
from types import ModuleType
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from rmq.broker.consume.take_runs import TakeRuns
from rmq.broker.send_batches import CompiledBroker
from rmq.plugin import Hooks, PulledEvent
from rmq.protocol.codes import ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME, POP_MESSAGE
from rmq.protocol.frames import Decoder
from rmq.protocol.json import dumps
from rmq.protocol.pop import PopMessageResponseHeader, bits_of
from rmq.store.files.consumequeue import UNIT, UNIT_FORM
from tests.compiled import COMPILED, HAS_COMPILED
from tests.stateful.engine_machine import Engines
from tests.stateful.engines import PEERS, START, Side, json_frame

pytestmark = HAS_COMPILED

SEEDS = int(os.environ.get("RMQ_ENGINE_SEEDS", "8"))
GROUPS = ("takers", "takers", "others")
CHANGES = ("consume", "forbid", "order", "busy", "permission", "queues", "few")
COUNTS = ("1", "1", "2", "2", "4", "4", "32", "1000", "0", "-3")
ODD_VALUES = ("01", "-0", "-1", "+1", "1.0", "", "x", "2147483648", "9" * 19, "\\u0031", 'a"b', "é")

Taken = tuple[str, int, int, int, int, list[int]]
"""Group, queue id, start, time of the take, length of the lease, offsets."""


def pop_frame(opaque: int, fields: dict[str, Any], *, style: str = "java", flag: int = 0) -> bytes:
    """The frame of a pop; `fields` replace those of an ordinary one, or take them out by None."""
    ext: dict[str, Any] = {
        "consumerGroup": "takers",
        "topic": "Orders",
        "queueId": "-1",
        "maxMsgNums": "4",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": str(START + opaque),
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
    }
    ext |= fields
    return json_frame(POP_MESSAGE, opaque, flag, {k: v for k, v in ext.items() if v is not None}, b"", style)


def ack_frame(opaque: int, taken: Sequence[Taken]) -> bytes:
    """The frame of an acknowledgement of messages by their leases."""
    acks = [
        {
            "c": group,
            "t": "Orders",
            "r": "0",
            "so": start,
            "q": queue_id,
            "rq": 0,
            "pt": taken_ms,
            "it": lasts_ms,
            "b": bits_of(start, offsets),
        }
        for group, queue_id, start, taken_ms, lasts_ms, offsets in taken
    ]
    body = dumps({"brokerName": "a", "acks": acks})
    return json_frame(BATCH_ACK_MESSAGE, opaque, 0, {}, body, "java")


def state_of(side: Side) -> list[Any]:
    """What a broker knows of its takes."""
    deliveries = side.broker.deliveries
    found: list[Any] = [deliveries.figures(), deliveries.out]
    for queue in deliveries.ledger.rows.values():
        batches = [(one.state, one.start, one.mask, one.attempt, one.taken_ms) for one in queue.batches()]
        found.append((queue.row_id, queue.queue_id, queue.cursor, queue.base, sorted(batches)))
        found.append((queue.topic.group, queue.topic.turn, queue.topic.has_more, queue.topic.is_at_limit))
    return found


class TakeEngines(Engines):
    """`sides[0]` has the compiled engine, and chunks as they come."""

    compiled: ModuleType | None = COMPILED
    # Rules of sends that say nothing about takes:
    broken = round = long_chunk = chunk_of_kinds = synced = copied = topics_saved = dispatch = None
    pulled = delete = None  # type: ignore[assignment]

    @initialize(seed=st.integers(0, 1 << 16), log_size=st.sampled_from([2_000, 10_000, 1 << 20]))
    def begin(self, seed: int, log_size: int, waits: str = "", plugins: bool = False) -> None:
        super().begin(seed=seed, log_size=log_size, waits="", plugins=False)
        for side in self.sides:
            for peer in side.peers:
                # Notices are numbered by the process, whichever side notifies.
                peer.notify = lambda response, frame=None: None  # type: ignore[method-assign]
        self.taken: list[Taken] = []
        self.popped: dict[int, str] = {}
        self.sends_in_a_row(seed=seed, count=40, at=0, others=0, fails=False)

    def compare(self) -> None:
        one, other = self.sides
        for peer in one.peers:
            for answer in Decoder().feed(peer.frames):
                if (group := self.popped.pop(answer.opaque, None)) and answer.code == 0:
                    self.taken += taken_of(answer.read(PopMessageResponseHeader), group)
        super().compare()
        assert state_of(one) == state_of(other)
        brokers = one.broker, other.broker
        assert brokers[0].stats.totals_out() == brokers[1].stats.totals_out()
        assert brokers[0].stats.missed == brokers[1].stats.missed
        assert brokers[0].saves().get("consumerOffset") == brokers[1].saves().get("consumerOffset")

    def frames(self, requests: Sequence[tuple[str, int]]) -> bytes:
        # A pop that waits gets what is there when the first message of a chunk is, which differs.
        self.both(lambda side: side.broker.readers.finish_last())
        return super().frames(requests)

    def give(self, frame: bytes, at: int = 0) -> None:
        self.both(partial(Side.receive, at=at, data=frame))

    def pop(self, fields: dict[str, Any], style: str = "java") -> bytes:
        self.opaque += 1
        self.asked.append(self.opaque)
        self.popped[self.opaque] = fields.get("consumerGroup", "takers")
        return pop_frame(self.opaque, fields, style=style)

    @rule(seed=st.integers(0, 1 << 32), at=st.integers(0, len(PEERS) - 1))
    def pops(self, seed: int, at: int) -> None:
        """Pops one by one, then in a row; most of them plain."""
        chance = Random(seed)
        odd = chance.choice([0, 0, 0.05, 0.3])
        kinds = [chance.getrandbits(16) for _ in range(3)]
        frames = [self.any_pop(Random(chance.choice(kinds)), odd) for _ in range(chance.choice([2, 4, 8]))]
        for frame in frames:  # the first opens the lane
            self.give(frame, at)
        count, fields = chance.choice([1, 2, 5]), plain_fields(Random(chance.choice(kinds)))
        self.give(self.pop(fields), at)  # the queues of the group are in the journal after it
        if fields["queueId"] != "-1":
            self.give(b"".join(self.pop(fields) for _ in range(count)), at)

    def any_pop(self, chance: Random, odd: float) -> bytes:
        fields = plain_fields(chance)
        if chance.random() < odd:
            name = chance.choice([*fields, "order", "attemptId", "bornTime", "exp", "expType", "zz"])
            fields[name] = chance.choice([None, *ODD_VALUES, "true", "TagA", "SQL92", "color = 'blue'"])
        return self.pop(fields, chance.choice(["java"] * 9 + ["backwards", "spaced", "escaped"]))

    @rule(seed=st.integers(0, 1 << 32), at=st.integers(0, len(PEERS) - 1))
    def acknowledge(self, seed: int, at: int) -> None:
        """Acknowledge leases, parts of them, some for the second time, or what never was taken."""
        chance = Random(seed)
        for _ in range(2):
            some = chance.sample(self.taken, min(len(self.taken), chance.choice([1, 1, 1, 3])))
            some = [part_of(one, chance) if chance.random() < 0.3 else one for one in some]
            if chance.random() < 0.1:
                start = chance.randrange(40)
                some.append(("takers", chance.randrange(5), start, START, 60_000, [start, start + 1]))
            if chance.random() < 0.8:
                self.taken = [one for one in self.taken if one not in some]
            self.opaque += 1
            self.asked.append(self.opaque)
            self.give(ack_frame(self.opaque, some), at)

    @rule(seed=st.integers(0, 1 << 32), after=st.sampled_from(["0", "1000", "70000"]))
    def one_message(self, seed: int, after: str) -> None:
        """A message is acknowledged by itself, or gets another time."""
        if not self.taken:
            return
        chance = Random(seed)
        group, queue_id, start, taken_ms, lasts_ms, offsets = chance.choice(self.taken)
        offset = chance.choice(offsets)
        handle = f"{start} {taken_ms} {lasts_ms} 0 0 a {queue_id} {offset} 0"
        ext = {"consumerGroup": group, "topic": "Orders", "queueId": str(queue_id)}
        ext |= {"extraInfo": handle, "offset": str(offset)}
        code = chance.choice([ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME])
        if code == CHANGE_MESSAGE_INVISIBLETIME:
            ext["invisibleTime"] = after
        self.opaque += 1
        self.asked.append(self.opaque)
        self.give(json_frame(code, self.opaque, 0, ext, b"", "java"))

    @rule(at=st.integers(0, len(PEERS) - 1))
    def connection_ends(self, at: int) -> None:
        """A connection gives its messages back, and another takes its place."""

        def close(side: Side) -> None:
            side.broker.deliveries.on_close(side.peers[at])
            side.broker.steps.deadlines(side.now_ms / 1000)

        self.both(close)

    @rule(
        change=st.sampled_from(["consume", "forbid", "order", "busy", "permission", "queues", "few", "stop"])
    )
    def change(self, change: str) -> None:
        """Something that takes rest on changes."""
        for side in self.sides:
            broker, config = side.broker, side.broker.config
            row, topic = broker.groups.table.get("takers"), broker.topics.table.get("Orders")
            match change:
                case "consume" | "forbid" if row is not None:
                    broker.groups.table["takers"] = type(row)("takers", consume_enable=change == "consume")
                case "order" if row is not None:
                    ordered = not row.consume_message_orderly
                    broker.groups.table["takers"] = type(row)("takers", consume_message_orderly=ordered)
                case "busy":
                    side.peers[0].is_busy = not side.peers[0].is_busy
                case "permission":
                    new = evolve(config, broker_permission=config.broker_permission ^ 4)
                    broker.settings.replace(new, side.store.config)
                case "queues" if topic is not None:
                    number = 6 - topic.read_queue_nums if topic.read_queue_nums in (2, 4) else 4
                    broker.topics.table["Orders"] = evolve(topic, read_queue_nums=number)
                case "few":
                    most = 6 if config.max_taken_messages_of_group > 6 else 1_000
                    new = evolve(config, max_taken_messages_of_group=most)
                    broker.settings.replace(new, side.store.config)
        self.both(lambda side: None)

    @rule(back=st.sampled_from([None, 0, 1, 5]))
    def replicas_have(self, back: int | None) -> None:
        """Consumers may read up to there."""
        reach = None if back is None else self.ends[max(-len(self.ends), -1 - back)]

        def move(side: Side) -> None:
            role: Any = side.broker.role
            role.high_watermark = lambda: reach

        self.both(move)

    @rule()
    def queues_are_written(self) -> None:
        self.both(lambda side: side.store._queues.write_all(START))

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            self.both(lambda side: side.broker.readers.finish_last())
        super().teardown()


def plain_fields(chance: Random) -> dict[str, Any]:
    """The fields in which plain pops differ."""
    return {
        "consumerGroup": chance.choice(GROUPS),
        "queueId": chance.choice(["-1", "-1", "0", "1", "3"]),
        "maxMsgNums": chance.choice(COUNTS),
        "invisibleTime": chance.choice(["60000", "60000", "1000"]),
    }


def taken_of(header: PopMessageResponseHeader, group: str) -> list[Taken]:
    """The leases of an answer."""
    starts, found = {}, []
    for one in (header.start_offset_info or "").split(";"):
        _, queue_id, start = one.split(" ")
        starts[int(queue_id)] = int(start)
    for one in (header.msg_offset_info or "").split(";"):
        _, queue_id, texts = one.split(" ")
        offsets, start = list(map(int, texts.split(","))), starts[int(queue_id)]
        offsets = [offset for offset in offsets if offset >= start]
        found.append((group, int(queue_id), start, header.pop_time, header.invisible_time, offsets))
    return found


def part_of(taken: Taken, chance: Random) -> Taken:
    """Some messages of a lease."""
    return (*taken[:5], sorted(chance.sample(taken[5], chance.randrange(1, len(taken[5]) + 1))))


TestTakes = HAS_COMPILED(TakeEngines.TestCase)
TestTakes.settings = settings(max_examples=40, stateful_step_count=25)


class Takes:
    """A broker of each engine with some 80 messages, and takes for it."""

    def __init__(self) -> None:
        self.machine = TakeEngines()
        self.machine.begin(seed=1, log_size=1 << 20)
        self.machine.sends_in_a_row(seed=1, count=40, at=0, others=0, fails=False)
        self.machine.sends_in_a_row(seed=2, count=40, at=0, others=0, fails=False)

    @property
    def sides(self) -> Sequence[Side]:
        return self.machine.sides

    @property
    def broker(self) -> CompiledBroker:
        broker = self.sides[0].broker
        assert isinstance(broker, CompiledBroker)
        return broker

    def pop(self, count: int = 1, **fields: Any) -> None:
        self.machine.give(b"".join(self.machine.pop(fields) for _ in range(count)))

    def ack(self, *taken: Taken) -> None:
        self.machine.opaque += 1
        self.machine.asked.append(self.machine.opaque)
        self.machine.give(ack_frame(self.machine.opaque, taken))

    def warm(self) -> None:
        """Pops of all queues, of which each lane's first opens the lane."""
        for queue_id in range(4):
            for _ in range(2):
                self.pop(queueId=str(queue_id), maxMsgNums="1")
        self.pop()
        self.ack(self.machine.taken.pop(0))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of takes that were answered in runs."""
    found: list[int] = []
    answer = TakeRuns.answer

    def noted(runs: TakeRuns, run: Any, connection: Any) -> int:
        found.append(answer(runs, run, connection))
        return found[-1]

    monkeypatch.setattr(TakeRuns, "answer", noted)
    return found


def test_a_pop_and_its_acknowledgement_are_answered_in_runs(answered: list[int]) -> None:
    takes = Takes()
    takes.warm()
    answered.clear()
    for _ in range(3):
        takes.pop()
        takes.ack(takes.machine.taken.pop())
    assert answered == [1] * 6
    takes.pop(3)
    assert answered[-1] == 3


def test_a_pop_that_finds_fewer_messages_takes_the_slower_path(answered: list[int]) -> None:
    takes = Takes()
    takes.warm()
    takes.pop(maxMsgNums="32")
    answered.clear()
    for _ in range(4):
        takes.pop(maxMsgNums="32")
    assert 0 in answered


@pytest.mark.parametrize("change", ["forbid", "permission", "order", "few", "busy"])
def test_what_pops_rest_on_is_looked_at_each_time(change: str, answered: list[int]) -> None:
    takes = Takes()
    takes.warm()
    takes.pop()
    assert answered[-1] == 1
    answered.clear()
    takes.machine.change(change)
    takes.pop()
    assert 1 not in answered


@pytest.mark.parametrize("change", ["group", "topic", "forgotten"])
def test_a_pop_has_a_new_lane_after_a_change(change: str, answered: list[int]) -> None:
    takes = Takes()
    takes.warm()
    takes.pop()
    answered.clear()
    for side in takes.sides:
        broker = side.broker
        if change == "group":
            row = broker.groups.table["takers"]
            broker.groups.table["takers"] = type(row)("takers", retry_queue_nums=2)
        elif change == "topic":
            broker.topics.table["Orders"] = evolve(broker.topics.table["Orders"], perm=4)
        else:
            deliveries = broker.deliveries
            deliveries._forget(deliveries._table["takers", "Orders"])
            broker.group_commit.commit_pending()
    for _ in range(3):
        takes.pop(queueId="0", maxMsgNums="1")
    assert answered[-1] == 1
    assert len(takes.broker._take_lanes) <= 10


def test_a_redelivery_goes_before_new_messages(answered: list[int]) -> None:
    takes = Takes()
    takes.warm()
    takes.machine.connection_ends(0)
    answered.clear()
    takes.pop()
    assert answered == [0]
    assert takes.machine.taken[-1][2] == 0


def test_an_acknowledgement_of_a_part_is_answered_in_a_run(answered: list[int]) -> None:
    takes = Takes()
    takes.warm()
    takes.pop()
    answered.clear()
    whole = takes.machine.taken.pop()
    takes.ack((*whole[:5], whole[5][1:3]))
    takes.ack((*whole[:5], whole[5][:1]))
    assert answered == [1, 1]
    takes.ack(whole)
    assert answered[2:] == [0], "two of its messages are finished"


def test_plug_ins_that_look_at_what_is_handed_out_see_each_answer(answered: list[int]) -> None:
    takes = Takes()
    takes.warm()
    events: list[list[Any]] = [[], []]
    for side, found in zip(takes.sides, events, strict=True):

        def seen(event: PulledEvent, found: list[Any] = found) -> None:
            found.append((event.topic, event.group, event.queue_id, event.count, event.size))

        side.broker.use_plugins(Hooks(pulled=(seen,)))
    takes.pop()
    takes.pop()
    assert answered[-1] == 1
    assert events[0] == events[1]
    assert len(events[0]) == 2


def test_plug_ins_that_look_at_requests_see_each_pop(answered: list[int]) -> None:
    takes, seen = Takes(), []
    takes.warm()
    answered.clear()
    for side in takes.sides:
        side.broker.use_plugins(Hooks(requests=(lambda peer, command: seen.append(command.opaque),)))
    takes.pop(2)
    assert len(seen) == 4
    assert answered == []


def test_a_failed_write_refuses_acknowledgements_of_a_run(answered: list[int]) -> None:
    takes = Takes()
    takes.warm()
    takes.pop()
    answered.clear()
    taken = takes.machine.taken[-1]
    takes.machine.both(lambda side: side.disk.fail("write", "commitlog", 1 << 10))
    takes.ack(taken)
    takes.machine.both(lambda side: side.disk.heal())
    out = takes.broker.deliveries.out
    takes.ack(taken)
    assert answered == [1, 1]
    assert takes.broker.deliveries.out == out - 4


def test_units_that_cannot_be_right_are_left_to_python() -> None:
    """Places and sizes outside of the log: nothing there is read."""
    chance = Random(5)
    for _ in range(8):
        takes = Takes()
        takes.warm()
        log_end = takes.sides[0].store.max_physical_offset
        places = [-1, -(1 << 63), (1 << 63) - 1, 1 << 40, log_end, log_end - 1]
        sizes = [0, -1, -(1 << 31), (1 << 31) - 1, 200, 3_000]
        for _ in range(8):
            queue_id, index = chance.randrange(4), chance.randrange(4, 12)
            place, size = chance.choice(places), chance.choice(sizes)
            for side in takes.sides:
                queue: Any = side.store.lane("Orders", queue_id)
                queue.tail[index * UNIT : (index + 1) * UNIT] = UNIT_FORM.pack(place, size, 7)
            takes.pop(queueId=str(queue_id), maxMsgNums=chance.choice(["1", "2", "4"]))


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_long_traffic_comes_to_the_same(seed: int, answered: list[int]) -> None:
    chance = Random(seed)
    machine = TakeEngines()
    machine.begin(seed=seed, log_size=chance.choice([2_000, 10_000, 1 << 20]))
    for _ in range(60):
        number, at = chance.getrandbits(32), chance.randrange(len(PEERS))
        match chance.choice(["pops"] * 4 + ["ack"] * 4 + ["one", "close", "change", "reach", "time", "send"]):
            case "pops":
                machine.pops(seed=number, at=at)
            case "ack":
                machine.acknowledge(seed=number, at=at)
            case "one":
                machine.one_message(seed=number, after=chance.choice(["0", "1000", "70000"]))
            case "close":
                machine.connection_ends(at=at)
            case "change":
                change = chance.choice(CHANGES)
                for again in (change, "consume" if change == "forbid" else change):  # and back
                    machine.change(change=again)
                    machine.pops(seed=number, at=at)
            case "reach":
                machine.replicas_have(back=chance.choice([None, None, None, 0, 1, 5]))
            case "time":
                machine.time_passes(ms=chance.choice([1, 40, 1_000, 6_000]), backwards=at == 0)
            case "send":
                machine.sends_in_a_row(seed=number, count=40, at=at, others=0, fails=False)
    machine.teardown()
    assert sum(answered) > 0


HEADERS = st.sampled_from(
    [
        b'{"code":200050,"opaque":7}',
        b'{"code":200050,"opaque":"7"}',
        b'{"code":200050,"opaque":7,"opaque":8}',
        b'{"code":200050,"extFields":{"opaque":7},"opaque":8}',
        b'{"code":200050,"extFields":{"bornTime":"1","bornTime":"2"},"opaque":8}',
        b'{"code":200050,"extFields":{"bornTime":"x"},"opaque":8}',
        b'{"code":200050,"extFields":{"topic":"a\\"opaque\\":5"},"opaque":8}',
        b'{"code":200151,"flag":0,"language":"JAVA","opaque":-2147483648,"version":1}',
        b'{"code":200151,"opaque":2147483648}',
        b'{"code":200050,"opaque":',
        b'{"code":200050,"x":"' + b"y" * 1_010 + b'","opaque":1}',
    ]
)


@given(HEADERS, st.integers(0, 300), st.integers(0, 255))
def test_the_header_of_a_lane_is_the_one_of_its_requests(header: bytes, at: int, byte: int) -> None:
    """A damaged header is no plain one, or is the key of a lane with the same values."""
    assert COMPILED is not None
    data = bytearray(header)
    if at < len(data):
        data[at] = byte
    lanes = COMPILED.Lanes((), bytes(8), 0, 0, 0, None, takes := COMPILED.TakeLanes((b"",) * 8, 1))
    takes.reset(True)
    frame = (4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + bytes(data)
    try:
        (command,) = Decoder(lanes=lanes).feed(frame)
    except Exception:
        command = None
    for key in takes.take_wanted():
        takes.add(key, "lane")
        (run,) = Decoder(lanes=lanes).feed(frame)
        assert run.rows[0][0] == "lane"
        if command is not None and data.count(b'"opaque"') == 1:
            (made,) = run.commands()
            assert (made.code, made.opaque, made.ext) == (command.code, command.opaque, command.ext)
            assert run.rows[0][1] == command.opaque
