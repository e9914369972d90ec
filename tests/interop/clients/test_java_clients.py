"""The stock Java client, unchanged, against our name server and broker."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

import rmq
from tests.interop.conftest import Servers
from tests.interop.driver import Driver
from tests.interop.rocketmq import Process, Processes, free_port, wait_until

pytestmark = pytest.mark.interop


def messages(*consumers: Process) -> list[dict[str, Any]]:
    return [row for consumer in consumers for row in consumer.rows if "body" in row]


def assigned(consumer: Process) -> set[int]:
    """The queues that a consumer said it holds, the last time it said so."""
    sets = [row["assigned"] for row in consumer.rows if "assigned" in row]
    return set(sets[-1]) if sets else set()


def consumed(consumers: list[Process], count: int, seconds: float = 60) -> list[dict[str, Any]]:
    """Wait for `count` messages, and assert that none came twice."""
    wait_until(lambda: len(messages(*consumers)) >= count, seconds, f"{count} messages consumed")
    rows = messages(*consumers)
    repeated = [body for body, times in Counter(row["body"] for row in rows).items() if times > 1]
    assert (len(rows), repeated) == (count, [])
    return rows


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    ("mode", "size"), [("sync", 0), ("async", 0), ("oneway", 0), ("batch", 0), ("sync", 20_000)]
)
def test_what_a_java_producer_sends_a_java_consumer_gets_once(
    processes: Processes, servers: Servers, mode: str, size: int
) -> None:
    count = 200
    sent = processes.program("Produce", servers.namesrv, "Kinds", mode, str(count), "m", str(size)).finish()
    consumer = processes.program("Consume", servers.namesrv, "Kinds", "kinds")

    rows = consumed([consumer], count)

    by_body = {row["body"]: row for row in rows}
    assert set(by_body) == {f"m-{i}" for i in range(count)}
    for i in range(count):
        row = by_body[f"m-{i}"]
        assert (row["keys"], row["tags"], row["broker"]) == (f"m-{i}", f"T{i % 3}", "interop-a")
        assert row["size"] == max(size, len(f"m-{i}"))
    for answer in sent:
        row = by_body[answer["sent"]]
        assert answer["status"] == "SEND_OK"
        assert (answer["queue"], answer["offset"]) == (row["queue"], row["offset"])
        assert answer["id"].split(",")[0] == row["id"]


@pytest.mark.usefixtures("broker")
def test_a_tag_subscription_gets_its_tags_only(processes: Processes, servers: Servers) -> None:
    processes.program("Produce", servers.namesrv, "Tags", "sync", "90", "m").finish()

    consumer = processes.program("Consume", servers.namesrv, "Tags", "tags", "T0 || T2")

    rows = consumed([consumer], 60)
    assert {row["tags"] for row in rows} == {"T0", "T2"}


@pytest.mark.usefixtures("broker")
def test_two_consumers_share_the_queues_and_one_takes_over(processes: Processes, servers: Servers) -> None:
    namesrv = servers.namesrv
    processes.make_topic(namesrv, "Shared")
    consumers = [processes.program("Consume", namesrv, "Shared", "shared") for _ in range(2)]
    wait_until(lambda: [len(assigned(one)) for one in consumers] == [2, 2], 30, "two queues each")
    assert assigned(consumers[0]) | assigned(consumers[1]) == {0, 1, 2, 3}

    processes.program("Produce", namesrv, "Shared", "async", "400", "first").finish()
    consumed(consumers, 400)
    for consumer in consumers:
        assert {row["queue"] for row in messages(consumer)} == assigned(consumer)

    consumers[1].close_input()  # hands its offsets in and leaves
    wait_until(lambda: assigned(consumers[0]) == {0, 1, 2, 3}, 30, "the other takes over")
    processes.program("Produce", namesrv, "Shared", "sync", "40", "second").finish()
    rows = consumed(consumers, 440)
    assert {row["body"] for row in rows if row["body"].startswith("second")} == {
        f"second-{i}" for i in range(40)
    }
    assert not [row for row in messages(consumers[1]) if row["body"].startswith("second")]


@pytest.mark.usefixtures("broker")
def test_a_killed_consumer_is_replaced_and_nothing_is_lost(processes: Processes, servers: Servers) -> None:
    namesrv = servers.namesrv
    processes.make_topic(namesrv, "Killed")
    consumers = [processes.program("Consume", namesrv, "Killed", "killed") for _ in range(2)]
    wait_until(lambda: [len(assigned(one)) for one in consumers] == [2, 2], 40, "two queues each")
    processes.program("Produce", namesrv, "Killed", "sync", "8", "first").finish()
    wait_until(lambda: len(messages(*consumers)) >= 8, 30, "first messages")

    consumers[1].kill()
    wait_until(lambda: assigned(consumers[0]) == {0, 1, 2, 3}, 30, "the other takes over")
    processes.program("Produce", namesrv, "Killed", "sync", "40", "second").finish()

    wanted = {f"second-{i}" for i in range(40)}
    wait_until(lambda: wanted <= {row["body"] for row in messages(consumers[0])}, 30, "all of the second")


def test_offsets_outlive_consumer_and_broker(
    processes: Processes, servers: Servers, broker: Process, tmp_path: Any
) -> None:
    processes.program("Produce", servers.namesrv, "Stays", "sync", "40", "first").finish()
    consumer = processes.program("Consume", servers.namesrv, "Stays", "stays")
    consumed([consumer], 40)
    consumer.close_input()
    assert broker.stop() in (0, 143)  # a JVM reports the signal

    servers.broker(tmp_path / "store")
    processes.program("Produce", servers.namesrv, "Stays", "sync", "20", "second").finish()
    again = processes.program("Consume", servers.namesrv, "Stays", "stays")

    rows = consumed([again], 20)
    assert {row["body"] for row in rows} == {f"second-{i}" for i in range(20)}


async def test_consumers_pull_from_all_queues_again_soon_after_each_restart(
    processes: Processes, servers: Servers, tmp_path: Any
) -> None:
    """One that writes as its connection breaks does not see that, and leaves what waits there for 30 s."""
    if servers.kind == "java":
        pytest.skip("they wait for 30 s where a Java broker has ended")
    port, store, groups, queues = str(free_port()), tmp_path / "store", 8, 64
    running = servers.broker(store, listenPort=port)
    async with rmq.connect(servers.namesrv) as client:
        await client.admin.create_topic("Wide", queues=queues)
        driver = Driver(processes, servers.namesrv)
        for number in range(groups):
            driver.do("gather", group=f"wide-{number}", topic="Wide", beat=5000)
        wanted = groups * (queues + 1)  # each of a group's retry topic, too

        async def all_wait(seconds: float) -> None:
            held = ""
            with trio.move_on_after(seconds):
                while held != str(wanted):
                    await trio.sleep(0.1)
                    held = (await client.admin.broker_runtime(f"127.0.0.1:{port}"))["heldPulls"]
                return
            raise AssertionError(f"{held} of {wanted} pulls wait")

        await all_wait(60)
        for _ in range(12):
            assert running.stop() == 0
            running = servers.broker(store, listenPort=port)
            await all_wait(25)


@pytest.mark.parametrize("count", [10, 150])
async def test_a_member_gets_all_of_a_topic_that_is_deleted_and_made_again(
    processes: Processes, servers: Servers, broker: Process, count: int
) -> None:
    """At RocketMQ's brokers it goes on where the first topic was, and misses as many as it had read."""
    if servers.kind == "java":
        pytest.skip("theirs skip them")
    processes.program("Produce", servers.namesrv, "Again", "sync", "100", "old").finish()
    consumer = processes.program("Consume", servers.namesrv, "Again", "again")
    consumed([consumer], 100)
    async with rmq.connect(servers.namesrv) as client:
        await trio.sleep(6)  # its offsets are committed
        await client.admin.delete_topic("Again", broker="interop-a")
        await client.admin.create_topic("Again", queues=4)
        async with client.producer("again") as producer:
            for number in range(count):
                await producer.send(rmq.Message("Again", b"new-%d" % number))

    wanted = {f"new-{number}" for number in range(count)}
    wait_until(lambda: wanted <= {row["body"] for row in messages(consumer)}, 90, "all of the new topic")
