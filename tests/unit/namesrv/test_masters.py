"""Memory of the last master, over restarts of the name server."""

from __future__ import annotations

import pytest
from attrs import evolve

from rmq.errors import RemoteProtocolError, SystemFailure
from rmq.namesrv.masters import FENCE_MS, Masters
from rmq.namesrv.routes import Registration

OLD = Registration("C", "a", 0, "10.0.0.1:10911")
NEW = Registration("C", "a", 0, "10.0.0.2:10911")
SLAVE = Registration("C", "a", 1, "10.0.0.1:10911")


class File:
    """The file of the last masters."""

    data: bytes | None = None

    def save(self, data: bytes) -> None:
        self.data = data

    def restarted(self, now_ms: int = 0) -> Masters:
        return Masters(self.save, self.data, now_ms)


def after_a_failover() -> File:
    masters = (file := File()).restarted()
    assert masters.registered(OLD)
    assert masters.registered(NEW)
    masters.save()
    return file


def test_the_old_master_is_refused_until_the_new_one_is_back_or_had_its_time() -> None:
    masters = after_a_failover().restarted(now_ms=1000)
    masters.check(NEW, 1001)
    masters.check(SLAVE, 1001)
    with pytest.raises(SystemFailure, match=r"was 10.0.0.2:10911 .* start 10.0.0.1:10911 as its slave"):
        masters.check(OLD, 1000 + FENCE_MS - 1)
    masters.check(OLD, 1000 + FENCE_MS)


def test_who_was_elected_by_controllers_need_not_wait_for_the_last_master() -> None:
    masters = after_a_failover().restarted()
    masters.check(evolve(OLD, epoch=3), 1)
    with pytest.raises(SystemFailure):
        masters.check(OLD, 1)


def test_once_the_new_one_is_back_the_table_of_routes_decides() -> None:
    masters = after_a_failover().restarted()
    assert not masters.registered(NEW)  # which the file says already
    masters.check(OLD, 1)


def test_who_stops_in_good_order_gives_the_name_free() -> None:
    file = after_a_failover()
    masters = file.restarted()
    assert not masters.unregistered(OLD)  # it does not lead
    with pytest.raises(SystemFailure):
        masters.check(OLD, 1)
    assert masters.unregistered(NEW)
    masters.save()
    file.restarted().check(OLD, 1)


def test_names_of_other_clusters_are_others() -> None:
    masters = after_a_failover().restarted()
    masters.check(Registration("D", "a", 0, "10.0.0.9:1"), 1)


def test_without_a_file_nobody_is_fenced() -> None:
    masters = Masters(None, None, 0)
    assert not masters.registered(NEW)
    masters.check(OLD, 1)


def test_a_file_that_cannot_be_written_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fails(data: bytes) -> None:
        raise OSError("disk full")

    masters = Masters(fails, None, 0)
    assert masters.registered(NEW)
    masters.save()
    assert "cannot save the masters: disk full" in caplog.text


@pytest.mark.parametrize("data", [b"[]", b'{"C/a": 1}', b"{"])
def test_a_file_that_is_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Masters(None, data, 0)
