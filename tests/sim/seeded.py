"""Chance in the simulation of real brokers: all of it comes of the seed."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import trio


def _ours() -> list[ModuleType]:
    """The modules of rmq, which may have imported the class by name."""
    return [module for name, module in sys.modules.items() if name.partition(".")[0] == "rmq"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Take all randomness of the system from a seed, and the order of trio's tasks."""
    source, new, urandom = random.Random(seed), random.Random, os.urandom
    order, allowed = trio._core._run._r, trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING

    def chance(seed: Any = None) -> random.Random:
        return new(source.getrandbits(64) if seed is None else seed)

    state = order.getstate()
    order.seed(seed)
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    places = [random, *(module for module in _ours() if module.__dict__.get("Random") is new)]
    os.urandom = source.randbytes
    for place in places:
        place.Random = chance  # type: ignore[attr-defined]
    try:
        yield
    finally:
        os.urandom = urandom
        for place in places:
            place.Random = new  # type: ignore[attr-defined]
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = allowed  # type: ignore[misc]
        order.setstate(state)
