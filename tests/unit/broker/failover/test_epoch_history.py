"""Epochs of a log: dropped with the log that they are about, and told in parts when they are many."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing
from attrs import evolve

from rmq.broker.replication.epoch_history import (
    EPOCHS_MAX,
    PART,
    ask_before,
    asked_before,
    has_earlier,
    part,
    with_earlier,
)
from rmq.broker.replication.sessions import FRAME, HELLO, Expired, MasterLog, MasterSession, decode_note
from rmq.controller.epochs import FILE, UNKNOWN, Epochs
from rmq.errors import RemoteProtocolError
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.brokers import Node, Set, controlled_set
from tests.unit.broker.failover.sets import leading

from ..rig import Rig

MANY: Epochs = tuple((number, 10 * number) for number in range(1, 3 * PART + 2))


def test_a_history_of_any_length_comes_in_parts_that_fit_a_note() -> None:
    session = MasterSession(
        Rig().store, 0.0, greet=lambda: MasterLog("L", 0, 99, epoch=MANY[-1][0], epochs=MANY)
    )
    session.received(HELLO)
    note = noted(session)
    got, parts = MasterLog.from_note(note).epochs, 1
    while has_earlier(note):
        session.received(ask_before(got[0][0]))
        note = noted(session)
        got, parts = with_earlier(got, note), parts + 1
    assert (got, parts) == (MANY, 4)


def noted(session: MasterSession) -> dict[str, object]:
    frame = session.frame(0.0)
    assert len(frame) < 1 << 16
    return decode_note(frame[FRAME.size :])


def test_a_word_for_earlier_epochs_is_no_question_for_a_record() -> None:
    assert asked_before(int.from_bytes(ask_before(77), "big", signed=True)) == 77
    assert [asked_before(word) for word in (-1, -2 - (1 << 50), -(1 << 62), -(1 << 63) + 5)] == [None] * 4


@pytest.mark.parametrize(
    "note",
    [{}, {"epochs": 5}, {"epochs": []}, {"epochs": [[5, 50]]}, {"epochs": [[4, 60]]}, {"epochs": [[1]]}],
)
def test_a_part_that_does_not_come_before_the_rest_is_refused(note: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="the master's epochs cannot be read"):
        with_earlier(((5, 50), (6, 60)), note)


def test_a_history_without_end_is_refused() -> None:
    known = tuple((number, number) for number in range(9, 9 + EPOCHS_MAX))
    with pytest.raises(RemoteProtocolError, match=f"of at most {EPOCHS_MAX}"):
        with_earlier(known, part(((1, 1),)))


def test_who_leads_or_follows_keeps_the_epochs_of_its_log_only() -> None:
    manager = leading(7)
    manager.follow(6, ((1, 0), (2, 100), (5, 400), (6, 700)), start=0, is_same=False)
    manager.lead(900, start=450)
    assert manager.epochs == manager._file.epochs == ((UNKNOWN, 100), (5, 400), (6, 700), (7, 900))

    manager.follow(9, ((UNKNOWN, 700), (7, 900), (9, 950)), start=450, is_same=True)
    assert manager.epochs == ((UNKNOWN, 100), (5, 400), (6, 700), (7, 900), (9, 950))
    manager.follow(9, ((UNKNOWN, 700), (7, 900), (9, 950)), start=1000, is_same=False)
    assert manager.epochs == manager._file.epochs == ((UNKNOWN, 900), (9, 950))


def test_logs_that_share_no_epoch_that_is_kept_are_not_taken_for_the_same() -> None:
    manager, store = leading(7), Rig().store
    manager.follow(6, ((UNKNOWN, 10), (4, 20)), start=0, is_same=False)
    master = MasterLog("", 0, 99, epoch=8, epochs=((UNKNOWN, 5), (6, 30)))
    with pytest.raises(Expired, match="they share no epoch that is kept"):
        manager.cut(store, master, "")
    manager.follow(6, ((3, 20), (4, 40)), start=0, is_same=False)
    assert manager.cut(store, evolve(master, epochs=((6, 30),)), "") == 20


async def test_a_replica_follows_a_log_of_more_elections_than_a_note_can_tell(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        async with client.producer("P") as producer:
            for number in range(40):
                assert await found.send(producer, f"{number}" + "x" * 200)
            await trio.sleep(1)
        for node in (second, first):
            await found.end(node)
        for controller in found.controllers:
            await controller.stop(found.pauses)
            controller.disk = MemoryDisk(seed=1)
        for node in found.nodes:
            _have(found, node, tuple((epoch, epoch) for epoch, _ in MANY))
        for controller in found.controllers:
            await controller.start()
        await found.start(first)
        assert await found.master() is first
        await found.start(second)
        await found.until(inSync=[1, 2], master=1)
        assert first.broker is not None
        assert second.broker is not None
        assert second.broker.role.manager is not None
        assert len(second.broker.role.manager.epochs) == len(MANY) + 1
        assert _log(second.broker.store) == _log(first.broker.store)


def _have(found: Set, node: Node, epochs: Epochs) -> None:
    """Have a stopped replica's store say that so many epochs were in its log."""
    path = f"{found.store_config.store_path_root_dir}/{FILE}"
    table = json.loads(node.disk.load(path) or b"")
    table |= {"epochs": [*map(list, epochs)], "epoch": epochs[-1][0], "began": ""}
    node.disk.replace(path, json.dumps(table).encode())


def _log(store: Store) -> bytes:
    return bytes(store.read_raw(0, store.max_physical_offset))
