"""Slaves in memory."""

from __future__ import annotations

from typing import Any

from rmq.store.config import BrokerRole
from rmq.testing.disk import MemoryDisk
from tests.unit.broker.rig import Rig


def slave(**store: Any) -> Rig:
    return Rig(store={"broker_role": BrokerRole.SLAVE, **store}, broker_id=1)


def slave_on(disk: MemoryDisk) -> Rig:
    return Rig(disk=disk.copy(), store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
