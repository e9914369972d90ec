"""Progress in tables must not survive its messages in a power cut: the log is synced before the tables.

A broker at durability=disk runs in mock time, and at each sync and change of its disk images are
made: what a power cut at that moment may leave.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import EndTransactionRequestHeader, UpdateConsumerOffsetRequestHeader
from rmq.store.config import FlushDiskType
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

from ..rig import Rig, send
from ..runtime.serving import broker

DISK = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "flush_interval_commit_log": 600_000}
HALF = "UNIQ_KEY\x01AC7\x02TRAN_MSG\x01true\x02PGROUP\x01producers"
LATER_MS = 1_700_000_000_000 + 86_400_000


async def images_of(properties: str, *, then: Command | None = None, seconds: int = 12) -> list[MemoryDisk]:
    """The images that power cuts may leave between the acknowledgement of a message and the save of the
    tables."""
    disk, images = MemoryDisk(1), list[MemoryDisk]()

    def keep(path: str = "") -> None:
        images.extend(disk.image(len(images) + number) for number in range(max(3, 120 // seconds)))

    async with broker(MemoryNetwork(), disk, DISK) as running:
        assert (await running.ask(send(properties=properties))).code == 0
        disk.on_change, disk.on_sync = keep, keep
        if then is not None:
            assert (await running.ask(then)).code == 0
        await trio.sleep(seconds)
        disk.on_change = disk.on_sync = None
    assert len(images) > 20
    return images


def after_start(image: MemoryDisk) -> Rig:
    rig = Rig(disk=image, store=DISK)
    rig.now_ms = LATER_MS
    for _ in range(3):
        rig.broker.steps.schedule()
    return rig


@pytest.mark.parametrize("when", ["DELAY\x011", "TIMER_DELAY_MS\x011000"])
async def test_a_message_that_was_delivered_late_is_there(autojump_clock: Any, when: str) -> None:
    for image in await images_of(f"UNIQ_KEY\x01AC\x02{when}"):
        assert b"hello" in after_start(image).bodies("Orders")


async def test_a_committed_message_is_there_or_asked_for_again(autojump_clock: Any) -> None:
    end = EndTransactionRequestHeader("producers", 0, 0, 8, msg_id="AC7")
    commit = Command.request(RequestCode.END_TRANSACTION, end)
    for image in await images_of(HALF, then=commit, seconds=70):
        rig = after_start(image)
        assert rig.bodies("Orders") == [b"hello"] or rig.broker.transactions.open_count == 1


async def test_nobody_has_consumed_what_is_not_there(autojump_clock: Any) -> None:
    """A lost message would be passed over, and so would the message that gets its place."""
    header = UpdateConsumerOffsetRequestHeader("readers", "Orders", 0, 1)
    commit = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    for image in await images_of("UNIQ_KEY\x01AC\x02WAIT\x01false", then=commit):
        rig = after_start(image)
        assert max(rig.broker.offsets.get("readers", "Orders", 0), 0) <= rig.store.max_offset("Orders", 0)
