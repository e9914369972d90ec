"""Reading without a request, as doors do: by values of a plain class and a connection of any kind."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.consume.long_polling import ParkedRead
from rmq.doors import ReadRequest
from rmq.errors import ResponseError
from rmq.protocol.codes import ResponseCode
from rmq.protocol.record import decode_records

from ..rig import Rig, send


class Peer:
    """A connection that speaks no protocol at all."""

    peer_address, local_address = "10.0.0.1:7", "10.0.0.9:7070"
    is_closed = is_busy = False

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.finished = ""

    def reset_on_close(self) -> None:
        raise AssertionError("it is answered")

    def finish(self, reason: str) -> None:
        self.finished = reason


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.topic("Orders")
    return rig


def found(rig: Rig, request: ReadRequest, peer: Peer | None = None) -> list[bytes]:
    _, result, _ = rig.broker.reader.read(request, peer or Peer())
    return [message.body for message in decode_records(b"".join(result.buffers))]


def hold(rig: Rig, peer: Peer, outcomes: list[Any], seconds: float = 10, offset: int = 0) -> ParkedRead:
    held = ParkedRead(
        connection=peer,
        header=ReadRequest("readers", "Orders", 0, offset),
        offset=offset,
        deadline=rig.seconds + seconds,
        on_result=lambda held, outcome: outcomes.append(outcome),
    )
    rig.broker.reader.hold(held)
    return held


def test_it_reads_as_a_pull_does(rig: Rig) -> None:
    for body, tags in ((b"a", "x"), (b"b", "y"), (b"c", "x")):
        rig.put("Orders", body=body, tags=tags)
    assert found(rig, ReadRequest("readers", "Orders", 0, 0)) == [b"a", b"b", b"c"]
    assert found(rig, ReadRequest("readers", "Orders", 0, 1, 1)) == [b"b"]
    assert found(rig, ReadRequest("readers", "Orders", 0, 0, subscription="x")) == [b"a", b"c"]
    busy = Peer()
    busy.is_busy = True
    assert found(rig, ReadRequest("readers", "Orders", 0, 0), busy) == [b"a"]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (ReadRequest("readers", "Missing", 0, 0), ResponseCode.TOPIC_NOT_EXIST),
        (ReadRequest("readers", "Orders", 9, 0), ResponseCode.SYSTEM_ERROR),
        (ReadRequest("readers", "Orders", 0, 0, subscription="||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_it_refuses_as_a_pull_does(rig: Rig, request_: ReadRequest, code: int) -> None:
    with pytest.raises(ResponseError) as raised:
        rig.broker.reader.read(request_, Peer())
    assert raised.value.code == code


def test_a_held_read_is_answered_by_a_message_by_its_deadline_or_by_the_stop(rig: Rig) -> None:
    by_message, by_time, by_stop = [], [], []  # type: ignore[var-annotated]
    hold(rig, Peer(), by_message)
    rig.ask(send(body=b"x"))
    ((_, result, code),) = by_message
    assert (code, result.count) == (0, 1)

    hold(rig, Peer(), by_time, seconds=5, offset=1)
    rig.let_pass(4_000)
    rig.broker.steps.deadlines(rig.seconds)
    assert by_time == []
    rig.let_pass(1_000)
    rig.broker.steps.deadlines(rig.seconds)
    ((_, result, code),) = by_time
    assert (code, result.count) == (ResponseCode.PULL_NOT_FOUND, 0)

    peer = Peer()
    hold(rig, peer, by_stop, offset=1)
    rig.broker.parked_pulls.fall_silent()
    rig.ask(send(body=b"y"))
    assert by_stop == []
    rig.broker.parked_pulls.finish_last()
    ((_, result, code),) = by_stop
    assert (code, result.count) == (0, 1)
    assert peer.finished


def test_held_reads_are_bounded_and_end_with_their_connection() -> None:
    rig = Rig(max_held_pulls_of_connection=2)
    rig.topic("Orders")
    peer, outcomes = Peer(), []  # type: ignore[var-annotated]
    hold(rig, peer, outcomes), hold(rig, peer, outcomes)
    with pytest.raises(ResponseError, match="maxHeldPullsOfConnection is 2"):
        hold(rig, peer, outcomes)
    rig.broker.parked_pulls.on_close(peer)
    assert rig.broker.parked_pulls.count == 0
    assert outcomes == []
