"""The table of topics: what every broker has, what is made on a first message, what is saved when."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from rmq.broker.config import BrokerConfig, Settings
from rmq.broker.tables.topics import Topics, check_name
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import DiskFull, ResponseError
from rmq.protocol.bodies import TopicConfig, TopicConfigSerializeWrapper, TopicCreation
from rmq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, ResponseCode
from rmq.store.config import BrokerRole, StoreConfig

NOW = 1_700_000_000_000


class TopicsRig:
    """A table with a file that can be full, and a count of the times it told of a change."""

    def __init__(self, **settings: object) -> None:
        self.saved: list[bytes] = []
        self.full = False
        self.changes = 0
        config = BrokerConfig(broker_name="a", broker_cluster_name="C", **settings)  # type: ignore[arg-type]
        self.topics = Topics(
            Settings(config, StoreConfig()), save=self._save, now_ms=lambda: NOW, on_change=self._changed
        )

    def _save(self, data: bytes) -> None:
        if self.full:
            raise DiskFull("topics.json: no space left")
        self.saved.append(data)

    def _changed(self) -> None:
        self.changes += 1

    def create(self, topic: str, queues: int = 4, default: str = "TBW102") -> TopicConfig | None:
        return self.topics.create_for_send(topic, default, queues, "1.2.3.4:5")


@pytest.fixture
def rig() -> TopicsRig:
    return TopicsRig()


def test_a_broker_has_the_topics_that_a_java_broker_has_at_its_start(golden: Path) -> None:
    """The store of the vectors was made by a broker golden-a of GoldenCluster with default settings."""
    config = BrokerConfig(broker_name="golden-a", broker_cluster_name="GoldenCluster")
    topics = Topics(
        Settings(config, StoreConfig()), save=lambda data: None, now_ms=lambda: NOW, on_change=lambda: None
    )
    text = (golden / "store" / "config" / "topics.json").read_bytes()
    java = TopicConfigSerializeWrapper.from_json(text).topic_config_table
    assert len(topics.table) == 8
    for name, topic in topics.table.items():
        assert topic == java[name], name


def test_trace_and_default_topics_follow_the_settings() -> None:
    table = TopicsRig(trace_topic_enable=True, auto_create_topic_enable=False).topics.table
    assert table["RMQ_SYS_TRACE_TOPIC"].write_queue_nums == 1
    assert "TBW102" not in table
    table = TopicsRig(
        cluster_topic_enable=False, broker_topic_enable=False, default_topic_queue_nums=3
    ).topics.table
    assert (table["C"].perm, table["a"].perm) == (PERM_INHERIT, PERM_INHERIT)
    assert table["TBW102"].read_queue_nums == 3


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (8, 8), (16, 8), (0, 0), (-3, 0)])
def test_a_new_topic_has_the_queues_asked_for_up_to_the_default(
    rig: TopicsRig, asked: int, made: int
) -> None:
    topic = rig.create("New", asked)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums) == (made, made)
    assert topic.perm == PERM_READ | PERM_WRITE
    assert rig.create("New", 1) is topic


def test_a_topic_is_made_only_like_one_that_lets_itself_be_inherited(rig: TopicsRig) -> None:
    assert rig.create("New", default="Missing") is None
    assert rig.create("New", default="SELF_TEST_TOPIC") is None
    assert rig.topics.get("New") is None
    made = rig.create("New", default="a")  # the broker's own name is a topic with that permission
    assert made is not None
    assert made.write_queue_nums == 1


def test_without_automatic_topics_a_saved_default_topic_does_not_help() -> None:
    rig = TopicsRig(auto_create_topic_enable=False)
    table = {"TBW102": TopicConfig("TBW102", 8, 8, 7)}
    rig.topics.load(TopicConfigSerializeWrapper(table).to_json())
    assert rig.create("New") is None


def test_topics_made_on_first_use_are_told_at_once_and_saved_together(rig: TopicsRig) -> None:
    version = rig.topics.data_version
    rig.create("One")
    rig.topics.create_retry("%RETRY%g", PERM_READ | PERM_WRITE, 1)
    assert (rig.changes, rig.saved) == (2, [])
    assert rig.topics.data_version.counter == version.counter + 2
    assert set(rig.topics.unsaved) == {"One", "%RETRY%g"}
    made = rig.topics.made
    text = run_to_end(rig.topics.text())
    assert text == rig.topics.to_json()
    assert set(TopicConfigSerializeWrapper.from_json(text).topic_config_table) >= {"One", "%RETRY%g"}
    rig.create("Meanwhile")
    rig.topics.saved(made)
    assert set(rig.topics.unsaved) == {"Meanwhile"}


def test_a_topic_deleted_and_made_again_while_it_is_saved_is_not_saved(rig: TopicsRig) -> None:
    rig.create("One")
    made = rig.topics.made
    rig.topics.delete("One")
    rig.create("One")
    rig.topics.saved(made)
    assert set(rig.topics.unsaved) == {"One"}


def test_what_an_administrator_changes_is_saved_or_has_not_happened(rig: TopicsRig) -> None:
    rig.topics.update(TopicConfig("One", 2, 2))
    before = rig.topics.data_version
    rig.full = True
    with pytest.raises(DiskFull):
        rig.topics.update(TopicConfig("One", 5, 5))
    with pytest.raises(DiskFull):
        rig.topics.delete("One")
    with pytest.raises(DiskFull):
        rig.topics.set_ordered({"One"})
    assert rig.topics.get("One") == TopicConfig("One", 2, 2)
    assert (rig.topics.data_version, rig.changes, len(rig.saved)) == (before, 1, 1)


def test_deleting(rig: TopicsRig) -> None:
    rig.topics.update(TopicConfig("One", 2, 2), NOW + 5)
    assert rig.topics.data_version.timestamp == NOW + 5
    assert rig.topics.delete("One")
    assert not rig.topics.delete("One")
    assert rig.topics.get("One") is None
    assert rig.changes == 2


def test_order_follows_the_name_server(rig: TopicsRig) -> None:
    for name in ("One", "Two"):
        rig.topics.update(TopicConfig(name, 1, 1, order=name == "Two"))
    version = rig.topics.data_version
    rig.topics.set_ordered({"One": "a:1", "Missing": "a:1"})
    assert [rig.topics.table[name].order for name in ("One", "Two")] == [True, False]
    assert rig.topics.data_version.counter == version.counter + 1
    rig.topics.set_ordered({"One"})
    assert rig.topics.data_version.counter == version.counter + 1


def test_a_saved_table_lies_over_the_system_topics(rig: TopicsRig) -> None:
    rig.topics.update(TopicConfig("One", 2, 3, 4))
    other = TopicsRig().topics
    other.load(rig.saved[-1])
    assert other.table == rig.topics.table
    assert other.data_version == rig.topics.data_version
    other.load(None)
    assert other.get("One") == TopicConfig("One", 2, 3, 4)


def test_the_file_that_a_java_broker_wrote_is_read(golden: Path) -> None:
    topics = TopicsRig().topics
    topics.load((golden / "store" / "config" / "topics.json").read_bytes())
    assert topics.data_version.counter == 9
    assert topics.table["BenchmarkTest"].read_queue_nums == 1024


def test_system_topics_are_known(rig: TopicsRig) -> None:
    for name in (
        "TBW102",
        "C",
        "a",
        "C_REPLY_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_x",
        "RMQ_SYS_TRACE_TOPIC",
    ):
        assert rig.topics.is_system(name), name
    assert not rig.topics.is_system("Orders")


@pytest.mark.parametrize("name", ["", " ", None, "../x", "a/b", "a b", "x" * 128, "a\0b", "tö"])
def test_impossible_names_are_refused(name: str | None) -> None:
    with pytest.raises(ResponseError):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "x" * 127, "%RETRY%g", "a|b_c-9"])
def test_possible_names_pass(name: str) -> None:
    assert check_name(name) == name


def test_topics_made_on_first_use_have_a_limit_and_the_answer_names_it() -> None:
    rig = TopicsRig(max_auto_created_topics=14)
    at_start = len(rig.topics.table)
    assert at_start == 8
    for number in range(14 - at_start):
        assert rig.create(f"T{number}") is not None
    with pytest.raises(
        ResponseError, match=r"topic\[more\] not exist.*14 topics, see maxAutoCreatedTopics"
    ) as caught:
        rig.create("more")
    assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST
    assert rig.create("T0") is not None
    for number in range(7):  # what consumers gave back has room yet
        rig.topics.create_retry(f"%RETRY%g{number}", PERM_READ | PERM_WRITE, 1)
    with pytest.raises(ResponseError, match="maxAutoCreatedTopics"):
        rig.topics.create_retry("%DLQ%g", PERM_READ | PERM_WRITE, 1)
    rig.topics.create_retry("RMQ_SYS_TRANS_HALF_TOPIC", PERM_READ | PERM_WRITE, 1)  # ours always are
    rig.topics.update(TopicConfig("by-hand"))
    for number in range(7):
        rig.topics.delete(f"%RETRY%g{number}")
    for topic in ("by-hand", "RMQ_SYS_TRANS_HALF_TOPIC", "T0"):
        rig.topics.delete(topic)
    assert rig.create("more") is not None


def test_a_heartbeat_makes_a_retry_topic_only_while_there_are_few_topics() -> None:
    rig = TopicsRig(max_auto_created_topics=20)
    made = [rig.topics.foresee_retry(f"%RETRY%g{number}", 1) is not None for number in range(5)]
    assert made == [True, True, False, False, False]
    assert rig.topics.foresee_retry("%RETRY%g0", 1) is not None
    assert rig.topics.create_retry("%RETRY%g4", PERM_READ | PERM_WRITE, 1) is not None  # its first retry


def test_one_account_cannot_take_all_topics() -> None:
    rig = TopicsRig(max_auto_created_topics_of_account=2)

    def create(topic: str, account: str) -> TopicConfig | None:
        return rig.topics.create_for_send(
            topic, "TBW102", 4, "1.2.3.4:5", maker=(f"account {account}",) if account else ()
        )

    create("one", "app")
    rig.topics.foresee_retry("%RETRY%g", 1, maker=("account app",))
    with pytest.raises(ResponseError, match="account app has had 2 made, see maxAutoCreatedTopicsOfAccount"):
        create("two", "app")
    assert rig.topics.foresee_retry("%RETRY%h", 1, maker=("account app",)) is None
    assert create("two", "other") is not None
    assert create("three", "") is not None
    rig.topics.delete("one")
    assert create("four", "app") is not None


def test_the_text_is_that_of_the_table_whatever_became_of_it(rig: TopicsRig) -> None:
    topics = rig.topics

    def check() -> None:
        as_values = TopicConfigSerializeWrapper(topics.table, topics.data_version).to_json()
        assert topics.to_json() == run_to_end(topics.text()) == as_values

    check()
    for number in range(5):
        rig.create(f"New-{number}")
        check()
    topics.update(TopicConfig("New-1", 7, 7))
    check()
    topics.set_ordered({"New-2"})
    check()
    rig.full = True
    with pytest.raises(DiskFull):
        topics.update(TopicConfig("New-3", 1, 1))
    check()
    rig.full = False
    topics.delete("New-2")
    topics.forget({"New-0", "New-1"})
    check()
    topics.update(TopicConfig("New-2", 9, 9))
    check()
    wrapper = TopicConfigSerializeWrapper({"Other": TopicConfig("Other")}, topics.data_version)
    topics.load(wrapper.to_json())
    assert b'"Other"' in topics.to_json()
    check()


def test_a_change_makes_the_text_of_one_topic_only(rig: TopicsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20,000 topics all of it took 100 ms, for each change and each registration."""
    made: list[str] = []
    real = TopicConfig.to_json

    def counted(topic: TopicConfig) -> bytes:
        made.append(topic.topic_name)
        return real(topic)

    rig.topics.to_json()
    monkeypatch.setattr(TopicConfig, "to_json", counted)
    rig.create("New")
    rig.topics.to_json()
    rig.topics.update(TopicConfig("Other", 1, 1))
    rig.topics.to_json()
    run_to_end(rig.topics.text())
    assert made == ["New", "Other"]


