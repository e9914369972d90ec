"""Explanation why an account may do an action or not, in words. Pure; `rmq acl explain` prints it."""

from __future__ import annotations

from attrs import frozen

from rmq.message import RETRY_PREFIX, TRACE_TOPIC
from rmq_acl.accounts import Account, beyond_default
from rmq_acl.permissions import ANY, NAMES, PUB, SUB
from rmq_acl.rules import GROUP, TOPIC, may

_ALL = PUB | SUB


@frozen
class Verdict:
    """The decision, and its reason."""

    is_allowed: bool
    reason: str


def explain(account: Account, kind: str, name: str, needed: int) -> Verdict:
    """The decision of the broker about a topic or a group, with its reason."""
    return Verdict(may(account, kind, name, needed), _reason(account, kind, name, needed))


def _reason(account: Account, kind: str, name: str, needed: int) -> str:
    if kind == TOPIC and name.startswith(RETRY_PREFIX):
        group = name[len(RETRY_PREFIX) :]
        return f"a retry topic belongs to its group: {_reason(account, GROUP, group, needed)}"
    if kind == TOPIC and name == TRACE_TOPIC and needed == PUB:
        return "every account may write traces"
    if account.is_unlimited:
        return "an administrator without permissions of its own may do everything"
    single, default = (
        (account.topics, account.default_topic) if kind == TOPIC else (account.groups, account.default_group)
    )
    if name in single:
        return f"{kind}Perms has {name}={NAMES[single[name]]}"
    if kind == TOPIC and (beyond_default(name) & needed or (needed == ANY and beyond_default(name) == _ALL)):
        return "it holds messages of topics that entries may deny, so only an entry of its own allows it"
    return f"{kind}Perms has no entry for it, and default{kind.capitalize()}Perm is {NAMES[default]}"
