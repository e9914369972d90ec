"""Parts of the benchmarks beside other brokers: bytes of other protocols, rounds, and the page."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from typing import cast

import pytest

from benchmarks.peers import crowd_rows, disturbed, sets
from benchmarks.peers.crowds import CROWDS, TOPIC_QUEUES, Flow, KafkaCrowd, connected, wait_until_taken
from benchmarks.peers.page import chart, page
from benchmarks.peers.replicated import SETS
from benchmarks.peers.servers import CACHE, Durability, Server
from benchmarks.peers.tails import TAILS, RedisTail, RmqTail
from benchmarks.peers.turns import Figures, LoadFailed, Work, by_turns, rows_of, table
from benchmarks.peers.wires import (
    SHARES,
    WIRES,
    Amqp,
    Histogram,
    Rmq,
    Wire,
    crc32c,
    ring_of,
    run_paced,
    topic_of,
    varint,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode


class Pair:
    """A broker that is played: what a wire has sent to it, and what it answers."""

    def __init__(self, kind: type[Wire], monkeypatch: pytest.MonkeyPatch, *answers: bytes) -> None:
        ours, self.theirs = socket.socketpair()
        for one in (ours, self.theirs):
            one.settimeout(10)
        self.theirs.sendall(b"".join(answers))
        monkeypatch.setattr(socket, "create_connection", lambda *_: ours)
        monkeypatch.setattr(socket.socket, "setsockopt", lambda *_: None)
        self.wire = kind(0, 4, 0, range(2), made=2)

    def sent(self) -> list[Command]:
        """The requests of RocketMQ's protocol that have come."""
        return list(Decoder().feed(self.theirs.recv(1 << 20)))


@pytest.fixture
def ok() -> bytes:
    return encode(Command.request(RequestCode.HEART_BEAT).reply())


def test_the_checksum_of_kafkas_batches_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4, and all tables of CRCs


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, b"\0"), (-1, b"\1"), (1, b"\2"), (63, b"\x7e"), (64, b"\x80\1"), (-65, b"\x81\1")],
)
def test_numbers_of_kafkas_records_are_zigzag(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded


def test_the_page_has_a_bar_for_each_broker() -> None:
    row = {"durability": "in <memory>", "work": "alone", "words": "nothing", "cpu_us": 1.0, "rate": 2e6}
    text = page("Taken today", [row | {"broker": "rmq"}, row | {"broker": "kafka", "cpu_us": 4.0}])
    assert text.count("<rect") == 4
    assert 'class="bar ours" x="150" y="4" width="115.0"' in text
    assert "2,000,000" in text
    assert "In &lt;memory&gt;" in text


def test_a_chart_of_zeros_has_bars_without_length() -> None:
    assert 'width="0.0"' in chart("none", [("rmq", 0.0, "0")])


def test_latencies_are_counted_in_buckets_of_under_one_percent() -> None:
    histogram = Histogram()
    for value in range(1, 100_001):
        histogram.add(value + 0.5)
    for share in SHARES:
        assert histogram.at(share) == pytest.approx(share * 100_000, rel=0.01)
    assert (histogram.count, histogram.most) == (100_000, 100_000.5)
    histogram.add(5e6, 1_000_000)
    assert histogram.at(0.5) == pytest.approx(5e6, rel=0.01)
    assert Histogram().at(0.5) == 0


def test_the_page_shows_latencies_and_memory_where_there_are_any() -> None:
    row = {"durability": "d", "work": "sends at 50%", "broker": "rmq", "words": "w", "cpu_us": 1.0}
    row |= {"rate": 5_000.0}
    assert "latency" not in page("c", [row])
    shown = page("c", [row | {"latency": {"p50": 99.0, "max": 12_345.0}, "memory": 31.4}])
    assert "latency of a message, p50, ms" in shown
    assert ">12.35<" in shown
    assert ">31<" in shown


def test_requests_of_different_lengths_lie_together_from_any_on() -> None:
    ring, starts = ring_of([b"a", b"bb", b"ccc"], 4)
    for turn in range(3):
        assert (
            bytes(ring[starts[turn] : starts[turn + 4]]).decode()
            == ("abbccc" * 3)[starts[turn] :][: starts[turn + 4] - starts[turn]]
        )


def test_a_connection_sends_as_many_again_as_were_acknowledged(
    monkeypatch: pytest.MonkeyPatch, ok: bytes
) -> None:
    pair = Pair(Rmq, monkeypatch)
    flow, histogram = Flow(pair.wire, 3), Histogram()
    flow.begin()
    assert [command.ext["e"] for command in pair.sent() if command.ext] == ["0", "1", "0"]
    pair.theirs.sendall(ok + ok + ok[:5])
    assert flow.read(histogram) == 2
    assert [command.ext["e"] for command in pair.sent() if command.ext] == ["1", "0"]
    pair.theirs.sendall(ok[5:])
    assert flow.read(None) == 1
    assert histogram.count == 2  # the third was not to be counted
    assert [command.ext["e"] for command in pair.sent() if command.ext] == ["1"]


def test_a_refusal_ends_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Rmq, monkeypatch)
    flow = Flow(pair.wire, 1)
    flow.begin()
    pair.theirs.sendall(encode(Command.request(RequestCode.HEART_BEAT).reply(code=1, remark="no")))
    with pytest.raises(ValueError, match="no"):
        flow.read(None)


