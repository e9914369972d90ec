"""The brokers of one service: a topic that a send makes at one is made and saved at all, once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from rmq.broker.runtime import sibling_processes
from rmq.broker.runtime.sibling_processes import LINE, Sibling, TopicFanout, line_of, new_line
from rmq.broker.wakeups import Wakeups
from rmq.protocol.bodies import TopicConfig
from tests.unit.broker.rig import Rig, send

NAMES = "b-0", "b-1", "b-2"


class Member(Rig):
    """A broker whose topics are saved when the test says so."""

    def __init__(self, name: str, **settings: int) -> None:
        super().__init__(
            given={"wake": Wakeups(new_topics=lambda: None)}, config=None, broker_name=name, **settings
        )
        self.name = name

    @asynccontextmanager
    async def lives(self, spread: TopicFanout) -> AsyncIterator[None]:
        """For the length of the block, as a process of its own would."""
        line, end = new_line()
        number = os.dup(end.fileno())
        end.close()
        own = line_of({LINE: str(number)})
        assert own is not None
        sibling = Sibling(own)
        sibling.join(self.broker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(spread.serve, self.name, line)
            nursery.start_soon(sibling.run)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sibling_processes, "SAVED_SECONDS", 0.001)


async def until(look: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not look():
            await trio.sleep(0.001)


async def test_a_topic_that_a_send_makes_is_made_at_all() -> None:
    rigs, spread = [Member(name) for name in NAMES], TopicFanout(NAMES)
    first, *others = rigs
    async with rigs[0].lives(spread), rigs[1].lives(spread), rigs[2].lives(spread):
        first.ask(send("Orders", default_topic_queue_nums=3), send("%RETRY%readers"))
        made = first.topics.table["Orders"]
        assert made.write_queue_nums == 3
        for rig in others:
            await until(lambda rig=rig: "Orders" in rig.topics.table)  # type: ignore[misc]
            assert rig.topics.table["Orders"] == made
            assert "Orders" in rig.topics.unsaved
            assert "%RETRY%readers" not in rig.topics.table
        assert [spread.missing(name) for name in NAMES] == [[], ["Orders"], ["Orders"]]
        for rig in others:
            rig.broker.group_commit.save_topics()
            await until(lambda rig=rig: not spread.missing(rig.name))  # type: ignore[misc]
            assert Rig(disk=rig.disk.copy()).topics.table["Orders"] == made


async def test_one_that_is_away_has_it_made_when_it_is_back_and_a_deleted_one_does_not_come_again() -> None:
    rigs, spread = [Member(name) for name in NAMES[:2]], TopicFanout(NAMES[:2])
    here, away = rigs
    async with here.lives(spread):
        here.ask(send("Orders"))
        await until(lambda: spread.missing("b-1") == ["Orders"])
        async with away.lives(spread):
            await until(lambda: "Orders" in away.topics.table)
        # It is not saved: killed now, it would not have it.
        assert spread.missing("b-1") == ["Orders"]
        again = Member("b-1")
        async with again.lives(spread):
            await until(lambda: "Orders" in again.topics.table)
            again.broker.group_commit.save_topics()
            await until(lambda: spread.missing("b-1") == [])
        again.topics.delete("Orders")
        async with again.lives(spread):
            here.ask(send("More"))
            await until(lambda: "More" in again.topics.table)
            assert "Orders" not in again.topics.table


async def test_what_is_there_or_would_be_too_much_stays_as_it_is() -> None:
    rigs = [Member("b-0"), Member("b-1"), Member("b-2", max_auto_created_topics=0)]
    last, spread = Member("b-3"), TopicFanout((*NAMES, "b-3"))
    kept = TopicConfig("Orders", 7, 7)
    rigs[1].topics.update(kept)
    async with rigs[0].lives(spread), rigs[1].lives(spread), rigs[2].lives(spread), last.lives(spread):
        rigs[0].ask(send("Orders"))
        await until(lambda: "Orders" in last.topics.table)  # so all have been told
        await until(lambda: not any(spread.missing(name) for name in NAMES[1:]))
    assert rigs[1].topics.table["Orders"] == kept
    assert "Orders" not in rigs[2].topics.table


async def test_a_slave_takes_its_masters_topics_only() -> None:
    rigs, spread = [Member(name) for name in NAMES], TopicFanout(NAMES)
    rigs[1].become_slave()
    async with rigs[0].lives(spread), rigs[1].lives(spread), rigs[2].lives(spread):
        rigs[0].ask(send("Orders"))
        await until(lambda: "Orders" in rigs[2].topics.table)  # so all have been told
        await until(lambda: not spread.missing("b-1"))
        assert "Orders" not in rigs[1].topics.table
