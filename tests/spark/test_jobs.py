"""Streams of a file with steps: bodies decoded, checked, set apart, merged by key, evolved, compacted."""

from __future__ import annotations

import json
import pathlib
import runpy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pyspark.sql.types import StructType

from rmq.errors import ConfigError
from rmq.spark import dead_letters, read_added, read_jobs, read_merged
from rmq.spark.jobs.evolve import Evolution, evolution
from rmq.spark.jobs.lineage import Lineage, run_event
from rmq.spark.jobs.run import Ran
from rmq.spark.jobs.targets import merge_sql
from tests.spark.cluster import Pair, running
from tests.spark.job_files import FORMS, debezium, run_file, send
from tests.spark.writing.keeping import KEEPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(tmp_path_factory.mktemp("pair"), settings=KEEPS) as started:
        yield started


def tree(**parts: Any) -> dict[str, Any]:
    """A file with a stream of these parts."""
    given = {
        "source": {"topic": "Orders", "nameServer": "127.0.0.1:9876", "startingOffsets": "earliest"},
        "to": {"format": "parquet", "path": "/data/rows"},
        "checkpoint": "/data/checkpoint",
    }
    return {"streams": {"orders": {**given, **parts}}}


def run(spark: SparkSession, pair: Pair, folder: pathlib.Path, topic: str, **parts: Any) -> Ran:
    """Run a stream into the folder, once."""
    source = {"topic": topic, "nameServer": pair.names, "startingOffsets": "earliest"}
    to = {"format": "parquet", "path": str(folder / "rows")}
    file = tree(**{"source": source, "to": to, "checkpoint": str(folder / "cp"), **parts})
    return run_file(spark, file)


def rows(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in columns) for row in frame.collect())


# --- the file ---


