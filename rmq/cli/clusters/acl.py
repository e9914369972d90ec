"""`rmq acl`: accounts of a running cluster, or of a file of accounts."""

from __future__ import annotations

import functools
import os
import pathlib
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from attrs import evolve, frozen

from rmq.cli.output import EXIT_FAILED, Format, echo, fail, output_option, refuse, show
from rmq.cli.target import Target, confirm, part_options, report_done, run_admin, target_options, yes_option
from rmq.cli.values import read_secret
from rmq.clock import wall_clock_ms
from rmq.errors import RmqError
from rmq.protocol.auth.quota import parse_quota

if TYPE_CHECKING:
    from rmq_acl.edits import Edit

    from rmq.client.admin import AclAccount, AclConfig, Admin

T = TypeVar("T")

SECRET_BYTES: Final = 24
SECRET_LENGTH_MIN: Final = 16
"""Least characters of a secret that a user brings: RocketMQ takes 7, which an attacker can try out."""
OWNER_ONLY: Final = 0o600
NO_QUOTA: Final = "none"

COLUMNS: Final = {
    "access_key": "ACCOUNT",
    "admin": "ADMIN",
    "white_remote_address": "WITHOUT SIGNATURE FROM",
    "default_topic_perm": "TOPICS",
    "topic_perms": "SINGLE TOPICS",
    "default_group_perm": "GROUPS",
    "group_perms": "SINGLE GROUPS",
    "proof": "PROOF",
    "quota": "QUOTA",
}

NAME: Final = click.argument("who", metavar="NAME")
FILE: Final = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="Work on this plain_acl.yml instead of a running cluster.",
)


SECRET_FILE: Final = click.option(
    "--secret-file",
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    help="Read the secret from this file; if the file does not exist, write a new secret to it instead "
    "of printing the secret.",
)


@frozen
class Accounts:
    """The accounts of a file, or of the servers of a cluster."""

    target: Target
    file: pathlib.Path | None
    cluster: str
    broker: str

    def configs(self) -> dict[str, AclConfig]:
        """The accounts of the file, or of each server of the cluster."""
        return (
            {str(self.file): _config_of(self.file)}
            if self.file
            else run_admin(self.target, self._all_configs)
        )

    async def _all_configs(self, admin: Admin) -> dict[str, AclConfig]:
        from rmq.operate.accounts import configs

        found = await configs(admin, cluster=self.cluster, broker=self.broker)
        if not found:
            raise RmqError("no broker is registered there; `rmq cluster list` shows registered brokers")
        return found

    def find(self, name: str) -> AclAccount | None:
        """An account, of the first server that has it, or None."""
        from rmq.operate.accounts import joined

        return next((one for one in joined(self.configs()).accounts if one.access_key == name), None)

    def known(self, name: str) -> AclAccount:
        """An account; ends the command when no server has it."""
        found = self.find(name)
        if found is None:
            refuse(f"there is no account {name}; `rmq acl list` shows all, `rmq acl add` makes one")
        return found

    def put(self, account: AclAccount, clear: Collection[str] = ()) -> Sequence[str]:
        """Create or change an account, and empty the fields that `clear` names; return the addresses."""
        if self.file is not None:
            from rmq_acl.edits import update_account

            from rmq.client.admin.acl import account_header, own_fields

            edit = update_account(account_header(account, clear), own_fields(account, clear))
            return _edit(self.file, account.access_key, edit)

        async def work(admin: Admin) -> list[str]:
            return await admin.acl_put_account(account, cluster=self.cluster, broker=self.broker, clear=clear)

        return run_admin(self.target, work)

    def delete(self, name: str) -> Sequence[str]:
        """Remove an account; return the addresses."""
        if self.file is not None:
            from rmq_acl.edits import delete_account

            return _edit(self.file, name, delete_account(name))

        async def work(admin: Admin) -> list[str]:
            return await admin.acl_delete_account(name, cluster=self.cluster, broker=self.broker)

        return run_admin(self.target, work)


