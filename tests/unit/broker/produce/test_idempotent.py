"""Batches of idempotent producers through a whole broker: each message is stored once, restarts or not."""

from __future__ import annotations

from random import Random

import pytest

from rmq.broker.produce import idempotent
from rmq.broker.produce.idempotent import Sent, SentTable
from rmq.plugin import ACCOUNT
from rmq.protocol.codes import FLAG_ONEWAY, IDEMPOTENT_SEND, RequestCode, ResponseCode
from rmq.protocol.command import ROCKETMQ, Command
from rmq.protocol.record import decode_batch, encode_batch
from rmq.store.config import FlushDiskType
from rmq.testing.disk import MemoryDisk

from ..rig import START, Rig, Wire, batch, send

HOUR = 3_600_000


def rig(disk: MemoryDisk | None = None, **more: object) -> Rig:
    made = Rig(disk=disk, **{"idempotent_send_keep_time": HOUR} | more)  # type: ignore[arg-type]
    if made.topics.get("Orders") is None:
        made.topic("Orders")
    return made


def numbered(
    first: int,
    count: int,
    *,
    producer: str = "run/0/5",
    topic: str = "Orders",
    queue_id: int = 0,
    text: str = "",
) -> Command:
    """The messages "first" to "first + count - 1" of a producer."""
    numbers = range(first, first + count)
    body = encode_batch((0, b"%d%b" % (n, text.encode()), f"UNIQ_KEY\x01K{n}\x02a\x01b") for n in numbers)
    made = batch(topic, queue_id=queue_id)
    ext = {**made.ext, "producerId": producer, "sequence": str(first)}
    return Command(IDEMPOTENT_SEND, made.opaque, 0, ext, body)


def places(answer: Command) -> tuple[str, str, str]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["msgId"]


def stored(rig: Rig, queue_id: int = 0, topic: str = "Orders") -> list[int]:
    return [int(body) for body in rig.bodies(topic, queue_id)]


def restarted(old: Rig, **more: object) -> Rig:
    """The broker that finds the disk of a killed broker."""
    made = rig(old.disk.copy(), **more)
    made.now_ms = old.now_ms
    return made


def test_a_batch_that_comes_again_is_answered_with_the_place_of_the_first() -> None:
    broker = rig()
    first = places(broker.one(numbered(0, 5)))
    assert first[:2] == ("0", "0")
    assert len(first[2].split(",")) == 5
    end = broker.store.max_physical_offset
    assert places(broker.one(numbered(0, 5))) == first
    assert places(broker.one(numbered(0, 5, queue_id=3))) == first
    assert broker.store.max_physical_offset == end
    assert stored(broker) == list(range(5))
    assert stored(broker, 3) == []


def test_both_may_come_in_one_chunk_and_over_other_connections() -> None:
    broker = rig()
    one, other = broker.ask(numbered(0, 5), numbered(0, 5))
    assert places(one) == places(other)
    assert places(broker.call(IDEMPOTENT_SEND, dict(numbered(0, 5).ext), numbered(0, 5).body)) == places(one)
    assert stored(broker) == list(range(5))


@pytest.mark.parametrize(
    ("before", "again"),
    [([(0, 5)], (3, 7)), ([(5, 5)], (0, 8)), ([(2, 2), (6, 2)], (0, 10)), ([(0, 4), (4, 4)], (2, 4))],
)
def test_of_a_batch_that_is_cut_another_way_the_rest_is_stored(
    before: list[tuple[int, int]], again: tuple[int, int]
) -> None:
    broker = rig()
    wanted: set[int] = set()
    for first, count in before:
        broker.one(numbered(first, count))
        wanted.update(range(first, first + count))
    answer = places(broker.one(numbered(*again)))
    wanted.update(range(again[0], again[0] + again[1]))
    assert sorted(stored(broker)) == sorted(wanted)
    found = [broker.store.message(int(one[-16:], 16)) for one in answer[2].split(",")]
    assert [int(message.body) for message in found if message] == list(range(again[0], sum(again)))
    assert places(broker.one(numbered(*again))) == answer
    assert places(restarted(broker).one(numbered(*again))) == answer


def test_producers_and_topics_do_not_know_of_each_other() -> None:
    broker = rig()
    broker.topic("Other")
    for more in ({}, {"producer": "run/0/6"}, {"topic": "Other"}):
        places(broker.one(numbered(0, 3, **more)))  # type: ignore[arg-type]
    assert stored(broker) == [0, 1, 2, 0, 1, 2]
    assert stored(broker, topic="Other") == [0, 1, 2]


