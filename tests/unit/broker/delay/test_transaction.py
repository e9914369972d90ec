"""Transactions: stored as RocketMQ stores them, settled once, checked back on time, across restarts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq.broker.transactions import STEP_MESSAGES, Transactions
from rmq.errors import DiskFull, ResponseError, StoreError
from rmq.message import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_GROUP,
    StoredMessage,
)
from rmq.protocol.codes import SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rmq.protocol.properties import encode_properties
from rmq.protocol.record import Record, decode_record
from rmq.store.config import StoreConfig
from rmq.store.files.disk import RealDisk
from rmq.store.store import Store

START = 1_800_000_000_000
HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
CONNECTION = cast(Any, SimpleNamespace(peer_address="127.0.0.1:1"))


class FakeOffsets:
    """Consumer offsets as a plain map."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str, int], int] = {}

    def get(self, group: str, topic: str, queue_id: int) -> int:
        return self.table.get((group, topic, queue_id), -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.table[group, topic, queue_id] = offset


class Bench:
    """A store, a producer that may be asked, and the transactions over them."""

    def __init__(self, folder: Path, **sizes: int) -> None:
        self.now = START
        self.born_ahead = 0
        self.config = SimpleNamespace(
            transaction_time_out=6000, transaction_check_max=3, transaction_check_interval=60_000
        )
        sizes = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000} | sizes
        self.store_config = StoreConfig(store_path_root_dir=str(folder), **cast(Any, sizes))
        self.offsets = FakeOffsets()
        self.asked: list[tuple[str, Command]] = []
        self.fail: StoreError | None = None
        self.online = True
        self.open()

    def open(self) -> None:
        self.store = Store(RealDisk(), self.store_config, store_host=HOST, now_ms=lambda: self.now)
        self.store.load()
        self.transactions = Transactions(
            cast(Any, SimpleNamespace(broker=self.config)),
            self.store,
            cast(Any, self.offsets),
            host=HOST,
            ask=self.ask,
            put=self.store.put,
            commit=self.commit,
        )
        self.transactions.load(self.now)

    def commit(self) -> None:
        if self.fail is not None:
            self.store._rollback()
            raise self.fail
        self.store.commit()

    def ask(self, group: str, account: str, topic: str, request: Command) -> bool:
        self.asked.append((group, request))
        return self.online

    def half(self, body: bytes = b"pay", group: str = "payers", **extra: str) -> Record:
        properties = {
            "TRAN_MSG": "true",
            "PGROUP": group,
            "UNIQ_KEY": "U-" + body[:9].decode(),
            "WAIT": "true",
        }
        properties |= extra
        born_ms = self.now + self.born_ahead
        record = Record("Real", 2, body, encode_properties(properties), 0, SYS_PREPARED, born_ms, HOST)
        self.transactions.prepare(record, properties)
        self.store.put(record)
        self.store.commit()
        return record

    def end(self, half: Record, decision: int, **wrong: Any) -> Command | None:
        fields: dict[str, Any] = {
            "producer_group": "payers",
            "tran_state_table_offset": half.queue_offset,
            "commit_log_offset": half.physical_offset,
            "commit_or_rollback": decision,
            "msg_id": "U",
        }
        request = Command.request(
            RequestCode.END_TRANSACTION, EndTransactionRequestHeader(**(fields | wrong)), oneway=True
        )
        answer = self.transactions._on_end(request, CONNECTION, self.now)
        self.commit()
        return answer

    def stored(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        found = []
        for offset in range(self.store.max_offset(topic, queue_id)):
            unit = self.store.unit(topic, queue_id, offset)
            assert unit is not None
            data = self.store.read(unit[0])
            assert data is not None
            found.append(decode_record(data))
        return found

    def real(self) -> list[bytes]:
        return [message.body for message in self.stored("Real", 2)]

    def wait(self, ms: int) -> int:
        """Let time pass, and do what is due then; returns when the next step is."""
        self.now += ms
        while (due := self.transactions.step(self.now)) <= self.now:
            pass
        return due


def test_a_half_message_is_stored_apart_and_not_delivered(bench: Bench) -> None:
    bench.half()
    (half,) = bench.stored(TRANS_HALF_TOPIC)
    assert (half.queue_id, half.sys_flag, half.body) == (0, 0, b"pay")
    assert half.properties["REAL_TOPIC"] == "Real"
    assert half.properties["REAL_QID"] == "2"
    assert bench.real() == []
    assert bench.transactions.open_count == 1


def test_a_commit_delivers_with_the_half_messages_place_and_writes_an_op(bench: Bench) -> None:
    half = bench.half()
    assert bench.end(half, SYS_COMMIT) is None
    (message,) = bench.stored("Real", 2)
    assert (message.body, message.sys_flag) == (b"pay", SYS_COMMIT)
    assert message.prepared_transaction_offset == half.physical_offset
    assert message.properties["TRAN_MSG"] == "true"
    (op,) = bench.stored(TRANS_OP_HALF_TOPIC)
    assert (op.body, op.tags) == (b"0", "d")
    assert op.properties == {"WAIT": "true", "TAGS": "d", "rmqDecision": "committed"}
    assert bench.transactions.open_count == 0


def test_a_rollback_writes_only_an_op(bench: Bench) -> None:
    bench.end(bench.half(), SYS_ROLLBACK)
    assert bench.real() == []
    assert len(bench.stored(TRANS_OP_HALF_TOPIC)) == 1


def test_unknown_leaves_the_half_message_open(bench: Bench) -> None:
    bench.end(bench.half(), 0)
    assert bench.transactions.open_count == 1


def test_an_end_that_comes_twice_delivers_once(bench: Bench) -> None:
    half = bench.half()
    bench.end(half, SYS_COMMIT)
    bench.end(half, SYS_COMMIT)
    bench.wait(60_000)
    bench.end(half, SYS_COMMIT)
    assert bench.real() == [b"pay"]


@pytest.mark.parametrize(
    ("wrong", "remark"),
    [
        ({"producer_group": "others"}, "producer group wrong"),
        ({"tran_state_table_offset": 7}, "state table offset wrong"),
        ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 3}, "Find prepared transaction message failed"),
    ],
)
def test_an_end_that_does_not_fit_its_half_message_is_refused(
    bench: Bench, wrong: dict[str, Any], remark: str
) -> None:
    half = bench.half()
    with pytest.raises(ResponseError, match=remark):
        bench.end(half, SYS_COMMIT, **wrong)
    assert bench.real() == []


