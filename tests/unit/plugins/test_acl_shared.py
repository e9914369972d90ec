"""Followers of a controlled set have their master's files of accounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
import trio.testing
from rmq_acl.accounts import Account
from rmq_acl.files import AclFiles
from rmq_acl.plainfile import AclFileError

from rmq.errors import RemoteProtocolError
from rmq.protocol import json
from tests.sim.real_brokers.brokers import Node, controlled_set

MANAGER = "accounts:\n  - {accessKey: manager1, secretKey: manager-secret, admin: true}\n"
ORDERS = "accounts:\n  - {accessKey: orders01, secretKey: orders-secret-1}\n"
BILLS = "accounts:\n  - {accessKey: bills-01, secretKey: bills-secret-11}\n"


def files(folder: Path, name: str = "plain_acl.yml", **texts: str) -> AclFiles:
    """The files of one server; keys are names, `_` for the main one."""
    for key, text in texts.items():
        path = folder / name if key == "_" else folder / "acl" / f"{key}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o600)
    found = AclFiles(folder / name)
    found.load()
    return found


def names(found: AclFiles) -> list[str]:
    return sorted(found.accounts.table)


def follow(here: AclFiles, there: AclFiles) -> bool:
    state = here.following(there.shared())
    if state is not None:
        here.take(state)
    return state is not None


def test_all_files_are_taken_and_the_old_ones_kept(tmp_path: Path) -> None:
    there = files(tmp_path / "there", _=MANAGER, orders=ORDERS)
    here = files(tmp_path / "here", "ours.yml", _=ORDERS, bills=BILLS)
    assert follow(here, there)
    assert names(here) == ["manager1", "orders01"]
    folder = tmp_path / "here"
    assert (folder / "ours.yml").read_text() == MANAGER
    assert (folder / "acl" / "orders.yml").read_text() == ORDERS
    assert (folder / "ours.yml.bak").read_text() == ORDERS
    assert not (folder / "acl" / "bills.yml").exists()
    assert (folder / "acl" / "bills.yml.bak").read_text() == BILLS
    for path in ("ours.yml", "ours.yml.bak", "acl/orders.yml", "acl/bills.yml.bak"):
        assert (folder / path).stat().st_mode & 0o777 == 0o600
    # A start reads the same, the next look at the files finds nothing new, and neither does the next note.
    assert names(files(folder, "ours.yml")) == ["manager1", "orders01"]
    assert not here.poll()
    assert not follow(here, there)
    assert json.loads(here.shared())["files"] == json.loads(there.shared())["files"]


def test_a_file_that_is_the_master_s_own_is_left_alone(tmp_path: Path) -> None:
    """Two brokers of one machine may have the same: the earlier of two changes must not come back."""
    there = files(tmp_path, _=MANAGER)
    told = there.shared()
    here = files(tmp_path, _=ORDERS)
    assert here.following(told) is None
    assert (tmp_path / "plain_acl.yml").read_text() == ORDERS


def test_an_account_may_move_to_another_file(tmp_path: Path) -> None:
    there = files(tmp_path / "there", _=MANAGER, all=ORDERS)
    here = files(tmp_path / "here", _=MANAGER, orders=ORDERS)
    assert follow(here, there)
    assert names(files(tmp_path / "here")) == ["manager1", "orders01"]


@pytest.mark.parametrize(
    "name",
    [
        *("../plain_acl.yml", "acl/../../x.yml", "/etc/x.yml", "acl//x.yml", "acl/x.sh", "acl", "x.yml"),
        *("acl/./x.yml", "acl/a\\b.yml", "acl/\0.yml", "acl/.yml/"),
    ],
)
def test_no_other_place_is_written(tmp_path: Path, name: str) -> None:
    here = files(tmp_path / "here", _=ORDERS)
    given = json.loads(files(tmp_path / "there", _=MANAGER).shared())
    given["files"][name] = "eA=="
    text = json.dumps(given)
    with pytest.raises(RemoteProtocolError, match="not a file of accounts"):
        here.following(text)
    assert sorted(os.listdir(tmp_path / "here")) == ["plain_acl.yml"]
    assert (tmp_path / "here" / "plain_acl.yml").read_text() == ORDERS


@pytest.mark.parametrize(
    "text", [b"[]", b"{}", b'{"files": {}}', b'{"files": {"": 1}}', b'{"files": {"": "?"}}', b"nothing"]
)
def test_what_no_server_of_ours_says_changes_nothing(tmp_path: Path, text: bytes) -> None:
    here = files(tmp_path, _=ORDERS)
    with pytest.raises(RemoteProtocolError):
        here.following(text)
    assert (tmp_path / "plain_acl.yml").read_text() == ORDERS


def test_files_that_do_not_fit_together_are_refused_before_one_is_written(tmp_path: Path) -> None:
    there = files(tmp_path / "there", _=MANAGER)
    given = json.loads(there.shared())
    given["files"]["acl/more.yml"] = given["files"][""]
    here = files(tmp_path / "here", _=ORDERS)
    with pytest.raises(AclFileError, match="manager1"):
        here.following(json.dumps(given))
    assert sorted(os.listdir(tmp_path / "here")) == ["plain_acl.yml"]


class Own:
    """The settings of each node: a file of accounts of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, node: Node) -> Path:
        return self.folder / node.host / "plain_acl.yml"


