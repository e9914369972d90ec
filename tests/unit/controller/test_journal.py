"""The journal of a controller: what it keeps over crashes, and what it takes for damage."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.controller.consensus import journal as journal_module
from rmq.controller.consensus.journal import (
    _HEAD,
    _MAGIC,
    COMMAND,
    NOOP,
    Entry,
    Journal,
    Snapshot,
    _crc,
    members_entry,
)
from rmq.errors import CorruptRecord, LaterFormat, StoreError
from rmq.testing.disk import MemoryDisk

THREE = {"n0": "a:1", "n1": "b:1", "n2": "c:1"}


def opened(disk: MemoryDisk, **settings: Any) -> Journal:
    return Journal(disk, "/raft", THREE, **settings)


def entries(term: int, *data: bytes) -> list[Entry]:
    return [Entry(term, COMMAND, one) for one in data]


def state(journal: Journal) -> tuple[object, ...]:
    return journal.term, journal.vote, journal.snapshot, journal.entries


def test_a_power_cut_takes_nothing_that_was_written() -> None:
    disk = MemoryDisk(seed=1)
    journal = opened(disk)
    journal.save(3, "n1")
    journal.append(1, entries(3, b"one", b"two" * 2000, b"three"))
    journal.append(3, entries(4, b"other"))
    before = state(journal)

    disk.crash()

    assert state(opened(disk)) == before
    assert [entry.data for entry in opened(disk).entries] == [b"one", b"two" * 2000, b"other"]


def test_a_slice_has_one_entry_at_least_and_no_more_bytes_than_it_may() -> None:
    journal = opened(MemoryDisk(seed=1))
    journal.append(1, entries(1, b"x" * 60, b"y" * 40, b"z", b""))
    assert [entry.data[:1] for entry in journal.slice(1, 9, 100)] == [b"x", b"y"]
    assert [entry.data[:1] for entry in journal.slice(1, 9, 1)] == [b"x"]
    assert [entry.data[:1] for entry in journal.slice(2, 2, 100)] == [b"y", b"z"]
    assert journal.slice(5, 9, 100) == []


def test_of_two_files_the_newer_counts_when_the_older_has_come_back() -> None:
    disk = MemoryDisk(seed=1)
    journal = opened(disk)
    journal.append(1, entries(1, b"one", b"two"))
    path = journal._path(journal._number)
    older = disk.load(path)
    assert older is not None
    journal.compact(1, b"a state")
    journal.save(2, "n1")
    before = state(journal)
    disk.replace(path, older)  # its removal was not on the medium

    assert state(opened(disk)) == before


def test_a_snapshot_has_the_members_of_the_entries_that_it_takes_the_place_of() -> None:
    disk = MemoryDisk(seed=1)
    journal = opened(disk)
    two = {"n0": "a:1", "n1": "b:1"}
    journal.append(1, [members_entry(1, two), *entries(1, b"x", b"y"), members_entry(1, {"n0": "a:1"})])
    journal.compact(1, b"")
    assert opened(disk).snapshot.members == two
    journal.compact(3, b"")
    assert opened(disk).snapshot.members == two
    assert opened(disk).members() == (4, {"n0": "a:1"})


def test_a_last_frame_that_was_whole_is_missed_and_one_that_was_torn_is_not() -> None:
    """A crash leaves out sectors; a disk that changed a byte leaves none out."""
    disk = MemoryDisk(seed=1)
    journal = opened(disk)
    journal.append(1, entries(1, b"kept"))
    path, at = journal._path(journal._number), journal._position
    journal.append(2, entries(1, bytes(range(1, 251)) * 8))
    end = journal._position
    whole = disk.load(path)
    assert whole is not None
    for place in (*range(at, at + 20), at + 21, at + 700, end - 1):
        changed = disk.copy()
        changed.flip(path, place, 3)
        first, journal = opened(changed), opened(changed)
        if at + 12 <= place < at + 16:  # of the number of a frame half its bytes say nothing
            assert (first.last, first.is_doubtful) == (2, False)
            continue
        assert first.is_doubtful, place
        assert journal.is_doubtful  # until it is trusted again
        journal.doubt(False, journal.term, journal.vote)
        assert not opened(changed).is_doubtful
    sectors = range(at - at % 512 + 512, end, 512)
    for start, stop in [(at, sectors[0]), *((one, min(end, one + 512)) for one in sectors), (end - 1, end)]:
        torn = disk.copy()
        torn.replace(path, whole[:start] + bytes(stop - start) + whole[stop:])
        assert not opened(torn).is_doubtful, start
        assert [entry.data for entry in opened(torn).entries] == [b"kept"]
    for length in range(0, end - at, 7):
        partial = disk.copy()
        partial.replace(path, whole[: at + length] + bytes(len(whole) - at - length))
        assert not opened(partial).is_doubtful, length


def test_a_torn_frame_is_the_end_and_a_later_good_one_is_damage() -> None:
    disk = MemoryDisk(seed=1)
    journal = opened(disk)
    journal.append(1, entries(1, b"kept"))
    at = journal._position
    journal.append(2, entries(1, b"torn"))
    end = journal._position
    path = journal._path(journal._number)

    torn = disk.copy()
    torn.flip(path, end - 1)
    assert [entry.data for entry in opened(torn).entries] == [b"kept"]

    journal.append(3, entries(1, b"later"))
    disk.flip(path, end - 1)
    both = disk.copy()
    both.flip(path, journal._position - 1)
    assert [entry.data for entry in opened(both).entries] == [b"kept"]
    with pytest.raises(CorruptRecord) as caught:
        opened(disk)
    assert caught.value.offset == at


FIRST_FORMAT = """
726d714a0000004bd1003e8a000000000000000185a7656e747269657390a5666972737401a8736e617073686f7484a464617461c400a5
696e64657800a76d656d6265727381a26e30a3613a31a47465726d00a47465726d00a4766f7465a0726d714a00000029844566fe000000
000000000285a7656e747269657390a5666972737400a8736e617073686f74c0a47465726d03a4766f7465a26e31726d714a00000054cc
9e38e8000000000000000385a7656e74726965739283a464617461c400a46b696e6400a47465726d0383a464617461c4036f6e65a46b69
6e6401a47465726d03a5666972737401a8736e617073686f74c0a47465726d03a4766f7465a26e31
"""
"""A journal of the version before frames named their format: two members' term and vote, then two entries."""


