"""`rmq acl`: accounts of a running cluster, or of a file of accounts."""

from __future__ import annotations

import functools
import pathlib
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from attrs import evolve, frozen

from rmq.cli.asking import agree, ask, done, part_options, refuse, yes_option
from rmq.cli.output import Format, output_option, show
from rmq.cli.status import EXIT_FAILED
from rmq.cli.target import Target, fail, target_options
from rmq.errors import RmqError

if TYPE_CHECKING:
    from rmq_acl.accounts import Account
    from rmq_acl.edits import Edit

    from rmq.client.admin import Admin
    from rmq.client.admin.values import AclAccount, AclConfig
    from rmq.protocol.headers import CreateAccessConfigRequestHeader

T = TypeVar("T")

SECRET_BYTES: Final = 24

COLUMNS: Final = {
    "access_key": "ACCOUNT",
    "admin": "ADMIN",
    "white_remote_address": "WITHOUT SIGNATURE FROM",
    "default_topic_perm": "TOPICS",
    "topic_perms": "SINGLE TOPICS",
    "default_group_perm": "GROUPS",
    "group_perms": "SINGLE GROUPS",
}

NAME: Final = click.argument("who", metavar="NAME")
FILE: Final = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="Work on this plain_acl.yml instead of a running cluster.",
)


@frozen
class Place:
    """Where the accounts are: a file, or the brokers of a cluster."""

    target: Target
    file: pathlib.Path | None
    cluster: str
    broker: str

    def config(self) -> AclConfig:
        """The accounts; those of the first broker, of a cluster."""
        return _config_of(self.file) if self.file else ask(self.target, self._first_config)

    async def _first_config(self, admin: Admin) -> AclConfig:
        addresses = await admin.broker_addresses(cluster=self.cluster, broker=self.broker)
        if not addresses:
            raise RmqError("no broker is registered there; `rmq cluster` shows those that are")
        return await admin.acl_config(addresses[0])

    def find(self, name: str) -> AclAccount | None:
        """An account, or None."""
        return next((account for account in self.config().accounts if account.access_key == name), None)

    def known(self, name: str) -> AclAccount:
        """An account; ends the command when there is none."""
        found = self.find(name)
        if found is None:
            refuse(f"there is no account {name}; `rmq acl list` shows all, `rmq acl add` makes one")
        return found

    def put(self, account: AclAccount) -> Sequence[str]:
        """Make or change an account; returns where."""
        if self.file is not None:
            from rmq_acl.edits import update_account

            return _edit(self.file, account.access_key, update_account(_header(account)))

        async def work(admin: Admin) -> list[str]:
            return await admin.acl_put_account(account, cluster=self.cluster, broker=self.broker)

        return ask(self.target, work)

    def delete(self, name: str) -> Sequence[str]:
        """Remove an account; returns where."""
        if self.file is not None:
            from rmq_acl.edits import delete_account

            return _edit(self.file, name, delete_account(name))

        async def work(admin: Admin) -> list[str]:
            return await admin.acl_delete_account(name, cluster=self.cluster, broker=self.broker)

        return ask(self.target, work)


def place_options(command: Callable[..., T]) -> Callable[..., T]:
    """Adds --file and the options of a cluster; the command gets one argument `place`."""

    @functools.wraps(command)
    def with_place(target: Target, file: pathlib.Path | None, cluster: str, broker: str, **rest: Any) -> T:
        return command(place=Place(target, file, cluster, broker), **rest)

    return FILE(part_options(target_options(with_place)))


@click.group()
def acl() -> None:
    """Look at, make, change and remove accounts. Secrets are shown once, when they are made.

    A cluster's accounts are changed at every broker of it; with --file no cluster is needed, and a broker
    that reads the file takes the change within a second.
    """