def test_queues_are_shared_out_among_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Wire):
        def open(self) -> None:
            pass

    monkeypatch.setattr(socket, "create_connection", lambda *_: socket.socket())
    eight = connected(Told, [1], 2, 0, 8, 1000)
    assert [queue for wire in eight for queue in wire.queues] == list(range(1000))
    assert [wire.made for wire in eight] == [1000, 0, 0, 0, 0, 0, 0, 0]
    many = connected(Told, [1, 2], 2, 0, 6, 4)
    assert [list(wire.queues) for wire in many] == [[0], [1], [2], [3], [0], [1]]
    assert [wire.made for wire in many] == [4, 4, 0, 0, 0, 0]
    for wire in eight + many:
        wire.sock.close()


def test_ten_thousand_queues_are_of_several_topics(monkeypatch: pytest.MonkeyPatch, ok: bytes) -> None:
    class Crowd(CROWDS["rmq"]):  # type: ignore[misc]
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__(0, 4, 0, range(TOPIC_QUEUES - 1, TOPIC_QUEUES + 1), made=TOPIC_QUEUES + 5)

    pair = Pair(Crowd, monkeypatch, ok, ok)
    made = [command.ext for command in pair.sent()]
    assert [(one["topic"], one["readQueueNums"]) for one in made if one] == [
        ("Peers", "1000"),
        ("Peers-1", "5"),
    ]
    sent = [command.ext for command in Decoder().feed(b"".join(pair.wire.requests))]
    assert [(one["b"], one["e"]) for one in sent if one] == [("Peers", "999"), ("Peers-1", "0")]


def test_kafkas_topics_have_the_nodes_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened(KafkaCrowd):
        def open(self) -> None:
            self.make_topic([[1, 2, 3], [2, 1]], {"min.insync.replicas": "3"})

    answer = b"\0\0\0\1" + b"\0\0\0\1" + b"\0\5Peers" + b"\0\0"
    pair = Pair(Opened, monkeypatch, len(answer).to_bytes(4, "big") + answer)
    sent = pair.theirs.recv(1000)
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    assert sent[4:8] == b"\0\x13\0\0"  # CreateTopics, version 0
    assert sent.endswith(
        b"\0\0\0\1\0\5Peers\xff\xff\xff\xff\xff\xff\0\0\0\2"
        b"\0\0\0\0\0\0\0\3\0\0\0\1\0\0\0\2\0\0\0\3"
        b"\0\0\0\1\0\0\0\2\0\0\0\2\0\0\0\1"
        b"\0\0\0\1\0\x13min.insync.replicas\0\x013\0\0\x75\x30"
    )


def test_a_set_is_asked_until_it_takes_messages(monkeypatch: pytest.MonkeyPatch, ok: bytes) -> None:
    pair = Pair(Rmq, monkeypatch, encode(Command.request(RequestCode.HEART_BEAT).reply(code=11, remark="")))
    pair.wire.requests = pair.wire.requests[:1]
    monkeypatch.setattr("time.sleep", lambda _: pair.theirs.sendall(ok))
    wait_until_taken(pair.wire)
    assert len(pair.sent()) == 2


def test_a_tail_is_polled_again_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(RmqTail, monkeypatch)
    reader = cast(RmqTail, pair.wire)
    reader.begin()
    (first,) = pair.sent()
    assert first.ext
    assert (first.ext["queueOffset"], first.ext["sysFlag"]) == ("0", "6")
    fields = {"nextBeginOffset": "7", "maxOffset": "7", "minOffset": "0"}
    head = {"code": 0, "flag": 1, "opaque": first.opaque, "extFields": fields}
    header = json.dumps(head, separators=(",", ":")).encode()
    assert reader.taken(struct.pack(">II", 4 + len(header), len(header)) + header) == 7
    (second,) = pair.sent()
    assert second.ext
    assert second.ext["queueOffset"] == "7"


