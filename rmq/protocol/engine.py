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

SEAM: Final = 7
"""Both sides of the seam count it up when what they say to each other changes."""
VARIABLE: Final = "RMQ_ENGINE"


def choose(wanted: str) -> ModuleType | None:
    """The compiled engine, or None for the pure one. Raises ConfigError when it is wanted and not there."""
    if wanted not in ("auto", "pure", "compiled"):
        raise ConfigError(VARIABLE, wanted, "auto, pure or compiled", "the environment")
    if wanted == "pure":
        return None
    try:
        module = importlib.import_module("rmq.protocol._engine")
        reason = "" if module.SEAM == SEAM else "it was built from other sources, build it again"
    except ImportError as error:
        reason = str(error)
    if not reason:
        return module
    if wanted == "compiled":
        raise ConfigError(VARIABLE, wanted, f"the compiled engine: {reason}", "the environment")
    return None


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
