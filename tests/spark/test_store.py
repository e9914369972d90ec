"""The data source `rmqstore`: each record once, whatever the chunks; damage; consume queues; Spark itself.

Most tests call the reader as Spark's tasks do, without Spark.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq.errors import ConfigError, CorruptRecord, StoreError
from rmq.protocol.codes import SYS_COMPRESSED, CompressionType
from rmq.protocol.record import Record, compress, encode_record
from rmq.spark import store_files
from rmq.spark.formats.schema import COLUMNS, spark_schema
from rmq.spark.options import StoreOptions, store_options
from rmq.spark.store_source import StoreReader, chunk_size
from tests.spark.reading.stores import FILE, Row, log_bytes, read, simple, write_store
from tests.spark.records import V4, V6, records, rows_of

SIZE = 410  # of a simple record

JAVA_FIELDS = {
    "topic": "topic",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "physicalOffset": "phy_offset",
    "tags": "tags",
    "properties": "properties",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "bornHost": "born_host",
    "storeHost": "store_host",
    "reconsumeTimes": "reconsume_times",
    "sysFlag": "sys_flag",
    "flag": "flag",
    "preparedTransactionOffset": "prepared_transaction_offset",
}


def expected_rows(log: bytes) -> list[Row]:
    """The rows of all records, walked by their sizes and decoded one by one."""
    starts, at = [], 0
    while at + 8 <= len(log):
        size = int.from_bytes(log[at : at + 4], "big")
        if log[at + 4 : at + 8] == bytes.fromhex("daa320a7"):
            starts.append(at)
        at += size
    return rows_of(log, starts, "")


def change(root: Path, position: int, data: bytes) -> None:
    path = root / "commitlog" / f"{position - position % FILE:020d}"
    with open(path, "r+b") as file:
        file.seek(position % FILE)
        file.write(data)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """60 messages of SIZE bytes in two files."""
    write_store(tmp_path, [simple(number) for number in range(60)])
    return tmp_path


# --- each record once ---


def test_the_store_that_java_wrote(golden: Path) -> None:
    rows = read(golden / "store", verifyCrc=True)

    assert rows == expected_rows(log_bytes(golden / "store")[: 131072 + 45858])
    assert len(rows) == 182
    assert read(golden / "store" / "commitlog") == rows


def test_the_rows_are_what_java_decoded(golden: Path) -> None:
    expected = json.loads((golden / "store" / "expected.json").read_text())["messages"]

    rows = read(golden / "store")
    assert len(rows) == len(expected)
    for row, java in zip(rows, expected, strict=True):
        hashed = hashlib.sha256(row["body"]).hexdigest()
        assert (len(row["body"]), hashed) == (java["body_length"], java["body_sha256"])
        assert row["msgId"] == (java["uniq_key"] or java["offset_msg_id"])
        for column, field in JAVA_FIELDS.items():
            value = row[column]
            if isinstance(value, datetime):
                value = round(value.timestamp() * 1000)
            assert value == java[field], column


@pytest.mark.parametrize("size", [97, 5003, 65536, 65537])
def test_chunks_of_any_size_give_each_row_once(golden: Path, size: int) -> None:
    columns = ["physicalOffset", "msgId"]
    assert read(golden / "store", columns, chunkBytes=size) == read(golden / "store", columns)


@pytest.mark.parametrize(("log", "chunk"), [(0, 64), (512, 64), (1024, 128), (2048, 256), (1 << 20, 256)])
def test_a_task_reads_an_eighth_of_the_log_within_bounds(log: int, chunk: int) -> None:
    assert chunk_size(log << 20) == chunk << 20


@settings(max_examples=60)
@given(st.lists(records(), min_size=1, max_size=14), st.sampled_from([V4, V6]), st.integers(60, 9000))
def test_any_store_in_any_chunks(made: list[Record], host: bytes, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = write_store(Path(folder), made, host)

        rows = read(Path(folder), chunkBytes=chunk, batchRows=3, batchBytes=2000, verifyCrc=True)
        assert rows == expected_rows(log)
        assert len(rows) == len(made)


def test_a_chunk_does_not_begin_in_the_body_of_a_message(tmp_path: Path) -> None:
    """A body with records that say the very places where they lie, as a copy of the log would."""
    inner = [Record("Fake", 0, b"x" * 50, born_host=V4, physical_offset=88 + 147 * at) for at in range(60)]
    body = b"".join(encode_record(each, V4) for each in inner)
    log = write_store(tmp_path, [Record("T", 0, body, born_host=V4), simple(1), simple(2)])

    rows = read(tmp_path, chunkBytes=1000)
    assert rows == expected_rows(log)
    assert [row["topic"] for row in rows] == ["T"] * 3


def inflating(root: Path, count: int, size: int) -> bytes:
    """A store of messages whose bodies grow 100 times, but for every tenth; gives its log."""
    packed = compress(bytes(size), CompressionType.ZLIB)
    made = [
        simple(number)
        if number % 10 == 9
        else Record("T", number % 2, packed, f"KEYS\x01{number}", sys_flag=SYS_COMPRESSED, born_host=V4)
        for number in range(count)
    ]
    return write_store(root, made)


@pytest.mark.parametrize("options", [{}, {"topic": "T", "via": "consumequeue"}])
def test_bodies_that_grow_fill_several_batches(tmp_path: Path, options: dict[str, object]) -> None:
    log = inflating(tmp_path, 60, 20_000)
    given = {"path": str(tmp_path), "batchBytes": "50000", **options}
    reader = StoreReader(store_options({name: str(value) for name, value in given.items()}), spark_schema())

    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert all(batch.num_rows <= 5 and batch.nbytes < 55_000 for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    expected = expected_rows(log)
    assert by_queue(rows) == by_queue(expected)
    assert rows == (by_queue(expected) if options else expected)


def test_a_bad_body_among_those_that_grow_costs_only_itself(tmp_path: Path) -> None:
    inflating(tmp_path, 60, 20_000)
    rows = read(tmp_path)
    change(tmp_path, rows[31]["physicalOffset"] + 92, b"\xff\xff")

    kept = rows[:31] + rows[32:]
    assert read(tmp_path, onCorrupt="skip", batchBytes=50_000) == kept
    found = read(tmp_path, onCorrupt="skip", batchBytes=50_000, topic="T", via="consumequeue")
    assert found == by_queue(kept)


def test_a_task_needs_little_memory_whatever_bodies_grow_to(tmp_path: Path) -> None:
    """The log is less than 1 MiB, its bodies 512 MiB."""
    folder = tmp_path / "commitlog"
    folder.mkdir()
    packed = compress(bytes(1 << 20), CompressionType.ZLIB)
    record = Record("T", 0, packed, "KEYS\x01k", sys_flag=SYS_COMPRESSED, born_host=V4)
    size = len(encode_record(record, V4))
    count = 512
    parts = [encode_record(evolve(record, physical_offset=at * size), V4) for at in range(count)]
    (folder / f"{0:020d}").write_bytes(b"".join(parts))
    code = (
        "import sys; from pathlib import Path\n"
        "from rmq.spark.formats.schema import spark_schema\n"
        "from rmq.spark.options import StoreOptions\n"
        "from rmq.spark.store_source import chunk_size, StoreReader\n"
        "reader = StoreReader(StoreOptions(path=sys.argv[1]), spark_schema())\n"
        "print(sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)))\n"
        "lines = Path('/proc/self/status').read_text().splitlines()\n"
        "print(next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) >> 10)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True)
    rows, peak = map(int, done.stdout.split())
    assert rows == count
    assert peak < 300  # MiB


def test_topics_are_chosen(golden: Path) -> None:
    everything = read(golden / "store")

    found = read(golden / "store", topic="TopicTest, TxTopic")
    assert found == [row for row in everything if row["topic"] in ("TopicTest", "TxTopic")]
    assert Counter(row["topic"] for row in found) == {"TopicTest": 93, "TxTopic": 2}


def test_no_file_holds_more_than_32_bits_but_the_log_does(tmp_path: Path) -> None:
    base = 5 << 30
    folder = tmp_path / "commitlog"
    folder.mkdir()
    made = [Record("T", 0, b"b", born_host=V4, physical_offset=base + 93 * at) for at in range(5)]
    (folder / f"{base:020d}").write_bytes(b"".join(encode_record(each, V4) for each in made))

    found = read(tmp_path, ["physicalOffset"], chunkBytes=100)
    assert [row["physicalOffset"] for row in found] == [base + 93 * at for at in range(5)]


def test_records_past_2_gib_of_a_file_are_read(tmp_path: Path) -> None:
    at = (2 << 30) + 12_345
    folder = tmp_path / "commitlog"
    folder.mkdir()
    record = encode_record(Record("T", 0, b"b", born_host=V4, physical_offset=at), V4)
    with open(folder / f"{0:020d}", "wb") as file:  # a hole before: it takes no room
        file.seek(at)
        file.write(record)

    reader = StoreReader(StoreOptions(path=str(tmp_path)), spark_schema(["physicalOffset"]))
    *_, last = reader.partitions()
    assert [batch.to_pylist() for batch in reader.read(last)] == [[{"physicalOffset": at}]]


# --- the end of the log ---


@pytest.mark.parametrize("left", [0, 1, 60, 200])
def test_a_torn_tail_is_the_end(store: Path, left: int) -> None:
    rows = read(store)
    last = rows[-1]["physicalOffset"]
    change(store, last + left, bytes(SIZE - left))

    assert read(store) == rows[:-1]


def test_a_file_that_is_cut_short_and_an_empty_next_one(store: Path) -> None:
    rows = read(store)
    last = rows[-1]["physicalOffset"]
    with open(store / "commitlog" / f"{FILE:020d}", "r+b") as file:
        file.truncate(last + 100 - FILE)
    (store / "commitlog" / f"{2 * FILE:020d}").write_bytes(b"")
    assert read(store, onCorrupt="skip") == rows[:-1]


def test_a_prepared_next_file_is_empty(store: Path) -> None:
    rows = read(store)
    (store / "commitlog" / f"{2 * FILE:020d}").write_bytes(bytes(FILE))
    assert read(store) == rows


def test_a_log_without_records_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(FILE))

    assert read(tmp_path) == []
    assert list(StoreReader(StoreOptions(path=str(tmp_path)), spark_schema()).read(None)) == []


# --- damage ---


@pytest.mark.parametrize(
    ("place", "data"),
    [
        (0, b"\0\0\0\x01"),
        (0, (SIZE * 3).to_bytes(4, "big")),  # a size that ends where a later record begins
        (0, (SIZE * 6).to_bytes(4, "big")),
        (0, (SIZE * 2 + 7).to_bytes(4, "big")),
        (4, b"\0"),
        (34, b"\x7f"),  # the physical offset
        (84, b"\xff"),
        (0, bytes(SIZE)),
    ],
)
@pytest.mark.parametrize("chunk", [1 << 20, 1001])
def test_damage_costs_only_the_record_it_is_in(store: Path, place: int, data: bytes, chunk: int) -> None:
    rows = read(store)
    position = rows[10]["physicalOffset"]
    change(store, position + place, data)

    with pytest.raises(CorruptRecord, match=rf"{0:020d}: damaged record at offset {position}: .*onCorrupt"):
        read(store, chunkBytes=chunk)
    assert read(store, chunkBytes=chunk, onCorrupt="skip") == rows[:10] + rows[11:]
    *others, damage = sorted(
        read(store, chunkBytes=chunk, onCorrupt="report"), key=lambda row: row["topic"] is None
    )
    assert others == rows[:10] + rows[11:]
    assert damage["physicalOffset"] == position
    assert damage["properties"]["bytes"] == str(SIZE)
    assert damage["properties"]["file"].endswith(f"{0:020d}")
    assert {name for name in COLUMNS if damage[name] is not None} == {"physicalOffset", "properties"}


def test_a_wrong_crc_is_damage_on_request(store: Path) -> None:
    rows = read(store)
    position = rows[50]["physicalOffset"]
    change(store, position + 100, b"?")

    assert len(read(store)) == 60
    with pytest.raises(CorruptRecord, match=f"{FILE:020d}: damaged record at offset {position}: .*CRC"):
        read(store, verifyCrc=True)
    assert read(store, verifyCrc=True, onCorrupt="skip") == rows[:50] + rows[51:]


def test_many_bad_records_are_all_skipped(store: Path) -> None:
    rows = read(store)
    for row in rows[5:30:2]:
        change(store, row["physicalOffset"] + 4, b"\0")
    kept = rows[:5] + rows[6:30:2] + rows[30:]

    assert read(store, onCorrupt="skip", batchRows=7) == kept
    reported = [row for row in read(store, onCorrupt="report") if row["topic"] is None]
    assert len(reported) == 13


def test_a_missing_file_is_damage(store: Path) -> None:
    rows = read(store)
    (store / "commitlog" / f"{FILE:020d}").rename(store / "commitlog" / f"{3 * FILE:020d}")

    with pytest.raises(CorruptRecord, match=f"{0:020d}: damaged record at offset {FILE}: .*missing"):
        read(store)
    assert read(store, onCorrupt="skip") == [row for row in rows if row["physicalOffset"] < FILE]


# --- consume queues ---


def by_queue(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["queueId"], row["queueOffset"]))


def test_a_topic_by_its_consume_queues(golden: Path) -> None:
    scanned = [row for row in read(golden / "store") if row["topic"] == "TopicTest"]
    found = read(golden / "store", topic="TopicTest", via="consumequeue", batchRows=7)

    assert found == by_queue(scanned)
    assert len(found) == 93


def test_units_of_removed_records_are_passed_over(store: Path) -> None:
    rows = read(store)
    (store / "commitlog" / f"{0:020d}").unlink()

    found = read(store, topic="T", via="consumequeue")
    assert found == by_queue([row for row in rows if row["physicalOffset"] >= FILE])


def test_a_unit_that_names_another_record_is_damage(store: Path) -> None:
    rows = by_queue(read(store))
    file = next((store / "consumequeue" / "T" / "0").iterdir())
    units = bytearray(file.read_bytes())
    units[20 * 3 : 20 * 4] = units[20 * 5 : 20 * 6]
    file.write_bytes(units)

    with pytest.raises(CorruptRecord, match="unit 3 of its queue names another record"):
        read(store, topic="T", via="consumequeue")
    assert len(read(store, topic="T", via="consumequeue", onCorrupt="skip")) == len(rows) - 1


def test_units_after_the_end_of_the_log_are_damage(store: Path) -> None:
    rows = read(store)
    change(store, rows[-1]["physicalOffset"], bytes(100))

    with pytest.raises(CorruptRecord, match="unit 29 and 0 others name places after the end"):
        read(store, topic="T", via="consumequeue")
    assert len(read(store, topic="T", via="consumequeue", onCorrupt="skip")) == 59


def test_the_units_of_a_queue(golden: Path) -> None:
    expected = json.loads((golden / "store" / "expected.json").read_text())["consume_queues"]
    root = str(golden / "store")
    found = {}
    for topic in store_files.queue_topics(root):
        for queue_id, folder in store_files.queue_folders(root, topic).items():
            units = store_files.queue_units(folder)
            found[f"{topic}/{queue_id}"] = [list(map(int, unit)) for unit in zip(*units, strict=True)]
    assert found == {queue: each["units"] for queue, each in expected.items()}

    folders = store_files.queue_folders(root, "TopicTest")
    units = store_files.queue_units(folders[3])
    some = store_files.queue_units(folders[3], 48, 53)
    assert some.physical_offset.tolist() == units.physical_offset[48:53].tolist()


def test_the_filler_of_a_queue_is_no_unit(tmp_path: Path) -> None:
    unit = (7).to_bytes(8, "big") + (100).to_bytes(4, "big") + (-5).to_bytes(8, "big", signed=True)
    filler = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    (tmp_path / f"{200:020d}").write_bytes(filler * 2 + unit + bytes(40))

    units = store_files.queue_units(str(tmp_path))
    assert [field.tolist() for field in units] == [[12], [7], [100], [-5]]


# --- options ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunkByte": "5"}, "option chunkByte.*expected chunkBytes.*option of rmqstore: path, topic"),
        ({"chunkbytes": "0"}, "chunkBytes.*at least 1"),
        ({"batchRows": "many"}, "batchRows.*a whole number"),
        ({"batchRows": "64k"}, "batchRows.*a whole number"),
        ({"chunkBytes": "-1"}, "chunkBytes.*at least 1"),
        ({"topic": " , "}, "at least one topic"),
        ({"onCorrupt": "ignore"}, "onCorrupt.*fail, skip, report"),
        ({"verifyCrc": "yes"}, "verifyCrc.*true or false"),
        ({"via": "consumequeue"}, "topic.*consume queues"),
        ({"via": "consumequeue", "topic": "Nowhere"}, "Nowhere.*consume queues"),
        ({"path": ""}, r"\.load"),
        ({"path": "/nowhere"}, "/nowhere.*can be read"),
    ],
)
def test_a_wrong_option_is_named(golden: Path, options: dict[str, str], message: str) -> None:
    given = {"path": str(golden / "store"), **options}
    with pytest.raises(ConfigError, match=message):
        StoreReader(store_options(given), spark_schema()).partitions()


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="commitlog"):
        read(tmp_path)


def test_a_file_that_goes_away_is_named(store: Path) -> None:
    file = store_files.log_files(str(store))[0]
    shutil.rmtree(store)
    with pytest.raises(StoreError, match=f"{0:020d} cannot be read"):
        file.map()


def test_the_search_before_a_chunk_is_bounded(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "_BEFORE", 500)
    assert len(read(store, chunkBytes=3000)) == 60


# --- with Spark ---


def test_spark_reads_all_columns(spark: SparkSession, golden: Path) -> None:
    frame = spark.read.format("rmqstore").option("chunkBytes", 30_000).load(str(golden / "store"))

    assert frame.columns == list(COLUMNS)
    found = {row["physicalOffset"]: row for row in frame.collect()}
    rows = read(golden / "store")
    assert len(found) == len(rows)
    for row in rows:
        other = found[row["physicalOffset"]].asDict()
        names = [name for name in COLUMNS if "Timestamp" not in name]
        assert {name: other[name] for name in names} == {name: row[name] for name in names}
        assert other["bornTimestamp"].astimezone(row["bornTimestamp"].tzinfo) == row["bornTimestamp"]


def test_spark_reads_the_columns_of_a_schema(spark: SparkSession, golden: Path) -> None:
    frame = spark.read.format("rmqstore").schema("keys string, body binary").load(str(golden / "store"))

    assert frame.columns == ["keys", "body"]
    assert sorted(frame.collect(), key=str) == sorted(
        ((row["keys"], row["body"]) for row in read(golden / "store", ["keys", "body"])), key=str
    )


def test_spark_shows_the_reason_of_a_failure(spark: SparkSession, store: Path) -> None:
    with pytest.raises(PySparkException, match=r"'bodies'.*one of topic, brokerName"):
        spark.read.format("rmqstore").schema("bodies binary").load(str(store)).count()
    change(store, SIZE + 4, b"\0")
    with pytest.raises(PySparkException, match=f"{0:020d}: damaged record at offset "):
        spark.read.format("rmqstore").schema("keys string").load(str(store)).count()
