"""Which engine splits chunks and builds records: the pure one, in Python, or the compiled one beside it.

The compiled engine takes runs of plain sends as one value each (`SendRun`); all else goes the way of the pure
one, which is always there. It is an extension module, `_engine.pyx`, that the build makes where it finds a C
compiler. The environment variable RMQ_ENGINE chooses: `auto` (the compiled one where it is there), `pure`, or
`compiled`, which makes it an error when it is not there. A choice that cannot be had is told by `check`,
which brokers and clients call as they start: nobody expects an import to fail by a setting.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

from rmq.errors import ConfigError

SEAM: Final = 9
"""Both sides of the seam count it up when what they say to each other changes."""
VARIABLE: Final = "RMQ_ENGINE"
STALE: Final = "it was built from other sources, build it again"


def choose(wanted: str) -> ModuleType | None:
    """The compiled engine, or None for the pure one. Raises ConfigError when it is wanted and not there."""
    if wanted not in ("auto", "pure", "compiled"):
        raise ConfigError(VARIABLE, wanted, "auto, pure or compiled", "the environment")
    if wanted == "pure":
        return None
    module, reason = _found()
    if module is None and wanted == "compiled":
        raise ConfigError(VARIABLE, wanted, f"the compiled engine: {reason}", "the environment")
    return module


def _found() -> tuple[ModuleType | None, str]:
    """The compiled engine, or None and why."""
    try:
        module = importlib.import_module("rmq.protocol._engine")
    except ImportError as error:
        return None, str(error)
    return (module, "") if module.SEAM == SEAM else (None, STALE)


def shown() -> str:
    """The engine as a banner names it; a compiled one that is there and cannot be used is no silent loss."""
    unasked = os.environ.get(VARIABLE, "auto") == "auto"
    return f"{NAME}, not the compiled one: {STALE}" if unasked and _found()[1] == STALE else NAME


def _chosen() -> tuple[ModuleType | None, ConfigError | None]:
    try:
        return choose(os.environ.get(VARIABLE, "auto")), None
    except ConfigError as error:
        return None, error


def check() -> None:
    """Raises ConfigError when RMQ_ENGINE asks for what there is not."""
    if _problem is not None:
        raise _problem


compiled, _problem = _chosen()
"""The module of the compiled engine, or None; and why the choice cannot be had."""
NAME: Final = "pure" if compiled is None else "compiled"