def permission_options(command: Callable[..., T]) -> Callable[..., T]:
    """Adds what an account may do; the command gets an AclAccount without name as `wanted`."""
    options = (
        click.option("--admin/--no-admin", default=None, help="Whether it is an administrator."),
        click.option("--topic", multiple=True, metavar="TOPIC=PERM", help="PUB, SUB, PUB|SUB or DENY."),
        click.option("--group", multiple=True, metavar="GROUP=PERM", help="SUB or DENY."),
        click.option("--default-topic", metavar="PERM", default="", help="For all other topics."),
        click.option("--default-group", metavar="PERM", default="", help="For all other groups."),
        click.option("--white", metavar="ADDRESSES", default="", help="From here it need not sign."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@acl.command("list")
@output_option
@place_options
def list_accounts(place: Place, output: Format) -> None:
    """Show the accounts, without their secrets."""
    config = place.config()
    show(config.accounts, output, columns=COLUMNS)
    if output == "table" and config.global_white_addresses:
        click.echo(f"no account is needed from {', '.join(config.global_white_addresses)}")


@acl.command()
@NAME
@permission_options
@place_options
def add(place: Place, who: str, **given: Any) -> None:
    """Make the account NAME and show its secret: now, and never again."""
    secret = _new_secret()
    account = evolve(_wanted(who, given), secret_key=secret, admin=bool(given["admin"]))
    if place.find(who) is not None:
        refuse(f"there is an account {who} already; `rmq acl set` changes it, `rmq acl rotate` its secret")
    done(f"account {who} made", place.put(account))
    _tell(secret)


@acl.command("set")
@NAME
@permission_options
@place_options
def change(place: Place, who: str, **given: Any) -> None:
    """Change what the account NAME may do. What is not given stays; --topic and --group replace the list."""
    before = place.known(who)
    admin = before.admin if given["admin"] is None else given["admin"]
    account = evolve(_wanted(who, given), admin=admin)
    done(f"account {who} changed", place.put(account))


@acl.command()
@NAME
@place_options
def rotate(place: Place, who: str) -> None:
    """Give the account NAME a new secret and show it. The old one stops working at once."""
    before, secret = place.known(who), _new_secret()
    account = evolve(_wanted(who, {}), secret_key=secret, admin=before.admin)
    done(f"account {who} has a new secret", place.put(account))
    _tell(secret)


@acl.command()
@NAME
@yes_option
@place_options
def remove(place: Place, who: str, yes: bool) -> None:
    """Remove the account NAME."""
    place.known(who)
    agree(yes, f"Remove account {who}?")
    done(f"account {who} removed", place.delete(who))


@acl.command()
@NAME
@click.argument("resource", metavar="TOPIC")
@click.argument("action", type=click.Choice(["PUB", "SUB"], case_sensitive=False))
@click.option("--group", "is_group", is_flag=True, help="TOPIC is the name of a consumer group.")
@place_options
def explain(place: Place, who: str, resource: str, action: str, is_group: bool) -> None:
    """Say whether account NAME may write (PUB) or read (SUB) TOPIC, and why. Ends with 1 when it may not."""
    from rmq_acl import permissions
    from rmq_acl.explain import explain as decide
    from rmq_acl.rules import GROUP, TOPIC

    account = _as_account(place.known(who))
    kind = GROUP if is_group else TOPIC
    verdict = decide(account, kind, resource, permissions.parse(action.upper()))
    word = "may" if verdict.allowed else "may not"
    click.echo(f"{who} {word} {action.upper()} {kind} {resource}: {verdict.reason}")
    if not verdict.allowed:
        sys.exit(EXIT_FAILED)


# ---- files, and values ----


def _edit(file: pathlib.Path, name: str, edit: Edit) -> Sequence[str]:
    from rmq_acl.files import AclFiles

    files = AclFiles(file.absolute())
    try:
        if file.exists():
            files.load()
        path = files.path_of(name)
        files.change(path, edit, time.time_ns() // 1_000_000)
    except RmqError as error:
        fail(error)
    return [path]


def _header(account: AclAccount) -> CreateAccessConfigRequestHeader:
    from rmq.protocol.headers import CreateAccessConfigRequestHeader

    return CreateAccessConfigRequestHeader(
        account.access_key,
        account.secret_key or None,
        account.white_remote_address or None,
        account.admin,
        account.default_topic_perm or None,
        account.default_group_perm or None,
        ",".join(account.topic_perms) or None,
        ",".join(account.group_perms) or None,
    )


def _config_of(file: pathlib.Path) -> AclConfig:
    """The accounts of a file; none when it is not there yet."""
    from rmq_acl.commands import shown
    from rmq_acl.files import AclFiles

    from rmq.client.admin.values import AclAccount, AclConfig

    files = AclFiles(file.absolute())
    try:
        if file.exists():
            files.load()
    except RmqError as error:
        fail(error)
    rows = [shown(account) for account in files.accounts.table.values()]
    accounts = [
        AclAccount(
            row["accessKey"],
            white_remote_address=row["whiteRemoteAddress"],
            admin=row["admin"],
            default_topic_perm=row["defaultTopicPerm"],
            default_group_perm=row["defaultGroupPerm"],
            topic_perms=tuple(row["topicPerms"]),
            group_perms=tuple(row["groupPerms"]),
        )
        for row in rows
    ]
    return AclConfig(tuple(white.text for white in files.accounts.white), tuple(accounts))


def _wanted(name: str, given: dict[str, Any]) -> AclAccount:
    """The account as the options describe it. Raises click's usage error for what no broker would take."""
    from rmq_acl import addresses, permissions, plainfile

    from rmq.client.admin.values import AclAccount

    account = AclAccount(
        name,
        white_remote_address=given.get("white", ""),
        default_topic_perm=given.get("default_topic", ""),
        default_group_perm=given.get("default_group", ""),
        topic_perms=given.get("topic", ()),
        group_perms=given.get("group", ()),
    )
    try:
        addresses.parse(account.white_remote_address)
        for text in (account.default_topic_perm, account.default_group_perm):
            permissions.parse(text)
        for text in (*account.topic_perms, *account.group_perms):
            plainfile.name_and_permission(text)
    except ValueError as error:
        raise click.UsageError(f"expected {error}") from None
    if len(name) < plainfile.KEY_LENGTH_MIN:
        raise click.UsageError(
            f"the name {name!r} is too short: {plainfile.KEY_LENGTH_MIN} characters or more"
        )
    return account


def _as_account(shown: AclAccount) -> Account:
    from rmq_acl import permissions, plainfile
    from rmq_acl.accounts import Account

    return Account(
        shown.access_key,
        "",
        shown.admin,
        default_topic=permissions.parse(shown.default_topic_perm),
        default_group=permissions.parse(shown.default_group_perm),
        topics=dict(map(plainfile.name_and_permission, shown.topic_perms)),
        groups=dict(map(plainfile.name_and_permission, shown.group_perms)),
    )


def _new_secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def _tell(secret: str) -> None:
    """The secret alone on the standard output's last line, so that a script can take it."""
    click.echo("its secret, which nobody can look up later:", err=True)
    click.echo(secret)
