"""Delivery in 40 days, end to end: over retention, which deletes the files that the messages came to, and
over a restart."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from rmq.client.produce.producer import Producer
from rmq.message import Message, StoredMessage
from rmq.testing.cluster import Cluster

DAY = 86_400
STORE = {"delete_when": ";".join(f"{hour:02d}" for hour in range(24)), "file_reserved_time": 72}


async def a_day_passes(clock: MockClock, producer: Producer) -> None:
    """A day in one step; what was sent in it fills a third of a file of the log."""
    clock.jump(DAY - 60)
    await trio.sleep(59)
    await producer.send(Message("Noise", bytes(350_000)))
    await trio.sleep(1)


def log_files(made: Cluster) -> list[str]:
    return sorted(made.disks["a"].list("/store/commitlog"))


async def test_forty_days(clock: MockClock) -> None:
    got: dict[bytes, int] = {}

    async def note(message: StoredMessage) -> None:
        got[message.body] = made.now_ms()

    async with Cluster() as made:
        await made.start("a", store=STORE)
        config = {"send_timeout_ms": 30_000, "compress_over": 0}
        async with (
            made.connect(**config) as client,
            client.producer("p") as producer,
            client.consumer("g", {"Late": "*"}, consume_from="first") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, note)
            sent = made.now_ms()
            await producer.send(Message("Late", b"40", delay_ms=40 * DAY * 1000))
            await producer.send(Message("Late", b"20", deliver_at_ms=sent + 20 * DAY * 1000))
            recalled = await producer.send(Message("Late", b"no", delay_ms=39 * DAY * 1000))
            first = log_files(made)[0]
            for day in range(39):
                await a_day_passes(clock, producer)
                if day == 25:
                    assert first not in log_files(made), "what was sent to it has to be somewhere else"
                    assert list(got) == [b"20"]
                    await producer.recall(recalled.recall_handle or "")
                if day == 30:
                    await made.stop("a")
                    await trio.sleep(10)
                    await made.start("a", store=STORE)
                    await trio.sleep(60)
            clock.jump((sent + 40 * DAY * 1000 - made.now_ms()) / 1000 - 30)
            await trio.sleep(60)
            assert set(got) == {b"20", b"40"}
            assert 0 <= got[b"40"] - sent - 40 * DAY * 1000 < 100
            nursery.cancel_scope.cancel()
