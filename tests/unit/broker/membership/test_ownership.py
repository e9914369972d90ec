"""A half message, a producer id and a client id belong to the account that brought them: names are no
identity, and every account may give every name."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.plugin_host import plugin_host
from rmq.plugin import ACCOUNT, Peer, Plugin, account_of, hooks_of
from rmq.protocol.bodies import HeartbeatData, ProducerData
from rmq.protocol.codes import (
    RECALL_MESSAGE,
    SYS_COMMIT,
    SYS_PREPARED,
    SYS_ROLLBACK,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.command import Command
from rmq.protocol.headers import EndTransactionRequestHeader, RecallMessageRequestHeader
from rmq.protocol.record import decode_record
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.pool import Pool
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.brokers import Node, controlled_set
from tests.unit.broker.membership.heartbeats import wire
from tests.unit.broker.rig import START, Rig, Wire, send

HALF = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02UNIQ_KEY\x01K"


class Gate(Plugin):
    """Accounts without signatures: a connection works for the one that its state names."""

    closed: frozenset[str] = frozenset()
    """Topics to which nobody may send."""

    def may_act_for(self, peer: Peer, account: str) -> bool:
        return account_of(peer) in (account, "admin")

    def may_publish(self, peer: Peer, topic: str) -> bool:
        return topic not in self.closed


def guarded(**given: Any) -> Rig:
    rig = Rig(**given)
    rig.broker.use_plugins(hooks_of([("gate", Gate({}, plugin_host(rig.broker)))]))
    return rig


def join(rig: Rig, of: Wire, group: str = "payers") -> None:
    body = HeartbeatData(f"{of.state[ACCOUNT]}@1", [ProducerData(group)]).to_json()
    assert rig.one(Command.request(RequestCode.HEART_BEAT, None, body), wire=of).code == 0


def half(rig: Rig, of: Wire, body: bytes = b"pay") -> tuple[int, int]:
    """Send a half message; its queue offset and its physical offset."""
    answer = rig.one(send("T", body, sys_flag=SYS_PREPARED, properties=HALF), wire=of)
    return int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)


def end(rig: Rig, of: Wire, place: tuple[int, int], decision: int) -> Command:
    header = EndTransactionRequestHeader("payers", *place, decision, msg_id="K")
    return rig.answer(Command.request(RequestCode.END_TRANSACTION, header), of)


def check(rig: Rig, times: int = 1) -> None:
    """Let check-backs fall due."""
    for _ in range(times):
        rig.let_pass(60_000)
        for _ in range(4):
            rig.broker.steps.transactions()


def asked(of: Wire) -> list[Command]:
    """The check-backs that came over a connection."""
    return [one for one in of.take() if one.code == RequestCode.CHECK_TRANSACTION_STATE]


# ---- half messages ----


def test_another_account_in_the_group_gets_no_half_message() -> None:
    rig, mine, theirs = guarded(), wire("mine"), wire("theirs")
    rig.topic("T", 1)
    join(rig, theirs)
    half(rig, mine)
    check(rig)
    assert asked(theirs) == []
    join(rig, mine)
    check(rig, 5)
    assert asked(theirs) == []
    assert len(asked(mine)) == 5


def test_another_account_ends_no_half_message(caplog: pytest.LogCaptureFixture) -> None:
    rig, mine, theirs = guarded(), wire("mine"), wire("theirs")
    rig.topic("T", 1)
    place = half(rig, mine)
    for decision in (SYS_ROLLBACK, SYS_COMMIT):
        assert end(rig, theirs, place, decision).code == ResponseCode.NO_PERMISSION
    assert "account theirs may not end" in caplog.text
    assert (rig.bodies("T"), rig.broker.transactions.open_count) == ([], 1)
    assert end(rig, mine, place, SYS_COMMIT).code == 0
    assert rig.bodies("T") == [b"pay"]


def test_an_administrator_may_end_a_half_message() -> None:
    rig = guarded()
    rig.topic("T", 1)
    assert end(rig, wire("admin"), half(rig, wire("mine")), SYS_ROLLBACK).code == 0


def test_an_account_ends_only_half_messages_of_topics_that_it_may_send_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, mine = guarded(), wire("mine")
    rig.topic("T", 1)
    places = [half(rig, mine) for _ in range(2)]
    monkeypatch.setattr(Gate, "closed", frozenset({"T"}))
    for decision in (SYS_ROLLBACK, SYS_COMMIT):
        answer = end(rig, mine, places[0], decision)
        assert (answer.code, "no permission to send to T" in answer.remark) == (
            ResponseCode.NO_PERMISSION,
            True,
        )
    assert (rig.bodies("T"), rig.broker.transactions.open_count) == ([], 2)
    monkeypatch.undo()
    assert [end(rig, mine, place, SYS_COMMIT).code for place in places] == [0, 0]


def test_the_account_outlives_a_restart_and_the_copies_of_checks() -> None:
    disk = MemoryDisk(1)
    rig, mine, theirs = guarded(disk=disk), wire("mine"), wire("theirs")
    rig.topic("T", 1)
    half(rig, mine)
    join(rig, mine)
    check(rig, 2)
    assert len(asked(mine)) == 2
    rig.store.close()
    again = guarded(disk=disk)
    join(again, mine)
    join(again, theirs)
    check(again, 3)
    assert asked(theirs) == []
    requests = asked(mine)
    header = requests[-1].ext
    place = int(header["tranStateTableOffset"]), int(header["commitLogOffset"])
    assert end(again, theirs, place, SYS_ROLLBACK).code == ResponseCode.NO_PERMISSION
    assert end(again, mine, place, SYS_COMMIT).code == 0


def test_nobody_is_shown_the_account() -> None:
    rig, mine = guarded(), wire("mine")
    rig.topic("T", 1)
    join(rig, mine)
    place = half(rig, mine)
    check(rig)
    (request,) = asked(mine)
    assert "rmqAccount" not in decode_record(memoryview(request.body)).properties
    end(rig, mine, place, SYS_COMMIT)
    (message,) = rig.messages("T")
    assert "rmqAccount" not in message.properties
    assert message.properties["PGROUP"] == "payers"


def test_a_sender_does_not_choose_the_account() -> None:
    rig, theirs = guarded(), wire("theirs")
    rig.topic("T", 1)
    properties = f"{HALF}\x02rmqAccount\x01mine"
    answer = rig.one(send("T", sys_flag=SYS_PREPARED, properties=properties), wire=theirs)
    place = int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)
    assert end(rig, theirs, place, SYS_COMMIT).code == 0


def test_open_brokers_ask_and_obey_anybody_of_the_group() -> None:
    rig, mine, theirs = Rig(), wire("mine"), wire("theirs")  # accounts of a time before
    rig.topic("T", 1)
    place = half(rig, mine)
    join(rig, theirs)
    check(rig)
    assert len(asked(theirs)) == 1
    assert end(rig, theirs, place, SYS_COMMIT).code == 0


def test_a_half_message_without_an_account_is_anybody_s() -> None:
    rig, theirs = guarded(), wire("theirs")
    rig.topic("T", 1)
    place = half(rig, wire(""))
    assert end(rig, theirs, place, SYS_COMMIT).code == 0


def test_a_gate_that_breaks_refuses() -> None:
    class Broken(Plugin):
        def may_act_for(self, peer: Peer, account: str) -> bool:
            raise RuntimeError("gate")

    rig = Rig()
    rig.broker.use_plugins(hooks_of([("broken", Broken({}, plugin_host(rig.broker)))]))
    rig.topic("T", 1)
    mine = wire("mine")
    assert end(rig, mine, half(rig, mine), SYS_COMMIT).code == ResponseCode.NO_PERMISSION


# ---- an end that meets another ----


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (SYS_ROLLBACK, SYS_COMMIT, "rolled back already"),
        (SYS_COMMIT, SYS_ROLLBACK, "committed already"),
    ],
)
def test_an_end_that_meets_the_other_decision_is_not_answered_with_success(
    first: int, second: int, words: str, restarts: bool
) -> None:
    disk = MemoryDisk(1)
    rig, mine = Rig(disk=disk), wire("")
    rig.topic("T", 1)
    place = half(rig, mine)
    assert end(rig, mine, place, first).code == 0
    if restarts:
        rig.store.close()
        rig = Rig(disk=disk)
    bodies = rig.bodies("T")
    answer = end(rig, mine, place, second)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert words in (answer.remark or "")
    assert end(rig, mine, place, first).code == 0
    assert rig.bodies("T") == bodies


def test_a_commit_of_a_copy_meets_the_rollback_of_the_first() -> None:
    rig, mine = Rig(), wire("")
    rig.topic("T", 1)
    join(rig, mine)
    place = half(rig, mine)
    check(rig)
    (request,) = asked(mine)
    assert end(rig, mine, place, SYS_ROLLBACK).code == 0
    copy = int(request.ext["tranStateTableOffset"]), int(request.ext["commitLogOffset"])
    assert end(rig, mine, copy, SYS_COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert rig.bodies("T") == []


# ---- messages that wait for a time of their own ----

TIMED = f"UNIQ_KEY\x01K\x02TIMER_DELIVER_MS\x01{START + 5000}"


def recall(handle: str) -> Command:
    return Command.request(RECALL_MESSAGE, RecallMessageRequestHeader("T", handle))


def test_another_account_recalls_no_message(caplog: pytest.LogCaptureFixture) -> None:
    rig, mine, theirs = guarded(), wire("mine"), wire("theirs")
    rig.topic("T", 1)
    handle = rig.one(send("T", b"timed", properties=TIMED), wire=mine).ext["recallHandle"]
    answer = rig.one(recall(handle), wire=theirs)
    assert (answer.code, "another account's" in answer.remark) == (ResponseCode.NO_PERMISSION, True)
    assert "account theirs may not recall K of account mine" in caplog.text
    deliver(rig)
    (message,) = rig.messages("T")
    assert (message.body, "rmqAccount" in message.properties) == (b"timed", False)


@pytest.mark.parametrize("account", ["mine", "admin"])
def test_its_own_account_and_an_administrator_recall_a_message(account: str) -> None:
    rig = guarded()
    rig.topic("T", 1)
    handle = rig.one(send("T", b"timed", properties=TIMED), wire=wire("mine")).ext["recallHandle"]
    assert rig.one(recall(handle), wire=wire(account)).code == 0
    deliver(rig)
    assert rig.bodies("T") == []


def deliver(rig: Rig) -> None:
    rig.now_ms = START + 5000
    while rig.broker.steps.schedule() <= rig.now_ms:
        pass


# ---- after a failover ----


_ACCOUNTS = {"10.0.5.1": "mine", "10.0.5.2": "theirs"}


class ByAddress(Gate):
    """A connection works for the account of its address."""

    def on_request(self, peer: Peer, command: Command) -> None:
        peer.state[ACCOUNT] = _ACCOUNTS.get(peer.peer_address.partition(":")[0], "")


def guard(node: Node) -> None:
    assert node.broker is not None
    node.broker.use_plugins(hooks_of([("gate", ByAddress({}, plugin_host(node.broker)))]))


async def test_the_accounts_of_half_and_timed_messages_outlive_their_master(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        controlled_set(2) as (found, client),
        Pool(found.network.host("10.0.5.1"), ClientOnlyEndpoint()) as mine,
        Pool(found.network.host("10.0.5.2"), ClientOnlyEndpoint()) as theirs,
    ):
        first, second = found.nodes
        await found.begin(client)
        guard(first)
        answer = await mine.call(f"{first.host}:10911", send("T", sys_flag=SYS_PREPARED, properties=HALF), 5)
        place = int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)
        due_ms = found.now_ms(first) + 60_000
        timed = send("T", b"timed", properties=f"UNIQ_KEY\x01K\x02TIMER_DELIVER_MS\x01{due_ms}")
        handle = (await mine.call(f"{first.host}:10911", timed, 5)).ext["recallHandle"]
        await found.kill(first)
        assert await found.master() is second
        guard(second)
        address = f"{second.host}:10911"
        for decision in (SYS_ROLLBACK, SYS_COMMIT):
            header = EndTransactionRequestHeader("payers", *place, decision, msg_id="K")
            request = Command.request(RequestCode.END_TRANSACTION, header)
            assert (await theirs.call(address, request, 5)).code == ResponseCode.NO_PERMISSION
        assert (await theirs.call(address, recall(handle), 5)).code == ResponseCode.NO_PERMISSION
        assert found.stored(second) == []
        header = EndTransactionRequestHeader("payers", *place, SYS_COMMIT, msg_id="K")
        assert (await mine.call(address, Command.request(RequestCode.END_TRANSACTION, header), 5)).code == 0
        assert (await mine.call(address, recall(handle), 5)).code == 0
        await trio.sleep(70)
        assert found.stored(second) == ["hello"]
