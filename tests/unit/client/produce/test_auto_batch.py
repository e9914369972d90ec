"""Sends that begin together go in one request, and each is told what became of its own message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.client.produce.batches import BATCH_BYTES
from rmq.errors import (
    ConnectionLost,
    InvalidMessage,
    InvalidType,
    LocalProtocolError,
    MessageIllegal,
    SendFailed,
)
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import CUT, HANG

from ..conftest import Play
from ..world import World

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
Sends = list[Callable[[], Awaitable[Any]]]


async def together(sends: Sends) -> list[Any]:
    """The results of sends that begin in this order in one turn of the loop, or their errors."""
    results: list[Any] = [None] * len(sends)

    async def one(at: int) -> None:
        try:
            results[at] = await sends[at]()
        except Exception as error:
            results[at] = error

    # Called one after another, whatever order the loop likes: up to the point at which each waits.
    async with anyio.create_task_group() as tasks:
        for at in range(len(sends)):
            tasks.start_soon(one, at)
    return results


def counts(cluster: Cluster) -> tuple[int, int]:
    """Requests with one message, and with several."""
    fronts = cluster.brokers.values()
    return sum(front.count(SEND) for front in fronts), sum(front.count(BATCH) for front in fronts)


def place(result: rmq.SendResult) -> tuple[str, int, int]:
    queue = result.message_queue
    return queue.broker_name, queue.queue_id, result.queue_offset


def stored(cluster: Cluster, topic: str = "T") -> dict[tuple[str, int, int], StoredMessage]:
    return {
        (name, message.queue_id, message.queue_offset): message
        for name, front in cluster.brokers.items()
        for message in front.messages(topic)
    }


class TestResults:
    def test_each_gets_the_result_of_its_own_message(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            async with world.connect() as client, client.producer("p", auto_batch=True) as producer:
                await producer.send(Message("T", b"warm"))
                messages = [
                    Message("T", b"%d" % n, tags=f"t{n}", keys=[f"k{n}"], properties={"n": str(n)}, flag=n)
                    for n in range(50)
                ]
                results = await together([partial(producer.send, message) for message in messages])
            assert counts(cluster) == (1, 1)
            assert len({result.message_queue for result in results}) == 1
            assert len({result.message_id for result in results}) == 50
            found = stored(cluster)
            for message, result in zip(messages, results, strict=True):
                kept = found[place(result)]
                assert (kept.body, kept.tags, kept.keys, kept.flag) == (
                    message.body,
                    message.tags,
                    message.keys,
                    message.flag,
                )
                assert kept.properties["n"] == message.properties["n"]
                assert kept.message_id == result.message_id
                assert kept.offset_message_id == result.offset_message_id
                assert (result.status, result.parts) == ("SEND_OK", ())

        both(scenario, cluster)

    async def test_they_are_stored_in_the_order_of_their_calls(self, setting: World) -> None:
        order: list[int] = []
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:

            async def send(number: int) -> None:
                order.append(number)
                await producer.send(Message("T", b"%d" % number))

            await together([partial(send, number) for number in range(30)])
        assert [int(message.body) for message in setting.cluster["a"].messages("T")] == order

    async def test_a_send_alone_is_a_usual_one(self, setting: World) -> None:
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:
            queues = {(await producer.send(Message("T", b"x"))).message_queue for _ in range(4)}
        assert counts(setting.cluster) == (4, 0)
        assert len(queues) == 2, "the queues take turns"

    async def test_without_the_option_nothing_is_joined(self, setting: World) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            await together([partial(producer.send, Message("T", b"x"))] * 10)
            with pytest.raises(InvalidType, match="auto_batch"):
                client.producer("q", auto_batch=1)  # type: ignore[arg-type]
        assert counts(setting.cluster) == (10, 0)

    async def test_ten_thousand_at_once(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:
            results = await together([partial(producer.send, Message("T", b"x" * 10))] * 10_000)
        assert len({place(result) for result in results}) == 10_000
        assert counts(setting.cluster)[1] < 20

    async def test_in_a_namespace(self, setting: World) -> None:
        async with (
            setting.connect(namespace="ns") as client,
            client.producer("p", auto_batch=True) as producer,
        ):
            results = await together([partial(producer.send, Message("T", b"%d" % n)) for n in range(3)])
        assert {result.message_queue.topic for result in results} == {"T"}
        assert counts(setting.cluster) == (0, 1)
        assert len(setting.cluster["a"].messages("ns%T")) == 3


class TestWhatGoesTogether:
    async def test_what_a_batch_cannot_hold_goes_alone(self, setting: World) -> None:
        cluster = setting.cluster
        async with (
            setting.connect(compress_over=1000) as client,
            client.producer("p", auto_batch=True) as producer,
        ):
            alone = [
                Message("T", b"level", delay_level=1),
                Message("T", b"later", delay_ms=5),
                Message("T", b"c" * 1000),
                Message("%RETRY%g", b"again"),
            ]
            results = await together([partial(producer.send, one) for one in alone for _ in range(2)])
            assert all(isinstance(result, rmq.SendResult) for result in results)
            assert counts(cluster) == (8, 0)

    async def test_large_ones_go_alone_and_batches_have_an_end(self, setting: World) -> None:
        async with (
            setting.connect(compress_over=0) as client,
            client.producer("p", auto_batch=True) as producer,
        ):
            await together([partial(producer.send, Message("T", b"l" * BATCH_BYTES))] * 2)
            assert counts(setting.cluster) == (2, 0)
            half = Message("T", b"h" * (BATCH_BYTES // 2 - 100))
            results = await together([partial(producer.send, half)] * 5)
        assert counts(setting.cluster) == (3, 2)
        assert len({place(result) for result in results}) == 5

    async def test_topics_promises_and_queues_stay_apart(self, setting: World) -> None:
        cluster = setting.cluster
        queue = MessageQueue("T", "a", 1)
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:
            await producer.send(Message("Other", b"warm"))
            ways: Sends = [
                partial(producer.send, Message("T", b"free")),
                partial(producer.send, Message("Other", b"other")),
                partial(producer.send, Message("T", b"fast", wait_store=False)),
                partial(producer.send, Message("T", b"one"), queue=queue),
                partial(producer.send, Message("T", b"key"), sharding_key="k"),
            ]
            results = await together([way for way in ways for _ in range(3)])
        assert counts(cluster) == (1, 5)
        found = {topic: stored(cluster, topic) for topic in ("T", "Other")}
        bodies = [found[result.message_queue.topic][place(result)].body for result in results]
        wanted = (b"free", b"other", b"fast", b"one", b"key")
        assert bodies == [body for body in wanted for _ in range(3)]
        assert {result.message_queue for result in results[9:12]} == {queue}

    async def test_requests_and_transactions_go_alone(self, setting: World) -> None:
        async with (
            setting.connect() as client,
            client.producer("p", auto_batch=True) as producer,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):

            async def reply(message: StoredMessage) -> None:
                await producer.reply(message, b"re: " + message.body)

            tasks.start_soon(consumer.run, reply)
            asked = [partial(producer.request, Message("T", b"%d" % n), 60) for n in range(3)]
            replies = await together(list(asked))
            tasks.cancel_scope.cancel()
        assert [reply.body for reply in replies] == [b"re: 0", b"re: 1", b"re: 2"]
        assert counts(setting.cluster)[1] == 0

    async def test_observers_see_each_message(self, setting: World) -> None:
        class Watch(rmq.Observer):
            def __init__(self) -> None:
                self.told: list[tuple[bytes, Any]] = []

            def sending(self, group: str, message: Message, extra: MutableMapping[str, str]) -> bytes:
                extra["span"] = message.body.decode()
                return message.body

            def sent(self, token: Any, result: Any, failure: Any) -> None:
                self.told.append((token, result))

        watch, cluster = Watch(), setting.cluster
        client = rmq.connect(setting.names, network=setting.network, plugins=[watch])
        async with client, client.producer("p", auto_batch=True) as producer:
            results = await together([partial(producer.send, Message("T", b"%d" % n)) for n in range(5)])
        assert counts(cluster) == (0, 1)
        assert sorted(body for body, _ in watch.told) == [b"0", b"1", b"2", b"3", b"4"]
        found = stored(cluster)
        for body, result in watch.told:
            assert result in results
            assert found[place(result)].body == body == found[place(result)].properties["span"].encode()


class TestErrors:
    async def test_a_message_that_is_none_fails_alone_before_anything_is_sent(self, setting: World) -> None:
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:
            results = await together(
                [
                    partial(producer.send, Message("T", b"good")),
                    partial(producer.send, Message("T", b"")),
                    partial(producer.send, Message("T", b"good"), queue="T"),  # type: ignore[arg-type]
                    partial(producer.send, Message("T", b"good")),
                ]
            )
        assert isinstance(results[1], InvalidMessage)
        assert isinstance(results[2], InvalidType)
        assert [message.body for message in setting.cluster["a"].messages("T")] == [b"good"] * 2
        assert counts(setting.cluster) == (0, 1)

    async def test_every_caller_gets_the_error_as_its_own(self, setting: World) -> None:
        setting.cluster["a"].hook(BATCH, ResponseCode.NO_PERMISSION)
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:
            send = partial(producer.send, Message("T", b"x"), queue=MessageQueue("T", "a", 0))
            results = await together([send] * 3)
        assert len({id(error) for error in results}) == 3
        assert {str(error) for error in results} == {str(results[0])}
        for error in results:
            assert isinstance(error, rmq.NoPermission)
            assert error.code == ResponseCode.NO_PERMISSION
            assert error.__notes__ == results[0].__notes__
        assert setting.cluster["a"].messages("T") == []

    async def test_what_a_broker_refuses_for_one_is_stored_for_the_others(self, setting: World) -> None:
        front = setting.cluster["a"]

        def answer(request: Command, connection: Connection) -> Command | None:
            if b"evil" in bytes(request.body):
                return request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="evil")
            return front.answer(request, connection)

        front.hook(BATCH, answer)
        front.hook(SEND, answer)
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:
            bodies = [b"good 1", b"evil", b"good 2"]
            results = await together([partial(producer.send, Message("T", body)) for body in bodies])
        assert isinstance(results[1], MessageIllegal)
        assert sorted(message.body for message in front.messages("T")) == [b"good 1", b"good 2"]
        assert {stored(setting.cluster)[place(results[at])].body for at in (0, 2)} == {b"good 1", b"good 2"}

    async def test_a_broker_without_batches_is_asked_once(self, setting: World) -> None:
        front = setting.cluster["a"]
        front.hook(BATCH, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:
            for _ in range(3):
                results = await together([partial(producer.send, Message("T", b"x"))] * 4)
                assert all(isinstance(result, rmq.SendResult) for result in results)
        assert counts(setting.cluster) == (12, 1)

    async def test_a_lost_answer_is_tried_again_and_told_to_all(
        self, setting: World, clock: MockClock
    ) -> None:
        setting.cluster["a"].hook(BATCH, CUT)
        async with (
            setting.connect(retry_times=1) as client,
            client.producer("p", auto_batch=True) as producer,
        ):
            results = await together([partial(producer.send, Message("T", b"x"))] * 3)
        assert len({id(error) for error in results}) == 3
        for error in results:
            assert isinstance(error, SendFailed)
            assert isinstance(error.attempts[-1][1], ConnectionLost)
        assert counts(setting.cluster) == (0, 2)


class TestCutShort:
    async def test_others_of_a_batch_do_not_feel_that_one_is_cancelled(self, setting: World) -> None:
        front = setting.cluster["a"]
        async with setting.connect() as client, client.producer("p", auto_batch=True) as producer:
            scopes = [trio.CancelScope() for _ in range(3)]

            def answer(request: Command, connection: Connection) -> Command | None:
                scopes[0].cancel()
                return front.answer(request, connection)

            front.hook(BATCH, answer)
            results: list[rmq.SendResult] = []

            async def send(scope: trio.CancelScope) -> None:
                with scope:
                    results.append(await producer.send(Message("T", b"x")))

            async with trio.open_nursery() as nursery:
                for scope in scopes:
                    nursery.start_soon(send, scope)
        assert len(results) == 2
        assert len(front.messages("T")) == 3

    async def test_leaving_the_block_waits_for_what_is_gathered(self, setting: World) -> None:
        results: list[rmq.SendResult] = []
        async with setting.connect() as client, trio.open_nursery() as nursery:
            async with client.producer("p", auto_batch=True) as producer:

                async def send() -> None:
                    results.append(await producer.send(Message("T", b"x")))

                for _ in range(5):
                    nursery.start_soon(send)
                await trio.testing.wait_all_tasks_blocked()
            assert len(results) == 5
            with pytest.raises(LocalProtocolError, match="not open"):
                await producer.send(Message("T", b"late"))

    async def test_the_end_of_the_client_is_told(self, setting: World, clock: MockClock) -> None:
        setting.cluster["a"].hook(BATCH, HANG)
        client = await setting.connect(shutdown_timeout_ms=100, send_timeout_ms=60_000).start()
        producer = await client.producer("p", auto_batch=True).start()
        async with trio.open_nursery() as nursery:
            errors: list[Exception] = []

            async def send() -> None:
                try:
                    await producer.send(Message("T", b"x"))
                except Exception as error:
                    errors.append(error)

            for _ in range(3):
                nursery.start_soon(send)
            await trio.sleep(1)
            with trio.fail_after(10):
                await client.aclose()
        assert len(errors) == 3


async def test_a_batch_of_any_number_is_stored(setting: World) -> None:
    """The answer names the place of each message, and its header may have 64 KiB."""
    async with setting.connect() as client, client.producer("p") as producer:
        result = await producer.send_batch([Message("T", b"x")] * 2500)
    assert len(set(result.message_ids)) == 2500
    assert len(result.parts) == 3
    assert len(setting.cluster["a"].messages("T")) == 2500
