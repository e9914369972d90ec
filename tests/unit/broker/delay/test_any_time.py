"""Messages with a delivery time of their own through a whole broker, and their recall."""

from __future__ import annotations

import pytest

from rmq.broker.delay.timer_records import COPY_ROOM
from rmq.broker.wakeups import Wakeups
from rmq.message import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq.protocol import json
from rmq.protocol.codes import FLAG_RESPONSE, RECALL_MESSAGE, RequestCode, ResponseCode
from rmq.protocol.command import ROCKETMQ, Command
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader, RecallHandle, RecallMessageRequestHeader
from rmq.protocol.record import PROPERTIES_MAX
from rmq.store.config import FlushDiskType

from ..rig import START, Rig, batch, pull, send


@pytest.fixture
def rig() -> Rig:
    return Rig()


def timed(name: str = "TIMER_DELIVER_MS", value: int | str = START + 5000, **more: object) -> Command:
    return send(properties=f"UNIQ_KEY\x01AC11\x02TAGS\x01TagA\x02{name}\x01{value}", **more)  # type: ignore[arg-type]


def step_to(rig: Rig, now_ms: int) -> int:
    rig.now_ms = now_ms
    return rig.broker.steps.schedule()


@pytest.mark.parametrize(
    ("name", "value"),
    [("TIMER_DELIVER_MS", START + 5000), ("TIMER_DELAY_MS", 5000), ("TIMER_DELAY_SEC", 5)],
)
def test_a_message_comes_at_its_time(name: str, value: int) -> None:
    rung: list[None] = []
    rig = Rig(given={"wake": Wakeups(schedule=lambda: rung.append(None))})
    answer = rig.one(timed(name, value, queue_id=2))
    assert (answer.code, answer.ext["queueId"]) == (0, "2")
    assert rung, "the loop must be woken"
    assert rig.broker.steps.schedule() == START + 5000
    assert step_to(rig, START + 4999) == START + 5000
    assert rig.bodies("Orders", 2) == []
    step_to(rig, START + 5000)
    (message,) = rig.messages("Orders", 2)
    assert (message.body, message.tags, message.message_id) == (b"hello", "TagA", "AC11")
    assert message.properties["TIMER_OUT_MS"] == str(START + 5000)
    assert message.properties["CLUSTER"] == "WireCluster"


def test_a_waiting_consumer_gets_it_at_its_time(rig: Rig) -> None:
    rig.one(send())
    rig.one(timed())
    assert rig.ask(pull(offset=1, sys_flag=6)) == []
    step_to(rig, START + 5000)
    assert [answer.code for answer in rig.wire.take()] == [0]


def test_a_message_without_room_for_the_mark_of_a_copy_is_refused(rig: Rig) -> None:
    room = PROPERTIES_MAX - COPY_ROOM
    answer = rig.one(send(properties=f"pad\x01{'x' * (room - 20)}\x02TIMER_DELIVER_MS\x01{START + 5000}"))
    assert (answer.code, f"limit of a message with a delivery time {room}B" in str(answer.remark)) == (
        ResponseCode.MESSAGE_ILLEGAL,
        True,
    )
    assert len(rig.broker.timers) == 0


def test_a_time_that_has_passed_is_now(rig: Rig) -> None:
    answer = rig.one(timed(value=START))
    assert rig.bodies("Orders") == [b"hello"]
    assert "recallHandle" not in answer.ext


def test_a_delay_level_goes_before_a_time(rig: Rig) -> None:
    rig.one(send(properties=f"UNIQ_KEY\x01A\x02DELAY\x011\x02TIMER_DELIVER_MS\x01{START + 9000}"))
    (message,) = rig.messages(SCHEDULE_TOPIC, 0)
    assert "TIMER_DELIVER_MS" not in message.properties
    assert rig.messages(TIMER_TOPIC) == []


@pytest.mark.parametrize(("name", "value"), [("TIMER_DELAY_SEC", "soon"), ("TIMER_DELAY_SEC", 41 * 86_400)])
def test_a_time_that_cannot_be_is_refused(rig: Rig, name: str, value: str) -> None:
    answer = rig.one(timed(name, value))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert name in (answer.remark or "")
    assert rig.store.max_physical_offset == 0


def test_nobody_sends_to_the_timer_topic_itself(rig: Rig) -> None:
    assert rig.one(send(TIMER_TOPIC)).code == ResponseCode.NO_PERMISSION


