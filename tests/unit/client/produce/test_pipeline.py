"""A pipeline stores what it is given once, in few requests, and tells what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

import rmq
from rmq.client.config import ClientConfig
from rmq.client.produce import batches
from rmq.client.produce.batches import BATCH_BYTES, BatchBody, encoded
from rmq.client.produce.outgoing import pack
from rmq.client.produce.pipeline import Pipeline
from rmq.errors import (
    ConfigError,
    InvalidMessage,
    InvalidType,
    LocalProtocolError,
    MessageIllegal,
    NoPermission,
)
from rmq.message import RESERVED_PROPERTIES, Message, MessageQueue
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.record import decode_batch
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import HANG
from tests.compiled import COMPILED, HAS_COMPILED

from ..conftest import Play
from ..world import World

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
ENGINES = [None, pytest.param(COMPILED, marks=HAS_COMPILED)]


@pytest.fixture(params=ENGINES, ids=["pure", "compiled"], autouse=True)
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches.engine, "compiled", request.param)


def bodies(setting: World, topic: str = "T") -> list[bytes]:
    return [message.body for message in setting.cluster["a"].messages(topic)]


@asynccontextmanager
async def piping(
    setting: World, *arguments: Any, on_result: Any = None, **options: Any
) -> AsyncIterator[Pipeline]:
    """A pipeline of a producer of a client with these options."""
    async with (
        setting.connect(**options) as client,
        client.producer("p") as producer,
        producer.pipeline(*arguments, on_result=on_result) as pipeline,
    ):
        yield pipeline


async def send_all(pipeline: Pipeline, *messages: Message) -> int:
    for message in messages:
        await pipeline.send(message)
    return len(messages)


def counts(setting: World) -> tuple[int, int]:
    """Requests with one message, and with several."""
    return setting.cluster["a"].count(SEND), setting.cluster["a"].count(BATCH)


class TestResults:
    def test_all_are_stored_once_as_they_were_given(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            results: dict[int, Any] = {}
            async with world.connect() as client, client.producer("p") as producer:
                pipeline = producer.pipeline(
                    400, on_result=lambda one, result: results.update({one.flag: result})
                )
                async with pipeline:
                    for n in range(1000):
                        more: dict[str, Any] = [
                            {},
                            {"tags": "paid", "keys": [f"k{n}", "k"]},
                            {"properties": {"n": str(n)}, "tags": "\xe9"},
                        ][n % 3]
                        await pipeline.send(Message("T", b"%d" % n, flag=n, **more))
            assert (pipeline.stored, pipeline.failed, pipeline.in_flight) == (1000, 0, 0)
            found = {message.flag: message for message in cluster["a"].messages("T")}
            assert len(found) == 1000 == sum(cluster["a"].queues("T")[queue][1] for queue in (0, 1))
            for n, kept in found.items():
                result = results[n]
                assert kept.body == b"%d" % n
                assert kept.message_id == result.message_id
                assert (kept.queue_id, kept.queue_offset) == (
                    result.message_queue.queue_id,
                    result.queue_offset,
                )
                assert kept.tags == [None, "paid", "\xe9"][n % 3]
                assert kept.keys == [(), (f"k{n}", "k"), ()][n % 3]
                assert kept.properties.get("n") == [None, None, str(n)][n % 3]
            assert cluster["a"].count(BATCH) < 30
            assert cluster["a"].count(SEND) < 3

        both(scenario, cluster)

    async def test_those_of_one_queue_keep_their_order(self, setting: World) -> None:
        queue = MessageQueue("T", "a", 1)
        async with (
            setting.connect() as client,
            client.producer("p") as producer,
            producer.pipeline() as pipeline,
        ):
            for n in range(1200):
                await pipeline.send(Message("T", b"%d" % n), queue=queue)
        assert [int(body) for body in bodies(setting)] == list(range(1200))
        assert counts(setting)[1] > 3

    async def test_who_sends_now_and_then_does_not_wait_for_others(
        self, setting: World, clock: MockClock
    ) -> None:
        async with (
            setting.connect() as client,
            client.producer("p") as producer,
            producer.pipeline() as pipeline,
        ):
            for n in range(1, 4):
                await pipeline.send(Message("T", b"x"))
                await trio.sleep(1)
                assert pipeline.stored == n
                assert pipeline.in_flight == 0
        assert counts(setting) == (3, 0)

    async def test_what_cannot_go_together_goes_apart(self, setting: World) -> None:
        queue = MessageQueue("T", "a", 1)
        async with setting.connect(compress_over=500) as client, client.producer("p") as producer:
            async with producer.pipeline() as pipeline:
                for _ in range(3):
                    await pipeline.send(Message("T", b"free"))
                    await pipeline.send(Message("T", b"there"), queue=queue)
                    await pipeline.send(Message("T", b"key"), sharding_key="k")
                    await pipeline.send(Message("Other", b"other"))
                    await pipeline.send(Message("T", b"later", delay_level=1))
                    await pipeline.send(Message("T", b"fast", wait_store=False))
                    await pipeline.send(Message("T", b"c" * 500))
                    await pipeline.send(Message("T", b"there"), queue=MessageQueue("T", "a", 1))
            assert pipeline.stored == 24
        assert Counter(bodies(setting)) == {
            b"free": 3, b"there": 6, b"key": 3, b"fast": 3, b"c" * 500: 3
        }  # fmt: skip
        assert bodies(setting, "Other") == [b"other"] * 3
        assert {one.queue_id for one in setting.cluster["a"].messages("T") if one.body == b"there"} == {1}
        assert counts(setting) == (6, 5)

    async def test_in_a_namespace(self, setting: World) -> None:
        async with piping(setting, namespace="ns") as pipeline:
            await send_all(pipeline, *[Message("T", b"x")] * 3)
        assert bodies(setting, "ns%T") == [b"x"] * 3

    async def test_batches_have_an_end(self, setting: World) -> None:
        half = Message("T", b"h" * (BATCH_BYTES // 2 - 100))
        async with piping(setting, compress_over=0) as pipeline:
            await send_all(pipeline, *[half] * 5, Message("T", b"l" * BATCH_BYTES))
        assert counts(setting) == (2, 2)

    async def test_observers_see_each_message(self, setting: World) -> None:
        class Watch(rmq.Observer):
            def __init__(self) -> None:
                self.told: list[tuple[bytes, Any, Any]] = []

            def sending(self, group: str, message: Message, extra: MutableMapping[str, str]) -> bytes:
                extra["span"] = message.body.decode()
                return message.body

            def sent(self, token: Any, result: Any, failure: Any) -> None:
                self.told.append((token, result, failure))

        watch = Watch()
        client = rmq.connect(setting.names, network=setting.network, plugins=[watch])
        async with client, client.producer("p") as producer, producer.pipeline() as pipeline:
            for n in range(5):
                await pipeline.send(Message("T", b"%d" % n))
            with pytest.raises(InvalidMessage):
                await pipeline.send(Message("T", b""))
        ids = {message.body: message.message_id for message in setting.cluster["a"].messages("T")}
        told = {body: result and result.message_id for body, result, _ in watch.told}
        assert told == {**ids, b"": None}
        assert isinstance(watch.told[0][2], InvalidMessage)
        spans = [message.properties["span"].encode() for message in setting.cluster["a"].messages("T")]
        assert spans == list(ids)


class TestWindow:
    async def test_no_more_are_taken_than_it_holds(self, setting: World, clock: MockClock) -> None:
        front = setting.cluster["a"]
        async with setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"warm"))
            front.hook(BATCH, HANG)
            front.hook(SEND, HANG)
            async with producer.pipeline(20, on_result=lambda one, result: None) as pipeline:
                with trio.move_on_after(1) as scope:
                    for _ in range(30):
                        await pipeline.send(Message("T", b"x"))
                assert scope.cancelled_caught
                assert pipeline.in_flight == 20
                front.hook(BATCH, None)
                front.hook(SEND, None)
                await pipeline.send(Message("T", b"x"))
        assert (pipeline.stored, pipeline.failed) == (1, 20)

    async def test_flush_waits_for_all(self, setting: World) -> None:
        async with (
            setting.connect() as client,
            client.producer("p") as producer,
            producer.pipeline() as pipeline,
        ):
            for n in range(10):
                await pipeline.send(Message("T", b"x"), sharding_key=str(n))
            assert pipeline.in_flight == 10
            await pipeline.flush()
            assert (pipeline.in_flight, len(bodies(setting))) == (0, 10)

    async def test_wrong_arguments(self, setting: World) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(ConfigError, match="window"):
                producer.pipeline(0)
            with pytest.raises(InvalidType, match="window"):
                producer.pipeline("9")  # type: ignore[arg-type]
            with pytest.raises(InvalidType, match="on_result"):
                producer.pipeline(on_result=5)  # type: ignore[arg-type]
            async with producer.pipeline() as pipeline:
                for wrong in ({"queue": "T"}, {"sharding_key": 5}):
                    with pytest.raises(InvalidType, match=next(iter(wrong))):
                        await pipeline.send(Message("T", b"x"), **wrong)  # type: ignore[arg-type]
                with pytest.raises(InvalidType, match="message"):
                    await pipeline.send(b"x")  # type: ignore[arg-type]
                await pipeline.send(Message("T", b"good"))
            with pytest.raises(LocalProtocolError, match="not open"):
                await pipeline.send(Message("T", b"late"))
        with pytest.raises(LocalProtocolError, match="not open"):
            await producer.pipeline().__aenter__()
        assert bodies(setting) == [b"good"]


class TestErrors:
    async def test_the_first_one_comes_out_of_the_block(self, setting: World) -> None:
        setting.cluster["a"].hook(BATCH, ResponseCode.NO_PERMISSION)
        told: list[Pipeline] = []

        async def all_of_it() -> None:
            async with piping(setting) as pipeline:
                told.append(pipeline)
                await pipeline.send(Message("T", b"alone"), sharding_key="k")
                for _ in range(5):
                    await pipeline.send(Message("T", b"x"), queue=queue)

        queue = MessageQueue("T", "a", 0)
        with pytest.raises(NoPermission) as caught:
            await all_of_it()
        note = "of the pipeline's messages 1 are stored, 5 are not, 0 have no result yet"
        assert caught.value.__notes__[-1] == note
        assert (told[0].stored, told[0].failed) == (1, 5)

    async def test_the_next_send_raises_it_too(self, setting: World) -> None:
        setting.cluster["a"].hook(BATCH, ResponseCode.NO_PERMISSION)
        sent = 0

        async def all_of_it() -> None:
            nonlocal sent
            async with piping(setting, 8) as pipeline:
                for _ in range(100):
                    sent += await send_all(pipeline, Message("T", b"x"))

        with pytest.raises(rmq.NoPermission):
            await all_of_it()
        assert sent == 8

    async def test_they_are_the_affair_of_on_result(self, setting: World) -> None:
        front = setting.cluster["a"]
        outcomes: list[tuple[bytes, Any]] = []

        def answer(request: Command, connection: Connection) -> Command | None:
            if b"evil" in bytes(request.body):
                return request.reply(ResponseCode.MESSAGE_ILLEGAL, remark="evil")
            return front.answer(request, connection)

        front.hook(BATCH, answer)
        front.hook(SEND, answer)
        async with piping(setting, on_result=lambda one, what: outcomes.append((one.body, what))) as pipeline:
            await send_all(pipeline, *[Message("T", body) for body in (b"good 1", b"evil", b"good 2")])
        assert [body for body, _ in outcomes] == [b"good 1", b"evil", b"good 2"]
        assert [type(what) for _, what in outcomes] == [rmq.SendResult, MessageIllegal, rmq.SendResult]
        assert sorted(bodies(setting)) == [b"good 1", b"good 2"]
        assert (pipeline.stored, pipeline.failed) == (2, 1)

    async def test_what_on_result_raises_comes_out(self, setting: World) -> None:
        def broken(message: Message, result: object) -> None:
            raise ZeroDivisionError

        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(ZeroDivisionError):
                async with producer.pipeline(on_result=broken) as pipeline:
                    await pipeline.send(Message("T", b"x"))
        assert bodies(setting) == [b"x"]

    async def test_a_broker_without_batches_is_asked_once(self, setting: World) -> None:
        setting.cluster["a"].hook(BATCH, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        async with piping(setting) as pipeline:
            for _ in range(3):
                await send_all(pipeline, *[Message("T", b"x")] * 4)
                await pipeline.flush()
        assert counts(setting) == (12, 1)
        assert pipeline.stored == 12

    async def test_after_an_error_of_the_block_the_producer_waits(self, setting: World) -> None:
        async def all_of_it(client: rmq.Client) -> None:
            async with client.producer("p") as producer, producer.pipeline() as pipeline:
                await send_all(pipeline, *[Message("T", b"x")] * 5)
                raise ZeroDivisionError

        async with setting.connect() as client:
            with pytest.raises(ZeroDivisionError):
                await all_of_it(client)
            assert bodies(setting) == [b"x"] * 5

    async def test_the_end_of_the_client_is_told(self, setting: World, clock: MockClock) -> None:
        setting.cluster["a"].hook(BATCH, HANG)
        client = await setting.connect(shutdown_timeout_ms=100, send_timeout_ms=60_000).start()
        producer = await client.producer("p").start()
        pipeline = producer.pipeline()
        await pipeline.__aenter__()
        for _ in range(3):
            await pipeline.send(Message("T", b"x"))
            await pipeline.send(Message("T", b"x"), sharding_key="k")
        await trio.sleep(1)
        await pipeline.send(Message("T", b"x"), sharding_key="k")
        await pipeline.send(Message("T", b"x", delay_level=1), sharding_key="k")
        await client.aclose()
        with trio.fail_after(10), pytest.raises(LocalProtocolError, match="closed"):
            await pipeline.flush()
        assert (pipeline.in_flight, pipeline.failed) == (0, 8)


# What the compiled engine takes it encodes as Python does.

texts = st.one_of(
    st.text(st.sampled_from("ab Z~"), max_size=8),
    st.sampled_from(["\xe9", "\x7f", "\u20ac", "x" * 9000, "y" * 2600]),
)
messages = st.builds(
    Message,
    st.sampled_from(["T", "T", "Other"]),
    st.sampled_from([b"b", b"body" * 300, b"l" * 1000, b"l" * 999]),
    tags=st.none() | texts,
    keys=st.lists(texts.filter(lambda text: text and " " not in text), max_size=3),
    properties=st.dictionaries(texts | st.sampled_from(["WAIT", "KEYS"]), texts, max_size=3),
    flag=st.sampled_from([0, 1, -1, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 70]),
    delay_level=st.sampled_from([0, 0, 3]),
    wait_store=st.booleans(),
    delay_ms=st.sampled_from([None, None, 5]),
)


@HAS_COMPILED
@given(st.lists(messages, min_size=1, max_size=8), st.booleans())
def test_the_compiled_engine_encodes_the_same(sent: list[Message], wait_store: bool) -> None:
    assert COMPILED is not None
    config = ClientConfig(compress_over=1000)
    one = COMPILED.BatchBody(Message, RESERVED_PROPERTIES, "T", wait_store, 1000, 4000)
    two = BatchBody(4000)
    for number, message in enumerate(sent):
        size = one.add(message, f"ID{number}")
        assert (two.add(message, f"ID{number}"), one.count - (size > 0)) == (-1, two.count)
        is_mine = (message.topic, message.wait_store, message.is_delayed) == ("T", wait_store, False)
        is_plain = not (message.keys or message.properties or message.tags) and len(message.body) < 1000
        if is_mine and is_plain and message.flag in (0, 1, -1):
            assert size >= 0, "it does something"
        if size >= 0:
            assert is_mine
            assert len(message.body) < 1000
            assert two.add_encoded(encoded(pack(message, f"ID{number}", config))) == size
        elif is_mine and abs(message.flag) < 1 << 31 and number % 2:
            try:
                more = encoded(pack(message, f"ID{number}", config))
            except InvalidMessage:
                continue
            assert one.add_encoded(more) == two.add_encoded(more)
    assert one.count == two.count
    body = one.take()
    assert body == two.take()
    assert len(decode_batch(body)) <= len(sent)
    assert (one.count, one.take()) == (0, b"")


@HAS_COMPILED
def test_what_is_no_message_is_not_taken() -> None:
    assert COMPILED is not None
    body = COMPILED.BatchBody(Message, RESERVED_PROPERTIES, "T", True, 1000, 4000)

    class Mine(Message):
        pass

    for wrong in (None, 5, Mine("T", b"x"), Message.__new__(Message)):
        assert body.add(wrong, "ID") == -1
    changed = Message("T", b"x")
    values: list[tuple[str, Any]] = [
        ("body", bytearray(b"x")),
        ("tags", 5),
        ("flag", True),
        ("properties", {5: "x"}),
        ("properties", {"x": 5}),
        ("topic", 5),
        ("delay_level", None),
    ]
    for name, value in values:
        before = getattr(changed, name)
        setattr(changed, name, value)
        assert body.add(changed, "ID") == -1, name
        setattr(changed, name, before)
    assert body.add(changed, "ID") > 0
    assert body.count == 1
    with pytest.raises(AttributeError):
        COMPILED.BatchBody(rmq.Client, frozenset(), "T", True, 1000, 4000)
