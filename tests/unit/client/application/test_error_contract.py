"""The errors of each call: the table in docs/reference/errors.md, on trio and on asyncio."""

from __future__ import annotations

import builtins
import pathlib
import re
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

import rmq
from rmq import errors
from rmq.client.produce.outgoing import asker_waits_until
from rmq.clock import wall_clock_ms
from rmq.errors import (
    AccessDenied,
    AskerGone,
    NoPermission,
    NoRoute,
    ResponseError,
    RmqError,
    SystemFailure,
    Unreachable,
    for_code,
)
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection
from rmq.testing.cluster import Cluster
from rmq.testing.front import Front

from ..conftest import Play
from ..world import World

PAGE = pathlib.Path(__file__).parents[4] / "docs" / "reference" / "errors.md"
QUEUE = MessageQueue("T", "a", 0)
MESSAGE = Message("T", b"x")
REFUSAL = "Check signature failed for accessKey=me"
GONE = "push reply message fail, channel of <asker> not found."


def rows() -> list[list[str]]:
    table = PAGE.read_text("utf-8").split("|---|---|---|---|\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_names_classes_that_are_there_and_says_truly_whether_to_try_again() -> None:
    assert len(rows()) > 12
    for _, kinds, retriable, _ in rows():
        first = re.findall(r"`(\w+)`", kinds)[0]
        kind = getattr(errors, first)
        assert getattr(rmq, first) is kind
        for base in re.findall(r"an? `(\w+)`", kinds):
            expected = getattr(errors, base, None) or getattr(builtins, base)
            assert issubclass(kind, expected), (kind, base)
        if retriable != "by code":
            assert kind.retriable is retriable.startswith("yes"), kind


def test_every_error_that_an_application_can_get_is_in_the_table() -> None:
    named = {name for row in rows() for name in re.findall(r"`(\w+)`", row[1])}
    own = {
        name
        for name in rmq.__all__
        if isinstance(getattr(rmq, name), type) and issubclass(getattr(rmq, name), RmqError)
    }
    answers = {name for name in own if issubclass(getattr(rmq, name), ResponseError)}
    of_files = {"CorruptRecord"}
    assert own - named - answers - of_files == {"RmqError"}


async def produce(client: rmq.Client, call: Callable[[rmq.Producer], Awaitable[object]]) -> None:
    async with client.producer("p") as producer:
        await call(producer)


async def pull(client: rmq.Client, call: Callable[[rmq.PullConsumer], Awaitable[object]]) -> None:
    async with client.pull_consumer("g") as puller:
        await call(puller)


async def join(client: rmq.Client, **options: Any) -> None:
    async with client.consumer("g", {"T": "*"}, **options):
        pass


Call = Callable[[rmq.Client], Awaitable[object]]

ROUTED: dict[str, Call] = {
    "send": lambda client: produce(client, lambda producer: producer.send(MESSAGE)),
    "sharding key": lambda client: produce(client, lambda producer: producer.send(MESSAGE, sharding_key="k")),
    "batch": lambda client: produce(client, lambda producer: producer.send_batch([MESSAGE, MESSAGE])),
    "oneway": lambda client: produce(client, lambda producer: producer.send_oneway(MESSAGE)),
    "request": lambda client: produce(client, lambda producer: producer.request(MESSAGE)),
    "queues": lambda client: produce(client, lambda producer: producer.queues("T")),
    "message_queues": lambda client: pull(client, lambda puller: puller.message_queues("T")),
    "pull": lambda client: pull(client, lambda puller: puller.pull(QUEUE)),
    "min_offset": lambda client: pull(client, lambda puller: puller.min_offset(QUEUE)),
    "committed": lambda client: pull(client, lambda puller: puller.committed(QUEUE)),
    "dead_letters": lambda client: client.dead_letters("g"),
    "topic_route": lambda client: client.admin.topic_route("T"),
}
NAMED: dict[str, Call] = {
    "topics": lambda client: pull(client, lambda puller: puller.topics()),
    "admin.topics": lambda client: client.admin.topics(),
}
JOINED: dict[str, Call] = {
    "consumer": join,
    "ordered": lambda client: join(client, ordered=True),
    "subscribe": lambda client: pull(client, lambda puller: puller.subscribe({"T": "*"})),
}


def refuse(front: Front, code: int, remark: str) -> None:
    """Have a server refuse whatever an application may ask it."""

    def refused(request: Command, connection: Connection) -> Command:
        return request.reply(code, remark)

    for asked in RequestCode:
        if asked not in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
            front.hook(asked, refused)


@pytest.mark.parametrize("call", [*ROUTED.values(), *NAMED.values()], ids=[*ROUTED, *NAMED])
def test_no_name_server_answers(call: Call, both: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        soon = rmq.ClientConfig(send_timeout_ms=200)  # asyncio waits in real time
        async with rmq.connect("127.0.0.1:1;127.0.0.1:2", config=soon, network=setting.network) as client:
            with pytest.raises(Unreachable) as raised:
                await call(client)
        error = raised.value
        assert list(error.causes) in (["127.0.0.1:1", "127.0.0.1:2"], ["127.0.0.1:2", "127.0.0.1:1"])
        assert all(isinstance(cause, rmq.ConnectFailed) for cause in error.causes.values())
        assert isinstance(error, ConnectionError)
        assert "127.0.0.1:1" in str(error)
        assert "127.0.0.1:2" in str(error)
        assert "create the topic" not in error.hint
        assert "name servers run" in error.hint

    both(scenario, cluster)


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR])
@pytest.mark.parametrize(
    "call", [*ROUTED.values(), *NAMED.values(), *JOINED.values()], ids=[*ROUTED, *NAMED, *JOINED]
)
def test_a_name_server_does_not_know_the_account(call: Call, code: int, both: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        refuse(cluster.name_servers[0], code, REFUSAL)
        async with setting.connect() as client:
            with pytest.raises(AccessDenied, match="accessKey=me") as raised:
                await call(client)
        assert isinstance(raised.value, NoPermission)
        assert not raised.value.retriable

    both(scenario, cluster)


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR])
@pytest.mark.parametrize(
    "name", ["send", "sharding key", "batch", "request", "pull", "min_offset", "committed", *JOINED]
)
def test_a_broker_does_not_know_the_account(name: str, code: int, both: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        refuse(cluster["a"], code, REFUSAL)
        async with setting.connect() as client:
            with pytest.raises(AccessDenied, match="accessKey=me"):
                await {**ROUTED, **JOINED}[name](client)
        for sent in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE):
            assert cluster["a"].count(sent) <= 1  # no second attempt

    both(scenario, cluster)