async def test_a_new_master_knows_the_accounts_of_the_one_before(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real brokers with the plug-in: a follower's file is its master's, after changes and a failover too."""
    from attrs import evolve

    from tests.sim.real_brokers.brokers import Set

    own, configs = Own(tmp_path), Set.configs
    (tmp_path / "secret").write_text("a secret of the cluster")
    (tmp_path / "secret").chmod(0o600)

    def with_accounts(found: Set, node: Node) -> object:
        config, store_config = configs(found, node)
        own.file(node).parent.mkdir(exist_ok=True)
        if not own.file(node).exists():
            own.file(node).write_text(MANAGER if node.is_founder else ORDERS)
            own.file(node).chmod(0o600)
        more = {"acl_enable": True, "acl_file": str(own.file(node))}
        return evolve(config, cluster_secret_file=str(tmp_path / "secret"), **more), store_config

    def accounts(node: Node) -> dict[str, Account]:
        assert node.broker is not None
        (plugin,) = (plugin for name, plugin in node.broker.hooks.plugins if name == "acl")
        return dict(plugin.files.accounts.table)  # type: ignore[attr-defined]

    async def until_equal(first: Node, second: Node) -> None:
        with trio.fail_after(10):
            while accounts(first) != accounts(second):
                await trio.sleep(0.1)
        assert own.file(first).read_bytes() == own.file(second).read_bytes()

    monkeypatch.setattr(Set, "configs", with_accounts)
    async with controlled_set(2) as (found, _):
        first, second = found.nodes
        assert await found.master() is first
        await found.until(inSync=[1, 2])
        await until_equal(first, second)
        assert list(accounts(second)) == ["manager1"]
        own.file(first).write_text(MANAGER + ORDERS.removeprefix("accounts:\n"))
        with trio.fail_after(10):
            while "orders01" not in accounts(second):
                await trio.sleep(0.1)
        await until_equal(first, second)

        await found.kill(first)
        assert await found.master() is second
        assert sorted(accounts(second)) == ["manager1", "orders01"]
        own.file(second).write_text(MANAGER)  # the account is taken away
        found.network.heal()
        await found.start(first)
        await found.until(master=2, inSync=[1, 2])
        with trio.fail_after(10):
            while list(accounts(first)) != ["manager1"] or list(accounts(second)) != ["manager1"]:
                await trio.sleep(0.1)
        await until_equal(first, second)
