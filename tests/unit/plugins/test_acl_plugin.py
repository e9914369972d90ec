"""The plug-in in a broker and in a name server: the gate, the requests 50-54, reloads, the audit log."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from rmq_acl import POLL_SECONDS, AclPlugin
from rmq_acl.audit import LINES_MAX, Audit
from rmq_acl.files import AclFiles
from rmq_acl.plainfile import AclFileError

from rmq.broker.plugin_host import plugin_host
from rmq.errors import AccessDenied, ConfigError
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.host import plugin_host as namesrv_host
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.plugin import PluginRefused, hooks_of
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.bodies import DataVersion, HeartbeatData, ProducerData
from rmq.protocol.codes import RequestCode as Code
from rmq.protocol.command import Command
from rmq.protocol.headers import EndTransactionRequestHeader
from rmq.server.log_limit import LogLimit
from tests.unit.broker.rig import START, Rig, Wire, batch, pull, send
from tests.unit.plugins.guarded import MANAGER, OTHER, OWNER, TEXT, Guarded

SECRETS = ("admin-secret-1", "owner-secret-1", "other-secret-1", "fresh-secret-1", "token-secret-1")


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


# ---- the gate ----


def test_only_who_may_write_stores(guarded: Guarded) -> None:
    assert guarded.ask(send(), OWNER).code == 0
    assert guarded.ask(batch(), OWNER).code == 0
    for refused in (
        guarded.ask(send(), None),
        guarded.ask(send(), OTHER),
        guarded.ask(batch(), OTHER),
        guarded.ask(send(), Credentials("owner01", "no such secret")),
        guarded.ask(send("Others"), OWNER),
    ):
        assert refused.code == 16
    assert guarded.rig.bodies("Orders") == [b"hello", b"a", b"b", b"c"]
    assert guarded.ask(send(), None, peer="10.5.5.9:1").code == 0
    assert guarded.ask(pull(), OWNER).code == 0
    assert guarded.ask(pull(), OTHER).code == 16


def test_a_message_by_its_offset_needs_its_topic(guarded: Guarded) -> None:
    guarded.ask(send(), OWNER)
    view = Command.request(Code.VIEW_MESSAGE_BY_ID, {"offset": "0"})
    assert guarded.ask(view, OWNER).body
    refused = guarded.ask(view, OTHER)
    assert (refused.code, refused.remark, refused.body) == (16, "No default permission for topic:Orders", b"")


def test_a_waiting_message_belongs_to_its_real_topic(guarded: Guarded) -> None:
    guarded.ask(send(properties="DELAY\x013"), OWNER)
    view = Command.request(Code.VIEW_MESSAGE_BY_ID, {"offset": "0"})
    assert guarded.ask(view, OWNER).body
    assert guarded.ask(view, OTHER).code == 16


def test_a_transaction_of_others_cannot_be_ended(guarded: Guarded) -> None:
    guarded.ask(send(properties="TRAN_MSG\x01true\x02PGROUP\x01producers", sys_flag=4), OWNER)
    end = EndTransactionRequestHeader("producers", 0, 0, 8, msg_id="")
    assert guarded.ask(Command.request(Code.END_TRANSACTION, end), OTHER).code == 16
    assert guarded.rig.bodies("Orders") == []
    assert guarded.ask(Command.request(Code.END_TRANSACTION, end), OWNER).code == 0
    assert guarded.rig.bodies("Orders") == [b"hello"]


def test_what_nobody_knows_is_refused(guarded: Guarded) -> None:
    answer = guarded.ask(Command.request(9999), MANAGER)
    assert (answer.code, answer.remark) == (16, "request code=9999 is not known to the access rules")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, 16),
        ({"AccessKey": "owner01"}, 16),
        ({"AccessKey": "nobody1"}, 16),
        ({"AccessKey": "owner01", "Signature": "x"}, None),  # the body decides
        ({"AccessKey": "nobody1", "Signature": "x"}, None),  # or it would tell who is there
        ({"AccessKey": "owner01", "RmqProof": "x"}, None),
    ],
)
def test_an_unsigned_large_body_is_refused_before_it_comes(
    guarded: Guarded, fields: dict[str, str], code: int | None
) -> None:
    head = Command(310, 1, ext={"b": "Orders", **fields})
    answer = guarded.rig.broker.on_head(head, 3 << 20, Wire())  # type: ignore[arg-type]
    assert (None if answer is None else answer.code) == code
    assert len(guarded.lines()) == (code is not None)


def test_a_header_that_is_no_text_is_refused(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    command = Command(310, 1, ext={"AccessKey": "owner01", "Signature": "x", "b": "\ud800"})
    with pytest.raises(AccessDenied, match="the header cannot be read"):
        guarded.plugin.on_request(Wire(), command)
    assert "result='its header cannot be read'" in guarded.lines()[-1]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# ---- requests about accounts ----


def test_only_administrators_see_and_change_accounts(guarded: Guarded) -> None:
    for code in (50, 51, 52, 53, 54):
        command = Command.request(
            code, {"accessKey": "owner01", "secretKey": "fresh-secret-1", "admin": "true"}
        )
        assert guarded.ask(command, OWNER).remark.startswith(f"Need admin permission for request code={code}")
        assert guarded.ask(command, None, peer="10.5.5.5:1").code == 16
    assert not guarded.plugin.files.accounts.table["owner01"].admin


def test_secrets_are_not_in_the_answer(guarded: Guarded) -> None:
    answer = guarded.ask(Command.request(Code.GET_BROKER_CLUSTER_ACL_CONFIG))
    body = json.loads(answer.body)
    assert body["globalWhiteAddrs"] == ["10.5.5.*"]
    assert body["plainAccessConfigs"][1] == {
        "accessKey": "owner01",
        "admin": False,
        "defaultGroupPerm": "SUB",
        "defaultTopicPerm": "DENY",
        "groupPerms": [],
        "secretKey": "******",
        "topicPerms": ["Orders=PUB|SUB"],
        "whiteRemoteAddress": "",
    }


def test_an_account_is_made_changed_and_removed(guarded: Guarded) -> None:
    assert guarded.update("fresh01", secret_key="fresh-secret-1", topic_perms="Orders=PUB").code == 0
    fresh = Credentials("fresh01", "fresh-secret-1")
    assert guarded.ask(send(), fresh).code == 0
    assert (
        guarded.update(
            "fresh01", topic_perms="Orders=DENY,Others=SUB", white_remote_address="1.1.1.{1,2}"
        ).code
        == 0
    )
    assert guarded.ask(send(), fresh).code == 16  # the secret stays when it is not given
    assert guarded.ask(Command.request(Code.DELETE_ACL_CONFIG, {"accessKey": "fresh01"})).code == 0
    assert guarded.ask(send(), fresh).remark == "Check signature failed for accessKey=fresh01"
    gone = guarded.ask(Command.request(Code.DELETE_ACL_CONFIG, {"accessKey": "fresh01"}))
    assert (gone.code, gone.remark) == (210, "account 'fresh01' was not deleted: there is no such account")


def test_the_file_keeps_what_we_do_not_know_and_its_mode(guarded: Guarded) -> None:
    guarded.rig.now_ms = START + 5
    assert guarded.update("owner01", topic_perms="Orders=SUB").code == 0
    tree = yaml.safe_load(guarded.file.read_text())
    assert tree["note"] == "kept"
    (owner,) = [account for account in tree["accounts"] if account["accessKey"] == "owner01"]
    assert (owner["team"], owner["topicPerms"], owner["secretKey"]) == (
        "kept too",
        ["Orders=SUB"],
        "owner-secret-1",
    )
    assert tree["dataVersion"] == [{"counter": 5, "timestamp": START + 5}]
    assert stat.S_IMODE(guarded.file.stat().st_mode) == 0o600
    assert [path.name for path in guarded.file.parent.iterdir() if path.name.endswith(".new")] == []
    assert not guarded.plugin.files.poll()  # our own change is not read again


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("short", {"secret_key": "fresh-secret-1"}, "accessKey of an account has 5 characters"),
        (
            "fresh01",
            {"secret_key": "short"},
            "secretKey of an account has 5 characters; it must have 7 or more",
        ),
        ("fresh01", {}, "a new account needs a secret"),
        ("owner01", {"topic_perms": "Orders=ALL"}, "topicPerms: expected one of DENY"),
        ("owner01", {"group_perms": "Orders"}, "groupPerms: expected name=permission"),
        ("owner01", {"default_topic_perm": "pub"}, "defaultTopicPerm: expected one of DENY"),
        (
            "owner01",
            {"white_remote_address": "300.1.1.1"},
            "whiteRemoteAddress: expected numbers from 0 to 255",
        ),
    ],
)
def test_a_wrong_change_changes_nothing(guarded: Guarded, name: str, fields: Any, reason: str) -> None:
    before = guarded.plugin.files.accounts
    answer = guarded.update(name, **fields)
    assert answer.code == 209
    assert reason in (answer.remark or "")
    assert guarded.file.read_text() == TEXT
    assert guarded.plugin.files.accounts == before


def test_global_white_addresses_go_to_a_known_file_only(guarded: Guarded, tmp_path: Path) -> None:
    def ask(**given: str) -> Command:
        return guarded.ask(Command.request(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, given))

    assert ask(globalWhiteAddrs="10.1.1.{1,2},10.2.2.2", aclFileFullPath="").code == 0
    assert [white.text for white in guarded.plugin.files.accounts.white] == ["10.1.1.{1,2}", "10.2.2.2"]
    other = tmp_path / "other.yml"
    answer = ask(globalWhiteAddrs="*", aclFileFullPath=str(other))
    assert (answer.code, other.exists()) == (211, False)
    assert ask(globalWhiteAddrs="1.2").code == 211
    more = guarded.file.parent / "acl" / "more.yml"
    more.parent.mkdir()
    more.write_text("accounts: [{accessKey: more001, secretKey: fresh-secret-1}]")
    assert guarded.plugin.files.poll()
    assert ask(globalWhiteAddrs="10.3.3.3", aclFileFullPath=str(more)).code == 0
    assert "10.3.3.3" in more.read_text()


@pytest.mark.parametrize(
    ("name", "key"), [("default_topic_perm", "defaultTopicPerm"), ("default_group_perm", "defaultGroupPerm")]
)
def test_a_default_permission_is_changed_and_stays_when_it_is_not_named(
    guarded: Guarded, name: str, key: str
) -> None:
    def told() -> object:
        accounts = yaml.safe_load(guarded.file.read_text())["accounts"]
        return next(account for account in accounts if account["accessKey"] == "owner01").get(key)

    for given, wanted in (("PUB", "PUB"), ("", "PUB"), ("DENY", "DENY")):
        assert guarded.update("owner01", **{name: given}).code == 0
        assert told() == wanted


def test_versions_are_those_of_the_files(guarded: Guarded) -> None:
    folder = guarded.file.parent / "acl" / "team"
    folder.mkdir(parents=True)
    more = folder / "more.yml"
    more.write_text("accounts: [{accessKey: more001, secretKey: fresh-secret-1, defaultTopicPerm: PUB}]")
    assert guarded.plugin.files.poll()
    answer = guarded.ask(Command.request(Code.GET_BROKER_CLUSTER_ACL_INFO))
    assert DataVersion.from_json(answer.ext["version"]) == DataVersion(7, 4)
    assert json.loads(answer.ext["allAclFileVersion"]) == {
        str(guarded.file): {"counter": 4, "timestamp": 7},
        str(more): {"counter": 0, "timestamp": 0},
    }
    names = (answer.ext["brokerName"], answer.ext["clusterName"], answer.ext["brokerAddr"])
    assert names == ("wire-a", "WireCluster", "10.0.0.9:10911")
    guarded.update("more001", default_topic_perm="DENY")
    assert "DENY" in more.read_text()  # an account is changed where it stands
    assert guarded.ask(send(), Credentials("more001", "fresh-secret-1")).code == 16


def test_a_change_starts_from_the_files_as_they_are(guarded: Guarded) -> None:
    """The change does not start from the state of a second ago."""
    folder = guarded.file.parent / "acl"
    folder.mkdir()
    more = folder / "more.yml"
    more.write_text("accounts: [{accessKey: more001, secretKey: fresh-secret-1, admin: true}]")
    edited = TEXT.replace("defaultGroupPerm: SUB", "defaultGroupPerm: DENY")
    guarded.write(edited)
    assert guarded.update("other01", topic_perms="Orders=PUB").code == 0
    assert "defaultGroupPerm: DENY" in guarded.file.read_text()
    assert guarded.ask(Command.request(26), Credentials("more001", "fresh-secret-1")).code == 0
    more.write_text("accounts: [{accessKey: other01, secretKey: fresh-secret-1}]")
    before = guarded.file.read_text()
    answer = guarded.update("other01", topic_perms="Orders=SUB")
    assert (answer.code, "account 'other01' is in" in (answer.remark or "")) == (209, True)
    assert guarded.file.read_text() == before


# ---- files ----


async def test_a_changed_file_counts_within_a_second(
    guarded: Guarded, autojump_clock: trio.abc.Clock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guarded.plugin.run)
        guarded.write(TEXT.replace("Orders=PUB|SUB", "Orders=SUB   "))
        assert guarded.ask(send(), OWNER).code == 0
        await trio.sleep(POLL_SECONDS * 1.5)
        assert guarded.ask(send(), OWNER).code == 16
        guarded.file.unlink()
        await trio.sleep(POLL_SECONDS)
        assert guarded.ask(pull(), OWNER).code == 0
        nursery.cancel_scope.cancel()


def test_an_error_keeps_all_accounts_and_is_logged_once(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.write(TEXT.replace("admin: true", "admin: yes") + "x: [")
    assert not guarded.plugin.files.poll()
    assert not guarded.plugin.files.poll()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert errors[0].startswith(f"accounts stay as they were: {guarded.file}:")
    assert guarded.ask(send(), OWNER).code == 0
    guarded.write(TEXT.replace("manager", "manager2"))
    assert guarded.plugin.files.poll()
    assert guarded.ask(Command.request(26)).remark == "Check signature failed for accessKey=manager"


@pytest.mark.parametrize(
    ("line", "text", "reason"),
    [
        (1, "- a", "the file: expected `key: value` lines"),
        (1, "accounts: {a: b}", "accounts: expected a list"),
        (
            2,
            "accounts:\n- accessKey: abc",
            "accessKey of an account has 3 characters; it must have 7 or more",
        ),
        (2, "accounts:\n- accessKey: abcdefg", "secretKey of an account is missing; it must have 7 or more"),
        (3, "accounts:\n- accessKey: abcdefg\n  secretKey: [1]", "secretKey: expected one word"),
        (
            2,
            "accounts:\n- {accessKey: abcdefg, secretKey: abcdefg, admin: yes}",
            "admin: expected true or false",
        ),
        (
            2,
            "accounts:\n- {accessKey: abcdefg, secretKey: abcdefg, topicPerms: [T]}",
            "topicPerms: expected name=",
        ),
        (1, "a: 1\na: 2", "the file: a twice"),
        (
            2,
            "globalWhiteRemoteAddresses:\n- 1.2.3",
            "globalWhiteRemoteAddresses: expected an address of 4 parts",
        ),
        (2, "accounts:\n  a\n b: {", "not YAML"),
        (1, "dataVersion: [{counter: x}]", "counter: expected a whole number"),
    ],
)
def test_errors_name_line_and_field(tmp_path: Path, line: int, text: str, reason: str) -> None:
    with pytest.raises(AclFileError) as caught:
        Guarded(tmp_path, text)
    assert reason in str(caught.value)
    assert abs(caught.value.line - line) <= 1
    assert str(tmp_path / "plain_acl.yml") in str(caught.value)


def test_a_main_file_that_is_gone_for_a_moment_takes_no_account_along(guarded: Guarded) -> None:
    """Editors rename files; the others in the folder do not make up for it."""
    folder = guarded.file.parent / "acl"
    folder.mkdir()
    more = folder / "more.yml"
    more.write_text("accounts: [{accessKey: more001, secretKey: fresh-secret-1, admin: true}]")
    assert guarded.plugin.files.poll()
    guarded.file.rename(guarded.file.with_suffix(".old"))
    assert not guarded.plugin.files.poll()
    assert guarded.ask(send(), OWNER).code == 0
    guarded.file.with_suffix(".old").rename(guarded.file)
    more.unlink()
    assert guarded.plugin.files.poll()
    assert guarded.plugin.files.accounts.table.keys() == {"manager", "owner01", "other01"}


def test_a_main_file_that_was_never_there_is_not_missed(guarded: Guarded) -> None:
    folder = guarded.file.parent / "acl"
    folder.mkdir()
    guarded.file.rename(folder / "all.yml")
    files = AclFiles(guarded.file)
    files.load()
    (folder / "all.yml").write_text(TEXT.replace("owner01", "owner02"))
    files.load()
    assert "owner02" in files.accounts.table


def test_a_main_file_is_missed_that_others_take_the_place_of(guarded: Guarded) -> None:
    folder = guarded.file.parent / "acl"
    folder.mkdir()
    guarded.file.rename(folder / "all.yml")
    with pytest.raises(AclFileError, match="is not there"):
        guarded.plugin.files.load()


def test_an_account_stands_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "twice.yaml").write_text(TEXT)
    with pytest.raises(AclFileError, match=r"twice.yaml: account 'manager' is in .*plain_acl.yml, too"):
        Guarded(tmp_path)


def test_a_secret_is_what_is_written(tmp_path: Path) -> None:
    """The secret is the written text, and not the number that YAML reads."""
    guarded = Guarded(tmp_path, TEXT.replace("owner-secret-1", "01234567"))
    assert guarded.ask(send(), Credentials("owner01", "01234567")).code == 0
    assert guarded.update("other01").code == 0
    assert guarded.ask(send(), Credentials("owner01", "01234567")).code == 0
    guarded.plugin.files.load()
    assert guarded.ask(send(), Credentials("owner01", "01234567")).code == 0


def test_without_a_file_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    settings = tmp_path / "broker.conf"
    rig = Rig(config_store_path=str(settings))
    with pytest.raises(
        ConfigError, match=r"aclFile = '': expected a file of accounts or .*plain_acl.yml; `rmq acl"
    ):
        AclPlugin({}, plugin_host(rig.broker))
    (tmp_path / "plain_acl.yml").write_text(TEXT)
    assert AclPlugin({}, plugin_host(rig.broker)).files.main == tmp_path / "plain_acl.yml"
    home = tmp_path / "home" / "conf"
    home.mkdir(parents=True)
    (home / "plain_acl.yml").write_text(TEXT)
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path / "home"))
    assert AclPlugin({}, plugin_host(Rig().broker)).files.main == home / "plain_acl.yml"
    with pytest.raises(AclFileError, match=r"nowhere.yml: is not there"):
        AclPlugin({}, plugin_host(Rig(acl_file=str(tmp_path / "nowhere.yml")).broker))


# ---- nothing shows a secret ----


def test_no_secret_is_shown_anywhere(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown = []
    token = Credentials("manager", "admin-secret-1", "token-secret-1")
    for code in range(400):
        for body in (b"", b"{}"):
            given = {
                "accessKey": "fresh01",
                "secretKey": "fresh-secret-1",
                "admin": "true",
                "topicPerms": "x",
            }
            given |= {"topic": "T", "statsName": "x", "statsKey": "y"}
            command = signed(Command.request(code, given, body), token)
            answer = guarded.rig.ask(command)
            shown += [repr(command), *(repr(one) + repr(one.body) for one in answer)]
    guarded.write(TEXT + "bad: [")
    guarded.plugin.files.poll()
    guarded.write(TEXT.replace("admin: true", "admin: owner-secret-1"))
    guarded.plugin.files.poll()
    files = guarded.plugin.files
    shown += map(
        repr, (files.accounts, files.files, guarded.plugin, vars(guarded.plugin), vars(files), OWNER)
    )
    shown += map(repr, files.accounts.table.values())
    shown.append(caplog.text + "".join(str(record.__dict__) for record in caplog.records))
    shown += [guarded.audit.read_text()]
    for secret in SECRETS:
        found = [text for text in shown if secret in text]
        assert not found, found[0][:500]


def test_a_broken_file_quotes_no_secret(tmp_path: Path) -> None:
    for text in (
        "accounts:\n- accessKey: manager\n  secretKey: admin-secret-1\n bad",
        "accounts:\n- secretKey: *admin-secret-1",
        "accounts:\n- secretKey: 'admin-secret-1",
        "accounts: admin-secret-1",
        "accounts:\n- {accessKey: manager, secretKey: admin-secret-1, admin: [admin-secret-1]}",
    ):
        with pytest.raises(AclFileError) as caught:
            Guarded(tmp_path, text)
        error = caught.value
        assert "admin-secret-1" not in f"{error!s} {error!r} {error.__cause__!r}"
        assert error.__suppress_context__ or error.__context__ is None


# ---- the audit log ----


def test_administrators_and_refusals_are_logged(guarded: Guarded) -> None:
    guarded.ask(Command.request(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Others"}))
    guarded.ask(Command.request(Code.UPDATE_BROKER_CONFIG, {}, b"storePathRootDir=/etc"), MANAGER)
    guarded.ask(send("Others\nadmin who=x"), OTHER, peer="10.0.0.8:1")
    guarded.ask(send(), OWNER)
    lines = [line.split(" ", 1)[1] for line in guarded.lines()]
    assert lines[0] == (
        "admin who=manager from=10.0.0.1:4 action=DELETE_TOPIC_IN_BROKER(215) on=topic:Others result=allowed"
    )
    assert "on=setting:storePathRootDir result=allowed" in lines[1]
    assert "on=setting:storePathRootDir result='failed with code" in lines[2]
    assert lines[3].startswith(
        r"refused who=other01 from=10.0.0.8:1 action=SEND_MESSAGE_V2(310) on='topic:Others\nadmin"
    )
    assert len(lines) == 4
    assert stat.S_IMODE(guarded.audit.stat().st_mode) == 0o600


def test_a_flood_of_refusals_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rmq.audit")
    now = [5.0]
    audit = Audit("", lambda: now[0])
    for _ in range(LINES_MAX + 30):
        audit.refused("1.1.1.1:1", send(), "no")
    assert len(caplog.messages) == LINES_MAX
    now[0] = 6.0
    audit.refused("1.1.1.1:1", send(), "no")
    assert caplog.messages[LINES_MAX] == "refused 30 more lines were left out"
    assert len(caplog.messages) == LINES_MAX + 2


# ---- the name server, and hooks ----


def test_the_name_server_is_guarded_too(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(TEXT)
    config = NamesrvConfig(acl_enable=True, acl_file=str(file))
    server = NameServer(config, now_ms=lambda: 0, kv_configs=KvConfigs(lambda data: None))
    plugin = AclPlugin({}, namesrv_host(server, lambda: START))
    server.use_plugins(hooks_of([("acl", plugin)]))

    def ask(
        code: int, given: dict[str, str], who: Credentials | None, peer: str = "10.0.0.1:4"
    ) -> tuple[int, str]:
        command = Command.request(code, given)
        answer = server.answer(signed(command, who) if who else command, Wire(peer), 0)  # type: ignore[arg-type]
        assert answer is not None
        return answer.code, answer.remark or ""

    kv = {"namespace": "n", "key": "k", "value": "v"}
    assert ask(Code.PUT_KV_CONFIG, kv, OWNER)[0] == 16
    assert ask(Code.PUT_KV_CONFIG, kv, None, "10.5.5.5:1")[0] == 16
    assert ask(Code.PUT_KV_CONFIG, kv, MANAGER)[0] == 0
    assert ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"}, OTHER)[0] == 16
    assert ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"}, OWNER)[0] == 17
    assert ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}, OTHER)[0] == 17
    broker = {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "c", "haServerAddr": "", "brokerId": "0"}
    assert ask(Code.REGISTER_BROKER, broker, None)[1] == "No accessKey is configured"
    assert ask(Code.REGISTER_BROKER, broker, OWNER)[0] == 16
    assert ask(Code.REGISTER_BROKER, broker, MANAGER)[0] == 0
    assert ask(Code.REGISTER_BROKER, broker, None, "10.5.5.5:1")[0] == 0
    assert ask(9999, {}, MANAGER)[0] == 16


def test_a_plugin_answers_only_what_nobody_answers(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    with pytest.raises(PluginRefused, match="plugin 'again': answers request code 50, 51"):
        hooks_of([("acl", guarded.plugin), ("again", guarded.plugin)])
    with pytest.raises(
        PluginRefused, match="plugin 'acl': answers request code 50, as the server itself does"
    ):
        guarded.rig.broker.use_plugins(hooks_of([("acl", guarded.plugin)]))


# ---- half messages ----


def heartbeat(group: str) -> Command:
    body = HeartbeatData(f"client of {group}", [ProducerData(group)]).to_json()
    return Command.request(Code.HEART_BEAT, None, body)


def test_a_check_back_goes_to_who_may_send_to_the_topic(guarded: Guarded) -> None:
    """A heartbeat of producers needs no right: else whoever names the group would be shown the message."""
    owner, other, white = Wire("10.0.0.1:1"), Wire("10.0.0.2:1"), Wire("10.5.5.1:1")
    rig = guarded.rig
    assert rig.one(signed(heartbeat("producers"), OTHER), wire=other).code == 0
    guarded.ask(send(properties="TRAN_MSG\x01true\x02PGROUP\x01producers", sys_flag=4), OWNER)
    checks = []
    for _ in range(8):
        rig.now_ms += 60_000
        rig.broker.steps.transactions()
        checks.append([len(wire.take()) for wire in (owner, other, white)])
        if len(checks) == 2:
            assert rig.one(signed(heartbeat("producers"), OWNER), wire=owner).code == 0
        if len(checks) == 4:
            guarded.write(TEXT.replace("Orders=PUB|SUB", "Orders=SUB"))
            guarded.plugin.files.poll()
        if len(checks) == 6:
            assert rig.one(heartbeat("producers"), wire=white).code == 0
    assert checks == [[0, 0, 0]] * 2 + [[1, 0, 0]] * 2 + [[0, 0, 0]] * 2 + [[0, 0, 1]] * 2


def test_a_gate_that_breaks_shows_nothing(guarded: Guarded) -> None:
    assert not guarded.rig.broker.hooks.may_publish(object(), "Orders")  # type: ignore[arg-type]


def test_a_flood_of_refusals_hides_nothing_that_administrators_do(tmp_path: Path) -> None:
    audit = Audit(str(tmp_path / "audit.log"), lambda: 1.0)
    limit = LogLimit(50, lambda: 1.0)
    shown: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(limit)
    log = logging.getLogger("rmq.audit")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        for _ in range(20):
            for _ in range(100):
                audit.refused("1.1.1.1:1", send(), "no")
            audit.admin("2.2.2.2:2", Command.request(Code.GET_BROKER_CONFIG))
    finally:
        audit.close()
        log.removeHandler(handler)
    written = (tmp_path / "audit.log").read_text().splitlines()
    for lines in (shown, [line.split(" ", 1)[1] for line in written]):
        assert sum(line.startswith("admin who=") for line in lines) == 20
        assert sum(line.startswith("refused") for line in lines) == LINES_MAX


def test_no_client_id_makes_a_line_of_the_audit_log(guarded: Guarded) -> None:
    id_ = "c\n2026-01-05 10:00:00,123 admin who=manager result=allowed\u2028\x1b[2J"
    for who in (Credentials("owner01", "wrong"), OWNER):
        guarded.ask(Command.request(Code.GET_BROKER_CONFIG, {"clientId": id_, "topic": id_}), who)
    assert [line.split(" ")[1] for line in guarded.lines()] == ["refused"] * 2
    assert all(line.isprintable() for line in guarded.lines())


def test_a_half_message_belongs_to_the_account_that_sent_it(guarded: Guarded) -> None:
    """Both accounts may write the topic, and both name the same producer group."""
    guarded.update("other01", topic_perms="Orders=PUB")
    properties = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02UNIQ_KEY\x01K"
    assert guarded.ask(send(properties=properties, sys_flag=4), OWNER).code == 0
    rig, lines = guarded.rig, {"owner01": Wire("10.0.0.1:4"), "other01": Wire("10.0.0.2:4")}
    body = HeartbeatData("c", [ProducerData("payers")]).to_json()
    for who in (OWNER, OTHER):
        beat = signed(Command.request(Code.HEART_BEAT, None, body), who)
        assert rig.one(beat, wire=lines[who.access_key]).code == 0
    for _ in range(5):
        rig.let_pass(60_000)
        for _ in range(4):
            rig.broker.steps.transactions()
    assert len(lines["owner01"].take()) == 5
    assert lines["other01"].take() == []
    white = Wire("10.5.5.9:1")
    assert guarded.plugin.may_act_for(white, "owner01")  # type: ignore[arg-type]
    end = {"producerGroup": "payers", "tranStateTableOffset": "0", "commitLogOffset": "0", "msgId": "K"}

    def decide(decision: int, who: Credentials) -> int:
        return guarded.ask(
            Command.request(Code.END_TRANSACTION, {**end, "commitOrRollback": str(decision)}), who
        ).code

    assert decide(12, OTHER) == 16
    assert decide(8, OWNER) == 0
    assert rig.bodies("Orders") == [b"hello"]
    assert decide(12, MANAGER) == 1
