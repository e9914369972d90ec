"""Sets with controllers, and what operators do to them."""

from __future__ import annotations

from random import Random

from rmq.broker.config import BrokerConfig
from rmq.broker.replication.failover.replica_manager import ReplicaIdentity, ReplicaManager
from rmq.controller.controller import Answer
from rmq.controller.requests import answer_of, request_of
from rmq.controller.sets import BrokerSet, Remove
from rmq.controller.sets import Replica as Member
from rmq.testing.disk import MemoryDisk
from tests.sim.real_brokers.broker_controllers import CONTROLLERS
from tests.sim.real_brokers.brokers import Set


async def remove(found: Set, number: int) -> str:
    """Have the controllers forget a replica; returns why they do not."""
    for address in CONTROLLERS:
        response = await found.pool.call(address, request_of(Remove("s", number)), 5)
        if response.code == 0:
            return answer_of(response).refusal
    raise AssertionError("nobody leads")


def leading(epoch: int) -> ReplicaManager:
    """The place of replica 1, which leads this epoch of a set of two."""
    file = ReplicaIdentity(MemoryDisk(seed=1), "/store/config", Random(1))
    manager = ReplicaManager(
        BrokerConfig(broker_name="s"),
        file,
        address="10.0.0.1:10911",
        ha_address="10.0.0.1:10912",
        is_founder=True,
        clock=lambda: 1.0,
    )
    members = {1: manager.register().replica, 2: Member("other", 1, "10.0.0.2:10911", "10.0.0.2:10912")}
    found = BrokerSet("c", "s", epoch=epoch, master=1, in_sync=(1, 2), replicas=members)
    assert manager.registered(Answer("", found, 1)) == ""
    manager.lead(0)
    return manager
