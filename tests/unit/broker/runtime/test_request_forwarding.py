"""A slave of a controlled set hands on to its master what clients with old routes send to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.runtime import request_forwarding as relay
from rmq.message import MessageQueue
from rmq.plugin import ACCOUNT, AccessDenied, Peer
from rmq.protocol.auth.signature import Credentials, key_of, signature, signed
from rmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
)
from rmq.protocol.codes import SYS_COMMIT, SYS_PREPARED, RequestCode, ResponseCode
from rmq.protocol.command import JSON, ROCKETMQ, Command
from rmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmq.protocol.record import encode_batch
from rmq.remoting.connection import Connection
from tests.sim.real_brokers.brokers import Node, Set, controlled_set

LEASE_SECONDS = 3.0
ALICE = Credentials("alice", "her secret")
PORT = 10911
FORMS = pytest.mark.parametrize("form", [JSON, ROCKETMQ], ids=["json", "binary"])


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests of these tests are not those of our clients."""
    monkeypatch.setattr(relay, "OURS", "another language")


@asynccontextmanager
async def handed_over(size: int = 2, **settings: Any) -> AsyncIterator[tuple[Set, Node, Node]]:
    """A set whose first broker has handed over to the second and follows it now."""
    async with controlled_set(size, **settings) as (found, client):
        first = await found.begin(client, group="G")
        everybody = list(range(1, size + 1))
        assert await found.want(2)
        await found.until(master=2, inSync=everybody)
        second = await found.master()
        await trio.sleep(2)
        assert first.broker is not None
        assert first.broker.is_slave
        yield found, first, second


def header(sys_flag: int = 0, properties: str = "", *, batch: bool = False) -> SendMessageRequestHeader:
    return SendMessageRequestHeader("P", "T", "TBW102", 4, 0, sys_flag, 1, 0, properties, batch=batch)


def send(text: str, code: int = RequestCode.SEND_MESSAGE_V2, **more: Any) -> Command:
    return Command.request(code, header(**more), text.encode())


async def asked(found: Set, node: Node, request: Command, form: int = JSON) -> Command:
    request.serialization = form
    return await found.pool.call(f"{node.host}:{PORT}", request, 10)


def counts(node: Node) -> tuple[int, int]:
    assert node.broker is not None
    manager = node.broker.role.manager
    assert manager is not None
    return manager.relayed, manager.relay_refused


@FORMS
async def test_a_send_to_the_former_master_is_answered_by_the_new_one(
    autojump_clock: trio.testing.MockClock, form: int
) -> None:
    async with handed_over() as (found, first, second):
        for number, code in enumerate((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)):
            began = trio.current_time()
            request = send(f"m{number}", code)
            answer = await asked(found, first, request, form)
            assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, request.opaque)
            assert (answer.ext["queueOffset"], answer.serialization) == (str(number), form)
            assert trio.current_time() - began < 0.5
        batch = encode_batch([(0, b"b0", ""), (0, b"b1", "")])
        many = Command.request(RequestCode.SEND_BATCH_MESSAGE, header(batch=True), batch)
        answer = await asked(found, first, many, form)
        assert (answer.code, answer.ext["queueOffset"]) == (ResponseCode.SUCCESS, "2")
        await trio.sleep(1)
        assert found.stored(second) == found.stored(first) == ["m0", "m1", "b0", "b1"]
        assert counts(first) == (3, 0)
        assert counts(second) == (0, 0)


@FORMS
async def test_a_send_that_wants_no_answer_arrives(autojump_clock: trio.testing.MockClock, form: int) -> None:
    async with handed_over() as (found, first, second):
        request = Command.request(RequestCode.SEND_MESSAGE_V2, header(), b"one way", oneway=True)
        request.serialization = form
        await found.pool.notify(f"{first.host}:{PORT}", request)
        await trio.sleep(1)
        assert found.stored(second) == ["one way"]
        assert first.broker is not None
        assert len(first.broker.pending_requests) == 0


