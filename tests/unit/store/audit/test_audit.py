"""`rmq store`: each kind of damage is found, nothing is found in a good store, and repairs mend."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq.cli import command
from rmq.errors import StoreError, StoreLocked
from rmq.store.audit.audit import Report, check, dump
from rmq.store.audit.repair import cut_tail, locked, rebuild, skip_damaged
from rmq.store.config import StoreConfig
from rmq.store.files.disk import ReadOnlyDisk, RealDisk
from rmq.store.store import Store

from ..stores import HOST, Clock, bodies, fill, open_store, record, send

FIRST, LAST = "commitlog/00000000000000000000", "commitlog/00000000000000131072"
LOG_END = 45858  # in the last file
QUEUE = "consumequeue/TopicTest/0/00000000000000000000"
INDEX = "index/20261121092914625"
ENTRIES = 40 + 4 * 500


def audit(folder: Path) -> Report:
    return check(ReadOnlyDisk(), str(folder))


def flip(name: str, at: int, bit: int = 0) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 1 << bit
        (folder / name).write_bytes(data)

    return damage


def write(name: str, at: int, what: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at : at + len(what)] = what
        (folder / name).write_bytes(data)

    return damage


def remove(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


FAULTS = {
    "body": (flip(FIRST, 90), "damage"),
    "size": (flip(FIRST, 1), "damage"),
    "magic": (flip(FIRST, 4), "damage"),
    "physical offset": (flip(FIRST, 35), "damage"),
    "page of zeros": (write(FIRST, 8192, bytes(4096)), "damage"),
    "BLANK": (flip(FIRST, 64778 + 5), "damage"),
    "torn tail": (write(LAST, LOG_END, b"\0\0\1\0\xda\xa3\x20\xa7junk"), "torn tail"),
    "log file in the middle": (remove("commitlog/00000000000000065536"), "log file missing"),
    "log file's size": (cut(LAST, 60000), "log file size"),
    "unit's offset": (flip(QUEUE, 7), "queue unit offset"),
    "unit's size": (flip(QUEUE, 31), "queue unit size"),
    "unit's tags code": (flip(QUEUE, 20 + 19), "queue unit tags code"),
    "unit missing": (write(QUEUE, 20, bytes(20)), "queue unit missing"),
    "queue missing": (remove("consumequeue/TopicTest/0"), "queue unit missing"),
    "queue file empty": (cut(QUEUE, 0), "queue file size"),
    "queue file's size": (cut(QUEUE, 990), "queue file size"),
    "index entry's hash": (flip(INDEX, ENTRIES + 40 + 3), "index entry"),
    "index entry's offset": (flip(INDEX, ENTRIES + 40 + 11), "index entry extra"),
    "index entry's time": (flip(INDEX, ENTRIES + 40 + 15, 6), "index entry"),
    "index chain": (flip(INDEX, ENTRIES + 40 + 19), "index chain"),
    "index file's slots": (cut(INDEX, 788), "index file size"),
    "index slot without entries": (flip(INDEX, 1069), "index chain"),
    "index header": (flip(INDEX, 30), "index header"),
    "topic": (write(LAST, 45761, b"\xa5"), "record text"),
    "index file missing": (remove("index/20261121092919292"), "index entry missing"),
    "index file's size": (cut(INDEX, 5000), "index file size"),
    "checkpoint's time": (flip("checkpoint", 1), "checkpoint"),
    "checkpoint's size": (cut("checkpoint", 100), "checkpoint"),
    "config": (cut("config/topics.json", 100), "config"),
}


def test_a_good_store_of_rocketmq_has_nothing_wrong(folder: Path) -> None:
    report = audit(folder)
    assert report.is_clean, report.findings
    assert (report.records, report.units, report.queues) == (182, 182, 19)
    assert (report.index_files, report.index_entries, report.index_slots) == (3, 415, 500)
    assert report.log_end == 131072 + LOG_END
    assert report.clean_stop
    assert not report.notes


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str, folder: Path) -> None:
    damage, kind = FAULTS[name]
    damage(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    opened = set(os.listdir("/proc/self/fd"))
    report = audit(folder)
    assert set(os.listdir("/proc/self/fd")) <= opened, "every file is closed"
    assert kind in report.counts, report.counts
    assert all(path.read_bytes() == data for path, data in before.items()), "a check changes nothing"
    said = CliRunner().invoke(command, ["store", "check", str(folder)])
    assert said.exit_code == 1, said.output
    assert kind in said.output


def test_a_unit_without_a_record_is_found(folder: Path) -> None:
    path = folder / "consumequeue/DelayTopic/1/00000000000000000000"
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0")) + 19
    data[end - end % 20 : end - end % 20 + 20] = data[:20]
    path.write_bytes(data)
    assert audit(folder).counts == {"queue unit extra": 1}


def test_what_the_next_start_of_a_killed_store_mends_is_no_fault(folder: Path) -> None:
    write(LAST, LOG_END, b"\0\0\1\0\xda\xa3\x20\xa7junk")(folder)
    path = folder / QUEUE
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0")) + 19
    path.write_bytes(bytes(data[: end - end % 20 - 20]) + bytes(len(data) - (end - end % 20 - 20)))
    closed = audit(folder)
    assert closed.counts == {"torn tail": 1, "queue unit missing": 1}

    (folder / "abort").touch()
    killed = audit(folder)
    assert killed.is_clean, killed.findings
    assert "1 unit at the ends of queues not written yet" in killed.notes
    assert killed.gaps == closed.gaps, "a repair cuts it all the same"

    write(QUEUE, 20, bytes(20))(folder)
    assert audit(folder).counts == {"queue unit missing": 1}, "not at the end"


def test_queues_of_light_topics_are_not_compared(folder: Path) -> None:
    shutil.copytree(folder / "consumequeue/TopicTest/0", folder / "consumequeue/%LMQ%some/0")
    assert audit(folder).is_clean


def test_a_folder_without_a_store_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store is here"):
        audit(tmp_path)
    said = CliRunner().invoke(command, ["store", "check", str(tmp_path)])
    assert said.exit_code == 2
    assert "no store is here" in said.output


def test_our_own_store_with_expired_files_and_a_deleted_topic_is_clean(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(RealDisk(), clock, root=str(tmp_path))
    for number in range(200):
        topic = ("Orders", "Bills", "Old")[number % 3]
        send(store, record(f"m{number}", topic, number % 2, unique=f"U{number}", tags="a"))
    store.remove_topic("Old")
    store.save_config("topics", b'{"topicConfigTable":{"Orders":{},"Bills":{}}}')
    clock.now_ms += 100 * 3_600_000
    send(store, record("again", "Bills", unique="LAST"))
    while store.dispatch():
        pass
    clock.now_ms += 1000
    assert store.clean(clock.now_ms) is not None
    store.close()
    report = audit(tmp_path)
    assert report.is_clean, report.findings
    assert report.units < report.records


# ---- dump ----


def test_dump_gives_records_as_json_lines(folder: Path) -> None:
    rows = list(dump(ReadOnlyDisk(), str(folder)))
    assert len(rows) == 182
    some = list(dump(ReadOnlyDisk(), str(folder), topic="TopicTest", start=65536, limit=3))
    of_topic = [row for row in rows if row["topic"] == "TopicTest"]
    assert some == [row for row in of_topic if int(str(row["physicalOffset"])) >= 65536][:3]
    said = CliRunner().invoke(command, ["store", "dump", str(folder), "--from", "1", "--limit", "2"])
    assert said.exit_code == 0
    assert [json.loads(line)["physicalOffset"] for line in said.output.splitlines()] == [
        row["physicalOffset"] for row in rows[1:3]
    ]


def test_dump_marks_what_is_not_text(folder: Path) -> None:
    write(LAST, LOG_END - 10, b"\xa5")(folder)
    rows = list(dump(ReadOnlyDisk(), str(folder)))
    assert len(rows) == 182
    assert ["\ufffd" in str(row["properties"]) for row in rows[-2:]] == [False, True]


# ---- repair ----


def test_repair_needs_a_choice_and_an_unlocked_folder(folder: Path) -> None:
    assert CliRunner().invoke(command, ["store", "repair", str(folder)]).exit_code == 2
    with locked(RealDisk(), str(folder)):
        said = CliRunner().invoke(command, ["store", "repair", str(folder), "--rebuild-queues"])
        assert said.exit_code == 3, said.output
        with pytest.raises(StoreLocked):
            cut_tail(RealDisk(), str(folder), audit(folder))
    assert (folder / QUEUE).exists()


def test_a_torn_tail_is_cut(folder: Path) -> None:
    write(LAST, LOG_END, b"\0\0\1\0\xda\xa3\x20\xa7junk")(folder)
    lost = cut_tail(RealDisk(), str(folder), audit(folder))
    assert [(part.start, part.data) for part in lost] == [(131072 + LOG_END, b"\0\0\1\0\xda\xa3\x20\xa7junk")]
    assert audit(folder).is_clean
    assert len((folder / LAST).read_bytes()) == 65536


def test_damage_is_skipped_by_choice_and_offsets_stay_dense(tmp_path: Path) -> None:
    store = open_store(RealDisk(), root=str(tmp_path))
    fill(store, 3, queue_id=1)
    fill(store, 40, queue_id=0)
    place = [store.unit("Orders", 0, offset) for offset in (7, 8, 20)]
    store.close()
    log = bytearray((tmp_path / FIRST).read_bytes())
    assert place[0]
    assert place[2]
    log[place[0][0] : place[0][0] + place[0][1] + 30] = b"\xff" * (place[0][1] + 30)  # two messages
    log[place[2][0] + 90] ^= 1  # a body
    (tmp_path / FIRST).write_bytes(log)
    damaged = bytes(log[place[0][0] : place[0][0] + place[0][1]])
    with pytest.raises(StoreError, match="no good record here"):
        open_store(RealDisk(), root=str(tmp_path))

    said = CliRunner().invoke(
        command, ["store", "repair", str(tmp_path), "--skip-damaged", "--report", str(tmp_path / "lost")]
    )
    rows = [json.loads(line) for line in (tmp_path / "lost").read_text().splitlines()]
    assert [row["was"] for row in rows] == ["Orders/0/7", "Orders/0/8", "Orders/0/20"], said.output
    assert bytes.fromhex(rows[0]["data"]) == damaged
    assert not audit(tmp_path).counts["damage"]

    store = open_store(RealDisk(), root=str(tmp_path))
    read = bodies(store)
    expected = [f"message {number}".encode() for number in range(40)]
    assert [number for number in range(40) if read[number] != expected[number]] == [7, 8, 20]
    assert len(bodies(store, queue_id=1)) == 3
    store.close()


def test_what_cannot_be_saved_is_not_overwritten(folder: Path) -> None:
    flip(FIRST, 90)(folder)
    before = (folder / FIRST).read_bytes()
    said = CliRunner().invoke(
        command, ["store", "repair", str(folder), "--skip-damaged", "--report", str(folder / "no/such")]
    )
    assert said.exit_code == 2, said.output
    assert (folder / FIRST).read_bytes() == before


def test_a_damaged_blank_is_written_again(folder: Path) -> None:
    flip(FIRST, 64778 + 5)(folder)
    report = audit(folder)
    skip_damaged(RealDisk(), str(folder), report)
    assert audit(folder).is_clean


@pytest.mark.parametrize("what", ["consumequeue", "index"])
def test_queues_and_index_are_made_again_as_they_were(what: str, folder: Path) -> None:
    report = audit(folder)
    before = {
        path.relative_to(folder): path.read_bytes() for path in (folder / what).rglob("*") if path.is_file()
    }
    flip(QUEUE, 7)(folder)
    flip(INDEX, ENTRIES + 43)(folder)
    steps: list[str] = []
    rebuild(
        RealDisk(),
        str(folder),
        report,
        queues=True,
        index=True,
        now_ms=Clock(),
        progress=lambda stage, done, total: steps.append(stage),
    )
    report = audit(folder)
    assert report.is_clean, report.findings
    assert (report.units, report.index_entries) == (182, 415)
    assert steps
    if what == "consumequeue":
        after = {path: (folder / path).read_bytes() for path in before}
        assert after == before


def test_the_repaired_store_opens_with_its_own_sizes(folder: Path) -> None:
    shutil.rmtree(folder / "index")
    shutil.rmtree(folder / "consumequeue")
    said = CliRunner().invoke(command, ["store", "repair", str(folder), "--rebuild-queues"])
    assert "queue unit" not in said.output, said.output
    config = StoreConfig(store_path_root_dir=str(folder), mapped_file_size_commit_log=65536)
    store = Store(RealDisk(), config, store_host=HOST, now_ms=Clock())
    store.load()
    assert store.max_offset("TopicTest", 0) > 0
    store.abandon()


def test_a_log_outside_the_folder_is_named(folder: Path, tmp_path: Path) -> None:
    """storePathCommitLog may lie on another disk than the rest."""
    log = tmp_path / "fast-disk" / "log"
    log.parent.mkdir()
    (folder / "commitlog").rename(log)
    said = CliRunner().invoke(command, ["store", "check", str(folder)])
    assert said.exit_code == 2
    assert "--commitlog" in said.output
    (folder / "consumequeue" / "TopicTest").rename(tmp_path / "lost")
    place = [str(folder), "--commitlog", str(log)]
    said = CliRunner().invoke(command, ["store", "check", *place])
    assert (said.exit_code, "missing" in said.output) == (1, True)
    said = CliRunner().invoke(command, ["store", "repair", *place, "--rebuild-queues"])
    assert said.exit_code == 0, said.output
    assert not (folder / "commitlog").exists()
    said = CliRunner().invoke(command, ["store", "dump", *place, "--limit", "3"])
    assert len(said.output.splitlines()) == 3


def test_properties_that_are_not_utf_8_are_a_note_and_no_fault(folder: Path) -> None:
    write(LAST, LOG_END - 10, b"\xa5")(folder)
    report = audit(folder)
    assert "record text" not in report.counts
    assert [note for note in report.notes if "not UTF-8: 1" in note]
