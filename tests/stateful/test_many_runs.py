"""Runs of plain sends, a great many: each send is answered once, and every record can be read.

`nox -s fuzz_engine` has 200,000 of them (RMQ_ENGINE_RUNS) under AddressSanitizer.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from rmq.protocol.codes import ResponseCode
from rmq.protocol.frames import Decoder
from rmq.protocol.record import decode_record
from rmq.store.store import Store
from tests.compiled import COMPILED, HAS_COMPILED
from tests.stateful.engines import PEERS, START, Side, plain_send

RUNS = int(os.environ.get("RMQ_ENGINE_RUNS", "300"))
POOL = 500
"""Different chunks of sends."""
OF_A_STORE = 2_000
"""Runs after which another broker goes on, with an empty disk and other sizes of files."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of runs that the engine has put into a store so far."""
    counted, put_run = [0], Store.put_run

    def counting(*args: object) -> bool:
        is_put = put_run(*args)  # type: ignore[arg-type]
        counted[0] += is_put
        return is_put

    monkeypatch.setattr(Store, "put_run", counting)
    return counted


def pieces_of(chance: Random) -> list[tuple[int, bytes]]:
    """Chunks of plain sends, and how many are in each."""
    counts = [chance.choice([1, 1, 2, 3, 10, 40]) for _ in range(POOL)]
    return [(count, b"".join(plain_send(chance, number + 1) for number in range(count))) for count in counts]


def give(side: Side, chance: Random, pool: list[tuple[int, bytes]], *, in_round: bool) -> int:
    """Send some runs, of one connection or of several in a round; return the number of sends."""
    peers = chance.sample(range(len(PEERS)), chance.randrange(2, len(PEERS) + 1) if in_round else 1)
    chosen = [(at, *chance.choice(pool)) for at in peers]
    if in_round:
        assert not any(side.receive_round([(at, data) for at, _, data in chosen]))
    else:
        ((at, _, data),) = chosen
        cut = chance.randrange(len(data))
        for piece in (data[:cut], data[cut:]) if chance.random() < 0.2 else (data,):
            assert not side.receive(at, piece)
    return sum(count for _, count, _ in chosen)


@HAS_COMPILED
def test_every_send_of_many_runs_is_answered_once_and_can_be_read(runs: list[int]) -> None:
    chance, number = Random(1), 0
    pool = pieces_of(chance)
    while runs[0] < RUNS:
        number += 1
        sizes = {
            "mapped_file_size_commit_log": chance.choice([10_000, 1 << 20, 1 << 24]),
            "mapped_file_size_consume_queue": chance.choice([200, 20_000]),
        }
        waits = chance.choice(["", "", "disk"])
        side = Side(in_turns=False, seed=number, sizes=sizes, waits=waits, plugins=False, compiled=COMPILED)
        first, sent, answered = runs[0], 0, 0
        while runs[0] < min(RUNS, first + OF_A_STORE):
            sent += give(side, chance, pool, in_round=chance.random() < 0.3)
            side.now_ms += chance.choice([0, 0, 1])
            if waits:
                side.broker.on_synced(side.store.max_physical_offset)
            if chance.random() < 0.05:
                side.store.dispatch(1_000)
            answered += answers(side)
        assert answered == sent
        while side.store.dispatch(1_000):
            pass
        assert readable(side) == sent
        side.store.close()
    print(f"{runs[0]} runs in {number} stores")


def answers(side: Side) -> int:
    """The number of sends that were answered since the last call, each with success."""
    count = 0
    for peer in side.peers:
        if peer.frames:
            found = Decoder().feed(peer.frames)
            peer.frames = b""
            assert {frame.code for frame in found} == {ResponseCode.SUCCESS}
            count += len(found)
    return count


def readable(side: Side) -> int:
    """The number of records in all queues; every tenth of them is read."""
    found = 0
    for topic in ("Orders", "New1"):
        for queue_id in range(4):
            end = side.store.max_offset(topic, queue_id)
            found += end
            for offset in range(0, end, 10):
                unit = side.store.unit(topic, queue_id, offset)
                assert unit is not None
                data = side.store.read(unit[0])
                assert data is not None
                message = decode_record(data, decompressed=False)
                assert (message.topic, message.queue_offset) == (topic, offset)
                assert message.born_timestamp <= START
    return found