def test_topics_that_are_gone_leave_no_text(rig: TopicsRig) -> None:
    for number in range(200):
        rig.create(f"New-{number}")
    rig.topics.to_json()
    rig.topics.forget({f"New-{number}" for number in range(200)})
    rig.topics.to_json()
    assert len(rig.topics._text._rows) == len(rig.topics.table)


# --- the creation, which tells topics of one name apart ---


class Ends:
    """A table whose log ends where the test says."""

    def __init__(self, role: BrokerRole = BrokerRole.ASYNC_MASTER) -> None:
        self.log_end = 1_000
        self.saved: list[bytes] = []
        self.topics = Topics(
            Settings(BrokerConfig(broker_name="a"), StoreConfig(broker_role=role)),
            save=self.saved.append,
            now_ms=lambda: NOW,
            on_change=lambda: None,
            log_end=lambda: self.log_end,
        )

    def creation(self, topic: str = "T") -> TopicCreation | None:
        row = self.topics.get(topic)
        assert row is not None
        return row.creation


def test_a_topic_keeps_its_creation_and_one_made_again_gets_another() -> None:
    rig = Ends()
    rig.topics.update(TopicConfig("T", 1, 1))
    first = rig.topics.table["T"]
    assert first.creation == TopicCreation(NOW, 1_000)
    rig.log_end = 2_000
    rig.topics.update(TopicConfig("T", 8, 8))
    rig.topics.set_ordered({"T"})
    assert rig.creation() == first.creation
    assert not rig.topics.table["T"].is_made_after(first)
    rig.topics.change("T", None)()  # the deletion could not be saved
    assert rig.creation() == first.creation
    rig.topics.delete("T")
    rig.topics.ended("T", 50)
    rig.topics.change("T", TopicConfig("T", 1, 1))
    assert rig.creation() == TopicCreation(NOW + 1, 2_000, 50)  # in the same ms, and yet another
    assert rig.topics.table["T"].is_made_after(first)
    assert first == attrs.evolve(rig.topics.table["T"])  # the settings are the same


