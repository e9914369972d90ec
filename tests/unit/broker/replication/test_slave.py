"""A slave's store holds its master's records only, and its tables are its master's."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rmq.broker.admin.metrics_export import metrics_of
from rmq.broker.replication.replica_state import slave_names
from rmq.broker.replication.sessions import MasterLog
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import RemoteProtocolError, StoreError
from rmq.message import TRANS_CHECK_MAX_TIME_TOPIC, offset_message_id
from rmq.protocol.bodies import KVTable, SubscriptionGroupConfig, TopicConfig
from rmq.protocol.codes import SYS_COMMIT, SYS_PREPARED, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import EndTransactionRequestHeader
from rmq.protocol.record import Record
from rmq.store.config import BrokerRole
from tests.unit.broker.replication.slaves import slave, slave_on

from ..rig import Rig, batch, pull, send


def copied(master: Rig, **store: Any) -> Rig:
    """A slave that has the master's log and topics."""
    made = slave(**store)
    made.broker.copied_log.append(0, master.store.read_raw(0, 1 << 20))
    made.broker.files.copy("topics", master.broker.topics.to_json())
    return made


def half(rig: Rig) -> Command:
    """The request that ends the transaction that a half message in `rig` began."""
    answer = rig.one(send(properties="TRAN_MSG\x01true\x02PGROUP\x01producers", sys_flag=SYS_PREPARED))
    header = EndTransactionRequestHeader(
        producer_group="producers",
        tran_state_table_offset=int(answer.ext["queueOffset"]),
        commit_log_offset=int(answer.ext["msgId"][-16:], 16),
        commit_or_rollback=SYS_COMMIT,
        msg_id="M",
    )
    return Command.request(RequestCode.END_TRANSACTION, header)


def test_a_slave_s_store_takes_no_record_of_its_own() -> None:
    rig = slave()
    with pytest.raises(StoreError, match="slave"):
        rig.store.put(Record("Orders", 0, b"mine"))
    with pytest.raises(StoreError, match="slave"):
        rig.broker.own_writes.put(Record("Orders", 0, b"mine"))
    assert rig.store.max_physical_offset == 0


def test_a_transaction_does_not_end_on_a_slave() -> None:
    master = Rig()
    end = half(master)
    rig = copied(master)
    reach = rig.store.max_physical_offset
    answer = rig.one(end)
    assert (answer.code, rig.store.max_physical_offset) == (ResponseCode.SLAVE_NOT_AVAILABLE, reach)
    assert rig.broker.transactions.open_count == 1
    assert master.one(end).code == 0