def test_a_producer_s_name_is_that_of_its_account() -> None:
    """Otherwise an account could use the numbers of another account, whose messages would be refused, or
    count as sent, for good."""
    broker, mine, theirs = rig(), Wire(), Wire()
    mine.state[ACCOUNT], theirs.state[ACCOUNT] = "mine", "theirs"
    taken = places(broker.one(numbered(0, 3, text="0"), wire=theirs))
    answer = places(broker.one(numbered(0, 3), wire=mine))
    assert answer != taken
    assert stored(broker) == [0, 10, 20, 0, 1, 2]
    for _ in range(2):
        broker = restarted(broker)
        assert places(broker.one(numbered(0, 3), wire=mine)) == answer
        assert places(broker.one(numbered(0, 3, text="0"), wire=theirs)) == taken
        refused = broker.one(numbered(0, 3, text="7"), wire=mine)
        assert "producer run/0/5 has sent another as number 0" in (refused.remark or "")
    assert all("mine" not in str(message.properties) for message in broker.messages("Orders"))


def test_what_was_sent_is_known_after_a_kill_and_a_restart() -> None:
    broker = rig()
    answers = [places(broker.one(numbered(first, 5, queue_id=first % 4))) for first in range(0, 40, 5)]
    broker.one(batch())
    for _ in range(2):
        broker = restarted(broker)
        end = broker.store.max_physical_offset
        again = [places(broker.one(numbered(first, 5))) for first in range(0, 40, 5)]
        assert again == answers
        assert broker.store.max_physical_offset == end


def test_it_is_read_again_from_a_log_of_many_files_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotent, "READ_BYTES", 2000)
    monkeypatch.setattr(idempotent, "SLICE_BYTES", 4000)
    small = {"mapped_file_size_commit_log": 8192}
    broker = rig(store=small)
    answers = [places(broker.one(numbered(first, 7))) for first in range(0, 210, 7)]
    broker = restarted(broker, store=small)
    refused = 0
    while (answer := broker.one(numbered(0, 7))).code == ResponseCode.SYSTEM_BUSY:
        refused += 1
        assert "try again" in (answer.remark or "")
    assert refused > 3
    assert [places(broker.one(numbered(first, 7))) for first in range(0, 210, 7)] == answers
    assert len(stored(broker)) == 210


def test_files_from_before_the_kept_time_are_not_read() -> None:
    small = {"mapped_file_size_commit_log": 4096}
    broker = rig(store=small)
    old = [numbered(first, 5) for first in range(0, 50, 5)]
    for request in old:
        broker.one(request)
    broker.let_pass(2 * HOUR)
    for first in range(50, 100, 5):
        broker.one(numbered(first, 5))
    broker = restarted(broker, store=small)
    broker.one(numbered(50, 5))
    assert min(sent.first for sent in broker.broker.idempotent.table.among("Orders", "run/0/5", 0, 999)) >= 30
    assert len(stored(broker)) == 100


def test_a_batch_whose_tail_was_lost_is_completed_also_after_others_have_come() -> None:
    broker = rig()
    broker.one(numbered(0, 3))
    broker.one(numbered(3, 6))
    fifth = broker.store.unit("Orders", 0, 5)
    assert fifth is not None
    broker.store.truncate(fifth[0])  # 0 to 4 are left
    broker = restarted(broker)
    broker.let_pass(5)
    broker.one(batch(bodies=(b"100", b"101", b"102", b"103", b"104"), born_timestamp=START + 3))
    broker = restarted(broker)
    places(broker.one(numbered(3, 6)))
    assert stored(broker) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104, 5, 6, 7, 8]
    broker = restarted(broker)
    for first, count in ((0, 3), (3, 6), (0, 9)):
        places(broker.one(numbered(first, count)))
    assert len(stored(broker)) == 14


def test_numbers_are_forgotten_after_the_kept_time() -> None:
    broker = rig()
    broker.one(numbered(0, 3))
    broker.let_pass(HOUR)
    broker.one(numbered(0, 3))
    assert stored(broker) == [0, 1, 2]
    broker.let_pass(1)
    broker.one(numbered(0, 3))
    assert stored(broker) == [0, 1, 2, 0, 1, 2]
    assert broker.broker.idempotent.table.count == 1