def test_where_one_name_server_answers_a_missing_topic_is_no_unreachable_server(both: Play) -> None:
    cluster = Cluster("a", auto_create_topic_enable=False)

    async def scenario(setting: World) -> None:
        soon = rmq.ClientConfig(send_timeout_ms=300)  # asyncio waits in real time
        async with (
            rmq.connect(f"127.0.0.1:1;{setting.names}", network=setting.network, config=soon) as client,
            client.producer("p") as producer,
        ):
            with pytest.raises(NoRoute, match="'Missing'") as raised:
                await producer.send(Message("Missing", b"x"))
        assert not isinstance(raised.value, Unreachable)

    both(scenario, cluster)


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (16, REFUSAL, AccessDenied),
        (1, f"org.apache.rocketmq.acl.common.AclException: {REFUSAL}", AccessDenied),
        (16, "No accessKey is configured", AccessDenied),
        (1, "No acl config for me", AccessDenied),
        (16, "No default permission for topic:T", NoPermission),
        (16, None, NoPermission),
        (17, REFUSAL, rmq.TopicNotExist),
        (1, GONE, AskerGone),
        (1, "push reply message to <asker> fail.", AskerGone),
        (1, "store failed", SystemFailure),
    ],
)
def test_what_has_no_code_is_told_by_its_text(code: int, remark: str | None, kind: type[RmqError]) -> None:
    assert type(for_code(code, remark)) is kind


