"""Odd messages through the raw protocol and by the stock Java client: our broker stores each message that
RocketMQ 4.9.7 stores, byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import pytest
from attrs import astuple, define, evolve

from rmq import ClientConfig
from rmq.client.blocking import connect
from rmq.message import PROPERTY_UNIQUE_KEY
from rmq.protocol.codes import ResponseCode
from tests.interop.odd.messages import Odd, drawn, fixed
from tests.interop.odd.raw import Answer, Line, Record, record
from tests.interop.rocketmq import Java, Processes

pytestmark = pytest.mark.interop

TOPIC = "Odd"
PATIENT = ClientConfig(request_timeout_ms=15_000)
VIEW_MESSAGE = 33
SEED, DRAWN = 36, 400
SENDERS_FLAGS: Final = 1 | 2 | 256
"""Bits of sysFlag that a sender sets: compression, and several tags. Our broker keeps these only."""
BROKERS_NAMES: Final = frozenset(
    {"REAL_TOPIC", "REAL_QID", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"}
)
"""Properties whose values are a broker's: ours takes them out of what is sent."""
WAIT: Final = "WAIT"
"""A wish of the send; Java's broker takes it out of all messages but delayed ones."""
REFUSED: Final = frozenset({"a NUL"})
"""Stored by Java, refused by ours: NUL is what a power cut leaves of a page (docs/compatibility.md)."""


@define
class Side:
    """A broker of one kind, its name server, and a connection to it."""

    namesrv: str
    line: Line

    def send(self, one: Odd) -> Answer:
        """The answer to a message."""
        return self.line.ask(one.code, one.fields, one.body, binary=one.binary)

    def stored(self, answer: Answer) -> Record | None:
        """The log's record of a stored message; None for a response without a place."""
        return self.record(answer.fields.get("msgId", ""))

    def record(self, places: str) -> Record | None:
        """The log's record at the first of these offset ids; None without any."""
        place = places.partition(",")[0]
        if len(place) != 32:
            return None
        (offset,) = struct.unpack(">q", bytes.fromhex(place)[8:])
        found = self.line.ask(VIEW_MESSAGE, {"offset": offset})
        assert found.code == 0, (place, found)
        return record(found.body)


@pytest.fixture(scope="module")
def sides(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Java's broker, and ours with the profile compat."""
    folder = tmp_path_factory.mktemp("alike")
    with Processes(java, folder) as started:
        settings = {"mappedFileSizeCommitLog": str(64 << 20), "defaultTopicQueueNums": "8"}
        sides = []
        for namesrv, broker, name in (
            (started.java_namesrv(), started.java_broker, "java"),
            (started.rmq_namesrv(), started.rmq_broker, "rmq"),
        ):
            process = broker(namesrv, folder / name, **settings)
            with connect(namesrv, config=PATIENT) as client:
                client.admin.create_topic(TOPIC, queues=4)
            sides.append(Side(namesrv, Line(f"127.0.0.1:{process.port}")))
        yield sides[0], sides[1]
        for side in sides:
            side.line.close()


@pytest.fixture(scope="module")
def odd_client(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """The processes of the Java client."""
    with Processes(java, tmp_path_factory.mktemp("client")) as started:
        yield started


def difference(one: Odd, theirs: Side, ours: Side) -> str:
    """The difference of our broker for a message that Java's broker stores or refuses; empty without any."""
    expected, answer = theirs.send(one), ours.send(one)
    if expected.code != 0:
        # An exception of Java's is a refusal with its reason at ours.
        named = expected.code == 1 and answer.code == ResponseCode.MESSAGE_ILLEGAL
        if answer.code == expected.code or named:
            return ""
        return (
            f"{one.name}: refused {expected.code} {expected.remark!r}, ours {answer.code} {answer.remark!r}"
        )
    if answer.code != 0:
        known = one.name in REFUSED and answer.code == ResponseCode.MESSAGE_ILLEGAL
        return "" if known else f"{one.name}: stored, ours refuses it by {answer.code} {answer.remark!r}"
    if (known_record := theirs.stored(expected)) is None:
        return ""
    stored = ours.stored(answer)
    known_record = taken(known_record)
    if int(one.fields.get("e", 0)) < 0:  # any queue
        known_record = evolve(known_record, queue=stored.queue if stored else -1)
    return "" if known_record == stored else f"{one.name}: stored {shown(known_record, stored)}"


def taken(known: Record) -> Record:
    """The record that our broker stores for a message that Java's broker has stored."""
    properties = {name: value for name, value in known.properties.items() if name not in BROKERS_NAMES}
    if known.topic == TOPIC.encode():
        return evolve(known, sys_flag=known.sys_flag & SENDERS_FLAGS, properties=properties)
    return known


def shown(known: Record | None, stored: Record | None) -> str:
    """The fields that differ."""
    if known is None or stored is None:
        return f"{known} and ours {stored}"[:400]
    pairs = zip(astuple(known, recurse=False), astuple(stored, recurse=False), strict=True)
    return ", ".join(f"{a!r:.150} and ours {b!r:.150}" for a, b in pairs if a != b)


def test_each_limit_is_the_same(sides: tuple[Side, Side]) -> None:
    found = [text for one in fixed(TOPIC) if (text := difference(one, *sides))]
    assert not found, f"{len(found)}:\n" + "\n".join(found)


def test_messages_by_chance_are_stored_alike(sides: tuple[Side, Side]) -> None:
    found = [text for one in drawn(TOPIC, SEED, DRAWN) if (text := difference(one, *sides))]
    assert not found, f"{len(found)}:\n" + "\n".join(found)


def test_the_java_client_has_its_messages_stored_alike(
    sides: tuple[Side, Side], odd_client: Processes
) -> None:
    found = []
    rows = [odd_client.program("Odd", side.namesrv, TOPIC, str(SEED), "150").finish(180) for side in sides]
    assert [row["sent"] for row in rows[0]] == [row["sent"] for row in rows[1]]
    assert sum(row["code"] == 0 for row in rows[0]) > 180
    for known, ours in zip(*rows, strict=True):
        if known["code"] != ours["code"]:
            found.append(f"{known['sent']}: {known['code']}, ours {ours['code']}")
        elif known["place"]:
            pair = [one.record(row["place"]) for one, row in zip(sides, (known, ours), strict=True)]
            expected, stored = (evolve(one, born_ms=0, properties=unnamed(one)) for one in pair if one)
            if expected != stored:
                found.append(f"{known['sent']}: stored {shown(expected, stored)}")
    assert not found, f"{len(found)}:\n" + "\n".join(found)


def unnamed(one: Record) -> dict[str, str]:
    """The properties without the client's id of the message, and without WAIT."""
    return {name: value for name, value in one.properties.items() if name not in (PROPERTY_UNIQUE_KEY, WAIT)}
