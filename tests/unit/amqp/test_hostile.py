"""AMQP 1.0: hostile peers. Whatever they send, they cost nobody else, and leave nothing behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rmq_amqp import connection, sasl, shared, values
from rmq_amqp.connection import Connection
from rmq_amqp.sections import build
from rmq_amqp.shared import Shared
from rmq_amqp.values import Described, Symbol, UByte, UInt, ULong
from trio.testing import MockClock

from rmq.broker.doors import DoorPeer
from tests.unit.amqp.client import ACCEPTED, Broken
from tests.unit.amqp.messages import PORT, bodies, client, cluster, text
from tests.unit.amqp.odd_values import anything
from tests.unit.broker.rig import Rig

# ---- any performatives, in any order ----


class Stream:
    """The bytes of a peer, to a connection without a loop."""

    def __init__(self) -> None:
        self.said = b""
        self.peer_address, self.local_address = "10.0.8.9:1", "10.0.1.1:5672"
        self.certificate_name = ""
        self.state: dict[str, Any] = {}
        self.has_proved = self.is_closed = self.is_busy = False

    def send(self, data: bytes) -> None:
        assert not self.is_closed
        self.said += data

    write = send

    def hold(self, count: int, since: float | None = None) -> None:
        assert count >= 0

    def close(self, reason: str = "") -> None:
        self.is_closed = True


class Raw:
    """Encoded bytes of a value."""

    def __init__(self, data: bytes) -> None:
        self.data = data


values._ENCODERS[Raw] = lambda value: value.data


def described(code: int, *fields: object) -> Described:
    return Described(ULong(code), list(fields))


def frame(channel: int, code: int, fields: list[object], payload: bytes = b"") -> bytes:
    body = values.encode(Described(ULong(code), fields)) + payload
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body


numbers = st.integers(0, 3).map(UInt)
addresses = st.sampled_from(["Orders", "queue://Orders", "a.b", "rmq-temporary|1", "", None, "x" * 300])
sources = st.builds(
    lambda address, durable, dynamic, more: described(
        0x28, address, UInt(durable), None, None, dynamic, None, more
    ),
    addresses,
    st.integers(0, 2),
    st.booleans(),
    st.one_of(st.none(), st.just(Symbol("copy"))),
)
targets = st.one_of(
    st.builds(
        lambda address, dynamic: described(0x29, address, None, None, None, dynamic), addresses, st.booleans()
    ),
    st.just(described(0x30, None)),
)
states = st.one_of(
    st.sampled_from([described(0x24), described(0x26), described(0x27, True), described(0x25)]),
    st.builds(lambda name: described(0x34, name, described(0x24)), st.binary(max_size=16)),
    st.none(),
)
controls = st.one_of(
    st.just(described(0x31)), st.builds(lambda name: described(0x32, name, False), st.binary(max_size=16))
)
payloads = st.one_of(
    st.just(build(text("m"))),
    controls.map(lambda one: b"\x00\x53\x77" + values.encode(one)),
    st.binary(max_size=40),
)
PERFORMATIVES = st.one_of(
    st.tuples(st.just(0x11), st.tuples(st.none(), numbers, numbers, numbers)),
    st.tuples(
        st.just(0x12),
        st.tuples(
            st.text("ab", min_size=1, max_size=2),
            numbers,
            st.booleans(),
            st.integers(0, 2).map(UByte),
            st.integers(0, 1).map(UByte),
            sources,
            targets,
            st.none(),
            st.none(),
            numbers,
        ),
    ),
    st.tuples(
        st.just(0x13),
        st.tuples(numbers, numbers, numbers, numbers, numbers, numbers, numbers, st.none(), st.booleans()),
    ),
    st.tuples(
        st.just(0x14),
        st.tuples(
            numbers,
            numbers,
            st.binary(max_size=4),
            st.just(UInt(0)),
            st.booleans(),
            st.booleans(),
            st.none(),
            states,
        ),
    ),
    st.tuples(st.just(0x15), st.tuples(st.booleans(), numbers, numbers, st.booleans(), states)),
    st.tuples(st.just(0x16), st.tuples(numbers, st.booleans())),
    st.tuples(st.just(0x17), st.just(())),
    st.tuples(st.just(0x18), st.just(())),
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Frames of a session that is begun, of which some have wrong fields."""
    data = frame(0, 0x11, [None, UInt(0), UInt(100), UInt(100)])
    for _ in range(draw(st.integers(1, 14))):
        code, fields = draw(PERFORMATIVES)
        chosen = list(fields)
        if chosen and draw(st.integers(0, 9)) == 0:
            chosen[draw(st.integers(0, len(chosen) - 1))] = draw(anything)
        payload = draw(payloads) if code == 0x14 else b""
        data += frame(draw(st.integers(0, 1)), code, chosen, payload)
    return data


