"""In a set with controllers nothing that a new master must have is answered before replicas have it."""

from __future__ import annotations

from typing import Any

import pytest

from rmq.broker.replication.failover.role import FailoverReplica
from rmq.protocol.codes import SYS_COMMIT, SYS_PREPARED, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import ConsumerSendMsgBackRequestHeader, EndTransactionRequestHeader
from rmq.store.config import BrokerRole

from ..rig import Rig, send


class ReplicaManager:
    """A place in a set whose replicas have the log up to `safe`; the master has a lease while `is_leased`."""

    def __init__(self) -> None:
        self.safe, self.is_leased = 1 << 40, True
        self.stepping_down = False

    def ack_limit(self) -> int:
        return self.safe

    def advance_high_watermark(self) -> None:
        """Do nothing: this test has no readers."""

    def high_watermark(self) -> int:
        return self.safe

    @property
    def known_high_watermark(self) -> int:
        return self.safe

    def refusal(self) -> str:
        return "it hands over" if self.stepping_down else "" if self.is_leased else "no lease"

    def has_lease(self) -> bool:
        return self.is_leased


def master() -> tuple[Rig, ReplicaManager]:
    manager = ReplicaManager()
    role = FailoverReplica(manager, 1)  # type: ignore[arg-type]
    return Rig(store={"broker_role": BrokerRole.SYNC_MASTER}, given={"role": role}), manager


def test_what_was_taken_before_a_hand_over_is_waited_for() -> None:
    rig, manager = master()
    rig.one(send())  # messages are taken, which holds for a moment
    manager.safe = rig.store.max_physical_offset
    manager.stepping_down = True
    assert rig.ask(send()) == []
    manager.safe = rig.store.max_physical_offset
    rig.broker.acknowledgement.replicas.acknowledged()
    (answer,) = rig.wire.take()
    assert answer.code == ResponseCode.SUCCESS


def request_of(kind: str, rig: Rig) -> Command:
    """A request that is answered at once by a plain master, after what goes before it."""
    if kind == "WAIT=false":
        return send(properties="WAIT\x01false")
    if kind == "send back":
        rig.one(send())
        header: Any = ConsumerSendMsgBackRequestHeader(0, "g", 1)
        return Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    answer = rig.one(send(properties="TRAN_MSG\x01true\x02PGROUP\x01producers", sys_flag=SYS_PREPARED))
    header = EndTransactionRequestHeader(
        producer_group="producers",
        tran_state_table_offset=int(answer.ext["queueOffset"]),
        commit_log_offset=int(answer.ext["msgId"][-16:], 16),
        commit_or_rollback=SYS_COMMIT,
        msg_id="M",
    )
    return Command.request(RequestCode.END_TRANSACTION, header)


KINDS = pytest.mark.parametrize("kind", ["WAIT=false", "send back", "end of a transaction"])


@KINDS
def test_it_is_answered_when_the_replicas_have_it(kind: str) -> None:
    rig, manager = master()
    request = request_of(kind, rig)
    manager.safe = rig.store.max_physical_offset
    assert rig.ask(request) == []
    assert rig.store.max_physical_offset > manager.safe
    rig.broker.acknowledgement.replicas.acknowledged()
    assert rig.wire.take() == []
    manager.safe = rig.store.max_physical_offset
    rig.broker.acknowledgement.replicas.acknowledged()
    (answer,) = rig.wire.take()
    assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, request.opaque)


@KINDS
def test_no_success_is_told_when_the_replicas_do_not_get_it_in_time(kind: str) -> None:
    rig, manager = master()
    request = request_of(kind, rig)
    manager.safe = rig.store.max_physical_offset
    assert rig.ask(request) == []
    rig.let_pass(60_000)
    rig.broker.steps.deadlines(rig.seconds)
    (answer,) = rig.wire.take()
    assert (answer.code, answer.opaque) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, request.opaque)


@KINDS
def test_a_master_whose_lease_ended_meanwhile_tells_no_success(kind: str) -> None:
    rig, manager = master()
    request = request_of(kind, rig)
    manager.safe, manager.is_leased = rig.store.max_physical_offset, False
    assert rig.one(request).code != ResponseCode.SUCCESS


@KINDS
def test_a_plain_master_answers_at_once(kind: str) -> None:
    rig = Rig()
    assert rig.one(request_of(kind, rig)).code == ResponseCode.SUCCESS
