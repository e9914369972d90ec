"""Which slaves a master of a controlled set serves: replicas of its set that follow the epoch it leads."""

from __future__ import annotations

from random import Random

import pytest

from rmq.broker.config import BrokerConfig
from rmq.broker.replication.failover.replica_manager import ReplicaIdentity, ReplicaManager
from rmq.broker.replication.sessions import MasterSession, named_hello
from rmq.controller.controller import Answer
from rmq.controller.sets import BrokerSet
from rmq.controller.sets import Replica as Member
from rmq.errors import RemoteProtocolError
from rmq.testing.disk import MemoryDisk

from ..rig import Rig


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


def test_a_replica_that_follows_our_epoch_is_served() -> None:
    session = MasterSession(Rig().store, 0.0, admit=leading(3).admit, greet=Rig().broker.replica.greeting)
    session.received(named_hello(2, 3), 0.0)
    assert session.number == 2


@pytest.mark.parametrize("epoch", [2, 4, 0])
def test_a_replica_that_follows_another_epoch_is_not_served(epoch: int) -> None:
    session = MasterSession(Rig().store, 0.0, admit=leading(3).admit, greet=Rig().broker.replica.greeting)
    with pytest.raises(RemoteProtocolError, match=f"it follows epoch {epoch}, this master leads epoch 3"):
        session.received(named_hello(2, epoch), 0.0)
    assert session.number == 0


@pytest.mark.parametrize("number", [1, 3])
def test_who_is_no_other_replica_of_the_set_is_not_served(number: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"replica {number}"):
        leading(3).admit(number, 3)