async def test_a_transaction_ends_at_the_master(autojump_clock: trio.testing.MockClock) -> None:
    async with handed_over() as (found, first, second):
        half = "TRAN_MSG\x01true\x02PGROUP\x01P"
        answer = await asked(found, first, send("half", sys_flag=SYS_PREPARED, properties=half))
        assert answer.code == ResponseCode.SUCCESS
        end = EndTransactionRequestHeader(
            producer_group="P",
            tran_state_table_offset=int(answer.ext["queueOffset"]),
            commit_log_offset=int(answer.ext["msgId"][-16:], 16),
            commit_or_rollback=SYS_COMMIT,
            msg_id="M",
        )
        assert found.stored(second) == []
        request = Command.request(RequestCode.END_TRANSACTION, end)
        assert (await asked(found, first, request)).code == ResponseCode.SUCCESS
        await trio.sleep(1)
        assert found.stored(second) == ["half"]


async def test_what_consumers_say_goes_to_the_master(autojump_clock: trio.testing.MockClock) -> None:
    async with handed_over() as (found, first, second):
        assert second.broker is not None
        assert first.broker is not None
        answer = await asked(found, first, send("m"))
        back = ConsumerSendMsgBackRequestHeader(int(answer.ext["msgId"][-16:], 16), "G", 0)
        request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert (await asked(found, first, request)).code == ResponseCode.SUCCESS
        assert found.messages(second, "SCHEDULE_TOPIC_XXXX")
        commit = UpdateConsumerOffsetRequestHeader("G", "T", 0, 1)
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        assert (await asked(found, first, request)).code == ResponseCode.SUCCESS
        assert second.broker.offsets.get("G", "T", 0) == 1
        queue = MessageQueue("T", "s", 0)
        for code, held in ((RequestCode.LOCK_BATCH_MQ, "C"), (RequestCode.UNLOCK_BATCH_MQ, None)):
            request = Command.request(
                code, None, LockBatchRequestBody("G", "C", frozenset({queue})).to_json()
            )
            answer = await asked(found, first, request)
            assert answer.code == ResponseCode.SUCCESS
            if held:
                assert LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set == {queue}
            now = round(second.broker.clock() * 1000)
            assert second.broker.locks.holder("G", queue, now) == held


@FORMS
async def test_what_was_handed_on_is_not_handed_on_again(
    autojump_clock: trio.testing.MockClock, form: int
) -> None:
    async with handed_over() as (found, first, second):
        request = send("twice")
        request.remark = f"{relay.FORWARDED}10.9.9.9:1"
        answer = await asked(found, first, request, form)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "was forwarded" in str(answer.remark)
        commit = UpdateConsumerOffsetRequestHeader("G", "T", 0, 0)
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit, remark=request.remark)
        assert (await asked(found, first, request, form)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert counts(first) == (0, 2)
        # The master takes it, whose mark says which client it is of.
        request = send("once")
        request.remark = f"{relay.FORWARDED}10.9.9.9:1"
        assert (await asked(found, second, request, form)).code == ResponseCode.SUCCESS
        assert found.stored(second) == ["once"]


async def test_two_that_take_each_other_for_the_master_refuse(autojump_clock: trio.testing.MockClock) -> None:
    async with handed_over(3) as (found, first, second):
        third = found.nodes[2]
        assert first.broker is not None
        manager, other = first.broker.role.manager, third.broker.role.manager  # type: ignore[union-attr]
        assert manager is not None
        assert manager.replica is not None
        assert manager.replica.broker_set is not None
        assert other is not None
        links = first.broker.handlers  # the first takes the third, a slave, for the master
        assert links
        member = manager.replica.broker_set.replicas[3]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(manager), "master", property(lambda self: member if self is manager else None))
            answer = await asked(found, first, send("m"))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert counts(third)[0] == 0
        assert found.stored(second) == []


