"""Two brokers are given the same bytes, and must come to the same answers, log, queue files and index.

What differs is how they handle a chunk: a faster way may handle a run of requests as one thing, but nobody
may ever be able to tell. Here the other broker is given every request by itself.
"""

from __future__ import annotations

import os
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.broker.produce.send import SLOW_PATH_PROPERTIES
from rmq.broker.produce.send_answers import Answers
from rmq.broker.send_batches import CompiledBroker
from rmq.errors import RemoteProtocolError
from rmq.protocol.bodies import TopicConfig
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from rmq.protocol.properties import MARKERS, TagsAndKeys
from rmq.protocol.record import build_batch, encode_batch
from rmq.store.files.consumequeue import UNIT_FORM
from rmq.store.files.index import KeyHash, pack_entries
from rmq.store.reader import choose
from rmq.store.writer import Batch
from tests.compiled import COMPILED, HAS_COMPILED
from tests.stateful.engine_machine import Engines
from tests.stateful.engines import (
    PEERS,
    SHORT,
    START,
    Side,
    binary_frame,
    json_frame,
    plain_send,
)

SEEDS = int(os.environ.get("RMQ_ENGINE_SEEDS", "8"))


class CompiledEngines(Engines):
    """`sides[0]` has the compiled engine."""

    compiled = COMPILED


SETTINGS = settings(max_examples=60, stateful_step_count=25)
TestPure = Engines.TestCase
TestPure.settings = SETTINGS
TestCompiled = HAS_COMPILED(CompiledEngines.TestCase)
TestCompiled.settings = SETTINGS


def run_traffic(machine: Engines, seed: int, steps: int) -> None:
    """Long traffic of the kind that runs are made for, now and then with what ends them."""
    chance = Random(seed)
    log_size = chance.choice([4_000, 40_000, 1 << 20])
    waits = chance.choice(["", "", "", "disk", "disk", "slave", "both", "topics"])
    machine.begin(seed=seed, log_size=log_size, waits=waits, plugins=chance.random() < 0.1)
    for _ in range(steps):
        at = chance.randrange(len(PEERS))
        act = chance.random()
        if act < 0.3:
            machine.round(chance.getrandbits(32), chance.choice([0, 0, 0.02, 0.1]), chance.random() < 0.05)
        elif act < 0.8:
            count, others = chance.choice([1, 1, 2, 10, 40]), chance.choice([0, 0, 0.02, 0.1])
            fails = chance.random() < 0.05
            machine.sends_in_a_row(chance.getrandbits(32), count, at, others, fails)
        elif act < 0.85:
            machine.time_passes(ms=chance.choice([1, 40, 1_000, 6_000]), backwards=chance.random() < 0.5)
        elif act < 0.95:
            machine.dispatch(limit=chance.choice([1, 7, 1_000]))
        elif act < 0.97:
            queue_id, offset, most = chance.randrange(4), chance.randrange(60), chance.choice([1, 32, 1_000])
            machine.pulled("Orders", queue_id, offset, most, chance.choice(["*", "TagA"]))
        elif waits == "topics" or (waits == "both" and chance.random() < 0.5):
            machine.topics_saved()
        elif waits:
            machine.delete()
        if waits in ("disk", "both") and chance.random() < 0.3:
            machine.synced(back=chance.randrange(3))
        if waits in ("slave", "both") and chance.random() < 0.3:
            machine.copied(back=chance.randrange(3))
    machine.teardown()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_long_traffic_comes_to_the_same_with_the_pure_engine(seed: int) -> None:
    run_traffic(Engines(), seed, 40)


@HAS_COMPILED
@pytest.mark.parametrize("seed", range(SEEDS))
def test_long_traffic_comes_to_the_same_with_the_compiled_engine(seed: int) -> None:
    machine = CompiledEngines()
    run_traffic(machine, seed, 60)


