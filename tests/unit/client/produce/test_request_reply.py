"""Questions and answers, delivery times and their recall, batches over several requests, namespaces."""

from __future__ import annotations

import anyio
import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.errors import LocalProtocolError, MessageIllegal, ReplyTimeout, ResponseError, SystemBusy
from rmq.message import Message, MessageQueue, StoredMessage, with_namespace, without_namespace
from rmq.protocol.codes import ILLEGAL_OPERATION, RECALL_MESSAGE, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import RecallHandle, ReplyMessageRequestHeader, SendMessageRequestHeader
from rmq.protocol.properties import decode_properties
from rmq.protocol.record import compress, compressed_flag
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..consume.consuming import sent_back
from ..world import World

SEND = RequestCode.SEND_MESSAGE_V2
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", topics={"T": 1})


def push(connection: Connection, properties: str, body: bytes = b"17", sys_flag: int = 0) -> None:
    """Push a reply, as a broker does."""
    header = ReplyMessageRequestHeader(
        "r",
        "C_REPLY_TOPIC",
        "TBW102",
        4,
        0,
        sys_flag,
        1,
        0,
        properties,
        born_host="/1.2.3.4:5",
        store_host="a",
    )
    connection.notify(Command.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body))


def taken(request: Command, _: Connection) -> Command:
    """The response of a broker that has handed a reply on."""
    return request.reply(header={"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"})


def stored(properties: dict[str, str], broker: str = "a") -> StoredMessage:
    return StoredMessage("T", 0, 0, 0, 100, b"?", properties, broker_name=broker, store_host="1.2.3.4:5")