def test_a_consumed_message_comes_back_by_its_level_only(rig: Rig) -> None:
    rig.one(timed("TIMER_DELAY_SEC", 5))
    step_to(rig, START + 5000)
    (message,) = rig.messages("Orders")
    header = ConsumerSendMsgBackRequestHeader(message.physical_offset, "g", 1)
    assert rig.one(Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == 0
    step_to(rig, START + 6000)
    assert rig.bodies("%RETRY%g") == [b"hello"]


def test_what_waits_is_found_again_and_what_came_is_not_repeated(rig: Rig) -> None:
    rig.ask(timed(value=START + 1000), timed(value=START + 9000))
    step_to(rig, START + 1000)
    saves = rig.broker.saves()
    assert json.loads(saves["timerProgress"]) == {"first": 1, "read": 2, "deliveredMs": START + 1000}
    assert "timerProgress" not in rig.broker.saves()
    for name, data in saves.items():
        rig.store.save_config(name, data)
    rig.store.close()
    again = Rig(disk=rig.disk)
    assert step_to(again, START + 2000) == START + 9000
    step_to(again, START + 9000)
    assert again.bodies("Orders") == [b"hello", b"hello"]


def test_the_figures_name_what_waits(rig: Rig) -> None:
    rig.ask(timed(), timed())
    assert rig.broker.admin.runtime(START)["timerMessages"] == "2"


# --- recall ---


def recall(handle: str, topic: str = "Orders") -> Command:
    return Command.request(RECALL_MESSAGE, RecallMessageRequestHeader(topic, handle, "producers"))


def test_the_answer_to_a_send_carries_the_handle_of_5x(rig: Rig) -> None:
    answer = rig.one(timed())
    assert RecallHandle.parse(answer.ext["recallHandle"]) == RecallHandle(
        "Orders", "wire-a", START + 5000, "AC11"
    )
    assert answer.ext["msgId"] == "0A00000900002A9F0000000000000000"
    assert (answer.ext["queueOffset"], answer.ext["MSG_REGION"]) == ("0", "DefaultRegion")


def test_the_handle_comes_in_the_binary_form_too(rig: Rig) -> None:
    request = timed()
    request.serialization = ROCKETMQ
    answer = rig.one(request)
    assert (answer.serialization, answer.flag) == (ROCKETMQ, FLAG_RESPONSE)
    assert "recallHandle" in answer.ext


def test_a_recalled_message_never_comes(rig: Rig) -> None:
    handle = rig.one(timed()).ext["recallHandle"]
    rig.one(send(properties=f"UNIQ_KEY\x01AC12\x02TIMER_DELIVER_MS\x01{START + 5000}", body=b"other"))
    answer = rig.one(recall(handle))
    assert (answer.code, answer.ext["msgId"]) == (0, "AC11")
    step_to(rig, START + 5000)
    assert rig.bodies("Orders") == [b"other"]


def test_a_recall_waits_for_the_disk_like_a_send() -> None:
    rig = Rig(store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    assert rig.ask(timed()) == []
    rig.broker.on_synced(rig.store.flush())
    (answer,) = rig.wire.take()
    assert rig.ask(recall(answer.ext["recallHandle"])) == []
    rig.broker.on_synced(rig.store.flush())
    assert [(one.code, one.ext["msgId"]) for one in rig.wire.take()] == [(0, "AC11")]


def test_a_message_without_a_key_has_no_handle(rig: Rig) -> None:
    answer = rig.one(send(properties=f"TIMER_DELIVER_MS\x01{START + 5000}"))
    assert answer.code == 0
    assert "recallHandle" not in answer.ext


@pytest.mark.parametrize(
    ("handle", "topic", "code", "remark"),
    [
        ("nonsense", "Orders", 604, "handle is invalid"),
        (str(RecallHandle("Other", "wire-a", START + 5, "K")), "Orders", 604, "topic not match"),
        (str(RecallHandle("Orders", "rig-b", START + 5, "K")), "Orders", 604, "is at broker rig-b"),
        (str(RecallHandle("Orders", "wire-a", START, "K")), "Orders", 604, "timestamp invalid"),
        (str(RecallHandle("None", "wire-a", START + 5, "K")), "None", 17, "not exist"),
        (str(RecallHandle("Orders", "wire-a", START + 5, "K\0")), "Orders", 13, "NUL"),
    ],
)
def test_a_recall_that_cannot_be(rig: Rig, handle: str, topic: str, code: int, remark: str) -> None:
    rig.one(send())
    answer = rig.one(recall(handle, topic))
    assert answer.code == code
    assert remark in (answer.remark or "")


def test_a_broker_that_takes_no_messages_takes_no_recalls(rig: Rig) -> None:
    handle = rig.one(timed()).ext["recallHandle"]
    rig.broker.flow.close("this broker is stopping")
    assert rig.one(recall(handle)).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_batches_and_timers_in_one_chunk(rig: Rig) -> None:
    answers = rig.ask(batch(), timed(), send())
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert ["recallHandle" in answer.ext for answer in answers] == [False, True, False]
