"""The running engine: RMQ_ENGINE, and the available engines."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from rmq.errors import ConfigError
from rmq.protocol import engine

NAME = "rmq.protocol._engine"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A compiled engine of these sources."""
    module = ModuleType(NAME)
    module.SEAM = engine.SEAM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


def test_the_compiled_one_runs_where_it_is_there_unless_the_pure_one_is_wanted(built: ModuleType) -> None:
    assert engine.choose("auto") is built
    assert engine.choose("compiled") is built
    assert engine.choose("pure") is None


def test_the_pure_one_runs_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NAME, None)  # import_module raises ModuleNotFoundError
    assert engine.choose("auto") is None
    assert engine.choose("pure") is None
    with pytest.raises(ConfigError, match=r"RMQ_ENGINE.*compiled.*_engine"):
        engine.choose("compiled")


def test_one_that_was_built_from_other_sources_counts_as_none(built: ModuleType) -> None:
    built.SEAM = engine.SEAM - 1  # type: ignore[attr-defined]
    assert engine.choose("auto") is None
    with pytest.raises(ConfigError, match="it was built from other sources, build it again"):
        engine.choose("compiled")


def test_another_word_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"RMQ_ENGINE.*fast.*auto, pure or compiled"):
        engine.choose("fast")
