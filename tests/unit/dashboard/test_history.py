"""The history of charts: thinned out, bounded in memory and in the number of its series."""

from __future__ import annotations

import pathlib
import sqlite3

import pytest

from rmq.dashboard.history import history as module
from rmq.dashboard.history.history import HOUR_MS, History, Sample

MINUTE = 60_000


def rows(history: History) -> int:
    """Samples of the store."""
    (found,) = history._db.execute("SELECT COUNT(*) FROM samples").fetchone()
    return int(found)


def test_points_are_thinned_out_and_forgotten() -> None:
    history = History(days=2)
    for at in range(0, 72 * HOUR_MS, MINUTE):
        history.add("test", at, [Sample("cluster_in", "", 1.0)])
    history.add("test", 72 * HOUR_MS, [Sample("cluster_in", "", 3.0)])

    whole = history.read("test", "cluster_in", "", 0, 72 * HOUR_MS)
    assert whole.times[0] >= 23 * HOUR_MS
    assert len(whole.times) <= 721
    last = history.read("test", "cluster_in", "", 71 * HOUR_MS, 72 * HOUR_MS)
    assert len(last.times) == 61
    assert last.values[-1] == 3.0
    early = history.read("test", "cluster_in", "", 24 * HOUR_MS, 25 * HOUR_MS)
    assert len(early.times) in (12, 13)


def test_without_a_file_the_number_of_samples_is_bounded_and_the_last_hour_stays_fine() -> None:
    history, end = History(rows_max=10_000), 30 * HOUR_MS
    for at in range(0, end, MINUTE):
        history.add("test", at, [Sample("group_lag", f"group-{number}", at) for number in range(20)])
        assert rows(history) <= 10_000
    one = history.read("test", "group_lag", "group-7", end - HOUR_MS, end)
    assert len(one.times) == 60
    day = history.read("test", "group_lag", "group-7", end - 24 * HOUR_MS, end)
    assert day.times[0] <= end - 20 * HOUR_MS


def test_more_series_than_memory_has_room_for_lose_their_oldest_samples() -> None:
    history = History(rows_max=1000)
    for at in range(0, 20 * MINUTE, MINUTE):
        history.add("test", at, [Sample("group_lag", f"group-{number}", at) for number in range(300)])
        assert rows(history) <= 1000
    kept = history.read("test", "group_lag", "group-7", 0, 20 * MINUTE)
    assert kept.times[-1] == 19 * MINUTE


def test_a_file_is_not_bounded_in_rows(tmp_path: pathlib.Path) -> None:
    history = History(tmp_path / "history.db", rows_max=10)
    for at in range(0, 100 * MINUTE, MINUTE):
        history.add("test", at, [Sample("cluster_in", "", 1.0)])
    assert rows(history) == 100
    history.close()


def test_series_of_which_no_sample_is_left_are_forgotten(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "history.db"
    history = History(path, days=1)
    history.add("test", 0, [Sample("group_lag", "gone", 1.0), Sample("group_lag", "billing", 1.0)])
    for hour in range(1, 30):
        history.add("test", hour * HOUR_MS + hour, [Sample("group_lag", "billing", 1.0)])
    history.close()

    found = sqlite3.connect(path).execute("SELECT subject FROM series").fetchall()
    assert found == [("billing",)]


def test_series_under_ever_new_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 10)
    history = History()
    for number in range(100):
        new = [Sample("group_lag", f"new-{number}-{one}", 1.0) for one in range(3)]
        history.add("test", number * MINUTE, [*new, Sample("group_lag", "billing", 1.0)])
        assert len(history._ids) <= 24
    assert len(history.read("test", "group_lag", "billing", 0, 100 * MINUTE).times) == 100
    assert history.read("test", "group_lag", "new-99-0", 0, 100 * MINUTE).times == [99 * MINUTE]
    assert history.read("test", "group_lag", "new-0-0", 0, 100 * MINUTE).times == []
