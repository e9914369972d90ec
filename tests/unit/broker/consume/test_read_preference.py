"""At which replica clients wait for messages that do not see a broker die."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from rmq.broker.config import BrokerConfig
from rmq.broker.replication.failover.read_preference import ROUTES_SECONDS, SILENT_SECONDS, PreferredReplica
from rmq.config import load
from rmq.errors import ConfigError
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, ResponseCode
from rmq.protocol.headers import PullMessageResponseHeader
from rmq.protocol.record import decode_records
from tests.sim.real_brokers.brokers import CONTROLLERS, Node, Set, controlled_set
from tests.unit.broker.consume.pulling import begin
from tests.unit.broker.rig import pull


def place(
    number: int,
    master: int,
    *in_sync: int,
    linked: tuple[int, ...] = (1, 2, 3),
    silent: float = 0.0,
    since: float = 1e9,
    leased: bool = True,
) -> PreferredReplica:
    manager: Any = SimpleNamespace(
        number=number,
        master_number=master,
        in_sync=in_sync,
        is_elected=number == master,
        has_lease=lambda: leased and number == master,
        silent_seconds=lambda: silent,
        master_seconds=lambda: since,
    )
    return PreferredReplica(manager, lambda: ("GO",), lambda: {*linked} - {number})


@pytest.mark.parametrize(
    ("place", "is_here", "suggested"),
    [
        (place(1, 1, 1, 2, 3), False, (2, 3, 2, 3)),
        (place(1, 1, 1, 2, 3, linked=(3,)), False, (3, 3, 3, 3)),
        (place(1, 1, 1, 2, linked=(3,)), True, (0, 0, 0, 0)),
        (place(2, 1, 1, 2, 3), True, (2, 2, 2, 2)),
        (place(2, 1, 1, 3), False, (0, 0, 0, 0)),
        (place(2, 1, 1, 2, silent=SILENT_SECONDS), True, (2, 2, 2, 2)),
        (place(2, 1, 1, 2, 3, silent=SILENT_SECONDS + 1), False, (0, 0, 0, 0)),
        # The master, by the number that it had before, as long as there are such routes.
        (place(2, 2, 2), True, (0, 0, 0, 0)),
        (place(2, 2, 2, since=ROUTES_SECONDS), True, (2, 2, 2, 2)),
        (place(1, 2, 2, since=ROUTES_SECONDS), False, (2, 2, 2, 2)),
        # Another may be the master.
        (place(1, 1, 1, 2, 3, linked=(), leased=False), False, (2, 3, 2, 3)),
        (place(1, 1, 1, leased=False), False, (0, 0, 0, 0)),
        # There is no master.
        (place(2, 0, 1, 2), True, (2, 2, 2, 2)),
        (place(2, 0, 1), False, (0, 0, 0, 0)),
    ],
)
def test_which_replica_it_is(place: PreferredReplica, is_here: bool, suggested: tuple[int, ...]) -> None:
    assert place.is_here() == is_here
    assert tuple(map(place.preferred, range(4))) == suggested


def test_it_is_said_once_that_it_is_here_no_more() -> None:
    moving = place(2, 1, 1, 2)
    assert [moving.has_left(), moving.has_left()] == [False, False]
    manager: Any = moving._manager
    manager.in_sync = (1,)
    assert [moving.has_left(), moving.has_left()] == [True, False]
    manager.in_sync = (1, 2)
    assert not moving.has_left()


class Pulled:
    """A pull of a client of some language, which waits for a message as long as it may."""

    def __init__(self, found: Set, node: Node, offset: int, language: str = "GO") -> None:
        self._found, self._address, self._language = found, f"{node.host}:10911", language
        self._offset = offset
        self.code = -1
        self.bodies: list[str] = []
        self.preferred = -1
        self.next_offset = -1
        self.seconds = 0.0

    async def run(self) -> None:
        began = trio.current_time()
        request = pull("T", self._offset, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND)
        request.language = self._language
        answer = await self._found.pool.call(self._address, request, 30)
        header = answer.read(PullMessageResponseHeader)
        self.code, self.next_offset = answer.code, header.next_begin_offset
        self.preferred = header.suggest_which_broker_id
        self.bodies = [message.body.decode() for message in decode_records(answer.body)]
        self.seconds = trio.current_time() - began


async def pulled(found: Set, node: Node, offset: int, language: str = "GO") -> Pulled:
    made = Pulled(found, node, offset, language)
    await made.run()
    return made


async def test_go_clients_are_sent_to_slaves_and_others_are_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client), client.producer("P") as producer:
        await begin(found, client, producer)
        first, second = found.nodes
        at_master, at_slave = await pulled(found, first, 0), await pulled(found, second, 0)
        assert at_master.bodies == at_slave.bodies == ["one"]
        assert (at_master.preferred, at_slave.preferred) == (2, 2)
        brief, long = await pulled(found, first, 1), await pulled(found, second, 1)
        assert brief.code == long.code == ResponseCode.PULL_NOT_FOUND
        assert brief.next_offset == long.next_offset == 1
        assert (brief.preferred, long.preferred) == (2, 2)
        assert 0.9 < brief.seconds < 1.2
        assert long.seconds > 14
        java = await pulled(found, first, 1, "JAVA")
        assert (java.preferred, java.seconds > 14) == (0, True)


async def test_nobody_is_sent_where_the_setting_is_empty(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2, read_at_slaves=()) as (found, client):
        first, _ = found.nodes
        async with client.producer("P") as producer:
            await begin(found, client, producer)
        go = await pulled(found, first, 1)
        assert (go.preferred, go.seconds > 14) == (0, True)


def test_the_setting_takes_languages_only() -> None:
    assert load(BrokerConfig, None, {"read_at_slaves": "GO, JAVA"}, {}).read_at_slaves == ("GO", "JAVA")
    with pytest.raises(ConfigError, match=r"readAtSlaves.*golang.*some of JAVA, CPP.*GO"):
        load(BrokerConfig, None, {"read_at_slaves": "golang"}, {})


async def test_the_setting_holds_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with controlled_set(2) as (found, client), client.producer("P") as producer:
        await begin(found, client, producer)
        first, _ = found.nodes
        assert (await pulled(found, first, 0, "JAVA")).preferred == 0
        await client.admin.update_broker_config({"readAtSlaves": "JAVA"}, broker="s")
        assert (await pulled(found, first, 0, "JAVA")).preferred == 2
        assert (await pulled(found, first, 0, "GO")).preferred == 0


async def test_who_waits_at_a_slave_reads_on_when_the_master_dies(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        first, *_ = found.nodes
        async with client.producer("P") as producer, trio.open_nursery() as nursery:
            await begin(found, client, producer)
            waiting = [Pulled(found, node, 1) for node in found.nodes[1:]]
            for each in waiting:
                nursery.start_soon(each.run)
            await trio.sleep(0.5)
            began = trio.current_time()
            await found.kill(first)
            master = await found.master()
            await found.sent(producer, "two")
            while any(each.code < 0 for each in waiting):
                await trio.sleep(0.05)
            assert trio.current_time() - began < 6
            (slave,) = (node for node in found.nodes[1:] if node is not master)
            by_role = dict(zip(found.nodes[1:], waiting, strict=True))
            # The master's has its answer before connections end by the new role; the slave's has the message.
            assert by_role[master].code == ResponseCode.PULL_NOT_FOUND
            assert by_role[slave].bodies == ["two"]
            assert {each.preferred for each in waiting} == {slave.number()}


async def test_a_slave_hands_out_a_message_as_soon_as_its_master_may(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client), client.producer("P") as producer:
        await begin(found, client, producer)
        for number in range(5):
            waiting = Pulled(found, found.nodes[1], 1 + number)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(waiting.run)
                await trio.sleep(0.1)
                assert await found.send(producer, "next")
            assert waiting.bodies == ["next"]
            assert waiting.seconds < 0.15


async def test_who_waits_at_a_slave_that_is_in_sync_no_more_is_sent_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(3) as (found, client):
        first, second, third = found.nodes
        async with client.producer("P") as producer, trio.open_nursery() as nursery:
            await begin(found, client, producer)
            waiting = Pulled(found, second, 1)
            nursery.start_soon(waiting.run)
            await trio.sleep(0.5)
            found.network.partition(second.host, first.host, third.host)
            await found.until(inSync=[1, 3])
            await trio.sleep(1)
            assert (waiting.code, waiting.preferred) == (ResponseCode.PULL_NOT_FOUND, 0)


async def test_who_waits_at_a_slave_that_is_cut_off_from_all_is_sent_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client):
        first, second = found.nodes
        async with client.producer("P") as producer, trio.open_nursery() as nursery:
            await begin(found, client, producer)
            waiting = Pulled(found, second, 1)
            nursery.start_soon(waiting.run)
            await trio.sleep(0.5)
            hosts = [address.partition(":")[0] for address in CONTROLLERS]
            found.network.partition(second.host, first.host, *hosts)
            await trio.sleep(SILENT_SECONDS + 2)
            assert (waiting.code, waiting.preferred) == (ResponseCode.PULL_NOT_FOUND, 0)


async def test_nobody_waits_at_a_master_that_is_cut_off_from_the_controllers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client), client.producer("P") as producer:
        await begin(found, client, producer)
        first, second = found.nodes
        await found.kill(second)
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            waiting = Pulled(found, first, 1)
            nursery.start_soon(waiting.run)
            await trio.sleep(2)
            assert waiting.code == -1, "no slave is there"
            found.network.heal()
            await found.start(second)
            await found.until(inSync=[1, 2])
            await trio.sleep(0.5)
            assert waiting.preferred == 2
            hosts = [address.partition(":")[0] for address in CONTROLLERS]
            found.network.partition(first.host, *hosts)
            assert await found.master() is not None
            await found.until(master=2)
            await trio.sleep(1)
            cut_off = await pulled(found, first, 1)
            assert (cut_off.preferred, cut_off.seconds < 1.2) == (2, True)


async def test_of_two_the_last_one_is_named_as_routes_may_have_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with controlled_set(2) as (found, client), client.producer("P") as producer:
        await begin(found, client, producer)
        first, second = found.nodes
        await found.kill(first)
        assert await found.master() is second
        assert (await pulled(found, second, 0)).preferred == 2
        assert (await pulled(found, second, 1)).seconds > 14, "they may wait here"
        await trio.sleep(ROUTES_SECONDS)
        assert (await pulled(found, second, 0)).preferred == 0
        found.network.heal()
        await found.start(first)
        await found.until(inSync=[1, 2])
        assert (await pulled(found, second, 0)).preferred == 1
