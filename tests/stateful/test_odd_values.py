"""Every field of every kind of send, and every known property, with odd values, one changed at a time.

Whatever was acknowledged is there, whole and in its place, after a killed broker's start, after a clean
one's, and on the slave; a consumer can read what lies around it; and the audit of the store finds nothing.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, get_type_hints

import attrs
import pytest
from attrs import define, field, frozen

from rmq import message
from rmq.broker.delay import timers
from rmq.broker.replication.sessions import MasterSession, SlaveSession
from rmq.broker.runtime.replication_loops import COPIED
from rmq.errors import RemoteProtocolError, RmqError
from rmq.message import DLQ_PREFIX, RETRY_PREFIX, TRANS_HALF_TOPIC, parse_offset_message_id
from rmq.protocol import fields, properties, record
from rmq.protocol.bodies import HeartbeatData, ProducerData
from rmq.protocol.codes import (
    FLAG_ONEWAY,
    RECALL_MESSAGE,
    SYS_COMMIT,
    SYS_HOST_BITS,
    SYS_ROLLBACK,
    RequestCode,
)
from rmq.protocol.command import SEND_V2_CODES, Command
from rmq.protocol.frames import Decoder
from rmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    RecallMessageRequestHeader,
    SendMessageRequestHeader,
)
from rmq.protocol.record import decode_record, encode_batch
from rmq.store.audit.audit import check
from rmq.store.config import BrokerRole
from rmq.testing.disk import MemoryDisk
from tests.unit.broker.odd_values import (
    MISSING,
    frame,
    odd_property_values,
    odd_values,
    raw,
)
from tests.unit.broker.rig import START, Rig, Wire, pull, send

LATER = START + 41 * 86_400_000
"""All that was delayed is due by then."""
CHUNK = 16
"""Odd requests handed over together, with one honest send after them."""
CULPRITS = 12
"""So many are named when something fails; finding each takes some runs."""
REPLIES = "WireCluster_REPLY_TOPIC"
MEMBERS = ("version", "language", "remark")
"""What every header has beside the fields of its request."""
OWN_TOPIC = ("default_topic", "default_topic_queue_nums", "unit_mode")
"""Fields that count only for a topic that does not exist yet."""


@frozen
class Kind:
    """One kind of send: its request's code, what its properties are, and the header that is varied."""

    name: str
    code: int
    properties: dict[str, str] = field(factory=dict)
    header: type[Any] = SendMessageRequestHeader
    topic: str = "Orders"
    flag: int = 0
    values: dict[str, Any] = field(factory=dict)


KINDS = [
    Kind("send", RequestCode.SEND_MESSAGE),
    Kind("send v2", RequestCode.SEND_MESSAGE_V2),
    Kind("one-way", RequestCode.SEND_MESSAGE_V2, flag=FLAG_ONEWAY),
    Kind("batch", RequestCode.SEND_BATCH_MESSAGE, values={"batch": True}),
    Kind("delayed", RequestCode.SEND_MESSAGE_V2, {"DELAY": "2"}),
    Kind("timed", RequestCode.SEND_MESSAGE_V2, {"TIMER_DELAY_SEC": "7"}),
    Kind("retried", RequestCode.SEND_MESSAGE, topic="%RETRY%readers", values={"reconsume_times": 3}),
    Kind("half", RequestCode.SEND_MESSAGE_V2, {"TRAN_MSG": "true", "PGROUP": "producers"}),
    Kind("end", RequestCode.END_TRANSACTION, header=EndTransactionRequestHeader),
    Kind("reply", RequestCode.SEND_REPLY_MESSAGE, {"REPLY_TO_CLIENT": "asker@1"}, topic=REPLIES),
    Kind("reply v2", RequestCode.SEND_REPLY_MESSAGE_V2, {"REPLY_TO_CLIENT": "asker@1"}, topic=REPLIES),
    Kind("send-back", RequestCode.CONSUMER_SEND_MSG_BACK, header=ConsumerSendMsgBackRequestHeader),
    Kind("recall", RECALL_MESSAGE, header=RecallMessageRequestHeader),
]
PROPERTIES = sorted(
    {
        value
        for module in (message, properties, timers)
        for name, value in vars(module).items()
        if name.startswith("PROPERTY_")
    }
    | {"OWN", "", "__STARTDELIVERTIME", "TRAN_PREPARED_QUEUE_OFFSET"}
)
WAYS = [
    kind for kind in KINDS if kind.name in ("send", "batch", "delayed", "timed", "retried", "half", "reply")
]
"""Those whose properties take ways of their own."""
SENDS = [kind for kind in KINDS if kind.header is SendMessageRequestHeader]


