"""SQL92 filters through a whole broker: what clients announce, what is kept of it, what is handed out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from rmq.broker.consume import read
from rmq.broker.filtering import filters as filter_module
from rmq.broker.filtering.filters import DEAD_BEFORE_MS, record_properties
from rmq.broker.membership.members import ConsumerGroup
from rmq.broker.tables.versioned import run_to_end
from rmq.errors import CorruptRecord
from rmq.protocol.bodies import CheckClientRequestBody, ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import UnregisterClientRequestHeader
from rmq.protocol.record import decode_record, decode_records
from tests.unit.broker.wire import Session, command_of

from ..rig import START, Rig, Wire, pull, send

DAY = 86_400_000
WAITING = 2


@pytest.fixture
def rig() -> Rig:
    rig = Rig(enable_property_filter=True)
    rig.ask(*(send(body=b"%d" % number, properties=f"n\x01{number}\x02TAGS\x01T") for number in range(5)))
    return rig


def sql(expression: str, version: int = 1, topic: str = "Orders") -> SubscriptionData:
    return SubscriptionData(topic, expression, sub_version=version, expression_type="SQL92")


def announce(rig: Rig, *wanted: SubscriptionData, wire: Wire | None = None, client: str = "c@1") -> None:
    data = ConsumerData("readers", "CONSUME_PASSIVELY", "CLUSTERING")
    data.subscription_data_set.extend(wanted)
    body = HeartbeatData(client, consumer_data_set=[data]).to_json()
    answers = rig.ask(Command.request(RequestCode.HEART_BEAT, None, body), wire=wire)
    assert answers[-1].code == 0


def bodies(answer: Command) -> str:
    return "".join(message.body.decode() for message in decode_records(answer.body))


def plain(version: int = 1, **fields: Any) -> Command:
    """A pull that relies on what the heartbeats announced."""
    return pull(
        **{"sys_flag": 0, "subscription": None, "expression_type": "SQL92", "sub_version": version} | fields
    )


def saved(rig: Rig) -> dict[str, Any] | None:
    data = rig.broker.saves().get("consumerFilter")
    return None if data is None else json.loads(data)["filterDataByTopic"]


# --- pulls ---


def test_the_filter_of_the_heartbeats_selects(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    assert bodies(rig.one(plain())) == "34"


def test_a_slave_filters_by_what_was_announced_to_its_master(rig: Rig) -> None:
    def follow(expression: str, version: int = 1) -> None:
        group = ConsumerGroup("readers", subscriptions={"Orders": sql(expression, version)})
        rig.clients.known_subscriptions.apply_delta({"readers": group}, None, None)

    follow("n > 2")
    assert bodies(rig.one(plain())) == "34"
    assert rig.one(plain(2)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    follow("n < 2", version=2)
    assert bodies(rig.one(plain(2))) == "01"
    announce(rig, sql("n > 3", version=3))
    assert bodies(rig.one(plain(3))) == "4"


def test_a_newer_filter_takes_over_at_once(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    rig.one(plain())
    announce(rig, sql("n < 2", version=2))
    assert bodies(rig.one(plain(2))) == "01"


def test_a_filter_of_the_same_version_does_not_take_over(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    announce(rig, sql("n < 2"))
    assert bodies(rig.one(plain())) == "34"


def test_only_expressions_make_filters(rig: Rig) -> None:
    announce(rig, SubscriptionData(topic="Orders", sub_string="*", sub_version=1))
    assert (rig.broker.filters.get("Orders", "readers"), saved(rig)) == (None, None)
    announce(rig, sql("", version=2))
    assert (rig.broker.filters.get("Orders", "readers"), saved(rig)) == (None, None)


def test_a_filter_that_cannot_be_compiled_is_not_there(rig: Rig) -> None:
    announce(rig, sql("n >"))
    answer = rig.one(plain())
    assert (answer.code, answer.remark) == (
        ResponseCode.FILTER_DATA_NOT_EXIST,
        "The broker's consumer filter data is not exist!Your expression may be wrong!",
    )
    announce(rig, sql("n > 3", version=2))
    assert bodies(rig.one(plain(2))) == "4"
    announce(rig, sql("n >", version=3))
    assert rig.one(plain(3)).code == ResponseCode.FILTER_DATA_NOT_EXIST


def test_a_filter_from_the_future_keeps_no_other_out(rig: Rig) -> None:
    announce(rig, sql("n > 2", version=2**63 - 1))
    assert bodies(rig.one(plain(2**63 - 1))) == "34"
    rig.now_ms += 1
    announce(rig, sql("n < 2", version=rig.now_ms))
    assert bodies(rig.one(plain(rig.now_ms))) == "01"
    saved = json.loads(rig.broker.filters.to_json())
    saved["filterDataByTopic"]["Orders"]["groupFilterData"]["readers"]["clientVersion"] = 2**63 - 1
    again = Rig(enable_property_filter=True)
    again.broker.filters.load(json.dumps(saved).encode())
    announce(again, sql("n > 3", version=5))
    known = again.broker.filters.get("Orders", "readers")
    assert known is not None
    assert (known.expression, known.client_version) == ("n > 3", 5)


def test_a_filter_older_than_the_pullers_is_refused(rig: Rig) -> None:
    announce(rig, sql("n > 2", version=7))
    group = rig.broker.clients.consumer_group("readers")
    assert group is not None
    group.subscriptions["Orders"] = sql("n > 3", version=8)
    answer = rig.one(plain(8))
    assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST
    assert rig.one(plain(9)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_a_filter_is_compiled_once_for_many_pulls(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq.broker.filtering import filters

    compiled: list[str] = []
    real = filters.compile_sql
    monkeypatch.setattr(filters, "compile_sql", lambda text: compiled.append(text) or real(text))
    announce(rig, sql("n > 2"))
    announce(rig, sql("n > 2"))
    for _ in range(3):
        rig.one(plain())
        rig.one(pull(subscription="n > 1", expression_type="SQL92"))
    assert compiled == ["n > 2", "n > 1"]


def test_a_waiting_pull_skips_what_its_filter_refuses(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    assert rig.ask(plain(queue_offset=5, sys_flag=WAITING)) == []
    rig.one(send(properties="n\x011"), wire=Wire())
    assert rig.wire.take() == []
    rig.one(send(body=b"9", properties="n\x019"), wire=Wire())
    (answer,) = rig.wire.take()
    assert (bodies(answer), answer.ext["nextBeginOffset"]) == ("9", "7")


def test_a_broker_without_property_filters_refuses_as_java_does() -> None:
    rig = Rig()
    rig.one(send())
    announce(rig, sql("n > 2"))
    for request in (plain(), pull(subscription="n > 2", expression_type="SQL92")):
        answer = rig.one(request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(
            "The broker does not support consumer to filter message by SQL92"
        )


def test_the_setting_holds_from_one_pull_to_the_next(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    assert rig.one(plain()).code == 0
    change = Command.request(RequestCode.UPDATE_BROKER_CONFIG, None, b"enablePropertyFilter=false")
    assert rig.one(change).code == 0
    assert rig.one(plain()).code == ResponseCode.SYSTEM_ERROR


def test_retried_messages_are_filtered_where_that_is_wanted() -> None:
    rig = Rig(enable_property_filter=True, filter_support_retry=True)
    announce(rig, sql("n > 2"), SubscriptionData("%RETRY%readers", "*"))
    for number in range(5):
        text = f"n\x01{number}\x02RETRY_TOPIC\x01Orders"
        rig.one(send("%RETRY%readers", b"%d" % number, properties=text))
    rig.one(send("%RETRY%readers", b"x", properties="n\x010\x02RETRY_TOPIC\x01Other"))
    request = plain(topic="%RETRY%readers", expression_type="TAG", sub_version=0)
    assert bodies(rig.one(request)) == "34x"


# --- checks before subscribing ---


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (sql("n > 2"), 0),
        (sql("n >"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (sql("NOT n > 2"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (SubscriptionData("T", "x", expression_type="XPATH"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (SubscriptionData("T", "a || b"), 0),
    ],
)
def test_a_client_asks_before_it_subscribes(rig: Rig, wanted: SubscriptionData, code: int) -> None:
    body = CheckClientRequestBody("c@1", "readers", wanted).to_json()
    assert rig.one(Command.request(RequestCode.CHECK_CLIENT_CONFIG, None, body)).code == code


def test_a_broker_without_property_filters_says_so() -> None:
    body = CheckClientRequestBody("c@1", "readers", sql("n >")).to_json()
    answer = Rig().one(Command.request(RequestCode.CHECK_CLIENT_CONFIG, None, body))
    assert answer.code == ResponseCode.SYSTEM_ERROR


# --- the file ---


def test_the_file_has_javas_shape_and_bloom_data(golden: Path) -> None:
    """All but the times, from the same subscription that a Java client made at a Java broker."""
    file = json.loads((golden / "store" / "config" / "consumerFilter.json").read_text())
    java = file["filterDataByTopic"]["TopicTest"]["groupFilterData"]["golden_sql_group"]
    rig = Rig(enable_property_filter=True)
    rig.now_ms = java["bornTime"]
    wanted = sql(java["expression"], java["clientVersion"], "TopicTest")
    rig.broker.filters.register("golden_sql_group", [wanted])
    rig.now_ms = java["deadTime"]
    rig.broker.filters.unregister("golden_sql_group")
    text = rig.broker.saves()["consumerFilter"]
    assert json.loads(text) == file
    row = json.loads(text)["filterDataByTopic"]["TopicTest"]["groupFilterData"]["golden_sql_group"]
    assert list(row) == list(java)


def test_the_text_is_made_in_slices_and_what_changes_meanwhile_is_saved_the_next_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_module, "SLICE_ROWS", 2)
    filters = rig.broker.filters
    for number in range(6):
        filters.register(f"g{number}", [sql(f"a > {number}", topic=f"T{number % 2}")])
    filters.register("gone", [sql("a > 9", topic="Gone")])
    filters._table["Gone"].clear()
    work = filters.text()
    next(work)
    filters.register("late", [sql("b > 1", topic="T1")])
    rows = json.loads(run_to_end(work))["filterDataByTopic"]
    assert {topic: set(table["groupFilterData"]) for topic, table in rows.items()} == {
        "T0": {"g0", "g2", "g4"},
        "T1": {"g1", "g3", "g5", "late"},
    }
    assert {table["topic"] for table in rows.values()} == {"T0", "T1"}
    assert filters.is_changed
    assert run_to_end(filters.text()) == filters.to_json()
    assert not filters.is_changed
    assert len(list(filters.text())) == 3


def test_a_java_brokers_file_is_read(golden: Path, tmp_path: Path) -> None:
    rig = Rig(enable_property_filter=True)
    path = tmp_path / "consumerFilter.json"
    shutil.copy(golden / "store" / "config" / "consumerFilter.json", path)
    rig.broker.filters.load(path.read_bytes())
    known = rig.broker.filters.get("TopicTest", "golden_sql_group")
    assert known is not None
    assert (known.expression, known.is_dead) == ("TAGS = 'TagA' AND a IS NULL", True)
    assert known.matches is not None
    assert known.matches({"TAGS": "TagA"})
    assert not known.matches({"TAGS": "TagA", "a": "1"})
    assert (
        rig.broker.filters.to_json()
        == json.dumps(json.loads(path.read_text()), separators=(",", ":")).encode()
    )


def test_groups_die_and_come_alive_again(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    table = saved(rig)
    assert table is not None
    assert table["Orders"]["groupFilterData"]["readers"]["deadTime"] == 0
    assert table["Orders"]["groupFilterData"]["readers"]["dead"] is False
    assert saved(rig) is None, "nothing has changed"
    rig.now_ms += 1000
    leave = UnregisterClientRequestHeader("c@1", None, "readers")
    rig.one(Command.request(RequestCode.UNREGISTER_CLIENT, leave))
    table = saved(rig)
    assert table is not None
    row = table["Orders"]["groupFilterData"]["readers"]
    assert (row["bornTime"], row["deadTime"], row["dead"]) == (START, START + 1000, True)
    announce(rig, sql("n > 2"))
    assert bodies(rig.one(plain())) == "34"
    known = rig.broker.filters.get("Orders", "readers")
    assert known is not None
    assert (known.is_dead, known.born_ms) == (False, START)


def test_a_topic_that_is_dropped_has_a_dead_filter(rig: Rig) -> None:
    announce(rig, sql("n > 2"), sql("n > 3", topic="Other"))
    announce(rig, sql("n > 2"))
    orders, other = (rig.broker.filters.get(topic, "readers") for topic in ("Orders", "Other"))
    assert orders is not None
    assert other is not None
    assert (orders.is_dead, other.is_dead) == (False, True)


def test_a_closed_connection_lets_the_filter_die(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    rig.broker.on_close(rig.wire)  # type: ignore[arg-type]
    known = rig.broker.filters.get("Orders", "readers")
    assert known is not None
    assert known.is_dead


def test_long_dead_filters_are_removed(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    rig.broker.on_close(rig.wire)  # type: ignore[arg-type]
    assert saved(rig) is not None
    rig.now_ms += DAY - 1
    assert saved(rig) is None
    rig.now_ms += 1
    assert saved(rig) == {}


def test_a_filter_dies_though_the_clock_was_set_back(rig: Rig) -> None:
    """It died before it was born, and so it was alive for ever, and took one of the places."""
    announce(rig, sql("n > 2"))
    rig.now_ms -= 3 * DAY
    rig.broker.on_close(rig.wire)  # type: ignore[arg-type]
    known = rig.broker.filters.get("Orders", "readers")
    assert known is not None
    assert known.is_dead
    assert saved(rig) is not None
    rig.now_ms += 4 * DAY
    assert saved(rig) == {}


def test_a_restart_knows_the_filters_and_thinks_them_dead(rig: Rig) -> None:
    announce(rig, sql("n > 2"))
    for name, data in rig.broker.saves().items():
        rig.store.save_config(name, data)
    rig.store.close()
    again = Rig(disk=rig.disk, enable_property_filter=True)
    known = again.broker.filters.get("Orders", "readers")
    assert known is not None
    assert (known.is_dead, known.dead_ms) == (True, START)  # not before it was born
    again.broker.filters.load(rig.store.config_text("consumerFilter"))
    again.now_ms += 2 * DEAD_BEFORE_MS
    again.broker.filters.load(rig.store.config_text("consumerFilter"))
    known = again.broker.filters.get("Orders", "readers")
    assert known is not None
    assert known.dead_ms == START + DEAD_BEFORE_MS
    announce(again, sql("n > 2"))
    assert bodies(again.one(plain())) == "34"


def test_nothing_is_compiled_while_filters_are_off(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    """The switch is asked first: by heartbeats, pulls, checks, and the load of what was saved."""
    announce(rig, sql("n > 2"))
    kept = rig.broker.saves()["consumerFilter"]
    off = Rig()
    off.ask(send(properties="n\x013"))
    compiled: list[str] = []
    compiler = filter_module.compile_sql
    monkeypatch.setattr(
        filter_module,
        "compile_sql",
        lambda text: compiled.append(text) or compiler(text),  # type: ignore[func-returns-value]
    )
    off.broker.filters.load(kept)
    announce(off, sql("n > 1", version=2), sql("n > 7", topic="Other"))
    for request in (plain(2), pull(subscription="n > 5", expression_type="SQL92")):
        answer = off.one(request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "enablePropertyFilter=true" in (answer.remark or "")
    assert compiled == []
    off.broker.settings.replace(evolve(off.config, enable_property_filter=True), off.store_config)
    assert compiled == ["n > 2"]
    announce(off, sql("n > 1", version=2))
    assert len(decode_records(off.one(plain(2)).body)) == 1


def test_filters_that_come_together_are_compiled_when_they_are_needed(
    monkeypatch: pytest.MonkeyPatch, rig: Rig
) -> None:
    """60 of 8 kB in one heartbeat held everybody up for 1.7 s, and those that were saved for minutes at a
    start."""
    compiled: list[int] = []
    compiler = filter_module.compile_sql
    monkeypatch.setattr(
        filter_module,
        "compile_sql",
        lambda text: compiled.append(len(text)) or compiler(text),  # type: ignore[func-returns-value]
    )
    long = " OR ".join(f"n = {number}" for number in range(7, 700))
    rig.one(send("X"))
    many = [sql(long, topic=f"T{number}") for number in range(60)]
    announce(rig, *many, sql("n > 2"), sql("n >", topic="X"))
    assert sum(compiled) <= filter_module.AT_ONCE
    assert len(saved(rig) or ()) == 62
    again = Rig(enable_property_filter=True)
    again.broker.filters.load(rig.broker.filters.to_json())
    assert sum(compiled) <= 2 * filter_module.AT_ONCE
    assert bodies(rig.one(plain())) == "34"
    answer = rig.one(plain(topic="X"))
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert len(saved(rig) or ()) == 61


def check(expression: str) -> Command:
    body = CheckClientRequestBody("c@1", "readers", sql(expression)).to_json()
    return Command.request(RequestCode.CHECK_CLIENT_CONFIG, None, body)


def inline(expression: str) -> Command:
    return pull(subscription=expression, expression_type="SQL92", sys_flag=4)


@pytest.mark.parametrize("ask", [check, inline])
def test_ever_new_expressions_of_an_address_are_compiled_slowly(
    rig: Rig, ask: Callable[[str], Command]
) -> None:
    """A flood of them held everybody up for 30 ms each time: others waited 145 ms, not 25."""
    text = " OR ".join(["n = 1"] * 800)
    attacker, again = Wire("10.9.9.9:1"), Wire("10.9.9.9:2")
    in_one_go = filter_module.AT_ONCE * filter_module.COMPILED_BURST_SECONDS

    def codes(count: int, wire: Wire) -> list[int]:
        return [rig.one(ask(f"{text} OR n = {next(numbers)}"), wire=wire).code for _ in range(count)]

    numbers = count(2)
    told = codes(20, attacker)
    assert told.count(0) == in_one_go // len(text) + 1
    assert set(told) == {0, ResponseCode.SYSTEM_BUSY}
    assert codes(2, again) == [ResponseCode.SYSTEM_BUSY] * 2
    assert rig.one(ask("n > 2")).code == 0  # of another address
    rig.let_pass(60_000)
    assert codes(1, again) == [0]


def test_a_group_s_expressions_count_for_who_pulls_with_them(rig: Rig) -> None:
    text = " OR ".join(["n = 1"] * 800)
    topics = [f"T{number}" for number in range(20)]
    announce(rig, *(sql(text, topic=topic) for topic in topics))
    rig.ask(*(send(topic) for topic in topics))
    told = [rig.one(plain(topic=topic)).code for topic in topics]
    assert told[0] != ResponseCode.SYSTEM_BUSY
    assert told[-1] == ResponseCode.SYSTEM_BUSY
    assert [rig.one(plain(topic=topic)).code for topic in topics] == told  # what is compiled costs nothing
    rig.let_pass(5_000)
    assert rig.one(plain(topic=topics[-1])).code == told[0]


def test_expressions_together_have_a_limit(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    monkeypatch.setattr(filter_module, "CHARACTERS_MAX", 12)
    rig = Rig(enable_property_filter=True, trusted_gateways=("10.0.0.0/8",))
    announce(rig, *(sql("n > 2", topic=f"T{number}") for number in range(9)))
    assert len(saved(rig) or ()) == 2
    announce(rig, *(sql("n > 22", topic=f"T{number}", version=2) for number in range(2)))
    assert len(saved(rig) or ()) == 2
    announce(rig, *(sql("n > 222", topic=f"T{number}", version=3) for number in range(2)))
    assert len(saved(rig) or ()) == 1


def test_filters_have_a_limit(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    monkeypatch.setattr(filter_module, "FILTERS_MAX", 3)
    rig = Rig(enable_property_filter=True, trusted_gateways=("10.0.0.0/8",))
    announce(rig, *(sql("n > 2", topic=f"T{number}") for number in range(9)))
    assert len(saved(rig) or ()) == 3
    rig.broker.on_close(rig.wire)  # type: ignore[arg-type]
    rig.now_ms += DAY
    assert saved(rig) == {}
    announce(rig, *(sql("n > 2", topic=f"U{number}") for number in range(9)))
    assert len(saved(rig) or ()) == 3


def test_a_pull_asks_a_long_expression_about_few_messages_and_goes_on_behind_them() -> None:
    rig = Rig(enable_property_filter=True, store={"mapped_file_size_consume_queue": 40_000})
    for _ in range(17):
        rig.ask(*(send(properties="a\x01zzz") for _ in range(50)))
    rig.one(send(properties="a\x01last"))
    for length, most in ((400, 800), (4_096, 100), (8_192, 50)):
        expression = f"a = 'last' OR a IN ('{'x' * (length - 25)}')"
        offset, looks = 0, []
        while True:
            answer = rig.one(pull(offset=offset, subscription=expression, expression_type="SQL92"))
            looks.append(int(answer.ext["nextBeginOffset"]) - offset)
            offset += looks[-1]
            if answer.code == ResponseCode.SUCCESS:
                break
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert max(looks) <= most + 1
        assert sum(looks) == 851


def test_plans_of_pulls_take_bounded_memory(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    """Each pull may bring an expression of its own; what is remembered of them must not add up."""
    monkeypatch.setattr(read, "_PLANS_SIZE_MAX", 1 << 20)
    for number in range(40):
        tags = "||".join(f"tag{number}-{at}" for at in range(800))
        assert rig.one(pull(subscription=tags, expression_type="TAG")).code != 0
        assert len(rig.broker.reader._plans) <= 2


def test_other_bloom_settings_drop_the_saved_filters(golden: Path) -> None:
    data = (golden / "store" / "config" / "consumerFilter.json").read_bytes()
    rig = Rig(expect_consumer_num_use_filter=64)
    rig.broker.filters.load(data)
    assert rig.broker.filters.get("TopicTest", "golden_sql_group") is None


# --- records ---


def test_properties_are_read_from_a_record_alone(golden: Path) -> None:
    vectors = json.loads((golden / "message_codec.json").read_text())
    records = [bytes.fromhex(vector["hex"]) for vector in _with_hex(vectors)]
    assert len(records) > 3
    for record in records:
        whole = decode_record(record, check_crc=False, decompressed=False)
        assert record_properties(memoryview(record)) == whole.properties


def _with_hex(vectors: Any) -> list[dict[str, Any]]:
    return [vector for vector in vectors["messages"] if "hex" in vector]


@pytest.mark.parametrize("record", [b"", bytes(40), bytes(84) + b"\x00\x00\xff\xff"])
def test_a_damaged_record_is_not_read(record: bytes) -> None:
    with pytest.raises(CorruptRecord):
        record_properties(memoryview(record))


# --- a Java client ---


def test_a_java_lite_pull_consumers_session(golden: Path) -> None:
    """Check, heartbeat, pulls by SQL and the end; answers equal the Java broker's but for the clock."""
    rig = Rig(enable_property_filter=True, default_topic_queue_nums=8)
    producer = Session(golden / "wire_sessions" / "1_producer_send.jsonl")
    for line in producer.lines:
        if line["dir"] == "c2s" and line["code"] in (310, 320):
            rig.ask(command_of(line), wire=Wire())
    for queue_id in (1, 2):  # what came during session 3
        rig.ask(send("WireTopic", queue_id=queue_id, properties="TAGS\x01TagB"))
    rig.now_ms += 1000
    rig.broker.steps.schedule()
    session = Session(golden / "wire_sessions" / "5_lite_pull_sql.jsonl")
    java = session.answers()
    compared = 0
    for line in session.lines:
        if line["dir"] != "c2s":
            continue
        for answer in rig.ask(command_of(line)):
            if not answer.is_response:
                assert answer.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                continue
            expected = java[answer.opaque]
            compared += 1
            assert (answer.code, answer.remark) == (expected["code"], expected.get("remark")), line
            assert dict(answer.ext) == (expected.get("ext") or {}), line
    assert compared == 13
