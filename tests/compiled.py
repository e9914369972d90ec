"""The compiled engine beside the pure one, for tests that hold the two against each other."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from types import ModuleType

import pytest

from rmq.protocol import engine


def compiled_engine() -> ModuleType | None:
    """The compiled engine: that of these sources, or of the installation that the tests run by."""
    name = "rmq.protocol._engine"
    installed = () if engine.compiled else importlib.metadata.distributions(name="rmq")
    for file in (file for one in installed for file in one.files or ()):
        if file.match("rmq/protocol/_engine.*.so"):
            spec = importlib.util.spec_from_file_location(name, file.locate())
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module if module.SEAM == engine.SEAM else None
    return engine.compiled


COMPILED = compiled_engine()
HAS_COMPILED = pytest.mark.skipif(COMPILED is None, reason="the compiled engine is not built")
