"""Shared state of plug-ins: sealed, sent with the other tables, opened by holders of the secret, and never
twice."""

from __future__ import annotations

import pytest

from rmq.broker.replication.plugin_state import TEXT_MAX, PluginState
from rmq.broker.replication.table_replication import SHARED, TableSender
from rmq.errors import RemoteProtocolError, RmqError
from rmq.protocol import json
from rmq.protocol.auth.server_auth import ClusterSecret


class Accounts:
    """A plug-in with one text."""

    def __init__(self, text: bytes | None = None, *, refuses: bool = False) -> None:
        self.text = text
        self.refuses = refuses

    def shared(self) -> bytes | None:
        return self.text

    def take_shared(self, text: bytes) -> None:
        if self.refuses:
            raise RmqError("the disk is full")
        self.text = text


def shared(
    plugin: Accounts, secret: bytes = b"s" * 16, *others: bytes, epoch: int = 1, name: str = "set"
) -> PluginState:
    return PluginState([("acl", plugin)], ClusterSecret(secret, others), name, lambda: epoch)  # type: ignore[list-item]


def tell(master: PluginState, follower: PluginState) -> bytes:
    text = master.text_of(master.names())
    rows, version = follower.rows_of(text)
    assert not follower.apply_delta(rows, version, None)
    return text


def test_a_follower_has_its_master_s_text_and_who_reads_along_nothing() -> None:
    here = Accounts(b"before")
    text = tell(shared(Accounts(b"secret of manager")), shared(here))
    assert here.text == b"secret of manager"
    assert b"secret" not in text
    assert text != shared(Accounts(b"secret of manager")).text_of(["acl"])


@pytest.mark.parametrize(
    "follower",
    [{"secret": b"t" * 16}, {"epoch": 2}, {"name": "another"}],
    ids=["another secret", "another epoch", "another set"],
)
def test_what_was_sealed_elsewhere_is_not_taken(
    follower: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    here = Accounts(b"before")
    tell(shared(Accounts(b"theirs")), shared(here, **follower))  # type: ignore[arg-type]
    assert here.text == b"before"
    assert "cannot open the state" in caplog.text


def test_a_secret_that_is_being_replaced_opens_too() -> None:
    here = Accounts()
    tell(
        shared(Accounts(b"theirs"), b"old secret of 16"),
        shared(here, b"new secret of 16", b"old secret of 16"),
    )
    assert here.text == b"theirs"


def test_an_earlier_text_is_not_taken_again() -> None:
    there, here = Accounts(b"with the thief"), Accounts()
    master, follower = shared(there), shared(here)
    recorded = tell(master, follower)
    there.text = b"without"
    tell(master, follower)
    follower.apply_delta(*follower.rows_of(recorded), None)
    assert here.text == b"without"


@pytest.mark.parametrize("row", ["", "?", "AAAA", "A" * 100])
def test_what_is_no_sealed_text_changes_nothing(row: str) -> None:
    here = Accounts(b"before")
    follower = shared(here)
    follower.apply_delta({"acl": row, "unknown": row}, None, None)
    assert here.text == b"before"


@pytest.mark.parametrize("text", [b"[]", b'{"acl": 1}'])
def test_a_note_that_cannot_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        shared(Accounts()).rows_of(text)


def test_who_refuses_is_logged_and_the_link_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    tell(shared(Accounts(b"theirs")), shared(Accounts(refuses=True)))
    assert "the disk is full" in caplog.text


def test_a_text_that_fits_no_frame_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    master = shared(Accounts(bytes(TEXT_MAX + 1)))
    assert json.loads(master.text_of(["acl"])) == {}
    assert "is not replicated" in caplog.text
    sealed = shared(Accounts(bytes(TEXT_MAX))).text_of(["acl"])
    assert len(sealed) < 3 << 20


def test_it_is_told_when_a_follower_comes_and_when_it_has_changed() -> None:
    there = Accounts(b"one")
    master = shared(there)
    feed = TableSender({SHARED: master}, lambda: 0)
    first = feed.note(0.0)
    assert first is not None
    assert (first["table"], first["whole"]) == (SHARED, [True, True])
    assert feed.note(0.0) is None
    there.text = b"two"
    master.changed()
    note = feed.note(0.0)
    assert note is not None
    here = Accounts()
    follower = shared(here)
    follower.apply_delta(*follower.rows_of(note["rows"].encode()), note["gone"])
    assert here.text == b"two"
    assert feed.note(0.0) is None
