"""Offsets: one text for one set, exact limits, whole partitions, and every loss named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq.errors import ConfigError
from rmq.message import MessageQueue
from rmq.spark.offsets import (
    QueueRange,
    join,
    limited,
    lost,
    offsets_of,
    offsets_text,
    offsets_tree,
    parse_offsets,
    places_of,
    plan,
    split,
)

queues = st.builds(
    MessageQueue,
    st.sampled_from(["T", "Ünï", 'q"uote', "%RETRY%g"]),
    st.sampled_from(["broker-a", "broker-b"]),
    st.integers(0, 12),
)
offsets = st.dictionaries(queues, st.integers(0, 1 << 62), max_size=12)
A, B, C = (MessageQueue("T", "broker-a", number) for number in (0, 1, 10))


@given(offsets)
def test_one_text_for_one_set_and_back(found: dict[MessageQueue, int]) -> None:
    text = offsets_text(found)
    assert parse_offsets(text, "here") == found
    backwards = dict(reversed(found.items()))
    assert offsets_text(backwards) == text == offsets_text(offsets_of(json.loads(text)))
    assert json.dumps(offsets_tree(backwards)) == json.dumps(offsets_tree(found))


def test_the_text_is_the_one_of_the_documentation() -> None:
    assert offsets_text({C: 5, B: 98, A: 123}) == (
        '{"v":1,"topics":{"T":{"broker-a":{"0":123,"1":98,"10":5}}}}'
    )


def test_places_are_of_version_2_and_offsets_of_version_1_go_on() -> None:
    tree = offsets_tree({B: 98, A: 123}, {A: (4096, 1_700_000_000_000)})
    assert json.dumps(tree, separators=(",", ":")) == (
        '{"v":2,"topics":{"T":{"broker-a":{"0":123,"1":98}}},'
        '"places":{"T":{"broker-a":{"0":[4096,1700000000000]}}}}'
    )
    assert (offsets_of(tree), places_of(tree)) == ({A: 123, B: 98}, {A: (4096, 1_700_000_000_000)})
    assert places_of(offsets_tree({A: 123})) == {}
    with pytest.raises(ConfigError, match="a place"):
        places_of({"v": 2, "topics": {}, "places": {"T": {"b": {"0": [1]}}}})


def test_offsets_of_the_java_connector_are_understood() -> None:
    text = '{"T":{"broker-a":{"0":-2,"1":-1}}}'
    assert parse_offsets(text, "startingOffsets", specials=True) == {A: -2, B: -1}
    with pytest.raises(ConfigError, match="an offset"):
        parse_offsets(text, "checkpoint")


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        '{"T":1}',
        '{"T":{"b":{"x":1}}}',
        '{"T":{"b":{"01":1}}}',
        '{"T":{"b":{"0":1.5}}}',
        '{"T":{"b":{"0":true}}}',
        '{"v":2,"topics":{}}',
        '{"v":3,"topics":{},"places":{}}',
        '{"v":true,"topics":{}}',
        '{"v":1,"topics":{},"places":{}}',
        '{"v":1}',
        '{"v":1,"topics":{},"more":1}',
        '{"T":{"b":{"0":9223372036854775808}}}',
    ],
)
def test_what_are_no_offsets_says_so(text: str) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        parse_offsets(text, "startingOffsets")


@given(st.dictionaries(queues, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1), st.data())
def test_a_limit_is_exact_and_leaves_no_queue_out(
    table: dict[MessageQueue, tuple[int, int]], data: st.DataObject
) -> None:
    start = {queue: low for queue, (low, _) in table.items()}
    end = {queue: low + lag for queue, (low, lag) in table.items()}
    lag = sum(lag for _, lag in table.values())
    most = data.draw(st.integers(1, 1500))
    stop = limited(start, end, most)
    assert stop.keys() == end.keys()
    assert all(start[queue] <= stop[queue] <= end[queue] for queue in end)
    assert sum(stop[queue] - start[queue] for queue in end) == min(most, lag)
    lagging = [queue for queue in end if end[queue] > start[queue]]
    if most >= len(lagging):
        assert all(stop[queue] > start[queue] for queue in lagging)


def test_a_limit_shares_by_lag() -> None:
    assert limited({A: 0, B: 0}, {A: 900, B: 100}, 100) == {A: 89, B: 11}  # one each, then by lag
    assert limited({A: 0, B: 0}, {A: 5, B: 7}, 1) == {A: 0, B: 1}


@given(
    st.lists(st.tuples(queues, st.integers(0, 50), st.integers(0, 400)), max_size=6),
    st.integers(0, 40),
    st.integers(0, 90),
)
def test_joining_keeps_every_message_once(
    parts: list[tuple[MessageQueue, int, int]], most: int, records: int
) -> None:
    ranges = [QueueRange(queue, low, low + size + 1) for queue, low, size in parts]
    tasks = join(ranges, most, max_records=records)
    assert sorted(_messages([one for task in tasks for one in task])) == sorted(_messages(ranges))
    brokers = {one.queue.broker_name for one in ranges}
    assert all(task and len({one.queue.broker_name for one in task}) == 1 for task in tasks)
    if not records:
        assert len(tasks) == min(max(most, len(brokers)), len(ranges))
    else:
        assert all(len(task) == 1 or sum(map(len, task)) <= records for task in tasks)


def test_joined_tasks_are_of_about_one_size() -> None:
    ranges = [QueueRange(MessageQueue("T", f"b{at % 2}", at), 0, 100) for at in range(1000)]
    sizes = [sum(map(len, task)) for task in join(ranges, 16)]
    assert len(sizes) == 16
    assert max(sizes) - min(sizes) <= 200


@given(
    st.lists(st.tuples(queues, st.integers(0, 50), st.integers(0, 400)), max_size=6),
    st.integers(0, 40),
    st.integers(0, 90),
)
def test_splitting_keeps_every_message_once(
    parts: list[tuple[MessageQueue, int, int]], least: int, most: int
) -> None:
    ranges = [QueueRange(queue, low, low + size) for queue, low, size in parts]
    pieces = split(ranges, min_partitions=least, max_records=most)
    wanted = sorted(_messages(ranges))
    assert sorted(_messages(pieces)) == wanted
    assert all(len(piece) > 0 for piece in pieces)
    assert len(pieces) >= min(least, len(wanted))
    assert not most or all(len(piece) <= most for piece in pieces)


def _messages(ranges: list[QueueRange]) -> list[tuple[str, str, int, int]]:
    return [
        (one.queue.topic, one.queue.broker_name, one.queue.queue_id, offset)
        for one in ranges
        for offset in range(one.start, one.stop)
    ]


def test_a_plan_without_loss() -> None:
    found = plan({A: 3, B: 7}, {A: 9, B: 7, C: 2}, {A: (0, 20), B: (7, 7), C: (0, 2)})
    assert found.ranges == (QueueRange(A, 3, 9), QueueRange(C, 0, 2))
    assert found.losses == ()


@pytest.mark.parametrize(
    ("start", "end", "bounds", "kept", "says"),
    [
        ({A: 3}, {A: 9}, {A: (5, 20)}, (5, 9), "3 to 8 are wanted, the broker has 5 to 19"),  # retention
        ({A: 3}, {A: 9}, {A: (0, 6)}, (3, 6), "the broker has 0 to 5"),  # truncation
        ({A: 3}, {A: 9}, {A: (0, 2)}, None, "the broker has 0 to 1"),
        ({A: 3}, {A: 9}, {A: (30, 40)}, None, "the broker has 30 to 39"),
        ({A: 3}, {A: 9}, {}, None, "no broker has the queue"),
        ({A: 100}, {A: 10}, {A: (0, 200)}, None, "begins at 100 but ends at 10"),
        ({A: 3}, {}, {A: (0, 9)}, None, "does not know it"),
        ({}, {A: 9}, {A: (4, 9)}, (4, 9), "it is new, and its messages 0 to 3 are gone"),
    ],
)
def test_a_plan_names_every_loss_and_keeps_the_rest(
    start: dict[MessageQueue, int],
    end: dict[MessageQueue, int],
    bounds: dict[MessageQueue, tuple[int, int]],
    kept: tuple[int, int] | None,
    says: str,
) -> None:
    found = plan(start, end, bounds)
    assert found.ranges == ((QueueRange(A, *kept),) if kept else ())
    (loss,) = found.losses
    assert "T on broker-a queue 0" in loss
    assert says in loss
    assert "failOnDataLoss=false" in str(lost(found.losses))


def test_a_queue_seen_first_while_an_old_batch_is_planned_again_is_no_loss() -> None:
    assert plan({A: 1, B: 0}, {A: 2}, {A: (0, 5), B: (0, 5)}).losses == ()
