"""Takes for brokers of both engines: frames, the state machine, and a pair with messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from types import ModuleType
from typing import Any

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from rmq.protocol.codes import ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME, POP_MESSAGE
from rmq.protocol.frames import Decoder
from rmq.protocol.json import dumps
from rmq.protocol.pop import PopMessageResponseHeader, bits_of
from tests.compiled import COMPILED
from tests.stateful.engine_machine import EnginePair, Engines
from tests.stateful.engines import PEERS, START, Side, json_frame

GROUPS = ("takers", "takers", "others")
CHANGES = ("consume", "forbid", "order", "busy", "permission", "queues", "few")
COUNTS = ("1", "1", "2", "2", "4", "4", "32", "1000", "0", "-3")
ODD_VALUES = ("01", "-0", "-1", "+1", "1.0", "", "x", "2147483648", "9" * 19, "\\u0031", 'a"b', "é")

Taken = tuple[str, int, int, int, int, list[int]]
"""Group, queue id, start, time of the take, length of the lease, offsets."""


def pop_frame(opaque: int, fields: dict[str, Any], *, style: str = "java", flag: int = 0) -> bytes:
    """The frame of a pop; `fields` replace those of an ordinary one, or take them out by None."""
    ext: dict[str, Any] = {
        "consumerGroup": "takers",
        "topic": "Orders",
        "queueId": "-1",
        "maxMsgNums": "4",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": str(START + opaque),
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
    }
    ext |= fields
    return json_frame(POP_MESSAGE, opaque, flag, {k: v for k, v in ext.items() if v is not None}, b"", style)


def ack_frame(opaque: int, taken: Sequence[Taken]) -> bytes:
    """The frame of an acknowledgement of messages by their leases."""
    acks = [
        {
            "c": group,
            "t": "Orders",
            "r": "0",
            "so": start,
            "q": queue_id,
            "rq": 0,
            "pt": taken_ms,
            "it": lasts_ms,
            "b": bits_of(start, offsets),
        }
        for group, queue_id, start, taken_ms, lasts_ms, offsets in taken
    ]
    body = dumps({"brokerName": "a", "acks": acks})
    return json_frame(BATCH_ACK_MESSAGE, opaque, 0, {}, body, "java")


def state_of(side: Side) -> list[Any]:
    """What a broker knows of its takes."""
    deliveries = side.broker.deliveries
    found: list[Any] = [deliveries.figures(), deliveries.out]
    for queue in deliveries.ledger.rows.values():
        batches = [(one.state, one.start, one.mask, one.attempt, one.taken_ms) for one in queue.batches()]
        found.append((queue.row_id, queue.queue_id, queue.cursor, queue.base, sorted(batches)))
        found.append((queue.topic.group, queue.topic.turn, queue.topic.has_more, queue.topic.is_at_limit))
    return found


class TakeEngines(Engines):
    """`sides[0]` has the compiled engine, and chunks as they come."""

    compiled: ModuleType | None = COMPILED
    # Rules of sends that say nothing about takes:
    broken = round = long_chunk = chunk_of_kinds = synced = copied = topics_saved = dispatch = None
    pulled = delete = None  # type: ignore[assignment]

    @initialize(seed=st.integers(0, 1 << 16), log_size=st.sampled_from([2_000, 10_000, 1 << 20]))
    def begin(self, seed: int, log_size: int, waits: str = "", plugins: bool = False) -> None:
        super().begin(seed=seed, log_size=log_size, waits="", plugins=False)
        for side in self.sides:
            for peer in side.peers:
                # Notices are numbered by the process, whichever side notifies.
                peer.notify = lambda response, frame=None: None  # type: ignore[method-assign]
        self.taken: list[Taken] = []
        self.popped: dict[int, str] = {}
        self.sends_in_a_row(seed=seed, count=40, at=0, others=0, fails=False)

    def compare(self) -> None:
        one, other = self.sides
        for peer in one.peers:
            for answer in Decoder().feed(peer.frames):
                if (group := self.popped.pop(answer.opaque, None)) and answer.code == 0:
                    self.taken += taken_of(answer.read(PopMessageResponseHeader), group)
        super().compare()
        assert state_of(one) == state_of(other)
        brokers = one.broker, other.broker
        assert brokers[0].stats.totals_out() == brokers[1].stats.totals_out()
        assert brokers[0].stats.missed == brokers[1].stats.missed
        assert brokers[0].saves().get("consumerOffset") == brokers[1].saves().get("consumerOffset")

    def frames(self, requests: Sequence[tuple[str, int]]) -> bytes:
        # A pop that waits gets what is there when the first message of a chunk is, which differs.
        self.both(lambda side: side.broker.readers.finish_last())
        return super().frames(requests)

    def give(self, frame: bytes, at: int = 0) -> None:
        self.both(partial(Side.receive, at=at, data=frame))

    def pop(self, fields: dict[str, Any], style: str = "java") -> bytes:
        self.opaque += 1
        self.asked.append(self.opaque)
        self.popped[self.opaque] = fields.get("consumerGroup", "takers")
        return pop_frame(self.opaque, fields, style=style)

    @rule(seed=st.integers(0, 1 << 32), at=st.integers(0, len(PEERS) - 1))
    def pops(self, seed: int, at: int) -> None:
        """Pops one by one, then in a row; most of them plain."""
        chance = Random(seed)
        odd = chance.choice([0, 0, 0.05, 0.3])
        kinds = [chance.getrandbits(16) for _ in range(3)]
        frames = [self.any_pop(Random(chance.choice(kinds)), odd) for _ in range(chance.choice([2, 4, 8]))]
        for frame in frames:  # the first opens the lane
            self.give(frame, at)
        count, fields = chance.choice([1, 2, 5]), plain_fields(Random(chance.choice(kinds)))
        self.give(self.pop(fields), at)  # the queues of the group are in the journal after it
        if fields["queueId"] != "-1":
            self.give(b"".join(self.pop(fields) for _ in range(count)), at)

    def any_pop(self, chance: Random, odd: float) -> bytes:
        fields = plain_fields(chance)
        if chance.random() < odd:
            name = chance.choice([*fields, "order", "attemptId", "bornTime", "exp", "expType", "zz"])
            fields[name] = chance.choice([None, *ODD_VALUES, "true", "TagA", "SQL92", "color = 'blue'"])
        return self.pop(fields, chance.choice(["java"] * 9 + ["backwards", "spaced", "escaped"]))

    @rule(seed=st.integers(0, 1 << 32), at=st.integers(0, len(PEERS) - 1))
    def acknowledge(self, seed: int, at: int) -> None:
        """Acknowledge leases, parts of them, some for the second time, or what never was taken."""
        chance = Random(seed)
        for _ in range(2):
            some = chance.sample(self.taken, min(len(self.taken), chance.choice([1, 1, 1, 3])))
            some = [part_of(one, chance) if chance.random() < 0.3 else one for one in some]
            if chance.random() < 0.1:
                start = chance.randrange(40)
                some.append(("takers", chance.randrange(5), start, START, 60_000, [start, start + 1]))
            if chance.random() < 0.8:
                self.taken = [one for one in self.taken if one not in some]
            self.opaque += 1
            self.asked.append(self.opaque)
            self.give(ack_frame(self.opaque, some), at)

    @rule(seed=st.integers(0, 1 << 32), after=st.sampled_from(["0", "1000", "70000"]))
    def one_message(self, seed: int, after: str) -> None:
        """A message is acknowledged by itself, or gets another time."""
        if not self.taken:
            return
        chance = Random(seed)
        group, queue_id, start, taken_ms, lasts_ms, offsets = chance.choice(self.taken)
        offset = chance.choice(offsets)
        handle = f"{start} {taken_ms} {lasts_ms} 0 0 a {queue_id} {offset} 0"
        ext = {"consumerGroup": group, "topic": "Orders", "queueId": str(queue_id)}
        ext |= {"extraInfo": handle, "offset": str(offset)}
        code = chance.choice([ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME])
        if code == CHANGE_MESSAGE_INVISIBLETIME:
            ext["invisibleTime"] = after
        self.opaque += 1
        self.asked.append(self.opaque)
        self.give(json_frame(code, self.opaque, 0, ext, b"", "java"))

    @rule(at=st.integers(0, len(PEERS) - 1))
    def connection_ends(self, at: int) -> None:
        """A connection gives its messages back, and another takes its place."""

        def close(side: Side) -> None:
            side.broker.deliveries.on_close(side.peers[at])
            side.broker.steps.deadlines(side.now_ms / 1000)

        self.both(close)

    @rule(
        change=st.sampled_from(["consume", "forbid", "order", "busy", "permission", "queues", "few", "stop"])
    )
    def change(self, change: str) -> None:
        """Something that takes rest on changes."""
        for side in self.sides:
            broker, config = side.broker, side.broker.config
            row, topic = broker.groups.table.get("takers"), broker.topics.table.get("Orders")
            match change:
                case "consume" | "forbid" if row is not None:
                    broker.groups.table["takers"] = type(row)("takers", consume_enable=change == "consume")
                case "order" if row is not None:
                    ordered = not row.consume_message_orderly
                    broker.groups.table["takers"] = type(row)("takers", consume_message_orderly=ordered)
                case "busy":
                    side.peers[0].is_busy = not side.peers[0].is_busy
                case "permission":
                    new = evolve(config, broker_permission=config.broker_permission ^ 4)
                    broker.settings.replace(new, side.store.config)
                case "queues" if topic is not None:
                    number = 6 - topic.read_queue_nums if topic.read_queue_nums in (2, 4) else 4
                    broker.topics.table["Orders"] = evolve(topic, read_queue_nums=number)
                case "few":
                    most = 6 if config.max_taken_messages_of_group > 6 else 1_000
                    new = evolve(config, max_taken_messages_of_group=most)
                    broker.settings.replace(new, side.store.config)
        self.both(lambda side: None)

    @rule(back=st.sampled_from([None, 0, 1, 5]))
    def replicas_have(self, back: int | None) -> None:
        """Consumers may read up to there."""
        reach = None if back is None else self.ends[max(-len(self.ends), -1 - back)]

        def move(side: Side) -> None:
            role: Any = side.broker.role
            role.high_watermark = lambda: reach

        self.both(move)

    @rule()
    def queues_are_written(self) -> None:
        self.both(lambda side: side.store._queues.write_all(START))

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            self.both(lambda side: side.broker.readers.finish_last())
        super().teardown()


def plain_fields(chance: Random) -> dict[str, Any]:
    """The fields in which plain pops differ."""
    return {
        "consumerGroup": chance.choice(GROUPS),
        "queueId": chance.choice(["-1", "-1", "0", "1", "3"]),
        "maxMsgNums": chance.choice(COUNTS),
        "invisibleTime": chance.choice(["60000", "60000", "1000"]),
    }


def taken_of(header: PopMessageResponseHeader, group: str) -> list[Taken]:
    """The leases of an answer."""
    starts, found = {}, []
    for one in (header.start_offset_info or "").split(";"):
        _, queue_id, start = one.split(" ")
        starts[int(queue_id)] = int(start)
    for one in (header.msg_offset_info or "").split(";"):
        _, queue_id, texts = one.split(" ")
        offsets, start = list(map(int, texts.split(","))), starts[int(queue_id)]
        offsets = [offset for offset in offsets if offset >= start]
        found.append((group, int(queue_id), start, header.pop_time, header.invisible_time, offsets))
    return found


def part_of(taken: Taken, chance: Random) -> Taken:
    """Some messages of a lease."""
    return (*taken[:5], sorted(chance.sample(taken[5], chance.randrange(1, len(taken[5]) + 1))))


class Takes(EnginePair[TakeEngines]):
    """Takes for brokers of both engines."""

    def __init__(self) -> None:
        super().__init__(TakeEngines())

    def pop(self, count: int = 1, **fields: Any) -> None:
        self.machine.give(b"".join(self.machine.pop(fields) for _ in range(count)))

    def ack(self, *taken: Taken) -> None:
        self.machine.opaque += 1
        self.machine.asked.append(self.machine.opaque)
        self.machine.give(ack_frame(self.machine.opaque, taken))

    def warm(self) -> None:
        """Pops of all queues, of which each lane's first opens the lane."""
        for queue_id in range(4):
            for _ in range(2):
                self.pop(queueId=str(queue_id), maxMsgNums="1")
        self.pop()
        self.ack(self.machine.taken.pop(0))