def accounts_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add --file and the options of a cluster; the command gets one argument `accounts`."""

    @functools.wraps(command)
    def with_accounts(target: Target, file: pathlib.Path | None, cluster: str, broker: str, **rest: Any) -> T:
        return command(accounts=Accounts(target, file, cluster, broker), **rest)

    return FILE(part_options(target_options(with_accounts)))


@click.group()
def acl() -> None:
    """Show, create, change and remove accounts. Secrets are shown once, when they are made.

    A cluster's accounts are changed at every broker and name server of it that keeps accounts; with --file no
    cluster is needed, and a server that reads the file takes the change within a second.
    """


def permission_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options of an account's permissions to a command."""
    options = (
        click.option("--admin/--no-admin", default=None, help="Whether it is an administrator."),
        click.option("--topic", multiple=True, metavar="TOPIC=PERM", help="PUB, SUB, PUB|SUB or DENY."),
        click.option("--group", multiple=True, metavar="GROUP=PERM", help="SUB or DENY."),
        click.option("--default-topic", metavar="PERM", default="", help="For all other topics."),
        click.option("--default-group", metavar="PERM", default="", help="For all other groups."),
        click.option("--white", metavar="ADDRESSES", default="", help="Addresses that need no signature."),
        click.option(
            "--proof",
            type=click.Choice(["required", "shown", "optional"]),
            help="Which requests must be proved: all, all after the first proved request, or none.",
        ),
        click.option(
            "--quota",
            metavar="LIMITS",
            default="",
            help="Limits a second on each broker, as produceMessages=1000,produceBytes=10m, also"
            " consumeMessages and consumeBytes; none: no limits.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@acl.command("list")
@output_option
@accounts_options
def list_accounts(accounts: Accounts, output: Format) -> None:
    """Show the accounts, without their secrets; ends with 1 when servers differ."""
    from rmq.operate.accounts import differences, joined

    configs = accounts.configs()
    config = joined(configs)
    show(config.accounts, output, columns=COLUMNS)
    if output == "table" and config.global_white_addresses:
        echo(f"no account is needed from {', '.join(config.global_white_addresses)}")
    differing = differences(configs)
    for line in differing:
        echo(f"rmq: {line}", err=True)
    if differing:
        sys.exit(EXIT_FAILED)


@acl.command()
@NAME
@permission_options
@SECRET_FILE
@accounts_options
def add(accounts: Accounts, who: str, secret_file: pathlib.Path | None, **given: Any) -> None:
    """Create the account NAME and show its secret, once."""
    account = evolve(_account(who, given), admin=bool(given["admin"]))
    if accounts.find(who) is not None:
        refuse(f"there is an account {who} already; `rmq acl set` changes it, `rmq acl rotate` its secret")
    with _secret(secret_file) as secret:
        report_done(f"account {who} made", accounts.put(evolve(account, secret_key=secret)))


@acl.command("set")
@NAME
@permission_options
@click.option("--add-topic", multiple=True, metavar="TOPIC=PERM", help="Add to the topics, or change there.")
@click.option("--drop-topic", multiple=True, metavar="TOPIC", help="Take from the single topics.")
@click.option("--add-group", multiple=True, metavar="GROUP=PERM", help="Add to the groups, or change there.")
@click.option("--drop-group", multiple=True, metavar="GROUP", help="Take from the single groups.")
@click.option("--no-topics", is_flag=True, help="Empty the list of single topics.")
@click.option("--no-groups", is_flag=True, help="Empty the list of single groups.")
@click.option("--no-white", is_flag=True, help="It must sign from every address.")
@yes_option
@accounts_options
def change(
    accounts: Accounts,
    who: str,
    no_topics: bool,
    no_groups: bool,
    no_white: bool,
    yes: bool,
    **given: Any,
) -> None:
    """Change the rights of the account NAME, show them before and after, and ask before a right is removed.

    Without an option its right stays unchanged. --topic and --group replace the whole list of single topics
    or groups, --add-topic, --drop-topic and so on change the list.
    """
    emptied = {"topic": no_topics, "group": no_groups, "white": no_white}
    for option, empty in emptied.items():
        if empty and given[option]:
            raise click.UsageError(f"give --{option} or --no-{option}{'s' * (option != 'white')}, not both")
    from rmq.operate.accounts import changed_rights, edited

    before = accounts.known(who)
    for kind, old in (("topic", before.topic_perms), ("group", before.group_perms)):
        added, dropped = given.pop(f"add_{kind}"), given.pop(f"drop_{kind}")
        if not (added or dropped):
            continue
        if given[kind] or emptied[kind]:
            whole = f"--{kind} and --no-{kind}s"
            raise click.UsageError(
                f"{whole} set the whole list: give --add-{kind} and --drop-{kind} without them"
            )
        try:
            given[kind] = edited(old, added, dropped, kind)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        emptied[kind] = not given[kind]
    admin = before.admin if given["admin"] is None else given["admin"]
    account = evolve(_account(who, given), admin=admin)
    fields = ("topic_perms", "group_perms", "white_remote_address")
    clear = [name for name, empty in zip(fields, emptied.values(), strict=True) if empty]
    if given.get("quota") == NO_QUOTA:
        clear.append("quota")
    changes = changed_rights(before, account, clear)
    for line in changes.lines:
        echo(line, err=True)
    if changes.lost:
        confirm(yes, f"{who} loses {', '.join(changes.lost)}. Change it?")
    report_done(f"account {who} changed", accounts.put(account, clear))


@acl.command()
@NAME
@SECRET_FILE
@accounts_options
def rotate(accounts: Accounts, who: str, secret_file: pathlib.Path | None) -> None:
    """Give the account NAME a new secret and show it. The old secret stops working at once.

    Servers without the account get it, with the permissions of the other servers.
    """
    before = accounts.known(who)
    with _secret(secret_file) as secret:
        report_done(f"account {who} has a new secret", accounts.put(evolve(before, secret_key=secret)))


@acl.command()
@NAME
@yes_option
@accounts_options
def remove(accounts: Accounts, who: str, yes: bool) -> None:
    """Remove the account NAME."""
    accounts.known(who)
    confirm(yes, f"Remove account {who}?")
    report_done(f"account {who} removed", accounts.delete(who))


@acl.command()
@NAME
@click.argument("resource", metavar="TOPIC")
@click.argument("action", type=click.Choice(["PUB", "SUB"], case_sensitive=False))
@click.option("--group", "is_group", is_flag=True, help="TOPIC is the name of a consumer group.")
@accounts_options
def explain(accounts: Accounts, who: str, resource: str, action: str, is_group: bool) -> None:
    """Show whether account NAME may write (PUB) or read (SUB) TOPIC, and the reason. Ends with 1 when it may
    not."""
    from rmq.operate.accounts import explain as decide

    kind: Literal["topic", "group"] = "group" if is_group else "topic"
    permission: Literal["PUB", "SUB"] = "PUB" if action.upper() == "PUB" else "SUB"
    verdict = decide(accounts.known(who), kind, resource, permission)
    word = "may" if verdict.is_allowed else "may not"
    echo(f"{who} {word} {permission} {kind} {resource}: {verdict.reason}")
    if not verdict.is_allowed:
        sys.exit(EXIT_FAILED)


# ---- files, and values ----


def _edit(file: pathlib.Path, name: str, edit: Edit) -> Sequence[str]:
    from rmq_acl.files import AclFiles

    files = AclFiles(file.absolute())
    try:
        if file.exists():
            files.load()
        path = files.path_of(name)
        files.change(path, edit, wall_clock_ms())
    except RmqError as error:
        fail(error)
    return [path]


def _config_of(file: pathlib.Path) -> AclConfig:
    """The accounts of a file; none without a file."""
    from rmq_acl.commands import shown
    from rmq_acl.files import AclFiles

    from rmq.client.admin import AclAccount, AclConfig

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
            proof=row.get("proof", ""),
            quota=row.get("quota", ""),
        )
        for row in rows
    ]
    return AclConfig(tuple(white.text for white in files.accounts.white), tuple(accounts))


