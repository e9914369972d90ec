"""rmq.broker.tables.stats: windows as RocketMQ keeps them, and the figures of the whole broker."""

from __future__ import annotations

from datetime import datetime

import pytest

from rmq.broker.tables.stats import DAY_STEP_MS, HOUR_STEP_MS, MINUTE_STEP_MS, Stats, Window

START = 1_700_000_000_000
NO_WINDOW = Window()


def run(stats: Stats, seconds: int, *, start: int = START) -> int:
    """Step as the service does, from one due moment to the next; returns the time reached."""
    now, end = start, start + seconds * 1000
    while (due := stats.step(now)) <= end:
        now = due
    return end


def test_step_names_the_next_sample() -> None:
    stats = Stats(START)
    assert stats.step(START) == START + MINUTE_STEP_MS
    assert stats.step(START + 4_000) == START + MINUTE_STEP_MS
    assert stats.step(START + 10_003) == START + 20_003


def put_tps(stats: Stats, topic: str, now: int | None = None) -> float:
    """Messages a second in the last minute."""
    windows = stats.windows("TOPIC_PUT_NUMS", topic, now)
    assert windows is not None
    return windows[0].tps


def test_a_minute_window_counts_messages_bytes_and_calls() -> None:
    stats = Stats(START)
    stats.put("T", 3, 300)
    stats.put("T", 1, 80)
    run(stats, 10)
    minute, hour, day = stats.windows("TOPIC_PUT_NUMS", "T") or ()
    assert minute == Window(4, 0.4, 2.0)
    assert (hour, day) == (NO_WINDOW, NO_WINDOW)
    size = stats.windows("TOPIC_PUT_SIZE", "T")
    assert size is not None
    assert size[0] == Window(380, 38.0, 190.0)
    assert put_tps(stats, "T") == 0.4


def test_the_minute_window_moves_on() -> None:
    stats = Stats(START)
    stats.put("T", 6, 6)
    now = run(stats, 60)
    assert put_tps(stats, "T") == 0.1
    run(stats, 10, start=now)
    assert put_tps(stats, "T") == 0.0


def test_hours_and_days_have_their_own_samples() -> None:
    stats = Stats(START)
    stats.put("T", 36, 36)
    run(stats, 3600)
    minute, hour, day = stats.windows("TOPIC_PUT_NUMS", "T") or ()
    assert minute.sum == 0
    assert (hour.sum, hour.tps) == (36, 0.01)
    assert (day.sum, day.tps) == (36, 0.01)
    assert HOUR_STEP_MS * 6 == DAY_STEP_MS


def test_a_counter_that_came_late_is_measured_from_its_start() -> None:
    stats = Stats(START)
    now = run(stats, 40)
    stats.put("Late", 5, 5)
    run(stats, 10, start=now)
    assert put_tps(stats, "Late") == 0.5


def test_group_counters_are_keyed_by_topic_and_group() -> None:
    stats = Stats(START, cluster="C")
    stats.get("g", "T", 20, 2000)
    stats.send_back("g", "T")
    run(stats, 10)
    assert stats.consume_tps("g", "T") == 2.0
    assert stats.consume_tps("g", "Other") == 0.0
    names = ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS")
    found = [stats.windows(name, "T@g") for name in names]
    assert [windows and windows[0].sum for windows in found] == [20, 2000, 1]


def test_the_brokers_own_counters_are_keyed_by_cluster() -> None:
    stats = Stats(START, cluster="C")
    stats.put("A", 1, 1)
    stats.put("B", 1, 1)
    stats.get("g", "A", 1, 1)
    run(stats, 10)
    put, got = stats.windows("BROKER_PUT_NUMS", "C"), stats.windows("BROKER_GET_NUMS", "C")
    assert put is not None
    assert got is not None
    assert (put[0].sum, got[0].sum) == (2, 1)


@pytest.mark.parametrize(("name", "key"), [("NO_SUCH", "T"), ("TOPIC_PUT_NUMS", "Nowhere")])
def test_unknown_counters_are_none(name: str, key: str) -> None:
    assert Stats(START).windows(name, key) is None


def test_deleted_topics_and_groups_are_forgotten() -> None:
    stats = Stats(START)
    stats.put("T", 1, 1)
    stats.put("TT", 1, 1)
    for topic, group in (("T", "g"), ("TT", "g"), ("TT", "gg"), ("TT", "h")):
        stats.get(group, topic, 1, 1)
        stats.send_back(group, topic)
    stats.delete_topic("T")
    stats.delete_group("g")
    assert stats.windows("TOPIC_PUT_NUMS", "T") is None
    assert stats.windows("TOPIC_PUT_NUMS", "TT") is not None
    for name in ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS"):
        present = [key for key in ("T@g", "TT@g", "TT@gg", "TT@h") if stats.windows(name, key)]
        assert present == ["TT@gg", "TT@h"]


def rates(stats: Stats, now: int, name: str) -> list[float]:
    return [float(text) for text in stats.runtime(now)[name].split(" ")]


