"""The host of plug-ins, which is one class for broker, name server and controller."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from rmq.broker.plugin_host import plugin_host as broker_host
from rmq.controller.config import ControllerConfig
from rmq.controller.endpoint import ControllerEndpoint
from rmq.controller.requests import ControllerRequests
from rmq.errors import LocalProtocolError, SystemBusy
from rmq.message import Message
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.host import plugin_host as namesrv_host
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.plugin import Host
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.server.deferred import FILES_MAX
from rmq.server.plugin_host import PluginHost
from rmq.testing.front import Wire
from tests.unit.broker.rig import Rig


def of_broker(on_pending: Callable[[], None] | None) -> PluginHost:
    return broker_host(Rig().broker)


def of_name_server(on_pending: Callable[[], None] | None) -> PluginHost:
    kv = KvConfigs(lambda data: None)
    return namesrv_host(
        NameServer(NamesrvConfig(), now_ms=lambda: 0, kv_configs=kv, on_pending=on_pending), int
    )


def of_controller(on_pending: Callable[[], None] | None) -> PluginHost:
    requests = ControllerRequests(lambda: 0.0)
    return ControllerEndpoint(ControllerConfig(), requests, on_pending=on_pending).host(int)


HOSTS = [of_broker, of_name_server, of_controller]


@pytest.mark.parametrize("make", HOSTS)
def test_every_server_has_the_whole_host(make: Callable[..., PluginHost]) -> None:
    host: Host = make(None)
    wanted = [name for name in vars(Host) if not name.startswith("_")]
    assert [name for name in wanted if not hasattr(host, name)] == []
    assert "connections_refused" in {one.name for one in host.metrics()}


@pytest.mark.parametrize(("make", "server"), [(of_name_server, "name server"), (of_controller, "controller")])
def test_a_server_without_messages_says_so(make: Callable[..., PluginHost], server: str) -> None:
    host = make(None)
    with pytest.raises(LocalProtocolError, match=f"a {server} stores no messages"):
        host.put(Message("T", b"x"))
    assert (host.topic_of(0), host.stats(), host.address) == (None, {}, "")


@pytest.mark.parametrize("make", [of_name_server, of_controller])
def test_a_file_of_a_plugin_is_written_beside_the_loop_and_answered_then(
    make: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    rung: list[None] = []
    host = make(lambda: rung.append(None))
    wire, request = Wire(), Command.request(RequestCode.GET_NAMESRV_CONFIG)
    assert (
        host.answer_saved(request, wire, lambda: 7, lambda result: request.reply(remark=str(result))) is None
    )
    assert (len(rung), wire.received) == (1, [])
    answers = host._server.deferred_saves
    one = answers.next()
    answers.written(one, one.write())
    assert [answer.remark for answer in wire.received] == ["7"]
    for _ in range(FILES_MAX // 2):
        host.answer_saved(request, wire, int, lambda result: request.reply())
    other = Wire("10.0.0.2:1")
    assert host.answer_saved(request, other, int, lambda result: request.reply()) is None
    with pytest.raises(SystemBusy, match="wait to be saved"):
        host.answer_saved(request, wire, int, lambda result: request.reply())
