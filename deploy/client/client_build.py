"""The build hook of `rmq-client`: selects the client's modules of the tree, and makes the compiled engine
as the whole distribution does."""

from __future__ import annotations

import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("rmq/client", "rmq/compat", "rmq/protocol")
FILES = (
    "rmq/__init__.py",
    "rmq/clock.py",
    "rmq/config.py",
    "rmq/errors.py",
    "rmq/files.py",
    "rmq/lazy_attrs.py",
    "rmq/message.py",
    "rmq/metrics.py",
    "rmq/printable.py",
    "rmq/py.typed",
    "rmq/remoting/__init__.py",
    "rmq/remoting/address.py",
    "rmq/remoting/asyncio_loop.py",
    "rmq/remoting/cancellation.py",
    "rmq/remoting/connection.py",
    "rmq/remoting/endpoint.py",
    "rmq/remoting/limits.py",
    "rmq/remoting/loop.py",
    "rmq/remoting/network.py",
    "rmq/remoting/pending_requests.py",
    "rmq/remoting/pool.py",
    "rmq/remoting/sending.py",
    "rmq/remoting/threads.py",
    "rmq/remoting/transports/__init__.py",
    "rmq/remoting/transports/certificate.py",
    "rmq/remoting/transports/stream.py",
    "rmq/remoting/transports/tcp.py",
    "rmq/remoting/transports/tls.py",
    "rmq/remoting/transports/websocket.py",
    "rmq/remoting/transports/websocket_client.py",
    "rmq/remoting/transports/websocket_policy.py",
    "rmq/remoting/trio_loop.py",
)
SERVERS = ("rmq/protocol/auth/server_auth.py",)
"""Files in `FOLDERS` that only servers use."""
SOURCES = (".py", ".pyi", ".pyx", ".pxi", ".typed")


class ClientHook(BuildHookInterface[Any]):
    """The hook that hatchling calls for the wheel, and for the source distribution."""

    PLUGIN_NAME = "custom"
    _work = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the client's files; to a wheel also the engine, as the tree's hatch_build.py makes it."""
        if version == "editable":
            raise RuntimeError("rmq-client has no editable form: install the whole tree (pip install -e .)")
        tree = tree_of(Path(self.root))
        included: dict[str, str] = build_data["force_include"]
        included.update({str(tree / name): name for name in client_files(tree)})
        if self.target_name == "sdist":
            included |= {str(tree / name): name for name in ("hatch_build.py", "LICENSE")}
            return
        dist_info = f"rmq_client-{self.metadata.version}.dist-info"
        included[str(tree / "LICENSE")] = f"{dist_info}/licenses/LICENSE"
        self._work = tempfile.mkdtemp(prefix="rmq-engine-")
        whole = runpy.run_path(str(tree / "hatch_build.py"))
        built = whole["engine_for_wheel"](tree, Path(self._work), self.app.display_warning)
        if built is not None:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            included[str(built)] = f"rmq/protocol/{built.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder in which the engine was built."""
        shutil.rmtree(self._work, ignore_errors=True)


def tree_of(root: Path) -> Path:
    """The folder that holds `rmq`: a checkout, two levels up, or the unpacked source distribution itself."""
    for tree in (root, root.parents[1]):
        if (tree / "rmq" / "client").is_dir():
            return tree
    raise RuntimeError(f"{root}: no rmq/client here or two folders up: build rmq-client in a checkout")


def client_files(tree: Path) -> list[str]:
    """The paths of all files of the client, relative to `tree`, with slashes."""
    found = [
        path.relative_to(tree).as_posix()
        for folder in FOLDERS
        for path in sorted((tree / folder).rglob("*"))
        if path.suffix in SOURCES and "__pycache__" not in path.parts
    ]
    return [*FILES, *(name for name in found if name not in SERVERS)]
