"""Three strangers fill each table of the broker, and the next client has room in it nevertheless."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from rmq.broker.admin.metrics_export import gauges_of
from rmq.broker.admin.places import place_metrics
from rmq.broker.filtering import filters as filter_module
from rmq.broker.membership import client_requests
from rmq.broker.tables import queue_locks, topics
from rmq.message import MessageQueue
from rmq.protocol import codes
from rmq.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ProducerData,
    SubscriptionData,
)
from rmq.protocol.codes import (
    IDEMPOTENT_SEND,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    RECALL_MESSAGE,
    RequestCode,
    ResponseCode,
)
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    PRODUCER_ID,
    SEQUENCE,
    GetConsumerRunningInfoRequestHeader,
    RecallHandle,
    RecallMessageRequestHeader,
    SendMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    encode_send_v2,
)
from rmq.protocol.pop import PopMessageRequestHeader
from rmq.protocol.record import encode_batch
from rmq.store.config import FlushDiskType

from ..rig import START, Rig, Wire, pull, send

STRANGERS = [f"10.0.0.{number}" for number in (1, 2, 3)]
HONEST = "10.0.1.1:1"
WAITING = PULL_SUBSCRIPTION | PULL_SUSPEND
Ask = Callable[[Rig, Wire, int], list[Command]]


def beat(client: str, *consumers: ConsumerData, producers: tuple[str, ...] = ()) -> Command:
    body = HeartbeatData(client, [ProducerData(name) for name in producers], list(consumers))
    return Command.request(RequestCode.HEART_BEAT, None, body.to_json())


def consumer(group: str, expression: str = "*", kind: str = "TAG") -> ConsumerData:
    wanted = SubscriptionData("Orders", expression, sub_version=1, expression_type=kind)
    return ConsumerData(group_name=group, subscription_data_set=[wanted])


def waits(rig: Rig, wire: Wire, number: int) -> list[Command]:
    return rig.ask(pull(sys_flag=WAITING, queue_id=number % 4), wire=wire)


def joins(rig: Rig, wire: Wire, number: int) -> list[Command]:
    return rig.ask(beat(f"{wire.peer_address}@{number}", producers=(f"p{number}",)), wire=wire)


def filters_so(rig: Rig, wire: Wire, number: int) -> list[Command]:
    group = f"f{wire.peer_address}-{number}".replace(".", "-").replace(":", "-")
    told = rig.ask(beat("c", consumer(group, f"a = {number}", "SQL92")), wire=wire)
    answers = [one for one in told if one.is_response]
    assert answers[0].code == 0
    if rig.filters.get("Orders", group) is None:
        answers[0].code = 2
    return answers


def locks(rig: Rig, wire: Wire, number: int) -> list[Command]:
    queue = MessageQueue("Orders", "b", number)
    body = LockBatchRequestBody(f"g{wire.peer_address}", wire.peer_address, [queue]).to_json()
    (answer,) = rig.ask(Command.request(RequestCode.LOCK_BATCH_MQ, None, body), wire=wire)
    answer.code = 0 if LockBatchResponseBody.from_json(answer.body).lock_ok_mq_set else 2
    return [answer]


def commits(rig: Rig, wire: Wire, number: int) -> list[Command]:
    group = f"o-{wire.peer_address}-{number}".replace(".", "-").replace(":", "-")
    header = UpdateConsumerOffsetRequestHeader(group, "Orders", 0, 0)
    return rig.ask(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header), wire=wire)


def makes_topic(rig: Rig, wire: Wire, number: int) -> list[Command]:
    name = f"T-{wire.peer_address}-{number}".replace(".", "-").replace(":", "-")
    return rig.ask(send(name), wire=wire)


def makes_group(rig: Rig, wire: Wire, number: int) -> list[Command]:
    name = f"g-{wire.peer_address}-{number}".replace(".", "-").replace(":", "-")
    return rig.ask(pull(consumer_group=name), wire=wire)


def is_passed_on(rig: Rig, wire: Wire, number: int) -> list[Command]:
    question = GetConsumerRunningInfoRequestHeader("readers", "taker")
    return rig.ask(Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, question), wire=wire)


def sends_once(rig: Rig, wire: Wire, number: int) -> list[Command]:
    header = SendMessageRequestHeader("p", "Orders", "TBW102", 4, 0, 0, 0, 0, "", batch=True)
    ext = encode_send_v2(header) | {PRODUCER_ID: wire.peer_address, SEQUENCE: str(number)}
    return rig.ask(Command.request(IDEMPOTENT_SEND, ext, encode_batch([(0, b"x", "")])), wire=wire)


def sends_for_later(rig: Rig, wire: Wire, number: int) -> list[Command]:
    due_ms = START + 86_400_000 + number
    return rig.ask(
        send("Orders", properties=f"UNIQ_KEY\x01K{number}\x02TIMER_DELIVER_MS\x01{due_ms}"), wire=wire
    )


def recalls(rig: Rig, wire: Wire, number: int) -> list[Command]:
    handle = RecallHandle("Orders", rig.config.broker_name, START + 86_400_000, f"K{number}")
    header = RecallMessageRequestHeader("Orders", str(handle), "p")
    return rig.ask(Command.request(RECALL_MESSAGE, header), wire=wire)


def takes(rig: Rig, wire: Wire, number: int) -> list[Command]:
    group = f"t-{wire.peer_address}-{number}".replace(".", "-").replace(":", "-")
    header = PopMessageRequestHeader(group, "Orders", -1, 1, 30_000, 0, 0, 0, "TAG", "*")
    (answer,) = rig.ask(Command.request(codes.POP_MESSAGE, header), wire=wire)
    answer.code = 2 if answer.code == codes.POLLING_TIMEOUT else answer.code
    return [answer]


def waits_for_the_disk(rig: Rig, wire: Wire, number: int) -> list[Command]:
    return rig.ask(send("Orders"), wire=wire)


TABLES: dict[str, tuple[Ask, dict[str, object]]] = {
    "pulls that wait": (waits, {"pull_thread_pool_queue_capacity": 64}),
    "members": (joins, {"max_group_members": 64}),
    "filters": (filters_so, {"enable_property_filter": True}),
    "locks": (locks, {}),
    "offsets": (commits, {"max_consumer_offsets": 64}),
    "topics": (makes_topic, {"max_auto_created_topics": 80}),
    "groups": (makes_group, {"max_auto_created_groups": 64}),
    "requests to clients": (is_passed_on, {}),
    "idempotent sends": (sends_once, {"idempotent_send_keep_time": 3_600_000, "idempotent_sends_max": 64}),
    "taken messages": (takes, {"max_taken_messages": 64}),
    "timed messages": (sends_for_later, {}),
    "recalls": (recalls, {}),
    "sends that wait for the disk": (waits_for_the_disk, {"send_thread_pool_queue_capacity": 64}),
}
BUSY = {
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_module, "FILTERS_MAX", 64)
    monkeypatch.setattr(queue_locks, "LOCKS_MAX", 64)
    monkeypatch.setattr(client_requests, "ROWS_MAX", 64)
    monkeypatch.setattr(topics, "UNSAVED_MAX", 10_000)


def made(name: str) -> Rig:
    _, settings = TABLES[name]
    syncs = {"flush_disk_type": FlushDiskType.SYNC_FLUSH} if "disk" in name else {}
    rig = Rig(store=syncs, **settings)  # type: ignore[arg-type]
    rig.broker.timers.limit = 64
    rig.topic("Orders")
    if name == "taken messages":
        rig.put("Orders", 0, b"to be taken")
    rig.ask(beat("taker", consumer("readers")), wire=Wire("10.0.2.1:1"))
    return rig


def refused(answers: list[Command]) -> bool:
    return any(answer.code in BUSY for answer in answers)


def connections(host: str) -> Iterator[Wire]:
    for port in itertools.count(1):
        yield Wire(f"{host}:{port}")


@pytest.mark.parametrize("name", TABLES)
def test_three_strangers_leave_room_for_the_next(name: str) -> None:
    ask, _ = TABLES[name]
    rig = made(name)
    for host in STRANGERS:
        wires = connections(host)
        wire = next(wires)
        for number in range(200):
            if number % 10 == 9:
                wire = next(wires)
            if refused(ask(rig, wire, number)):
                break
        else:
            raise AssertionError(f"{host} was never refused")
    assert not refused(ask(rig, Wire(HONEST), 1_000))


@pytest.mark.parametrize("name", TABLES)
def test_an_account_has_one_share_wherever_it_comes_from(name: str) -> None:
    ask, _ = TABLES[name]
    rig = made(name)
    for number in range(400):
        wire = Wire(f"10.0.{number}.1:1")
        wire.state["account"] = "stranger"
        if refused(ask(rig, wire, number)):
            break
    else:
        raise AssertionError("it was never refused")
    honest = Wire("10.0.0.1:1")
    honest.state["account"] = "honest"
    assert not any(refused(ask(rig, honest, 1_000 + number)) for number in range(5))


def test_a_table_that_is_half_full_is_shown_with_its_greediest_holder() -> None:
    rig = made("pulls that wait")
    assert gauges_of(rig.broker)["placesTaken"] == ""
    for number in range(32):
        waits(rig, Wire("10.0.0.1:1"), number)
    assert gauges_of(rig.broker)["placesTaken"] == "waiting pulls: 32 of 64, 32 of 10.0.0.1"
    metrics = {one.name: dict(one.rows) for one in place_metrics(rig.broker)}
    row = ("waiting pulls",)
    assert [metrics[name][row] for name in ("places_taken", "places", "places_of_greediest")] == [32, 64, 32]


def test_what_is_held_is_given_back() -> None:
    rig = made("pulls that wait")
    wires = [Wire(f"10.0.0.1:{port}") for port in range(4)]
    for number, wire in enumerate(wires):
        waits(rig, wire, number)
        joins(rig, wire, number)
    shares = rig.broker.parked_pulls.shares
    assert shares.held("10.0.0.1") == 4
    for wire in wires:
        rig.broker.on_close(wire)  # type: ignore[arg-type]
    assert shares.holders() == 0
    assert rig.clients.shares.held("10.0.0.1") == 0
