"""Settings that servers share: written once, honoured by each of them."""

from __future__ import annotations

import ast
import inspect
import pathlib
from contextlib import suppress
from typing import Any

import anyio
import attrs
import pytest
import trio
import trio.testing

from rmq.broker.config import BrokerConfig
from rmq.controller.config import ControllerConfig
from rmq.controller.service import run as run_controller
from rmq.errors import ConfigError
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.service import run as run_name_server
from rmq.server.settings import ServerSettings
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

SERVERS = (NamesrvConfig, BrokerConfig, ControllerConfig)


def written_in(cls: type[Any]) -> dict[str, str]:
    """The settings that the source of a class defines: name -> the function that makes the field."""
    tree = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        node.target.id: ast.unparse(node.value.func)
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Call)
    }


def test_no_two_servers_write_the_same_setting() -> None:
    made = [{name for name, by in written_in(cls).items() if by == "setting"} for cls in SERVERS]
    shared = set(attrs.fields_dict(ServerSettings))
    assert [sorted(names & shared) for names in made] == [[], [], []]
    assert sorted(name for one in made for name in one if sum(name in other for other in made) > 1) == []


def test_another_default_keeps_what_else_a_setting_is() -> None:
    base, own = (
        attrs.fields_dict(ServerSettings)["listen_port"],
        attrs.fields_dict(BrokerConfig)["listen_port"],
    )
    assert own.default == 10911
    assert (own.metadata, own.validator) == (base.metadata, base.validator)
    with pytest.raises(ConfigError, match="listen_port"):
        BrokerConfig(listen_port=99_999)


@pytest.mark.parametrize("server", ["controller", "name server"])
async def test_a_server_bounds_the_connections_of_one_address(
    autojump_clock: trio.testing.MockClock, tmp_path: pathlib.Path, server: str
) -> None:
    network = MemoryNetwork()
    host = network.host("10.0.1.1")
    settings: dict[str, Any] = {"bind_address": "10.0.1.1", "max_connections_per_address": 2}
    async with trio.open_nursery() as nursery:

        async def start(task_status: Any) -> None:
            if server == "controller":
                config = ControllerConfig(controller_path="/controller", **settings)
                disk, clock = MemoryDisk(), trio.current_time
                await run_controller(config, network=host, disk=disk, clock=clock, task_status=task_status)
            else:
                names = NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"), **settings)
                await run_name_server(names, network=host, task_status=task_status)

        [address] = await nursery.start(start)
        streams = [await network.host("10.0.8.1").dial(address) for _ in range(4)]
        ended = 0
        for stream in streams:
            with trio.move_on_after(1) as waiting, suppress(anyio.BrokenResourceError):
                assert await stream.receive_some(1) == b""
            ended += not waiting.cancelled_caught
        assert ended == 2
        nursery.cancel_scope.cancel()
