"""Transactions: what the broker is told, and what decides when it is told nothing."""

from __future__ import annotations

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.produce.transactional import CHECKS_AT_ONCE, Decision
from rmq.errors import LocalProtocolError, MessageIllegal, SendFailed
from rmq.message import Message, StoredMessage
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import Record, encode_record, host_bytes
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World

END = RequestCode.END_TRANSACTION


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", topics={"T": 1})


async def never(message: StoredMessage) -> Decision:
    raise AssertionError(f"asked about {message.message_id}")


def ends(cluster: Cluster) -> list[EndTransactionRequestHeader]:
    return [r.read(EndTransactionRequestHeader) for r in cluster["a"].seen if r.code == END]


def ask(cluster: Cluster, unique: str, group: str = "g") -> None:
    """Send a check-back over the client's connection."""
    record = Record("T", 0, b"half", f"UNIQ_KEY\x01{unique}\x02PGROUP\x01{group}\x02KEYS\x0142")
    header = CheckTransactionStateRequestHeader(5, 7000, unique, unique, "0" * 32)
    body = encode_record(record, host_bytes("127.0.0.1:10911"))
    (connection,) = cluster["a"].connections
    request = Command.request(RequestCode.CHECK_TRANSACTION_STATE, header, body, oneway=True)
    cluster["a"].do(lambda: connection.notify(request))


def test_a_block_that_ends_commits(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        async with world.connect() as client, client.transactional_producer("g", never) as producer:
            async with producer.transaction(Message("T", b"x", keys="42")) as transaction:
                assert not ends(cluster)
                unique = transaction.result.message_id
            with anyio.fail_after(5):
                while not ends(cluster):
                    await anyio.sleep(0.001)
        (half,) = (r for r in cluster["a"].seen if r.code == RequestCode.SEND_MESSAGE_V2)
        properties = decode_properties(half.ext["i"])
        assert half.ext["f"] == "4"
        assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "g")
        (end,) = ends(cluster)
        assert (end.commit_or_rollback, end.msg_id, end.producer_group) == (8, unique, "g")
        assert (end.tran_state_table_offset, end.commit_log_offset) == (0, 0)
        assert (end.from_transaction_check, end.bname) == (False, "a")
        assert [r.is_oneway for r in cluster["a"].seen if r.code == END] == [True]

    both(scenario, cluster)