# --- one error, as itself ---


def fill(cluster: Cluster, count: int, properties: str = "") -> None:
    for number in range(count):
        cluster["a"].put("T", number % 2, b"%d" % number, f"UNIQ_KEY\x01ID{number}{properties}")


@pytest.mark.parametrize("batches", [False, True])
def test_handlers_that_fail_together_give_one_error(batches: bool, both: Play, cluster: Cluster) -> None:
    running = 0

    async def scenario(setting: World) -> None:
        nonlocal running
        fill(cluster, 40)
        together = anyio.Event()

        async def handle(_: object) -> None:
            nonlocal running
            running += 1
            if running >= 10:
                together.set()
            await together.wait()
            raise ValueError("broken")

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
        ):
            run = consumer.run_batches(handle, batch=2, concurrency=10) if batches else consumer.run(handle)
            with pytest.raises(ValueError, match="broken") as raised:
                await run
        # Those whose messages were sent back before the first error ended the rest are named in its notes.
        notes = getattr(raised.value, "__notes__", [])
        assert all("at the same time: ValueError" in note for note in notes)

    both(scenario, cluster)


def test_a_group_that_a_handler_raised_stays_one(both: Play, cluster: Cluster) -> None:

    async def handle(_: object) -> None:
        raise ExceptionGroup("mine", [KeyError("a"), KeyError("b")])

    async def scenario(setting: World) -> None:
        fill(cluster, 1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first", on_error="raise") as consumer,
        ):
            with pytest.raises(ExceptionGroup, match="mine") as raised:
                await consumer.run(handle)
        assert len(raised.value.exceptions) == 2

    both(scenario, cluster)


def test_ctrl_c_comes_out_of_run_as_itself(both: Play, cluster: Cluster) -> None:
    handled: list[object] = []
    ended: list[str] = []

    async def handle(message: object) -> None:
        handled.append(message)
        if len(handled) == 4:
            signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()

    async def scenario(setting: World) -> None:
        fill(cluster, 4)
        try:  # on trio the interrupt is raised in the handler
            async with (
                setting.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            ):
                await consumer.run(handle, concurrency=4)
        except KeyboardInterrupt:
            ended.append("trio")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        both(scenario, cluster)
    except KeyboardInterrupt:  # asyncio cancels its main task first, and tells of the interrupt at the end
        ended.append("asyncio")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended


# --- askers that are gone ---

CENTURY_MS = str(100 * 365 * 86_400_000)
ASKED = "\x02CORRELATION_ID\x017\x02REPLY_TO_CLIENT\x01asker\x02CLUSTER\x01C\x02TTL\x01"


def asked(age_ms: int, ttl_ms: int = 3000) -> StoredMessage:
    given = {
        "CORRELATION_ID": "7",
        "REPLY_TO_CLIENT": "asker",
        "CLUSTER": "C",
        "TTL": str(ttl_ms),
        "UNIQ_KEY": "ID",
    }
    at = wall_clock_ms() - age_ms
    return StoredMessage("T", 0, 0, 0, 1, b"?", given, broker_name="a", store_timestamp=at)


def test_a_reply_to_who_is_gone(both: Play, cluster: Cluster) -> None:
    cluster["a"].script(RequestCode.SEND_REPLY_MESSAGE_V2, lambda request, _: request.reply(1, GONE))

    async def scenario(setting: World) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(AskerGone, match="asker") as raised:
                await producer.reply(asked(0), b"17")
        assert not raised.value.retriable

    both(scenario, cluster)


