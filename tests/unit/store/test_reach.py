"""Reading up to a place in the log, as consumers of a set with controllers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.store.audit.audit import check
from rmq.testing.disk import MemoryDisk

from .stores import make_store, open_store, record


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 300)), min_size=1, max_size=40), st.data())
def test_what_ends_behind_a_reach_is_as_if_it_had_not_come(
    sent: list[tuple[int, int]], data: st.DataObject
) -> None:
    store = open_store()
    counts = [0, 0]
    for queue_id, size in sent:
        store.put(record(b"x" * size, queue_id=queue_id))
        if data.draw(st.booleans()):
            store.commit()
        counts[queue_id] += 1
    store.commit()
    for queue_id in (0, 1):
        units = [store.unit("Orders", queue_id, at) for at in range(counts[queue_id])]
        stops = [unit[0] + unit[1] for unit in units if unit is not None]
        assert len(stops) == len(units)
        near = [stop + more for stop in stops for more in (-1, 0, 1)]
        reach = data.draw(st.sampled_from([0, store.max_physical_offset, *near]))
        end = sum(stop <= reach for stop in stops)
        assert store.readable_end("Orders", queue_id, reach) == end
        offset = data.draw(st.integers(0, len(stops) + 1))
        result = store.get("Orders", queue_id, offset, 32, reach=reach)
        if offset < end:
            assert result.count == min(32, end - offset)
            assert result.is_cut == (end < len(stops))
            assert result.max_offset == end
        elif offset < len(stops):
            assert (result.status, result.next_queue_offset) == ("OFFSET_OVERFLOW_ONE", offset)
            assert result.is_cut
        else:
            plain = store.get("Orders", queue_id, offset, 32)
            assert (result.status, result.next_queue_offset) == (plain.status, plain.next_queue_offset)
    store.close()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_queue_that_is_cut_with_the_log_does_not_come_back_with_the_next_start(crashes: bool) -> None:
    disk = MemoryDisk(seed=1)
    store = open_store(disk)
    store.put(record("first", topic="T"))
    store.commit()
    cut = store.max_physical_offset
    for number in range(9):
        store.put(record(f"e{number}", topic="Quiet"))
    store.commit()
    store.close()  # its units are in the files
    store = open_store(disk)
    store.put(record("second", topic="T"))
    store.commit()
    if crashes:
        store.flush()
        disk = disk.image(0.5)
    else:
        store.close()
    store = open_store(disk)
    assert store.max_offset("Quiet", 0) == 9
    store.truncate(cut)
    assert store.max_offset("Quiet", 0) == 0
    for number in range(30):
        store.put(record(f"t{number}", topic="T"))
    store.commit()
    store.close()
    assert check(disk, store.config.store_path_root_dir).is_clean
    store = make_store(disk)
    store.load()
    assert (store.max_offset("Quiet", 0), store.max_offset("T", 0)) == (0, 31)
    store.close()
