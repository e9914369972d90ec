"""rmq.broker.tables.queue_locks: who may consume a queue in order."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.replication.table_replication import TableSender
from rmq.broker.role import Standalone
from rmq.broker.tables import queue_locks as module
from rmq.broker.tables.queue_locks import LOCK_MS, Locks
from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command

from ..rig import START, Rig, Wire
from ..sessions import session

A, B = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_lock_has_one_holder_and_can_be_renewed() -> None:
    locks = Locks(lambda: START / 1000, role=Standalone())
    assert locks.lock("g", [A, B], "one", START) == {A, B}
    assert locks.lock("g", [A, B], "two", START) == set()
    assert locks.lock("g", [A], "one", START + 50_000) == {A}
    assert locks.lock("g", [A, B], "two", START + 100_000) == {B}
    assert locks.holder("g", A, START + 100_000) == "one"


def test_groups_do_not_know_each_other() -> None:
    locks = Locks(lambda: START / 1000, role=Standalone())
    assert locks.lock("g", [A], "one", START)
    assert locks.lock("h", [A], "two", START) == {A}


def test_a_lock_lasts_a_minute() -> None:
    locks = Locks(lambda: START / 1000, role=Standalone())
    locks.lock("g", [A], "one", START)
    assert locks.lock("g", [A], "two", START + LOCK_MS) == set()
    assert locks.holder("g", A, START + LOCK_MS) == "one"
    assert locks.holder("g", A, START + LOCK_MS + 1) is None
    assert locks.lock("g", [A], "two", START + LOCK_MS + 1) == {A}


def test_only_the_holder_unlocks() -> None:
    locks = Locks(lambda: START / 1000, role=Standalone())
    locks.lock("g", [A, B], "one", START)
    locks.unlock("g", [A], "two")
    assert locks.holder("g", A, START) == "one"
    locks.unlock("g", [A], "one")
    assert locks.holder("g", A, START) is None
    assert locks.holder("g", B, START) == "one"


def test_unlocking_what_is_not_locked_is_nothing() -> None:
    locks = Locks(lambda: START / 1000, role=Standalone())
    locks.lock("g", [B], "one", START)
    locks.unlock("g", [A], "one")
    locks.unlock("h", [A], "one")
    assert locks.holder("g", A, START) is None
    assert locks.holder("g", B, START) == "one"


def test_setting_the_wall_clock_hands_no_queue_over() -> None:
    rig = Rig()

    def lock(client: str) -> set[MessageQueue]:
        body = LockBatchRequestBody("g", client, frozenset([A])).to_json()
        answer = rig.one(Command.request(RequestCode.LOCK_BATCH_MQ, body=body))
        return set(LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set)

    assert lock("one") == {A}
    rig.now_ms += LOCK_MS + 1000
    rig.broker.steps.expire()
    assert lock("two") == set()
    rig.now_ms -= 10 * LOCK_MS
    rig.seconds += LOCK_MS / 1000 + 1
    assert lock("two") == {A}


def test_expired_locks_are_forgotten() -> None:
    locks = Locks(lambda: START / 1000, role=Standalone())
    locks.lock("g", [A], "one", START)
    locks.lock("h", [A], "one", START + 10_000)
    locks.lock("i", [], "two", START)
    assert locks._table.keys() == {"g", "h"}
    assert locks.expire(START + LOCK_MS + 1) > START + LOCK_MS
    assert locks._table.keys() == {"h"}


def test_the_captured_session_of_an_ordered_consumer() -> None:
    rig = Rig()
    seen = []
    for exchange in session("2_ordered_consumer"):
        if exchange.code not in (41, 42):
            continue
        response = rig.answer(exchange.command(), Wire())
        assert exchange.response is not None
        assert (response.code, response.remark) == (0, None)
        expected = exchange.response
        assert bool(response.body) == bool(expected["body_len"])
        if response.body:
            asked = LockBatchRequestBody.from_json(exchange.command().body)
            assert LockBatchResponseBody.from_json(response.body).lock_ok_mq_set == asked.mq_set
        seen.append(exchange.code)
    assert seen.count(41) >= 5
    assert seen[-1] == 42
    assert rig.locks._table == {}


steps = st.tuples(
    st.sampled_from(["lock", "unlock", "expire"]),
    st.sampled_from(["one", "two", "three"]),
    st.sets(st.sampled_from([A, B])),
    st.integers(0, LOCK_MS),
)


@given(st.lists(steps, max_size=30))
def test_no_queue_ever_has_two_holders(script: list[tuple[str, str, set[MessageQueue], int]]) -> None:
    """A member that was granted a lock holds it until a minute has passed or the member unlocks."""
    locks, now = Locks(lambda: START / 1000, role=Standalone()), START
    promised: dict[MessageQueue, tuple[str, int]] = {}
    for action, client, queues, later in script:
        now += later
        if action == "lock":
            got = locks.lock("g", queues, client, now)
            for queue in queues:
                holder, since = promised.get(queue, ("", 0))
                is_free = not holder or holder == client or now - since > LOCK_MS
                assert (queue in got) is is_free
            promised.update(dict.fromkeys(got, (client, now)))
        elif action == "unlock":
            locks.unlock("g", queues, client)
            for queue in queues:
                if promised.get(queue, ("", 0))[0] == client:
                    del promised[queue]
        else:
            locks.expire(now)
        for queue, (holder, since) in promised.items():
            assert locks.holder("g", queue, now) == (holder if now - since <= LOCK_MS else None)


def test_one_request_locks_a_bounded_number_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for 200,000 queues stopped everybody for 12 s, most of them for a line each in the log."""
    monkeypatch.setattr(module, "QUEUES_OF_A_REQUEST", 3)
    rig = Rig()
    for count, code in ((3, 0), (4, 1)):
        queues = frozenset(MessageQueue("T", "b", at) for at in range(count))
        body = LockBatchRequestBody("g", "c", queues).to_json()
        assert rig.call(RequestCode.LOCK_BATCH_MQ, None, body).code == code
        assert rig.call(RequestCode.UNLOCK_BATCH_MQ, None, body).code == code


