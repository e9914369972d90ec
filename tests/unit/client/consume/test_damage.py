"""A broker that sends damage: consumers ask it ever less often, and go on when it is well again."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rmq.message import StoredMessage
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.connection import Connection

from ..world import World

QUEUES = 2


def damaged_record(request: Command, connection: Connection) -> Command:
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "9"}
    return request.reply(0, None, ext, b"\x00\x00\x00\x40" + b"x" * 60)


def damaged_frame(request: Command, connection: Connection) -> None:
    connection.write(b"\x00\x00\x00\x20\x00\x00\x00\x10" + b"x" * 28)


def by_turns(request: Command, connection: Connection) -> Command | None:
    if request.opaque % 2:
        return damaged_record(request, connection)
    damaged_frame(request, connection)
    return None


def moved_to_where_it_asked(request: Command, connection: Connection) -> Command:
    ext = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "9"}
    ext["nextBeginOffset"] = request.ext["queueOffset"]
    return request.reply(ResponseCode.PULL_OFFSET_MOVED, None, ext)


def nothing_at_once(request: Command, connection: Connection) -> Command:
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "9"}
    return request.reply(ResponseCode.PULL_NOT_FOUND, None, ext)


ANSWERS = [damaged_record, damaged_frame, by_turns, moved_to_where_it_asked, nothing_at_once]


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_consumer_backs_off_from_a_broker_that_sends_damage(
    setting: World, clock: MockClock, answer: object
) -> None:
    """Without the pauses the consumer asked 225 times a second."""
    front = setting.cluster["a"]
    front.hook(RequestCode.PULL_MESSAGE, answer)  # type: ignore[arg-type]
    for number in range(4):
        front.put("T", number % QUEUES, b"%d" % number, f"UNIQ_KEY\x01ID{number}")
    async with setting.connect() as client, client.consumer("g", {"T": "*"}, consume_from="first") as taker:
        await trio.sleep(60)
        before = front.count(RequestCode.PULL_MESSAGE)
        await trio.sleep(60)
        assert front.count(RequestCode.PULL_MESSAGE) - before < 60 * 2 * (QUEUES + 1)
        front.hook(RequestCode.PULL_MESSAGE, None)
        with trio.fail_after(30):
            async with await taker.__anext__():
                pass


async def test_an_answer_that_leads_back_repeats_no_message(setting: World, clock: MockClock) -> None:
    """Its messages are in the window already; pulled twice they ended the consumer."""

    def back(request: Command, connection: Connection) -> Command:
        ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "9"}
        return request.reply(ResponseCode.PULL_RETRY_IMMEDIATELY, None, ext)

    front = setting.cluster["a"]
    for number in range(4):
        front.put("T", number % QUEUES, b"%d" % number, f"UNIQ_KEY\x01ID{number}")
    async with setting.connect() as client, client.consumer("g", {"T": "*"}, consume_from="first") as taker:
        taken = [await anext(taker) for _ in range(4)]
        front.hook(RequestCode.PULL_MESSAGE, back)
        front.put("T", 0, b"4", "UNIQ_KEY\x01ID4")
        await trio.sleep(60)
        front.hook(RequestCode.PULL_MESSAGE, None)
        await trio.sleep(60)
        front.put("T", 0, b"5", "UNIQ_KEY\x01ID5")
        with trio.fail_after(60):
            taken += [await anext(taker) for _ in range(2)]
        assert sorted(one.message.body for one in taken) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("batch", [1, 32])
async def test_a_message_with_damaged_properties_stops_no_other(
    setting: World, clock: MockClock, batch: int
) -> None:
    """Its body can be read, so it came to the handler; the log of the handler's failure ended the consumer,
    and as the first of a pull it kept the whole pull from the handlers."""
    front, seen = setting.cluster["a"], set[bytes]()

    def damage(request: Command, connection: Connection) -> Command | None:
        answer = front.answer(request, connection)
        if answer is not None and answer.code == 0:
            at = answer.body.find(b"UNIQ_KEY\x01ID2") - 1  # the end of the length
            if at >= 0:
                answer.body = answer.body[:at] + bytes([answer.body[at] ^ 1]) + answer.body[at + 1 :]
        return answer

    async def handle(message: StoredMessage) -> None:
        seen.add(message.body)
        assert message.keys is not None

    for number in range(6):
        front.put("T", 0, b"%d" % number, f"UNIQ_KEY\x01ID{number}")
    front.hook(RequestCode.PULL_MESSAGE, damage)
    async with (
        setting.connect(pull_batch_size=batch) as client,
        client.consumer("g", {"T": "*"}, consume_from="first") as taker,
    ):
        with trio.move_on_after(60):
            await taker.run(handle)
    assert seen == {b"0", b"1", b"2", b"3", b"4", b"5"}
    assert front.count(RequestCode.CONSUMER_SEND_MSG_BACK) >= 1