@define
class Case:
    """One odd request. `bodies` must be found, each in one of `places`, if it was acknowledged.

    `ids` are the places that the acknowledgement names; `once`: its own topic must have it.
    """

    label: str
    kind: Kind
    name: str
    value: Any
    binary: bool
    number: int = 0
    topic: str = ""
    bodies: list[bytes] = field(factory=list)
    places: set[str] = field(factory=set)
    acknowledged: bool = False
    ids: list[int] = field(factory=list)
    once: bool = False


def field_cases(kind: Kind, *, binary: bool) -> Iterator[Case]:
    """Each field of the header with each odd value."""
    hints = get_type_hints(kind.header, include_extras=True)
    for attribute in attrs.fields(kind.header):
        for value in odd_values(hints[attribute.name], attribute.name, binary=binary):
            shown = "missing" if value is MISSING else repr(value)
            shown = shown if len(shown) <= 60 else f"{shown[:60]}… ({len(str(value))})"
            form = "binary" if binary else "JSON"
            yield Case(
                f"{kind.name}, {form}: {attribute.name} = {shown}", kind, attribute.name, value, binary
            )


def property_cases(kind: Kind) -> Iterator[Case]:
    """Each known property with each odd value, every second one with a binary header."""
    values = list(odd_property_values("Victims", "victim"))
    for number, (name, value) in enumerate(itertools.product(PROPERTIES, values)):
        shown = repr(value) if len(value) <= 40 else f"{value[:20]!r}… ({len(value)})"
        label = f"{kind.name}: property {name} = {shown}"
        yield Case(label, kind, f"property {name}", value, bool(number % 2))


