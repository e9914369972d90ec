"""Moving topics, and draining brokers, until nobody needs what is left there; on a virtual clock."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

import rmq
from rmq.errors import ConfigError
from rmq.message import Message, MessageQueue, StoredMessage
from rmq.operate.balance import BalancePlan, PlannedMove, balance
from rmq.operate.placement import EVEN, STILL_SECONDS, Move, NotMoved, emptied, message_counts, moved, planned
from rmq.testing.cluster import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster("a", "b") as made:
        made["a"].create_topic("Orders", 3)
        made["a"].configure_group("billing", consume_enable=True, retry_max_times=5)
        await made.advance(1)
        yield made


async def test_no_message_is_lost_or_held_up_by_a_move(cluster: Cluster, autojump_clock: MockClock) -> None:
    sent: set[bytes] = set()
    got: Counter[bytes] = Counter()
    slowest = 0.0
    is_over = False

    async def handle(message: StoredMessage) -> None:
        await trio.sleep(0.2)
        got[message.body] += 1

    async def send_on(producer: rmq.Producer) -> None:
        nonlocal slowest
        while not is_over:
            body = b"%d" % len(sent)
            began = trio.current_time()
            await producer.send(Message("Orders", body))
            slowest = max(slowest, trio.current_time() - began)
            sent.add(body)
            await trio.sleep(0.5)

    async with (
        cluster.connect(poll_name_server_interval_ms=30_000) as client,
        client.producer("p") as producer,
        client.consumer("billing", {"Orders": "*"}, consume_from="first") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, handle)
        nursery.start_soon(send_on, producer)
        await trio.sleep(5)
        said = await moved(client.admin, "Orders", "a", "b", 600, delete=False)
        assert "is at b" in said
        assert "`rmq topic delete Orders -b a` deletes it there" in said
        assert len(cluster["a"].messages("Orders")) + len(cluster["b"].messages("Orders")) == len(sent)
        assert {one.queue_id for one in cluster["b"].messages("Orders")} == {0, 1, 2}
        assert (await client.admin.group_configs("b"))["billing"].retry_max_times == 5
        assert "deleted at a" in await moved(client.admin, "Orders", "a", "b", 600, delete=True)
        assert cluster["a"].messages("Orders") == []
        await trio.sleep(40)
        is_over = True
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert len(sent) > 150
    assert set(got) == sent
    assert slowest < 1


async def test_a_move_waits_for_a_group_that_is_behind_and_goes_on_later(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    for number in range(5):
        cluster["a"].put("Orders", 0, b"%d" % number)
    cluster["a"].commit("billing", "Orders", 0, 2)
    async with cluster.connect() as client:
        with pytest.raises(NotMoved, match="a is still needed: group billing has 3 messages left"):
            await moved(client.admin, "Orders", "a", "b", 60, delete=True)
        assert len(cluster["a"].messages("Orders")) == 5
        cluster["a"].put("Orders", 0, b"late")  # of a producer that has the old route
        with pytest.raises(NotMoved, match="group billing has 4 messages left"):
            await moved(client.admin, "Orders", "a", "b", 60, delete=True)
        cluster["a"].commit("billing", "Orders", 0, 6)
        began = trio.current_time()
        await moved(client.admin, "Orders", "a", "b", 60, delete=True)
        assert STILL_SECONDS <= trio.current_time() - began < STILL_SECONDS + 3
        assert set(await client.admin.topic_config("Orders")) == {"b"}
        # and back again
        await moved(client.admin, "Orders", "b", "a", 0, delete=False)
        await moved(client.admin, "Orders", "a", "b", 0, delete=False)
        assert {name: one.perm for name, one in (await client.admin.topic_config("Orders")).items()} == {
            "a": 4,
            "b": 6,
        }


@pytest.mark.parametrize(
    ("source", "goal", "said"),
    [
        ("b", "a", "topic Orders is not on b, but on a"),
        ("a", "c", "cannot move to c: other masters are b"),
        ("a", "a", "cannot move to a: other masters are b"),
    ],
)
async def test_impossible_moves_change_nothing(
    cluster: Cluster,
    autojump_clock: MockClock,
    source: str,
    goal: str,
    said: str,
) -> None:
    async with cluster.connect() as client:
        with pytest.raises(NotMoved, match=said):
            await moved(client.admin, "Orders", source, goal, 60, delete=False)
        assert {name: one.perm for name, one in (await client.admin.topic_config("Orders")).items()} == {
            "a": 6
        }


async def test_the_queues_of_an_ordered_topic_are_noted_anew(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    async with cluster.connect() as client:
        await client.admin.create_topic("Steps", broker="a", queues=2, order=True)
        assert await client.admin.order_conf("Steps") == "a:2"
        await moved(client.admin, "Steps", "a", "b", 0, delete=False)
        assert await client.admin.order_conf("Steps") == "b:2"
        await cluster.advance(31)
        async with client.producer("p") as producer:
            result = await producer.send(Message("Steps", b"x"), sharding_key="one")
        assert result.message_queue.broker_name == "b"


async def test_a_drained_broker_is_empty_when_the_wait_ends(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    """The wait is that of `rmq broker drain`: for the last message, and for each group."""
    cluster["a"].put("Orders", 0, b"x")
    cluster["a"].commit("billing", "Orders", 0, 0)
    lines: list[str] = []
    async with cluster.connect() as client, client.producer("p") as producer:
        assert "group billing has 1 message left" in await emptied(client.admin, "a", "", 5)
        async with trio.open_nursery() as nursery:

            async def later() -> None:
                await trio.sleep(20)
                await producer.send(Message("Orders", b"y"), queue=MessageQueue("Orders", "a", 0))
                cluster["a"].commit("billing", "Orders", 0, 1)
                await trio.sleep(20)
                cluster["a"].commit("billing", "Orders", 0, 2)

            nursery.start_soon(later)
            began = trio.current_time()
            assert await emptied(client.admin, "a", "", 600, lines.append) == ""
            assert 20 + STILL_SECONDS <= trio.current_time() - began < 20 + STILL_SECONDS + 3
    told = [line for line in lines if "no message may arrive for 31 s" in line]
    assert 0 < len(told) < 6, "a line for what changes, not for each look"


class TestPlans:
    def test_the_fullest_gives_to_the_emptiest(self) -> None:
        counts = {"a": {"big": 500, "mid": 300, "small": 200}, "b": {"tiny": 100}, "c": {}}
        moves = planned(counts)
        held = {broker: dict(topics) for broker, topics in counts.items()}
        for one in moves:
            held[one.goal][one.topic] = held[one.source].pop(one.topic)
        totals = Counter({broker: sum(topics.values()) for broker, topics in held.items()})
        assert moves[0] == Move("big", "a", "c", 500)
        assert max(totals.values()) == 500, "no topic is cut in two"
        assert sorted(totals.values()) == [300, 300, 500]

    def test_even_brokers_stay(self) -> None:
        assert planned({"a": {"x": 100}, "b": {"y": 95}}) == []
        assert planned({"a": {"x": 100}}) == []
        assert planned({"a": {}, "b": {}}) == []

    def test_a_topic_that_is_on_both_cannot_move(self) -> None:
        assert planned({"a": {"x": 100}, "b": {"x": 5}}) == []

    def test_plans_end_and_never_make_it_worse(self) -> None:
        from random import Random

        chance = Random(7)
        for _ in range(200):
            counts = {
                broker: {f"{broker}{n}": chance.randrange(1000) for n in range(chance.randrange(9))}
                for broker in "abcd"
            }
            totals = Counter({broker: sum(topics.values()) for broker, topics in counts.items()})
            before = max(totals.values())
            moves = planned(counts)
            for one in moves:
                totals[one.source] -= one.messages
                totals[one.goal] += one.messages
            assert max(totals.values()) <= before
            assert len(moves) < 40
            mean = sum(totals.values()) / 4
            assert not moves or max(totals.values()) < before or before <= EVEN * mean


async def test_nothing_of_an_ordered_topic_is_delivered_before_what_is_older(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    """A slow group of one key after the other; the move is called anew in the middle."""
    got: list[bytes] = []
    count = 0
    is_over = False

    async def handle(message: StoredMessage) -> None:
        await trio.sleep(0.4)
        got.append(message.body)

    async def send_on(producer: rmq.Producer) -> None:
        nonlocal count
        while not is_over:
            await producer.send(Message("Steps", b"%d" % count), sharding_key="one")
            count += 1
            await trio.sleep(0.5)

    async with (
        cluster.connect(poll_name_server_interval_ms=30_000, rebalance_interval_ms=20_000) as client,
        client.producer("p") as producer,
        trio.open_nursery() as nursery,
    ):
        await client.admin.create_topic("Steps", broker="a", queues=4, order=True)
        async with client.consumer("steps", {"Steps": "*"}, ordered=True) as consumer:
            nursery.start_soon(consumer.run, handle)
            nursery.start_soon(send_on, producer)
            await trio.sleep(10)
            with pytest.raises(NotMoved, match="a is still needed"):
                await moved(client.admin, "Steps", "a", "b", 35, delete=False)
            perms = {name: one.perm for name, one in (await client.admin.topic_config("Steps")).items()}
            assert perms == {"a": 4, "b": 2}
            ends = await client.admin.topic_stats("Steps")
            assert sum(one.max_offset for queue, one in ends.items() if queue.broker_name == "b") > 5
            await moved(client.admin, "Steps", "a", "b", 600, delete=True)
            assert {name: one.perm for name, one in (await client.admin.topic_config("Steps")).items()} == {
                "b": 6
            }
            is_over = True
            await trio.sleep(100)
            nursery.cancel_scope.cancel()
    assert count > 100
    assert got == [b"%d" % number for number in range(count)]


async def test_a_balance_that_ends_in_the_middle_goes_on_by_its_file(
    cluster: Cluster, autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    for name in ("One", "Two", "Three"):
        cluster["a"].create_topic(name, 1)
        for number in range(10):
            cluster["a"].put(name, 0, b"%d" % number)
    await cluster.advance(1)
    file = tmp_path / "balance.json"
    async with cluster.connect() as client:
        plan = BalancePlan.of(file, planned(await message_counts(client.admin)))
        assert [(one.source, one.goal, one.messages) for one in plan.moves] == [("a", "b", 10)]
        plan.moves.append(PlannedMove("Two", "a", "b", 10))
        with trio.move_on_after(STILL_SECONDS - 10):
            await balance(client.admin, plan, 600, parallel=1)
        again = BalancePlan.load(file)
        assert again is not None
        assert [one.state for one in again.moves] == ["moving", "planned"]
        lines: list[str] = []
        assert await balance(client.admin, again, 600, delete=True, parallel=1, report=lines.append) == []
        assert [one.state for one in BalancePlan.load(file).moves] == ["done", "done"]  # type: ignore[union-attr]
        assert any("Two: from a to b" in line for line in lines)
        where = {name: set(await client.admin.topic_config(name)) for name in ("One", "Two", "Three")}
        assert sorted(map(sorted, where.values())) == [["a"], ["b"], ["b"]]


async def test_a_move_that_cannot_be_done_is_left_with_its_reason(
    cluster: Cluster, autojump_clock: MockClock, tmp_path: pathlib.Path
) -> None:
    plan = BalancePlan(
        tmp_path / "b.json", [PlannedMove("Gone", "a", "b", 1), PlannedMove("Orders", "a", "b", 0)]
    )
    async with cluster.connect() as client:
        (left,) = await balance(client.admin, plan, 60)
    assert left.topic == "Gone"
    assert "Gone" in left.note
    assert plan.moves[1].state == "done"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 2, "moves": []}', '{"version": 1, "moves": [{"topic": 1}]}']
)
def test_a_file_that_is_no_state_of_a_balance_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    file = tmp_path / "b.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="remove the file to plan again"):
        BalancePlan.load(file)
