"""Topics and groups of a controlled set: what a slave says of its files, and of topics deleted there."""

from __future__ import annotations

import pytest

from rmq.broker.replication.sessions import REPORT, MasterLog, MasterSession, named_hello
from rmq.broker.replication.table_replication import GROUPS, LOCKS, OFFSETS, TOPICS, TableSender, row_report
from rmq.broker.wakeups import Wakeups
from rmq.errors import RemoteProtocolError
from rmq.protocol import json
from rmq.store.config import BrokerRole

from ..rig import Rig

REPORTS_SAVED = 1 << 61
ROWS = '{"topicConfigTable":{"New":{"topicName":"New","readQueueNums":4,"writeQueueNums":4,"perm":6}}}'


def slave() -> Rig:
    """A slave whose topics are saved later."""
    wake = Wakeups(new_topics=lambda: None)
    return Rig(store={"broker_role": BrokerRole.SLAVE}, broker_id=1, given={"wake": wake})


def test_a_slave_reports_topics_once_they_are_in_its_file() -> None:
    to = slave()
    to.broker.followed.begin(hears_saved=True)
    assert to.broker.followed.reports() == [REPORTS_SAVED]
    to.broker.followed.take({"table": TOPICS, "rows": ROWS, "gone": [], "serial": 3})
    assert not to.broker.followed.has_reports
    assert to.broker.followed.reports() == []
    to.topics.saved(to.topics.made)
    assert to.broker.followed.has_reports
    assert to.broker.followed.reports() == [row_report(TOPICS, 3)]
    assert to.broker.followed.reports() == []


def test_a_slave_says_nothing_of_its_files_to_a_master_that_does_not_hear_it() -> None:
    to = slave()
    to.broker.followed.begin()
    to.broker.followed.take({"table": TOPICS, "rows": ROWS, "gone": [], "serial": 3})
    to.topics.saved(to.topics.made)
    assert not to.broker.followed.has_reports
    assert to.broker.followed.reports() == []


def test_reports_of_all_tables_are_different_numbers_and_fit_a_word() -> None:
    numbers = {row_report(table, serial) for table in (OFFSETS, LOCKS, TOPICS, GROUPS) for serial in range(9)}
    assert len(numbers) == 36
    assert row_report(LOCKS, 4) == 9, "as slaves of an earlier version say it"
    assert all(-2 - number > -(1 << 62) for number in (*numbers, REPORTS_SAVED))


def a_feed(master: Rig) -> TableSender:
    return TableSender(master.broker.followed.tables, lambda: master.store.max_physical_offset)


def test_of_a_slave_that_reports_no_files_it_counts_what_it_was_told() -> None:
    master = Rig()
    feed = a_feed(master)
    assert feed.had(TOPICS) == -1
    while feed.note(0):
        pass
    assert feed.had(TOPICS) == master.topics.changes.serial
    assert feed.had(OFFSETS) == -1
    feed.heard(REPORTS_SAVED)
    assert feed.had(TOPICS) == -1
    feed.heard(row_report(TOPICS, master.topics.changes.serial))
    assert feed.had(TOPICS) == master.topics.changes.serial
    with pytest.raises(RemoteProtocolError):
        feed.heard(row_report(GROUPS, 99))


def session(master: Rig, heard: list[dict[str, int]]) -> MasterSession:
    log = MasterLog("log", 0, 0, hears_saved=True)
    assert MasterLog.from_note(log.to_note()).hears_saved
    made = MasterSession(
        master.store,
        0.0,
        greet=lambda: log,
        admit=lambda number, epoch: None,
        waiting=Polls(),
        deleted=lambda topics: heard.append(dict(topics)),
    )
    made.received(named_hello(2, 1) + REPORT.pack(0))
    return made


class Polls:
    def __len__(self) -> int:
        return 0

    def take(self, text: bytes) -> None:
        assert json.loads(text) == []

    def answer(self) -> int:
        return 0


def text_of(data: bytes) -> bytes:
    return REPORT.pack(-(1 << 63) + len(data)) + data


def test_a_master_hears_of_topics_that_are_deleted_at_a_slave() -> None:
    heard: list[dict[str, int]] = []
    made = session(Rig(), heard)
    made.received(text_of(json.dumps({"deleted": {"Gone": 7}})) + text_of(b"[]"))
    assert heard == [{"Gone": 7}]
    for text in (b"{}", b'{"deleted": 7}', b'{"deleted": {"Gone": null}}', b"{"):
        with pytest.raises(RemoteProtocolError):
            session(Rig(), heard).received(text_of(text))


def test_only_the_very_same_topic_is_deleted_for_a_slave() -> None:
    master = Rig()
    master.topic("Gone", 1)
    creation = master.topics.table["Gone"].creation
    assert creation is not None
    master.broker.admin.deleted_elsewhere({"Gone": creation.time_ms - 1, "Unknown": 5})
    assert "Gone" in master.topics.table
    master.broker.admin.deleted_elsewhere({"Gone": creation.time_ms})
    assert "Gone" not in master.topics.table
