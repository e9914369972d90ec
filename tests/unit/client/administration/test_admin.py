"""client.admin on trio and on asyncio, against two masters over real sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

import rmq
from rmq.client.admin import AclAccount, QueueProgress
from rmq.errors import ConfigError, ConsumerNotOnline, LocalProtocolError, NoRoute, QueryNotFound
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.bodies import SubscriptionGroupConfig
from rmq.protocol.codes import PERM_READ
from tests.masters import Masters, running

Scenario = Callable[[rmq.Client], Awaitable[None]]
Play = Callable[[Scenario], None]

CLUSTER = "DefaultCluster"


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Masters]:
    with running(tmp_path_factory.mktemp("masters")) as made:
        yield made


@pytest.fixture(params=["trio", "asyncio"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name(loop: str, request: pytest.FixtureRequest) -> str:
    """A topic and group of its own for each test and loop."""
    return f"{request.node.originalname}-{loop}".replace("test_", "")[:60]


@pytest.fixture
def play(masters: Masters, loop: str) -> Play:
    """Run `scenario(client)` on the loop."""

    def play(scenario: Scenario) -> None:
        async def main() -> None:
            with anyio.fail_after(20):
                async with rmq.connect(masters.namesrv) as client:
                    await scenario(client)

        anyio.run(main, backend=loop)

    return play


async def send(client: rmq.Client, topic: str, count: int, **options: Any) -> list[rmq.SendResult]:
    async with client.producer(f"{topic}-producer") as producer:
        return [
            await producer.send(rmq.Message(topic, b"%d" % number, keys=[f"k{number}"], **options))
            for number in range(count)
        ]


async def consume(client: rmq.Client, topic: str, count: int) -> None:
    """Let the group that is named like the topic consume and commit."""
    async with client.consumer(topic, {topic: "*"}, consume_from="first") as consumer:
        for _ in range(count):
            async with await anext(consumer):
                pass


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """The result of `condition` once it is true; a ResponseError counts as not yet."""
    while True:
        try:
            if found := await condition():
                return found
        except rmq.ResponseError:
            pass
        await anyio.sleep(0.05)


# --- topics ---


def test_a_topic_comes_on_all_masters_changes_and_goes(play: Play, name: str, masters: Masters) -> None:
    async def scenario(client: rmq.Client) -> None:
        admin = client.admin
        made = await admin.create_topic(name, cluster=CLUSTER, queues=3)
        assert sorted(made) == sorted([masters.first, masters.second])
        assert name in await admin.topics()
        assert name in await admin.topics(cluster=CLUSTER)
        assert await admin.topic_clusters(name) == [CLUSTER]
        assert [config.write_queue_nums for config in (await admin.topic_config(name)).values()] == [3, 3]

        before = await admin.set_topic_perm(name, PERM_READ, broker="second")
        assert [config.perm for config in before.values()] == [6]
        perms = {broker: config.perm for broker, config in (await admin.topic_config(name)).items()}
        assert perms == {"embedded": 6, "second": 4}

        await admin.delete_topic(name)
        assert not await admin.topic_exists(name)
        with pytest.raises(NoRoute, match=name):
            await admin.topic_route(name)

    play(scenario)


def test_topic_stats_have_the_ends_of_every_queue(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        await client.admin.create_topic(name, broker="embedded", queues=2)
        results = await send(client, name, 5)

        stats = await client.admin.topic_stats(name)
        assert {queue.queue_id for queue in stats} == {0, 1}
        assert sum(ends.max_offset - ends.min_offset for ends in stats.values()) == len(results)
        assert all(ends.last_update_timestamp > 0 for ends in stats.values())

    play(scenario)


def test_an_ordered_topic_notes_the_queues_of_each_broker(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        await client.admin.create_topic(name, broker="second", queues=2, order=True)
        assert await client.admin.order_conf(name) == "second:2"
        await client.admin.create_topic(name, cluster=CLUSTER, queues=4, order=True)
        assert await client.admin.order_conf(name) == "embedded:4;second:4"
        await client.admin.delete_order_conf(name)
        assert await client.admin.order_conf(name) is None

    play(scenario)


def test_users_topics_are_told_from_the_systems(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        await client.admin.create_topic(name, broker="embedded")
        mine = await client.admin.topic_configs("embedded", system=False)
        assert name in mine
        assert "TBW102" not in mine
        assert "TBW102" in await client.admin.topic_configs("embedded")
        assert "TBW102" in await client.admin.system_topics("embedded")
        assert CLUSTER in await client.admin.system_topics()

    play(scenario)


def test_names_that_nobody_knows_are_said_with_those_that_are_known(play: Play) -> None:
    async def scenario(client: rmq.Client) -> None:
        with pytest.raises(ConfigError, match="DefaultCluster"):
            await client.admin.create_topic("T", cluster="Nowhere")
        with pytest.raises(ConfigError, match="embedded"):
            await client.admin.create_topic("T", broker="nobody")
        with pytest.raises(ConfigError, match="registered broker"):
            await client.admin.broker_config("nobody")

    play(scenario)


def test_an_error_halfway_says_who_has_changed_already(
    play: Play, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(client: rmq.Client) -> None:
        addresses = await client.admin.broker_addresses()
        admin = client.admin

        async def places(**where: Any) -> list[str]:
            return [addresses[0], "127.0.0.1:9"]

        monkeypatch.setattr(admin, "broker_addresses", places)
        with pytest.raises(rmq.ConnectFailed) as caught:
            await admin.create_topic(name)
        assert caught.value.__notes__ == [f"done before that: {addresses[0]}"]

    play(scenario)


# --- groups and offsets ---


def test_a_group_comes_with_its_settings_and_goes(play: Play, name: str, masters: Masters) -> None:
    async def scenario(client: rmq.Client) -> None:
        config = SubscriptionGroupConfig(name, retry_max_times=3, consume_broadcast_enable=False)
        await client.admin.put_group(config, cluster=CLUSTER)
        assert await client.admin.group_config(name) == {masters.first: config, masters.second: config}
        assert name in await client.admin.groups()
        assert "TOOLS_CONSUMER" not in await client.admin.groups()
        assert "TOOLS_CONSUMER" in await client.admin.groups(system=True)

        await client.admin.delete_group(name)
        assert await client.admin.group_config(name) == {}

    play(scenario)


def test_progress_reset_and_skip_of_a_group_without_members(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        admin = client.admin
        await admin.create_topic(name, cluster=CLUSTER, queues=1)
        await send(client, name, 8)
        await consume(client, name, 8)

        progress = await admin.consume_stats(name)
        assert progress.lag == 0
        rows = await admin.consumer_progress(name, name)
        assert {row.message_queue.broker_name for row in rows} == {"embedded", "second"}
        assert sum(row.consumer_offset for row in rows) == 8
        assert all(row.last_timestamp > 0 for row in rows)

        done = await admin.reset_offset(name, name, 0)
        assert [one.new_offset for one in done] == [0, 0]
        assert sum(one.consumer_offset for one in done) == 8
        assert (await admin.consume_stats(name, name)).lag == 8

        kept = await admin.reset_offset(name, name, -1, force=False)  # never forward
        assert [one.new_offset for one in kept] == [0, 0]
        await admin.skip_accumulated(name, name)
        assert (await admin.consume_stats(name, name)).lag == 0

        await admin.set_offsets(name, {MessageQueue(name, "second", 0): 1})
        rows = await admin.consumer_progress(name, name)
        assert [row.consumer_offset for row in rows if row.message_queue.broker_name == "second"] == [1]
        spans = await admin.consume_time_span(name, name)
        assert {span.message_queue.broker_name for span in spans if span.message_queue} == {
            "embedded",
            "second",
        }

    play(scenario)


def test_a_group_is_reset_to_the_ms(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        await client.admin.create_topic(name, broker="embedded", queues=1)
        async with client.producer(f"{name}-producer") as producer:
            for _ in range(3):
                await producer.send_batch([rmq.Message(name, b"%d" % number) for number in range(20)])
        await consume(client, name, 60)
        async with client.pull_consumer("reader") as puller:
            (queue,) = await puller.message_queues(name)
            times = [
                message.store_timestamp
                for at in (0, 30)
                for message in (await puller.pull(queue, at, max_messages=30)).messages
            ]
        assert len(times) == 60
        for wanted in (times[20], times[40], times[59] + 1):
            (done,) = await client.admin.reset_offset(name, name, wanted)
            assert done.new_offset == next((at for at, ms in enumerate(times) if ms >= wanted), 60)

    play(scenario)


def test_a_reset_reaches_members_that_run(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        await client.admin.create_topic(name, broker="embedded", queues=1)
        await send(client, name, 2)
        await consume(client, name, 2)  # a broker resets only groups that have offsets
        await send(client, name, 1)
        async with client.consumer(name, {name: "*"}) as consumer:
            seen = []
            for number in range(4):
                async with await anext(consumer) as message:
                    seen.append(message.queue_offset)
                if number == 0:
                    await client.admin.reset_offset(name, name, 0)
            assert seen == [2, 0, 1, 2]

            with pytest.raises(ConfigError, match="without connected members"):
                await client.admin.set_offsets(name, {MessageQueue(name, "embedded", 0): 1})

    play(scenario)


def test_cloned_offsets_are_those_of_the_source(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        await client.admin.create_topic(name, broker="embedded", queues=1)
        await send(client, name, 4)
        await consume(client, name, 4)
        await client.admin.clone_offsets(name, f"{name}-b", name)

        (row,) = await client.admin.consumer_progress(f"{name}-b")
        assert (row.message_queue.topic, row.consumer_offset, row.lag) == (name, 4, 0)
        stats = await client.admin.broker_consume_stats("embedded")
        assert [one.lag for one in stats if one.group == name] == [0]

    play(scenario)


def test_a_group_that_never_consumed_is_said_so(play: Play) -> None:
    async def scenario(client: rmq.Client) -> None:
        with pytest.raises(ConsumerNotOnline, match="never-was"):
            await client.admin.consume_stats("never-was")
        with pytest.raises(ConsumerNotOnline):
            await client.admin.consumer_connection("never-was")

    play(scenario)


def test_lag_is_never_negative() -> None:
    assert QueueProgress(MessageQueue("T", "b", 0), 3, 5, 0).lag == 0


# --- members ---


def test_members_are_seen_and_answer(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        admin = client.admin
        await admin.create_topic(name, broker="embedded", queues=1)
        (result,) = await send(client, name, 1)
        handled: list[StoredMessage] = []

        async def handle(message: StoredMessage) -> None:
            handled.append(message)

        async with (
            client.producer(f"{name}-p") as producer,
            client.consumer(name, {name: "*"}, consume_from="first") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(consumer.run, handle)
            await producer.send(rmq.Message(name, b"x"))
            members = await until(lambda: admin.consumer_connection(name))
            assert [one.client_id for one in members.connection_set] == [client.client_id]
            assert set(members.subscription_table) >= {name}
            found = await until(lambda: admin.producer_connection(f"{name}-p", name))
            assert [one.language for one in found.connection_set] == ["PYTHON"]
            assert f"{name}-p" in await admin.producers("embedded")
            assert name in await admin.groups_of_topic(name)

            queue = MessageQueue(name, "embedded", 0)
            while len(handled) < 2:
                await anyio.sleep(0.01)
            info = await admin.consumer_running_info(name, client.client_id)
            assert queue in info.mq_table
            status = await admin.consumer_status(name, name)
            assert queue in status[client.client_id]

            again = await admin.consume_directly(name, client.client_id, result.message_id, name)
            assert again.consume_result == "CR_SUCCESS"
            assert [message.message_id for message in handled].count(result.message_id) == 2

            track = await until(lambda: consumed(admin, name, result.message_id))
            assert track.group == name
            tasks.cancel_scope.cancel()

    async def consumed(admin: Any, topic: str, message_id: str) -> Any:
        (track,) = await admin.message_tracks(await admin.view_message(message_id, topic))
        return track if track.state == "CONSUMED" else None

    play(scenario)


# --- brokers and name servers ---


def test_settings_and_figures_of_brokers(play: Play, masters: Masters) -> None:
    async def scenario(client: rmq.Client) -> None:
        admin = client.admin
        assert (await admin.broker_config("second"))["brokerName"] == "second"
        changed = await admin.update_broker_config({"fileReservedTime": "48"}, cluster=CLUSTER)
        assert sorted(changed) == sorted([masters.first, masters.second])
        assert (await admin.broker_config(masters.first))["fileReservedTime"] == "48"
        with pytest.raises(rmq.ResponseError, match="storePathRootDir"):
            await admin.update_broker_config({"storePathRootDir": "/elsewhere"}, broker="second")
        assert "putTps" in await admin.broker_runtime("embedded")
        (config,) = (await admin.namesrv_config()).values()
        assert config["listenPort"]
        with pytest.raises(rmq.ResponseError):
            await admin.update_namesrv_config({"kvConfigPath": "/elsewhere"})

    play(scenario)


def test_a_value_with_a_line_end_cannot_bring_a_second_setting(play: Play) -> None:
    async def scenario(client: rmq.Client) -> None:
        before = await client.admin.broker_config("embedded")
        with pytest.raises((rmq.ResponseError, ConfigError)):
            await client.admin.update_broker_config(
                {"fileReservedTime": "48\nmaxMessageSize=1"}, broker="embedded"
            )
        assert (await client.admin.broker_config("embedded"))["maxMessageSize"] == before["maxMessageSize"]

    play(scenario)


def test_values_at_the_name_servers(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        await client.admin.put_kv_config(name, "a", "1")
        await client.admin.put_kv_config(name, "b", "2")
        assert await client.admin.kv_config(name, "a") == "1"
        assert await client.admin.kv_configs(name) == {"a": "1", "b": "2"}
        await client.admin.delete_kv_config(name, "a")
        assert await client.admin.kv_config(name, "a") is None
        assert await client.admin.kv_configs(f"{name}-none") == {}

    play(scenario)


def test_write_permission_goes_and_comes_back(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        await client.admin.create_topic(name, broker="second")

        async def perms() -> set[int]:
            return {data.perm for data in (await client.admin.topic_route(name)).queue_datas}

        assert all(count > 0 for count in (await client.admin.wipe_write_perm("second")).values())
        assert await perms() == {PERM_READ}
        await client.admin.add_write_perm("second")
        assert await perms() == {6}

    play(scenario)


def test_cleaning_names_the_brokers_that_did_it(play: Play, masters: Masters) -> None:
    async def scenario(client: rmq.Client) -> None:
        both = sorted([masters.first, masters.second])
        assert sorted(await client.admin.clean_expired_queues()) == both
        assert await client.admin.delete_expired_logs(broker="second") == [masters.second]
        assert sorted(await client.admin.clean_unused_topics(cluster=CLUSTER)) == both

    play(scenario)


# --- messages ---


def test_messages_are_found_by_id_key_place_and_queue(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        admin = client.admin
        await admin.create_topic(name, broker="embedded", queues=1)
        results = await send(client, name, 3)
        one = results[1]
        assert one.offset_message_id is not None
        for found in (
            await admin.view_message(one.offset_message_id),
            await admin.view_message(one.message_id, name),
            await admin.message_at(one.message_queue, one.queue_offset),
        ):
            assert (found.body, found.message_id) == (b"1", one.message_id)
        lookup = await admin.query_message(name, "k2")
        assert [message.body for message in lookup.messages] == [b"2"]
        assert [message.broker_name for message in lookup.messages] == ["embedded"]
        assert (await admin.query_message(name, "none")).messages == []
        units = await admin.consume_queue(one.message_queue, 1, 5)
        assert units.queue_data[0].physic_offset == found_offset(one.offset_message_id)
        assert (units.min_queue_index, units.max_queue_index) == (0, 3)

        with pytest.raises(QueryNotFound, match="no message at offset 9"):
            await admin.message_at(one.message_queue, 9)
        with pytest.raises(QueryNotFound, match=name):
            await admin.view_message("0" * 31 + "X", name)
        with pytest.raises(LocalProtocolError):
            await admin.view_message("nonsense")

    play(scenario)


def found_offset(offset_message_id: str) -> int:
    return int(offset_message_id[16:], 16)


def test_a_trace_tells_of_sending_and_consuming(masters: Masters, loop: str, name: str) -> None:
    async def main() -> None:
        with anyio.fail_after(20):
            async with rmq.connect(masters.namesrv, plugins=[rmq.MessageTrace()]) as client:
                await client.admin.create_topic(name, broker="embedded", queues=1)
                (result,) = await send(client, name, 1)
                await consume(client, name, 1)
            async with rmq.connect(masters.namesrv) as client:
                trace = await client.admin.trace(result.message_id)
        kinds = [event.type.value for event in trace.events]
        assert sorted(kinds) == ["Pub", "SubAfter", "SubBefore"]
        assert trace.events[0].type.value == "Pub"

    anyio.run(main, backend=loop)


# --- reports ---


def test_rates_and_exports(play: Play, name: str) -> None:
    async def scenario(client: rmq.Client) -> None:
        admin = client.admin
        await admin.create_topic(name, cluster=CLUSTER, queues=2)
        await admin.create_group(name, cluster=CLUSTER)
        await send(client, name, 4)
        await consume(client, name, 4)
        (row,) = await admin.topic_rates(name)
        assert (row.topic, row.group, row.lag) == (name, name, 0)

        metadata = await admin.export_metadata(cluster=CLUSTER)
        assert metadata["topicConfigTable"][name]["writeQueueNums"] == 4  # of both masters
        assert metadata["subscriptionGroupTable"][name]["retryQueueNums"] == 2
        assert f"%RETRY%{name}" not in metadata["topicConfigTable"]
        special = await admin.export_metadata(cluster=CLUSTER, special_topics=True)
        assert f"%RETRY%{name}" in special["topicConfigTable"]
        configs = await admin.export_configs(CLUSTER)
        assert configs["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 2, "slaveBrokerSize": 0}
        assert set(configs["brokerConfigs"]) == {"embedded", "second"}
        metrics = await admin.export_metrics(CLUSTER)
        assert set(metrics["evaluateReport"]) == {"embedded", "second"}
        assert metrics["evaluateReport"]["embedded"]["runtimeQuota"]["topicSize"] > 0

    play(scenario)


# --- accounts ---


def test_a_broker_without_accounts_refuses_to_change_them(play: Play) -> None:
    async def scenario(client: rmq.Client) -> None:
        with pytest.raises(rmq.ResponseError):
            await client.admin.acl_put_account(AclAccount("me", "secret"), broker="embedded")

    play(scenario)


def test_an_account_shows_no_secret() -> None:
    assert "hidden" not in repr(AclAccount("me", "hidden"))


def test_admin_needs_an_open_client() -> None:
    with pytest.raises(LocalProtocolError, match="not open"):
        _ = rmq.connect("127.0.0.1:9").admin