KEY = "UNIQ_KEY\x01AC11"
TEXTS = [
    f"{KEY}\x02WAIT\x01true\x02{name}\x01{value}"
    for name in sorted(SLOW_PATH_PROPERTIES)
    for value in ("1", "true")
]
TEXTS += [
    f"{KEY}\x02{name}" for name in ("XWAIT\x01true", "WAIT\x01true\x02XWAIT\x01x", "a\x01bWAIT\x01true")
]
TEXTS += [f"{KEY}\x02WAIT\x01true\x02WAIT\x01true", f"{KEY}\x02WAIT\x01", f"{KEY}\x02WAIT\x01trueX"]
TEXTS += [
    f"WAIT\x01true\x02{KEY}",
    "WAIT\x01true",
    "\x02WAIT\x01true",
    "",
    "\x02",
    "\x01",
    "a",
    "a\x01",
    "\x01b",
]
TEXTS += [
    f"{KEY}\x02TAGS\x01A\x02TAGS\x01B",
    f"{KEY}\x02{KEY}B",
    "KEYS\x01a\x02KEYS\x01b",
    "KEYS\x01 ",
    "TAGS\x01",
]
TEXTS += [
    f"{KEY}\x02\x02",
    f"{KEY}\x02a\x01\x7f",
    f"{KEY}\x02a\x01é",
    "x" * 9_000,
    f"{KEY}\x02a\x01{'b' * 8_000}",
]
CHANGES = [
    (at, value) for at in (3, 4, 5, 6, 7, 9) for value in ("01", "-0", "-1", "+1", "1.0", "", "2147483648")
]
CHANGES += [
    (6, "9" * 18),
    (6, "9" * 19),
    (6, "-9"),
    (5, "4"),
    (5, "12"),
    (5, "16"),
    (5, "1793"),
    (1, ""),
    (10, "true"),
]
CHANGES += [
    (11, "x"),
    (11, "7"),
    (12, "true"),
    (12, "TRUE"),
    (12, "false"),
    (10, "1"),
    (13, "bname"),
    (9, "16"),
]


@attrs.define
class Pair:
    """A broker of each engine, whose lanes are open."""

    waits: str = ""
    machine: CompiledEngines = attrs.Factory(CompiledEngines)

    def __attrs_post_init__(self) -> None:
        self.machine.begin(seed=1, log_size=1 << 20, waits=self.waits, plugins=False)
        self.give(b"".join(self.frame() for _ in range(16)))

    def frame(
        self,
        text: str = KEY,
        change: tuple[int, str] | None = None,
        *,
        binary: bool = False,
        topic: str = "Orders",
    ) -> bytes:
        self.machine.opaque += 1
        values = [
            "p",
            topic,
            "TBW102",
            "4",
            str(self.machine.opaque % 4),
            "0",
            str(START),
            "0",
            text,
            "0",
            "false",
        ]
        fields = dict(zip(SHORT, values, strict=False))
        if change is not None:
            fields[sorted(SHORT)[change[0]]] = change[1]
        if binary:
            return binary_frame(310, self.machine.opaque, 0, fields, b"body")
        return json_frame(310, self.machine.opaque, 0, fields, b"body", "java")

    def give(self, data: bytes) -> None:
        self.machine.both(partial(Side.receive, at=0, data=data))

    def give_round(self, *pieces: bytes) -> None:
        self.machine.both(partial(Side.receive_round, pieces=list(enumerate(pieces))))

    def end(self) -> None:
        self.machine.answered = self.machine.asked = []
        self.machine.teardown()


@HAS_COMPILED
@pytest.mark.parametrize("binary", [False, True])
def test_what_is_nearly_plain_comes_to_the_same(binary: bool) -> None:
    pair = Pair()
    for text in TEXTS:
        pair.give(pair.frame(text, binary=binary))
    for change in CHANGES:
        pair.give(pair.frame(change=change, binary=binary))
    if not binary:
        for old, new in (
            (b'"e":"', b'"e":"1","e":"'),
            (b'"e"', b'"E"'),
            (b'"flag"', b' "flag"'),
            (b"}", b"},"),
        ):
            frame = pair.frame().replace(old, new, 1)
            header = len(frame) - 8 - len(b"body")
            pair.give((len(frame) - 4).to_bytes(4, "big") + header.to_bytes(4, "big") + frame[8:])
    pair.end()


@HAS_COMPILED
@pytest.mark.parametrize("code", [RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER])
def test_a_topic_that_changes_within_a_chunk_changes_what_follows(code: int) -> None:
    pair = Pair()
    fields = {
        "topic": "Orders",
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
    }
    fields |= {"topicFilterType": "MULTI_TAG", "topicSysFlag": "0", "order": "false"}
    pair.machine.opaque += 1
    request = Command.request(code, fields)
    request.opaque = pair.machine.opaque
    ten = [b"".join(pair.frame() for _ in range(10)) for _ in range(2)]
    pair.give(ten[0] + encode(request) + ten[1])
    pair.end()