@contextmanager
def errors() -> Iterator[list[str]]:
    """The errors that are logged in the block."""
    found: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("rmq").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("rmq").removeHandler(handler)


LOGIN = sasl.SASL_HEADER + sasl.frame(sasl.INIT, [Symbol("ANONYMOUS"), b"", "broker"]) + sasl.AMQP_HEADER
OPENING = LOGIN + frame(0, 0x10, ["peer", "broker", UInt(16_384), values.UShort(100)])


@settings(max_examples=20, deadline=None)
@given(st.lists(frames(), min_size=1, max_size=3))
def test_any_frames_in_any_order_break_nothing_and_leave_nothing(chunks: list[bytes]) -> None:
    feed(chunks)


def feed(chunks: list[bytes], opening: bytes = OPENING) -> bytes:
    """Feed a connection, and end it; nothing breaks, and nothing is left. Returns the answers."""
    rig, both = Rig(), Shared()
    rig.topic("Orders", 2)
    stream = Stream()
    peer = DoorPeer(rig.broker, "amqp", stream)  # type: ignore[arg-type]
    one = Connection(stream, peer, both, 1, lambda: rig.seconds)
    with errors() as found:
        one.feed(opening)
        for chunk in chunks:
            if not stream.is_closed:
                one.feed(chunk)
                one.flush()
                rig.let_pass(1_000)
                rig.broker.steps.deadlines(rig.seconds)
                if not stream.is_closed:
                    one.flush()
        stream.close()
        one.closed()
        peer.closed()
        rig.broker.steps.deadlines(rig.seconds)
    assert found == []
    assert (both.links.used, both.kept.used, len(both.halves)) == (0, 0, 0)
    assert (both.temporaries, both._soles, both._used, both._owners) == ({}, {}, {}, {})
    assert both.work.used == 0
    assert rig.broker.deliveries.polls.waiting(("Orders", "Orders")) == 0
    return stream.said


def nested(depth: int, head: bytes) -> Raw:
    """Compound values in compound values: `head` and the length begin each, a single null is the last."""
    data = b"\x40"
    for _ in range(depth):
        data = head[:1] + (len(data) + len(head) - 1).to_bytes(4, "big") + head[1:] + data
    return Raw(data)


LIST, ARRAY = b"\xd0\0\0\0\1", b"\xf0\0\0\0\1"
BEGIN = frame(0, 0x11, [None, UInt(0), UInt(100), UInt(100)])
SOURCE, TARGET = described(0x28, "Orders"), described(0x29, "Orders")


def attached(
    source: object = SOURCE, target: object = TARGET, name: object = "a", role: bool = False
) -> bytes:
    return frame(0, 0x12, [name, UInt(0), role, UByte(2), UByte(0), source, target, None, None, UInt(0)])


def transferred(state: object) -> bytes:
    fields = [UInt(0), UInt(0), b"t", UInt(0), False, False, None, state]
    return frame(0, 0x14, fields, build(text("m")))


