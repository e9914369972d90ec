"""Accounts of the cluster's access control, without their secrets; why one may do something; changes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from attrs import frozen

from rmq.client.admin import AclAccount
from rmq.dashboard.access.roles import Role
from rmq.dashboard.errors import NotCleared, NotConfirmed, UnknownName
from rmq.dashboard.operations import figures
from rmq.dashboard.operations.operation import Call, operation
from rmq.errors import RequestCodeNotSupported, RequestTimeout
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
    seen: str


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
        figures.fingerprint(_settings(one)),
    )


def _settings(one: AclAccount | None) -> dict[str, str]:
    """The settings of an account as texts; empty without an account."""
    if one is None:
        return {}
    return {name: str(getattr(one, name)) for name in ("admin", "proof", *CLEARED, *DEFAULTS)}


@frozen
class Why:
    """The decision on a permission of an account, and the rule that it follows from."""

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
    found = await _find(call, name)
    if found is None:
        raise UnknownName(f"there is no account {name}")
    return found


async def _find(call: Call, name: str) -> AclAccount | None:
    joined = operate_accounts.joined(await operate_accounts.configs(call.admin))
    return next((one for one in joined.accounts if one.access_key == name), None)


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
    secret_key: Annotated[str, msgspec.Meta(description="Empty: unchanged. Never shown or logged.")] = "",
    admin: bool | None = None,
    white_address: str | None = None,
    default_topic: Perm = "",
    default_group: Perm = "",
    topics: Annotated[
        list[str] | None,
        msgspec.Meta(description="All entries, such as Orders=PUB|SUB; an empty list: none."),
    ] = None,
    groups: Annotated[
        list[str] | None, msgspec.Meta(description="All entries, such as billing=SUB; an empty list: none.")
    ] = None,
    seen: figures.Seen = "",
) -> AccountChange:
    """Create an account, or change it, at all servers that keep accounts. Settings that are not given
    stay."""
    known, is_readable = None, True
    try:
        known = await _find(call, account)
    except (RequestCodeNotSupported, RequestTimeout):
        is_readable = False  # Java's brokers of 4.9.8 and later take accounts, and do not give them
    if is_readable:
        figures.check_seen("account", account, seen, _settings(known))
    new_account = AclAccount(
        account,
        secret_key,
        white_address or "",
        admin if admin is not None else known is not None and known.admin,
        default_topic,
        default_group,
        tuple(topics or ()),
        tuple(groups or ()),
    )
    given = dict(zip(CLEARED, (white_address, topics, groups), strict=True))
    clear = [name for name, value in given.items() if known is not None and value is not None and not value]
    servers = await call.admin.acl_put_account(new_account, clear=clear)
    if known is not None:
        await _check_cleared(call, known, clear)
    return AccountChange(account, servers)


CLEARED: Final = ("white_remote_address", "topic_perms", "group_perms")
"""Fields of an account that a change may empty."""
DEFAULTS: Final = ("default_topic_perm", "default_group_perm")


async def _check_cleared(call: Call, before: AclAccount, clear: list[str]) -> None:
    """Raises NotCleared when servers have kept a field that was to be emptied, as RocketMQ's do."""
    had = [name for name in clear if getattr(before, name)]
    now = await _account(call, before.access_key) if had else before
    kept = [name.replace("_", " ") for name in had if getattr(now, name)]
    if kept:
        raise NotCleared(
            f"the servers have kept {', '.join(kept)} of {before.access_key}; the rest is changed"
        )


@operation("DELETE", "/accounts/{account}", Role.ADMIN)
async def delete_account(call: Call, *, account: str, confirm: str) -> AccountChange:
    """Delete an account wherever it is."""
    if confirm != account:
        raise NotConfirmed(f"to delete {account}, its name has to be given again")
    await _account(call, account)
    return AccountChange(account, await call.admin.acl_delete_account(account))
