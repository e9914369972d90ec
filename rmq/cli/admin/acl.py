"""The commands of `rmq admin` about access control."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rmq.cli.admin.command import Commands, Where, java_text, row, seconds_stamp, where_options
from rmq.cli.output import echo
from rmq.client.admin import AclAccount

if TYPE_CHECKING:
    from rmq.client.client import Client

COMMANDS = Commands()


def _listed(text: str) -> tuple[str, ...]:
    return tuple(piece.strip() for piece in text.split(",") if piece.strip())


@COMMANDS.add("updateAclConfig")
@where_options("Change the account on")
@click.option("-a", "--accessKey", "who", required=True, help="The account's name.")
@click.option(
    "-s", "--secretKey", "secret", required=True, help="Its secret; - reads it from the standard input."
)
@click.option("-m", "--admin", type=bool, default=False, help="May administrate: true or false.")
@click.option("-i", "--defaultTopicPerm", "topic_perm", default="", help="DENY, PUB, SUB or PUB|SUB.")
@click.option("-u", "--defaultGroupPerm", "group_perm", default="", help="DENY or SUB.")
@click.option("-t", "--topicPerms", "topic_perms", default="", help="Such as topicA=DENY,topicD=SUB.")
@click.option("-g", "--groupPerms", "group_perms", default="", help="Such as groupA=DENY,groupD=SUB.")
@click.option("-w", "--whiteRemoteAddress", "white", default="", help="Addresses that need no signature.")
async def update_account(
    client: Client, where: Where, who: str, secret: str, admin: bool, **rest: str
) -> None:
    """Create an account, or change it.

    All users of the machine can see a secret on the command line: better give - and type it.
    """
    account = AclAccount(
        who,
        sys.stdin.readline().strip() if secret == "-" else secret.strip(),
        white_remote_address=rest["white"],
        admin=admin,
        default_topic_perm=rest["topic_perm"],
        default_group_perm=rest["group_perm"],
        topic_perms=_listed(rest["topic_perms"]),
        group_perms=_listed(rest["group_perms"]),
    )
    for address in await client.admin.acl_put_account(account, **where):
        echo(f"create or update plain access config to {address} success.")
    echo(f"account's accesskey is:{who}")


@COMMANDS.add("deleteAclConfig")
@where_options("Remove the account from")
@click.option("-a", "--accessKey", "who", required=True, help="The account's name.")
async def delete_account(client: Client, where: Where, who: str) -> None:
    """Remove an account."""
    for address in await client.admin.acl_delete_account(who, **where):
        echo(f"delete plain access config account from {address} success.")
    echo(f"account's accesskey is:{who}")


@COMMANDS.add("clusterAclConfigVersion")
@where_options("Show")
async def acl_versions(client: Client, where: Where) -> None:
    """Show the versions of account files."""
    widths = (-16, -22, -22, -20, -22, -22)
    heads = ("#Cluster Name", "#Broker Name", "#Broker Addr", "#AclFilePath", "#AclConfigVersionNum")
    row(widths, *heads, "#AclLastUpdateTime")
    for one in await client.admin.acl_versions(**where):
        changed = seconds_stamp(one.timestamp, otherwise="-")
        file = one.file or "-"
        row(widths, one.cluster, one.broker_name, one.broker_address, file, one.counter, changed)
    kind = "cluster" if where["cluster"] else "broker"
    echo(f"get {kind}'s plain access config version success.")


@COMMANDS.add("updateGlobalWhiteAddr")
@where_options("Set them on")
@click.option("-g", "--globalWhiteRemoteAddresses", "addresses", required=True, help="Such as 10.10.103.*.")
@click.option(
    "-p", "--aclFileFullPath", "file", default="", help="One of a Java broker's several account files."
)
async def set_white_addresses(client: Client, where: Where, addresses: str, file: str) -> None:
    """Set the addresses that need no account."""
    for address in await client.admin.acl_set_white_addresses(list(_listed(addresses)), file=file, **where):
        echo(f"update global white remote addresses to {address} success.")


@COMMANDS.add("getAclConfig")
@where_options("Show")
async def acl_config(client: Client, where: Where) -> None:
    """Show accounts, and addresses that need none. Secrets are never shown."""
    for address in await client.admin.broker_addresses(**where):
        config = await client.admin.acl_config(address)
        echo(f"\nglobalWhiteRemoteAddresses: {java_text(config.global_white_addresses)}\n\naccounts:")
        for one in config.accounts:
            rows = {
                "accessKey": one.access_key,
                "secretKey": "********",
                "whiteRemoteAddress": one.white_remote_address,
                "admin": one.admin,
                "defaultTopicPerm": one.default_topic_perm,
                "defaultGroupPerm": one.default_group_perm,
                "topicPerms": one.topic_perms,
                "groupPerms": one.group_perms,
            }
            for name, value in rows.items():
                echo(f"  {name:<18}: {java_text(value)}")
            echo()
