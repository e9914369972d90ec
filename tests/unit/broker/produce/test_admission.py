"""Slaves that a master of a controlled set serves: replicas of its set that follow the master's epoch."""

from __future__ import annotations

import pytest

from rmq.broker.replication.sessions import MasterSession, named_hello
from rmq.errors import RemoteProtocolError
from tests.unit.broker.failover.sets import leading

from ..rig import Rig


def test_a_replica_that_follows_our_epoch_is_served() -> None:
    session = MasterSession(Rig().store, 0.0, admit=leading(3).admit, greet=Rig().broker.replica.greeting)
    session.received(named_hello(2, 3))
    assert session.number == 2


@pytest.mark.parametrize("epoch", [2, 4, 0])
def test_a_replica_that_follows_another_epoch_is_not_served(epoch: int) -> None:
    session = MasterSession(Rig().store, 0.0, admit=leading(3).admit, greet=Rig().broker.replica.greeting)
    with pytest.raises(RemoteProtocolError, match=f"it follows epoch {epoch}, this master leads 3"):
        session.received(named_hello(2, epoch))
    assert session.number == 0


@pytest.mark.parametrize("number", [1, 3])
def test_who_is_no_other_replica_of_the_set_is_not_served(number: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"replica {number}"):
        leading(3).admit(number, 3)
