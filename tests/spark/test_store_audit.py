"""The store audit: every fault that is put into a store is found under its name, and nothing else."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq.errors import ConfigError
from rmq.spark.pipelines.audit import StoreAudit, audit_store
from rmq.store.audit import rules
from rmq.store.audit.audit import check
from rmq.store.audit.repair import accept_start
from rmq.store.files.disk import ReadOnlyDisk, RealDisk
from tests.spark.faults import (
    LOG_FILE,
    QUEUES,
    Fault,
    StoreFiles,
    inject,
    make_messages,
    name_topics,
    new_store,
)
from tests.unit.store.stores import Clock, record

SEED = 20261121
FAULTS = 1000


def found(result: StoreAudit) -> set[Fault]:
    rows = result.findings.collect()
    faults = {Fault(*row[:5]) for row in rows}
    assert len(faults) == len(rows)
    assert sum(fault.count for fault in result.faults) == len(rows)
    return faults


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 3,600 messages of all kinds in several files."""
    root = tmp_path_factory.mktemp("audit")
    make_messages(root, 3000, random.Random(SEED))
    assert check(ReadOnlyDisk(), str(root)).is_clean
    return root


def test_a_good_store_has_no_faults(spark: SparkSession, store: Path) -> None:
    files = StoreFiles(store)

    result = audit_store(spark, str(store))
    assert (found(result), result.is_clean) == (set(), True)
    assert result.records == len(files.records)
    assert result.units == len(files.with_units())


def test_the_store_that_java_wrote_has_no_faults(spark: SparkSession, golden: Path) -> None:
    result = audit_store(spark, str(golden / "store"))

    assert (found(result), result.records, result.units) == (set(), 182, 182)


def test_every_fault_is_found_and_nothing_else(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    injected = inject(tmp_path / "store", FAULTS, random.Random(SEED))

    result = audit_store(spark, str(tmp_path / "store"), output=str(tmp_path / "found"))
    assert found(result) == injected, f"seed {SEED}"
    assert spark.read.parquet(str(tmp_path / "found")).count() == FAULTS


def test_spark_and_the_store_check_say_the_same(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    kinds = (rules.MISSING, rules.EXTRA, rules.WRONG_PLACE, rules.WRONG_SIZE, rules.WRONG_CODE)
    injected = inject(tmp_path / "store", 100, random.Random(SEED), kinds)
    light = tmp_path / "store" / "consumequeue" / "%LMQ%light" / "0"
    shutil.copytree(tmp_path / "store" / "consumequeue" / "Orders" / "0", light)

    result = audit_store(spark, str(tmp_path / "store"))
    assert found(result) == injected
    by_kind = {fault.kind: fault.count for fault in result.faults}
    assert check(ReadOnlyDisk(), str(tmp_path / "store")).counts == by_kind == dict.fromkeys(kinds, 20)


def unit_at(place: int, size: int, code: int) -> tuple[int, int, int]:
    return 0, 0, 0


def test_what_is_no_fault(spark: SparkSession, tmp_path: Path) -> None:
    """Retention, topics deleted and made again, and units that a killed broker had not written."""
    clock = Clock()
    store = new_store(tmp_path, clock)
    for number in range(2400):
        topic = ("Kept", "Deleted", "Again", "Empty")[number % 4]
        store.put(record("x" * 200, topic, number % QUEUES, tags="a"))
        store.commit()
    store.remove_topic("Deleted")
    store.remove_topic("Again")
    store.remove_topic("Empty")
    made = store.max_physical_offset
    for number in range(30):
        store.put(record(f"new {number}", "Again", number % QUEUES))
        store.commit()
    store.close()
    name_topics(tmp_path, "Kept", "Again", Empty=made)
    files = StoreFiles(tmp_path)
    first, *_ = sorted((tmp_path / "commitlog").iterdir())
    first.unlink()
    accept_start(RealDisk(), str(tmp_path), check(ReadOnlyDisk(), str(tmp_path)))
    last = [one for one in files.with_units() if one.topic == b"Kept"][-4:]
    for one in last:
        files.write_unit(one, unit_at)

    closed = audit_store(spark, str(tmp_path))
    expected = {Fault(rules.MISSING, "Kept", one.queue_id, one.queue_offset, one.position) for one in last}
    assert found(closed) == expected

    (tmp_path / "abort").touch()
    running = audit_store(spark, str(tmp_path))
    assert running.is_clean
    assert "4 units" in running.notes[-1]
    checked = check(ReadOnlyDisk(), str(tmp_path))
    assert checked.is_clean, checked.findings
    assert "4 units at the ends of queues not written yet" in checked.notes


def test_damage_a_torn_tail_and_a_file_that_is_missing(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    shutil.copytree(store, tmp_path / "store")
    files = StoreFiles(tmp_path / "store")
    broken = next(one for one in files.with_units()[100:])
    files.write_log(broken.position + 4, b"????")
    end = files.records[-1].position + files.records[-1].size
    files.write_log(end + 100, b"torn")
    gone = sorted((tmp_path / "store" / "commitlog").iterdir())[1]
    base = int(gone.name)
    gone.unlink()

    result = audit_store(spark, str(tmp_path / "store"))
    lost = [one for one in files.with_units() if base <= one.position < base + LOG_FILE]
    units = {Fault(rules.EXTRA, one.topic.decode(), *one[2:4], one.position) for one in [broken, *lost]}
    places = {(rules.DAMAGE, broken.position), (rules.TORN, end), (rules.NO_FILE, base)}
    assert found(result) == units | {Fault(kind, None, None, None, place) for kind, place in places}


def test_no_store(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder of a store"):
        audit_store(spark, str(tmp_path))
