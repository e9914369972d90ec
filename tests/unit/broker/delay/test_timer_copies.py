"""Copies of messages that wait for their time: a master that has the original too delivers one of them."""

from __future__ import annotations

import logging

import pytest

from rmq.broker.delay.timers import Timers
from rmq.protocol.headers import RecallHandle
from rmq.protocol.record import PROPERTIES_MAX, Record
from tests.unit.broker.delay.bench import DAY, HOST, HOUR, START, Bench, send_delayed


def recall(bench: Bench, handle: RecallHandle, account: str = "") -> None:
    bench.store.put(bench.timers.recall(handle, HOST, bench.now, account))
    bench.commit()


def restart_as_before(bench: Bench) -> None:
    """Restart as a slave that becomes the master: with the log, and with no progress or an older progress."""
    bench.restart()


def test_a_delay_corrected_by_one_master_is_not_corrected_again_by_the_next(bench: Bench) -> None:
    bench.at(START + 10 * HOUR)
    send_delayed(bench, b"delayed", 60)
    bench.at(START)
    restart_as_before(bench)
    bench.at(START - 5_000)  # behind that of the former master
    bench.at(START + 2 * HOUR)
    assert bench.delivered() == [b"delayed"]
    bench.at(START + 11 * HOUR)
    assert bench.delivered() == [b"delayed"]
    assert len(bench.timers) == 0


def test_a_copy_before_its_file_is_deleted_and_its_original_are_delivered_once(bench: Bench) -> None:
    bench.send(b"far", START + 30 * DAY)
    bench.at(START + 2 * DAY)  # more than half of fileReservedTime
    assert bench.timers._waiting == {1: START + 30 * DAY}
    restart_as_before(bench)
    assert len(bench.timers) == 2
    bench.at(START + 30 * DAY)
    assert bench.delivered() == [b"far"]
    assert len(bench.timers) == 0