def test_a_reply_that_nobody_waits_for_is_not_sent(both: Play, cluster: Cluster) -> None:
    async def scenario(setting: World) -> None:
        async with setting.connect() as client, client.producer("p") as producer:
            with pytest.raises(AskerGone, match="past its time to live"):
                await producer.reply(asked(3001), b"17")
        assert cluster["a"].count(RequestCode.SEND_REPLY_MESSAGE_V2) == 0

    both(scenario, cluster)


@pytest.mark.parametrize(
    ("ttl", "waits_ms"), [("15", 15_000), ("999", 999_000), ("1000", 1_000), ("15000", 15_000)]
)
def test_a_time_to_live_of_go_is_in_seconds(ttl: str, waits_ms: int) -> None:
    message = asked(0, int(ttl))
    assert asker_waits_until(message) == message.store_timestamp + waits_ms


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("on_error", ["retry", "raise"])
def test_a_handler_that_lets_it_out_does_not_get_the_request_again(
    on_error: Any, ordered: bool, both: Play, cluster: Cluster
) -> None:
    handled: list[bytes] = []

    async def scenario(setting: World) -> None:
        fill(cluster, 4)
        async with (
            setting.connect(suspend_queue_ms=10) as client,
            client.consumer(
                "g", {"T": "*"}, consume_from="first", on_error=on_error, ordered=ordered
            ) as consumer,
        ):
            with anyio.CancelScope() as scope:

                async def handle(message: StoredMessage) -> None:
                    handled.append(message.body)
                    if len(handled) == 4:
                        scope.deadline = anyio.current_time() + 0.1
                    raise AskerGone(remark="gone")

                await consumer.run(handle)
        assert sorted(handled) == [b"0", b"1", b"2", b"3"]
        assert cluster["a"].count(RequestCode.CONSUMER_SEND_MSG_BACK) == 0
        assert cluster["a"].offsets("g", "T") == {0: 2, 1: 2}

    both(scenario, cluster)


@pytest.mark.parametrize("way", ["run", "run_batches", "iterate"])
def test_requests_past_their_time_to_live_are_not_delivered(
    way: str, both: Play, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[str] = []

    async def scenario(setting: World) -> None:
        fill(cluster, 4, f"{ASKED}3000")  # the cluster's clock shows 2023
        fill(cluster, 2, f"{ASKED}{CENTURY_MS}")
        fill(cluster, 2)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with anyio.CancelScope() as scope:

                async def handle(message: StoredMessage) -> None:
                    handled.append(message.properties.get("TTL", "none"))
                    if len(handled) == 4:
                        scope.cancel()

                async def handle_all(messages: list[StoredMessage]) -> None:
                    for message in messages:
                        await handle(message)

                if way == "run":
                    await consumer.run(handle)
                elif way == "run_batches":
                    await consumer.run_batches(handle_all, batch=3)
                else:
                    async for delivery in consumer:
                        async with delivery as message:
                            await handle(message)
        assert sorted(handled) == [CENTURY_MS, CENTURY_MS, "none", "none"]

    both(scenario, cluster)
    assert caplog.text.count("before its delivery") == 4


async def test_who_replies_looks_at_all_messages(setting: World, clock: MockClock, cluster: Cluster) -> None:
    """Requests among other messages: the first of a pull does not show them, the first reply does."""
    stored = {"msgId": "ID", "queueId": "0", "queueOffset": "0"}
    cluster["a"].script(RequestCode.SEND_REPLY_MESSAGE_V2, lambda request, _: request.reply(header=stored))
    async with setting.connect() as client, client.producer("p") as producer:
        await producer.reply(asked(0), b"17")
        fill(cluster, 2)
        fill(cluster, 2, f"{ASKED}1")
        fill(cluster, 2)
        async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:
            taken = []
            async for delivery in consumer:
                async with delivery as message:
                    taken.append("TTL" in message.properties)
                if len(taken) == 4:
                    break
    assert taken == [False] * 4
