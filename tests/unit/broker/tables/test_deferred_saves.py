"""Changes of settings and accounts are written beside the loop, answered when that is done, and hold then."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rmq_acl import AclPlugin

from rmq.broker.plugin_host import plugin_host
from rmq.broker.wakeups import Wakeups
from rmq.plugin import hooks_of
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.server.deferred import FILES_MAX
from tests.unit.broker.rig import Rig

ACCOUNTS = """globalWhiteRemoteAddresses: [10.*.*.*]
accounts:
- {accessKey: manager, secretKey: sixteen characters, admin: true}
- {accessKey: guest12, secretKey: other characters}
"""
MANAGER = Credentials("manager", "sixteen characters")


class SlowRig(Rig):
    """A broker whose files of settings and accounts are written when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.settings_file, self.accounts_file = folder / "broker.conf", folder / "plain_acl.yml"
        self.settings_file.write_text("# kept\nfileReservedTime=48\n")
        self.accounts_file.write_text(ACCOUNTS)
        self.accounts_file.chmod(0o600)
        super().__init__(
            given={"wake": Wakeups(deferred_saves=lambda: None)},
            config_store_path=str(self.settings_file),
            acl_file=str(self.accounts_file),
            acl_audit_file=str(folder / "audit.log"),
        )
        self.acl = AclPlugin({}, plugin_host(self.broker))
        self.broker.use_plugins(hooks_of([("acl", self.acl)]))

    def tell(self, *requests: Command) -> list[Command]:
        """The responses that come at once to these requests of the administrator."""
        return self.ask(*[signed(request, MANAGER) for request in requests])

    def write(self) -> list[Command]:
        """Write one file, as the service does; return the responses."""
        answers = self.broker.deferred_saves
        one = answers.next()
        assert one is not None
        try:
            result = one.write()
        except Exception as error:
            answers.failed(one, error)
        else:
            assert self.wire.take() == []
            answers.written(one, result)
        return self.wire.take()

    def state(self) -> tuple[object, ...]:
        """The present state."""
        return self.settings.store.file_reserved_time, self.acl.files.accounts, self.acl.files.files

    def kept(self) -> tuple[str, str]:
        """The contents of the files."""
        return self.settings_file.read_text(), self.accounts_file.read_text()


def settings(text: str) -> Command:
    return Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


CHANGES: dict[str, Callable[[], Command]] = {
    "settings": lambda: settings("fileReservedTime=96"),
    "account": lambda: Command.request(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        {"accessKey": "newcomer", "secretKey": "some characters", "admin": "false"},
    ),
    "deleted account": lambda: Command.request(RequestCode.DELETE_ACL_CONFIG, {"accessKey": "guest12"}),
    "white addresses": lambda: Command.request(
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.*.*.*,192.168.0.1"}
    ),
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SlowRig]:
    made = SlowRig(tmp_path)
    yield made
    made.acl.audit.close()


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_holds_and_is_answered_when_it_is_synced(
    rig: SlowRig, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, kept, request = rig.state(), rig.kept(), CHANGES[kind]()
    assert rig.tell(request) == []
    assert (rig.state(), rig.kept()) == (before, kept)
    done: list[str] = []

    def watched(name: str) -> None:
        call: Any = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given: (call(*given), done.append(name))[0])

    watched("fsync")
    watched("replace")
    (answer,) = rig.write()
    assert (answer.code, answer.opaque) == (0, request.opaque)
    assert done == ["fsync", "replace", "fsync"]  # the file, its name, the folder: a power cut keeps it
    assert rig.state() != before
    assert rig.kept() != kept
    assert not rig.acl.files.poll()  # what holds is what is in the files
    assert rig.broker.deferred_saves.next() is None


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_change_that_cannot_be_written_is_refused_and_changes_nothing(
    rig: SlowRig, kind: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, kept = rig.state(), rig.kept()
    assert rig.tell(CHANGES[kind]()) == []

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, full)
        (answer,) = rig.write()
    assert answer.code != 0
    assert "No space left on device" in (answer.remark or "")
    assert (rig.state(), rig.kept()) == (before, kept)
    rig.tell(CHANGES[kind]())
    assert rig.write()[0].code == 0


def test_what_may_not_be_changed_is_refused_at_once(rig: SlowRig) -> None:
    (answer,) = rig.tell(settings("fileReservedTime=96\nlistenPort=1"))
    assert answer.code != 0
    assert "nothing was changed" in (answer.remark or "")
    assert rig.broker.deferred_saves.next() is None


def test_changes_are_written_in_their_order_and_each_keeps_the_others(rig: SlowRig) -> None:
    assert rig.tell(CHANGES["account"](), settings("fileReservedTime=96"), CHANGES["deleted account"]()) == []
    assert rig.tell(settings("fileReservedTime=97\ndeleteWhen=05")) == []
    assert [rig.write()[0].code for _ in range(4)] == [0] * 4
    assert rig.settings.store.file_reserved_time == 97
    assert rig.kept()[0] == "# kept\nfileReservedTime=97\ndeleteWhen=05\n"
    assert set(rig.acl.files.accounts.table) == {"manager", "newcomer"}


def test_accounts_that_an_editor_changes_meanwhile_count(rig: SlowRig) -> None:
    other = rig.accounts_file.parent / "acl"
    other.mkdir()
    rig.tell(CHANGES["account"]())
    one = rig.broker.deferred_saves.next()
    assert one is not None
    result = one.write()
    added = "accounts:\n- {accessKey: by-hand, secretKey: sixteen characters}\n"
    (other / "more.yml").write_text(added)
    assert rig.acl.files.poll()
    rig.broker.deferred_saves.written(one, result)
    rig.acl.files.poll()
    assert {"by-hand", "newcomer"} <= set(rig.acl.files.accounts.table)


def test_what_another_server_has_done_to_the_same_file_holds_when_the_change_is_refused(rig: SlowRig) -> None:
    rig.tell(CHANGES["deleted account"]())
    lines = rig.accounts_file.read_text().splitlines()
    rig.accounts_file.write_text("\n".join(line for line in lines if "guest12" not in line))
    assert rig.write()[0].code == 210
    assert "guest12" not in rig.acl.files.accounts.table  # nor does it wait for the next look at the files


def test_a_change_that_fails_later_is_in_the_audit_log(
    rig: SlowRig, caplog: pytest.LogCaptureFixture
) -> None:
    gone = Command.request(RequestCode.DELETE_ACL_CONFIG, {"accessKey": "nobody12"})
    rig.tell(gone, CHANGES["account"]())
    assert rig.write()[0].code == 210
    assert rig.write()[0].code == 0
    text = (rig.accounts_file.parent / "audit.log").read_text()
    assert next(line for line in text.splitlines() if "failed with code" in line).count("210") == 1
    assert text.count("failed with code") == 1


def test_so_many_may_wait(rig: SlowRig) -> None:
    for _ in range(FILES_MAX // 2):  # the share of one account or address
        assert rig.tell(settings("fileReservedTime=96")) == []
    assert [answer.code for answer in rig.tell(settings("fileReservedTime=96"))] == [ResponseCode.SYSTEM_BUSY]
    assert rig.write()[0].code == 0
    assert rig.tell(settings("fileReservedTime=96")) == []
