"""Messages one by one, as the peer of a door takes them."""

from __future__ import annotations

import pytest

from rmq.broker import door_client
from rmq.broker.doors import DoorPeer
from rmq.doors import OpenTransaction, ReadRequest, TakeRequest
from rmq.errors import AccessDenied, ResponseError
from rmq.message import StoredMessage, dlq_topic
from rmq.plugin import Hooks
from rmq.protocol import record as record_module
from rmq.protocol.codes import SYS_COMPRESSED, SYS_PREPARED
from rmq.protocol.record import Record, compress, encode_record
from rmq.store.files.consumequeue import UNIT_FORM
from tests.unit.broker.per_message.peers import Peer, Stream
from tests.unit.broker.rig import Rig, send
from tests.unit.broker.taking import GROUP, TOPIC, step

REQUEST = TakeRequest(GROUP, TOPIC, from_first=True)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.topic(TOPIC, 1)
    return rig


def test_a_peer_takes_and_acknowledges(rig: Rig) -> None:
    rig.ask(send(TOPIC, b"0"), send(TOPIC, b"1"))
    peer = Peer(rig)
    one, two = peer.take(REQUEST)
    assert (one.message.body, one.attempt, two.message.body) == (b"0", 1, b"1")
    peer.acknowledge(GROUP, TOPIC, [two.handle, "nonsense"], peer.handled)
    assert peer.outcomes == []
    step(rig)
    assert peer.outcomes[0] is None
    assert isinstance(peer.outcomes[1], ResponseError)
    assert peer.nack(GROUP, TOPIC, [one.handle], 0) == [None]
    (again,) = peer.take(REQUEST)
    assert (again.message.body, again.attempt, again.message.reconsume_times) == (b"0", 2, 1)


def test_a_held_take_gets_a_message_that_arrives(rig: Rig) -> None:
    peer = Peer(rig)
    peer.hold_take(REQUEST, peer.found.append, 10)
    assert peer.found == []
    rig.ask(send(TOPIC, b"0"))
    assert [[one.message.body for one in found] for found in peer.found] == [[b"0"]]  # type: ignore[union-attr]


def test_a_held_take_never_calls_before_it_returns(rig: Rig) -> None:
    rig.ask(send(TOPIC, b"0"))
    peer = Peer(rig)
    peer.hold_take(REQUEST, peer.found.append, 10)
    assert peer.found == []
    step(rig)
    assert len(peer.found) == 1


def test_a_wait_that_was_ended_takes_nothing(rig: Rig) -> None:
    peer = Peer(rig)
    end = peer.hold_take(REQUEST, peer.found.append, 10)
    end()
    rig.ask(send(TOPIC, b"0"))
    step(rig, 20)
    assert peer.found == []
    assert len(peer.take(REQUEST)) == 1


def test_messages_come_again_when_a_peer_is_gone(rig: Rig) -> None:
    rig.ask(send(TOPIC, b"0"))
    peer, other = Peer(rig), Peer(rig)
    peer.take(REQUEST)
    other.hold_take(REQUEST, other.found.append, 10)
    peer.closed()
    step(rig)
    assert len(other.found) == 1


def test_a_peer_may_forward_a_message_to_the_dead_letters(rig: Rig) -> None:
    rig.ask(send(TOPIC, b"0"))
    peer = Peer(rig)
    peer.dead_letter(GROUP, TOPIC, [one.handle for one in peer.take(REQUEST)], peer.handled)
    step(rig)
    rig.broker.group_commit.save_topics()
    step(rig)
    assert peer.outcomes == [None]
    assert rig.bodies(dlq_topic(GROUP)) == [b"0"]
    step(rig, 100)
    assert peer.take(REQUEST) == []


def test_the_settings_of_a_group(rig: Rig) -> None:
    settings = Peer(rig).delivery_settings(GROUP)
    assert (settings.max_attempts, settings.in_order, settings.delays_ms[0]) == (17, False, 10_000)


def test_a_peer_without_permission_takes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hooks, "may", lambda hooks, peer, action, name: False)
    peer = Peer(rig)
    for call in (
        lambda: peer.take(REQUEST),
        lambda: peer.hold_take(REQUEST, peer.found.append, 1),
        lambda: peer.acknowledge(GROUP, TOPIC, [], peer.handled),
        lambda: peer.extend(GROUP, TOPIC, "", 1),
        lambda: peer.nack(GROUP, TOPIC, []),
        lambda: peer.dead_letter(GROUP, TOPIC, [], peer.handled),
    ):
        with pytest.raises(AccessDenied):
            call()


