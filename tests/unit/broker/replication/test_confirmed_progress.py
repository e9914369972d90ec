"""The delivery progress of a replica after a cut of its log that removes deliveries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rmq.broker.delay.timers import Timers
from rmq.broker.replication.failover.delivery_checkpoint import NAME, go_back
from rmq.store.config import BrokerRole

from ..rig import Rig

DELIVERED: dict[str, Any] = {
    "delay": {"1": 3},
    "timer": {"first": 2, "read": 6, "deliveredMs": 1_700_000_018_498},
    "transactions": {"RMQ_SYS_TRANS_HALF_TOPIC": 7, "RMQ_SYS_TRANS_OP_HALF_TOPIC": 6},
}
EARLIER: dict[str, Any] = {
    "delay": {"1": 1},
    "timer": {"first": 0, "read": 4, "deliveredMs": 1_700_000_012_923},
    "transactions": {"RMQ_SYS_TRANS_HALF_TOPIC": 2, "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1},
}
NONE: dict[str, Any] = {
    "delay": {"1": 0},
    "transactions": {"RMQ_SYS_TRANS_HALF_TOPIC": 0, "RMQ_SYS_TRANS_OP_HALF_TOPIC": 0},
}


@pytest.mark.parametrize("confirmed", [EARLIER, NONE])
def test_it_goes_back_to_what_was_confirmed_in_every_part(confirmed: dict[str, Any]) -> None:
    """Also to a time before the first message of a kind: what was delivered then would never come again."""
    rig = Rig(store={"broker_role": BrokerRole.SLAVE})
    rig.broker.delivery.take(DELIVERED)
    assert rig.broker.delivery.now()["timer"] == DELIVERED["timer"]
    rig.disk.replace(f"/store/config/{NAME}.json", json.dumps({"end": 100, **confirmed}).encode())
    go_back(rig.broker.store, rig.broker.delivery, rig.broker.saving)
    after = Rig(store={"broker_role": BrokerRole.SLAVE}, disk=rig.disk.image(0.0))
    for broker in (rig.broker, after.broker):
        now = broker.delivery.now()
        assert now["delay"]["1"] == confirmed["delay"]["1"]
        assert now.get("timer") == confirmed.get("timer")
        assert now["transactions"] == confirmed["transactions"]


def test_the_test_above_shows_a_slave_that_keeps_a_time_of_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault "a timed message stays delivered when it is cut"."""
    follow = Timers.follow

    def keep(self: Timers, progress: Mapping[str, int]) -> None:
        if progress:
            follow(self, progress)

    monkeypatch.setattr(Timers, "follow", keep)
    with pytest.raises(AssertionError):
        test_it_goes_back_to_what_was_confirmed_in_every_part(NONE)