@pytest.mark.parametrize("decision", [SYS_COMMIT, SYS_ROLLBACK])
@pytest.mark.parametrize("length", [32, 56])
def test_an_end_of_a_message_that_a_power_cut_took_is_not_that_of_the_one_in_its_place(
    bench: Bench, decision: int, length: int
) -> None:
    lost, key = f"{1:0{length}X}", f"{10:0{length}X}"
    half = bench.half(UNIQ_KEY=key)
    with pytest.raises(ResponseError, match="Find prepared transaction message failed"):
        bench.end(half, decision, msg_id=lost)
    assert (bench.real(), bench.transactions.open_count) == ([], 1)
    bench.end(half, SYS_COMMIT, msg_id=key.lower())
    assert bench.real() == [b"pay"]


def test_an_end_that_names_no_unique_key_is_told_by_its_place(bench: Bench) -> None:
    for key, told in ((f"{10:032X}", ""), (f"{10:032X}", "T"), ("own", f"{1:032X}")):
        bench.end(bench.half(UNIQ_KEY=key), SYS_COMMIT, msg_id=told)
    assert len(bench.real()) == 3
    half = bench.half(UNIQ_KEY=f"{10:032X}")
    bench.end(half, SYS_COMMIT, msg_id=f"{half.physical_offset:032X}")  # an offset id
    assert len(bench.real()) == 4