def test_redis_tells_entries_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(topic_of(RedisTail, "Peers"), monkeypatch)
    reader = cast(RedisTail, pair.wire)
    reader.begin()
    entry = b"*2\r\n$3\r\n%d-0\r\n*2\r\n$1\r\nb\r\n$4\r\nabcd\r\n"
    whole = b"*1\r\n*2\r\n$5\r\nPeers\r\n*2\r\n" + entry % 1 + entry % 2
    for at in range(1, len(whole)):
        assert reader.taken(whole[at - 1 : at]) == 0
    assert reader.taken(whole[-1:]) == 2
    assert pair.theirs.recv(1000).endswith(b"$3\r\n2-0\r\n")
    with pytest.raises(ValueError, match="ERR"):
        reader.taken(b"-ERR no")


def amqp_frame(kind: int, method: int, arguments: bytes) -> bytes:
    payload = struct.pack(">HH", kind, method) + arguments
    return struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce"


def test_confirms_of_amqp_count_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tune = struct.pack(">HIH", 0, 4096, 60)
    methods = ((10, 10, b""), (10, 30, tune), (10, 41, b""), (20, 11, b""), (50, 11, b""), (85, 11, b""))
    wire = Pair(Amqp, monkeypatch, *(amqp_frame(*method) for method in methods)).wire
    acks = [amqp_frame(60, 80, struct.pack(">QB", *ack)) for ack in ((3, 0), (2, 1), (4, 1), (6, 0), (7, 1))]
    assert [wire.answered(ack) for ack in acks] == [1, 2, 1, 1, 2]
    assert wire.requests[0].endswith(wire.body + b"\xce")
    with pytest.raises(ValueError, match="refused"):
        wire.answered(amqp_frame(60, 120, b"refused"))


@pytest.fixture
def server() -> Iterator[Server]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield Server("rmq", 1, process)
        process.kill()


def test_a_broker_is_all_processes_that_it_started(server: Server) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        both = Server("rmq", 1, server.process, (other.pid,))
        assert set(both.tree()) == {server.process.pid, other.pid}
        assert both.memory_mib() > server.memory_mib() > 0
        assert both.cpu_seconds() < 5
        other.kill()


def test_a_load_that_fails_has_no_row_and_the_others_go_on(server: Server) -> None:
    kafka = Server("kafka", 2, server.process)
    turns = []

    def turn(one: Server, work: Work) -> Figures | None:
        turns.append(one.kind)
        if one is kafka and len(turns) > 4:
            raise LoadFailed("x")
        return Figures(100.0 * len(turns), 2.0 + (one is kafka), {"p50": 1.0 * len(turns)}, 5.0)

    results = by_turns("d", [Work("w", 1)], [server, kafka], 2, turn)
    assert turns == ["kafka", "rmq", "rmq", "kafka", "kafka", "rmq"]  # warm, first, second round
    assert {key: len(found) for key, found in results.items()} == {("w", "rmq"): 2}
    (row,) = rows_of(Durability("d", {"rmq": "words"}), results)
    assert (row["rate"], row["latency"], row["cpu_ratio"]) == (450.0, {"p50": 4.5}, 1.0)


def test_a_row_without_ours_has_no_ratio() -> None:
    rows = rows_of(CACHE, {("w", "kafka"): [Figures(10.0, 3.0)]})
    assert rows[0]["cpu_ratio"] is None
    assert "| 3.0 |  | 10 |  | 0 |" in table(rows)


def test_every_row_says_what_an_acknowledgement_means() -> None:
    for section in (CACHE, sets.REPLICATED, sets.SYNCED, crowd_rows.SECTION, disturbed.SECTION):
        assert all(section.words.values())
    assert set(WIRES) - {"amqp"} == set(CROWDS) == set(TAILS) > set(SETS)
    given = {"rmq": "", "kafka": "k"}
    assert [kind for kind in sets.SYNCED.words if sets.is_given(kind, given)] == [
        "rmq, set of 3",
        "rmq, 1 slave",
        "kafka",
    ]


def test_works_beyond_the_limit_are_left_out() -> None:
    few = crowd_rows.works_of(argparse.Namespace(only=["crowds"], most=100))
    assert [work.connections for work in few if re.match("[0-9]+ conn", work.name)] == [1, 100]
    assert len(crowd_rows.works_of(argparse.Namespace(only=["tails"], most=1))) == 2


def test_a_client_of_a_set_goes_to_the_next_broker(monkeypatch: pytest.MonkeyPatch, ok: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(ok)
    asked = []

    def connect(address: tuple[str, int], _: float) -> socket.socket:
        asked.append(address[1])
        if address[1] == 1:
            raise ConnectionRefusedError
        return ours

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *_: None)
    monkeypatch.setattr("time.sleep", lambda _: None)
    disturbed.Tries((1, 2), 4).send()
    assert asked == [1, 2]
    theirs.close()


def test_messages_that_never_come_count_as_late(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(Rmq, monkeypatch)
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) / 1000)
    found, _ = run_paced(pair.wire, 200.0, 0.0, 0.05)  # nobody answers
    assert found.count >= 9
    assert found.at(0.5) > 50_000
