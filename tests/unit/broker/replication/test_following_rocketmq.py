"""A slave of ours that follows a master of RocketMQ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from rmq.broker.replication.sessions import Diverged, MasterLog
from rmq.broker.runtime.replication_loops import Follower
from rmq.errors import RemoteProtocolError, ResponseError
from rmq.protocol.bodies import KVTable
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.store.config import DivergedLog
from rmq.store.store import Store
from tests.unit.broker.replication.slaves import slave

from ..rig import Rig, send
from .logs import follower_of


class JavaMaster:
    """A RocketMQ master's responses to requests: `code` and `remark` for each requested record."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.code, self.remark = 0, ""

    async def call(self, address: str, request: Command, seconds: float) -> Command:
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            ends = self.store.min_physical_offset, self.store.max_physical_offset
            table = dict(zip(("commitLogMinOffset", "commitLogMaxOffset"), map(str, ends), strict=True))
            return request.reply(body=KVTable(table).to_json())
        if self.code:
            return request.reply(self.code, self.remark)
        offset = int(request.ext["offset"])
        record = self.store.read(offset)
        if record is None:
            return request.reply(1, f"can not find message by the offset, {offset}")
        return request.reply(body=bytes(record))


def beside_java(ours: list[bytes], theirs: list[bytes]) -> tuple[Rig, JavaMaster, Follower]:
    """A slave with these messages, its master with those, and what follows."""
    rigs = []
    for texts in (ours, theirs):
        rig = Rig()
        rig.ask(*[send("Orders", body) for body in texts])
        rigs.append(rig)
    mine = slave()
    mine.broker.copied_log.append(0, rigs[0].store.read_raw(0, 1 << 20))
    master = JavaMaster(rigs[1].store)
    pool: Any = master
    return mine, master, follower_of(mine, pool)


NO_STREAM: Any = None


@pytest.mark.parametrize(
    ("code", "remark"), [(2, "[TIMEOUT_CLEAN_QUEUE]broker busy"), (16, "no permission"), (1, "NullPointer")]
)
async def test_a_refused_or_busy_answer_is_not_taken_for_another_record(code: int, remark: str) -> None:
    rig, master, follower = beside_java([b"a", b"b"], [b"a", b"b", b"c"])
    reach = rig.store.max_physical_offset
    master.code, master.remark = code, remark
    with pytest.raises(ResponseError):
        await follower._align(NO_STREAM, None)
    assert rig.store.max_physical_offset == reach
    master.code = 0
    await follower._align(NO_STREAM, None)
    assert rig.store.max_physical_offset == reach


@pytest.mark.parametrize("said", [None, b""])
async def test_a_master_of_ours_that_does_not_answer_has_said_nothing_of_its_log(
    autojump_clock: MockClock, said: bytes | None
) -> None:
    """The master is busy, or hangs up in the middle: only another fingerprint proves another record."""
    rig, _, follower = beside_java([b"a", b"b"], [])
    reach = rig.store.max_physical_offset

    async def send_all(data: bytes) -> None: ...

    async def receive_some(count: int) -> bytes:
        if said is None:
            await trio.sleep_forever()
        return said or b""

    stream: Any = SimpleNamespace(send_all=send_all, receive_some=receive_some)
    with pytest.raises(RemoteProtocolError):
        await follower._align(stream, MasterLog("", 0, reach))
    assert rig.bodies("Orders") == [b"a", b"b"]


@pytest.mark.parametrize("theirs", [[], [b"a"], [b"a", b"x", b"b", b"c"], [b"x"] * 5])
async def test_a_rocketmq_master_with_another_log_stops_its_slave(theirs: list[bytes]) -> None:
    rig, _, follower = beside_java([b"a", b"b", b"c"], theirs)
    with pytest.raises(Diverged):
        await follower._align(NO_STREAM, None)
    assert rig.bodies("Orders") == [b"a", b"b", b"c"]


async def test_what_was_not_reported_is_cut_for_a_rocketmq_master() -> None:
    rig, _, follower = beside_java([b"a", b"b", b"c"], [b"a", b"b", b"y", b"z"])
    unit = rig.store.unit("Orders", 0, 1)
    assert unit is not None
    follower._reported = unit[0] + unit[1]
    await follower._align(NO_STREAM, None)
    assert rig.bodies("Orders") == [b"a", b"b"]


async def test_a_log_set_aside_for_a_rocketmq_master_begins_anew_where_its_log_begins() -> None:
    rig, master, follower = beside_java([b"a", b"b", b"c"], [b"x"] * 5)
    rig.store.config = evolve(rig.store.config, ha_diverged_log=DivergedLog.aside)
    start = await follower._align(NO_STREAM, None)
    rig.broker.copied_log.append(start, master.store.read_raw(start, 1 << 20))
    assert rig.bodies("Orders") == [b"x"] * 5