@HAS_COMPILED
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("waits", ["disk", "slave", "both"])
@pytest.mark.parametrize("in_time", [False, True])
def test_runs_wait_for_disk_and_slave_and_are_told_when_neither_comes(
    waits: str, binary: bool, in_time: bool
) -> None:
    pair = Pair(waits)
    machine = pair.machine
    machine.both(lambda side: side.broker.group_commit.save_topics())
    machine.time_passes(ms=6_000, backwards=False)
    pair.give(pair.frame())  # it opens the lanes where a topic had to be saved first
    machine.time_passes(ms=6_000, backwards=False)
    machine.answered.clear()
    assert not machine.sides[0].broker.acknowledgement.waiting

    for _ in range(2):
        pair.give(b"".join(pair.frame(binary=binary) for _ in range(10)))
    assert machine.sides[0].broker.acknowledgement.waiting == 20
    assert not machine.answered
    if in_time and waits != "slave":
        machine.synced(back=0)
    if in_time and waits != "disk":
        machine.copied(back=0)
    assert len(machine.answered) == 20 * in_time
    machine.time_passes(ms=6_000, backwards=False)
    assert len(machine.answered) == 20
    pair.end()


@HAS_COMPILED
def test_runs_are_taken_as_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, bool]] = []
    take = CompiledBroker._take

    def noted(broker: CompiledBroker, run: Any, connection: Any) -> bool:
        taken.append((run.count, take(broker, run, connection)))
        return taken[-1][1]

    pair = Pair()
    monkeypatch.setattr(CompiledBroker, "_take", noted)
    for binary in (False, True):
        pair.give(b"".join(pair.frame(binary=binary) for _ in range(10)))
        pair.give(pair.frame(binary=binary))
    assert taken == [(10, True), (1, True)] * 2
    pair.end()


@HAS_COMPILED
def test_the_lanes_of_a_whole_chunk_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = CompiledBroker._take
    monkeypatch.setattr(CompiledBroker, "_take", lambda *given: taken.append(given[1].count) or take(*given))
    pair = Pair()
    for side in pair.machine.sides:
        side.broker.topics.update(TopicConfig("Wide", 300, 300))
    fields = dict(
        zip(SHORT, ["p", "Wide", "", "4", "", "0", str(START), "0", KEY, "0", "false"], strict=False)
    )
    for _ in range(3):  # the first makes the queues
        frames = []
        for queue_id in range(300):
            pair.machine.opaque += 1
            own = fields | {SHORT[4]: str(queue_id)}
            frames.append(json_frame(310, pair.machine.opaque, 0, own, b"body", "java"))
        pair.give(b"".join(frames))
    assert taken == [300, 300]
    pair.end()


@HAS_COMPILED
@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_damaged_sends_come_to_the_same_with_the_compiled_engine(seed: int) -> None:
    """Each byte of the header may be any other, go, or come twice; the lengths of the frame hold."""
    machine, chance = CompiledEngines(), Random(seed)
    machine.begin(seed=seed, log_size=1 << 20, waits="", plugins=False)
    for number in range(400):
        frame = bytearray(plain_send(chance, number + 1))
        stop = 8 + int.from_bytes(frame[5:8], "big")
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
        machine.both(partial(Side.receive, at=0, data=bytes(frame)))
    machine.answered = machine.asked = []
    machine.teardown()


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["Orders", "", "é", "日本"]),
        st.lists(
            st.sampled_from(["k", "AC110001", "", "é", "q" * 300, "polygenelubricants"]) | st.text(),
            max_size=3,
        ),
        st.integers(0, (1 << 62) - 1),
        st.integers(-5_000, 5_000).map(lambda ms: START + ms) | st.sampled_from([0, START + (1 << 42)]),
    ),
    max_size=20,
)


