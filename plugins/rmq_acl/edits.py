"""Changes of a file's content, as requests 50, 51 and 53 and `rmq acl` ask for them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rmq.protocol.headers import CreateAccessConfigRequestHeader
from rmq_acl.plainfile import ACCESS_KEY, ACCOUNTS, GLOBAL_WHITE, SECRET_KEY

Edit = Callable[[dict[str, Any]], None]

MASK: Final = "******"
"""Mask in place of a secret."""


def update_account(header: CreateAccessConfigRequestHeader, own: Mapping[str, str | None]) -> Edit:
    """Create an account or change one: a missing field stays, `admin` is always given. `own`: the fields that
    only rmq knows, `proof` and `quota`.

    The edit raises ValueError when a new account has no secret.
    """
    given: dict[str, Any] = {
        SECRET_KEY: header.secret_key or None,
        "whiteRemoteAddress": header.white_remote_address,
        "admin": header.admin,
        "defaultTopicPerm": header.default_topic_perm or None,
        "defaultGroupPerm": header.default_group_perm or None,
        "topicPerms": _listed(header.topic_perms),
        "groupPerms": _listed(header.group_perms),
        "proof": own.get("proof"),
        "quota": own.get("quota"),
    }
    if given[SECRET_KEY] == MASK:
        given[SECRET_KEY] = None  # our own answer, sent back

    def edit(tree: dict[str, Any]) -> None:
        account = _account(tree, header.access_key)
        if account is None:
            if given[SECRET_KEY] is None:
                raise ValueError("a new account needs a secret")
            account = {ACCESS_KEY: header.access_key}
            tree.setdefault(ACCOUNTS, [])
            tree[ACCOUNTS] = [*(tree[ACCOUNTS] or []), account]
        account.update((name, value) for name, value in given.items() if value is not None)

    return edit


def delete_account(access_key: str) -> Edit:
    """Remove an account; the edit raises ValueError for an unknown account."""

    def edit(tree: dict[str, Any]) -> None:
        account = _account(tree, access_key)
        if account is None:
            raise ValueError("there is no such account")
        tree[ACCOUNTS] = [other for other in tree[ACCOUNTS] if other is not account]

    return edit


def set_global_white(white: Sequence[str]) -> Edit:
    """Replace the addresses that need no account."""

    def edit(tree: dict[str, Any]) -> None:
        tree[GLOBAL_WHITE] = list(white)

    return edit


def split(text: str | None) -> list[str]:
    """The parts of a list in a header; commas in braces do not separate."""
    parts, depth = [""], 0
    for letter in text or "":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else split(text)


def _account(tree: dict[str, Any], access_key: str) -> dict[str, Any] | None:
    for account in tree.get(ACCOUNTS) or []:
        if str(account.get(ACCESS_KEY)) == access_key:
            found: dict[str, Any] = account
            return found
    return None
