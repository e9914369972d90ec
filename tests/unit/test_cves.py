"""One test for each published flaw of RocketMQ, by its number: ours does not have it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rmq_acl import AclPlugin

from rmq.broker.host import PluginHost
from rmq.plugin import hooks_of
from rmq.protocol.command import Command
from rmq.protocol.signature import Credentials, signed
from tests.unit.broker.rig import Rig, Wire

ACCOUNTS = """
globalWhiteRemoteAddresses: [10.5.5.5]
accounts:
  - {accessKey: manager, secretKey: admin-secret-1, admin: true}
  - {accessKey: lowuser, secretKey: lowuser-secret-1, whiteRemoteAddress: 10.6.6.6}
"""


@pytest.mark.parametrize(
    ("account", "peer"),
    [
        (Credentials("lowuser", "lowuser-secret-1"), "10.0.0.1:1"),
        (None, "10.5.5.5:1"),  # the global white list
        (Credentials("lowuser", "wrong"), "10.6.6.6:1"),  # the account's own
        (Credentials("manager", "wrong"), "10.0.0.1:1"),
    ],
)
def test_cve_2024_23321_secrets_are_told_to_nobody(
    tmp_path: Path, account: Credentials | None, peer: str
) -> None:
    """Any account, and any white address, could read the secrets of all accounts (request 54)."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    rig = Rig(acl_file=str(file))
    rig.broker.use_plugins(hooks_of([("acl", AclPlugin({}, PluginHost(rig.broker)))]))
    for code in (50, 51, 52, 53, 54):
        request = Command.request(
            code, {"accessKey": "lowuser", "secretKey": "lowuser-secret-2", "admin": "true"}
        )
        refused = rig.one(signed(request, account) if account else request, wire=Wire(peer))
        assert (refused.code, refused.body) == (16, b"")
    manager = Credentials("manager", "admin-secret-1")
    told = rig.one(signed(Command.request(54), manager), wire=Wire("10.0.0.1:1"))
    assert b"lowuser" in told.body
    assert b"-secret-" not in told.body
    assert file.read_text() == ACCOUNTS
