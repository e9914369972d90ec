"""Accounts of a cluster: the accounts of its servers, differences between servers, and reasons for
permissions.

Secrets are never among the values: servers do not send them, and `client.admin` keeps none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from attrs import evolve, frozen

from rmq.client.admin.acl import AclAccount, AclConfig
from rmq.operate.several import ask_each

if TYPE_CHECKING:
    from rmq_acl.accounts import Account

    from rmq.client.admin import Admin


@frozen
class Verdict:
    """Decision whether an account may do an action, with the rule that decides it, in words."""

    is_allowed: bool
    reason: str


async def configs(admin: Admin, *, cluster: str = "", broker: str = "") -> dict[str, AclConfig]:
    """The accounts of each server that keeps accounts, name servers too: address -> accounts.

    Raises ConfigError for an unknown cluster or broker, NoPermission, and the ResponseError of a server
    without access control.
    """
    return await ask_each(await admin.acl_servers(cluster=cluster, broker=broker), admin.acl_config)


def joined(configs: Mapping[str, AclConfig]) -> AclConfig:
    """All accounts of some servers, each in the version of the first server that has it."""
    accounts = {one.access_key: one for config in reversed(list(configs.values())) for one in config.accounts}
    order = [one.access_key for config in configs.values() for one in config.accounts]
    white = [text for config in configs.values() for text in config.global_white_addresses]
    return AclConfig(tuple(dict.fromkeys(white)), tuple(accounts[name] for name in dict.fromkeys(order)))


def differences(configs: Mapping[str, AclConfig]) -> list[str]:
    """Servers whose accounts differ from the first server's. Secrets, which servers do not send, may also
    differ."""
    found = []
    for account in joined(configs).accounts:
        there = {
            where: next((one for one in config.accounts if one.access_key == account.access_key), None)
            for where, config in configs.items()
        }
        lacking = [where for where, one in there.items() if one is None]
        other = [where for where, one in there.items() if one is not None and one != account]
        if lacking:
            todo = f"`rmq acl rotate {account.access_key}` makes it there"
            found.append(f"account {account.access_key} is not at {', '.join(lacking)}; {todo}")
        if other:
            todo = f"`rmq acl set {account.access_key} ...` makes it the same"
            found.append(f"account {account.access_key} may do other things at {', '.join(other)}; {todo}")
    white = {where: config.global_white_addresses for where, config in configs.items()}
    if len({frozenset(texts) for texts in white.values()}) > 1:
        each = "; ".join(f"{where}: {', '.join(texts) or 'none'}" for where, texts in white.items())
        found.append(f"addresses that need no account differ: {each}; `rmq admin updateGlobalWhiteAddr`")
    return found


def explain(
    account: AclAccount, kind: Literal["topic", "group"], name: str, action: Literal["PUB", "SUB"]
) -> Verdict:
    """Decide whether an account may write to (PUB) or read (SUB) a topic or group, as rmq's brokers decide.

    Requests from a white address are decided without the account. Raises ValueError for invalid permissions.
    """
    from rmq_acl import permissions  # plug-ins are packages beside rmq, and may be missing
    from rmq_acl.explain import explain as decide
    from rmq_acl.rules import GROUP, TOPIC

    found = decide(as_account(account), GROUP if kind == "group" else TOPIC, name, permissions.parse(action))
    return Verdict(found.is_allowed, found.reason)


def as_account(shown: AclAccount) -> Account:
    """An account in the form of the plug-in for access control, without a secret."""
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


# --- changes of rights ---


@frozen
class ChangedRights:
    """A change of an account's rights: `lines` show each changed field, old and new; `lost` are the rights
    that the account loses."""

    lines: tuple[str, ...]
    lost: tuple[str, ...]


def edited(old: Sequence[str], added: Sequence[str], dropped: Sequence[str], kind: str) -> tuple[str, ...]:
    """A list of ``NAME=PERM`` with `added` entries, which replace those of the same name, and without the
    names `dropped`. Raises ValueError for a dropped name that the list lacks, or that is added too."""
    table = dict(_named(text) for text in old)
    for name in dropped:
        if name not in table:
            known = ", ".join(table) or "none"
            raise ValueError(f"there is no single {kind} {name} to drop; the account has: {known}")
        del table[name]
    for text in added:
        name, permission = _named(text)
        if name in dropped:
            raise ValueError(f"{kind} {name} is added and dropped: give one of the two")
        table[name] = permission
    return tuple(f"{name}={permission}" for name, permission in table.items())


def changed_rights(before: AclAccount, change: AclAccount, clear: Collection[str]) -> ChangedRights:
    """Compare an account with a change of it: empty fields stay, and the fields in `clear` are emptied."""
    fields = (
        "admin",
        "topic_perms",
        "group_perms",
        "default_topic_perm",
        "default_group_perm",
        "white_remote_address",
        "proof",
        "quota",
    )
    given = {name: getattr(change, name) for name in fields}
    kept = {name: getattr(before, name) for name, value in given.items() if not value and name not in clear}
    after = evolve(before, **given | kept | {"admin": change.admin})
    lines = [
        f"{name}: {_shown(getattr(before, name))} -> {_shown(getattr(after, name))}"
        for name in fields
        if getattr(before, name) != getattr(after, name)
    ]
    lost = ["administration"] if before.admin and not after.admin else []
    lost += _lost(
        "topic", before.topic_perms, after.topic_perms, before.default_topic_perm, after.default_topic_perm
    )
    lost += _lost(
        "group", before.group_perms, after.group_perms, before.default_group_perm, after.default_group_perm
    )
    if before.white_remote_address and before.white_remote_address != after.white_remote_address:
        lost.append(f"requests without a signature from {before.white_remote_address}")
    return ChangedRights(tuple(lines), tuple(lost))


def _lost(kind: str, old: Sequence[str], new: Sequence[str], was: str, becomes: str) -> Iterator[str]:
    """Rights on topics or groups, of single names and of all others, that exist before the change and not
    after it."""
    before, after = dict(map(_named, old)), dict(map(_named, new))
    for name in dict.fromkeys((*before, *after)):
        if lost := _words(before.get(name, was)) - _words(after.get(name, becomes)):
            yield f"{'|'.join(sorted(lost))} of {kind} {name}"
    if lost := _words(was) - _words(becomes):
        yield f"{'|'.join(sorted(lost))} of all other {kind}s"


def _words(permission: str) -> frozenset[str]:
    words = {word.strip().upper() for word in permission.split("|")}
    if "ANY" in words:
        return frozenset(("PUB", "SUB"))
    return frozenset(words & {"PUB", "SUB"})


def _named(text: str) -> tuple[str, str]:
    name, _, permission = text.partition("=")
    return name.strip(), permission.strip()


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value == "" else str(value).lower() if isinstance(value, bool) else str(value)
