"""A state machine that gives two brokers the same requests: sends of every kind, and pulls one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from struct import Struct
from types import ModuleType
from typing import Any, Generic, TypeVar

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from rmq.broker.send_batches import CompiledBroker
from rmq.protocol.codes import FLAG_ONEWAY, PULL_SUBSCRIPTION, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.fields import java_name
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import PullMessageRequestHeader
from tests.stateful.engines import (
    FIELDS,
    PEERS,
    SECRET,
    SHORT,
    START,
    Side,
    _text,
    binary_frame,
    json_frame,
    plain_send,
)

FOREVER = 1 << 10

OTHERS = ("Other", "%DLQ%readers", SECRET, "SCHEDULE_TOPIC_XXXX", "no/topic", "", "é")
NO_NUMBERS = ("x", "", "99999999999", "1_0", " 1", "\N{ARABIC-INDIC DIGIT ONE}")
NO_FRAMES = (
    b"\0\0\0\3",
    b"\xff" * 8,
    b"\0\0\0\x09\2\0\0\1{}{}{",
    b"\0\0\0\x08\0\0\0\x02[1]x",
    b"\0\x20\0\0" * 2,
)

# ---- what clients send ----

_IN_BATCH = Struct(">iiiii")
LONG = [java_name(field) for field in FIELDS]


def texts_of(chance: Random, *, odd: bool) -> str:
    """A text of properties."""
    pairs = [("UNIQ_KEY", f"AC11{chance.getrandbits(40):010X}")]
    if chance.random() < 0.7:
        pairs.append(("WAIT", chance.choice(["true", "true", "true", "false"])))
    if chance.random() < 0.5:
        pairs.append(("TAGS", chance.choice(["T", "TagA", "x" * 40])))
    if chance.random() < 0.2:
        pairs.append(("KEYS", chance.choice(["k1", "k1 k2", " a  b "])))
    if odd:
        names = ["color", "UNIQ_KEY", "WAIT", "TAGS", "KEYS", "ключ", "", "CLUSTER", "TRAN_MSG", "MSG_REGION"]
        values = ["3", "blue", 'q"\\x', "日本", "z" * 300, "", "TRUE", "üñ", "a\x01b", "nul\0", "tab\t"]
        pairs += [(chance.choice(names), chance.choice(values)) for _ in range(chance.randrange(1, 4))]
    chance.shuffle(pairs)
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs[chance.random() < 0.1 :])
    return text + chance.choice(["", "", "", "\x02", "\x02\x02x"] if odd else ["", "\x02"])


BATCH_OWN_TEXTS = [
    "WAIT\x01true",
    "",
    "a\x01b\x02",
    "UNIQ_KEY\x01AC11\x02WAIT\x01true",
    "TAGS\x01T\x02KEYS\x01k1 k2",
]


def batch_of(chance: Random, *, odd: bool) -> bytes:
    """The body of a batch, now and then one that cannot be read."""
    body = b""
    for _ in range(chance.randrange(0 if odd else 1, 6)):
        one, text = chance.randbytes(chance.randrange(200)), texts_of(chance, odd=odd).encode()
        size = 22 + len(one) + len(text)
        body += _IN_BATCH.pack(size, 0, 0, chance.randrange(5), len(one)) + one
        body += len(text).to_bytes(2, "big") + text
    if odd and chance.random() < 0.3:
        body = body[: chance.randrange(len(body) + 1)]
    return body


def send(kind: str, chance: Random, opaque: int) -> bytes:
    """The frame of one request."""
    if kind == "run":
        return plain_send(chance, opaque)
    if kind == "foreign":
        return json_frame(9_999, opaque, 0, {"a": "b"}, b"x", "java")
    topic, queue_id, sys_flag, reconsumed = "Orders", chance.randrange(4), 0, 0
    text, body = texts_of(chance, odd=kind == "odd"), chance.randbytes(chance.randrange(300))
    match kind:
        case "other":
            topic = chance.choice(OTHERS)
        case "new":
            topic = f"New{chance.randrange(6)}"
        case "retry":
            topic, reconsumed = "%RETRY%readers", chance.choice([0, 1, 3, 16, 17])
            text += f"\x02RETRY_TOPIC\x01Orders\x02DELAY\x01{chance.randrange(4)}"
        case "queue":
            queue_id = chance.choice([-1, -2, 4, 7, 8, 1 << 30])
        case "delayed":
            text += f"\x02DELAY\x01{chance.choice(['1', '2', '0', '99', 'x', '-1'])}"
        case "timed":
            text += f"\x02TIMER_DELAY_SEC\x01{chance.choice(['1', '0', '9999999', 'x'])}"
        case "half":
            text += f"\x02TRAN_MSG\x01{chance.choice(['true', 'false'])}"
            sys_flag = 4
        case "flags":
            sys_flag = chance.choice([1, 8, 12, 16, 32, 48, -1, 1 << 20])
        case "long":
            body = chance.randbytes(chance.choice([3_000, 5_000, 9_000]))
    is_batch = kind in ("batch", "bad batch")
    if is_batch:
        body, text = batch_of(chance, odd=kind != "batch"), chance.choice(BATCH_OWN_TEXTS)
    values: list[Any] = ["producers", topic, "TBW102", 4, queue_id, sys_flag, START - chance.randrange(9)]
    values += [chance.randrange(3), text, reconsumed, False, is_batch]
    code, names = chance.choice([(310, SHORT), (310, SHORT), (310, SHORT), (10, LONG)])
    if is_batch:
        code, names = 320, SHORT
    fields = dict(zip(names, map(_text, values), strict=False))
    if kind == "unreadable":
        name = chance.choice(names[:9])
        fields[name] = chance.choice(NO_NUMBERS)
        if chance.random() < 0.4:
            del fields[name]
    flag = FLAG_ONEWAY if chance.random() < 0.1 else 0
    if chance.random() < 0.4:
        return binary_frame(code, opaque, flag, fields, body)
    styles = ["java"] * 6 + ["backwards", "spaced", "escaped", "numbers", "more"]
    style = chance.choice(styles)
    if style == "numbers":
        fields |= {name: value for name, value in zip(names, values, strict=False) if name in fields}
    elif style == "more":
        fields["l"] = chance.choice(["3", "x"])
        fields["zz"] = "more"
    return json_frame(code, opaque, flag, fields, body, style)


# ---- the two brokers ----


KINDS = ["plain"] * 8 + ["batch", "bad batch", "odd", "odd", "other", "new", "retry", "queue", "delayed"]
KINDS += ["timed", "half", "flags", "long", "unreadable", "foreign"]
REQUESTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 1 << 16)), min_size=1, max_size=40)


class Engines(RuleBasedStateMachine):
    """`sides[0]` handles chunks as they come."""

    compiled: ModuleType | None = None

    @initialize(
        seed=st.integers(0, 1 << 16),
        log_size=st.sampled_from([2_000, 4_000, 10_000, 1 << 20]),
        waits=st.sampled_from(["", "", "disk", "slave", "topics", "both"]),
        plugins=st.booleans(),
    )
    def begin(self, seed: int, log_size: int, waits: str, plugins: bool) -> None:
        sizes = {"mapped_file_size_commit_log": log_size, "mapped_file_size_consume_queue": 200}
        self.sides = [
            Side(
                in_turns=in_turns,
                seed=seed,
                sizes=sizes,
                waits=waits,
                plugins=plugins,
                compiled=self.compiled,
            )
            for in_turns in (False, True)
        ]
        self.waits = waits
        self.opaque = 0
        self.ends = [0]  # where the log ended after each chunk
        self.asked: list[int] = []
        self.answered: list[int] = []

    def both(self, act: Callable[[Side], Any]) -> Any:
        """Do the same to both, and compare what comes of it."""
        first, other = (act(side) for side in self.sides)
        assert first == other
        self.compare()
        return first

    def compare(self) -> None:
        one, other = self.sides
        for mine, yours in zip(one.peers, other.peers, strict=True):
            frames = mine.take()
            assert frames == yours.take()
            self.answered += [Decoder().feed(frame)[0].opaque for frame in frames]
        assert one.store.max_physical_offset == other.store.max_physical_offset
        assert one.broker.acknowledgement.waiting == other.broker.acknowledgement.waiting
        assert one.broker.stats.totals_in() == other.broker.stats.totals_in()
        assert one.broker.stats.failed_puts == other.broker.stats.failed_puts
        assert one.broker.histograms.write.counts == other.broker.histograms.write.counts
        # A chunk's event names the records of those who wait for the disk first.
        assert sorted(one.events) == sorted(other.events)
        self.ends.append(one.store.max_physical_offset)

    def frames(self, requests: Sequence[tuple[str, int]]) -> bytes:
        """Requests, asked for."""
        data = b""
        for kind, seed in requests:
            self.opaque += 1
            frame = send(kind, Random(seed), self.opaque)
            self.asked += [one.opaque for one in Decoder().feed(frame) if not one.is_oneway]
            data += frame
        return data

    @rule(
        seed=st.integers(0, 1 << 32),
        others=st.sampled_from([0, 0, 0.02, 0.1]),
        fails=st.sampled_from([False] * 9 + [True]),
    )
    def round(self, seed: int, others: float, fails: bool) -> None:
        """Chunks of several connections in a row, most of one send each: what one engine commits at once."""
        chance = Random(seed)
        pieces = []
        for at in chance.sample(range(len(PEERS)), chance.randrange(2, len(PEERS) + 1)):
            count = chance.choice([1, 1, 1, 1, 2, 70])
            kinds = [chance.choice(KINDS) if chance.random() < others else "run" for _ in range(count)]
            pieces.append((at, self.frames([(kind, chance.getrandbits(16)) for kind in kinds])))
        if fails:
            self.both(lambda side: side.disk.fail("write", "commitlog", FOREVER))
        assert not any(self.both(lambda side: side.receive_round(pieces)))
        self.both(lambda side: side.disk.heal())

    @rule(
        requests=REQUESTS,
        at=st.integers(0, len(PEERS) - 1),
        cuts=st.lists(st.integers(0, 1 << 16), max_size=2),
        fails=st.sampled_from([False] * 9 + [True]),
    )
    def chunk(self, requests: list[tuple[str, int]], at: int, cuts: list[int], fails: bool) -> None:
        data = self.frames(requests)
        places = sorted(cut % (len(data) + 1) for cut in cuts)
        for start, stop in zip([0, *places], [*places, len(data)], strict=True):
            piece = data[start:stop]
            if fails:
                self.both(lambda side: side.disk.fail("write", "commitlog", FOREVER))
            ended = self.both(partial(Side.receive, at=at, data=piece))
            self.both(lambda side: side.disk.heal())
            assert not ended

    @rule(seed=st.integers(0, 1 << 32), at=st.integers(0, len(PEERS) - 1))
    def long_chunk(self, seed: int, at: int) -> None:
        chance = Random(seed)
        count = chance.randrange(20, 100)
        requests = [(chance.choice(KINDS), chance.getrandbits(16)) for _ in range(count)]
        self.chunk(requests, at, [chance.getrandbits(16)], fails=False)

    @rule(
        seed=st.integers(0, 1 << 32),
        count=st.sampled_from([1, 1, 2, 10, 40]),
        at=st.integers(0, len(PEERS) - 1),
        others=st.sampled_from([0, 0, 0.02, 0.1]),
        fails=st.sampled_from([False] * 9 + [True]),
    )
    def sends_in_a_row(self, seed: int, count: int, at: int, others: float, fails: bool) -> None:
        """Sends that an engine takes as runs, with a few requests between them that end a run."""
        chance = Random(seed)
        kinds = [chance.choice(KINDS) if chance.random() < others else "run" for _ in range(count)]
        cuts = [chance.getrandbits(16)] * (count > 2 and chance.random() < 0.3)
        self.chunk([(kind, chance.getrandbits(16)) for kind in kinds], at, cuts, fails=fails)

    @rule(
        requests=REQUESTS,
        rest=st.sampled_from(NO_FRAMES),
    )
    def broken(self, requests: list[tuple[str, int]], rest: bytes) -> None:
        """Good frames, and then what is no frame."""
        # All that came in one piece with it is lost, so nobody hears of it.
        data = b"".join(send(kind, Random(seed), 0) for kind, seed in requests)
        assert self.both(lambda side: side.receive(0, data + rest))

    @rule(
        topic=st.sampled_from(["Orders", "Orders", "New1", "%RETRY%readers"]),
        queue_id=st.integers(0, 4),
        offset=st.integers(0, 60),
        most=st.sampled_from([0, 1, 4, 32, 1_000]),
        expression=st.sampled_from(["*", "*", "TagA", "T || x", "color = 'blue'"]),
    )
    def pulled(self, topic: str, queue_id: int, offset: int, most: int, expression: str) -> None:
        self.opaque += 1
        fields = ["readers", topic, queue_id, offset, most, PULL_SUBSCRIPTION, 0, 0, expression, 0]
        names = [java_name(field) for field in attrs.fields(PullMessageRequestHeader)]
        ext = dict(zip(names, map(_text, fields), strict=False))
        ext["expressionType"] = "SQL92" if "=" in expression else "TAG"
        request = Command.request(RequestCode.PULL_MESSAGE, ext)
        request.opaque = self.opaque
        self.asked.append(self.opaque)
        self.both(lambda side: side.receive(1, encode(request)))

    @precondition(lambda self: self.waits in ("disk", "both"))
    @rule(back=st.integers(0, 3))
    def synced(self, back: int) -> None:
        position = self.ends[max(-len(self.ends), -1 - back)]
        self.both(lambda side: side.broker.on_synced(position))

    @precondition(lambda self: self.waits in ("slave", "both"))
    @rule(back=st.integers(0, 3))
    def copied(self, back: int) -> None:
        position = self.ends[max(-len(self.ends), -1 - back)]

        def copy(side: Side) -> None:
            side.slave.acknowledged = max(position, side.slave.acknowledged)
            side.broker.acknowledgement.replicas.acknowledged()

        self.both(copy)

    @precondition(lambda self: self.waits in ("topics", "both"))
    @rule()
    def topics_saved(self) -> None:
        self.both(lambda side: side.broker.group_commit.save_topics())

    @rule(ms=st.sampled_from([1, 40, 1_000, 6_000]), backwards=st.booleans())
    def time_passes(self, ms: int, backwards: bool) -> None:
        def step(side: Side) -> None:
            side.now_ms += 3 - ms if backwards and ms < 1_000 else ms
            side.broker.steps.deadlines(side.now_ms / 1000)
            side.broker.steps.schedule()

        self.both(step)

    @rule(limit=st.sampled_from([1, 7, 1_000]))
    def dispatch(self, limit: int) -> None:
        self.both(lambda side: side.store.dispatch(limit))

    @rule()
    def delete(self) -> None:
        """A topic goes and may come back by a send."""
        request = Command.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "New1"})
        self.opaque += 1
        request.opaque = self.opaque
        self.asked.append(self.opaque)
        self.both(lambda side: side.receive(0, encode(request)))

    def teardown(self) -> None:
        if not hasattr(self, "sides"):
            return
        self.both(lambda side: side.broker.group_commit.save_topics())
        self.both(lambda side: side.broker.changes.save_now())
        self.both(lambda side: side.broker.acknowledgement.stop())
        assert sorted(self.answered) == self.asked, "each gets one answer"
        for side in self.sides:
            while side.store.dispatch(1_000):
                pass
            side.store.close()
        one, other = (side.files() for side in self.sides)
        assert list(one) == list(other)
        for path, data in one.items():
            assert data == other[path], path


M = TypeVar("M", bound=Engines)


class EnginePair(Generic[M]):
    """A broker of each engine, driven by `machine`, with some 80 messages."""

    def __init__(self, machine: M, log_size: int = 1 << 20) -> None:
        self.machine = machine
        machine.begin(seed=1, log_size=log_size, waits="", plugins=False)
        for seed in (1, 2):
            machine.sends_in_a_row(seed=seed, count=40, at=0, others=0, fails=False)

    @property
    def sides(self) -> Sequence[Side]:
        return self.machine.sides

    @property
    def broker(self) -> CompiledBroker:
        broker = self.sides[0].broker
        assert isinstance(broker, CompiledBroker)
        return broker
