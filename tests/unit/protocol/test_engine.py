"""The choice of the engine, and the message about a choice that is not available."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import rmq
from rmq.broker.__main__ import main
from rmq.errors import ConfigError
from rmq.protocol import engine


@pytest.mark.parametrize("wanted", ["fast", "", "Pure"])
def test_a_wrong_choice_is_refused_by_broker_and_client_and_not_by_the_import(
    wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(engine.VARIABLE, wanted)
    compiled, problem = engine._chosen()
    assert compiled is None
    monkeypatch.setattr(engine, "_problem", problem)

    with pytest.raises(ConfigError, match=r"RMQ_ENGINE = .*expected auto, pure or compiled"):
        rmq.connect("127.0.0.1:9876")
    assert main([]) == 2
    assert capsys.readouterr().err == f"rmq broker: {problem}\n"


def test_the_compiled_engine_is_missed_only_by_who_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> object:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(engine.importlib, "import_module", gone)
    assert engine.choose("auto") is engine.choose("pure") is None
    with pytest.raises(ConfigError, match=r"RMQ_ENGINE = 'compiled'.*no rmq\.protocol\._engine"):
        engine.choose("compiled")


def test_a_banner_tells_of_an_engine_that_was_built_from_other_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine.importlib, "import_module", lambda name: SimpleNamespace(SEAM=engine.SEAM - 1))
    monkeypatch.setattr(engine, "NAME", "pure")
    monkeypatch.setenv("RMQ_ENGINE", "auto")
    assert engine.shown() == "pure, not the compiled one: it was built from other sources, build it again"
    monkeypatch.setenv("RMQ_ENGINE", "pure")
    assert engine.shown() == "pure"
    monkeypatch.setattr(engine.importlib, "import_module", lambda name: SimpleNamespace(SEAM=engine.SEAM))
    monkeypatch.setenv("RMQ_ENGINE", "auto")
    assert engine.shown() == "pure"