def test_clients_that_share_connections_have_a_share_of_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_client, "DOOR_CLIENT_BYTES", rig.broker.config.connection_buffer_bytes // 16)
    made = []
    for host, most in (("10.0.0.1", 8), ("10.0.0.2", 4)):
        for number in range(most):
            peer = DoorPeer(rig.broker, "test", Stream(f"{host}:{number}"))
            made.append((peer, peer.another_client()))
        with pytest.raises(ResponseError, match=f"are taken by {host}"):
            DoorPeer(rig.broker, "test", Stream(f"{host}:99")).another_client()
    assert DoorPeer(rig.broker, "test", Stream("10.0.1.1:1")).another_client()
    for peer, client in made[-2:]:
        client.end_client()
        peer.closed()
    made[0][0].closed()
    assert DoorPeer(rig.broker, "test", Stream("10.0.0.2:99")).another_client()


def test_a_wait_that_is_ended_before_its_messages_are_given_gives_them_back(rig: Rig) -> None:
    rig.ask(send(TOPIC, b"0"))
    peer = Peer(rig)
    end = peer.hold_take(REQUEST, peer.found.append, 10)
    end()
    end()
    step(rig)
    assert peer.found == []
    (taken,) = peer.take(REQUEST)
    assert (taken.message.body, taken.attempt) == (b"0", 1)


def test_the_end_of_a_wait_whose_messages_were_given_leaves_them(rig: Rig) -> None:
    rig.ask(send(TOPIC, b"0"))
    peer = Peer(rig)
    end = peer.hold_take(REQUEST, peer.found.append, 10)
    step(rig)
    end()
    assert len(peer.found) == 1
    assert peer.take(REQUEST) == []


def test_messages_for_which_no_call_can_wait_are_given_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ask(send(TOPIC, b"0"))
    peer = Peer(rig)
    refusal = ResponseError(2, "too many calls wait")

    def defer(*given: object) -> None:
        raise refusal

    with monkeypatch.context() as patch:
        patch.setattr(peer, "defer", defer)
        with pytest.raises(ResponseError):
            peer.hold_take(REQUEST, peer.found.append, 10)
    (taken,) = peer.take(REQUEST)
    assert (taken.message.body, taken.attempt) == (b"0", 1)


def test_a_producer_whose_second_call_is_refused_is_still_asked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer(rig)
    peer.produce("producers", "client-1")
    refusal = ResponseError(2, "too many members")

    def heartbeat(*given: object) -> None:
        raise refusal

    monkeypatch.setattr(peer, "_heartbeat", heartbeat)
    with pytest.raises(ResponseError):
        peer.produce("producers", "client-1")
    assert list(peer._producing) == ["producers"]
    with pytest.raises(ResponseError):
        peer.produce("others", "client-1")
    assert list(peer._producing) == ["producers"]