def test_check_backs_are_answered(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        asked = []

        async def check_back(message: StoredMessage) -> Decision:
            asked.append((message.topic, message.body, message.keys))
            return rmq.COMMIT

        async with world.connect() as client, client.transactional_producer("g", check_back) as producer:
            await producer.send(Message("T", b"x"))
            ask(cluster, "ID1")
            ask(cluster, "ID2", group="somebody else's")
            with anyio.fail_after(5):
                while not ends(cluster):
                    await anyio.sleep(0.001)
        assert asked == [("T", b"half", ("42",))]
        (end,) = ends(cluster)
        assert (end.commit_or_rollback, end.from_transaction_check) == (8, True)
        assert (end.tran_state_table_offset, end.commit_log_offset) == (5, 7000)
        assert (end.msg_id, end.transaction_id, end.producer_group) == ("ID1", "ID1", "g")

    both(scenario, cluster)


async def test_leaving_waits_for_no_transaction_that_has_ended(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    async with setting.connect() as client:
        async with client.transactional_producer("g", never) as producer:
            async with producer.transaction(Message("T", b"x")):
                pass
            left = trio.current_time()
        assert trio.current_time() - left < 0.5


async def test_an_error_rolls_back_and_goes_on(setting: World, clock: MockClock, cluster: Cluster) -> None:
    async with setting.connect() as client, client.transactional_producer("g", never) as producer:
        with pytest.raises(ValueError, match=r"^no money$"):
            async with producer.transaction(Message("T", b"x")):
                raise ValueError("no money")
        await trio.sleep(0.1)
    assert [end.commit_or_rollback for end in ends(cluster)] == [12]


@pytest.mark.parametrize(("decision", "code"), [(rmq.UNKNOWN, 0), (rmq.ROLLBACK, 12)])
async def test_a_block_may_decide_otherwise(
    setting: World, clock: MockClock, cluster: Cluster, decision: Decision, code: int
) -> None:
    async with setting.connect() as client, client.transactional_producer("g", never) as producer:
        async with producer.transaction(Message("T", b"x")) as transaction:
            transaction.decision = decision
        await trio.sleep(0.1)
    assert [end.commit_or_rollback for end in ends(cluster)] == [code]


async def test_cancelled_nothing_is_sent(setting: World, clock: MockClock, cluster: Cluster) -> None:
    async with setting.connect() as client, client.transactional_producer("g", never) as producer:
        with trio.move_on_after(1):
            async with producer.transaction(Message("T", b"x")):
                await trio.sleep_forever()
        await trio.sleep(1)
    assert [half.body for half in cluster["a"].messages("RMQ_SYS_TRANS_HALF_TOPIC")] == [b"x"]
    assert cluster["a"].messages("T") == []
    assert ends(cluster) == []


async def test_a_half_message_that_is_not_safe_begins_nothing(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    def unsafe(request: Command, _: object) -> Command:
        header = {"msgId": "7F00000100002A9F" + "0" * 16, "queueId": "0", "queueOffset": "0"}
        return request.reply(ResponseCode.FLUSH_DISK_TIMEOUT, "slow", header=header)

    cluster["a"].script(RequestCode.SEND_MESSAGE_V2, unsafe)
    async with setting.connect() as client, client.transactional_producer("g", never) as producer:
        with pytest.raises(SendFailed, match="FlushDiskTimeout"):
            async with producer.transaction(Message("T", b"x")):
                raise AssertionError("the block was entered")
        await trio.sleep(0.1)
    assert [end.commit_or_rollback for end in ends(cluster)] == [12]


async def test_what_cannot_be_part_of_one(setting: World, clock: MockClock) -> None:
    async with setting.connect() as client, client.transactional_producer("g", never) as producer:
        with pytest.raises(MessageIllegal, match="delayed"):
            async with producer.transaction(Message("T", b"x", delay_ms=5)):
                pass
        transaction = producer.transaction(Message("T", b"x"))
        with pytest.raises(LocalProtocolError, match="has not begun"):
            _ = transaction.result
        async with transaction:
            pass
        with pytest.raises(LocalProtocolError, match="already used"):
            async with transaction:
                pass


async def test_check_backs_are_bounded_and_each_message_is_asked_about_once(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    running, most = 0, 0

    async def check_back(message: StoredMessage) -> Decision:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return rmq.ROLLBACK

    async with setting.connect() as client, client.transactional_producer("g", check_back) as producer:
        await producer.send(Message("T", b"x"))
        for number in range(40):
            ask(cluster, f"ID{number}")
            ask(cluster, f"ID{number}")
        await trio.sleep(5)
    assert most == CHECKS_AT_ONCE
    assert sorted(end.msg_id for end in ends(cluster)) == sorted(f"ID{number}" for number in range(40))


async def test_a_check_back_that_fails_or_says_nothing_leaves_it_open(
    setting: World, clock: MockClock, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def check_back(message: StoredMessage) -> Decision:
        if message.message_id == "ID1":
            raise ValueError("the database is away")
        return None  # type: ignore[return-value]

    async with setting.connect() as client, client.transactional_producer("g", check_back) as producer:
        await producer.send(Message("T", b"x"))
        ask(cluster, "ID1")
        ask(cluster, "ID2")
        await trio.sleep(0.1)
    assert [end.commit_or_rollback for end in ends(cluster)] == [0, 0]
    assert "the check-back of ID1 failed" in caplog.text
    remarks = [r.remark or "" for r in cluster["a"].seen if r.code == END]
    assert any("the database is away" in remark for remark in remarks)


async def test_leaving_waits_for_transactions_of_other_tasks(
    setting: World, clock: MockClock, cluster: Cluster
) -> None:
    async with setting.connect() as client, trio.open_nursery() as nursery:
        async with client.transactional_producer("g", never) as producer:

            async def work() -> None:
                async with producer.transaction(Message("T", b"x")):
                    await trio.sleep(2)

            nursery.start_soon(work)
            await trio.sleep(1)
        await trio.sleep(0.1)
        assert [end.commit_or_rollback for end in ends(cluster)] == [8]