@HAS_COMPILED
@given(
    ENTRIES, st.integers(1, 7), st.sampled_from([0, START, START - 3_000]), st.integers(1, 5), st.randoms()
)
def test_the_index_is_packed_the_same(
    entries: list[Any], slots: int, begin: int, count: int, chance: Random
) -> None:
    assert COMPILED is not None
    entries = [(topic, tuple(keys), offset, timestamp) for topic, keys, offset, timestamp in entries]
    rows = KeyHash().rows(entries)
    made = COMPILED.key_rows(entries)
    assert list(made) == rows
    assert list(made[1:]) == rows[1:]
    halves = entries[: len(entries) // 2], entries[len(entries) // 2 :]
    assert list(COMPILED.key_rows([COMPILED.key_rows(halves[0]), *halves[1]])) == rows

    entries_at = 40 + 4 * slots
    files = [bytearray(entries_at + 20 * (count + len(rows))) for _ in range(2)]
    for number in range(slots):  # what a crash may leave: numbers of entries that are not there
        slot = chance.randrange(-1, 8).to_bytes(4, "big", signed=True)
        for file in files:
            file[40 + 4 * number : 44 + 4 * number] = slot
    place = count, 3, slots, begin, entries_at
    ours = pack_entries(memoryview(files[0]), rows, *place)
    assert COMPILED.pack_entries(memoryview(files[1]), made, *place) == ours
    assert files[0] == files[1]


@HAS_COMPILED
def test_a_view_that_is_too_short_for_the_index_is_refused() -> None:
    assert COMPILED is not None
    rows = COMPILED.key_rows([("Orders", ("k",), 2, 3)])
    for slots, size in ((2, 40 + 8 + 39), (0, 500), (-1, 500)):
        with pytest.raises(ValueError, match="index file"):
            COMPILED.pack_entries(memoryview(bytearray(size)), rows, 1, 0, slots, 0, 48)


BATCH_TEXTS = [
    "",
    "a",
    "\x02",
    KEY,
    f"{KEY}\x02",
    f"{KEY}\x02TAGS\x01A",
    "TAGS\x01",
    "TAGS\x01A\x02TAGS\x01B",
]
BATCH_TEXTS += ["TAGS\x01A\x02TAGS\x01", "KEYS\x01a b", "KEYS\x01 ", f"{KEY}\x02KEYS\x01 a  b ", "XTAGS\x01A"]
BATCH_TEXTS += ["xUNIQ_KEY\x01A", "UNIQ_KEY\x01a\x01b", f"{KEY}\x02é\x01b", "b" * 9_000, "é", "a\0"]
BATCH_SUFFIXES = [b"CLUSTER\x01Cluster", b"UNIQ_KEY\x01of-all\x02CLUSTER\x01c", b"TAGS\x01S\x02KEYS\x01x y"]
BATCH_SUFFIXES += [b"XTAGS\x01S", b"TAGS\x01\x02CLUSTER\x01c", "KEYS\x01é".encode()]


@HAS_COMPILED
@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.binary(max_size=200), st.sampled_from(BATCH_TEXTS)), max_size=5
    ),
    st.integers(0, 300),
    st.sampled_from([8, 20]),
    st.sampled_from(BATCH_SUFFIXES),
    st.randoms(),
)
def test_batches_are_built_the_same(
    messages: list[tuple[int, bytes, str]], cut: int, host: int, suffix: bytes, chance: Random
) -> None:
    assert COMPILED is not None
    data = bytearray(encode_batch(messages))
    if chance.random() < 0.3:
        del data[len(data) - min(cut, len(data)) :]
    if data and chance.random() < 0.3:
        data[chance.randrange(len(data))] = chance.randrange(256)
    batch, is_marked = bytes(data), any(marker in suffix for marker in MARKERS)
    place, born = (3, 7, 1_000, 16 * (host == 20)), (START, bytes(range(host)))
    fields = place, born, (START + 5, bytes(8)), 2, b"\x06Orders"
    made = COMPILED.build_batch(batch, suffix, *fields, True, is_marked)
    try:
        pieces, positions, sizes, texts = build_batch(batch, suffix, *fields)
    except RemoteProtocolError:
        assert made is None
        return
    if is_marked:
        texts = [
            text + suffix if text[-1:] in (b"", b"\x02") else b"%b\x02%b" % (text, suffix) for text in texts
        ]
    codes, keys = TagsAndKeys().of_all(texts)
    if made is not None:
        units = [UNIT_FORM.pack(*unit) for unit in zip(positions, sizes, codes, strict=True)]
        assert made[:3] == (b"".join(pieces), positions, b"".join(units))
        entries = [("Orders", own, at, START + 5) for own, at in zip(keys, positions, strict=True)]
        assert made[3].records == len(positions)
        assert list(made[3]) == KeyHash().rows(entries)
        count = chance.randrange(-1, len(positions) + 2)
        parts = made[3].split(count)
        count = max(0, min(count, len(positions)))
        assert [part.records for part in parts] == [count, len(positions) - count]
        assert list(parts[0]) == KeyHash().rows(entries[:count])
        again = parts[1].split(1)[0]
        assert list(again) == KeyHash().rows(entries[count : count + 1])
        assert COMPILED.build_batch(batch, suffix, *fields, False, is_marked)[3] is None
    else:
        assert any(len(text) > 7_000 or not text.isascii() for text in texts)


@HAS_COMPILED
@given(st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=40), st.sampled_from([8, 20]))
def test_the_ids_of_a_batch_are_the_same(positions: list[int], host: int) -> None:
    assert COMPILED is not None
    answers = Answers(bytes(range(host)), region="r", trace_on=True)
    ids = COMPILED.batch_ids(bytes(range(host)).hex().upper().encode(), positions)
    assert ids.decode() == answers._ids(Batch(0, positions, 0))


