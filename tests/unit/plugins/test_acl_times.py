"""The times of changes in the file of accounts."""

from __future__ import annotations

from pathlib import Path

from rmq_acl import AclPlugin

from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.host import plugin_host as namesrv_host
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.plugin import hooks_of
from rmq.protocol.auth.signature import signed
from rmq.protocol.codes import RequestCode as Code
from rmq.protocol.command import Command
from tests.unit.broker.rig import START, Wire
from tests.unit.plugins.guarded import MANAGER, OTHER, TEXT


def test_a_name_server_writes_the_wall_time_of_a_change(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(TEXT)
    config = NamesrvConfig(acl_enable=True, acl_file=str(file))
    server = NameServer(config, now_ms=lambda: 7, kv_configs=KvConfigs(lambda data: None))
    server.use_plugins(hooks_of([("acl", AclPlugin({}, namesrv_host(server, lambda: START)))]))
    request = Command.request(Code.DELETE_ACL_CONFIG, {"accessKey": OTHER.access_key})
    answer = server.answer(signed(request, MANAGER), Wire("10.0.0.1:4"), 7)  # type: ignore[arg-type]
    assert answer is not None
    assert answer.code == 0
    assert str(START) in file.read_text()
    assert "timestamp: 7" not in file.read_text()