def test_an_overdue_half_message_is_written_anew_and_its_producer_asked(bench: Bench) -> None:
    half = bench.half()
    assert bench.wait(59_999) == START + 60_000
    assert bench.asked == []
    assert bench.wait(1) == START + 120_000
    ((group, request),) = bench.asked
    header = request.read(CheckTransactionStateRequestHeader)
    assert (group, request.is_oneway, header.transaction_id) == ("payers", True, "U-pay")
    again = bench.stored(TRANS_HALF_TOPIC)[1]
    assert (header.tran_state_table_offset, header.commit_log_offset) == (1, again.physical_offset)
    assert again.properties["TRANSACTION_CHECK_TIMES"] == "1"
    shown = decode_record(request.body)
    assert (shown.topic, shown.queue_id, shown.body) == ("Real", 2, b"pay")
    assert shown.physical_offset == again.physical_offset != half.physical_offset


@pytest.mark.parametrize("set_by", [-86_400_000, 86_400_000])
def test_a_check_back_comes_though_the_clock_was_set(bench: Bench, set_by: int) -> None:
    bench.half()
    bench.wait(1)
    bench.now += set_by
    bench.wait(0)
    bench.wait(60_000)
    assert len(bench.asked) >= 1


def test_the_answer_to_a_check_back_settles_it(bench: Bench) -> None:
    bench.half()
    bench.wait(60_000)
    again = bench.stored(TRANS_HALF_TOPIC)[1]
    renewed = Record("", 0, b"", queue_offset=1, physical_offset=again.physical_offset)
    bench.end(renewed, SYS_COMMIT, from_transaction_check=True)
    bench.wait(60_000)
    assert bench.real() == [b"pay"]
    assert len(bench.asked) == 1
    assert bench.offsets.table[TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0] == 2
    assert [op.body for op in bench.stored(TRANS_OP_HALF_TOPIC)] == [b"0", b"1"]
    assert bench.offsets.table[TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, 0] == 2


def test_a_late_end_of_the_first_copy_settles_the_copy_written_anew(bench: Bench) -> None:
    half = bench.half()
    bench.wait(60_000)
    bench.end(half, SYS_COMMIT)
    # Both, at once: a RocketMQ broker that goes on with this store would ask for the other copy.
    assert [op.body for op in bench.stored(TRANS_OP_HALF_TOPIC)] == [b"0", b"1"]
    bench.wait(60_000)
    assert bench.real() == [b"pay"]
    assert len(bench.asked) == 1
    assert bench.transactions.open_count == 0


def test_a_young_half_message_is_left_alone(bench: Bench) -> None:
    bench.now += 55_000
    bench.half()
    bench.wait(5_000)
    assert bench.asked == []
    bench.wait(60_000)
    assert len(bench.asked) == 1


def test_after_the_last_check_it_goes_to_the_discarded_and_can_be_put_back(bench: Bench) -> None:
    bench.online = False
    bench.half()
    for _ in range(4):
        bench.wait(60_000)
    assert len(bench.asked) == 3
    (dropped,) = bench.stored(TRANS_CHECK_MAX_TIME_TOPIC)
    assert dropped.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert bench.transactions.open_count == 0
    request = Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": dropped.offset_message_id})
    put_back = bench.transactions.handlers()[RequestCode.RESUME_CHECK_HALF_MESSAGE]
    answer = put_back(request, CONNECTION, bench.now)
    assert answer is not None
    assert answer.code == 0
    back = bench.stored(TRANS_HALF_TOPIC)[-1]
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in back.properties, "its age counts anew"
    assert back.properties["TRANSACTION_CHECK_TIMES"] == "0"
    bench.wait(60_000)
    assert len(bench.asked) == 4