@pytest.mark.parametrize("how", ["send", "retry", "foreseen", "adopted"])
def test_topics_that_are_made_on_first_use_have_a_creation(how: str) -> None:
    topics = Ends().topics
    if how == "send":
        topics.create_for_send("T", "TBW102", 4, "1.2.3.4:5")
    elif how == "retry":
        topics.create_retry("T", 6, 1)
    elif how == "foreseen":
        topics.foresee_retry("T", 1)
    else:
        topics.adopt(TopicConfig("T", 1, 1, creation=TopicCreation(1, 2)))
    row = topics.get("T")
    assert row is not None
    assert row.creation == TopicCreation(NOW, 1_000)


def test_the_creation_is_in_the_file_and_travels_to_a_slave_which_gives_none() -> None:
    rig, slave = Ends(), Ends(BrokerRole.SLAVE)
    rig.topics.update(TopicConfig("T", 1, 1))
    other = Ends()
    other.topics.load(rig.saved[-1])
    assert other.creation() == rig.creation() == TopicCreation(NOW, 1_000)
    other.topics.update(TopicConfig("U", 1, 1))
    assert other.creation("U") == TopicCreation(NOW + 1, 1_000)  # later than all of the file
    slave.topics.foresee_retry("T", 1)
    assert slave.creation() is None
    before = slave.topics.table["T"]
    assert slave.topics.apply_delta(*rig.topics.rows_of(rig.topics.text_of(["T"])), [])
    assert slave.creation() == rig.creation()
    assert slave.topics.table["T"].is_made_after(before)
    assert not slave.topics.apply_delta(*rig.topics.rows_of(rig.topics.text_of(["T"])), [])
    rig.topics.delete("T")
    rig.topics.update(TopicConfig("T", 1, 1))  # the same in all but its creation
    before = slave.topics.table["T"]
    assert slave.topics.apply_delta(*rig.topics.rows_of(rig.topics.text_of(["T"])), [])
    assert slave.topics.table["T"].is_made_after(before)


