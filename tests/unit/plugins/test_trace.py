"""plugins/rmq_trace: the topic is there, and stored messages leave rows in it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import trio
from rmq_trace import PAUSE_SECONDS, ROWS_OF_A_MESSAGE, TracePlugin

from rmq.broker.plugin_host import plugin_host
from rmq.errors import DiskFull
from rmq.plugin import hooks_of
from rmq.protocol.trace import TraceContext, TraceType, decode
from tests.unit.broker.rig import START, Rig, batch, send

TOPIC = "RMQ_SYS_TRACE_TOPIC"
ON = {"traceStoreEnable": "true"}


def traced(config: dict[str, str], **settings: object) -> tuple[Rig, TracePlugin]:
    rig = Rig(plugins=("trace",), auto_create_topic_enable=False, **settings)  # type: ignore[arg-type]
    plugin = TracePlugin(config, plugin_host(rig.broker))
    rig.broker.use_plugins(hooks_of([("trace", plugin)]))
    rig.broker.topics.create_retry("Orders", 6, 4)
    return rig, plugin


def rows(rig: Rig) -> list[TraceContext]:
    return [row for message in rig.messages(TOPIC) for row in decode(message.body.decode())]


def test_the_entry_point_names_it() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["rmq.plugins"]["trace"] == "rmq_trace:TracePlugin"


def test_the_topic_is_there_and_nothing_is_written_unless_wanted() -> None:
    rig, plugin = traced({})
    topic = rig.broker.topics.get(TOPIC)
    assert topic is not None
    assert (topic.write_queue_nums, topic.perm) == (1, 6)
    rig.one(send())
    plugin.write()
    assert rows(rig) == []


def test_each_stored_message_leaves_a_row() -> None:
    rig, plugin = traced(ON)
    rig.now_ms = START + 20
    text = "UNIQ_KEY\x01AC11\x02KEYS\x01k1 k2\x02TAGS\x01TagA"
    rig.ask(send(properties=text, born_timestamp=START), batch(), send(properties=None))
    plugin.write()
    first, *others = rows(rig)
    (bean,) = first.beans
    assert (first.type, first.timestamp_ms, first.cost_ms) == (TraceType.STORE, START + 20, 20)
    assert (bean.topic, bean.message_id, bean.tags, bean.keys) == ("Orders", "AC11", "TagA", "k1 k2")
    assert (bean.store_host, bean.body_length) == ("10.0.0.9:10911", 5)
    assert bean.offset_message_id == "0A00000900002A9F0000000000000000"
    assert [row.beans[0].message_id for row in others[:3]] == ["AC0", "AC1", "AC2"]
    assert others[3].beans[0].message_id == others[3].beans[0].offset_message_id
    (message,) = rig.messages(TOPIC)
    assert message.keys[:4] == ("AC11", "k1", "k2", "AC0")


def test_a_trace_is_found_by_the_id_of_the_message() -> None:
    rig, plugin = traced(ON)
    rig.one(send())
    plugin.write()
    found = rig.store.query(TOPIC, "AC11", 10, 0, START + 10_000)
    assert [row.beans[0].message_id for row in decode(found[0].body.decode())] == ["AC11"]


@pytest.mark.parametrize("topic", [TOPIC, "MyTraces"])
def test_traces_of_clients_are_not_traced(topic: str) -> None:
    rig, plugin = traced(ON, msg_trace_topic_name=topic)
    rig.one(send(topic, b"Pub"))
    plugin.write()
    assert rig.bodies(topic) == [b"Pub"]


def test_rows_are_written_in_portions_and_a_full_disk_drops_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, plugin = traced(ON)
    rig.one(batch(bodies=[b"x"] * (ROWS_OF_A_MESSAGE + 5)))
    plugin.write()
    assert len(rows(rig)) == ROWS_OF_A_MESSAGE

    def full(message: object) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(plugin.host, "put", full)
    plugin.write()
    assert plugin.dropped == 5


async def test_the_task_writes_now_and_then(autojump_clock: trio.abc.Clock) -> None:
    rig, plugin = traced(ON)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plugin.run)
        rig.one(send())
        await trio.sleep(PAUSE_SECONDS / 2)
        assert rows(rig) == []
        await trio.sleep(PAUSE_SECONDS)
        assert len(rows(rig)) == 1
        nursery.cancel_scope.cancel()


async def test_without_rows_there_is_no_task(autojump_clock: trio.abc.Clock) -> None:
    _, plugin = traced({})
    with trio.fail_after(1):
        await plugin.run()
