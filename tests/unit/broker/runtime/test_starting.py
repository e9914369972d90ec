"""The modules that a broker loads until it answers: its start is mostly imports, its memory mostly
modules."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from rmq.broker.__main__ import _way_of_running
from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import failover_service, service
from rmq.errors import RemoteProtocolError
from rmq.remoting.serving import accept
from rmq.remoting.transports import websocket
from rmq.server.process import VERSION, _installed
from rmq.store.config import StoreConfig

MODULES = 217
"""Modules of rmq in an idle broker; each takes 50 KB on average. Raise the number for a divided module; load
a module that few brokers need where the settings ask for it, as `_way_of_running` does."""

NOT_LOADED = (
    "asyncio cattrs click cryptography email h11 importlib.metadata logging.handlers tomllib trio_websocket"
    " wsproto yaml rmq.broker.replication.failover.replica_manager rmq.broker.runtime.failover_service"
    " rmq.cli rmq.client rmq.controller.sets"
    " rmq.namesrv rmq.server.pages rmq.remoting.transports.websocket rmq.spark rmq.testing"
)


def test_a_broker_that_answers_has_loaded_only_what_every_broker_uses(tmp_path: Path) -> None:
    """A start with these modules took twice the CPU and a third more memory; a test of times would depend on
    the machine."""
    code = f"""
import sys, rmq.broker.__main__ as program

def answering(*_):
    print(*sorted(set({NOT_LOADED!r}.split()) & sys.modules.keys()))
    made = sum(isinstance(vars(one).get("__attrs_attrs__"), tuple) for module in list(sys.modules.values())
               if module.__name__.startswith("rmq.") for one in vars(module).values()
               if isinstance(one, type) and one.__module__ == module.__name__)
    print("few" if made < 60 else made)
    ours = [name for name in sys.modules if name.partition(".")[0] == "rmq"]
    print("few" if len(ours) <= {MODULES} else len(ours))
    raise SystemExit

program.calm_collector = answering
program.main("--set listenPort=0 --set haEnable=false --set".split() + [{f"storePathRootDir={tmp_path}"!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["", "few", "few"], done.stderr


def test_the_collector_of_cycles_does_not_look_at_what_ends_with_the_process(tmp_path: Path) -> None:
    """The collector took two thirds of a stop with thousands of connections."""
    code = f"""
import gc, os, signal, rmq.broker.__main__ as program

program.calm_collector = lambda: print(gc.isenabled()) or os.kill(os.getpid(), signal.SIGTERM)
settings = "--set listenPort=0 --set haEnable=false --set".split() + [{f"storePathRootDir={tmp_path}"!r}]
done = program.main(settings)
print(done, gc.isenabled(), gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 10_000)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    words = done.stdout.split()
    assert (words[0], words[-4:]) == ("True", ["0", "False", "True", "True"]), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("address", "was_controlled", "way"),
    [
        ("", False, service.run),
        ("", True, failover_service.run),
        ("127.0.0.1:9878", False, failover_service.run),
    ],
)
def test_controllers_have_a_say_where_they_are_set_or_have_left_epochs(
    tmp_path: Path, address: str, was_controlled: bool, way: Any
) -> None:
    if was_controlled:
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "controller.json").write_text("{}")
    store = StoreConfig(store_path_root_dir=str(tmp_path))
    assert _way_of_running(BrokerConfig(controller_addr=address), store) is way


async def test_the_parsers_of_websockets_are_loaded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_in: list[str] = []

    def load(name: str) -> ModuleType:
        loaded_in.append(trio.to_thread.__name__ if not trio.lowlevel.in_trio_run() else "the loop")
        sys.modules[name] = websocket
        return websocket

    monkeypatch.delitem(sys.modules, "rmq.remoting.transports.websocket", raising=False)
    monkeypatch.setattr(accept, "import_module", load)
    assert (await accept._websocket()).__name__ == "accept_websocket"
    assert loaded_in == ["trio.to_thread"]
    await accept._websocket()
    assert len(loaded_in) == 1, "once"


async def test_without_the_parsers_one_peer_ends_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'wsproto'")

    monkeypatch.delitem(sys.modules, "rmq.remoting.transports.websocket", raising=False)
    monkeypatch.setattr(accept, "import_module", load)
    with pytest.raises(RemoteProtocolError, match="is not available here: No module named 'wsproto'"):
        await accept._websocket()


def test_the_version_is_the_installed_package_s(tmp_path: Path) -> None:
    try:
        installed = importlib.metadata.version("rmq")
    except importlib.metadata.PackageNotFoundError:
        installed = "unknown"
    assert installed == VERSION
    folders = [str(tmp_path / "none"), str(tmp_path)]
    assert _installed("rmq", folders) == ""
    (tmp_path / "rmq-7.1.dist-info").mkdir()
    (tmp_path / "rmq_other-8.dist-info").mkdir()
    assert _installed("rmq", folders) == "7.1"
