"""The role of a broker: given to its parts when they are made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq.broker.replication.failover.role import FailoverReplica
from rmq.broker.role import Role, Slave, Standalone
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import GetMaxOffsetRequestHeader, SearchOffsetRequestHeader
from rmq.store.config import BrokerRole

from ..rig import Rig, send


def replica(epoch: int, **known: Any) -> FailoverReplica:
    """A replica of a set: with a lease, and with nothing known of the high watermark."""
    manager: Any = SimpleNamespace(
        **{
            "is_closed": False,
            "has_lease": lambda: True,
            "refusal": str,
            "high_watermark": lambda: None,
            "known_high_watermark": 0,
            "number": 1,
            "in_sync": (1, 2),
        }
        | known
    )
    return FailoverReplica(manager, epoch)


def test_the_role_is_as_the_settings_say() -> None:
    assert isinstance(Rig().broker.role, Standalone)
    assert isinstance(Rig(store={"broker_role": BrokerRole.SLAVE}).broker.role, Slave)


@pytest.mark.parametrize("role", [Slave(), replica(0)])
def test_a_slave_takes_no_messages(role: Role) -> None:
    rig = Rig(store={"broker_role": BrokerRole.SLAVE}, given={"role": role})
    answer = rig.one(send())
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "this broker is a slave" in (answer.remark or "")


def test_the_lease_of_a_master_rules_messages_commits_and_locks() -> None:
    role = replica(3, has_lease=lambda: False, refusal=lambda: "no lease")
    rig = Rig(store={"broker_role": BrokerRole.SYNC_MASTER}, given={"role": role})
    assert rig.one(send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert role.refuses_commits()
    assert role.refuses_locks()
    assert not role.has_lease()


def test_a_slave_commits_what_it_is_sent_but_locks_nothing() -> None:
    role = replica(0, has_lease=lambda: False)
    assert not role.refuses_commits()
    assert role.refuses_locks()
    assert role.has_lease()


def test_a_replica_that_knows_no_high_watermark_shows_no_message() -> None:
    """Neither to a pull nor to a search: what is above it may be gone with the next election."""
    plain = Rig(store={"broker_role": BrokerRole.SYNC_MASTER})
    fresh = Rig(store={"broker_role": BrokerRole.SYNC_MASTER}, given={"role": replica(0)})
    for rig in (plain, fresh):
        rig.broker.copied_log.append(0, memoryview(bytes(stored())))
    largest, latest = GetMaxOffsetRequestHeader("Orders", 0), SearchOffsetRequestHeader("Orders", 0, 1 << 60)
    for rig, end in ((plain, "1"), (fresh, "0")):
        asked = Command.request(RequestCode.GET_MAX_OFFSET, largest)
        assert rig.one(asked).ext["offset"] == end
    found = fresh.one(Command.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, latest))
    assert found.ext["offset"] == "0"


def stored() -> memoryview:
    """The log of a master that has one message, in queue 0 of Orders."""
    rig = Rig()
    rig.one(send(queue_id=0))
    return rig.store.read_raw(0, rig.store.max_physical_offset)
