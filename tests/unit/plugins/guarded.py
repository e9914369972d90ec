"""A broker with accounts, and signed requests to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rmq_acl import AclPlugin

from rmq.broker.plugin_host import plugin_host
from rmq.plugin import hooks_of
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.codes import RequestCode as Code
from rmq.protocol.command import Command
from rmq.protocol.headers import CreateAccessConfigRequestHeader
from tests.unit.broker.rig import Rig, Wire

MANAGER = Credentials("manager", "admin-secret-1")


OWNER = Credentials("owner01", "owner-secret-1")


OTHER = Credentials("other01", "other-secret-1")


TEXT = """# accounts of the tests
globalWhiteRemoteAddresses:
  - 10.5.5.*
note: kept
accounts:
  - {accessKey: manager, secretKey: admin-secret-1, admin: true}
  - accessKey: owner01
    secretKey: owner-secret-1
    team: kept too
    defaultGroupPerm: SUB
    topicPerms: [Orders=PUB|SUB]
  - {accessKey: other01, secretKey: other-secret-1, topicPerms: [Others=PUB], groupPerms: [others=SUB]}
dataVersion:
  - {counter: 4, timestamp: 7}
"""


class Guarded:
    """A rig with the plug-in."""

    def __init__(self, folder: Path, text: str = TEXT, **settings: Any) -> None:
        self.file = folder / "plain_acl.yml"
        self.write(text)
        os.chmod(self.file, 0o600)
        self.audit = folder / "audit.log"
        self.rig = Rig(acl_file=str(self.file), acl_audit_file=str(self.audit), **settings)
        self.plugin = AclPlugin({}, plugin_host(self.rig.broker))
        self.rig.broker.use_plugins(hooks_of([("acl", self.plugin)]))
        for topic in ("Orders", "Others"):
            self.rig.broker.topics.create_retry(topic, 6, 1)

    def write(self, text: str) -> None:
        self.file.write_text(text, "utf-8")

    def ask(self, command: Command, who: Credentials | None = MANAGER, peer: str = "10.0.0.1:4") -> Command:
        if who is not None:
            command = signed(command, who)
        return self.rig.one(command, wire=Wire(peer))

    def update(self, name: str, who: Credentials = MANAGER, **fields: Any) -> Command:
        header = CreateAccessConfigRequestHeader(name, **fields)
        return self.ask(Command.request(Code.UPDATE_AND_CREATE_ACL_CONFIG, header), who)

    def lines(self) -> list[str]:
        return self.audit.read_text().splitlines() if self.audit.exists() else []
