"""Client ids: one that an account's client brought is not another account's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.membership.clients import SILENT_MS
from rmq.broker.membership.members import KEPT_MS, LEFT_MAX, ClientIds
from rmq.protocol.bodies import HeartbeatData, ProducerData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import WARNING
from tests.unit.broker.membership.heartbeats import wire

from ..rig import Rig, Wire, send

REPLIES = "WireCluster_REPLY_TOPIC"
ANSWER = "UNIQ_KEY\x01AC12\x02REPLY_TO_CLIENT\x01asker@1\x02CORRELATION_ID\x01c-7\x02MSG_TYPE\x01reply"


def beat(rig: Rig, of: Wire) -> str:
    """A heartbeat as the client asker@1; what the broker warns of."""
    body = HeartbeatData("asker@1", [ProducerData("askers")]).to_json()
    answer = rig.one(Command.request(RequestCode.HEART_BEAT, None, body), wire=of)
    assert answer.code == 0
    return answer.ext.get(WARNING, "")


def pushed(rig: Rig, *to: Wire) -> list[int]:
    """An answer to asker@1 comes; how many requests each of some connections is sent by that."""
    rig.ask(send(REPLIES, b"17", code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=ANSWER))
    return [len(one.take()) for one in to]


def test_answers_go_to_the_account_that_brought_the_id(caplog: pytest.LogCaptureFixture) -> None:
    rig, mine, theirs = Rig(), wire("mine"), wire("theirs")
    assert beat(rig, mine) == ""
    assert pushed(rig, mine, theirs) == [1, 0]
    assert "asker@1 belongs to a client of another account" in beat(rig, theirs)
    assert "client id asker@1 belongs to account mine" in caplog.text
    rig.broker.on_close(theirs)  # type: ignore[arg-type]
    assert pushed(rig, mine, theirs) == [1, 0]


def test_an_id_that_another_account_took_first_brings_it_no_answers() -> None:
    """The other account guessed the id, or saw it and was faster after a restart of the broker."""
    rig, mine, theirs = Rig(), wire("mine"), wire("theirs")
    beat(rig, theirs)
    assert beat(rig, mine)
    answer = rig.one(send(REPLIES, b"17", code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=ANSWER))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "several accounts" in (answer.remark or "")
    assert [len(one.take()) for one in (mine, theirs)] == [0, 0]
    rig.broker.on_close(theirs)  # type: ignore[arg-type]
    rig.let_pass(KEPT_MS)
    assert beat(rig, mine) == ""
    assert pushed(rig, mine) == [1]


def test_a_dispute_ends_with_the_id_of_one_of_them() -> None:
    rig, mine, theirs = Rig(), wire("mine"), wire("theirs")
    beat(rig, mine)
    beat(rig, theirs)
    assert pushed(rig, mine, theirs) == [0, 0]
    body = HeartbeatData("other@1", [ProducerData("askers")]).to_json()
    assert rig.one(Command.request(RequestCode.HEART_BEAT, None, body), wire=theirs).code == 0
    assert pushed(rig, mine, theirs) == [1, 0]
    assert rig.clients._ids._others == {}


def test_an_id_is_kept_for_answers_that_are_on_their_way() -> None:
    rig, mine, theirs = Rig(), wire("mine"), wire("theirs")
    beat(rig, mine)
    rig.broker.on_close(mine)  # type: ignore[arg-type]
    assert beat(rig, theirs)
    assert pushed(rig, mine, theirs) == [0, 0]
    again = wire("mine")
    assert beat(rig, again) == ""
    assert pushed(rig, again, theirs) == [0, 0]
    rig.broker.on_close(again)  # type: ignore[arg-type]
    rig.let_pass(KEPT_MS)
    assert beat(rig, theirs) == ""
    assert pushed(rig, theirs) == [1]


def test_a_client_of_the_same_account_takes_its_place() -> None:
    rig, old, new = Rig(), wire("mine"), wire("mine")
    beat(rig, old)
    assert beat(rig, new) == ""
    assert pushed(rig, old, new) == [0, 1]
    rig.broker.on_close(old)  # type: ignore[arg-type]
    assert pushed(rig, new) == [1]


def test_the_ids_of_one_account_leave_those_of_others() -> None:
    ids, line = ClientIds(), object()
    ids.claim("asker", line, "mine", 0)  # type: ignore[arg-type]
    ids.leave("asker", line, 0)  # type: ignore[arg-type]
    for number in range(3 * LEFT_MAX):
        ids.claim(f"x{number}", line, "flood", 0)  # type: ignore[arg-type]
        ids.leave(f"x{number}", line, 0)  # type: ignore[arg-type]
    assert ids.owner("asker", 1) == "mine"
    assert len(ids._left) == 1 + LEFT_MAX
    assert KEPT_MS > SILENT_MS


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.sampled_from("XYZ"), st.integers(0, 9))))
def test_an_id_never_changes_its_account_while_it_is_owned(steps: list[tuple[bool, str, str, int]]) -> None:
    ids, now = ClientIds(), 0
    lines: dict[tuple[str, str], Any] = {}
    here: set[tuple[str, str]] = set()
    for comes, client_id, account, minutes in steps:
        now += minutes * 60_000
        line = lines.setdefault((client_id, account), object())
        before = ids.owner(client_id, now)
        if comes:
            assert ids.claim(client_id, line, account, now) == (before in (None, account))
            assert ids.owner(client_id, now) == (before or account)
        else:
            ids.leave(client_id, line, now)
            assert ids.owner(client_id, now) == before
        (here.add if comes else here.discard)((client_id, account))
        got = ids.connection(client_id)
        assert got is None or [got] == [lines[one] for one in here if one[0] == client_id]
        assert ids.is_disputed(client_id) <= (len([one for one in here if one[0] == client_id]) > 0)
    assert sum(map(len, ids._left_by.values())) == len(ids._left)
