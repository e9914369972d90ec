from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rmq
from rmq.client.session.routes import MISSING_MOST, BrokerHealth, Rotation, Route, RouteTable
from rmq.errors import RemoteProtocolError
from rmq.message import MessageQueue
from rmq.protocol.bodies import BrokerData, QueueData, TopicRouteData
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World

READ, WRITE = 4, 2


def queues(broker_name: str, read: int = 2, write: int = 2, perm: int = READ | WRITE) -> QueueData:
    return QueueData(broker_name=broker_name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def broker(name: str, *ids: int) -> BrokerData:
    return BrokerData("C", name, {number: f"{name}{number}:1" for number in ids or (0,)})


def names(found: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in found]


def route(*names_: str, topic: str = "T", write: int = 2) -> Route:
    data = TopicRouteData([queues(name, write=write) for name in names_], [broker(name) for name in names_])
    return Route.of(topic, data)


class TestRoute:
    def test_queues_are_sorted_by_broker_and_follow_the_permissions(self) -> None:
        data = TopicRouteData(
            [queues("b", 1, 3), queues("a", 2, 1), queues("r", perm=READ), queues("w", perm=WRITE)],
            [broker("a"), broker("b"), broker("r"), broker("w")],
        )
        got = Route.of("T", data)
        assert names(got.publish_queues) == ["a0", "b0", "b1", "b2", "w0", "w1"]
        assert names(got.subscribe_queues) == ["a0", "a1", "b0", "r0", "r1"]

    def test_a_broker_without_a_master_is_not_written_to(self) -> None:
        data = TopicRouteData([queues("a"), queues("gone")], [broker("a", 1)])
        got = Route.of("T", data)
        assert got.publish_queues == ()
        assert names(got.subscribe_queues) == ["a0", "a1", "gone0", "gone1"]

    def test_an_order_configuration_names_the_queues(self) -> None:
        data = TopicRouteData([queues("a")], [broker("a")], order_topic_conf="b:2;a:1;")
        assert names(Route.of("T", data).publish_queues) == ["b0", "b1", "a0"]

    @pytest.mark.parametrize("text", ["a", "a:x", "a:-1", "a:99999999"])
    def test_an_unreadable_order_configuration_is_the_servers_fault(self, text: str) -> None:
        with pytest.raises(RemoteProtocolError, match="order configuration"):
            Route.of("T", TopicRouteData([], [], order_topic_conf=text))

    def test_endless_queues_are_refused(self) -> None:
        with pytest.raises(RemoteProtocolError, match="more than 65536 queues on a"):
            Route.of("T", TopicRouteData([queues("a", write=1 << 30)], [broker("a")]))

    def test_a_default_route_gets_the_topics_name_and_fewer_queues(self) -> None:
        got = route("a", write=8, topic="TBW102").renamed("New", 4)
        assert [queue.topic for queue in got.publish_queues] == ["New"] * 4
        assert names(got.publish_queues) == ["a0", "a1", "a2", "a3"]


class TestRotation:
    def test_it_takes_brokers_in_turn_and_then_queues(self) -> None:
        rotation = Rotation(route("a", "b"))
        assert names(tuple(rotation.next() for _ in range(5))) == ["a0", "b0", "a1", "b1", "a0"]

    def test_it_passes_over_brokers_to_avoid(self) -> None:
        rotation = Rotation(route("a", "b"))
        assert names(tuple(rotation.next({"a"}) for _ in range(3))) == ["b0", "b1", "b0"]
        assert names((rotation.next(),)) == ["a1"]

    def test_it_avoids_none_where_it_would_have_to_avoid_all(self) -> None:
        rotation = Rotation(route("a", "b"))
        assert names(tuple(rotation.next({"a", "b"}) for _ in range(4))) == ["a0", "b0", "a1", "b1"]

    @given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any))
    def test_every_queue_has_its_turn(self, counts: list[int]) -> None:
        data = TopicRouteData(
            [queues(f"b{index}", write=count) for index, count in enumerate(counts)],
            [broker(f"b{index}") for index in range(len(counts))],
        )
        rotation = Rotation(Route.of("T", data))
        taken = [rotation.next() for _ in range(2 * sum(counts))]
        assert sorted(taken) == sorted([*rotation.route.publish_queues] * 2)