SMALL = st.integers(0, 400)
UNITS = st.lists(
    st.tuples(
        SMALL | st.sampled_from([-1, 1 << 40, -(1 << 63), (1 << 63) - 1]),
        st.sampled_from([100, 100, 60, 0, -5, 0x7FFFFFFF, -(1 << 31)]) | st.integers(1, 120),
        st.sampled_from([0, 7, -7, 1 << 40]),
    ),
    max_size=20,
)
BOUND = st.tuples(st.integers(0, 12), st.sampled_from([0, 99, 300, 1 << 62]))


@HAS_COMPILED
@given(UNITS, st.booleans(), st.tuples(SMALL, SMALL, SMALL), BOUND, BOUND, st.sampled_from([None, {7, 0}]))
def test_what_a_pull_gets_is_chosen_and_gathered_the_same(
    units: list[tuple[int, int, int]],
    in_a_row: bool,
    log: tuple[int, int, int],
    most: tuple[int, int],
    most_old: tuple[int, int],
    codes: set[int] | None,
) -> None:
    assert COMPILED is not None
    if in_a_row:
        at = 0
        for number, (_, size, code) in enumerate(units):
            units[number] = at, size, code
            at += size % 100
    data = b"".join(UNIT_FORM.pack(*unit) for unit in units)
    matches = None if codes is None else codes.__contains__
    ours = choose(data, *log, most, most_old, matches)
    size, ranges = ours[2], ours[5]
    file = bytes(range(200))
    for first in (0, 150, 300):
        pieces = [file[max(0, start - first) : max(0, stop - first)] for start, stop in ranges]
        is_inside = all(start >= first and stop <= first + len(file) for start, stop in ranges)
        for form in (data, bytearray(data), memoryview(data)):
            for small in (0, 1 << 40):
                made = COMPILED.read(
                    form, *log, most, most_old, matches, lambda _, at=first: (at, memoryview(file)), small
                )
                assert made[:5] == ours[:5]
                if not is_inside:
                    assert made[5] is None
                elif small and len(ranges) > 1:
                    assert made[5] == [b"".join(pieces)]
                    assert len(made[5][0]) == size
                else:
                    assert made[5] == pieces


@HAS_COMPILED
def test_a_pull_of_many_ranges_is_one_buffer() -> None:
    pair = Pair()
    for _ in range(3):
        pair.give(b"".join(pair.frame() for _ in range(16)))
    first, other = (side.store.get("Orders", 1, 0, 32) for side in pair.machine.sides)
    assert first.count == other.count >= 8
    assert len(first.buffers) == 1
    assert len(other.buffers) == other.count
    assert first.buffers[0] == b"".join(other.buffers)
    pair.end()


@HAS_COMPILED
@pytest.mark.parametrize("waits", ["", "disk"])
def test_the_sends_of_a_round_are_one_commit(waits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(waits)
    store = pair.machine.sides[0].store
    commits = []
    commit = store.commit
    monkeypatch.setattr(store, "commit", lambda: commits.append(1) or commit())  # type: ignore[func-returns-value]
    pair.give_round(*(pair.frame() for _ in PEERS))
    assert len(commits) == 1
    pair.give_round(pair.frame(), pair.frame() * 70, pair.frame())
    assert len(commits) == 4, "a long run is written by itself, in its place"
    pair.give_round(pair.frame(), pair.frame(topic="Unknown"), pair.frame())
    assert len(commits) == 7, "so is what is not plain"
    pair.machine.both(lambda side: side.broker.acknowledgement.stop())
    pair.end()


@HAS_COMPILED
def test_a_bug_in_a_round_ends_its_connections_and_nobody_is_told_success(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    side = pair.machine.sides[0]
    reasons: list[str] = []
    for peer in side.peers:
        peer.close = lambda reason, cause: reasons.append(reason)  # type: ignore[attr-defined]
    put_run, left = side.store.put_run, [1, 0]

    def fail(*given: Any) -> bool:
        if not left.pop(0):
            raise ValueError("a bug")
        return put_run(*given)

    monkeypatch.setattr(side.store, "put_run", fail)
    side.receive_round([(at, pair.frame()) for at in range(3)])
    assert reasons == ["an unexpected error: ValueError: a bug"] * 3
    assert [peer.take() for peer in side.peers] == [[]] * len(PEERS)
    assert not side.store.has_pending
    assert "a bug" in caplog.text
    monkeypatch.undo()
    before = side.store.max_physical_offset
    side.receive(0, pair.frame())
    assert len(side.peers[0].take()) == 1
    assert side.store.max_physical_offset > before
