"""A broker's side of a controlled set: common ends of logs, leases, and what may be acknowledged."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rmq.controller.replica import Epochs, Replica, as_epochs, begun, common_end
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
    assert replica.tell(broker_set)
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


STEPS = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 4), st.integers(0, 4))


@given(st.lists(STEPS, max_size=12))
def test_the_common_end_is_never_too_far(steps: list[tuple[int, int, int, int]]) -> None:
    """Logs of (epoch, number) pairs grow under masters that change; cut at the common end they are equal."""
    logs: list[list[tuple[int, int]]] = [[], [], []]
    epochs: list[Epochs] = [(), (), ()]
    for epoch, (leader, follower, written, lost) in enumerate(steps, 1):
        log = logs[leader]
        epochs[leader] = begun(epochs[leader], epoch, len(log))
        log += [(epoch, number) for number in range(written)]
        other = follower % 3
        if other != leader and logs[other] is not log:
            end = common_end(epochs[other], len(logs[other]), epochs[leader], len(log)) or 0
            assert logs[other][:end] == log[:end]
            logs[other] = log[: max(end, len(log) - lost)]  # copied as far as it came
            epochs[other] = epochs[leader]
        del log[max(0, len(log) - lost // 2) :]  # and a power cut


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
    replica.tell(evolve(SET, epoch=2, version=4, master=2))
    assert not replica.is_master(6.0)


def test_what_is_older_than_what_is_known_changes_nothing() -> None:
    replica = master()
    assert not replica.tell(evolve(SET, version=2, in_sync=(1,)))
    assert replica.awaited() == {1, 2}


def test_it_waits_for_all_that_are_or_may_be_in_sync() -> None:
    replica = master()
    assert replica.safe_offset(100, 1.0) == 0
    replica.report(2, 1, 60, 100, 1.0)
    assert replica.safe_offset(100, 1.0) == 60
    assert replica.safe_offset(50, 1.0) == 60  # what was acknowledged stays so

    replica.report(3, 1, 100, 100, 1.0)
    assert replica.change(100, 1.0) == (1, 2, 3)
    replica.report(2, 1, 100, 100, 1.0)
    assert replica.safe_offset(120, 1.0) == 100
    replica.report(2, 1, 120, 120, 1.0)
    assert replica.safe_offset(120, 1.0) == 100  # 3 is not in sync yet, but the controllers may have agreed
    replica.tell(evolve(SET, version=4, in_sync=(1, 2, 3)))
    replica.report(3, 1, 120, 120, 1.0)
    assert replica.safe_offset(120, 1.0) == 120


def test_who_lags_is_waited_for_until_the_controllers_agreed_that_it_is_out() -> None:
    replica = master()
    replica.report(2, 1, 10, 10, 1.0)
    assert replica.change(10, 5.9) is None
    assert replica.change(50, 6.1) == (1,)
    assert replica.safe_offset(50, 6.2) == 10
    replica.tell(evolve(SET, version=4, in_sync=(1,)))
    assert replica.safe_offset(50, 6.2) == 50
    assert replica.safe_offset(60, 6.2, least=2) == 50  # too few: no more is acknowledged


def test_a_proposal_that_is_wanted_no_more_is_taken_back_by_another_version() -> None:
    replica = master()
    replica.report(2, 1, 10, 10, 1.0)
    replica.report(3, 1, 10, 10, 1.0)
    assert replica.change(10, 1.0) == (1, 2, 3)
    replica.report(2, 1, 10, 10, 6.5)
    assert replica.change(10, 7.0) == (1, 2)  # 3 went away meanwhile
    assert replica.awaited() == {1, 2, 3}
    replica.tell(evolve(SET, version=4))
    assert replica.awaited() == {1, 2}
    assert replica.change(10, 7.0) is None


def test_who_lacks_what_was_acknowledged_does_not_come_in_sync() -> None:
    replica = master(evolve(SET, in_sync=(1,)))
    assert replica.safe_offset(100, 1.0) == 100
    replica.report(3, 1, 90, 90, 1.0)
    assert replica.change(100, 1.0) is None
    replica.report(3, 1, 100, 110, 1.0)
    assert replica.change(110, 1.0) == (1, 3)


def test_reports_of_another_epoch_and_acts_without_a_lease_count_for_nothing() -> None:
    replica = master()
    replica.report(2, 7, 100, 100, 1.0)
    assert replica.safe_offset(100, 1.0) == 0
    replica.report(2, 1, 100, 100, 1.0)
    assert replica.safe_offset(100, 9.5) == 0
    assert replica.change(100, 9.5) is None