def test_defaults_keep_files_few() -> None:
    (stream,) = read_jobs(tree()).streams
    assert (stream.every_ms, stream.by_batch, stream.compact) == (60_000, False, 0)
    merged = read_jobs(tree(decode={"schema": "id long"}, key=["id"])).streams[0]
    assert (merged.by_batch, merged.compact, merged.evolve) == (True, 60, "fail")
    copies = read_jobs(tree(to={"format": "rmq", "topic": "T", "nameServer": "h:1"})).streams[0]
    assert copies.every_ms == 1000


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"decode": {"form": "xml", "schema": "s"}}, r"streams\.orders\.decode\.form = 'xml'.*json, avro"),
        ({"decode": {}}, r"orders\.decode\.schema.*registry and subject"),
        ({"decode": {"registry": "http://r"}}, r"orders\.decode\.subject"),
        ({"decode": {"schema": "infer", "form": "avro"}}, r"decode\.schema = 'infer'"),
        ({"decode": {"schema": "s", "form": "protobuf"}}, r"decode\.message"),
        ({"decode": {"schema": "s", "framed": 1}}, r"decode\.framed.*true or false"),
        ({"decode": {"schema": "s", "schem": 1}}, r"decode\.schem.*one of form, schema"),
        ({"cdc": {"form": "ogg", "schema": "id long"}}, r"cdc\.form = 'ogg'.*canal, debezium, maxwell"),
        ({"cdc": {"form": "canal", "schema": "id long"}}, r"orders\.key.*primary key"),
        ({"key": ["id"], "to": {"format": "json", "path": "/x"}}, r"orders\.key.*delta, iceberg, parquet"),
        ({"order": ["ts"]}, r"orders\.order.*a key beside"),
        ({"dedup": ["id"]}, r"orders\.dedup.*watermark"),
        ({"watermark": {"delay": "soon"}}, r"orders\.watermark\.delay"),
        ({"expectations": {"x": {"that": "a > 1", "else": "dlq"}}}, r"orders\.dlq.*a group"),
        ({"expectations": {"x": {"that": "a > 1", "else": "cry"}}}, r"expectations\.x\.else.*keep, drop"),
        ({"expectations": {"x": 1}}, r"orders\.expectations\.x"),
        ({"dlq": "no group!"}, r"orders\.dlq\.group"),
        ({"dlq": "g", "to": {"format": "kafka"}}, r"orders\.to\.format = 'kafka'.*rmq"),
        ({"evolve": "all"}, r"orders\.evolve = 'all'.*fail, add, widen"),
        ({"compact": -1}, r"orders\.compact"),
        ({"compact": 5, "to": {"format": "iceberg", "path": "/x"}}, r"orders\.to\.table.*Iceberg"),
        ({"partition": [1]}, r"orders\.partition"),
    ],
)
def test_steps_that_cannot_be_are_named(parts: Mapping[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_jobs(tree(**parts))


@pytest.mark.long
def test_the_rule_says_what_may_change(spark: SparkSession) -> None:
    def schema(text: str) -> StructType:
        found = StructType.fromDDL(text)
        assert isinstance(found, StructType)
        return found

    table = schema("id int, name string, price decimal(10,2)")
    assert evolution(table, schema("id int"), "fail", "s") == Evolution()
    more = schema("id int, more string")
    with pytest.raises(ConfigError, match=r"streams\.s\.evolve.*add: the table has no column more"):
        evolution(table, more, "fail", "s")
    assert [one.name for one in evolution(table, more, "add", "s").added] == ["more"]
    wider = schema("id bigint, price decimal(12,2)")
    with pytest.raises(ConfigError, match="widen: column id is int in the table and bigint in rows"):
        evolution(table, wider, "add", "s")
    assert [one.name for one in evolution(table, wider, "widen", "s").widened] == ["id", "price"]
    with pytest.raises(ConfigError, match="a select that casts it: column name is string"):
        evolution(table, schema("name int"), "widen", "s")
    assert evolution(schema("id bigint"), schema("id int"), "fail", "s") == Evolution(), "it fits"


def test_a_merge_takes_newer_changes_only() -> None:
    cdc = {"form": "canal", "schema": "id long", "deletes": "remove"}
    to = {"format": "iceberg", "table": "lake.shop.orders"}
    (stream,) = read_jobs(tree(cdc=cdc, key=["id"], to=to)).streams
    found = merge_sql(stream, ["id", "rmq_order", "rmq_deleted"])
    assert found.startswith("MERGE INTO lake.shop.orders t USING rmq_changes s ON t.`id` <=> s.`id`")
    assert "WHEN MATCHED AND s.rmq_order > t.rmq_order AND s.rmq_deleted THEN DELETE" in found
    assert "WHEN NOT MATCHED AND NOT s.rmq_deleted THEN INSERT" in found


# --- lineage ---


def test_lineage_names_topic_target_and_errors() -> None:
    file = {**tree(), "lineage": {"url": "http://127.0.0.1:1/api/v1/lineage", "namespace": "shop"}}
    jobs = read_jobs(file)
    told: list[Mapping[str, Any]] = []
    listener = Lineage(jobs, told.append, "4.3.0")
    event = type("Event", (), {"name": "orders", "runId": "r", "id": "q", "exception": "it broke"})
    progress = type("Progress", (), {"runId": "r", "numInputRows": 7})
    event.progress = progress  # type: ignore[attr-defined]
    for call in (listener.onQueryStarted, listener.onQueryProgress, listener.onQueryTerminated):
        call(event)
    assert [one["eventType"] for one in told] == ["START", "RUNNING", "FAIL"]
    last = told[-1]
    assert last["job"]["namespace"] == "shop"
    assert (last["inputs"][0]["namespace"], last["inputs"][0]["name"]) == (
        "rocketmq://127.0.0.1:9876",
        "Orders",
    )
    assert last["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 7
    assert (last["outputs"][0]["namespace"], last["outputs"][0]["name"]) == ("file", "/data/rows")
    assert last["run"]["facets"]["errorMessage"]["message"] == "it broke"
    lake = read_jobs(tree(to={"format": "parquet", "path": "s3a://lake/orders"})).streams[0]
    output = run_event("START", "r", lake, "n", 0)["outputs"][0]
    assert (output["namespace"], output["name"]) == ("s3a://lake", "orders")


# --- on Spark ---


@pytest.mark.long
def test_bodies_are_decoded_checked_and_set_apart(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    pair.make_topic("%DLQ%orders", 1)
    good = [{"id": n, "amount": n * 1.5} for n in range(10)]
    send(pair, "Checked", *good, "no json", {"id": 90, "amount": -1}, {"id": None, "amount": 1}, {"id": 200})
    parts: dict[str, Any] = {
        "decode": {"schema": "id long, amount double"},
        "dlq": "orders",
        "expectations": {
            "positive": {"that": "amount > 0 or id = 0", "else": "dlq"},
            "has id": {"that": "id is not null", "else": "drop"},
            "small": "id < 5",
        },
        "compact": 1,
    }
    with_lineage = tmp_path / "lineage.jsonl"
    source = {"topic": "Checked", "nameServer": pair.names, "startingOffsets": "earliest"}
    to = {"format": "parquet", "path": str(tmp_path / "rows")}
    file = tree(**parts, source=source, to=to, checkpoint=str(tmp_path / "cp"))
    ran = run_file(spark, {**file, "lineage": {"file": str(with_lineage)}})
    assert (ran.rows, dict(ran.errors)) == (14, {})
    assert dict(ran.rejected["orders"]) == {"decode": 1, "positive": 2, "has id": 1, "small": 8}
    found = read_added(spark, str(tmp_path / "rows"))
    assert rows(found, "id", "amount") == [(n, n * 1.5) for n in range(10)]
    assert set(found.columns) == {
        "id", "amount", "topic", "brokerName", "queueId", "queueOffset", "storeTimestamp",
    }  # fmt: skip
    letters = dead_letters(spark, {"nameServer": pair.names}, ["orders"]).collect()
    assert sorted((bytes(row.body)[:10], row.reason) for row in letters) == [
        (b"no json", "the body does not fit the json schema"),
        (b'{"id": 200', "does not meet positive, small"),
        (b'{"id": 90,', "does not meet positive, small"),
    ]
    events = [json.loads(line) for line in with_lineage.read_text().splitlines()]
    assert {event["eventType"] for event in events} >= {"START", "COMPLETE"}

    strict = {**parts, "dlq": None, "expectations": {"small": {"that": "id < 5", "else": "fail"}}}
    failed = run(spark, pair, tmp_path / "strict", "Checked", **strict)
    assert "1 bodies cannot be read, message 10 of queue 0" in failed.errors["orders"]
    failed = run(spark, pair, tmp_path / "fails", "Checked", **{**strict, "dlq": "orders"})
    assert "streams.orders.expectations.small: 8 rows do not meet id < 5" in failed.errors["orders"]


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_changes_of_a_table_are_merged_whatever_order_they_come_in(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path, form: str
) -> None:
    topic = f"Changes-{form}"
    parts = {
        "cdc": {"form": form, "schema": "id long, name string", "table": "shop.orders"},
        "key": ["id"],
        "dlq": "changes",
    }
    pair.make_topic("%DLQ%changes", 1)
    first, second = FORMS[form]
    send(pair, topic, *first)
    assert not run(spark, pair, tmp_path, topic, **parts).errors
    table = str(tmp_path / "rows")
    assert rows(read_merged(spark, table), "id", "name") == [(1, "a2"), (2, "b")]
    send(pair, topic, *second, "no change")
    ran = run(spark, pair, tmp_path, topic, **parts)
    assert (dict(ran.errors), dict(ran.rejected["orders"])) == ({}, {"decode": 1})
    assert rows(read_merged(spark, table), "id", "name") == [(1, "a2"), (3, "c")]
    send(pair, topic, *second)  # all of it once more, as after a rebalance of the source
    run(spark, pair, tmp_path, topic, **parts)
    assert rows(read_merged(spark, table), "id", "name") == [(1, "a2"), (3, "c")]
    assert len(list((tmp_path / "rows").glob("version=*"))) == 2


def test_rows_are_merged_by_key_and_the_table_grows_by_its_rule(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    parts: dict[str, Any] = {
        "decode": {"schema": "infer"},
        "key": ["id"],
        "select": ["value.*"],
        "order": ["at"],
    }
    send(pair, "Grows", {"id": 1, "at": 5, "name": "new"}, {"id": 1, "at": 3, "name": "old"})
    parts["select"] = ["value.*", "cast(value.at as bigint) as seen"]
    assert not run(spark, pair, tmp_path, "Grows", **parts).errors
    table = str(tmp_path / "rows")
    assert rows(read_merged(spark, table), "id", "name") == [(1, "new")]
    send(pair, "Grows", {"id": 2, "at": 1, "name": "b", "city": "Ulm"})
    failed = run(spark, pair, tmp_path, "Grows", **parts)
    assert "streams.orders.evolve" in failed.errors["orders"]
    assert "the table has no column city" in failed.errors["orders"]
    assert not run(spark, pair, tmp_path, "Grows", **parts, evolve="add").errors
    assert rows(read_merged(spark, table).fillna(""), "id", "city") == [(1, ""), (2, "Ulm")]


@pytest.mark.long
def test_rows_that_come_twice_within_the_watermark_are_dropped(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    send(pair, "Twice", *[{"id": n % 5, "n": n} for n in range(20)])
    parts = {
        "decode": {"schema": "id long, n long"},
        "watermark": {"column": "storeTimestamp", "delay": "10m"},
        "dedup": ["id"],
        "partition": ["id"],
    }
    assert not run(spark, pair, tmp_path, "Twice", **parts).errors
    send(pair, "Twice", {"id": 1, "n": 100}, {"id": 7, "n": 101})
    assert not run(spark, pair, tmp_path, "Twice", **parts).errors
    found = rows(read_added(spark, str(tmp_path / "rows")), "id")
    assert found == [(0,), (1,), (2,), (3,), (4,), (7,)]
    assert list((tmp_path / "rows").glob("batch=*/id=7"))


# --- the page and the example ---

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_whole_file_of_the_page_runs(spark: SparkSession, pair: Pair, tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs" / "spark_jobs.md").read_text("utf-8").split("## A whole file")[1]
    text = page.split("```yaml\n")[1].split("```")[0]
    text = text.replace("127.0.0.1:9876", pair.names).replace("/data/", f"{tmp_path}/")
    file = yaml.safe_load(text.replace("port: 9464", "port: 0").replace("broker-a", pair.broker))
    for topic in ("%DLQ%orders-lake", "Large"):
        pair.make_topic(topic, 1)
    orders = [{"id": n // 2, "customer": "c", "amount": 500.0 * (n // 2)} for n in range(10)]
    send(pair, "Orders", *orders, "no json", {"id": 70, "customer": "c"})
    change = debezium("c", 1, None, {"id": 1, "name": "a", "city": "Ulm"})
    change["payload"]["source"]["table"] = "customers"
    send(pair, "Customers", change)
    assert not run_file(spark, file).errors
    assert rows(read_added(spark, f"{tmp_path}/orders"), "id") == [(n,) for n in range(5)]
    assert rows(read_merged(spark, f"{tmp_path}/customers"), "id", "city") == [(1, "Ulm")]
    large = spark.read.format("rmq").options(**pair.options("Large")).load()
    assert (
        sorted(json.loads(row.body)["amount"] for row in large.collect())
        == [1000.0] * 2 + [1500.0] * 2 + [2000.0] * 2
    )


@pytest.mark.long
def test_the_example_keeps_a_state_for_each_order(
    spark: SparkSession, pair: Pair, tmp_path: pathlib.Path
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "spark_state.py"))
    before = spark.conf.get(PROVIDER)
    send(pair, "Shop", *[{"order": f"o{n % 3}", "step": step} for step in ("made", "paid") for n in range(3)])
    try:
        assert example["run"](spark, pair.names, str(tmp_path)) == 3
        send(pair, "Shop", {"order": "o1", "step": "sent"})
        assert example["run"](spark, pair.names, str(tmp_path)) == 4
    finally:
        spark.conf.set(PROVIDER, before)
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert rows(found, "order", "step", "next")[1:3] == [("o1", "made", "paid"), ("o1", "paid", "sent")]
