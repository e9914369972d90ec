"""A broker's side of a controlled set: common ends of logs, leases, and what may be acknowledged."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq.controller.epochs import (
    UNKNOWN,
    Epochs,
    as_epochs,
    before_all,
    begun,
    common_end,
    joined,
    since,
)
from rmq.controller.replica import Replica
from rmq.controller.sets import BrokerSet
from rmq.controller.sets import Replica as Registered

SET = BrokerSet(
    "c",
    "s",
    epoch=1,
    version=3,
    master=1,
    in_sync=(1, 2),
    replicas={number: Registered(f"r{number}", 1, "a", "h") for number in (1, 2, 3)},
)


def master(broker_set: BrokerSet = SET, *, end: int = 0) -> Replica:
    """Replica 1, which leads that set with a lease until 9, at time 0."""
    replica = Replica(1, (), lag_s=5.0)
    assert replica.take_set(broker_set)
    replica.lead(broker_set.epoch, end, 0.0)
    replica.lease(broker_set.epoch, 0.0, 10.0)
    return replica


def test_two_logs_are_the_same_up_to_the_end_of_the_last_epoch_that_both_have() -> None:
    mine: Epochs = ((1, 0), (2, 100), (4, 180))
    for others, end, expected in (
        (((1, 0), (2, 100), (4, 180)), 250, 200),
        (((1, 0), (2, 100), (4, 180)), 190, 190),
        (((1, 0), (2, 100), (3, 150)), 400, 150),
        (((1, 0), (2, 100), (5, 300)), 400, 180),
        (((1, 0), (3, 60)), 70, 60),
        (((1, 10),), 70, None),
        ((), 0, None),
    ):
        assert common_end(mine, 200, others, end) == expected
        assert common_end(others, end, mine, 200) == expected


SMALL = st.integers(0, 4)
STEPS = st.tuples(st.integers(0, 2), st.integers(0, 3), SMALL, SMALL, SMALL)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_the_common_end_is_never_too_far(steps: list[tuple[int, int, int, int, int]]) -> None:
    """Logs of (epoch, number) pairs grow under masters that change, and lose what has expired; cut at the
    common end they are equal, as far as both are kept."""
    logs: list[list[tuple[int, int]]] = [[], [], []]
    starts = [0, 0, 0]
    epochs: list[Epochs] = [(), (), ()]
    for epoch, (leader, follower, written, lost, expired) in enumerate(steps, 1):
        log = logs[leader]
        starts[leader] = min(len(log), starts[leader] + expired)
        epochs[leader] = begun(since(epochs[leader], starts[leader]), epoch, len(log))
        log += [(epoch, number) for number in range(written)]
        other = follower % 3
        if other != leader and logs[other] is not log:
            _follow(logs, starts, epochs, leader, other)
            logs[other] = logs[other][
                : max(len(logs[other]) - lost, starts[other])
            ]  # as far as it was copied
        del log[max(starts[leader], len(log) - lost // 2) :]  # and a power cut


def _follow(
    logs: list[list[tuple[int, int]]], starts: list[int], epochs: list[Epochs], leader: int, other: int
) -> None:
    mine, others, low = epochs[other], epochs[leader], max(starts[leader], starts[other])
    end = common_end(mine, len(logs[other]), others, len(logs[leader])) if mine else 0
    if mine and end is None:
        end = before_all(mine, others)
    if mine and end is not None and end >= low and len(logs[other]) > starts[other]:
        assert logs[other][low:end] == logs[leader][low:end]
        epochs[other] = since(joined(mine, others), starts[other])
        logs[other] = logs[other][:end] + logs[leader][end:]
    else:
        starts[other], epochs[other] = starts[leader], since(others, starts[leader])
        logs[other] = list(logs[leader])


def test_epochs_that_end_before_the_log_begins_are_dropped_and_no_other_log_takes_them_for_its_own() -> None:
    all_: Epochs = ((1, 0), (2, 100), (4, 180), (6, 300))
    for start, kept in (
        (0, all_),
        (100, all_),
        (101, ((UNKNOWN, 0), *all_[1:])),
        (180, ((UNKNOWN, 0), *all_[1:])),
        (301, ((UNKNOWN, 180), all_[3])),
        (9999, ((UNKNOWN, 180), all_[3])),
    ):
        assert since(all_, start) == kept
        assert since(kept, start) == kept
    short, other = since(all_, 301), ((UNKNOWN, 180), (5, 200))
    assert common_end(short, 400, other, 400) is before_all(short, other) is None
    assert before_all(((3, 50),), ((5, 70),)) == 50
    assert common_end(short, 400, all_, 350) == 350
    assert joined(all_, (*short, (7, 350))) == (*all_, (7, 350))
    assert joined((), short) == short


def test_many_epochs_are_compared_and_trimmed_in_no_time() -> None:
    """By a look for each of them in all others it would be minutes."""
    mine = tuple((2 * number + 1, number) for number in range(100_000))
    others = tuple((2 * number + 2, number) for number in range(100_000))
    assert common_end(mine, 100_000, others, 100_000) is None
    assert since(mine, 99_000)[1] == mine[98_999]


def test_epochs_of_a_file_ascend() -> None:
    assert as_epochs([(1, 0), (3, 20)]) == ((1, 0), (3, 20))
    for wrong in ([(2, 0), (2, 5)], [(1, 5), (2, 5)]):
        with pytest.raises(ValueError, match="ascend"):
            as_epochs(wrong)


def test_a_lease_counts_from_the_question_and_ends_early() -> None:
    replica = master()
    assert replica.is_master(8.99)
    assert not replica.is_master(9.0)
    replica.lease(2, 5.0, 10.0)  # of another epoch
    assert not replica.is_master(9.0)
    replica.lease(1, 5.0, 10.0)
    assert replica.is_master(13.99)
    replica.take_set(evolve(SET, epoch=2, version=4, master=2))
    assert not replica.is_master(6.0)


def test_a_replica_knows_the_longest_lease_that_may_be_valid() -> None:
    replica = master()
    replica.take_lease_length(4.0, 0.0)
    replica.take_lease_length(0.7, 1.0)  # the table went back
    assert replica.longest_lease_s == 4.0
    replica.take_lease_length(5.0, 2.0)
    replica.take_lease_length(0.7, 6.9)
    assert replica.longest_lease_s == 5.0
    replica.take_lease_length(0.7, 7.0)
    assert replica.longest_lease_s == 0.7


def test_what_is_older_than_what_is_known_changes_nothing() -> None:
    replica = master()
    assert not replica.take_set(evolve(SET, version=2, in_sync=(1,)))
    assert replica.awaited() == {1, 2}


def test_it_waits_for_all_that_are_or_may_be_in_sync() -> None:
    replica = master()
    assert replica.ack_limit(100, 1.0) == 0
    replica.report(2, 1, 60, 100, 1.0)
    assert replica.ack_limit(100, 1.0) == 60
    assert replica.ack_limit(50, 1.0) == 60  # what was acknowledged stays so

    replica.report(3, 1, 100, 100, 1.0)
    assert replica.change(100, 1.0) == (1, 2, 3)
    replica.report(2, 1, 100, 100, 1.0)
    assert replica.ack_limit(120, 1.0) == 100
    replica.report(2, 1, 120, 120, 1.0)
    assert replica.ack_limit(120, 1.0) == 100  # 3 is not in sync yet, but the controllers may have agreed
    replica.take_set(evolve(SET, version=4, in_sync=(1, 2, 3)))
    replica.report(3, 1, 120, 120, 1.0)
    assert replica.ack_limit(120, 1.0) == 120


def test_who_lags_is_waited_for_until_the_controllers_agreed_that_it_is_out() -> None:
    replica = master()
    replica.report(2, 1, 10, 10, 1.0)
    assert replica.change(10, 5.9) is None
    assert replica.change(50, 6.1) == (1,)
    assert replica.ack_limit(50, 6.2) == 10
    replica.take_set(evolve(SET, version=4, in_sync=(1,)))
    assert replica.ack_limit(50, 6.2) == 50
    assert replica.ack_limit(60, 6.2, least=2) == 50  # too few: no more is acknowledged


def test_a_proposal_that_is_wanted_no_more_is_taken_back_by_another_version() -> None:
    replica = master()
    replica.report(2, 1, 10, 10, 1.0)
    replica.report(3, 1, 10, 10, 1.0)
    assert replica.change(10, 1.0) == (1, 2, 3)
    replica.report(2, 1, 10, 10, 6.5)
    assert replica.change(10, 7.0) == (1, 2)  # 3 went away meanwhile
    assert replica.awaited() == {1, 2, 3}
    replica.take_set(evolve(SET, version=4))
    assert replica.awaited() == {1, 2}
    assert replica.change(10, 7.0) is None


def test_who_lacks_what_was_acknowledged_does_not_come_in_sync() -> None:
    replica = master(evolve(SET, in_sync=(1,)))
    assert replica.ack_limit(100, 1.0) == 100
    replica.report(3, 1, 90, 90, 1.0)
    assert replica.change(100, 1.0) is None
    replica.report(3, 1, 100, 110, 1.0)
    assert replica.change(110, 1.0) == (1, 3)


def test_reports_of_another_epoch_and_acts_without_a_lease_count_for_nothing() -> None:
    replica = master()
    replica.report(2, 7, 100, 100, 1.0)
    assert replica.ack_limit(100, 1.0) == 0
    replica.report(2, 1, 100, 100, 1.0)
    assert replica.ack_limit(100, 9.5) == 0
    assert replica.change(100, 9.5) is None


def test_a_master_takes_no_set_of_its_epoch_with_somebody_in_sync_whom_it_did_not_propose() -> None:
    """The controllers' table went back: 2 lacks what was acknowledged since it is in sync no more."""
    replica = master(evolve(SET, version=5, in_sync=(1,)))
    for version in (5, 8):
        assert not replica.take_set(evolve(SET, version=version, in_sync=(1, 2)))
        known = replica.broker_set
        assert known is not None
        assert (known.version, known.in_sync) == (version + 1, (1,))  # which the controllers are to adopt
        assert replica.awaited() == {1}
    assert not replica.take_set(evolve(SET, version=9, in_sync=(1,)))
    replica.report(3, 1, 9, 9, 1.0)
    assert replica.change(9, 1.0) == (1, 3)
    replica.take_set(evolve(SET, version=10, in_sync=(1, 3)))
    assert replica.broker_set is not None
    assert replica.broker_set.in_sync == (1, 3)


def test_who_lacks_what_consumers_may_have_read_does_not_come_in_sync() -> None:
    replica = master(evolve(SET, in_sync=(1,)))
    assert replica.confirm(50, 1.0) == 50
    replica.report(2, 1, 40, 40, 1.0)
    assert replica.change(50, 1.0) is None
    replica.report(2, 1, 50, 50, 1.0)
    assert replica.change(50, 1.0) == (1, 2)