def test_rates_stand_over_ten_sixty_and_six_hundred_seconds() -> None:
    stats = Stats(START)
    stats.put("T", 600, 1)
    now = run(stats, 590)
    stats.put("T", 60, 1)
    stats.get("g", "T", 10, 10)
    stats.miss()
    now = run(stats, 10, start=now)
    assert rates(stats, now, "putTps") == [6.0, 1.0, 1.1]
    assert rates(stats, now, "getTransferedTps") == pytest.approx([1.0, 1 / 6, 1 / 60])
    assert rates(stats, now, "getFoundTps") == pytest.approx([0.1, 1 / 60, 1 / 600])
    assert rates(stats, now, "getMissTps") == pytest.approx([0.1, 1 / 60, 1 / 600])
    assert rates(stats, now, "getTotalTps") == pytest.approx([0.2, 1 / 30, 1 / 300])


def test_rates_are_there_at_once_and_between_samples() -> None:
    stats = Stats(START)
    assert rates(stats, START, "putTps") == [0.0, 0.0, 0.0]
    stats.put("T", 10, 1)
    assert rates(stats, START + 2_000, "putTps") == [5.0, 5.0, 5.0]


def test_days_turn_at_local_midnight() -> None:
    midnight = round(datetime(2026, 3, 4).timestamp() * 1000)
    stats = Stats(midnight - 30_000)
    stats.put("T", 7, 7)
    stats.get("g", "T", 5, 5)
    now = run(stats, 60, start=midnight - 30_000)
    stats.put("T", 1, 1)
    figures = stats.runtime(now)
    assert figures["msgPutTotalYesterdayMorning"] == "0"
    assert (figures["msgPutTotalTodayMorning"], figures["msgPutTotalTodayNow"]) == ("7", "8")
    assert (figures["msgGetTotalTodayMorning"], figures["msgGetTotalTodayNow"]) == ("5", "5")
    stats.step(midnight + 86_400_000)
    figures = stats.runtime(midnight + 86_400_000)
    assert (figures["msgPutTotalYesterdayMorning"], figures["msgPutTotalTodayMorning"]) == ("7", "8")


def test_runtime_tells_age_sizes_and_latencies() -> None:
    stats = Stats(START)
    stats.put("T", 4, 1000)
    stats.stored(0.4, 1)
    stats.stored(9.9, 2)
    stats.stored(1_000, 1)
    stats.stored(99_000, 1)
    figures = stats.runtime(START + 90_061_000)
    assert figures["bootTimestamp"] == str(START)
    assert figures["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert (figures["putMessageTimesTotal"], figures["putMessageAverageSize"]) == ("4", "250.0")
    assert figures["putMessageEntireTimeMax"] == "99000"
    shares = dict(part.split(":") for part in figures["putMessageDistributeTime"].split())
    counted = {name: count for name, count in shares.items() if count != "0"}
    assert counted == {"[<=0ms]": "1", "[0~10ms]": "2", "[1~2s]": "1", "[10s~]": "1"}


def test_latencies_of_more_than_two_minutes_ago_are_gone() -> None:
    stats = Stats(START)
    stats.stored(5, 1)
    now = run(stats, 60)
    assert "[0~10ms]:1" in stats.runtime(now)["putMessageDistributeTime"]
    now = run(stats, 60, start=now)
    assert "[0~10ms]:0" in stats.runtime(now)["putMessageDistributeTime"]


def test_a_clock_set_back_does_not_stop_the_samples() -> None:
    stats = Stats(START)
    stats.put("T", 1, 1)
    earlier = START - 3_600_000
    assert stats.step(earlier) == earlier + MINUTE_STEP_MS
    assert put_tps(stats, "T") == 0.0
    now = run(stats, 120, start=earlier)
    stats.put("T", 60, 60)
    run(stats, 60, start=now)
    assert put_tps(stats, "T") == 1.0


def test_windows_that_end_now_show_what_came_since_the_last_sample() -> None:
    stats = Stats(START)
    now = run(stats, 60)
    stats.put("T", 30, 30)
    windows = stats.windows("TOPIC_PUT_NUMS", "T", now + 5_000)
    assert windows is not None
    assert (windows[0].sum, windows[0].tps) == (30, 30 / 5)
    stats.step(now + 10_000)
    assert put_tps(stats, "T", now + 20_000) == 30 / 20
    assert stats.consume_tps("g", "T", now) == 0.0


def test_a_full_window_that_ends_now_is_no_longer_than_the_window() -> None:
    stats = Stats(START)
    stats.put("T", 60, 60)
    now = run(stats, 60)
    assert put_tps(stats, "T", now) == 1.0
    assert put_tps(stats, "T", now + 5_000) == 0.0


def test_latencies_as_shares() -> None:
    stats = Stats(START)
    assert stats.runtime(START)["putLatency99"] == "0.00"
    stats.stored(0.2, 980)
    stats.stored(70, 15)
    stats.stored(300, 5)
    figures = stats.runtime(START)
    assert (figures["putLatency99"], figures["putLatency999"]) == ("100.00", "300.00")


def test_the_longest_read() -> None:
    stats = Stats(START)
    stats.read(3.7)
    stats.read(1.2)
    assert stats.runtime(START)["getMessageEntireTimeMax"] == "3"
