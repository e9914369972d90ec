"""The model itself: each kind of loss is a complaint, and nothing else is."""

from __future__ import annotations

import pytest

from .ledger import LATE_MS, RECENT_MS, Ledger, Lost, Promise

QUEUE = ("Orders", 0)
WRITTEN, SYNCED = {"master": Promise.WRITTEN}, {"master": Promise.SYNCED}


@pytest.fixture
def ledger() -> Ledger:
    """`a` synced, `b` written, `c` on its way, `late` due at 100, `half` not ended."""
    made = Ledger()
    for number, body in enumerate((b"a", b"b", b"c")):
        made.sending(body, QUEUE)
        if body != b"c":
            made.acknowledged(body, WRITTEN, number)
    made.synced("master", 1)
    made.sending(b"late", QUEUE, due_ms=100)
    made.sending(b"half", QUEUE, is_half=True)
    made.acknowledged(b"late", SYNCED)
    made.acknowledged(b"half", SYNCED)
    return made


def wrong(ledger: Ledger, *bodies: bytes, now_ms: int = 50, least: Promise = Promise.WRITTEN) -> str:
    found = {QUEUE: list(enumerate(bodies))}
    return "; ".join(ledger.complaints("master", found, now_ms, least=least))


def test_what_must_and_what_may_be_there(ledger: Ledger) -> None:
    assert wrong(ledger, b"a", b"b") == wrong(ledger, b"a", b"b", b"c") == ""
    assert wrong(ledger, b"a", least=Promise.SYNCED) == ""
    assert "not there: plain b'b'" in wrong(ledger, b"a")
    assert "not there: plain b'a'" in wrong(ledger, least=Promise.SYNCED)
    ledger.power_cut("master", 50)
    assert wrong(ledger, b"a") == ""
    ledger.disk_lost("master", 50)
    assert wrong(ledger) == ""


def test_each_place_is_the_one_that_was_told(ledger: Ledger) -> None:
    assert "was told" in wrong(ledger, b"b", b"a")
    assert "no offset 1" in "; ".join(ledger.complaints("master", {QUEUE: [(0, b"a"), (2, b"c")]}, 50))
    assert "nobody sent b'a' there" in "; ".join(ledger.complaints("master", {("Bills", 0): [(0, b"a")]}, 50))


def test_nothing_comes_early_twice_or_from_nowhere(ledger: Ledger) -> None:
    assert "is due at 100" in wrong(ledger, b"a", b"b", b"late")
    assert wrong(ledger, b"a", b"b", b"late", now_ms=100) == wrong(ledger, b"a", b"b", now_ms=100) == ""
    assert "not there: delayed b'late'" in wrong(ledger, b"a", b"b", now_ms=100 + LATE_MS)
    assert "2 times" in wrong(ledger, b"a", b"b", b"late", b"late", now_ms=100)
    assert "nobody sent" in wrong(ledger, b"a", b"b", b"zz")
    ledger.interrupted(60)
    assert wrong(ledger, b"a", b"b", b"late", b"late", now_ms=100) == ""
    assert "2 times" in wrong(ledger, b"a", b"b", b"a", now_ms=50)


def test_a_transaction_is_seen_once_it_is_committed(ledger: Ledger) -> None:
    assert "was not committed" in wrong(ledger, b"a", b"b", b"half")
    assert [sent.body for sent in ledger.open_halves("master", Promise.SYNCED)] == [b"half"]
    ledger.committing(b"half")
    assert wrong(ledger, b"a", b"b", b"half") == wrong(ledger, b"a", b"b") == ""
    ledger.committed(b"half", WRITTEN, 50)
    assert "not there: half b'half'" in wrong(ledger, b"a", b"b")
    ledger.power_cut("master", 50)
    assert [sent.body for sent in ledger.open_halves("master", Promise.SYNCED)] == [b"half"]
    ledger.rolling_back(b"half")
    ledger.rolled_back(b"half")
    assert ledger.open_halves("master", Promise.SYNCED) == []
    assert "was rolled back" in wrong(ledger, b"a", b"half")


def test_a_delayed_message_that_nobody_was_told_of_may_come_in_another_queue_of_its_topic(
    ledger: Ledger,
) -> None:
    ledger.sending(b"unknown", ("Orders", 1), due_ms=100)
    assert wrong(ledger, b"a", b"b", b"unknown", now_ms=100) == ""
    ledger.acknowledged(b"unknown", SYNCED)
    assert "nobody sent" in wrong(ledger, b"a", b"b", b"unknown", now_ms=100)


def test_what_was_delivered_long_before_an_accident_comes_once(ledger: Ledger) -> None:
    ledger.committing(b"half")
    ledger.committed(b"half", SYNCED, 100)
    ledger.interrupted(100 + RECENT_MS)
    for body in (b"late", b"half"):
        assert "2 times" in wrong(ledger, b"a", b"b", b"late", b"half", body, now_ms=200)
    ledger.interrupted(99 + RECENT_MS)
    assert wrong(ledger, b"a", b"b", b"late", b"late", b"half", b"half", now_ms=200) == ""


def test_what_a_master_has_removed_is_not_needed_and_what_is_younger_is(ledger: Ledger) -> None:
    ledger.expired(2, {QUEUE: 1})
    assert wrong(ledger, b"a", b"b") == ""
    assert ledger.complaints("master", {QUEUE: [(1, b"b")]}, 50) == []
    assert "not there: plain b'b'" in wrong(ledger)
    ledger.expired(1, {QUEUE: 2})
    assert "not there: plain b'b'" in wrong(ledger)


def test_what_is_refused_or_deleted(ledger: Ledger) -> None:
    ledger.refused(b"c")
    assert "was refused" in wrong(ledger, b"a", b"b", b"c")
    ledger.deleted(topic="Orders")
    assert wrong(ledger) == ""
    with pytest.raises(Lost, match="master, 1 faults"):
        ledger.check("master", {QUEUE: [(0, b"zz")]}, 50)