class Trial:
    """One broker that gets some cases, its slave, and what is left of both."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = [attrs.evolve(case, number=number) for number, case in enumerate(cases)]
        self.rig = Rig()
        self.slave = Rig(disk=MemoryDisk(2), store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
        self.requester = Wire("10.0.0.7:40007")
        self.session = MasterSession(self.rig.store, 0.0)
        self.follower = SlaveSession(
            self.slave.broker.copied_log.append, lambda: self.slave.store.max_physical_offset, 0.0
        )
        self.session.received(self.follower.report(0.0))
        self.honest = 0
        self.surprises: list[str] = []
        self.by_opaque: dict[int, Case] = {}

    # ---- sending ----

    def run(self) -> list[str]:
        """Send, stop in each way, and look; returns what is wrong."""
        body = HeartbeatData("asker@1", [ProducerData("askers"), ProducerData("producers")]).to_json()
        self.rig.one(Command.request(RequestCode.HEART_BEAT, None, body), wire=self.requester)
        victim = "UNIQ_KEY\x01victim\x02TIMER_DELAY_SEC\x0160"
        assert self.rig.one(send("Victims", b"victim", properties=victim)).code == 0
        for at in range(0, len(self.cases), CHUNK):
            self.send(self.cases[at : at + CHUNK])
        problems = [*self.surprises, *self.stopped()]
        return list(dict.fromkeys(problems))

    def send(self, cases: Iterable[Case]) -> None:
        """One chunk: the odd requests, and an honest send."""
        requests = []
        for case in cases:
            self.prepare(case)
        for case in cases:
            try:
                (request,) = Decoder().feed(self.encoded(case))
            except RemoteProtocolError:
                continue  # the connection ends, and with it the request
            self.by_opaque[request.opaque] = case
            requests.append(request)
        self.handle([*requests, self.next_honest()])
        for case in cases:
            if case.kind.name == "half" and case.acknowledged:
                self.end(case)
            elif case.kind.name == "end":
                self.end(case, odd=True)

    def next_honest(self) -> Command:
        self.honest += 1
        return send("Honest", b"honest %d" % self.honest, properties=f"UNIQ_KEY\x01H{self.honest}")

    def handle(self, requests: list[Command]) -> list[Command]:
        rig = self.rig
        rig.broker.handle(requests, rig.wire)  # type: ignore[arg-type]
        for pushed in self.requester.take():
            rig.broker.on_response(pushed.reply(0), self.requester)  # type: ignore[arg-type]
        answers = rig.wire.take()
        for answer in answers:
            case = self.by_opaque.pop(answer.opaque, None)
            if case is not None:
                self.answered(case, answer)
        return answers

    def answered(self, case: Case, answer: Command) -> None:
        remark = answer.remark or ""
        if "Error: " in remark and answer.code == 1 and remark.split("Error: ")[0].isalpha():
            self.surprises.append(f"{case.label}: refused by an error that nobody expected: {remark[:100]}")
        if answer.code != 0:
            return
        case.acknowledged = True
        if case.kind in SENDS:
            ids = answer.ext.get("msgId", "").split(",")
            case.ids = [parse_offset_message_id(one)[1] for one in ids if len(one) == 32]

    def prepare(self, case: Case) -> None:
        """Say what a case sends and where that must lie, and send what it needs before."""
        kind, number = case.kind, case.number
        case.topic = f"Own-{number}" if case.name in OWN_TOPIC else kind.topic
        if case.name == "topic":
            case.topic = text_of(case.value)
        case.bodies = [b"%d." % number]
        if kind.code == RequestCode.SEND_BATCH_MESSAGE or case.name == "batch":
            parts = [b"%d.%d" % (number, at) for at in range(3)]
            is_batch = case.name != "batch" or str(case.value).lower() == "true"
            case.bodies = parts if is_batch else [batch_body(case, parts)]
        group = case.topic.removeprefix(RETRY_PREFIX)
        case.places = {case.topic, f"{DLQ_PREFIX}{group}", TRANS_HALF_TOPIC}
        if kind.name == "end":
            half = send(
                body=case.bodies[0], properties=f"UNIQ_KEY\x01U{number}\x02TRAN_MSG\x01true\x02PGROUP\x01p"
            )
            self.earlier(case, half)
        elif kind.name == "send-back":
            self.earlier(case, send("Orders", case.bodies[0], properties=f"UNIQ_KEY\x01U{number}"))
            group = text_of(case.value) if case.name == "group" else "readers"
            if case.name == "offset":
                case.bodies = []  # it may be any message of this store
            case.places = {f"{RETRY_PREFIX}{group}", f"{DLQ_PREFIX}{group}"}
        elif kind.name == "recall":
            self.earlier(
                case, send(body=case.bodies[0], properties=f"UNIQ_KEY\x01U{number}\x02TIMER_DELAY_SEC\x019")
            )

    def earlier(self, case: Case, request: Command) -> None:
        """Send honestly what the case is about."""
        (answer,) = self.rig.ask(request)
        assert answer.code == 0, answer.remark
        case.ids = [parse_offset_message_id(answer.ext["msgId"])[1], int(answer.ext["queueOffset"])]
        if "recallHandle" in answer.ext:
            case.topic = answer.ext["recallHandle"]

    def end(self, case: Case, *, odd: bool = False) -> None:
        """Commit the half message of a case."""
        place, queue_offset = case.ids if odd else (case.ids[0], self.half_offset(case.ids[0]))
        group = "p" if odd else case.value if case.name == "property PGROUP" else "producers"
        if queue_offset < 0 or not isinstance(group, str):
            return
        header = EndTransactionRequestHeader(group, queue_offset, place, SYS_COMMIT, msg_id="x")
        request = Command.request(RequestCode.END_TRANSACTION, header)
        try:
            (ended,) = self.rig.ask(request)
        except RmqError:  # a group that no header can carry
            return
        rolled_back = odd and case.acknowledged and is_number(case.value, SYS_ROLLBACK)
        case.acknowledged = ended.code == 0 and not rolled_back
        case.once = case.acknowledged

    def half_offset(self, place: int) -> int:
        view = self.rig.store.read(place)
        half = decode_record(view, decompressed=False) if view is not None else None
        return half.queue_offset if half is not None and half.topic == TRANS_HALF_TOPIC else -1

    # ---- requests ----

    def encoded(self, case: Case) -> bytes:
        """The frame of the odd request."""
        kind, members = case.kind, {case.name: case.value} if case.name in MEMBERS else {}
        data = self.body(case), 1 + case.number, case.binary, kind.flag
        return frame(kind.code, self.ext(case), *data, **members)

    def ext(self, case: Case) -> dict[str, Any]:
        kind = case.kind
        value = HEADERS[kind.header](case)
        short = kind.code in SEND_V2_CODES
        names = {
            attribute.name: fields.short_name(attribute) if short else fields.java_name(attribute)
            for attribute in attrs.fields(kind.header)
        }
        ext = {
            names[name]: str(one).lower() if isinstance(one, bool) else str(one)
            for name, one in attrs.asdict(value).items()
            if one is not None
        }
        if case.name in names:
            ext[names[case.name]] = case.value
        return ext

    def body(self, case: Case) -> bytes:
        if len(case.bodies) > 1:
            return batch_body(case, case.bodies)
        return case.bodies[0] if case.kind in SENDS else b""

    # ---- after the stop ----

    def stopped(self) -> Iterator[str]:
        """Look at what a kill leaves, what a clean stop leaves, and what the slave has."""
        self.copy_to_slave()
        master, slave = self.rig, self.slave
        yield from self.same_on_slave()
        killed, killed_slave = master.disk.copy(), slave.disk.copy()
        for disk in (killed, killed_slave):
            disk._locks.clear()
        for rig in (master, slave):
            rig.store.close()
        disks = {
            "after kill -9": killed,
            "after a clean stop": master.disk,
            "on the slave, killed": killed_slave,
            "on the slave, stopped": slave.disk,
        }
        for how, disk in disks.items():
            try:
                yield from (f"{how}: {problem}" for problem in self.started(disk))
            except (RmqError, ValueError, KeyError, AssertionError) as error:
                yield f"{how}: {error!r}"

    def copy_to_slave(self) -> None:
        rig, broker = self.rig, self.slave.broker
        while data := self.session.frame(1.0):
            self.follower.received(data)
        for name, code in COPIED.items():
            broker.followed.copy(name, rig.one(Command.request(code)).body)
        for name, data in broker.saves().items():
            self.slave.store.save_config(name, data)
        for name, data in rig.broker.saves().items():
            rig.store.save_config(name, data)

    def same_on_slave(self) -> Iterator[str]:
        ours, theirs = self.rig.store, self.slave.store
        if ours.max_physical_offset != theirs.max_physical_offset:
            yield f"the slave's log ends at {theirs.max_physical_offset}, not {ours.max_physical_offset}"
        for topic, queue_id in ours.queues():
            mine, others = ours.max_offset(topic, queue_id), theirs.max_offset(topic, queue_id)
            if mine != others:
                yield f"the slave has {others} of {mine} messages of {topic[:40]!r} queue {queue_id}"

    def started(self, disk: MemoryDisk) -> Iterator[str]:
        """Start a broker on it, let all be delivered, read everything."""
        rig = Rig(disk=disk)
        rig.now_ms = LATER
        for _ in range(2_000):
            if rig.broker.steps.schedule() > rig.now_ms:
                break
        else:
            yield "delayed messages are delivered again and again"
        found = self.read(rig)
        yield from self.missing(rig, found)
        while rig.store.dispatch():
            pass
        if rig.one(send(body=b"after")).code != 0:
            yield "no send is taken any more"
        rig.store.close()
        report = check(disk, "/store")
        yield from (f"the audit finds {one.kind}: {one.detail[:100]}" for one in report.findings[:3])

    def read(self, rig: Rig) -> Counter[tuple[str, bytes]]:
        """The messages that a consumer gets of all queues, and half messages as they lie in the store."""
        found: Counter[tuple[str, bytes]] = Counter()
        for topic, queue_id in list(rig.store.queues()):
            offset = rig.store.min_offset(topic, queue_id)
            end = rig.store.max_offset(topic, queue_id)
            if rig.broker.topics.get(topic) is None:
                raise AssertionError(f"topic {topic[:40]!r} is not known any more")
            while offset < end:
                answer = rig.one(pull(topic, offset, queue_id=queue_id))
                assert answer.code == 0, f"{topic} {queue_id} {offset} of {end}: {answer.remark}"
                assert int(answer.ext["nextBeginOffset"]) > offset
                offset = int(answer.ext["nextBeginOffset"])
                found.update((topic, body) for body in bodies(answer.body))
        return found

    def missing(self, rig: Rig, found: Counter[tuple[str, bytes]]) -> Iterator[str]:
        honest = [found["Honest", b"honest %d" % number] for number in range(1, self.honest + 1)]
        if honest != [1] * self.honest:
            yield f"of {self.honest} honest messages {honest.count(1)} are there once"
        if found["Victims", b"victim"] != 1:
            yield f"another's scheduled message came {found['Victims', b'victim']} times"
        for case in self.cases:
            if not case.acknowledged or (case.kind.name == "recall"):
                continue
            for body in case.bodies:
                if not any(found[place, body] for place in case.places):
                    yield f"{case.label}: acknowledged, and not there"
                if found[case.topic, body] > 1 or (case.once and found[case.topic, body] != 1):
                    yield f"{case.label}: it is there {found[case.topic, body]} times"
            if case.kind in SENDS:
                for place, body in zip(case.ids, case.bodies, strict=True):
                    viewed = rig.store.read(place)
                    if viewed is None or next(bodies(viewed)) != body:
                        yield f"{case.label}: its id leads elsewhere"


def bodies(records: bytes | memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(records):
        one = decode_record(records, at, decompressed=False)
        yield one.body
        at += one.size


def properties_of(case: Case) -> str:
    """The properties text, with the odd one."""
    found = {"UNIQ_KEY": f"U{case.number}", "TAGS": "T"} | case.kind.properties
    if case.name.startswith("property "):
        found[case.name.removeprefix("property ")] = case.value
    return "\x02".join(f"{name}\x01{value}" for name, value in found.items())


def is_number(value: Any, number: int) -> bool:
    try:
        return not isinstance(value, bool) and fields.read_int32(value) == number
    except ValueError:
        return False


def text_of(value: Any) -> str:
    """The text that a broker reads if a JSON header has another value than a text."""
    return value if isinstance(value, str) else "" if value is MISSING else json.dumps(value)


def batch_body(case: Case, bodies: Sequence[bytes]) -> bytes:
    """The body of a batch; an odd property is the second one's."""
    texts = ["UNIQ_KEY\x01B0", "UNIQ_KEY\x01B1\x02TAGS\x01T", "UNIQ_KEY\x01B2"]
    if case.name.startswith("property "):
        texts[1] = properties_of(case)
    parts = []
    for one, text in zip(bodies, texts, strict=True):
        data = raw(text)[:0x7FFF]  # as no encoder of ours would: bytes that are no text, a text that is cut
        part = encode_batch([(0, one, "x" * len(data))])
        parts.append(part[: len(part) - len(data)] + data)
    return b"".join(parts)


