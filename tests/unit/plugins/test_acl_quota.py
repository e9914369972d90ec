"""Quotas of accounts in the file of accounts, and by request 50."""

from __future__ import annotations

from pathlib import Path

import yaml

from rmq.protocol.auth.quota import Quota
from rmq.protocol.auth.signature import signed
from rmq.protocol.codes import RequestCode as Code
from rmq.protocol.command import Command
from rmq.protocol.headers import CreateAccessConfigRequestHeader
from tests.unit.broker.rig import Wire, send
from tests.unit.plugins.guarded import OWNER, Guarded


def test_an_account_has_the_quota_of_the_file(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    assert guarded.plugin.quota("owner01") is None
    text = "produceMessages=2,consumeBytes=10m"
    assert guarded.ask(command(guarded, "owner01", quota=text)).code == 0
    assert guarded.plugin.quota("owner01") == Quota(2, 0, 0, 10 << 20)
    assert yaml.safe_load(guarded.file.read_text())["accounts"][1]["quota"] == text
    wrong = guarded.ask(command(guarded, "owner01", quota="produceMessages=fast"))
    assert "above 0" in (wrong.remark or "")
    wire = Wire("10.0.0.1:4")
    sends = [signed(send(), OWNER) for _ in range(5)]
    assert len(guarded.rig.ask(*sends, wire=wire)) == 3
    assert guarded.ask(command(guarded, "owner01", quota="")).code == 0
    assert guarded.plugin.quota("owner01") is None


def command(guarded: Guarded, name: str, *, quota: str) -> Command:
    header = CreateAccessConfigRequestHeader(name)
    request = Command.request(Code.UPDATE_AND_CREATE_ACL_CONFIG, header)
    return request.with_ext({**request.ext, "quota": quota})