class TestHealth:
    def test_failures_in_a_row_are_avoided_longer_and_longer(self) -> None:
        health = BrokerHealth()
        waits = []
        now = 0
        for _ in range(6):
            assert health.failed("a", float(now))
            free = next(at for at in range(now + 1, now + 100) if not health.avoided(float(at)))
            waits.append(free - now)
            now = free
        assert waits == [5, 10, 20, 40, 60, 60]

    def test_what_fails_together_counts_once(self) -> None:
        health = BrokerHealth()
        assert [health.failed("a", 0.1 * number) for number in range(32)] == [True] + [False] * 31
        assert "a" not in health.avoided(5.0)
        assert health.failed("a", 5.0)
        assert "a" in health.avoided(14.9)
        assert "a" not in health.avoided(15.0)

    def test_a_slow_answer_does_not_hide_a_failure(self) -> None:
        health = BrokerHealth()
        health.succeeded("a", 9.0, 0.0)
        assert health.failed("a", 1.0)
        assert "a" not in health.avoided(6.0)

    def test_one_that_registers_anew_is_used_again(self) -> None:
        health = BrokerHealth()
        health.failed("a", 0.0)
        health.clear("a")
        assert not health.avoided(0.0)
        assert health.failed("a", 0.0)
        assert "a" not in health.avoided(5.0)

    def test_one_quick_success_forgives(self) -> None:
        health = BrokerHealth()
        health.failed("a", 0.0)
        health.failed("b", 0.0)
        health.succeeded("a", 0.01, 1.0)
        assert set(health.avoided(1.0)) == {"b"}
        health.failed("a", 1.0)
        assert "a" not in health.avoided(6.1)

    @pytest.mark.parametrize(("seconds", "avoided_s"), [(0.5, 0), (0.6, 5), (1.5, 10), (9.0, 30)])
    def test_slow_answers_are_avoided_by_how_slow_they_were(self, seconds: float, avoided_s: int) -> None:
        health = BrokerHealth()
        health.succeeded("a", seconds, 0.0)
        assert ("a" in health.avoided(avoided_s - 0.1)) is (avoided_s > 0)
        assert "a" not in health.avoided(avoided_s + 0.1)


class TestRouteTable:
    def test_it_says_what_changed(self) -> None:
        table = RouteTable()
        assert table.put(route("a"))
        assert not table.put(route("a"))
        assert table.put(route("a", "b"))

    def test_the_turn_goes_on_when_nothing_changed(self) -> None:
        table = RouteTable()
        table.put(route("a"))
        rotation = table.get("T")
        assert rotation is not None
        table.put(route("a"))
        assert table.get("T") is rotation

    def test_brokers_go_with_the_last_route_that_names_them(self) -> None:
        table = RouteTable()
        table.put(route("a", topic="T1"))
        table.put(route("a", "b", topic="T2"))
        assert table.addresses(slaves=False) == ["a0:1", "b0:1"]
        table.remove("T2")
        assert table.addresses(slaves=False) == ["a0:1"]
        assert table.master("b") is None

    def test_of_a_broker_the_route_counts_that_was_told_last(self) -> None:
        """A master has died: the routes of topics that are used are asked for at once, others much later."""

        def route_to(topic: str, master: str) -> Route:
            return Route.of(topic, TopicRouteData([queues("a")], [BrokerData("C", "a", {0: master})]))

        table = RouteTable()
        for topic in ("used", "unused", "unused too"):
            table.put(route_to(topic, "old:1"))
        assert table.put(route_to("used", "new:1"))
        assert table.master("a") == "new:1"
        assert table.put(route_to("unused", "old:1"))  # asked of a name server that has not heard of it
        assert table.master("a") == "old:1"
        assert table.put(route_to("used", "new:1"))
        assert table.master("a") == "new:1"
        assert not table.put(route_to("used", "new:1"))

    def test_topics_that_are_missing_for_long_are_forgotten_beyond_a_number(self) -> None:
        """A name server that has just started knows none of them, and soon all."""
        table = RouteTable()
        topics = [f"T{number}" for number in range(MISSING_MOST + 20)]
        for topic in topics:
            table.put(route("a", topic=topic))
        for now in (0.0, 30.0):
            for topic in topics:
                table.note_missing(topic, now)
            assert table.surplus(now) == []
        table.put(route("a", topic="T3"))
        assert table.surplus(599.0) == []
        assert table.surplus(600.0) == [*topics[:3], *topics[4:20]]
        table.note_missing("unknown", 600.0)
        assert len(table.surplus(2000.0)) == 19

    def test_slaves_are_read_from_when_asked_for(self) -> None:
        table = RouteTable()
        table.put(Route.of("T", TopicRouteData([queues("a")], [broker("a", 0, 1)])))
        assert table.reader("a") == (0, "a0:1")
        assert table.reader("a", 1) == (1, "a1:1")
        assert table.reader("a", 7) == (0, "a0:1")
        assert table.addresses(slaves=True) == ["a0:1", "a1:1"]
        assert table.addresses(slaves=False) == ["a0:1"]

    def test_a_slave_is_read_from_when_there_is_no_master(self) -> None:
        table = RouteTable()
        table.put(Route.of("T", TopicRouteData([queues("a")], [broker("a", 2)])))
        assert table.reader("a") == (2, "a2:1")
        assert table.master("a") is None
        assert table.reader("b") is None


def test_a_first_send_creates_its_topic_though_a_consumer_asked_for_it_before(
    in_memory: Play, cluster: Cluster
) -> None:
    """Both wait for one answer; but only the send may take the route of topics that brokers create."""

    async def scenario(world: World) -> None:
        async with (
            world.connect() as client,
            client.producer("p") as producer,
            anyio.create_task_group() as tasks,
        ):
            session = client._session
            assert session is not None

            async def ask() -> None:
                with pytest.raises(rmq.NoRoute):
                    await session.refresh("New")

            tasks.start_soon(ask)
            for _ in range(2):  # in the second turn it has asked
                await anyio.sleep(0)
            await producer.send_oneway(rmq.Message("New", b"x"))
            await anyio.sleep(1)
        assert [message.body for message in cluster.sent("New")] == [b"x"]

    in_memory(scenario, cluster)
