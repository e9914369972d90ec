from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import anyio
import pytest
from click.testing import CliRunner, Result

import rmq
from rmq.cli.admin import admin
from rmq.client.admin import AclAccount
from rmq.protocol.auth.signature import Credentials
from tests.masters import Masters, running

SECRET = "manager-secret-1"
ACCOUNTS = f"""globalWhiteRemoteAddresses: [10.9.9.9]
accounts:
  - {{accessKey: manager, secretKey: {SECRET}, admin: true}}
  - {{accessKey: reader1, secretKey: reader-secret-1, topicPerms: [Orders=SUB]}}
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Masters]:
    """Two masters that share a file of accounts."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "plain_acl.yml"
    file.write_text(ACCOUNTS, "utf-8")
    file.chmod(0o600)
    with running(folder, aclEnable="true", aclFile=str(file)) as masters:
        yield masters


def run(
    masters: Masters, folder: pathlib.Path, name: str, *words: str, who: str = "manager", **more: str
) -> Result:
    (folder / "secret").write_text(SECRET if who == "manager" else "reader-secret-1", "utf-8")
    account = ("--access-key", who, "--secret-key-file", str(folder / "secret"))
    return CliRunner().invoke(admin, [name, "-n", masters.namesrv, *account, *words], **more)


def test_accounts_are_made_shown_and_removed(guarded: Masters, tmp_path: pathlib.Path) -> None:
    made = run(
        guarded, tmp_path, "updateAclConfig", "-b", guarded.first, "-a", "writer1", "-s", "-",
        "-t", "Orders=PUB,Prices=DENY", "-i", "DENY", input="writer-secret-1\n",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert f"create or update plain access config to {guarded.first} success." in made.output

    shown = run(guarded, tmp_path, "getAclConfig", "-b", guarded.first)
    assert "globalWhiteRemoteAddresses: [10.9.9.9]" in shown.output
    assert re.search(r"accessKey +: writer1$", shown.output, re.M)
    assert "Orders=PUB" in shown.output
    assert "writer-secret-1" not in made.output + shown.output
    assert SECRET not in shown.output

    versions = run(guarded, tmp_path, "clusterAclConfigVersion", "-c", "DefaultCluster")
    assert versions.exit_code == 0, versions.output
    assert [line.split()[:2] for line in versions.output.splitlines()[1:3]] == [
        ["DefaultCluster", "embedded"],
        ["DefaultCluster", "second"],
    ]
    gone = run(guarded, tmp_path, "deleteAclConfig", "-b", guarded.first, "-a", "writer1")
    assert f"delete plain access config account from {guarded.first} success." in gone.output
    assert "writer1" not in run(guarded, tmp_path, "getAclConfig", "-b", guarded.first).output


def test_white_addresses_are_set(guarded: Masters, tmp_path: pathlib.Path) -> None:
    said = run(guarded, tmp_path, "updateGlobalWhiteAddr", "-b", guarded.first, "-g", "10.1.1.*,10.2.2.2")

    assert said.output == f"update global white remote addresses to {guarded.first} success.\n"
    assert "[10.1.1.*, 10.2.2.2]" in run(guarded, tmp_path, "getAclConfig", "-b", guarded.first).output


def test_an_account_that_is_no_admin_is_refused(guarded: Masters, tmp_path: pathlib.Path) -> None:
    said = run(guarded, tmp_path, "getAclConfig", "-b", guarded.first, who="reader1")

    assert said.exit_code == 1
    assert "16" in said.output


@pytest.mark.parametrize("loop", ["trio", "asyncio"])
def test_the_client_does_the_same(guarded: Masters, loop: str) -> None:
    async def main() -> None:
        credentials = Credentials("manager", SECRET)
        async with rmq.connect(guarded.namesrv, credentials=credentials) as client:
            account = AclAccount("account-made", "made-secret-1", topic_perms=("Orders=PUB|SUB",))
            await client.admin.acl_put_account(account, broker=guarded.first)
            config = await client.admin.acl_config(guarded.first)
            (found,) = [one for one in config.accounts if one.access_key == "account-made"]
            assert (found.topic_perms, found.secret_key) == (("Orders=PUB|SUB",), "")
            assert (await client.admin.acl_versions(broker=guarded.first))[0].counter > 0
            await client.admin.acl_delete_account("account-made", broker=guarded.first)
            config = await client.admin.acl_config(guarded.first)
            assert "account-made" not in {one.access_key for one in config.accounts}

    anyio.run(main, backend=loop)