class Gate:
    """Lets in what Alice has signed; `seen` are the peers and what their signatures cover."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, peer: Peer, command: Command) -> None:
        if command.code not in relay.SENDS:
            return
        ext = command.ext
        covered = {name: value for name, value in ext.items() if name != "Signature"}
        key = key_of(ALICE.secret_key)
        if ext.get("AccessKey") != "alice" or ext.get("Signature") != signature(covered, command.body, key):
            raise AccessDenied(remark="who is it?")
        peer.state[ACCOUNT] = "alice"
        self.seen.append(peer.peer_address)


async def test_our_clients_are_refused_and_so_look_for_the_master(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with handed_over() as (found, first, second):
        monkeypatch.setattr(relay, "OURS", "PYTHON")
        began = trio.current_time()
        answer = await asked(found, first, send("ours"))
        assert answer.code != ResponseCode.SUCCESS
        assert trio.current_time() == began
        other = send("theirs")
        other.language = "JAVA"
        assert (await asked(found, first, other)).code == ResponseCode.SUCCESS
        assert found.stored(second) == ["theirs"]


async def test_an_offset_that_the_master_refuses_is_not_committed_again_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with handed_over() as (found, first, second):
        asks = 0

        def refuse(request: Command, connection: Connection, now: int) -> Command:
            nonlocal asks
            asks += 1
            return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "kept here, and may be lost")

        assert second.broker is not None
        second.broker.handlers = second.broker.handlers | {RequestCode.UPDATE_CONSUMER_OFFSET: refuse}
        header = UpdateConsumerOffsetRequestHeader("G", "T", 0, 5)
        answer = await asked(found, first, Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))
        assert (answer.code, answer.remark) == (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "kept here, and may be lost",
        )
        await trio.sleep(5)
        assert asks == 1


@FORMS
async def test_a_signed_send_passes_both_and_a_wrong_one_is_refused_by_the_slave(
    autojump_clock: trio.testing.MockClock, form: int
) -> None:
    async with handed_over() as (found, first, second):
        gates = Gate(), Gate()
        for node, gate in zip((first, second), gates, strict=True):
            assert node.broker is not None
            node.broker.hooks = type(node.broker.hooks)(requests=(gate,))
        right = signed(send("right"), ALICE)
        assert (await asked(found, first, right, form)).code == ResponseCode.SUCCESS
        assert len(gates[0].seen) == len(gates[1].seen) == 1
        assert gates[1].seen[0].startswith(first.host)
        wrong = signed(send("wrong"), Credentials("alice", "a guess that is wrong"))
        answer = await asked(found, first, wrong, form)
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "who is it?")
        assert counts(first) == (1, 0)
        assert found.stored(second) == ["right"]


async def test_a_link_that_ends_leaves_nobody_waiting_and_promises_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with handed_over() as (found, first, _):
        found.network.latency = (0.2, 0.2)
        answers: list[Command] = []

        async def ask() -> None:
            answers.append(await asked(found, first, send("under way")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.45)
            assert first.broker is not None
            assert len(first.broker.pending_requests) == 1
            ((link, _),) = first.broker.pending_requests._rows
            link.close()
            cut_at = trio.current_time()
        assert trio.current_time() - cut_at < 1
        assert len(first.broker.pending_requests) == 0
        assert answers[0].code == ResponseCode.SYSTEM_ERROR
        assert "may have taken" in str(answers[0].remark)


async def test_a_master_that_is_silent_is_waited_for_only_so_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with handed_over() as (found, first, second):
        assert first.broker is not None
        found.network.partition(first.host, second.host)
        began = trio.current_time()
        answer = await asked(found, first, send("lost"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert trio.current_time() - began == pytest.approx(relay.ANSWER_SECONDS, abs=0.2)
        assert len(first.broker.pending_requests) == 0


async def test_more_than_may_be_held_is_refused_and_what_is_held_is_given_up(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "HELD_MAX", 3)
    async with handed_over() as (found, first, second):
        times: list[float] = []
        began = 0.0

        async def ask(number: int) -> None:
            answer = await asked(found, first, send(f"m{number}"))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "slave" in str(answer.remark)
            times.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.kill, second)
            await trio.sleep(0.1)
            began = trio.current_time()
            for number in range(5):
                nursery.start_soon(ask, number)
        assert [time < 0.5 for time in sorted(times)] == [True, True, False, False, False]
        assert max(times) < relay.HOLD_SECONDS + 1.5
        assert counts(first)[1] == 5


async def test_a_client_that_is_gone_gets_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with handed_over() as (found, first, second):
        found.network.latency = (0.2, 0.2)
        address = f"{first.host}:{PORT}"
        connection: Connection = await found.pool.connection(address)
        connection.notify(send("m"))
        await trio.sleep(0.45)
        connection.close()
        await trio.sleep(3)
        assert first.broker is not None
        assert len(first.broker.pending_requests) == 0
        assert found.stored(second) == ["m"]


async def test_a_master_that_takes_nothing_is_asked_again_and_its_refusal_comes_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with handed_over() as (found, first, second):
        assert second.broker is not None
        manager = second.broker.role.manager
        assert manager is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manager, "has_lease", lambda: False)
            began = trio.current_time()
            answer = await asked(found, first, send("refused"))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "no lease" in str(answer.remark)
            assert trio.current_time() - began >= relay.HOLD_SECONDS
            refused = counts(first)
            assert refused[1] == 1

            async def heal() -> None:
                await trio.sleep(1)
                patch.undo()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(heal)
                began = trio.current_time()
                answer = await asked(found, first, send("taken"))
        assert answer.code == ResponseCode.SUCCESS
        assert 1 <= trio.current_time() - began < 1.5
        assert found.stored(second) == ["taken"]


async def test_who_becomes_the_master_itself_hands_on_no_more(autojump_clock: trio.testing.MockClock) -> None:
    async with handed_over() as (found, first, second):
        assert (await asked(found, first, send("a"))).code == ResponseCode.SUCCESS
        assert await found.want(1)
        await found.until(master=1, inSync=[1, 2])
        assert await found.master() is first
        await trio.sleep(2)
        before = counts(first)
        assert (await asked(found, first, send("b"))).code == ResponseCode.SUCCESS
        assert counts(first) == before
        assert (await asked(found, second, send("c"))).code == ResponseCode.SUCCESS
        assert counts(second)[0] == 1
        assert found.stored(first) == ["a", "b", "c"]


async def test_a_slave_does_not_hand_on_when_it_shall_not(autojump_clock: trio.testing.MockClock) -> None:
    async with handed_over(relay_sends=False) as (found, first, second):
        answer = await asked(found, first, send("m"))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert counts(first) == (0, 0)
        assert found.stored(second) == []


async def test_a_killed_master_that_is_started_again_hands_on(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        await found.begin(client)
        await found.kill(first)
        killed_at = trio.current_time()
        found.network.heal()
        await found.start(first)
        while True:
            answer = await asked(found, first, send("after"))
            if answer.code == ResponseCode.SUCCESS:
                break
            await trio.sleep(0.05)
        assert trio.current_time() - killed_at < 2 * LEASE_SECONDS
        assert await found.master() is second
        assert found.stored(second) == ["after"]


async def test_what_comes_to_a_master_that_hands_over_is_held_and_taken_when_it_is_given_up(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controlled_set(2) as (found, client):
        first = await found.begin(client)
        assert first.broker is not None
        manager = first.broker.role.manager
        assert manager is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(manager), "stepping_down", property(lambda self: self is manager))
            patch.setattr(manager, "step_down", lambda: None)
            await trio.sleep(0.5)
            answers: list[Command] = []

            async def ask() -> None:
                answers.append(await asked(found, first, send("held")))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.sleep(0.5)
                assert not answers
                request = send("of a replica")
                request.remark = f"{relay.FORWARDED}10.9.9.9:1"
                answer = await asked(found, first, request)
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, "the replica holds it"
                assert not answers
                patch.undo()
                healed_at = trio.current_time()
            assert trio.current_time() - healed_at < 0.5
        assert answers[0].code == ResponseCode.SUCCESS
        assert (await asked(found, first, send("more"))).code == ResponseCode.SUCCESS
        assert found.stored(first) == ["held", "more"]


async def test_a_client_that_is_gone_is_not_held(autojump_clock: trio.testing.MockClock) -> None:
    async with handed_over() as (found, first, second):
        assert second.broker is not None
        manager = second.broker.role.manager
        assert manager is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manager, "has_lease", lambda: False)
            connection = await found.pool.connection(f"{first.host}:{PORT}")
            connection.notify(send("of nobody"))
            await trio.sleep(0.5)
            connection.close()
            await trio.sleep(0.2)
        await trio.sleep(1)
        assert found.stored(second) == []


async def test_who_gets_another_role_waits_for_no_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with handed_over() as (found, first, second):
        assert first.broker is not None
        broker = first.broker
        found.network.partition(first.host, second.host)
        answers: list[Command] = []

        async def ask() -> None:
            answers.append(await asked(found, first, send("under way")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.2)
            assert len(broker.pending_requests) == 1
            assert first.stop is not None
            first.stop.set()
            await trio.sleep(0.1)
            assert len(broker.pending_requests) == 0
            found.network.heal()
        assert answers[0].code == ResponseCode.SYSTEM_ERROR
        await found.end(first)


def announced(group: str) -> Command:
    """A heartbeat of a consumer of "T"."""
    wanted = SubscriptionData("T", "*")
    consumer = ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", [wanted])
    beat = HeartbeatData("C", consumer_data_set=[consumer])
    return Command.request(RequestCode.HEART_BEAT, None, beat.to_json())


async def pulled(found: Set, node: Node, group: str = "G") -> int:
    """The code that answers a pull of a group, as Java's: it does not say what it subscribes to."""
    header = PullMessageRequestHeader(group, "T", 0, 0, 32, 0, 0, 0, sub_version=0)
    return (await asked(found, node, Command.request(RequestCode.PULL_MESSAGE, header))).code


