"""Accounts of several servers, and why an account may do something."""

from __future__ import annotations

import pytest

from rmq.client.admin import AclAccount, AclConfig
from rmq.operate.accounts import differences, explain, joined

OPS = AclAccount("ops", admin=True)
SHOP = AclAccount("shop", default_topic_perm="DENY", topic_perms=("Orders=PUB|SUB",), group_perms=("x=SUB",))


def config(*accounts: AclAccount, white: tuple[str, ...] = ()) -> AclConfig:
    return AclConfig(white, accounts)


def test_servers_with_equal_accounts_do_not_differ() -> None:
    assert differences({"a:1": config(OPS, SHOP), "b:1": config(SHOP, OPS)}) == []


def test_each_difference_names_account_and_servers() -> None:
    weaker = AclAccount("shop", default_topic_perm="SUB")
    found = differences(
        {"a:1": config(OPS, SHOP), "b:1": config(weaker), "c:1": config(OPS, SHOP, white=("*",))}
    )
    assert any(line.startswith("account ops is not at b:1;") for line in found)
    assert any(line.startswith("account shop may do other things at b:1;") for line in found)
    assert any(line.startswith("addresses that need no account differ") for line in found)
    whole = joined({"b:1": config(weaker), "a:1": config(OPS, SHOP)})
    assert whole.accounts == (weaker, OPS)


@pytest.mark.parametrize(
    ("account", "kind", "name", "action", "allowed", "reason"),
    [
        (SHOP, "topic", "Orders", "PUB", True, "topicPerms has Orders=PUB|SUB"),
        (SHOP, "topic", "Other", "SUB", False, "topicPerms has no entry for it"),
        (SHOP, "group", "x", "SUB", True, "groupPerms has x=SUB"),
        (OPS, "topic", "Anything", "PUB", True, "an administrator"),
    ],
)
def test_an_account_may_do_something_for_a_reason(
    account: AclAccount, kind: str, name: str, action: str, allowed: bool, reason: str
) -> None:
    verdict = explain(account, kind, name, action)  # type: ignore[arg-type]
    assert verdict.is_allowed is allowed
    assert reason in verdict.reason
