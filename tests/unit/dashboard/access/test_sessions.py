"""Sessions and failed logins of one person cost others neither theirs nor a login; the audit log."""

from __future__ import annotations

import pathlib

import pytest

pytest.importorskip("starlette")

from rmq.dashboard.access.audit import AuditLog
from rmq.dashboard.access.roles import Role
from rmq.dashboard.access.sessions import (
    ATTEMPTS,
    SESSIONS_OF_ONE,
    WINDOW_SECONDS,
    Identity,
    LoginLimit,
    Sessions,
    place_of_address,
    place_of_name,
)


def test_many_logins_of_one_end_no_session_of_another() -> None:
    sessions = Sessions(lambda: 0.0)
    mine = sessions.begin(Identity("ada", Role.ADMIN, "user"))
    greedy = Identity("otto", Role.OPERATOR, "account", "test")
    first, *others = [sessions.begin(greedy) for _ in range(SESSIONS_OF_ONE)]
    sessions.find(first.id)
    for _ in range(2_000):
        sessions.begin(greedy)
    assert sessions.find(mine.id) is mine
    assert not any(sessions.find(one.id) for one in (first, *others))
    assert len(sessions) == SESSIONS_OF_ONE + 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tries(limit: LoginLimit, address: str, name: str, *, is_right: bool = False) -> bool:
    """True if a login is checked."""
    places = place_of_address(address), place_of_name(name)
    if limit.wait_seconds(*places):
        return False
    limit.failed(*places)
    if is_right:
        limit.succeeded(*places)
    return True


def test_a_stranger_that_guesses_does_not_lock_the_user_out() -> None:
    limit = LoginLimit(Clock())
    for address in ("10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2"):
        for _ in range(20):
            tries(limit, address, "ada")
    assert not tries(limit, "10.0.0.1", "ada")
    assert not tries(limit, "2001:db8::3", "ada"), "a network of 64 bits is one address"
    assert tries(limit, "10.0.0.9", "ada", is_right=True)


def test_a_right_login_between_wrong_ones_buys_no_more_of_them() -> None:
    clock = Clock()
    limit = LoginLimit(clock)
    guesses = 0
    for _ in range(10):
        tries(limit, "10.0.0.1", "mallory", is_right=True)
        guesses += tries(limit, "10.0.0.1", "ada")
    assert guesses == ATTEMPTS
    clock.now += WINDOW_SECONDS
    assert tries(limit, "10.0.0.1", "ada")


def test_right_logins_side_by_side_are_not_refused() -> None:
    limit = LoginLimit(Clock())
    for _ in range(200):
        assert tries(limit, "10.0.0.1", "ci", is_right=True)


# --- the audit log ---


def test_the_lines_of_an_audit_file_are_shown_after_a_restart(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "audit.log"
    first = AuditLog(lambda: 1_700_000_000_000, path)
    hostile = 'a"b outcome="done" \\ <b>\nat=1'
    first.write(hostile, "admin", "127.0.0.1", "test", "put_topic", {"topic": hostile}, "done", "account")
    first.write("ada", "admin", "127.0.0.1", "other", "login", {}, "LoginFailed: no")
    with path.open("a", encoding="utf-8") as file:
        file.write("a line of somebody else\nat=1 who=\n")
    again = AuditLog(lambda: 1_700_000_000_001, path)
    for cluster in ("test", "other"):
        assert again.last(9, cluster) == first.last(9, cluster) != []
    again.write("ada", "admin", "127.0.0.1", "test", "login", {}, "done")
    assert [line.who for line in again.last(9, "test")] == ["ada", first.last(1, "test")[0].who]
