"""What every test may use: the vectors taken from Apache RocketMQ 4.9.7, and the two engines."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from rmq.protocol import _frames, _json_header, engine

# A slow machine is no failure of the code; the same examples each time make a failure repeatable.
settings.register_profile("checks", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "checks"))


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the captured vectors; its README says what each file holds."""
    return Path(__file__).parent / "golden"


@cache
def _stdlib_frames() -> ModuleType:
    """A second copy of the frames' functions, made as if msgspec were not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RMQ_NO_MSGSPEC", "1")
        header = _second_copy(_json_header)
        assert header.msgspec is None
        patch.setitem(sys.modules, _json_header.__name__, header)
        return _second_copy(_frames)


def _second_copy(of: ModuleType) -> ModuleType:
    assert of.__file__ is not None
    spec = importlib.util.spec_from_file_location(f"{of.__name__}_stdlib", of.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["installed", "stdlib"])
def codec_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test twice: with the engine as installed, and with the one that has only the standard library."""
    if request.param == "stdlib":
        for name in set(engine.__all__) & set(vars(_stdlib_frames())):
            monkeypatch.setattr(engine, name, getattr(_stdlib_frames(), name))
    return str(request.param)