def _account(name: str, given: dict[str, Any]) -> AclAccount:
    """The account of the options. Raises click's usage error for an account that every broker would
    refuse."""
    from rmq_acl import addresses, permissions, plainfile

    from rmq.client.admin import AclAccount

    account = AclAccount(
        name,
        white_remote_address=given.get("white", ""),
        default_topic_perm=given.get("default_topic", ""),
        default_group_perm=given.get("default_group", ""),
        topic_perms=given.get("topic", ()),
        group_perms=given.get("group", ()),
        proof=given.get("proof") or "",
        quota="" if given.get("quota") == NO_QUOTA else given.get("quota") or "",
    )
    try:
        parse_quota(account.quota)
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


@contextmanager
def _secret(path: pathlib.Path | None) -> Iterator[str]:
    """The secret for an account that the block creates or changes: a new secret, shown afterwards; or the
    secret in a file; or a new secret, written to the file, which is removed when the block fails.

    Raises click's usage error.
    """
    if path is not None and path.exists():
        given = read_secret(path, "--secret-file")
        if len(given) < SECRET_LENGTH_MIN or not given.isprintable():
            expected = (
                f"{SECRET_LENGTH_MIN} printable characters or more; without the file a new secret "
                "is generated"
            )
            raise click.BadParameter(f"the secret in {path} must have {expected}", param_hint="--secret-file")
        yield given
        return
    made = secrets.token_urlsafe(SECRET_BYTES)
    if path is None:
        yield made
        # Alone on the standard output's last line, so that a script can read it.
        echo("its secret, which cannot be shown again:", err=True)
        echo(made)
        return
    try:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, OWNER_ONLY)) as file:
            file.write(f"{made}\n")
    except OSError as error:
        raise click.BadParameter(f"cannot write {path}: {error}", param_hint="--secret-file") from None
    try:
        yield made
    except BaseException:
        path.unlink()
        raise
    echo(f"its secret is in {path}", err=True)
