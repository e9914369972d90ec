"""Offsets in a file, and messages whose handler does not end."""

from __future__ import annotations

import json
import pathlib
import threading

import pytest
import trio
from trio.testing import MockClock

from rmq.client.consume.deliveries.timeouts import ConsumeTimeouts, InFlight
from rmq.client.consume.offsets.files import LocalOffsets, offsets_path
from rmq.message import MessageQueue, StoredMessage
from rmq.testing.cluster import Cluster

from ..conftest import Play
from ..world import World, play
from .consuming import fill, offsets, sent_back, take

T0 = MessageQueue("T", "a", 0)


class TestFile:
    def test_what_java_writes_is_read(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "offsets.json"
        path.write_text(
            '{\n\t"offsetTable":{{\n\t\t"brokerName":"a",\n\t\t"queueId":0,\n\t\t"topic":"T"\n\t}:5\n\t}\n}'
        )
        assert LocalOffsets(path).get(T0) == 5

    def test_what_was_written_is_read_again(self, tmp_path: pathlib.Path, golden: pathlib.Path) -> None:
        path = tmp_path / "more" / "offsets.json"
        local = LocalOffsets(path)
        assert local.get(T0) is None
        local.update({T0: 5})
        local.save()
        local.update({MessageQueue("T", "a", 1): 7, T0: 6})
        local.save()
        again = LocalOffsets(path)
        assert (again.get(T0), again.get(MessageQueue("T", "a", 1))) == (6, 7)
        # The form that Java's own reader takes: a map whose keys are objects.
        cases = json.loads((golden / "json_quirks.json").read_text())
        known = '{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"TopicTest"}:5}}'
        assert known in json.dumps(cases).replace('\\"', '"')
        assert path.read_text().startswith('{"offsetTable":{{"')
        assert sorted(file.name for file in path.parent.iterdir()) == ["offsets.json", "offsets.json.bak"]

    def test_a_damaged_file_gives_way_to_the_one_before(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "offsets.json"
        local = LocalOffsets(path)
        local.update({T0: 5})
        local.save()
        local.update({T0: 6})
        local.save()
        path.write_text("{")
        assert LocalOffsets(path).get(T0) == 5
        path.with_name("offsets.json.bak").write_text("")
        assert LocalOffsets(path).get(T0) is None

    def test_a_file_that_cannot_be_written_is_logged(
        self, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        local = LocalOffsets(tmp_path / "file" / "offsets.json")
        local.update({T0: 5})
        local.save()
        assert not local.is_saved
        assert "cannot save the local offsets" in caplog.text

    def test_what_could_not_be_written_is_written_next_time(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "place").write_text("")
        local = LocalOffsets(tmp_path / "place" / "offsets.json")
        local.update({T0: 5})
        local.save()
        (tmp_path / "place").unlink()
        local.update({T0: 5})  # no message came in between: the last look before the member leaves
        assert not local.is_saved
        local.save()
        assert LocalOffsets(local.path).get(T0) == 5

    def test_a_write_that_is_late_does_not_undo_a_later_one(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody waits any more for a thread that a full or distant disk holds up."""
        local = LocalOffsets(tmp_path / "offsets.json")
        local.update({T0: 5})
        write = pathlib.Path.write_bytes

        def held_up(path: pathlib.Path, data: bytes) -> int:
            monkeypatch.setattr(pathlib.Path, "write_bytes", write)
            local.update({T0: 6})
            local.save()
            return write(path, data)

        monkeypatch.setattr(pathlib.Path, "write_bytes", held_up)
        local.save()
        assert LocalOffsets(local.path).get(T0) == 6
        assert [file.name for file in tmp_path.iterdir()] == ["offsets.json"]

    def test_where_it_is(self, own_home: pathlib.Path) -> None:
        assert offsets_path("", "1.2.3.4@DEFAULT", "g") == (
            own_home / ".rocketmq_offsets" / "1.2.3.4@DEFAULT" / "g" / "offsets.json"
        )
        assert offsets_path("/x", "a/b", "g") == pathlib.Path("/x/a_b/g/offsets.json")


def test_a_member_goes_on_where_it_was(both: Play, cluster: Cluster) -> None:
    async def scenario(world: World) -> None:
        fill(cluster, 10)
        for expected in (range(10), range(10, 14)):
            async with (
                world.connect(client_id="me") as client,
                client.consumer("g", {"T": "*"}, consume_from="first", broadcasting=True) as consumer,
            ):
                assert sorted(map(int, await take(consumer, len(expected)))) == list(expected)
            for number in range(10, 14):
                cluster["a"].put("T", number % 2, b"%d" % number)
        assert offsets(cluster) == {}

    both(scenario, cluster)


def test_offsets_are_saved_in_a_thread(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory on a disk that hangs held up all clients of the loop."""
    threads: list[int] = []
    save = LocalOffsets.save

    def seen(local: LocalOffsets) -> None:
        threads.append(threading.get_ident())
        save(local)

    monkeypatch.setattr(LocalOffsets, "save", seen)

    async def scenario(world: World) -> None:
        fill(cluster, 4)
        async with (
            world.connect(client_id="me") as client,
            client.consumer("g", {"T": "*"}, consume_from="first", broadcasting=True) as consumer,
        ):
            await take(consumer, 4)
        assert LocalOffsets(offsets_path("", "me", "g")).get(T0) == 2

    play("asyncio", scenario, cluster)
    assert threads
    assert threading.get_ident() not in threads


async def test_offsets_are_saved_every_5_s(
    setting: World, clock: MockClock, tmp_path: pathlib.Path, cluster: Cluster
) -> None:
    fill(cluster, 4)
    async with (
        setting.connect(client_id="me", offsets_dir=str(tmp_path)) as client,
        client.consumer("g", {"T": "*"}, consume_from="first", broadcasting=True) as consumer,
    ):
        await take(consumer, 4)
        await trio.sleep(6)
        assert LocalOffsets(tmp_path / "me" / "g" / "offsets.json").get(T0) == 2


class TestConsumeTimeouts:
    def test_each_message_once(self) -> None:
        async def on_timeout(_: object) -> None: ...

        timeouts = ConsumeTimeouts(900, on_timeout)
        first, second = object(), object()
        one = InFlight([first, second])  # type: ignore[list-item]
        timeouts.in_flight.add(one)
        assert timeouts.scan(0) == timeouts.scan(899) == []
        one.messages = [first]  # type: ignore[list-item]
        assert timeouts.scan(900) == [first]
        assert timeouts.scan(2000) == []
        one.messages = [second]  # type: ignore[list-item]
        assert timeouts.scan(2001) == []

    @pytest.mark.parametrize("by_hand", [False, True])
    async def test_what_takes_too_long_is_sent_back(
        self, setting: World, clock: MockClock, cluster: Cluster, by_hand: bool
    ) -> None:
        fill(cluster, 3, queues=1)
        seen = []

        async def handle(message: StoredMessage) -> None:
            seen.append((message.body, message.reconsume_times))
            if message.body == b"0" and not message.reconsume_times:
                await trio.sleep(200)
                raise ValueError("too late to matter")

        async with setting.connect(consume_timeout_ms=60_000) as client, trio.open_nursery() as nursery:
            async with client.consumer("g", {"T": "*"}, consume_from="first") as consumer:

                async def loop() -> None:
                    async for delivery in consumer:
                        async with delivery as message:
                            await handle(message)

                for _ in range(2):
                    nursery.start_soon(loop if by_hand else consumer.run, *(() if by_hand else (handle,)))
                await trio.sleep(59)
                assert sent_back(cluster) == []
                await trio.sleep(80)
                assert [header.delay_level for header in sent_back(cluster)] == [3]
                assert offsets(cluster)[0] == 3
                assert (b"0", 1) in seen
                await trio.sleep(200)
                assert len(sent_back(cluster)) == 1
            nursery.cancel_scope.cancel()