def test_a_copy_of_a_copy_too(bench: Bench) -> None:
    bench.at(START + 10 * DAY)
    handle = send_delayed(bench, b"corrected", 5 * DAY // 1000)
    bench.at(START)
    bench.at(START + 2 * DAY)
    bench.at(START + 4 * DAY)
    restart_as_before(bench)
    bench.at(START + 5 * DAY)
    assert bench.delivered() == [b"corrected"]
    bench.at(handle.deliver_ms + 1)
    assert bench.delivered() == [b"corrected"]
    assert len(bench.timers) == 0


def test_consumers_see_nothing_of_copies(bench: Bench) -> None:
    bench.at(START + 10 * HOUR)
    send_delayed(bench, b"delayed", 60)
    bench.at(START)
    bench.at(START + 60_000)
    (message,) = bench.messages()
    assert not [name for name in message.properties if name.startswith("rmq")]


def test_a_recall_of_a_corrected_message_holds_at_the_next_master(bench: Bench) -> None:
    bench.at(START + 10 * HOUR)
    handle = send_delayed(bench, b"recalled", 60)
    send_delayed(bench, b"delayed", 60)
    bench.at(START)
    restart_as_before(bench)
    bench.at(START + 1_000)
    recall(bench, handle)
    bench.at(START + 2 * HOUR)
    assert bench.delivered() == [b"delayed"]


def test_a_message_that_was_recalled_before_it_was_corrected_never_comes(bench: Bench) -> None:
    bench.at(START + 10 * HOUR)
    handle = send_delayed(bench, b"recalled", 60)
    recall(bench, handle)
    bench.at(START)
    bench.at(START + 11 * HOUR)
    assert bench.delivered() == []
    assert len(bench.timers) == 0


def test_recalls_of_very_many_corrected_messages_are_looked_for_in_steps(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.at(START + 10 * HOUR)
    handles = [send_delayed(bench, b"m%03d" % number, 60) for number in range(300)]
    bench.at(START)
    for handle in handles[::3]:
        recall(bench, handle)
    monkeypatch.setattr("rmq.broker.delay.timers.STEP_LOOKS", 70)
    looks: list[int] = []
    look = Timers._look

    def counted(self: Timers, *arguments: object) -> int:
        looks[-1] += (found := look(self, *arguments))  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(Timers, "_look", counted)
    bench.now = START + 60_000
    while looks.append(0) or bench.timers.step(bench.now) <= bench.now:
        assert looks[-1] <= 70
    assert bench.delivered() == [b"m%03d" % number for number in range(300) if number % 3]


def send_for(bench: Bench, body: bytes, account: str) -> RecallHandle:
    record = Record("Real", 3, body, born_timestamp=bench.now)
    bench.timers.take(record, {"UNIQ_KEY": body.decode()}, START + HOUR, account)
    bench.store.put(record)
    bench.commit()
    return RecallHandle("Real", "broker-a", START + HOUR, body.decode())


def test_a_recall_by_another_account_is_not_obeyed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    handle = send_for(bench, b"mine", "alice")
    assert bench.timers.owner(handle) == "alice"
    recall(bench, handle, "mallory")
    recall(bench, send_for(bench, b"recalled", "alice"), "alice")
    recall(bench, send_for(bench, b"nobody's", ""), "bob")
    with caplog.at_level(logging.WARNING, "rmq.broker"):
        bench.at(START + HOUR)
    assert bench.delivered() == [b"mine"]
    assert "refused the recall of a message of account alice by mallory" in caplog.text
    (message,) = bench.messages()
    assert "rmqAccount" not in message.properties


def test_the_owner_is_that_of_the_topic_that_a_handle_names(bench: Bench) -> None:
    handle = send_for(bench, b"mine", "alice")
    assert bench.timers.owner(RecallHandle("Other", "broker-a", handle.deliver_ms, "mine")) is None
    assert bench.timers.owner(RecallHandle("Real", "broker-a", handle.deliver_ms + 1, "mine")) is None


def send_full(bench: Bench, body: bytes, properties: dict[str, str], due_ms: int) -> None:
    """Store a message that waits, whose properties have no byte of room: from a broker that allowed that."""
    record = Record("Real", 3, body, born_timestamp=bench.now)
    bench.timers.take(record, properties | {"UNIQ_KEY": body.decode()}, due_ms)
    room = PROPERTIES_MAX - len(record.properties.encode()) - len("pad\x01\x02")
    record.properties += "\x02pad\x01" + "x" * (room - 1) + "\x02"
    bench.store.put(record)
    bench.commit()


def test_a_message_without_room_for_the_mark_of_a_copy_is_copied_without_it(bench: Bench) -> None:
    send_full(bench, b"full", {}, START + 30 * DAY)
    bench.send(b"far", START + 30 * DAY)
    bench.at(START + 2 * DAY)
    assert sorted(bench.timers._waiting) == [2, 3], "a message that is not copied is deleted with its file"
    bench.at(START + 30 * DAY)
    assert bench.delivered() == [b"full", b"far"]


def test_a_delay_without_room_for_a_correction_stays_and_holds_up_no_other(bench: Bench) -> None:
    bench.at(START + 10 * HOUR)
    send_full(bench, b"full", {"TIMER_DELAY_SEC": "60"}, START + 10 * HOUR + 60_000)
    send_delayed(bench, b"delayed", 60)
    bench.at(START)
    bench.at(START + 60_000)
    assert bench.delivered() == [b"delayed"]
    bench.at(START + 11 * HOUR)
    assert bench.delivered() == [b"delayed", b"full"]


def test_a_message_for_a_time_that_is_being_delivered_is_delivered_too(bench: Bench) -> None:
    for number in range(150):
        bench.send(b"m%d" % number, START + 1_000)
    bench.now = START + 1_000
    assert bench.timers.step(bench.now) == bench.now, "a part is left"
    bench.timers._recalls_at(START + 1_000)  # as for a copy whose producer recalls it by this time
    bench.send(b"late", START + 1_000)  # taken before, and written in this round of the loop
    bench.at(bench.now)
    assert bench.delivered() == [*(b"m%d" % number for number in range(150)), b"late"]
    assert len(bench.timers) == 0