def send_header(case: Case) -> SendMessageRequestHeader:
    values = {
        "producer_group": "producers",
        "topic": case.topic if case.name != "topic" else "Orders",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": START - 5,
        "flag": 0,
        "properties": properties_of(case),
        "reconsume_times": 0,
    }
    return SendMessageRequestHeader(**values | case.kind.values)


def end_header(case: Case) -> EndTransactionRequestHeader:
    place, queue_offset = case.ids
    return EndTransactionRequestHeader("p", queue_offset, place, SYS_COMMIT, msg_id=f"U{case.number}")


def back_header(case: Case) -> ConsumerSendMsgBackRequestHeader:
    return ConsumerSendMsgBackRequestHeader(case.ids[0], "readers", 0, f"U{case.number}", "Orders")


def recall_header(case: Case) -> RecallMessageRequestHeader:
    return RecallMessageRequestHeader("Orders", case.topic, "producers")


HEADERS: dict[type[Any], Callable[[Case], Any]] = {
    SendMessageRequestHeader: send_header,
    EndTransactionRequestHeader: end_header,
    ConsumerSendMsgBackRequestHeader: back_header,
    RecallMessageRequestHeader: recall_header,
}


def problems(cases: Sequence[Case]) -> list[str]:
    try:
        return Trial(cases).run()
    except (RmqError, ValueError, KeyError, AssertionError) as error:
        return [f"{error!r}"]


