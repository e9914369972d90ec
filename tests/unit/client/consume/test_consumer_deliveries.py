"""Deliveries of a consumer: their ends, offsets, pulls, and questions about them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rmq.client.consume.deliveries.delivery import Delivery
from rmq.errors import LocalProtocolError
from rmq.message import MessageQueue, StoredMessage
from rmq.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo, ResetOffsetBody
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import QueryConsumerOffsetRequestHeader
from rmq.protocol.record import Record, encode_record, host_bytes
from rmq.remoting.connection import Connection
from rmq.store.config import BrokerRole
from rmq.testing.cluster import Cluster
from rmq.testing.front import CUT, HANG

from ..world import World, world
from .consuming import BACK, COMMIT, fill, offsets, sent_back, take

PULL = RequestCode.PULL_MESSAGE


QUERY = RequestCode.QUERY_CONSUMER_OFFSET


class TestDeliveries:
    async def test_messages_of_other_tags_with_the_same_hash_are_dropped(
        self, setting: World, clock: MockClock
    ) -> None:
        for tag in ("AaAa", "BBBB"):
            setting.cluster["a"].put("T", 0, tag.encode(), f"TAGS\x01{tag}")
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "BBBB"}, consume_from="first") as consumer,
        ):
            assert await take(consumer, 1) == [b"BBBB"]
        assert offsets(setting.cluster)[0] == 2

    async def test_raise_sends_back_and_lets_the_error_out(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 1)

        async def fail(message: StoredMessage) -> None:
            raise ZeroDivisionError

        async with setting.connect() as client:
            options = {"consume_from": "first", "on_error": "raise"}
            async with client.consumer("g", {"T": "*"}, **options) as consumer:
                with pytest.raises(ZeroDivisionError):
                    await consumer.run(fail)
            assert sent_back(setting.cluster)
            async with client.consumer("g3", {"T": "*"}, **options) as consumer:
                with pytest.raises(ZeroDivisionError):
                    async with await anext(consumer):
                        raise ZeroDivisionError
        assert sent_back(setting.cluster)[-1].group == "g3"

    async def test_what_cannot_be_sent_back_is_delivered_again_here(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 1)
        setting.cluster["a"].script(BACK, ResponseCode.SYSTEM_ERROR)
        times = []

        async def handle(message: StoredMessage) -> None:
            times.append((trio.current_time(), message.reconsume_times))
            if len(times) == 1:
                raise ValueError
            scope.cancel()

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.CancelScope() as scope:
                await consumer.run(handle)
        (first, zero), (second, one) = times
        assert second - first == pytest.approx(5)
        assert (zero, one) == (0, 1)
        assert offsets(setting.cluster)[0] == 1

    async def test_a_cancelled_delivery_is_not_consumed_and_comes_again(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 2, queues=1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(1):
                async with await anext(consumer) as message:
                    assert message.body == b"0"
                    await trio.sleep_forever()
            assert await take(consumer, 1) == [b"1"]
            await trio.sleep(5)  # the second message is done, the first is not
            assert offsets(setting.cluster)[0] == 0
            assert await take(consumer, 1) == [b"0"]
        assert offsets(setting.cluster)[0] == 2

    async def test_cancelled_handlers_commit_nothing(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 10, queues=1)

        async def handle(message: StoredMessage) -> None:
            if message.body != b"0":
                await trio.sleep_forever()

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(1):
                await consumer.run(handle, concurrency=3)
        assert offsets(setting.cluster)[0] == 1

    async def test_a_batch_cancelled_while_it_is_sent_back_comes_again(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 10, queues=1)
        setting.cluster["a"].script(BACK, 0, 0, HANG)

        async def handle(messages: list[StoredMessage]) -> None:
            assert len(messages) == 10
            raise ValueError("the whole batch fails")

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(1):
                await consumer.run_batches(handle)
            with trio.fail_after(10):
                again = await take(consumer, 8)  # all but the two that the broker took
            assert again == [b"%d" % number for number in range(2, 10)]
        assert offsets(setting.cluster)[0] == 10

    async def test_a_batch_whose_handler_is_cancelled_comes_again(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 5, queues=1)

        async def handle(messages: list[StoredMessage]) -> None:
            await trio.sleep_forever()

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(1):
                await consumer.run_batches(handle)
            with trio.fail_after(10):
                assert await take(consumer, 5) == [b"%d" % number for number in range(5)]
        assert offsets(setting.cluster)[0] == 5

    async def test_what_was_sent_back_for_being_late_is_not_put_off_too(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 2, queues=1)
        setting.cluster["a"].script(BACK, 0, 0)  # answered, and never delivered again

        async def handle(messages: list[StoredMessage]) -> None:
            await trio.sleep_forever()

        async with (
            setting.connect(consume_timeout_ms=60_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(90):
                await consumer.run_batches(handle)
            assert setting.cluster["a"].count(BACK) == 2
            with trio.move_on_after(60):
                raise AssertionError(f"delivered here too: {await take(consumer, 1)}")
        assert offsets(setting.cluster)[0] == 2

    async def test_what_ends_while_another_late_message_is_sent_back_is_not_sent_back(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 2, queues=1)
        setting.cluster["a"].script(BACK, HANG)  # the first takes until its time-out

        async def handle(message: StoredMessage) -> None:
            await trio.sleep(65)

        async with (
            setting.connect(consume_timeout_ms=60_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(90):
                await consumer.run(handle)
        assert setting.cluster["a"].count(BACK) == 1
        assert offsets(setting.cluster)[0] == 2

    async def test_late_messages_of_a_broker_that_hangs_keep_none_of_another_from_a_retry(
        self, clock: MockClock
    ) -> None:
        """They were sent back one after another, each with a time-out of its own: no other message was looked
        at for that long."""
        async with world(Cluster("a", "b", topics={"T": 1})) as made:
            for broker in "ab":
                fill(made.cluster, 40, queues=1, broker=broker)
            made.cluster["a"].hook(BACK, HANG)

            async def handle(message: StoredMessage) -> None:
                await trio.sleep_forever()

            async with (
                made.connect(consume_timeout_ms=60_000) as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            ):
                with trio.move_on_after(70):
                    await consumer.run(handle, concurrency=80)
                assert made.cluster["b"].count(BACK) == 40
                assert made.cluster["a"].count(BACK) <= 3, "one for each look"
                made.cluster["a"].hook(BACK, None)
                with trio.move_on_after(70):
                    await consumer.run(handle, concurrency=80)
            assert offsets(made.cluster, broker="b")[0] == 40

    async def test_late_messages_that_a_broker_did_not_take_are_sent_back_at_the_next_look(
        self, setting: World, clock: MockClock
    ) -> None:
        """They were forgotten, and stayed with their handlers."""
        fill(setting.cluster, 20, queues=1)
        setting.cluster["a"].script(BACK, HANG)

        async def handle(message: StoredMessage) -> None:
            await trio.sleep_forever()

        async with (
            setting.connect(consume_timeout_ms=60_000) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(80):
                await consumer.run(handle, concurrency=20)
            assert setting.cluster["a"].count(BACK) == 21
        assert offsets(setting.cluster)[0] == 20

    async def test_a_failed_batch_costs_one_time_out_of_a_broker_that_hangs(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 20, queues=1)
        setting.cluster["a"].hook(BACK, HANG)
        ends: list[float] = []

        async def handle(messages: list[StoredMessage]) -> None:
            ends.append(trio.current_time())
            raise ValueError("no")

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.move_on_after(20):
                await consumer.run_batches(handle)
        assert setting.cluster["a"].count(BACK) <= len(ends)
        assert len(ends) > 1, "the messages are redelivered here"

    async def test_the_verbs_of_a_delivery(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 4, queues=1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            done, retried, dead, used = [await anext(consumer) for _ in range(4)]
            assert isinstance(done, Delivery)
            assert done.message.body == b"0"
            done.done()
            done.done()
            await retried.retry(delay_level=3)
            await dead.retry(delay_level=-1)
            async with used:
                await used.retry()
                raise ValueError("after the fact: the message is on its way already")
        assert [header.delay_level for header in sent_back(setting.cluster)] == [3, -1, 0]
        assert offsets(setting.cluster)[0] == 4

    async def test_a_delivery_is_consumed_once(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            delivery = await anext(consumer)
            async with delivery:
                pass
            with pytest.raises(LocalProtocolError, match="enter each delivery once"):
                async with delivery:
                    pass

    async def test_handlers_that_never_wait_let_others_run(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 1500)
        rounds, done = 0, 0

        async def handle(message: StoredMessage) -> None:
            nonlocal done
            done += 1
            if done == 1500:
                scope.cancel()

        async def count() -> None:
            nonlocal rounds
            while True:
                await trio.lowlevel.checkpoint()
                rounds += 1

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(count)
            with trio.CancelScope() as scope:
                await consumer.run(handle, concurrency=1)
            nursery.cancel_scope.cancel()
        assert rounds >= 20


class TestOffsets:
    async def test_a_new_group_asks_a_broker_that_hangs_once_for_its_offsets(self, clock: MockClock) -> None:
        """It asked once for each queue, and again for each queue that it began: 8 * 8 time-outs."""
        async with world(Cluster("a", "b", topics={"T": 8})) as made:
            made.cluster["a"].hook(QUERY, HANG)
            made.cluster["b"].hook(QUERY, ResponseCode.QUERY_NOT_FOUND)  # as of queues that are not young
            async with made.connect() as client:
                began = trio.current_time()
                async with client.consumer("g", {"T": "*"}) as consumer:
                    assert trio.current_time() - began < 10
                    assert all(queue.topic != "T" for queue in consumer.queues)
                    assert made.cluster["a"].count(QUERY) <= 8 + 2, "for each queue's own offset, and once"
                    made.cluster["a"].hook(QUERY, None)
                    await trio.sleep(60)
                    assert sum(queue.topic == "T" for queue in consumer.queues) == 16

    async def test_a_group_with_an_offset_reads_new_queues_from_the_start(self, clock: MockClock) -> None:
        async with world(Cluster("a", "b", topics={"T": 2})) as made:

            def only_in_one(request: Command, connection: Connection) -> Command:
                queue_id = request.read(QueryConsumerOffsetRequestHeader).queue_id
                if queue_id == 0:
                    return request.reply(ResponseCode.QUERY_NOT_FOUND)
                return request.reply(0, None, {"offset": "3"})

            made.cluster["a"].hook(QUERY, ResponseCode.QUERY_NOT_FOUND)
            made.cluster["b"].hook(QUERY, only_in_one)
            for broker in "ab":
                fill(made.cluster, 8, broker=broker)
            async with made.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
                with trio.fail_after(60):
                    assert len(await take(consumer, 13)) == 13, "3 of queue 1 of b were consumed"

    async def test_offsets_are_committed_every_5_s(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            fill(setting.cluster, 3, queues=1)
            await take(consumer, 3)
            setting.cluster["a"].commit("g", "T", 0, 0)
            await trio.sleep(5.1)
            assert offsets(setting.cluster)[0] == 3
            before = setting.cluster["a"].count(COMMIT)
            await trio.sleep(60)
            assert setting.cluster["a"].count(COMMIT) == before  # nothing new, nothing said

    async def test_a_commit_that_fails_is_made_up_for(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            fill(setting.cluster, 3, queues=1)
            await take(consumer, 3)
            setting.cluster["a"].commit("g", "T", 0, 0)
            setting.cluster["a"].script(COMMIT, ResponseCode.SYSTEM_ERROR, CUT)
            await trio.sleep(16)
            assert offsets(setting.cluster)[0] == 3

    async def test_a_queue_that_goes_while_others_are_committed_is_not(
        self, setting: World, clock: MockClock
    ) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            fill(setting.cluster, 4)
            await take(consumer, 4)
            windows = {queue: puller.window for queue, puller in consumer._member.assignments.pullers.items()}

            def lose_the_others(request: Command, connection: Connection) -> Command | None:
                told = MessageQueue(request.ext["topic"], "a", int(request.ext["queueId"]))
                for queue, window in windows.items():
                    window.is_dropped = queue != told
                return setting.cluster["a"].answer(request, connection)

            setting.cluster["a"].script(COMMIT, lose_the_others)
            await trio.sleep(6)
            assert setting.cluster["a"].count(COMMIT) == 1

    async def test_pulls_carry_the_offset_along(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            fill(setting.cluster, 3, queues=1)
            await take(consumer, 3)
            setting.cluster["a"].put("T", 0, b"x")
            await trio.sleep(0.1)
            assert offsets(setting.cluster)[0] == 3

    async def test_an_administrator_resets_offsets(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 6, queues=1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            await take(consumer, 6)
            body = ResetOffsetBody({MessageQueue("T", "a", 0): 4, MessageQueue("T", "z", 9): 1})
            await ask(
                setting, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, topic="T", group="g", body=body.to_json()
            )
            await trio.sleep(0.1)
            assert offsets(setting.cluster)[0] == 4
            assert await take(consumer, 2) == [b"4", b"5"]

    async def test_the_broker_corrects_an_offset_that_is_not_there(
        self, setting: World, clock: MockClock
    ) -> None:
        fill(setting.cluster, 6, queues=1)
        """The queue never reached it: it is of a topic of this name that was deleted."""
        setting.cluster["a"].hook(QUERY, lambda request, _: request.reply(header={"offset": "1000"}))
        async with setting.connect() as client, client.consumer("g", {"T": "*"}) as consumer:
            await trio.sleep(0.1)
            setting.cluster["a"].put("T", 0, b"next")
            assert await take(consumer, 7) == [*(b"%d" % number for number in range(6)), b"next"]
        assert offsets(setting.cluster)[0] == 7


class TestPulling:
    async def test_a_queue_is_not_pulled_beyond_its_window(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 1000, queues=1)
        options = {"queue_max_messages": 100, "commit_interval_ms": 10_000_000}
        async with (
            setting.connect(**options) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            await trio.sleep(10)
            (puller,) = [
                p for q, p in consumer._member.assignments.pullers.items() if q == MessageQueue("T", "a", 0)
            ]
            assert 100 <= len(puller.window) < 132
            assert await take(consumer, 1000) == [b"%d" % number for number in range(1000)]

    @pytest.mark.parametrize(
        ("limits", "most"),
        [
            ({"queue_max_bytes": 1000}, 32),
            ({"queue_max_span": 50}, 64),
            ({"total_max_messages": 90}, 64),
            ({"total_max_bytes": 3000}, 32),
        ],
    )
    async def test_the_other_limits(
        self, setting: World, clock: MockClock, limits: dict[str, int], most: int
    ) -> None:
        fill(setting.cluster, 1000, queues=1)
        async with (
            setting.connect(**limits) as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            await trio.sleep(10)
            assert 0 < len(consumer._dispatch.ready.entries) <= most
            assert len(await take(consumer, 1000)) == 1000

    @pytest.mark.parametrize(
        "trouble", [ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_NOT_EXIST, CUT, HANG]
    )
    async def test_a_pull_that_fails_is_made_again(
        self, setting: World, clock: MockClock, trouble: int | str
    ) -> None:
        setting.cluster["a"].script(PULL, *[trouble] * 6)
        fill(setting.cluster, 2)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            with trio.fail_after(95):
                assert sorted(await take(consumer, 2)) == [b"0", b"1"]

    async def test_an_answer_that_cannot_be_read_is_asked_for_again(
        self, setting: World, clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(setting.cluster, 1)

        def nonsense(request: Command, _: object) -> Command:
            ext = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0"}
            return request.reply(header=ext, body=b"nonsense")

        setting.cluster["a"].script(PULL, *[nonsense] * 3)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
        ):
            assert await take(consumer, 1) == [b"0"]
        assert "no message begins here" in caplog.text

    async def test_a_broker_that_does_not_hold_pulls_is_not_asked_in_a_hurry(
        self, setting: World, clock: MockClock
    ) -> None:
        ext = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"}
        for code in (19, 20):
            setting.cluster["a"].script(PULL, *[lambda r, _, code=code: r.reply(code, header=ext)] * 500)
        async with setting.connect() as client, client.consumer("g", {"T": "*"}):
            await trio.sleep(10)
        assert setting.cluster["a"].count(PULL) < 400

    async def test_the_broker_says_which_broker_to_ask(self, clock: MockClock) -> None:
        cluster = Cluster("a", topics={"T": 1}, slave_read_enable=True)
        async with world(cluster) as setting:
            cluster["a"].configure_group("g", broker_id=1)
            slave = {"broker_role": BrokerRole.SLAVE}
            await cluster.start("slave", store=slave, broker_name="a", broker_id=1)
            await trio.sleep(15)  # until it has the master's tables
            fill(cluster, 40, queues=1)
            async with (
                setting.connect() as client,
                client.consumer("g", {"T": "*"}, consume_from="first") as consumer,
            ):
                assert len(await take(consumer, 40)) == 40
                for _ in range(3):
                    cluster["a"].put("T", 0, b"later")
                    assert await take(consumer, 1) == [b"later"]
        pulls = [r for r in cluster["slave"].seen if r.code == PULL and r.ext["topic"] == "T"]
        assert len(pulls) >= 2
        assert not any(int(pull.ext["sysFlag"]) & 1 for pull in pulls)  # a slave commits nothing


async def ask(setting: World, code: RequestCode, *, body: bytes = b"", **ext: str) -> None:
    """Send a one-way request to the only client of the broker."""
    request = Command.request(code, ext, body, oneway=True)
    setting.cluster["a"].connections[0].notify(request)


class TestQuestions:
    async def call(self, setting: World, code: int, *, body: bytes = b"", **ext: str) -> Command:
        request = Command.request(code, ext, body)
        return await setting.cluster["a"].connections[0].call(request, 5)

    async def test_what_it_does_right_now(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 7, queues=1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "x || y"}, consume_from="first"),
        ):
            await trio.sleep(0.1)
            answer = await self.call(
                setting, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId=client.client_id
            )
            info = ConsumerRunningInfo.from_json(answer.body)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert [data.topic for data in info.subscription_set] == ["%RETRY%g", "T"]
        window = info.mq_table[MessageQueue("T", "a", 0)]
        assert window.commit_offset == 7  # none has the tag
        assert info.jstack is None

    async def test_its_tasks_and_rates(self, setting: World, clock: MockClock) -> None:
        fill(setting.cluster, 6, queues=1)
        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}, consume_from="first") as taker,
        ):
            for _ in range(6):
                async with await taker.__anext__():
                    pass
            await trio.sleep(2)
            answer = await self.call(
                setting,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                consumerGroup="g",
                clientId=client.client_id,
                jstackEnable="true",
            )
            info = ConsumerRunningInfo.from_json(answer.body)
        assert 0 < info.status_table["T"].consume_ok_tps <= 3
        assert info.status_table["T"].pull_tps == info.status_table["T"].consume_ok_tps
        assert "TASK: " in (info.jstack or "")
        assert "rmq.client.consume.pull.Puller.run" in (info.jstack or "")
        assert "MainThread" in (info.jstack or "")

    async def test_questions_about_other_groups(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}):
            answer = await self.call(
                setting, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="x", clientId="y"
            )
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no consumer of group x" in (answer.remark or "")

    async def test_questions_that_it_does_not_know(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}):
            answer = await self.call(setting, 999)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    async def test_questions_that_cannot_be_read_fail_alone(self, setting: World, clock: MockClock) -> None:
        """One ended the connection, with all that waited for its answers."""
        async with setting.connect() as client, client.consumer("g", {"T": "*"}):
            answer = await self.call(setting, RequestCode.GET_CONSUMER_RUNNING_INFO)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "consumerGroup" in (answer.remark or "")
            assert (await self.call(setting, 999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    async def test_where_it_is(self, setting: World, clock: MockClock) -> None:
        async with setting.connect() as client, client.consumer("g", {"T": "*"}):
            answer = await self.call(
                setting, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, topic="T", group="g"
            )
        assert b'"queueId":1' in answer.body

    async def give(self, setting: World) -> Command:
        """The answer of member x of group g to a message that an administrator gives it."""
        body = encode_record(Record("T", 0, b"given"), host_bytes("1.2.3.4:5"))
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        return await self.call(setting, code, body=body, consumerGroup="g", clientId="x")

    @pytest.mark.parametrize(("fails", "result"), [(False, "CR_SUCCESS"), (True, "CR_THROW_EXCEPTION")])
    async def test_a_message_given_by_an_administrator(
        self, setting: World, clock: MockClock, fails: bool, result: str
    ) -> None:
        seen = []

        async def handle(message: StoredMessage) -> None:
            seen.append(message.body)
            if fails:
                raise ValueError("why")

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}) as consumer,
            trio.open_nursery() as nursery,
        ):
            before = await self.give(setting)
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(0.1)
            answer = await self.give(setting)
            nursery.cancel_scope.cancel()
        assert "runs no handler" in (before.remark or "")
        told = ConsumeMessageDirectlyResult.from_json(answer.body)
        assert (told.consume_result, seen) == (result, [b"given"])
        assert ("why" in (told.remark or "")) is fails

    async def test_an_administrator_is_told_how_long_it_took(self, setting: World, clock: MockClock) -> None:
        async def handle(_: StoredMessage) -> None:  # no plain function: a thread's time is not virtual
            await trio.sleep(2)

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run, handle)
            await trio.sleep(7)
            told = ConsumeMessageDirectlyResult.from_json((await self.give(setting)).body)
            nursery.cancel_scope.cancel()
        assert told.spent_time_mills == pytest.approx(2000, abs=1)

    async def test_a_handler_of_batches_is_given_a_batch_of_one(
        self, setting: World, clock: MockClock
    ) -> None:
        seen = []

        async def handle(messages: list[StoredMessage]) -> None:
            seen.append([message.body for message in messages])

        async with (
            setting.connect() as client,
            client.consumer("g", {"T": "*"}) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.run_batches, handle)
            await trio.sleep(0.1)
            answer = await self.give(setting)
            nursery.cancel_scope.cancel()
        told = ConsumeMessageDirectlyResult.from_json(answer.body)
        assert (told.consume_result, seen) == ("CR_SUCCESS", [[b"given"]])