def filtered(value: object) -> bytes:
    return attached(described(0x28, "Orders", None, None, None, None, None, None, value), role=True)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (attached(described(0x28, None), name=None, role=True), b"amqp:invalid-field"),
        (filtered([Symbol("jms-selector")]), b"amqp:invalid-field"),
        (filtered({Symbol("jms-selector"): "n = " + "9" * 5_000}), b"amqp:invalid-field"),
        (filtered(nested(1_000, LIST)), b"amqp:decode-error"),
        (filtered({Symbol("jms-selector"): nested(1_000, ARRAY)}), b"amqp:decode-error"),
        (attached() + transferred(described(0x34, nested(1_000, LIST))), b"amqp:decode-error"),
        (attached() + transferred(described(0x34, "a text")), b"amqp:transaction:unknown-id"),
        (attached(described(0x28, Raw(b"\xa1\x02\xff\xfe")), role=True), b"amqp:decode-error"),
        (attached(name=Raw(b"\xa1\x02\xff\xfe")), b"amqp:decode-error"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused(sent: bytes, said: bytes) -> None:
    assert said in feed([BEGIN, sent])


def test_the_id_of_a_transaction_is_a_binary_and_no_length() -> None:
    """A number was taken for the length of the id: 8 GB for 31 bits."""
    answers = feed([BEGIN, attached() + transferred(described(0x34, ULong(1 << 24)))])
    assert b"amqp:transaction:unknown-id" in answers
    assert b"00000000" not in answers


def test_a_peer_that_opens_with_odd_capabilities_is_refused() -> None:
    odd = [None, None, None, None, nested(1_000, LIST)]
    opening = frame(0, 0x10, ["peer", "broker", UInt(16_384), values.UShort(100), *odd])
    assert b"amqp:decode-error" in feed([], LOGIN + opening)


def test_a_second_opening_is_refused_and_claims_no_client_id() -> None:
    sole = [None] * 4 + [Symbol("sole-connection-for-container")]
    openings = [
        frame(0, 0x10, [container, "broker", UInt(16_384), values.UShort(100), *sole])
        for container in ("one", "two")
    ]
    assert b"amqp:not-allowed" in feed(openings, LOGIN)


def test_links_that_a_peer_leaves_open_behind_their_end_end_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine keeps an ended link until the peer ends it, too: such links had no bound."""
    monkeypatch.setattr(connection, "LINKS_MAX", 50)

    def refused(number: int, *ended: object) -> bytes:
        fields = [f"a{number}", UInt(number), True, UByte(2), UByte(0), described(0x28, None), TARGET]
        attach = frame(0, 0x12, [*fields, None, None, UInt(0)])
        return attach + b"".join(frame(0, code, [UInt(number), True]) for code in ended)  # type: ignore[arg-type]

    assert b"resource-limit" not in feed([BEGIN, *(refused(number, 0x16) for number in range(200))])
    assert b"resource-limit" not in feed([BEGIN, *(refused(number) for number in range(50))])
    assert b"ended links open" in feed([BEGIN, *(refused(number) for number in range(51))])
    ends = frame(0, 0x17, [])
    some = [BEGIN, *(refused(number) for number in range(40)), ends]
    assert b"resource-limit" not in feed(some * 4)


def test_a_message_to_the_coordinator_is_short() -> None:
    more = [UInt(0), UInt(0), b"t", UInt(0), False, True]
    sent = [frame(0, 0x14, more, bytes(1_000)) for _ in range(10)]
    assert b"amqp:link:message-size-exceeded" in feed([BEGIN, attached(target=described(0x30, None)), *sent])


def test_a_message_to_the_coordinator_that_is_aborted_is_forgotten() -> None:
    begun = frame(0, 0x14, [UInt(0), UInt(0), b"t", UInt(0), False, True], b"\0\x53")
    aborted = frame(0, 0x14, [UInt(0), UInt(0), b"t", UInt(0), False, False, None, None, None, True])
    declare = b"\x00\x53\x77" + values.encode(described(0x31))
    again = frame(0, 0x14, [UInt(0), UInt(1), b"u", UInt(0), False, False], declare)
    answers = feed([BEGIN, attached(target=described(0x30, None)), begun, aborted, again])
    assert b"\0\x53\x33" in answers, "declared"


# ---- more than their share ----


async def test_links_without_end_leave_links_for_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "LINKS", 40)
    async with cluster() as running:
        async with client(running, "greedy", host="10.0.8.9") as one:
            session = await one.session()
            for number in range(20):
                await one.producer(session, "Orders", f"p{number}")
            with pytest.raises(Broken, match=r"resource-limit-exceeded: of the links .* taken by"):
                await one.producer(session, "Orders", "one more")
            async with client(running, "modest") as two:
                other = await two.session()
                await (await two.producer(other, "Orders")).send(text("m"))
                assert await bodies(await two.consumer(other, "Orders"), 1) == ["m"]
        async with client(running, "again", host="10.0.8.9") as three:
            session = await three.session()
            for number in range(20):
                await three.producer(session, "Orders", f"p{number}")


async def test_sessions_without_end_end_the_connection(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        assert one.transport.remote_channel_max == connection.CHANNELS
        for _ in range(connection.CHANNELS + 1):
            await one.session()
        begin = frame(connection.CHANNELS + 1, 0x11, [None, UInt(0), UInt(100), UInt(100)])
        await one.stream.send_all(begin)
        with pytest.raises(Broken, match="framing-error"):
            await one.until(lambda: False)


async def test_messages_of_temporary_queues_have_a_share(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "TEMPORARY_BYTES", 200_000)
    async with cluster() as running, client(running, "greedy", host="10.0.8.9") as one:
        session = await one.session()
        kept = []
        for number in range(4):
            link = session.receiver(f"temporary {number}")
            link.source.dynamic = True
            await one.attached(link)
            producer = await one.producer(session, link.remote_source.address, f"p{number}")
            for _ in range(10):
                kept.append((await producer.send(text("x" * 4_000))).remote_state == ACCEPTED)
        assert 15 < kept.count(True) <= 20
        async with client(running, "modest") as two:
            other = await two.session()
            link = other.receiver("temporary")
            link.source.dynamic = True
            await two.attached(link)
            outcome = await (await two.producer(other, link.remote_source.address)).send(text("m"))
            assert outcome.remote_state == ACCEPTED


async def test_a_peer_that_never_settles_holds_its_own_messages_only(autojump_clock: MockClock) -> None:
    async with cluster(max_taken_messages=40) as running:
        async with client(running, "greedy", host="10.0.8.9") as one, client(running, "modest") as two:
            session, other = await one.session(), await two.session()
            producer = await two.producer(other, "Orders")
            for number in range(60):
                await producer.send(text(f"m{number}"))
            greedy = await one.consumer(session, "Orders", credit=1_000_000)
            await one.until(lambda: greedy.link.queued >= 20)
            await anyio.sleep(5)
            assert greedy.link.queued < 40
            bills = await two.producer(other, "Bills", "bills")
            await bills.send(text("bill"))
            assert await bodies(await two.consumer(other, "Bills", "from bills"), 1) == ["bill"]
        async with client(running, "three") as three:
            consumer = await three.consumer(await three.session(), "Orders")
            assert len(await bodies(consumer, 60)) == 60


async def test_a_peer_that_never_reads_costs_nobody_else(autojump_clock: MockClock) -> None:
    async with cluster(topics={"Orders": 1, "Bills": 1}) as running, client(running, "modest") as two:
        other = await two.session()
        producer = await two.producer(other, "Orders")
        for _ in range(300):
            await producer.send(text("x" * 50_000))
        address = f"{running['a'].address.partition(':')[0]}:{PORT}"
        stream = await running.network.host("10.0.8.9").dial(address)  # type: ignore[attr-defined]
        source, target = described(0x28, "Orders"), described(0x29, None)
        attach = ["c", UInt(0), True, UByte(0), UByte(0), source, target]
        flow = [UInt(0), UInt(1 << 30), UInt(0), UInt(1 << 30), UInt(0), UInt(0), UInt(100_000)]
        begin = frame(0, 0x11, [None, UInt(0), UInt(1 << 30), UInt(1 << 30)])
        await stream.send_all(OPENING + begin + frame(0, 0x12, attach) + frame(0, 0x13, flow))
        await anyio.sleep(30)
        assert running["a"].server.budget.held < 16 << 20  # type: ignore[union-attr]
        bills = await two.producer(other, "Bills", "bills")
        await bills.send(text("bill"))
        assert await bodies(await two.consumer(other, "Bills", "from bills"), 1) == ["bill"]
        await stream.aclose()
        rest = await two.consumer(other, "Orders", "rest", credit=300)
        assert len(await bodies(rest, 300)) == 300


@pytest.mark.parametrize("sent", [b"", sasl.SASL_HEADER, OPENING[:-3]])
async def test_a_slow_login_ends(autojump_clock: MockClock, sent: bytes) -> None:
    async with cluster() as running:
        address = f"{running['a'].address.partition(':')[0]}:{PORT}"
        stream = await running.network.host("10.0.8.9").dial(address)  # type: ignore[attr-defined]
        await stream.send_all(sent or b"AMQP")
        began = anyio.current_time()
        while await stream.receive_some(65_536):
            pass
        assert anyio.current_time() - began <= connection.OPEN_SECONDS + 1
        await stream.aclose()


async def test_a_frame_beyond_the_limit_ends_its_connection(autojump_clock: MockClock) -> None:
    async with cluster() as running, client(running) as one:
        assert one.transport.remote_max_frame_size == connection.FRAME_BYTES
        address = f"{running['a'].address.partition(':')[0]}:{PORT}"
        stream = await running.network.host("10.0.8.9").dial(address)  # type: ignore[attr-defined]
        await stream.send_all(OPENING + (1 << 30).to_bytes(4, "big") + b"\x02\x00\x00\x00" + bytes(100_000))
        with anyio.fail_after(5):
            while await stream.receive_some(65_536):
                pass
        await stream.aclose()
        await (await one.producer(await one.session(), "Orders")).send(text("m"))
