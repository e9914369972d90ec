"""`rmq acl` on a file, and on a cluster that guards itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from rmq.cli.clusters.acl import acl


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plain_acl.yml"


def rmq_acl(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(acl, [*arguments, "--file", str(file)])


def made(file: Path, *arguments: str) -> str:
    """Make an account; return its secret."""
    said = rmq_acl(file, "add", *arguments)
    assert said.exit_code == 0, said.output
    return said.stdout.splitlines()[-1]


def test_an_account_is_made_with_a_secret_that_is_shown_once(file: Path) -> None:
    secret = made(file, "manager", "--admin")
    other = made(
        file, "orders-app", "--topic", "Orders=PUB|SUB", "--group", "g=SUB", "--white", "10.0.0.{1,2}"
    )
    assert len(secret) == len(other) == 32
    assert secret != other
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    accounts = yaml.safe_load(file.read_text())["accounts"]
    assert accounts[0] == {"accessKey": "manager", "secretKey": secret, "admin": True}
    assert accounts[1]["topicPerms"] == ["Orders=PUB|SUB"]
    for form in ("table", "json", "yaml"):
        said = rmq_acl(file, "list", "-o", form)
        assert "Orders=PUB|SUB" in said.stdout
        assert secret not in said.output
        assert other not in said.output


def test_rotate_and_set_change_one_thing(file: Path) -> None:
    old = made(file, "manager", "--admin")
    made(file, "orders-app", "--topic", "Orders=PUB")
    said = rmq_acl(file, "rotate", "manager")
    new = said.stdout.splitlines()[-1]
    assert rmq_acl(file, "set", "manager", "--topic", "Audit=SUB").exit_code == 0
    assert rmq_acl(file, "set", "orders-app", "--default-topic", "SUB").exit_code == 0
    manager, app = yaml.safe_load(file.read_text())["accounts"]
    assert (manager["secretKey"], manager["admin"], manager["topicPerms"]) == (new, True, ["Audit=SUB"])
    assert new != old
    assert (app["topicPerms"], app["defaultTopicPerm"]) == (["Orders=PUB"], "SUB")


def perms(file: Path, field: str = "topicPerms") -> list[str]:
    found: list[str] = yaml.safe_load(file.read_text())["accounts"][-1].get(field, [])
    return found


def test_single_rights_are_added_and_dropped_and_a_loss_is_asked_for(file: Path) -> None:
    made(file, "orders-app", "--topic", "Orders=PUB|SUB", "--topic", "Old=SUB", "--group", "g=SUB")
    said = rmq_acl(file, "set", "orders-app", "--add-topic", "Bills=PUB", "--add-group", "h=SUB")
    assert said.exit_code == 0, said.output
    assert perms(file) == ["Orders=PUB|SUB", "Old=SUB", "Bills=PUB"]
    assert perms(file, "groupPerms") == ["g=SUB", "h=SUB"]
    assert "topic_perms: Orders=PUB|SUB, Old=SUB -> Orders=PUB|SUB, Old=SUB, Bills=PUB" in said.output

    for arguments, lost in (
        (("--drop-topic", "Old"), "SUB of topic Old"),
        (("--add-topic", "Orders=SUB"), "PUB of topic Orders"),
        (("--topic", "Bills=PUB"), "PUB|SUB of topic Orders, SUB of topic Old"),
        (("--no-groups",), "SUB of group g, SUB of group h"),
    ):
        before = file.read_text()
        said = rmq_acl(file, "set", "orders-app", *arguments)
        assert said.exit_code == 1, said.output
        assert f"orders-app loses {lost}. Change it?" in said.output
        assert file.read_text() == before
    assert rmq_acl(file, "set", "orders-app", "--drop-topic", "Old", "--yes").exit_code == 0
    assert perms(file) == ["Orders=PUB|SUB", "Bills=PUB"]
    said = rmq_acl(file, "set", "orders-app", "--drop-topic", "Orders", "--drop-topic", "Bills", "--yes")
    assert (said.exit_code, perms(file)) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--drop-topic", "Nowhere"), "there is no single topic Nowhere to drop; the account has: Orders"),
        (("--add-topic", "T=PUB", "--topic", "U=PUB"), "--topic and --no-topics set the whole list"),
        (("--add-topic", "T=PUB", "--no-topics"), "--topic and --no-topics set the whole list"),
        (("--add-topic", "Orders=SUB", "--drop-topic", "Orders"), "is added and dropped"),
        (("--add-topic", "T=READ"), "expected"),
    ],
)
def test_changes_of_rights_that_make_no_sense_are_refused(
    file: Path, arguments: tuple[str, ...], text: str
) -> None:
    made(file, "orders-app", "--topic", "Orders=PUB")
    before = file.read_text()
    said = rmq_acl(file, "set", "orders-app", *arguments, "--yes")
    assert (said.exit_code, file.read_text()) == (2, before)
    assert text in said.output


def test_a_right_by_default_is_no_loss_and_a_denial_is_one(file: Path) -> None:
    made(file, "orders-app", "--topic", "Orders=PUB", "--default-topic", "PUB|SUB", "--white", "10.0.0.1")
    assert rmq_acl(file, "set", "orders-app", "--drop-topic", "Orders").exit_code == 0
    said = rmq_acl(file, "set", "orders-app", "--add-topic", "Secret=DENY", "--no-white")
    assert said.exit_code == 1
    assert "PUB|SUB of topic Secret, requests without a signature from 10.0.0.1" in said.output
    made(file, "manager", "--admin")
    assert "manager loses administration" in rmq_acl(file, "set", "manager", "--no-admin").output


def test_remove_asks_first(file: Path) -> None:
    made(file, "manager", "--admin")
    made(file, "orders-app")
    said = CliRunner().invoke(acl, ["remove", "orders-app", "--file", str(file)], input="n\n")
    assert (said.exit_code, "nothing was changed" in said.output) == (1, True)
    assert rmq_acl(file, "remove", "orders-app", "--yes").exit_code == 0
    assert "orders-app" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("orders-app", "Orders", "PUB"), 0, "may PUB topic Orders: topicPerms has Orders=PUB"),
        (("orders-app", "Orders", "sub"), 1, "may not SUB topic Orders: topicPerms has Orders=PUB"),
        (("orders-app", "Other", "SUB"), 0, "topicPerms has no entry for it, and defaultTopicPerm is SUB"),
        (("orders-app", "RMQ_SYS_TRACE_TOPIC", "PUB"), 0, "every account may write traces"),
        (("orders-app", "SCHEDULE_TOPIC_XXXX", "SUB"), 1, "only an entry of its own allows it"),
        (("orders-app", "g", "SUB", "--group"), 0, "may SUB group g: groupPerms has g=SUB"),
        (("orders-app", "%RETRY%other", "SUB"), 1, "belongs to its group: groupPerms has no entry"),
        (("manager", "SCHEDULE_TOPIC_XXXX", "SUB"), 0, "an administrator without permissions of its own"),
        (("nobody1", "Orders", "SUB"), 1, "there is no account nobody1"),
    ],
)
def test_explain_says_why(file: Path, arguments: tuple[str, ...], status: int, text: str) -> None:
    made(file, "manager", "--admin")
    made(file, "orders-app", "--topic", "Orders=PUB", "--group", "g=SUB", "--default-topic", "SUB")
    said = rmq_acl(file, "explain", *arguments)
    assert (said.exit_code, text in said.output) == (status, True), said.output


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("add", "short"), 2, "too short: 7 characters or more"),
        (("add", "orders-app", "--topic", "Orders"), 2, "name=permission"),
        (("add", "orders-app", "--white", "1.2"), 2, "an address of 4 parts"),
        (("add", "manager"), 1, "there is an account manager already"),
        (("rotate", "nobody1"), 1, "there is no account nobody1"),
    ],
)
def test_what_is_wrong_is_said(file: Path, arguments: tuple[str, ...], status: int, text: str) -> None:
    made(file, "manager", "--admin")
    before = file.read_bytes()
    said = rmq_acl(file, *arguments)
    assert (said.exit_code, text in said.output) == (status, True), said.output
    assert file.read_bytes() == before


def test_a_damaged_file_is_left_alone(file: Path) -> None:
    file.write_text("accounts: [")
    for arguments in (("list",), ("add", "orders-app")):
        said = rmq_acl(file, *arguments)
        assert (said.exit_code, f"{file}:" in said.output, "not YAML" in said.output) == (1, True, True)
    assert file.read_text() == "accounts: ["


def test_whether_requests_must_be_proved_stands_in_the_entry(file: Path) -> None:
    made(file, "manager", "--admin", "--proof", "required")
    made(file, "orders-app")
    assert rmq_acl(file, "set", "orders-app", "--proof", "shown").exit_code == 0
    assert rmq_acl(file, "set", "manager", "--topic", "Audit=SUB").exit_code == 0
    manager, app = yaml.safe_load(file.read_text())["accounts"]
    assert (manager["proof"], app["proof"]) == ("required", "shown")
    listed = yaml.safe_load(rmq_acl(file, "list", "-o", "yaml").stdout)
    assert [row["proof"] for row in listed] == ["required", "shown"]
    assert rmq_acl(file, "set", "manager", "--proof", "maybe").exit_code == 2
    file.write_text(file.read_text().replace("proof: shown", "proof: maybe"))
    said = rmq_acl(file, "list")
    assert "expected one of required, shown, optional, not 'maybe'" in said.output


def test_a_secret_can_be_brought_or_kept_in_a_file(file: Path, tmp_path: Path) -> None:
    mine, fresh = tmp_path / "mine", tmp_path / "fresh"
    mine.write_text("a secret of 23 letters.\n")
    said = rmq_acl(file, "add", "manager", "--admin", "--secret-file", str(mine))
    assert (said.exit_code, said.stdout) == (0, f"account manager made at {file}\n")
    said = rmq_acl(file, "add", "orders-app", "--secret-file", str(fresh))
    assert f"its secret is in {fresh}" in said.stderr
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o600
    manager, app = yaml.safe_load(file.read_text())["accounts"]
    assert (manager["secretKey"], app["secretKey"]) == ("a secret of 23 letters.", fresh.read_text().strip())
    assert len(app["secretKey"]) == 32
    assert app["secretKey"] not in said.output
    rotated = tmp_path / "rotated"
    assert rmq_acl(file, "rotate", "manager", "--secret-file", str(rotated)).exit_code == 0
    assert yaml.safe_load(file.read_text())["accounts"][0]["secretKey"] == rotated.read_text().strip()


@pytest.mark.parametrize("text", ["short", "fifteen letters", "", "a secret of\x00 some letters"])
def test_a_short_secret_is_refused(file: Path, tmp_path: Path, text: str) -> None:
    mine = tmp_path / "mine"
    mine.write_text(text)
    said = rmq_acl(file, "add", "manager", "--secret-file", str(mine))
    assert said.exit_code == 2
    assert "--secret-file" in said.stderr
    assert not file.exists()


def test_no_secret_is_left_of_an_account_that_was_not_made(file: Path, tmp_path: Path) -> None:
    file.write_text("accounts: [")
    fresh = tmp_path / "fresh"
    assert rmq_acl(file, "add", "manager", "--secret-file", str(fresh)).exit_code == 1
    file.write_text("")
    assert rmq_acl(file, "add", "manager", "--secret-file", str(tmp_path / "no" / "fresh")).exit_code == 2
    assert not fresh.exists()
    assert not file.read_text()
