"""The build hook: makes the compiled engine where Cython finds a C compiler, and else a wheel without it.

RMQ_ENGINE=pure leaves it out, RMQ_ENGINE=compiled makes it an error when it cannot be made.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("rmq", "protocol")
NAME = "_engine"


class EngineHook(BuildHookInterface[Any]):
    """What hatchling calls."""

    PLUGIN_NAME = "custom"
    _work = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is packed: add the engine, or lay it beside its source (`pip install -e`)."""
        if self.target_name != "wheel":
            return
        self._work = tempfile.mkdtemp(prefix="rmq-engine-")
        built = engine_for_wheel(Path(self.root), Path(self._work), self.app.display_warning)
        if built is None:
            return
        if version == "editable":
            place = Path(self.root, PACKAGE, built.name)
            place.unlink(missing_ok=True)  # a process may have the old one mapped: never write into that
            shutil.copy(built, place)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(built)] = (PACKAGE / built.name).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After it: nothing stays but the wheel."""
        shutil.rmtree(self._work, ignore_errors=True)


def engine_for_wheel(root: Path, work: Path, warn: Callable[[str], Any]) -> Path | None:
    """The extension module as RMQ_ENGINE wants it, built in the folder `work`; None: no engine."""
    wanted = os.environ.get("RMQ_ENGINE", "auto")
    if wanted == "pure":
        return None
    try:
        return compile_engine(root, work)
    except (Exception, SystemExit) as error:  # distutils has an error for each way to fail, and exits
        if wanted == "compiled":
            raise
        warn(
            f"rmq is built without its compiled engine ({type(error).__name__}: {error}): "
            "a C compiler and Python's headers (gcc, python3-dev) are needed for it"
        )
        return None


def compile_engine(root: Path, work: Path) -> Path:
    """The extension module, built in the folder `work`."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    source = root / PACKAGE / f"{NAME}.pyx"
    # The folder of the build differs each time, and must not be in the engine: two builds are the same.
    flags = [] if sys.platform == "win32" else ["-O2", "-g0", f"-ffile-prefix-map={work}=."]
    sources = [os.path.relpath(source, root)]
    extension = Extension(f"rmq.protocol.{NAME}", sources, extra_compile_args=flags)
    before = Path.cwd()
    os.chdir(root)
    try:
        modules = cythonize([extension], build_dir=str(work / "c"), quiet=True)
        command = Distribution({"name": "rmq-engine", "ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(work / "lib"), str(work / "temp")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    (built,) = (work / "lib").rglob(f"{NAME}.*")
    return built
