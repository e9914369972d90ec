"""Takes that the compiled engine answers in runs: beside a broker with the pure engine, nobody can tell the
difference by answers, leases, offsets, figures or the log."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.consume.take_runs import TakeRuns
from rmq.broker.send_batches import CompiledBroker
from rmq.plugin import Hooks, PulledEvent
from rmq.protocol.frames import Decoder
from rmq.store.files.consumequeue import UNIT, UNIT_FORM, ConsumeQueue
from tests.compiled import COMPILED, HAS_COMPILED
from tests.stateful.engines import PEERS, START, Side, plain_send
from tests.stateful.take_machine import CHANGES, TakeEngines, Takes, pop_frame

pytestmark = HAS_COMPILED

SEEDS = int(os.environ.get("RMQ_ENGINE_SEEDS", "8"))

TestTakes = HAS_COMPILED(TakeEngines.TestCase)
TestTakes.settings = settings(max_examples=40, stateful_step_count=25)


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


def test_plain_sends_wake_the_pops_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    commit = CompiledBroker._commit_runs

    def noted(broker: CompiledBroker, put: Any) -> None:
        runs.append(len(put))
        commit(broker, put)

    monkeypatch.setattr(CompiledBroker, "_commit_runs", noted)
    side, chance = (
        Side(in_turns=False, seed=1, sizes={}, waits="", plugins=False, compiled=COMPILED),
        Random(1),
    )
    for opaque in range(1, 50):
        side.receive(0, plain_send(chance, opaque))
    opaque = 100
    while True:
        side.receive(1, pop_frame(opaque, {"pollTime": "15000", "bornTime": str(START)}))
        if not side.peers[1].take():
            break
        opaque += 1
    for number in range(50, 70):  # the lanes were closed as the group began
        side.receive(2, plain_send(chance, number))
        if side.peers[1].take():
            side.receive(1, pop_frame(opaque + number, {"pollTime": "15000", "bornTime": str(START)}))
            side.peers[1].take()
    assert len(side.broker.deliveries.polls) == 1
    runs.clear()
    side.receive(0, plain_send(chance, 80))
    assert runs
    assert len(side.peers[1].take()) == 1


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


def test_units_read_ahead_serve_pops_until_the_queue_is_cut(
    answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = Takes()
    takes.warm()
    takes.machine.queues_are_written()
    takes.pop(queueId="0", maxMsgNums="1")
    reads: list[int] = []
    units = ConsumeQueue.units

    def noted(queue: ConsumeQueue, index: int, count: int) -> Any:
        if queue is takes.sides[0].store.lane("Orders", 0):
            reads.append(count)
        return units(queue, index, count)

    monkeypatch.setattr(ConsumeQueue, "units", noted)
    answered.clear()
    takes.pop(queueId="0", maxMsgNums="1")
    takes.pop(queueId="0", maxMsgNums="1")
    assert (answered, reads) == ([1, 1], [])
    cursor = takes.broker.deliveries.queue_of("takers", "Orders", 0).cursor

    def cut(side: Side) -> None:
        queue: Any = side.store.lane("Orders", 0)
        first, end = queue.unit(0), queue.unit(cursor)[0]
        queue.truncate(end)
        queue.append(first, START)  # a message of another size
        queue.write()

    takes.machine.both(cut)
    takes.pop(queueId="0", maxMsgNums="1")
    assert answered == [1, 1, 1]
    assert reads


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