def test_a_row_without_a_creation_as_java_writes_it_is_no_other_topic() -> None:
    rig = Ends()
    rig.topics.update(TopicConfig("T", 1, 1))
    row = rig.topics.table["T"]
    assert not attrs.evolve(row, creation=None).is_made_after(row)
    assert b"creation" not in TopicConfig("T").to_json()


def test_a_log_that_was_cut_takes_the_beginning_of_its_newest_topics_back() -> None:
    rig = Ends()
    rig.topics.update(TopicConfig("Old", 1, 1))
    rig.log_end = 2_000
    rig.topics.update(TopicConfig("T", 1, 1))
    before = rig.topics.table["T"]
    other, slave = Ends(), Ends(BrokerRole.SLAVE)
    other.log_end = slave.log_end = 1_500
    other.topics.load(rig.saved[-1])
    assert other.creation("Old") == TopicCreation(NOW, 1_000)
    assert other.creation() == TopicCreation(NOW + 1, 1_500)
    assert not other.topics.table["T"].is_made_after(before)
    assert list(other.topics.unsaved) == ["T"]
    slave.topics.load(rig.saved[-1])
    assert slave.creation() == before.creation  # the rest of the log may be on its way


def test_ends_of_deleted_topics_are_not_remembered_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.broker.tables.topics.ENDS_KEPT", 2)
    topics = Ends().topics
    for number, name in enumerate(("A", "B", "A", "C"), 1):
        topics.ended(name, number)
    for name in ("A", "B", "C"):
        topics.update(TopicConfig(name, 1, 1))
    ends = [row.creation.earlier_end for name in "ABC" if (row := topics.table[name]).creation]
    assert ends == [3, 0, 4]
