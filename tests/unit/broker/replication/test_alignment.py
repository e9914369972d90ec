"""The place at which a slave's log must be cut, and the bytes that are never cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.broker.replication.sessions import Diverged, Expired, MasterLog, begin, check_cut, find_cut
from rmq.protocol.record import Record
from rmq.store.config import StoreConfig
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk

FILE = 4096


def store_of(sizes: list[int]) -> Store:
    config = StoreConfig(
        store_path_root_dir="/store",
        mapped_file_size_commit_log=FILE,
        mapped_file_size_consume_queue=2000,
        message_index_enable=False,
    )
    store = Store(MemoryDisk(), config, store_host=bytes(8), now_ms=lambda: 1_800_000_000_000)
    store.load()
    for number, size in enumerate(sizes):
        store.put(Record("T", number % 3, bytes([number % 7]) * size))
    store.commit()
    return store


def ends(store: Store) -> list[int]:
    """The ends of the records."""
    units = [
        store.unit(topic, queue_id, offset)
        for topic, queue_id in store.queues()
        for offset in range(store.max_offset(topic, queue_id))
    ]
    return sorted(unit[0] + unit[1] for unit in units if unit is not None)


def searched(store: Store, theirs: int, common: int) -> tuple[int | None, int]:
    """The result of a search with a master that has our log up to `common`, and the number of its
    questions."""
    search, asked = find_cut(store, theirs), 0
    try:
        offset = next(search)
        while True:
            asked += 1
            record = store.read(offset)
            assert record is not None
            offset = search.send(offset + len(record) <= common)
    except StopIteration as found:
        cut: int | None = found.value
        return cut, asked


@given(st.lists(st.integers(0, 3500), max_size=25), st.data())
def test_the_cut_is_the_end_of_the_last_common_record(sizes: list[int], data: st.DataObject) -> None:
    store = store_of(sizes)
    known = [0, *ends(store)]
    common = data.draw(st.sampled_from(known))
    theirs = common + data.draw(st.integers(0, 20_000))
    cut, asked = searched(store, theirs, common)
    reach = store.max_physical_offset
    assert cut == (None if common == reach and sizes else common)
    assert asked <= 40


def test_an_id_that_differs_is_another_log() -> None:
    store = store_of([100] * 20)
    begin(store, MasterLog("a", 0, 9999), "a")
    begin(store, MasterLog("a", 0, 9999), "")  # ours had none yet
    begin(store, MasterLog("", 0, 9999), "a")  # a RocketMQ master has none
    with pytest.raises(Diverged, match="another one than ours"):
        begin(store, MasterLog("b", 0, 9999), "a")


def test_files_of_another_size_cannot_be_copied() -> None:
    store = store_of([100])
    begin(store, MasterLog("a", 0, 9999, FILE), "a")
    with pytest.raises(Diverged, match="mappedFileSizeCommitLog"):
        begin(store, MasterLog("a", 0, 9999, 2 * FILE), "a")


def test_what_has_expired_at_the_master_leaves_a_hole() -> None:
    store = store_of([100])
    reach = store.max_physical_offset
    begin(store, MasterLog("a", reach, 9999), "a")
    with pytest.raises(Expired, match="expired"):
        begin(store, MasterLog("a", reach + 1, 9999), "a")


def test_what_may_have_been_acknowledged_is_not_cut() -> None:
    store = store_of([100] * 3)
    check_cut(store, MasterLog("a", 0, 500), 300, 300)
    with pytest.raises(Diverged, match="may have been acknowledged"):
        check_cut(store, MasterLog("a", 0, 500), 299, 300)
