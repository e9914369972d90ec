"""Sending: what reaches the brokers, what is tried again and where, and what happens when it is cut short."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise

import anyio
import pytest
import trio
from rmq_acl.accounts import Account, Accounts
from rmq_acl.request_signing import SignedRequests
from rmq_acl.verify import identify
from trio.testing import MockClock

import rmq
from rmq.client.client import Client
from rmq.client.produce.producer import Producer
from rmq.client.session.routes import select_by_key
from rmq.clock import wall_clock_ms
from rmq.errors import (
    ConfigError,
    ConnectFailed,
    InvalidName,
    LocalProtocolError,
    MessageIllegal,
    NoRoute,
    RequestTimeout,
    SendFailed,
    SystemBusy,
)
from rmq.message import Message, MessageQueue
from rmq.protocol.bodies import TopicRouteData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import GetProducerConnectionListRequestHeader
from rmq.protocol.record import decompress
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import CUT, HANG, BrokerFront, Front
from rmq.testing.network import MemoryNetwork

from ..conftest import Play
from ..world import World, world

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", topics={"T": 2})


def bodies(broker: BrokerFront, topic: str = "T") -> list[bytes]:
    return [message.body for message in broker.messages(topic)]


def sends(cluster: Cluster) -> dict[str, int]:
    return {name: broker.count(SEND) for name, broker in cluster.brokers.items()}


class TestBothLoops:
    def test_a_message_is_stored(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            async with world.connect() as client, client.producer("p") as producer:
                message = Message("T", b"paid", tags="x", keys=["42", "43"], properties={"a": "b"}, flag=7)
                result = await producer.send(message)
            assert result.status == "SEND_OK"
            broker = cluster[result.message_queue.broker_name]
            (stored,) = broker.messages("T")
            assert stored.queue_id == result.message_queue.queue_id
            assert (stored.body, stored.flag, result.queue_offset) == (b"paid", 7, 0)
            assert stored.properties == {
                "a": "b",
                "KEYS": "42 43",
                "TAGS": "x",
                "CLUSTER": "DefaultCluster",
                "UNIQ_KEY": result.message_id,
            }

        both(scenario, cluster)

    def test_many_are_in_flight_over_one_connection(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            ids = []
            async with world.connect() as client, client.producer("p") as producer:

                async def send(number: int) -> None:
                    ids.append((await producer.send(Message("T", b"%d" % number))).message_id)

                async with anyio.create_task_group() as tasks:
                    for number in range(300):
                        tasks.start_soon(send, number)
                assert [len(broker.connections) for broker in cluster.brokers.values()] == [1, 1]
            assert len(set(ids)) == 300
            bodies = [message.body for message in cluster.sent("T")]
            assert sorted(map(int, bodies)) == list(range(300))
            assert cluster.name_servers[0].count(ROUTE) == 1  # asked once, whoever waited

        both(scenario, cluster)

    def test_a_batch_is_one_request(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            async with world.connect() as client, client.producer("p") as producer:
                result = await producer.send_batch([Message("T", b"%d" % n) for n in range(5)])
            assert len(set(result.message_ids)) == 5
            broker = cluster[result.message_queue.broker_name]
            assert bodies(broker) == [b"0", b"1", b"2", b"3", b"4"]
            assert broker.count(BATCH) == 1

        both(scenario, cluster)

    def test_oneway_asks_for_no_answer(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            async with world.connect() as client, client.producer("p") as producer:
                await producer.send_oneway(Message("T", b"x"), queue=MessageQueue("T", "a", 1))
                await producer.send(Message("T", b"y"), queue=MessageQueue("T", "a", 1))
            assert bodies(cluster["a"]) == [b"x", b"y"]
            assert [request.is_oneway for request in cluster["a"].seen if request.code == SEND] == [
                True,
                False,
            ]

        both(scenario, cluster)

    def test_the_users_error_comes_out_bare(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            async def fail() -> None:
                async with (
                    world.connect() as client,
                    client.producer("p") as producer,
                    client.consumer("g", {"T": "*"}),
                ):
                    await producer.send(Message("T", b"x"))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()

        both(scenario, cluster)

    def test_the_second_door(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            client = world.connect()
            async with anyio.create_task_group() as tasks:
                started: Client = await tasks.start(client.run)
                assert started is client
                async with client.producer("p") as producer:
                    await producer.send(Message("T", b"x"))
                tasks.cancel_scope.cancel()

        both(scenario, cluster)

    def test_nothing_of_a_client_is_left(self, both: Play, cluster: Cluster) -> None:
        async def scenario(world: World) -> None:
            fronts = (*cluster.name_servers, *cluster.brokers.values())
            before = [len(front.connections) for front in fronts]
            async with world.connect() as client, client.producer("p") as producer:
                await producer.send(Message("T", b"x"))
                assert sum(len(front.connections) for front in fronts) > sum(before)
            with anyio.fail_after(5):
                while [len(front.connections) for front in fronts] != before:
                    await anyio.sleep(0.01)

        both(scenario, cluster)


class TestQueues:
    async def test_queues_and_brokers_have_their_turns(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            queues = [(await producer.send(Message("T", b"x"))).message_queue for _ in range(8)]
        assert sorted(queues) == sorted(2 * [MessageQueue("T", name, n) for name in "ab" for n in (0, 1)])
        assert all(one.broker_name != other.broker_name for one, other in pairwise(queues))

    async def test_one_key_goes_to_one_queue(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            for key in ("order-1", "order-2", "polygenelubricants"):
                got = {
                    (await producer.send(Message("T", b"x"), sharding_key=key)).message_queue
                    for _ in range(3)
                }
                queues = [MessageQueue("T", name, n) for name in "ab" for n in (0, 1)]
                assert got == {select_by_key(queues, key)}

    async def test_a_queue_can_be_chosen(self, setting: World, clock: MockClock) -> None:
        queue = MessageQueue("T", "b", 1)
        async with setting.connect() as client, client.producer("p") as producer:
            assert (await producer.send(Message("T", b"x"), queue=queue)).message_queue == queue

    async def test_a_queue_of_an_unknown_broker_has_no_route(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(NoRoute, match="no address is known for broker z"):
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "z", 1))


def without(broker: str, names: Front, request: Command, connection: Connection) -> Command | None:
    """The response of a name server when a broker no longer has the topic."""
    answer = names.answer(request, connection)
    assert answer is not None
    route = TopicRouteData.from_json(answer.body)
    route.queue_datas = [queues for queues in route.queue_datas if queues.broker_name != broker]
    return request.reply(body=route.to_json())


class TestRoutes:
    async def test_a_new_topic_is_made_by_the_first_message(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            queues = {(await producer.send(Message("New", b"x"))).message_queue for _ in range(16)}
        # TBW102 has 8 queues on each broker; the client asks for 4.
        assert queues == {MessageQueue("New", name, number) for name in "ab" for number in range(4)}

    async def test_no_route_names_who_was_asked_and_what_to_do(self, clock: MockClock) -> None:
        cluster = Cluster("a", name_servers=2, auto_create_topic_enable=False)
        async with world(cluster) as setting, setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(NoRoute) as caught:
                await producer.send(Message("Missing", b"x"))
        assert "'Missing' at 10.0.0.1:9876, 10.0.0.2:9876" in str(caught.value)
        assert any("create the topic 'Missing'" in note for note in caught.value.__notes__)

    async def test_no_route_says_why_a_name_server_did_not_answer(self, clock: MockClock) -> None:
        client = rmq.connect("10.0.0.9:1", network=MemoryNetwork())
        async with client, client.producer("p") as producer:
            with pytest.raises(NoRoute, match=r"cannot connect to 10\.0\.0\.9:1"):
                await producer.send(Message("T", b"x"))

    async def test_another_name_server_answers_when_one_is_down(self, clock: MockClock) -> None:
        cluster = Cluster("a", name_servers=2)
        cluster.name_servers[0].script(ROUTE, *[CUT] * 9)
        async with world(cluster) as setting, setting.connect() as client, client.producer("p") as producer:
            for topic in ("T1", "T2", "T3", "T4"):
                await cluster.create_topic(topic)
                await producer.send(Message(topic, b"x"))
        assert cluster.name_servers[0].count(ROUTE) <= 1  # one failure, then it is left alone
        assert cluster.name_servers[1].count(ROUTE) == 4

    async def test_a_topic_that_may_not_be_written_has_no_route_for_us(
        self, setting: World, clock: MockClock
    ) -> None:
        await setting.cluster.create_topic("ReadOnly", perm=4)
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(NoRoute, match="no writable queue"):
                await producer.send(Message("ReadOnly", b"x"))

    async def test_routes_are_asked_for_again_every_30_s(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
            await setting.cluster.create_topic("T", queues=5)
            await trio.sleep(31)
            queues = {(await producer.send(Message("T", b"x"))).message_queue for _ in range(10)}
        assert len(queues) == 10

    async def test_a_route_is_asked_for_at_once_when_a_send_fails(
        self, setting: World, clock: MockClock
    ) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
            (names,) = setting.cluster.name_servers
            names.script(ROUTE, *[partial(without, "a", names)] * 99)
            setting.cluster["a"].script(SEND, *[ResponseCode.TOPIC_NOT_EXIST] * 9)
            for _ in range(20):
                assert (await producer.send(Message("T", b"x"))).message_queue.broker_name == "b"
                await trio.sleep(0.01)
        assert sends(setting.cluster)["a"] <= 2

    async def test_a_name_server_that_forgot_everything_changes_nothing(
        self, setting: World, clock: MockClock
    ) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
            setting.cluster.name_servers[0].script(ROUTE, *[ResponseCode.TOPIC_NOT_EXIST] * 99)
            await trio.sleep(100)
            await producer.send(Message("T", b"x"))
        assert sum(sends(setting.cluster).values()) == 2


class TestRetries:
    @pytest.mark.parametrize(
        "trouble", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, CUT, 1]
    )
    async def test_another_broker_takes_what_one_refuses(
        self, setting: World, clock: MockClock, trouble: int | str
    ) -> None:
        setting.cluster["a"].script(SEND, *[trouble] * 99)
        async with setting.connect() as client, client.producer("p") as producer:
            began = trio.current_time()
            names = [(await producer.send(Message("T", b"x"))).message_queue.broker_name for _ in range(6)]
            assert trio.current_time() == pytest.approx(began, abs=0.01)
        assert set(names) == {"b"}
        assert len(bodies(setting.cluster["b"])) == 6

    async def test_a_broker_that_failed_is_avoided_and_then_forgiven(
        self, setting: World, clock: MockClock
    ) -> None:
        setting.cluster["a"].script(SEND, ResponseCode.SYSTEM_BUSY)
        async with setting.connect() as client, client.producer("p") as producer:
            for _ in range(6):
                await producer.send(Message("T", b"x"))
            assert sends(setting.cluster) == {"a": 1, "b": 6}
            await trio.sleep(6)
            names = [(await producer.send(Message("T", b"x"))).message_queue.broker_name for _ in range(6)]
        assert sorted(names) == ["a"] * 3 + ["b"] * 3

    async def test_a_broker_that_hangs_may_take_half_the_time(self, setting: World, clock: MockClock) -> None:
        setting.cluster["a"].script(SEND, HANG)
        async with setting.connect() as client, client.producer("p") as producer:
            took = []
            for _ in range(4):
                began = trio.current_time()
                await producer.send(Message("T", b"x"))
                took.append(trio.current_time() - began)
        assert sorted(round(seconds, 3) for seconds in took) == [0, 0, 0, 1.5]

    async def test_all_attempts_are_named_when_none_succeeds(self, setting: World, clock: MockClock) -> None:
        for broker in setting.cluster.brokers.values():
            broker.script(SEND, *[ResponseCode.SYSTEM_BUSY] * 9)
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(SendFailed, match="not sent after 3 attempt") as caught:
                await producer.send(Message("T", b"x"))
        assert {broker for broker, _, _ in caught.value.attempts} == {"a", "b"}
        assert isinstance(caught.value.__cause__, SystemBusy)
        assert sum(sends(setting.cluster).values()) == 3

    async def test_attempts_at_the_same_broker_are_a_moment_apart(self, clock: MockClock) -> None:
        cluster = Cluster("a", topics={"T": 4})
        cluster["a"].script(SEND, *[ResponseCode.SYSTEM_BUSY] * 2)
        async with world(cluster) as setting, setting.connect() as client, client.producer("p") as producer:
            began = trio.current_time()
            await producer.send(Message("T", b"x"))
            assert 0.05 + 0.1 <= trio.current_time() - began <= 0.1 + 0.2

    async def test_an_account_over_its_quota_waits_as_long_as_the_broker_says(self, clock: MockClock) -> None:
        cluster = Cluster("a", topics={"T": 4})
        remark = "[THROTTLED]account app is over its quota to produce: retry in 2500 ms"
        times: list[float] = []

        def refuse(request: Command, connection: Connection) -> Command:
            times.append(trio.current_time())
            return request.reply(ResponseCode.SYSTEM_BUSY, remark)

        cluster["a"].hook(SEND, refuse)
        async with (
            world(cluster) as setting,
            setting.connect(send_timeout_ms=9_000) as client,
            client.producer("p") as producer,
        ):
            with pytest.raises(SendFailed):
                await producer.send(Message("T", b"x"))
        assert [after - before for before, after in pairwise(times)] == pytest.approx([2.5, 2.5])

    async def test_a_delay_of_nothing_is_none_below_nothing(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            assert (await producer.send(Message("T", b"x", delay_ms=0))).status == "SEND_OK"
            assert (await producer.send(Message("T", b"x", deliver_at_ms=0))).status == "SEND_OK"
            for wrong in ({"delay_ms": -1}, {"deliver_at_ms": -1}, {"delay_level": -1}):
                with pytest.raises(MessageIllegal, match="expected at least 0"):
                    await producer.send(Message("T", b"x", **wrong))  # type: ignore[arg-type]

    async def test_a_topic_that_may_be_written_by_now_is_sent_to_at_once(
        self, setting: World, clock: MockClock
    ) -> None:
        await setting.cluster.create_topic("Closed", 1, perm=4)
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(NoRoute):
                await producer.send(Message("Closed", b"x"))
            await setting.cluster.create_topic("Closed", 1, perm=6)
            assert (await producer.send(Message("Closed", b"x"))).status == "SEND_OK"

    async def test_retry_times_bounds_the_attempts(self, setting: World, clock: MockClock) -> None:
        setting.cluster["a"].script(SEND, *[ResponseCode.SYSTEM_BUSY] * 9)
        setting.cluster["b"].script(SEND, *[ResponseCode.SYSTEM_BUSY] * 9)
        async with setting.connect(retry_times=0) as client, client.producer("p") as producer:
            with pytest.raises(SendFailed):
                await producer.send(Message("T", b"x"))
        assert sum(sends(setting.cluster).values()) == 1

    async def test_what_every_broker_would_refuse_is_not_tried_again(
        self, setting: World, clock: MockClock
    ) -> None:
        for broker in setting.cluster.brokers.values():
            broker.script(SEND, ResponseCode.MESSAGE_ILLEGAL)
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(MessageIllegal, match="as scripted"):
                await producer.send(Message("T", b"x"))
        assert sum(sends(setting.cluster).values()) == 1

    async def test_one_broker_that_hangs_may_take_all_the_time(self, clock: MockClock) -> None:
        cluster = Cluster("a")
        cluster["a"].script(SEND, HANG)
        async with world(cluster) as setting, setting.connect() as client, client.producer("p") as producer:
            began = trio.current_time()
            with pytest.raises(SendFailed) as caught:
                await producer.send(Message("T", b"x"))
            assert trio.current_time() - began == pytest.approx(3)
        assert isinstance(caught.value.__cause__, RequestTimeout)

    async def test_a_chosen_queue_has_one_attempt(self, setting: World, clock: MockClock) -> None:
        setting.cluster["a"].script(SEND, ResponseCode.SYSTEM_BUSY)
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(SystemBusy):
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "a", 0))

    async def test_a_broker_that_is_gone_is_replaced(self, cluster: Cluster, clock: MockClock) -> None:
        async with (
            world(cluster) as setting,
            setting.connect() as client,
            client.producer("p") as producer,
        ):
            for _ in range(4):
                await producer.send(Message("T", b"x"))
            host = cluster["a"].address.partition(":")[0]
            cluster.network.partition(host)
            began = trio.current_time()
            for _ in range(10):
                assert (await producer.send(Message("T", b"x"))).message_queue.broker_name == "b"
            assert trio.current_time() - began <= 3  # one attempt found out


class TestStatus:
    @pytest.mark.parametrize(
        ("code", "status"),
        [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")],
    )
    async def test_stored_but_is_a_status(
        self, setting: World, clock: MockClock, code: int, status: str
    ) -> None:
        ext = {"msgId": "AB", "queueId": "1", "queueOffset": "5", "MSG_REGION": "here", "transactionId": "t"}
        for broker in setting.cluster.brokers.values():
            broker.script(SEND, lambda request, _: request.reply(code, header=ext))
        async with setting.connect() as client, client.producer("p") as producer:
            result = await producer.send(Message("T", b"x"))
        assert (result.status, result.queue_offset, result.message_queue.queue_id) == (status, 5, 1)
        assert (result.offset_message_id, result.region, result.transaction_id) == ("AB", "here", "t")

    async def test_an_answer_without_its_parts_is_the_brokers_fault(
        self, setting: World, clock: MockClock
    ) -> None:
        for broker in setting.cluster.brokers.values():
            broker.script(SEND, 0)
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(rmq.RemoteProtocolError, match="lacks 'queueId'"):
                await producer.send(Message("T", b"x"))


class TestCutShort:
    async def test_the_callers_deadline_rules(self, setting: World, clock: MockClock) -> None:
        for broker in setting.cluster.brokers.values():
            broker.script(SEND, *[HANG] * 9)
        async with setting.connect() as client, client.producer("p") as producer:
            began = trio.current_time()
            with pytest.raises(trio.TooSlowError), trio.fail_after(0.5):
                await producer.send(Message("T", b"x"))
            assert trio.current_time() - began == pytest.approx(0.5)

    async def test_the_connection_outlives_a_cancelled_send(self, setting: World, clock: MockClock) -> None:
        setting.cluster["a"].script(SEND, HANG)
        queue = MessageQueue("T", "a", 0)
        async with setting.connect() as client, client.producer("p") as producer:
            with trio.move_on_after(0.5):
                await producer.send(Message("T", b"lost"), queue=queue)
            await producer.send(Message("T", b"x"), queue=queue)
            assert len(setting.cluster["a"].connections) == 1

    async def test_leaving_waits_for_the_sends_of_others(self, setting: World, clock: MockClock) -> None:
        late: list[trio.Event] = [trio.Event()]

        def answer_late(request: object, connection: object) -> None:
            setting.cluster["a"].answer(request, connection)
            nursery.start_soon(reply, request, connection)

        async def reply(request: object, connection: object) -> None:
            await late[0].wait()
            connection.reply(request.reply(header={"msgId": "A", "queueId": "0", "queueOffset": "0"}))

        setting.cluster["a"].script(SEND, answer_late)
        results = []

        async def send(producer: Producer) -> None:
            results.append(await producer.send(Message("T", b"x"), queue=MessageQueue("T", "a", 0)))

        async with setting.connect() as client, trio.open_nursery() as nursery:
            async with client.producer("p") as producer:
                nursery.start_soon(send, producer)
                await trio.sleep(0.5)
                nursery.start_soon(_later, 0.7, late[0].set)
            assert trio.current_time() == pytest.approx(1.2, abs=0.01)
            assert len(results) == 1

    async def test_a_closed_producer_says_so(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client:
            async with client.producer("p") as producer:
                pass
            with pytest.raises(LocalProtocolError, match="producer of p is not open"):
                await producer.send(Message("T", b"x"))

    async def test_a_client_is_used_inside_its_block(self) -> None:
        with pytest.raises(LocalProtocolError, match="client is not open"):
            rmq.connect("h:1").producer("p")


def by_server(cluster: Cluster) -> list[list[Command]]:
    """The requests of clients to each server; brokers ask name servers, too."""
    return [
        *[names.requests(ROUTE) for names in cluster.name_servers],
        *[broker.seen for broker in cluster.brokers.values()],
    ]


async def _later(seconds: float, call: object) -> None:
    await trio.sleep(seconds)
    call()


class TestGroups:
    async def test_brokers_hear_of_a_producer_and_of_its_leaving(
        self, setting: World, clock: MockClock
    ) -> None:
        async with setting.connect(client_id="me") as client:
            async with client.producer("p") as producer:
                await producer.send(Message("T", b"x"))
                await trio.sleep(0.5)
                for broker in setting.cluster.brokers.values():
                    header = GetProducerConnectionListRequestHeader("p")
                    told = broker.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
                    assert b'"clientId":"me"' in told.body
            for broker in setting.cluster.brokers.values():
                (left,) = [
                    request for request in broker.seen if request.code == RequestCode.UNREGISTER_CLIENT
                ]
                assert left.ext == {"clientID": "me", "producerGroup": "p"}

    async def test_heartbeats_come_every_30_s(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
            await trio.sleep(1)
            before = setting.cluster["a"].count(RequestCode.HEART_BEAT)
            await trio.sleep(90)
            assert setting.cluster["a"].count(RequestCode.HEART_BEAT) - before in (2, 3)

    async def test_a_group_has_one_producer_in_a_client(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.producer("p"):
            with pytest.raises(ConfigError, match="no producer in this client yet"):
                async with client.producer("p"):
                    pass

    async def test_group_names_are_checked(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client:
            with pytest.raises(InvalidName):
                client.producer("bad name")

    async def test_requests_carry_the_accounts_signature(self, setting: World, clock: MockClock) -> None:
        account = rmq.Credentials("someone", "secret")
        async with setting.connect(credentials=account) as client, client.producer("p") as producer:
            await producer.send(Message("T", b"x"))
        for requests in by_server(setting.cluster):
            assert all(request.ext["AccessKey"] == "someone" for request in requests)
            assert all(re.fullmatch(r"[\w+/]{27}=", request.ext["Signature"]) for request in requests)

    async def test_requests_are_proved_in_the_order_in_which_they_are_sent(
        self, setting: World, clock: MockClock
    ) -> None:
        account = rmq.Credentials("someone", "secret")
        async with (
            setting.connect(credentials=account) as client,
            client.producer("p") as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(20):
                nursery.start_soon(producer.send, Message("T", b"x"))
                nursery.start_soon(producer.send_oneway, Message("T", b"x"))
        accounts, proofs = Accounts({"someone": Account("someone", "secret")}), SignedRequests(wall_clock_ms)
        for requests in by_server(setting.cluster):
            assert len({request.ext["RmqNonce"].partition(".")[0] for request in requests}) == 1
            for request in requests:
                assert identify(request, accounts, "10.0.0.1:1", proofs).is_signed


class TestCompression:
    async def test_long_bodies_are_compressed_and_marked(self, setting: World, clock: MockClock) -> None:
        body = b"abc" * 5000
        async with setting.connect() as client, client.producer("p") as producer:
            await producer.send(Message("T", body))
            await producer.send(Message("T", body[:4095]))
        requests = [r for b in setting.cluster.brokers.values() for r in b.seen if r.code == SEND]
        small, large = sorted(requests, key=lambda request: request.ext["f"])
        assert (large.ext["f"], small.ext["f"]) == ("769", "0")
        assert decompress(large.body, 769) == body
        assert small.body == body[:4095]

    async def test_a_body_at_the_limit_goes_and_one_over_it_does_not(
        self, setting: World, clock: MockClock
    ) -> None:
        async with setting.connect(max_message_size=100) as client, client.producer("p") as producer:
            await producer.send(Message("T", b"x" * 100))
            with pytest.raises(MessageIllegal, match="has 101 bytes, at most 100"):
                await producer.send(Message("T", b"x" * 101))

    async def test_a_name_server_that_is_nobody_fails_the_send_in_time(self, clock: MockClock) -> None:
        network = MemoryNetwork()
        network.partition("10.0.0.1", "127.0.0.1")
        client = rmq.connect("10.0.0.1:9", network=network)
        async with client, client.producer("p") as producer:
            with pytest.raises((NoRoute, ConnectFailed)):
                await producer.send(Message("T", b"x"))
            assert trio.current_time() <= 6.1
