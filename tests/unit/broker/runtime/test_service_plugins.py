"""Plug-ins of a running broker: their tasks, and those that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from rmq.plugin import Host, Plugin, PluginRefused
from rmq.testing.disk import MemoryDisk
from rmq.testing.network import MemoryNetwork

from ..rig import send
from .serving import broker

# --- plugins ---


class Restless(Plugin):
    """Fails twice, then goes on."""

    starts: list[float]

    async def run(self) -> None:
        self.starts.append(trio.current_time())
        if len(self.starts) < 3:
            raise RuntimeError("again")
        await trio.sleep_forever()


async def test_a_plugins_task_that_fails_is_started_again_with_growing_pauses(
    autojump_clock: Any, network: MemoryNetwork, disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    Restless.starts = []
    _install(monkeypatch, restless=Restless)
    async with broker(network, disk, plugins=("restless",)) as running:
        await trio.sleep(10)
        assert (await running.ask(send())).code == 0
    first, second, third = Restless.starts
    assert (second - first, third - second) == (pytest.approx(1), pytest.approx(2))


class Picky(Plugin):
    def __init__(self, config: Any, host: Host) -> None:
        raise ValueError("plain_acl.yml is missing")


def _install(monkeypatch: pytest.MonkeyPatch, **classes: object) -> None:
    finders: dict[str, Callable[[], object]] = {name: partial(_same, one) for name, one in classes.items()}
    monkeypatch.setattr("rmq.plugin._installed", lambda: finders)


def _same(value: object) -> object:
    return value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plugins": ("picky",)}, "plain_acl.yml is missing"),
        ({"plugins": ("nothing",)}, "not installed; installed are: picky, wrong"),
        ({"plugins": ("wrong",)}, "not a subclass"),
        ({"acl_enable": True}, "'acl': is not installed"),
    ],
)
async def test_a_plugin_that_cannot_be_used_ends_the_start_and_leaves_nothing(
    autojump_clock: Any,
    network: MemoryNetwork,
    disk: MemoryDisk,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    words: str,
) -> None:
    _install(monkeypatch, picky=Picky, wrong=dict)
    with pytest.raises(ExceptionGroup) as caught:
        async with broker(network, disk, **changes):
            raise AssertionError("it must not start")
    assert caught.group_contains(PluginRefused, match=words)
    async with broker(network, disk):
        pass