def test_a_discarded_half_message_is_not_put_back_on_a_slave() -> None:
    master = Rig()
    record = Record(TRANS_CHECK_MAX_TIME_TOPIC, 0, b"half")
    master.broker.own_writes.put(record)
    master.broker.group_commit.commit_pending()
    rig = copied(master)
    reach = rig.store.max_physical_offset
    name = offset_message_id(rig.store.store_host, record.physical_offset)
    answer = rig.one(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": name}))
    assert (answer.code, rig.store.max_physical_offset) == (ResponseCode.SYSTEM_ERROR, reach)
    assert "slave" in (answer.remark or "")


def test_an_offset_out_of_range_leaves_no_event_on_a_slave(caplog: pytest.LogCaptureFixture) -> None:
    master = Rig()
    master.ask(*[send() for _ in range(3)])
    rig = copied(master, offset_check_in_slave=True)
    reach = rig.store.max_physical_offset
    assert rig.one(pull(offset=99)).code == ResponseCode.PULL_OFFSET_MOVED
    assert rig.store.max_physical_offset == reach
    assert "is lost" not in caplog.text


@pytest.mark.parametrize("request_", [send(), batch()])
def test_a_slave_sends_producers_to_its_master(request_: Command) -> None:
    rig = slave()
    answer = rig.one(request_)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == "service not available now: this broker is a slave; send to its master"
    assert rig.store.max_physical_offset == 0


def test_a_slave_forgets_the_topics_and_groups_that_its_master_has_deleted() -> None:
    master, rig = Rig(), slave()
    own_topics, own_groups = set(rig.broker.topics.table), set(rig.broker.groups.table)
    for name in ("Kept", "Gone"):
        master.broker.topics.update(TopicConfig(name))
        master.broker.groups.update(SubscriptionGroupConfig(name))
    copy_tables(master, rig)
    assert {"Kept", "Gone"} <= set(rig.broker.topics.table) & set(rig.broker.groups.table)
    master.broker.topics.delete("Gone")
    master.broker.groups.delete("Gone")
    copy_tables(master, rig)
    assert set(rig.broker.topics.table) == own_topics | {"Kept"}
    assert set(rig.broker.groups.table) == own_groups | {"Kept"}
    for name, data in rig.broker.saves().items():
        rig.store.save_config(name, data)
    again = Rig(disk=rig.disk.copy())
    assert "Gone" not in again.broker.topics.table
    assert "Gone" not in again.broker.groups.table


def copy_tables(master: Rig, to: Rig) -> None:
    to.broker.followed.copy("topics", master.broker.topics.to_json())
    to.broker.followed.copy("subscriptionGroup", master.broker.groups.to_json())


def test_a_slave_s_state_is_shown() -> None:
    rig = slave()

    def shown() -> tuple[str, dict[str, float]]:
        answer = rig.one(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        names = ("following_master", "replication_stopped")
        found = {
            metric.name: cast(float, metric.rows[0][1])
            for metric in run_to_end(metrics_of(rig.broker))
            if metric.name in names
        }
        return KVTable.from_json(answer.body).table["replication"], found

    assert shown() == ("not connected", {"following_master": 0, "replication_stopped": 0})
    rig.broker.replica.is_following = True
    assert shown() == ("following", {"following_master": 1, "replication_stopped": 0})
    rig.broker.replica.is_following, rig.broker.replica.stopped = False, "why"
    assert shown() == ("stopped: why", {"following_master": 0, "replication_stopped": 1})


def test_a_log_keeps_its_id_and_a_slave_made_master_takes_all_for_acknowledged() -> None:
    master, rig = Rig(), slave()
    log_id = master.broker.replica.greeting().log_id
    assert master.broker.replica.greeting().log_id == log_id
    assert Rig(disk=master.disk.copy()).broker.replica.greeting().log_id == log_id
    rig.broker.replica.follow(MasterLog(log_id, 0, 0, safe=0, leader="m"))
    assert (rig.broker.replica.log_id, rig.broker.replica.acknowledged) == (log_id, 0)
    assert slave_on(rig.disk).broker.replica.acknowledged == 0
    promoted = Rig(disk=rig.disk.copy())
    assert promoted.broker.replica.greeting().log_id == log_id
    again = Rig(disk=promoted.disk.copy(), store={"broker_role": BrokerRole.SLAVE}, broker_id=1)
    assert again.broker.replica.acknowledged is None


def test_what_a_master_at_async_flush_has_may_all_be_acknowledged() -> None:
    rig = copied(Rig())
    state, reach = rig.broker.replica, rig.store.max_physical_offset
    state.follow(MasterLog("a", 0, 0, safe=10, leader="m"))
    assert state.acknowledged == reach, "of what came before nobody knows"
    state.take_note({"safe": 1 << 40})
    assert state.acknowledged == reach
    state.follow(MasterLog("a", 0, 0, leader="m"))
    assert state.acknowledged is None
    assert slave_on(rig.disk).broker.replica.acknowledged is None, "saved before anything comes"


def test_transactions_are_where_the_log_says_not_where_the_master_is() -> None:
    """The copied table may be ahead of the log, and a half message would never be checked again."""
    master, rig = Rig(), slave()
    master.one(half(master))
    told = master.broker.delivery.now()
    rig.broker.copied_log.append(0, master.store.read_raw(0, 1 << 20))
    rig.broker.replica.take_note({"progress": told})
    for _ in range(3):
        assert master.one(half(master)).code == 0
    master.now_ms += 100_000
    while master.broker.steps.transactions() <= master.now_ms:
        pass
    ahead = master.broker.offsets.get("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert ahead == 4
    rig.broker.followed.copy("consumerOffset", master.broker.offsets.to_json())
    mine = rig.broker.offsets.get("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert mine == told["transactions"]["RMQ_SYS_TRANS_HALF_TOPIC"] == 0


@pytest.mark.parametrize("told", [{"delay": 5}, {"timer": {"first": "x"}}, {"transactions": {"T": None}}])
def test_progress_that_cannot_be_read_ends_the_link(told: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        slave().broker.replica.take_note({"progress": told})


def test_slaves_have_names_that_stay() -> None:
    peers = ("10.0.0.2:50001", "10.0.0.3:50002", "10.0.0.3:50003", "[::1]:7")
    names = slave_names(peers, {"10.0.0.2:50001": "1"})
    assert list(names.values()) == ["1", "10.0.0.3", "10.0.0.3#2", "[::1]"]


def test_a_slave_says_which_broker_it_is_with_its_requests_for_tables() -> None:
    rig = Rig()
    ask = Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
    for text in ("1 10.0.0.2:50001", "x 10.0.0.2:50002", "2", "", "3 10.0.0.2:50001"):
        rig.one(ask.with_ext({"rmqSlave": text}))
    assert rig.broker.replica.slave_ids == {"10.0.0.2:50001": "3"}
    for port in range(100):
        rig.one(ask.with_ext({"rmqSlave": f"1 10.0.0.2:{port}"}))
    assert len(rig.broker.replica.slave_ids) == 64
