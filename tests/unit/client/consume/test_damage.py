"""A broker that sends damage: consumers ask it ever less often, and go on when it is well again."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

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