def culprits(cases: Sequence[Case], found: list[str], room: list[int]) -> Iterator[str]:
    """The cases that fail alone, named; halves are tried as long as they fail."""
    if room[0] <= 0:
        return
    if len(cases) == 1:
        room[0] -= 1
        yield f"{cases[0].label}\n    " + "\n    ".join(problem[:200] for problem in found[:4])
        return
    middle = len(cases) // 2
    blamed = False
    for half in (cases[:middle], cases[middle:]):
        if problem := problems(half):
            blamed = True
            yield from culprits(half, problem, room)
    if not blamed:
        yield f"only together: {cases[0].label} to {cases[-1].label}: {found[:4]}"


def no_problem(cases: Sequence[Case]) -> None:
    logging.getLogger("rmq").setLevel(logging.CRITICAL)
    try:
        found = problems(cases)
        if found:
            named = "\n".join(culprits(cases, found, [CULPRITS]))
            pytest.fail(f"{len(found)} problems; the first culprits:\n{named}")
    finally:
        logging.getLogger("rmq").setLevel(logging.NOTSET)


def some(cases: Iterable[Case], share: int) -> list[Case]:
    """All cases of what the kind of send is about, and one of `share` of the others."""
    own = {f"property {name}" for name in ("UNIQ_KEY", "TAGS", "KEYS", "WAIT")} | {
        "sys_flag",
        "topic",
        "batch",
    }
    return [
        case
        for number, case in enumerate(cases)
        if number % share == 0
        or case.name in own
        or case.name.removeprefix("property ") in case.kind.properties
        or case.kind is KINDS[0]
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_odd_field_loses_what_was_acknowledged(kind: Kind) -> None:
    cases = [*some(field_cases(kind, binary=False), 3), *some(field_cases(kind, binary=True), 5)]
    no_problem(cases)


@pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.name)
def test_no_odd_property_loses_what_was_acknowledged(kind: Kind) -> None:
    no_problem(some(property_cases(kind), 5))


@pytest.mark.campaign
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_odd_value_at_all_loses_what_was_acknowledged(kind: Kind) -> None:
    no_problem(list(field_cases(kind, binary=False)))
    no_problem(list(field_cases(kind, binary=True)))
    if kind in SENDS:
        no_problem(list(property_cases(kind)))


def test_it_names_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that there was: bits of a sender's that tell of IPv6 hosts, in a record of IPv4 hosts."""
    kind, build = KINDS[1], record.build_record

    def trusting(*parts: Any) -> bytes:
        record = bytearray(build(*parts))
        record[36:40] = (parts[5] | parts[2] & SYS_HOST_BITS).to_bytes(4, "big", signed=True)
        return bytes(record)

    cases = [case for case in field_cases(kind, binary=False) if case.name == "flag"]
    no_problem(cases)
    monkeypatch.setattr("rmq.store.writer.build_record", trusting)  # takes bits of the sender's from its flag
    with pytest.raises(pytest.fail.Exception, match=r"(?s)flag = '16'.*flag = '32'.*flag = '48'"):
        no_problem(cases)