def test_a_message_that_is_no_half_message_is_not_put_back(bench: Bench) -> None:
    bench.store.put(Record("Real", 0, b"x"))
    bench.store.commit()
    (plain,) = bench.stored("Real")
    for message_id in (plain.offset_message_id, "nonsense"):
        request = Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id})
        with pytest.raises(ResponseError):
            bench.transactions.handlers()[RequestCode.RESUME_CHECK_HALF_MESSAGE](
                request, CONNECTION, bench.now
            )


def test_immunity_postpones_the_check_and_writes_nothing_meanwhile(bench: Bench) -> None:
    bench.half(CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    bench.half(b"next")
    bench.wait(60_000)
    assert [decode_record(request.body).body for _, request in bench.asked] == [b"next"]
    assert len(bench.stored(TRANS_HALF_TOPIC)) == 3
    bench.wait(60_000)
    assert [decode_record(request.body).body for _, request in bench.asked] == [b"next", b"pay", b"next"]


def test_copies_behind_one_with_immunity_are_asked_for_once_across_a_restart(bench: Bench) -> None:
    bench.half(CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
    half = bench.half(b"next")
    bench.wait(60_000)
    bench.store.close()
    bench.open()
    bench.wait(60_000)
    bench.wait(60_000)
    assert [decode_record(request.body).body for _, request in bench.asked] == 3 * [b"next"]
    assert bench.transactions.open_count == 2
    bench.end(half, SYS_ROLLBACK)
    bench.wait(60_000)
    assert len(bench.asked) == 3


def test_a_half_message_with_immunity_moves_when_many_have_come_after_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.broker.transactions.LEFT_BEHIND", 3)
    bench.half(CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
    for number in range(2):
        bench.end(bench.half(b"%d" % number), SYS_ROLLBACK)
    bench.wait(60_000)
    assert bench.offsets.table[TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0] == 3
    assert bench.stored(TRANS_HALF_TOPIC)[3].properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert bench.transactions.open_count == 1


def test_what_ends_in_the_middle_of_a_pass_stays_settled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.broker.transactions.DRAIN_AT", 1)
    left = bench.half(CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
    others = [bench.half(b"%d" % number) for number in range(3)]
    bench.wait(60_000)
    monkeypatch.setattr("rmq.broker.transactions.STEP_MESSAGES", 1)
    bench.now += 60_000
    for _ in range(2):  # one looks at the first, which is left where it is; others are still to come
        assert bench.transactions.step(bench.now) == bench.now
    bench.end(left, SYS_ROLLBACK)
    bench.end(others[0], SYS_ROLLBACK)
    settled = bench.offsets.table[TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0]
    assert settled > left.queue_offset

    bench.transactions.step(bench.now)

    assert bench.offsets.table[TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0] >= settled


def test_no_immunity_lasts_longer_than_the_log_and_a_clock_of_the_producer_makes_none_young(
    bench: Bench,
) -> None:
    bench.born_ahead = 10**12
    bench.half(CHECK_IMMUNITY_TIME_IN_SECONDS="9999999999")
    for _hour in range(72):
        bench.wait(3_600_000)
    assert len(bench.stored(TRANS_HALF_TOPIC)) <= 3
    for _hour in range(3):
        bench.wait(3_600_000)
    assert bench.transactions.open_count == 0
    assert len(bench.stored(TRANS_CHECK_MAX_TIME_TOPIC)) == 1


def test_a_clock_that_is_set_forward_discards_no_half_message(tmp_path: Path) -> None:
    """By such a clock all half messages were older than the log's files, and none was asked for."""
    bench = Bench(tmp_path)
    seconds = 0.0
    bench.store._clock_watch._clock = lambda: seconds
    bench.store._clock_watch.begin(bench.now, bench.now)
    bench.half(b"first")
    bench.now += 90 * 3_600_000
    seconds += 61
    bench.wait(0)
    assert len(bench.asked) == 1
    assert bench.stored(TRANS_CHECK_MAX_TIME_TOPIC) == []
    bench.now += 3_700_000
    seconds += 3_700  # the clock is believed
    bench.wait(0)
    assert len(bench.stored(TRANS_CHECK_MAX_TIME_TOPIC)) == 1
    bench.store.close()


def test_one_without_room_in_its_properties_does_not_stop_the_check_of_others(bench: Bench) -> None:
    text = "PGROUP\x01payers\x02X\x01" + "x" * 32_740  # as Java takes it
    fat = Record(TRANS_HALF_TOPIC, 0, b"fat", text, born_timestamp=bench.now)
    bench.store.put(fat)
    bench.store.commit()
    bench.half()
    bench.wait(60_000)
    assert [decode_record(request.body).body for _, request in bench.asked] == [b"pay"]
    assert [message.body for message in bench.stored(TRANS_CHECK_MAX_TIME_TOPIC)] == [b"fat"]


def test_a_half_message_without_room_for_a_check_is_refused(bench: Bench) -> None:
    with pytest.raises(ResponseError, match="limit of a half message 32639B"):
        bench.half(X="x" * 32_600)


def test_properties_of_an_earlier_half_message_are_not_believed(bench: Bench) -> None:
    first = bench.half()
    bench.end(first, SYS_ROLLBACK)
    bench.half(b"again", TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="99")
    bench.wait(60_000)
    assert len(bench.asked) == 1
    assert bench.stored(TRANS_CHECK_MAX_TIME_TOPIC) == []


def test_a_commit_of_an_earlier_copy_holds_after_a_restart(bench: Bench) -> None:
    half = bench.half()
    bench.wait(60_000)
    bench.store.close()
    bench.open()
    bench.end(half, SYS_COMMIT)
    assert bench.real() == [b"pay"]
    bench.wait(60_000)
    assert len(bench.asked) == 1
    assert [op.body for op in bench.stored(TRANS_OP_HALF_TOPIC)] == [b"0", b"1"]
    assert bench.transactions.open_count == 0


def test_an_end_of_any_copy_is_known_by_its_op_message(bench: Bench) -> None:
    half = bench.half()
    bench.wait(60_000)
    bench.wait(60_000)
    copies = [
        Record("", 0, b"", queue_offset=one.queue_offset, physical_offset=one.physical_offset)
        for one in bench.stored(TRANS_HALF_TOPIC)
    ]
    bench.end(copies[1], SYS_COMMIT)
    for again in (*copies, half):
        bench.end(again, SYS_COMMIT)
    bench.store.close()
    bench.open()
    for again in copies:
        bench.end(again, SYS_COMMIT)
    bench.wait(60_000)
    assert bench.real() == [b"pay"]
    assert len(bench.asked) == 2
    assert bench.transactions.open_count == 0


def test_a_commit_of_a_discarded_half_message_is_obeyed(bench: Bench) -> None:
    half = bench.half()
    for _ in range(4):
        bench.wait(60_000)
    assert len(bench.stored(TRANS_CHECK_MAX_TIME_TOPIC)) == 1
    bench.end(half, SYS_COMMIT)
    assert bench.real() == [b"pay"]


def test_what_is_remembered_of_ends_and_copies_is_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.broker.transactions.DONE_KEPT", 5)
    for number in range(20):
        half = bench.half(b"%d" % number)
        if number % 2:
            bench.wait(60_000)
        bench.end(half, SYS_ROLLBACK)
    bench.half(b"open")
    for _ in range(6):
        bench.wait(60_000)
    kept = bench.transactions
    assert kept.open_count == 0
    assert (len(kept._latest), len(kept._ended), len(kept._done)) == (0, 0, 5)


def test_nothing_is_remembered_of_copies_that_went_with_the_log_s_old_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.half()
    bench.wait(60_000)
    assert len(bench.transactions._latest) == 1
    monkeypatch.setattr(bench.store, "unit", lambda *args: None)  # as on a full disk, long before their time
    bench.wait(60_000)
    assert bench.transactions.open_count == 0
    assert len(bench.transactions._latest) == 0


def test_a_long_settled_part_is_passed_piece_by_piece(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    halves = [bench.half(b"%d" % number) for number in range(8)]
    for half in reversed(halves[:-1]):
        bench.end(half, SYS_ROLLBACK)
    monkeypatch.setattr("rmq.broker.transactions.DRAIN_AT", 3)
    passed = []
    for _ in range(3):
        bench.wait(0)
        passed.append(bench.offsets.table[TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0])
    assert passed == [3, 6, 7]
    assert bench.transactions.open_count == 1
    bench.wait(60_000)
    assert [decode_record(request.body).body for _, request in bench.asked] == [b"7"]


def test_a_failed_write_leaves_what_was_known_before(bench: Bench) -> None:
    ended, half = bench.half(b"ended"), bench.half()
    bench.end(ended, SYS_COMMIT)
    bench.fail = DiskFull("no room")
    with pytest.raises(DiskFull):
        bench.end(half, SYS_COMMIT)
    bench.transactions.rolled_back()
    bench.fail = None
    bench.end(ended, SYS_COMMIT)
    bench.end(half, SYS_COMMIT)
    assert bench.real() == [b"ended", b"pay"]
    assert bench.transactions.open_count == 0


def test_a_step_of_the_check_is_short_and_the_next_goes_on(bench: Bench) -> None:
    for number in range(STEP_MESSAGES + 5):
        bench.half(b"%d" % number)
    bench.now += 60_000
    asked = []
    while bench.transactions.step(bench.now) == bench.now:
        asked.append(len(bench.asked))
    assert asked == [0, 0, STEP_MESSAGES]  # the first two look for copies that a start does not know
    assert len(bench.asked) == STEP_MESSAGES + 5


def test_a_step_of_the_check_writes_few_bytes(bench: Bench) -> None:
    for number in range(5):
        bench.half(b"%d" % number + bytes(400_000))
    bench.now += 60_000
    while not bench.asked:
        assert bench.transactions.step(bench.now) == bench.now
    assert len(bench.asked) == 3


def test_a_restart_asks_only_for_what_is_open(bench: Bench) -> None:
    first, _second, third = (bench.half(b"%d" % number) for number in range(3))
    bench.end(third, SYS_COMMIT)
    bench.end(first, SYS_ROLLBACK)
    bench.store.close()
    bench.open()
    assert bench.transactions.open_count == 1
    bench.wait(60_000)
    assert [decode_record(request.body).body for _, request in bench.asked] == [b"1"]
    assert bench.real() == [b"2"]


def test_a_failed_write_settles_nothing(bench: Bench) -> None:
    half = bench.half()
    bench.fail = DiskFull("no room")
    with pytest.raises(DiskFull):
        bench.end(half, SYS_COMMIT)
    bench.transactions.rolled_back()
    with pytest.raises(DiskFull):
        bench.wait(60_000)
    bench.fail = None
    assert bench.transactions.open_count == 1
    bench.end(half, SYS_COMMIT)
    assert bench.real() == [b"pay"]
    assert bench.transactions.open_count == 0


def test_the_store_of_a_java_broker_goes_on_here(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "store", tmp_path / "store")
    bench = Bench(
        tmp_path / "store",
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=1000,
        max_hash_slot_num=500,
        max_index_num=200,
    )
    table = json.loads((golden / "store" / "expected.json").read_text())["messages"]
    halves = [row for row in table if row["topic"] == TRANS_HALF_TOPIC]
    ops = [row for row in table if row["topic"] == TRANS_OP_HALF_TOPIC]
    assert bench.transactions.open_count == len(halves) - len(ops) == 1
    bench.now = halves[-1]["store_timestamp"]
    bench.transactions.load(bench.now)
    bench.wait(60_000)
    ((group, request),) = bench.asked
    assert (group, decode_record(request.body).body) == ("golden_tx_producer", b"transaction unknown")
    bench.store.close()
