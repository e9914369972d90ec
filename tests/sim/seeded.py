"""Chance in the simulation of real brokers: all of it comes of the seed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What takes its chance from the system takes it from a seed, and trio its order of tasks."""
    source, new, urandom = random.Random(seed), random.Random, os.urandom
    order, allowed = trio._core._run._r, trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING

    def chance(seed: Any = None) -> random.Random:
        return new(source.getrandbits(64) if seed is None else seed)

    state = order.getstate()
    order.seed(seed)
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    random.Random, os.urandom = chance, source.randbytes  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        random.Random, os.urandom = new, urandom  # type: ignore[misc]
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = allowed  # type: ignore[misc]
        order.setstate(state)