def test_a_message_that_cannot_be_decompressed_costs_no_other_message(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.ask(send(TOPIC, b"0"), send(TOPIC, b"no zlib", sys_flag=SYS_COMPRESSED), send(TOPIC, b"2"))
    peer = Peer(rig)
    assert [one.message.body for one in peer.take(REQUEST)] == [b"0", b"2"]
    assert f"{TOPIC} queue 0, offset 1: the ZLIB body cannot be read" in caplog.text


def test_its_sender_and_other_consumers_are_served_though_a_take_waits(rig: Rig) -> None:
    peer, later = Peer(rig), Peer(rig)
    peer.hold_take(REQUEST, peer.found.append, 10)
    rig.topic("Zeta", 1)
    later.hold_take(TakeRequest(GROUP, "Zeta", from_first=True), later.found.append, 10)
    answers = rig.ask(send(TOPIC, b"no zlib", sys_flag=SYS_COMPRESSED), send(TOPIC, b"1"), send("Zeta", b"z"))
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert [one.message.body for one in peer.found[0]] == [b"1"]  # type: ignore[union-attr]
    assert [one.message.body for one in later.found[0]] == [b"z"]  # type: ignore[union-attr]


class Coloured:
    """Chooses messages by a property, as a selector."""

    version = 0

    def __init__(self, colour: str) -> None:
        self._colour = colour

    def __call__(self, message: StoredMessage) -> bool:
        return message.properties.get("colour") == self._colour


RED = "UNIQ_KEY\x01R\x02colour\x01red"


@pytest.mark.parametrize("chooser", [None, Coloured("red")])
def test_a_message_that_cannot_be_decompressed_is_a_dead_letter_in_the_end(
    rig: Rig, chooser: Coloured | None
) -> None:
    """However long the leases of the consumer are."""
    request = TakeRequest(GROUP, TOPIC, from_first=True, invisible_ms=7 * 86_400_000, chooser=chooser)
    rig.ask(
        send(TOPIC, b"no zlib", sys_flag=SYS_COMPRESSED, properties=RED), send(TOPIC, b"1", properties=RED)
    )
    peer = Peer(rig)
    assert [one.message.body for one in peer.take(request)] == [b"1"]
    attempts = 1
    while not rig.store.max_offset(dlq_topic(GROUP), 0):
        step(rig, 7_201)
        assert peer.take(request) == []
        step(rig, 0)
        attempts += 1
    assert attempts == 17  # the first, and 16 retries


def test_a_compressed_message_is_chosen_by_its_properties_without_being_decompressed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ask(send(TOPIC, compress(b"plain"), sys_flag=SYS_COMPRESSED, properties=RED))
    opened: list[bytes] = []
    real = record_module.decompress

    def seen(body: bytes, *rest: int) -> bytes:
        opened.append(body)
        return real(body, *rest)

    monkeypatch.setattr(record_module, "decompress", seen)
    blue, red = (
        TakeRequest(GROUP, TOPIC, from_first=True, chooser=Coloured(name)) for name in ("blue", "red")
    )
    assert Peer(rig).take(blue) == []
    assert opened == []
    assert [one.message.body for one in Peer(rig).take(red)] == [b"plain"]


@pytest.mark.parametrize("chooser", [None, Coloured("red")])
def test_a_damaged_record_is_tried_and_costs_no_other_message(rig: Rig, chooser: Coloured | None) -> None:
    """Its queue unit points to bytes that are no record."""
    damaged = bytearray(encode_record(Record(TOPIC, 0, b"body"), bytes(8)))
    damaged[4:8] = bytes(4)
    place = rig.put("Other", 0, bytes(damaged))
    found = rig.store.read(place)
    assert found is not None
    rig.put(TOPIC, 0, b"0")
    rig.put(TOPIC, 0, b"1", properties={"colour": "red"})
    unit = UNIT_FORM.pack(place + bytes(found).index(damaged), len(damaged), 0)
    queue = rig.store.lane(TOPIC, 0)
    assert queue is not None
    queue.tail[: len(unit)] = unit
    request = TakeRequest(GROUP, TOPIC, from_first=True, invisible_ms=7 * 86_400_000, chooser=chooser)
    peer = Peer(rig)
    taken = peer.take(request)
    assert [one.message.body for one in taken] == [b"1"]
    peer.acknowledge(GROUP, TOPIC, [taken[0].handle], peer.handled)
    step(rig, 7_201)
    queued = rig.broker.deliveries.queue_of(GROUP, TOPIC, 0)
    assert queued is not None
    assert [batch.attempt for batch in queued.ready] == [1]


def test_a_read_goes_on_behind_a_message_that_cannot_be_decompressed(rig: Rig) -> None:
    rig.ask(send(TOPIC, b"0"), send(TOPIC, b"no zlib", sys_flag=SYS_COMPRESSED), send(TOPIC, b"2"))
    found = Peer(rig).read(ReadRequest("readers", TOPIC, 0, 0))
    assert ([one.body for one in found.messages], found.next_offset) == ([b"0", b"2"], 3)


def test_a_half_message_that_cannot_be_decompressed_ends_no_check_of_others(rig: Rig) -> None:
    peer = Peer(rig)
    asked: list[OpenTransaction] = []
    peer.produce(TOPIC, "client-1", asked.append)
    half = f"TRAN_MSG\x01true\x02PGROUP\x01{TOPIC}\x02UNIQ_KEY\x01"
    rig.ask(
        send(TOPIC, b"no zlib", sys_flag=SYS_COMPRESSED | SYS_PREPARED, properties=half + "A"),
        send(TOPIC, b"half", sys_flag=SYS_PREPARED, properties=half + "B"),
    )
    rig.now_ms += 600_000
    while rig.broker.steps.transactions() <= rig.now_ms:
        pass
    step(rig)
    assert [one.message.body for one in asked] == [b"half"]


def test_messages_that_grow_large_are_given_in_parts(rig: Rig) -> None:
    body = compress(bytes(3 << 20))
    rig.ask(*[send(TOPIC, body, sys_flag=SYS_COMPRESSED) for _ in range(5)])
    peer = Peer(rig)
    first = peer.take(REQUEST)
    assert [one.message.queue_offset for one in first] == [0, 1, 2], "8 MiB, and one message more"
    peer.hold_take(REQUEST, peer.found.append, 10)
    step(rig)
    (others,) = peer.found
    assert [(one.message.queue_offset, one.attempt) for one in others] == [(3, 1), (4, 1)]  # type: ignore[union-attr]
    found = peer.read(ReadRequest("readers", TOPIC, 0, 0))
    assert (len(found.messages), found.next_offset) == (3, 3)
    assert peer.browse("readers", TOPIC, 0, 0)[1] == 3