def frame(journal: Journal, body: dict[str, Any]) -> bytes:
    """A whole frame behind the last one of a journal."""
    data = msgspec.msgpack.encode(body)
    sequence = journal._sequence + 1
    return _HEAD.pack(_MAGIC, len(data), _crc(sequence, data), sequence) + data


def test_a_journal_whose_frames_name_no_format_opens() -> None:
    disk = MemoryDisk(seed=1)
    disk.replace("/raft/journal-0000000001", bytes.fromhex(FIRST_FORMAT))
    journal = opened(disk)
    assert (journal.term, journal.vote, journal.members()) == (3, "n1", (0, {"n0": "a:1"}))
    assert journal.entries == [Entry(3, NOOP), Entry(3, COMMAND, b"one")]
    assert state(opened(disk)) == state(journal)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, f"format 2, rmq {journal_module.VERSION} reads formats up to 1"),
        ({"entries": "in another form"}, f"is whole, and rmq {journal_module.VERSION} cannot read it"),
        ({"term": None, "format": "7"}, f"is whole, and rmq {journal_module.VERSION} cannot read it"),
    ],
)
def test_a_frame_of_a_later_version_does_not_end_the_journal(
    changes: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk(seed=1)
    with monkeypatch.context() as later:
        later.setattr(journal_module, "VERSION", "9.8.7")
        journal = opened(disk)
    journal.save(3, "n1")
    at, path = journal._position, journal._path(journal._number)
    body = {"term": 4, "vote": "n2", "first": 0, "entries": [], "snapshot": None} | changes
    journal._segment.write(at, frame(journal, body))  # type: ignore[union-attr]
    journal.close()
    before = disk.load(path)

    with pytest.raises(LaterFormat) as caught:
        opened(disk)
    for part in (path, f"the frame at {at}", says, "it was written by rmq 9.8.7"):
        assert part in str(caught.value)
    assert "start the version that wrote it" in str(caught.value.hint)
    assert (disk.load(path), disk.list("/raft")) == (before, ["journal-0000000001"])

    disk.flip(path, at - 1)  # behind a damaged one it is as good a witness as any
    with pytest.raises(CorruptRecord):
        opened(disk)


def test_an_empty_folder_without_members_is_blank_until_it_begins() -> None:
    disk = MemoryDisk(seed=1)
    assert not opened(MemoryDisk(seed=1)).is_blank
    journal = Journal(disk, "/raft", {})
    journal.append(1, entries(1, b"x"))
    journal.install(Snapshot(1, 1, THREE, b"state"))
    assert journal.is_blank
    journal = opened(disk)
    assert journal.is_blank
    journal.begin()
    journal.append(2, entries(1, b"y"))
    disk.crash()
    assert not opened(disk).is_blank


def test_the_first_frame_of_a_later_file_must_be_good() -> None:
    disk = MemoryDisk(seed=1)
    journal = opened(disk)
    journal.append(1, entries(1, b"one"))
    journal.compact(1, b"state")
    disk.flip(journal._path(journal._number), 20)

    with pytest.raises(CorruptRecord):
        opened(disk)


def test_what_a_failed_sync_left_unsynced_is_written_anew() -> None:
    disk = MemoryDisk(seed=1)
    journal = opened(disk)
    disk.fail("sync")
    with pytest.raises(StoreError):
        journal.append(1, entries(1, b"in the cache only"))

    again = opened(disk)  # still reads it
    again.append(2, entries(1, b"next"))
    disk.crash()

    assert [entry.data for entry in opened(disk).entries] == [b"in the cache only", b"next"]


def test_a_member_whose_first_file_was_never_on_the_medium_begins_again() -> None:
    """Seed 736003741 of members that forget: it demanded the first file, which nobody relied on."""
    for seed in range(50):
        disk = MemoryDisk(seed=seed)
        disk.fail("sync", times=2)
        for _ in range(2):
            with pytest.raises(StoreError):
                Journal(disk, "/raft", {})
        disk.crash()
        assert state(Journal(disk, "/raft", {})) == (0, "", Snapshot(), [])


def test_a_full_file_is_followed_by_another_and_removed() -> None:
    disk = MemoryDisk(seed=1)
    journal = opened(disk, file_bytes=8192)
    for number in range(1, 60):
        journal.append(number, entries(1, b"x" * 1000))
        journal.compact(number - 5, b"state %d" % number) if number > 5 and number % 10 == 0 else None

    assert len(disk.list("/raft")) == 1
    again = opened(disk)
    assert (again.base, again.last, again.snapshot.data) == (45, 59, b"state 50")


def test_members_are_those_of_the_last_entry_that_says_so() -> None:
    journal = opened(MemoryDisk())
    assert journal.members() == (0, THREE)
    journal.append(1, [members_entry(1, {"n0": "a:1"}), Entry(1, COMMAND, b"x")])
    assert journal.members() == (1, {"n0": "a:1"})
    journal.append(1, entries(2, b"taken back"))
    assert journal.members() == (0, THREE)
    journal.append(2, [members_entry(2, {"n9": "z:1"})])
    journal.compact(2, b"")
    assert journal.members() == (2, {"n9": "z:1"})


def test_a_snapshot_keeps_the_entries_behind_it_only_when_they_go_on_with_it() -> None:
    for term, kept in ((1, [b"c"]), (2, [])):
        journal = opened(MemoryDisk())
        journal.append(1, entries(1, b"a", b"b", b"c"))
        journal.install(Snapshot(2, term, THREE, b"state"))
        assert (journal.base, [entry.data for entry in journal.entries]) == (2, kept)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 9000)), max_size=25), st.data()
)
def test_after_a_power_cut_at_any_write_it_has_what_was_promised(
    steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Cut at any change of the disk: the journal is as after the last step that returned, or after the one
    that was cut."""
    disk = MemoryDisk(seed=data.draw(st.integers(0, 1000)))
    images: list[MemoryDisk] = []
    journal = opened(disk, file_bytes=16384)
    disk.on_change = lambda: images.append(disk.image(len(images)))
    for kind, number, size in steps:
        before, images[:] = state(journal), []
        before = (*before[:3], list(journal.entries))
        if kind == 0:
            journal.save(journal.term + 1, f"n{number}")
        elif kind == 1 and journal.last > journal.base:
            journal.compact(journal.base + 1 + number % (journal.last - journal.base), b"s" * size)
        else:
            first = max(journal.base + 1, journal.last + 1 - number % 2)
            journal.append(first, entries(journal.term, b"e" * size, b"f"))
        after = state(journal)
        for image in images:
            assert state(opened(image)) in (before, after)
    disk.on_change = None
    disk.crash()
    assert state(opened(disk)) == state(journal)