async def test_consumers_read_on_at_a_broker_that_got_another_role(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Java's do not say what they subscribe to but by their heartbeats, which come every 30 s."""
    async with controlled_set(2) as (found, client):
        first = await found.begin(client, group="G")
        assert (await asked(found, first, send("m"))).code == ResponseCode.SUCCESS
        assert (await asked(found, first, announced("G"))).code == ResponseCode.SUCCESS
        assert await pulled(found, first) == ResponseCode.SUCCESS
        assert await found.want(2)
        await found.until(master=2, inSync=[1, 2])
        await trio.sleep(2)
        assert first.broker is not None
        assert first.broker.is_slave
        assert await pulled(found, first) == ResponseCode.SUCCESS
        await trio.sleep(300)
        assert await pulled(found, first) == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_consumers_read_on_at_a_replica_that_was_killed_and_at_one_that_never_heard_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = await found.begin(client, group="G"), found.nodes[1]
        await found.until(inSync=[1, 2])
        assert (await asked(found, first, send("m"))).code == ResponseCode.SUCCESS
        await trio.sleep(2)
        assert await pulled(found, second) == ResponseCode.SUBSCRIPTION_NOT_EXIST
        assert (await asked(found, first, announced("G"))).code == ResponseCode.SUCCESS
        await trio.sleep(0.5)
        assert await pulled(found, second) == ResponseCode.SUCCESS
        await found.kill(first)
        with trio.fail_after(20):
            while second not in found.acting():
                await trio.sleep(0.1)
        assert await pulled(found, second) == ResponseCode.SUCCESS
        found.network.heal()
        await found.start(first)
        await found.until(master=2, inSync=[1, 2])
        assert await pulled(found, first) == ResponseCode.SUCCESS