def test_numbers_of_other_messages_are_refused_and_nothing_is_stored() -> None:
    broker = rig()
    broker.one(numbered(0, 3))
    end = broker.store.max_physical_offset
    answer = broker.one(numbered(2, 3, text="!"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "producer run/0/5 has sent another as number 2" in (answer.remark or "")
    assert broker.store.max_physical_offset == end


def test_what_could_not_be_written_is_not_known() -> None:
    broker = rig()
    broker.one(numbered(0, 3))
    broker.disk.fail("write", "commitlog")
    assert broker.one(numbered(3, 3)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.let_pass(5_000)
    broker.one(numbered(3, 3))
    assert stored(broker) == [0, 1, 2, 3, 4, 5]
    broker.disk.fail("write", "commitlog")
    assert broker.one(numbered(5, 3)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.let_pass(5_000)
    places(broker.one(numbered(5, 3)))
    assert stored(broker) == list(range(8))


def test_messages_of_a_topic_that_was_made_again_are_stored_again() -> None:
    broker = rig()
    broker.one(numbered(0, 3))
    broker.store.remove_topic("Orders")
    broker.one(numbered(0, 3))
    assert stored(broker) == [0, 1, 2]
    broker.store.remove_topic("Orders")
    broker.one(batch(bodies=(b"7", b"8", b"9")))
    broker.one(numbered(0, 3))
    assert stored(broker) == [7, 8, 9, 0, 1, 2]


def test_a_copy_of_a_message_does_not_count() -> None:
    broker = rig()
    broker.one(numbered(0, 3))
    unit = broker.store.unit("Orders", 0, 0)
    assert unit is not None
    message = broker.store.message(unit[0])
    assert message is not None
    text = "\x02".join(f"{name}\x01{value}" for name, value in message.properties.items())
    assert idempotent.PROPERTY_IDEMPOTENT_SEND in text
    other = rig()
    other.one(send(body=b"7"))
    other.one(send(body=b"8", properties=text))
    other = restarted(other)
    places(other.one(numbered(0, 3)))
    assert stored(other) == [7, 8, 0, 1, 2]


def test_a_forged_property_replaces_nothing() -> None:
    broker = rig()
    first = places(broker.one(numbered(0, 3)))
    for forged in (
        "0 1 0 3",
        "0 x 0 3",
        "0 -1 0 3",
        "-1 0 0 3",
        "0 0 -1 3",
        f"0 {10**30} 0 3",
        f"0 0 0 {10**30}",
    ):
        properties = f"IDEMPOTENT_SEND\x01Orders {forged} run/0/5\x02UNIQ_KEY\x01A"
        assert broker.one(send(properties=properties)).code == ResponseCode.SUCCESS
    assert places(restarted(broker).one(numbered(0, 3))) == first


def test_a_second_answer_waits_for_the_disk_as_the_first() -> None:
    broker = rig(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    assert broker.ask(numbered(0, 3)) == []
    assert broker.ask(numbered(0, 3)) == []
    broker.broker.on_synced(broker.store.flush())
    one, other = broker.wire.take()
    assert places(one) == places(other)


def test_consumers_get_what_was_sent_and_one_property_more_of_each_batch() -> None:
    broker = rig()
    request = numbered(0, 3)
    sent = [text for _, _, text in decode_batch(request.body)]
    broker.one(request)
    first, *others = broker.messages("Orders")
    assert first.properties.pop("IDEMPOTENT_SEND") == "Orders 0 0 0 3 run/0/5"
    for message, text in zip([first, *others], sent, strict=True):
        wanted = dict(pair.split("\x01") for pair in text.split("\x02"))
        assert message.properties == {**wanted, "CLUSTER": "WireCluster"}


def test_the_binary_form_and_oneway_requests_are_understood() -> None:
    broker = rig()
    request = numbered(0, 3)
    request.serialization = ROCKETMQ
    first = places(broker.one(request))
    oneway = numbered(3, 3)
    oneway.flag |= FLAG_ONEWAY
    assert broker.ask(oneway) == []
    assert broker.ask(oneway) == []
    assert places(broker.one(numbered(0, 3))) == first
    assert stored(broker) == list(range(6))


def test_without_the_setting_they_are_not_supported() -> None:
    broker = Rig()
    assert broker.one(numbered(0, 3)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert broker.store.max_physical_offset == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"producerId": ""}, "0 characters"),
        ({"producerId": "a" * 128}, "128 characters"),
        ({"producerId": "a b"}, "no blank"),
        ({"producerId": "a\x02b"}, "of ASCII"),
        ({"sequence": "-1"}, "a number from 0 on"),
        ({"sequence": "9" * 19}, "a number from 0 on"),
        ({"m": "false"}, "are batches"),
        ({"e": "-1"}, "to a queue that they name"),
        ({"e": "9"}, "queueId[9] is illegal"),
    ],
)
def test_what_is_no_such_request_is_refused(change: dict[str, str], says: str) -> None:
    broker = rig()
    made = numbered(0, 3)
    answer = broker.one(Command(made.code, made.opaque, 0, {**made.ext, **change}, made.body))
    assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR)
    assert says in (answer.remark or "")
    assert broker.store.max_physical_offset == 0


def test_bodies_that_are_no_batch_are_refused() -> None:
    broker = rig()
    made = numbered(0, 3)
    chance = Random(7)
    bodies = [b"", b"abc", bytes(40), made.body[:-1], made.body[:22]]
    for _ in range(300):
        damaged = bytearray(made.body)
        damaged[chance.choice([0, 1, 2, 3, 16, 17, 18, 19])] ^= 1 << chance.randrange(8)
        bodies.append(bytes(damaged))
    for body in bodies:
        answer = broker.one(Command(made.code, made.opaque, 0, made.ext, body))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, body
    assert broker.store.max_physical_offset == 0


def test_no_more_are_kept_than_the_setting_says() -> None:
    broker = rig(idempotent_sends_max=2)
    for first in (0, 3):
        places(broker.one(numbered(first, 3)))
    answer = broker.one(numbered(6, 3))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "idempotentSendsMax" in (answer.remark or "")
    places(broker.one(numbered(3, 3)))  # what is known needs no room
    broker.let_pass(HOUR + 1)
    places(broker.one(numbered(6, 3)))
    assert stored(broker) == list(range(9))


def test_a_clock_that_was_set_back_keeps_no_batch_longer_than_the_setting_says() -> None:
    """They stayed until the clock was there again, and all places were taken for days."""
    broker = rig(idempotent_sends_max=2)
    for first in (0, 3):
        places(broker.one(numbered(first, 3)))
    broker.now_ms -= 72 * HOUR
    places(broker.one(numbered(3, 3)))
    assert stored(broker) == list(range(6)), "not forgotten yet"
    broker.let_pass(HOUR + 1)
    places(broker.one(numbered(6, 3)))
    assert stored(broker) == list(range(9))


def test_a_clock_that_is_set_forward_makes_no_batch_forgotten() -> None:
    broker = rig()
    watch = broker.store._clock_watch
    watch._clock = lambda: broker.seconds
    watch.begin(broker.now_ms, broker.now_ms)
    places(broker.one(numbered(0, 3)))
    broker.now_ms += 72 * HOUR
    places(broker.one(numbered(0, 3)))
    assert stored(broker) == [0, 1, 2]


def test_a_slave_that_becomes_master_knows_by_its_copy_of_the_log() -> None:
    broker = rig()
    answers = [places(broker.one(numbered(first, 5))) for first in (0, 5)]
    slave = rig()
    slave.become_slave()
    slave.broker.copied_log.append(0, broker.store.read_raw(0, 1 << 20))
    promoted = restarted(slave)
    assert [places(promoted.one(numbered(first, 5))) for first in (0, 5)] == answers
    assert stored(promoted) == list(range(10))


def test_a_table_finds_what_has_some_of_the_numbers() -> None:
    chance, table = Random(3), SentTable()
    wanted: dict[int, Sent] = {}
    for at in range(400):
        first = chance.randrange(200)
        sent = Sent(first, chance.randrange(1, 9), "T", 0, at, "P", stored_ms=at)
        table.add(sent)
        for old in {wanted[n] for n in range(sent.first, sent.end) if n in wanted}:
            for number in range(max(sent.first, old.first), old.end):  # an old one keeps its head only
                if wanted.get(number) is old:
                    del wanted[number]
        wanted |= dict.fromkeys(range(sent.first, sent.end), sent)
        low = chance.randrange(200)
        high = low + chance.randrange(1, 30)
        found = {
            n
            for one in table.among("T", "P", low, high)
            for n in range(max(low, one.first), min(high, one.end))
        }
        assert found == {n for n in wanted if low <= n < high}
    table.expire(1000, 1000)
    assert (table.count, table.among("T", "P", 0, 999)) == (0, [])


def test_sends_of_other_clients_never_come_here() -> None:
    broker = rig()
    codes = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    broker.broker.idempotent.on_send = None  # type: ignore[assignment, method-assign]
    assert all(broker.broker.handlers[code] == broker.broker.send.send for code in codes)
    broker.ask(send(), batch())
    assert not any("IDEMPOTENT_SEND" in message.properties for message in broker.messages("Orders"))


def test_a_batch_has_a_bound_of_messages() -> None:
    """180,000 that were sent again took 2.4 s in one turn to be compared."""
    broker = rig()
    answer = broker.one(numbered(0, 1_001))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "1001 messages, at most 1000" in (answer.remark or "")
    assert broker.one(numbered(0, 1_000)).code == 0
