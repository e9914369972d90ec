"""Choice of the engine that splits chunks and builds records: the pure engine in Python, or the compiled
engine.

The compiled engine takes each run of plain sends as a value (`SendRun`), and so each run of plain pulls
(`PullRun`) and of plain takes (`TakeRun`); everything else goes to the pure engine, which always exists. The
compiled engine is an extension module, `_engine.pyx`, which the build makes if it finds a C compiler. The
environment variable RMQ_ENGINE chooses: `auto` (compiled if available), `pure`, or `compiled`, for which a
missing extension is an error.
`check` reports an impossible choice; brokers and clients call it at their start, since an import should not
fail because of a setting.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

from rmq.errors import ConfigError

SEAM: Final = 17
"""Version of the interface to the compiled engine: both sides count it up when the interface changes."""
VARIABLE: Final = "RMQ_ENGINE"
STALE: Final = "it was built from other sources, build it again"


def choose(choice: str) -> ModuleType | None:
    """The compiled engine, or None for the pure engine. Raises ConfigError when RMQ_ENGINE requires a missing
    compiled engine."""
    if choice not in ("auto", "pure", "compiled"):
        raise ConfigError(VARIABLE, choice, "auto, pure or compiled", "the environment")
    if choice == "pure":
        return None
    module, reason = _found()
    if module is None and choice == "compiled":
        raise ConfigError(VARIABLE, choice, f"the compiled engine: {reason}", "the environment")
    return module


def _found() -> tuple[ModuleType | None, str]:
    """The compiled engine, or None and the reason."""
    try:
        module = importlib.import_module("rmq.protocol._engine")
    except ImportError as error:
        return None, str(error)
    return (module, "") if module.SEAM == SEAM else (None, STALE)


def shown() -> str:
    """The engine's name for a banner, with the reason why an existing compiled engine cannot be used."""
    unasked = os.environ.get(VARIABLE, "auto") == "auto"
    return f"{NAME}, not the compiled one: {STALE}" if unasked and _found()[1] == STALE else NAME


def _chosen() -> tuple[ModuleType | None, ConfigError | None]:
    try:
        return choose(os.environ.get(VARIABLE, "auto")), None
    except ConfigError as error:
        return None, error


def check() -> None:
    """Raises ConfigError when RMQ_ENGINE requires a missing engine."""
    if _problem is not None:
        raise _problem


compiled, _problem = _chosen()
"""The module of the compiled engine, or None; and the reason why the chosen engine is not available."""
NAME: Final = "pure" if compiled is None else "compiled"