class TestRequests:
    async def test_a_restart_of_the_broker_fails_none(self, setting: World, clock: MockClock) -> None:
        """A broker that is back knows its askers at once, not at their next heartbeat."""
        async with (
            setting.connect(client_id="asker") as asking,
            setting.connect(client_id="replier") as replying,
            asking.producer("p") as requester,
            replying.producer("q") as replier,
            replying.consumer("r", {"T": "*"}) as consumer,
            trio.open_nursery() as nursery,
        ):

            async def answer(message: StoredMessage) -> None:
                await replier.reply(message, b"to " + message.body)

            nursery.start_soon(consumer.run, answer)
            for number in range(3):
                for _ in range(2):
                    reply = await requester.request(Message("T", b"%d" % number), 3)
                    assert reply.body == b"to %d" % number
                await setting.cluster.stop("a")
                await trio.sleep(1 + number)
                await setting.cluster.start("a")
                await trio.sleep(1.5)
            nursery.cancel_scope.cancel()

    async def test_a_producer_for_each_request_gets_its_reply(self, setting: World, clock: MockClock) -> None:
        """A group that left a broker is announced again before the next request of the group."""
        async with (
            setting.connect(client_id="asker") as asking,
            setting.connect(client_id="replier") as replying,
            replying.producer("q") as replier,
            replying.consumer("r", {"T": "*"}) as consumer,
            trio.open_nursery() as nursery,
        ):

            async def answer(message: StoredMessage) -> None:
                await replier.reply(message, b"to " + message.body)

            nursery.start_soon(consumer.run, answer)
            for number in range(5):
                async with asking.producer("p") as requester:
                    reply = await requester.request(Message("T", b"%d" % number), 3)
                assert reply.body == b"to %d" % number
            nursery.cancel_scope.cancel()

    async def test_a_broker_that_does_not_answer_is_not_waited_for_each_time(
        self, setting: World, clock: MockClock
    ) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            await producer.queues("T")
            setting.cluster["a"].script(RequestCode.HEART_BEAT, *[lambda asked, _: None] * 9)
            with pytest.raises(ReplyTimeout):
                await producer.request(Message("T", b"x"), 8)
            sends = setting.cluster["a"].count(SEND)
            began = trio.current_time()
            with pytest.raises(ReplyTimeout):
                await producer.request(Message("T", b"x"), 1)
            assert trio.current_time() - began == pytest.approx(1)
            assert setting.cluster["a"].count(SEND) == sends + 1

    def test_the_answer_comes_back(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            def answered(request: Command, connection: Connection) -> Command | None:
                words = decode_properties(request.ext["i"])
                push(connection, f"CORRELATION_ID\x01{words['CORRELATION_ID']}\x02UNIQ_KEY\x01R1")
                return cluster["a"].answer(request, connection)

            cluster["a"].script(SEND, answered)
            async with world.connect(client_id="asker") as client, client.producer("g") as producer:
                reply = await producer.request(Message("T", b"hz"), timeout=5)
            assert (reply.body, reply.message_id, reply.born_host) == (b"17", "R1", "1.2.3.4:5")
            (sent,) = (r for r in cluster["a"].seen if r.code == SEND)
            words = decode_properties(sent.ext["i"])
            assert (words["REPLY_TO_CLIENT"], words["TTL"]) == ("asker", "5000")
            codes = [request.code for request in cluster["a"].seen]
            assert codes.index(RequestCode.HEART_BEAT) < codes.index(SEND)

        both(scenario, cluster)

    async def test_no_answer_in_time(self, setting: World, clock: MockClock, cluster: Cluster) -> None:
        async with setting.connect() as client, client.producer("g") as producer:
            began = trio.current_time()
            with pytest.raises(ReplyTimeout, match=r"no reply to message .* in T within 2 s") as caught:
                await producer.request(Message("T", b"hz"), timeout=2)
            assert trio.current_time() - began == pytest.approx(2, abs=0.01)
            assert isinstance(caught.value, TimeoutError)
            assert not caught.value.retriable
            (connection,) = cluster["a"].connections
            words = decode_properties(cluster["a"].requests(SEND)[0].ext["i"])
            push(connection, f"CORRELATION_ID\x01{words['CORRELATION_ID']}")  # too late: nobody minds
            await trio.sleep(0.1)
            await producer.send(Message("T", b"x"))

    async def test_a_compressed_answer(self, setting: World, clock: MockClock, cluster: Cluster) -> None:
        def answered(request: Command, connection: Connection) -> Command | None:
            words = decode_properties(request.ext["i"])
            body = compress(b"y" * 9000)
            push(connection, f"CORRELATION_ID\x01{words['CORRELATION_ID']}", body, compressed_flag())
            return cluster["a"].answer(request, connection)

        cluster["a"].script(SEND, answered)
        async with setting.connect() as client, client.producer("g") as producer:
            assert (await producer.request(Message("T", b"hz"))).body == b"y" * 9000

    async def test_a_reply_goes_to_the_broker_of_the_question(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        cluster["a"].script(REPLY, taken)
        async with setting.connect() as client, client.producer("g") as producer:
            asked = stored({"CLUSTER": "C", "CORRELATION_ID": "7", "REPLY_TO_CLIENT": "asker", "TTL": "3000"})
            await producer.reply(asked, b"17")
        (sent,) = (r for r in cluster["a"].seen if r.code == REPLY)
        header = sent.read(SendMessageRequestHeader)
        assert (header.topic, header.queue_id, sent.body) == ("C_REPLY_TOPIC", 0, b"17")
        words = decode_properties(header.properties)
        assert {name: words[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE")} == {
            "CORRELATION_ID": "7",
            "REPLY_TO_CLIENT": "asker",
            "TTL": "3000",
            "MSG_TYPE": "reply",
        }

    async def test_what_cannot_be_replied_to(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("g") as producer:
            with pytest.raises(MessageIllegal, match="not a request"):
                await producer.reply(stored({"CLUSTER": "C", "UNIQ_KEY": "ID"}), b"17")


class TestDeliveryTimes:
    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            (Message("T", b"x", delay_level=3), {"DELAY": "3"}),
            (Message("T", b"x", deliver_at_ms=1_700_000_000_000), {"TIMER_DELIVER_MS": "1700000000000"}),
            (Message("T", b"x", delay_ms=1500), {"TIMER_DELAY_MS": "1500"}),
        ],
    )
    async def test_the_properties_that_name_them(
        self, setting: World, clock: MockClock, cluster: Cluster, message: Message, expected: dict[str, str]
    ) -> None:
        async with setting.connect() as client, client.producer("g") as producer:
            await producer.send(message)
        words = decode_properties(cluster["a"].requests(SEND)[0].ext["i"])
        assert {name: words[name] for name in words if name not in ("UNIQ_KEY", "WAIT")} == expected

    @pytest.mark.parametrize(
        ("message", "text"),
        [
            (Message("T", b"x", delay_level=3, delay_ms=1), "only one"),
            (Message("T", b"x", deliver_at_ms=3, delay_ms=1), "only one"),
            (Message("T", b"x", delay_ms=-1), "at least 0"),
        ],
    )
    async def test_wrong_ones(self, setting: World, clock: MockClock, message: Message, text: str) -> None:
        async with setting.connect() as client, client.producer("g") as producer:
            with pytest.raises(MessageIllegal, match=text):
                await producer.send(message)
            with pytest.raises(MessageIllegal, match="batch cannot be delayed"):
                await producer.send_batch([message])

    async def test_recall(self, setting: World, clock: MockClock, cluster: Cluster) -> None:
        handle = str(RecallHandle("T", "a", 1_700_000_000_000, "ID1"))

        def sent(request: Command, _: Connection) -> Command:
            header = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0", "recallHandle": handle}
            return request.reply(header=header)

        cluster["a"].script(SEND, sent)
        cluster["a"].script(
            RECALL_MESSAGE, lambda request, _: request.reply(header={"msgId": "ID1"}), ILLEGAL_OPERATION
        )
        async with setting.connect() as client, client.producer("g") as producer:
            result = await producer.send(Message("T", b"x", deliver_at_ms=1_700_000_000_000))
            assert result.recall_handle == handle
            assert await producer.recall(handle) == "ID1"
            with pytest.raises(ResponseError) as caught:
                await producer.recall(handle)
            assert caught.value.code == ILLEGAL_OPERATION
            with pytest.raises(LocalProtocolError, match="recall handle"):
                await producer.recall("nonsense")
        first = next(r for r in cluster["a"].seen if r.code == RECALL_MESSAGE)
        assert first.ext == {"topic": "T", "recallHandle": handle, "producerGroup": "g"}


class TestBatches:
    async def test_a_large_batch_is_sent_in_parts(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        async with setting.connect(max_message_size=1000) as client, client.producer("g") as producer:
            result = await producer.send_batch([Message("T", b"%d" % n * 100) for n in range(10)])
            small = await producer.send_batch([Message("T", b"x"), Message("T", b"y")])
        requests = [r for r in cluster["a"].seen if r.code == RequestCode.SEND_BATCH_MESSAGE]
        assert len(requests) == 3
        assert all(len(request.body) <= 1000 for request in requests)
        stored = [message.body for message in cluster["a"].messages("T")]
        assert stored[:10] == [b"%d" % n * 100 for n in range(10)]
        assert [len(part.message_ids) for part in result.parts] == [5, 5]
        assert len(set(result.message_ids)) == 10
        assert (result.queue_offset, result.status) == (0, "SEND_OK")
        assert small.parts == ()

    async def test_one_message_that_is_too_large(self, setting: World, clock: MockClock) -> None:
        async with setting.connect(max_message_size=1000) as client, client.producer("g") as producer:
            with pytest.raises(MessageIllegal, match="with its properties, at most 1000"):
                await producer.send_batch([Message("T", b"x" * 990)])

    async def test_a_part_that_fails_says_how_far_it_came(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        cluster["a"].script(RequestCode.SEND_BATCH_MESSAGE, cluster["a"].answer, 2)
        queue = MessageQueue("T", "a", 0)
        async with setting.connect(max_message_size=1000) as client, client.producer("g") as producer:
            with pytest.raises(SystemBusy) as caught:
                await producer.send_batch([Message("T", b"x" * 100) for _ in range(10)], queue=queue)
        assert "the first 5 of 10 messages are stored" in caught.value.__notes__


class TestNamespaces:
    @pytest.mark.parametrize(
        ("name", "inside"),
        [
            ("T", "ns%T"),
            ("ns%T", "ns%T"),
            ("%RETRY%g", "%RETRY%ns%g"),
            ("%DLQ%g", "%DLQ%ns%g"),
            ("TBW102", "TBW102"),
            ("rmq_sys_x", "rmq_sys_x"),
            ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
        ],
    )
    def test_names(self, name: str, inside: str) -> None:
        assert with_namespace("ns", name) == inside
        assert without_namespace("ns", inside) == name.removeprefix("ns%")
        assert with_namespace("", name) == without_namespace("", name) == name
        assert without_namespace("other", inside) == inside

    async def test_the_application_does_not_see_them(
        self, setting: World, clock: MockClock, cluster: Cluster
    ) -> None:
        seen = []

        async def handle(message: StoredMessage) -> None:
            seen.append((message.topic, message.reconsume_times))
            if not message.reconsume_times:
                raise ValueError("again")
            scope.cancel()

        async with setting.connect(namespace="ns") as client:
            async with client.producer("g") as producer:
                result = await producer.send(Message("T", b"x"))
                assert result.message_queue.topic == "T"
                await producer.send_batch([Message("T", b"y")], queue=result.message_queue)
            name = result.message_queue.broker_name
            async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
                with anyio.CancelScope() as scope:
                    await consumer.run(handle)
        broker = cluster[name]
        assert len(broker.messages("ns%T")) == 2
        assert [message.body for message in broker.messages("%RETRY%ns%g")]
        assert broker.messages("T") == []
        assert set(seen) == {("T", 0), ("T", 1)}
        words = broker.messages("ns%T")[0].properties
        assert words["INSTANCE_ID"] == "ns"
        assert sent_back(cluster, name)[0].origin_topic == "ns%T"


def test_all_names_are_there() -> None:
    assert {name for name in rmq.__all__ if getattr(rmq, name) is None} == set()