def test_many_locks_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    locks = Locks(lambda: START / 1000, role=Standalone())
    queues = [MessageQueue("T", "b", at) for at in range(100)]
    with caplog.at_level(logging.INFO, "rmq.broker"):
        locks.lock("g", queues, "one", START)
        locks.lock("g", queues, "one", START + 1)
        locks.unlock("g", queues, "one")
    assert [len(record.getMessage()) < 1_000 for record in caplog.records] == [True, True]
    assert "and 92 more" in caplog.text


def test_locks_of_all_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCKS_MAX", 3)
    locks = Locks(lambda: START / 1000, role=Standalone())
    queues = [MessageQueue("T", "b", at) for at in range(3)]
    assert len(locks.lock("g", queues[:2], "one", START)) == 2
    assert locks.lock("h", queues, "two", START) == set()
    assert len(locks.lock("g", queues[:2], "one", START)) == 2  # who has locks renews them
    assert len(locks.lock("h", queues[:1], "two", START)) == 1
    locks.unlock("g", [queues[0], queues[0]], "one")
    assert len(locks.lock("i", queues[:1], "two", START)) == 1
    locks.expire(START + LOCK_MS + 1)
    assert len(locks.lock("h", queues, "two", START + LOCK_MS + 1)) == 3


def told(feed: TableSender, slave: Locks) -> None:
    while note := feed.note(0.0):
        rows, _ = slave.rows_of(note["rows"].encode())
        slave.apply_delta(rows, None, note.get("gone"))


def test_a_slave_knows_who_holds_what_and_forgets_it_with_the_master() -> None:
    now = START
    master, slave = Locks(lambda: now / 1000, role=Standalone()), Locks(lambda: now / 1000, role=Standalone())
    feed = TableSender({"queueLocks": master}, lambda: 0)
    master.lock("g", [A], "one", now)
    told(feed, slave)
    master.lock("g", [B], "two", now)
    master.lock("h", [A], "three", now)
    told(feed, slave)
    assert sorted(slave.held().values()) == ["one", "three", "two"]
    assert slave.held() == master.held()
    assert slave.holder("g", A, now) is None, "it has no say itself"

    master.unlock("g", [B], "two")
    told(feed, slave)
    assert sorted(slave.held().values()) == ["one", "three"]
    now += LOCK_MS
    master.lock("h", [A], "three", now)
    assert feed.note(0.0) is None, "a renewal is told to nobody"
    now += 1
    master.expire(now)
    told(feed, slave)
    assert list(slave.held().values()) == ["three"]
    assert master.lock("g", [A], "four", now) == {A}
    told(feed, slave)

    now += 10 * LOCK_MS  # the slave hears of no renewal: it goes by what its master says
    new = Locks(lambda: now / 1000, role=Standalone())
    new.take_over(slave.held())
    assert new.lock("g", [A, B], "two", now) == {B}
    assert new.lock("g", [A], "four", now + LOCK_MS) == {A}
    assert new.lock("h", [A], "two", now + LOCK_MS) == set()
    assert new.lock("h", [A], "two", now + LOCK_MS + 1) == {A}

    slave.apply_delta({}, None, None)  # another master tells all that it has
    assert slave.held() == {}


@pytest.mark.parametrize("text", [b"", b"[]", b'{"a":"b"}', b'{"g\\nT\\nb\\nx":"c"}', b'{"g\\nT\\nb\\n1":2}'])
def test_what_is_no_table_of_locks_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Locks(lambda: 0.0, role=Standalone()).rows_of(text)
