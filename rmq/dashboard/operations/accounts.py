"""Accounts of the cluster's access control, without their secrets; why one may do something; changes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from attrs import frozen

from rmq.client.admin import AclAccount
from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import NotConfirmed, UnknownName
from rmq.dashboard.operations.operation import Call, operation
from rmq.operate import accounts as operate_accounts

Perm = Literal["", "DENY", "PUB", "SUB", "PUB|SUB"]


@frozen
class AccountRow:
    """An account. Its secret is never read or shown."""

    access_key: str
    admin: bool
    white_address: str
    default_topic: str
    default_group: str
    topics: list[str]
    groups: list[str]
    proof: str


@frozen
class Accounts:
    """The accounts of all servers together, and where servers differ."""

    accounts: list[AccountRow]
    white_addresses: list[str]
    servers: list[str]
    differences: list[str]


@operation("GET", "/accounts", Role.ADMIN)
async def accounts(call: Call) -> Accounts:
    """The accounts of the cluster, without secrets; for administrators of the cluster."""
    found = await operate_accounts.configs(call.admin)
    joined = operate_accounts.joined(found)
    return Accounts(
        [_row(one) for one in joined.accounts],
        list(joined.global_white_addresses),
        list(found),
        operate_accounts.differences(found),
    )


def _row(one: AclAccount) -> AccountRow:
    return AccountRow(
        one.access_key,
        one.admin,
        one.white_remote_address,
        one.default_topic_perm,
        one.default_group_perm,
        list(one.topic_perms),
        list(one.group_perms),
        one.proof,
    )


@frozen
class Why:
    """Whether an account may do something, and the rule that decides it."""

    account: str
    action: str
    kind: str
    name: str
    is_allowed: bool
    reason: str


@operation("GET", "/accounts/{account}/why", Role.ADMIN)
async def why(
    call: Call,
    *,
    account: str,
    kind: Literal["topic", "group"],
    name: Annotated[str, msgspec.Meta(min_length=1)],
    action: Literal["PUB", "SUB"],
) -> Why:
    """Why an account may, or may not, write to (PUB) or read (SUB) a topic or group."""
    found = await _account(call, account)
    verdict = operate_accounts.explain(found, kind, name, action)
    return Why(account, action, kind, name, verdict.is_allowed, verdict.reason)


async def _account(call: Call, name: str) -> AclAccount:
    joined = operate_accounts.joined(await operate_accounts.configs(call.admin))
    found = next((one for one in joined.accounts if one.access_key == name), None)
    if found is None:
        raise UnknownName(f"there is no account {name}")
    return found


@frozen
class AccountChange:
    """An account that was changed, and the servers that did it."""

    access_key: str
    servers: list[str]


@operation("PUT", "/accounts/{account}", Role.ADMIN)
async def put_account(
    call: Call,
    *,
    account: str,
    secret_key: Annotated[str, msgspec.Meta(description="Empty: it stays. Never shown or logged.")] = "",
    admin: bool = False,
    white_address: str = "",
    default_topic: Perm = "",
    default_group: Perm = "",
    topics: Annotated[list[str], msgspec.Meta(description="Entries such as Orders=PUB|SUB.")] = [],  # noqa: B006
    groups: Annotated[list[str], msgspec.Meta(description="Entries such as billing=SUB.")] = [],  # noqa: B006
) -> AccountChange:
    """Create an account, or change it, at all servers that keep accounts."""
    wanted = AclAccount(
        account,
        secret_key,
        white_address,
        admin,
        default_topic,
        default_group,
        tuple(topics),
        tuple(groups),
    )
    return AccountChange(account, await call.admin.acl_put_account(wanted))


@operation("DELETE", "/accounts/{account}", Role.ADMIN)
async def delete_account(call: Call, *, account: str, confirm: str) -> AccountChange:
    """Delete an account wherever it is."""
    if confirm != account:
        raise NotConfirmed(f"to delete {account}, its name has to be given again")
    await _account(call, account)
    return AccountChange(account, await call.admin.acl_delete_account(account))
