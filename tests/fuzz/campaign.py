"""A seeded run over all targets, in blocks: which target, how much, and what the process takes for it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Final

from attrs import define, field

from .targets import Fault, Surprises, Target

BLOCK: Final = 2_000
"""Frames of requests that one block gives; dearer targets get fewer, see SHARES."""
SHARES: Final[Mapping[str, tuple[int, int]]] = {
    # target: (blocks of 100, inputs of a block)
    "broker": (44, BLOCK),
    "broker with accounts": (34, BLOCK),
    "name server": (8, BLOCK),
    "filters": (4, BLOCK),
    "answers": (4, BLOCK),
    "replication": (2, 400),
    "accounts": (2, 60),
    "store files": (1, 30),
    "sockets": (1, 40),
}
ERA_BLOCKS: Final = 250
"""Blocks that one set of servers takes; then come fresh ones."""
WARM_FRAMES: Final = 100_000
"""What is remembered for good (caches, codecs) is there by then: from here on memory is compared."""


@define
class Result:
    """The record of a run: inputs of each target, seconds, and MiB of memory at the start, at most, at the
    end."""

    inputs: Counter[str] = field(factory=Counter)
    seconds: float = 0.0
    warm_mib: float = 0.0
    most_mib: float = 0.0
    last_mib: float = 0.0

    @property
    def total(self) -> int:
        """All inputs."""
        return sum(self.inputs.values())


def resident_mib() -> float:
    """Memory of this process that no file backs; of all platforms only Linux tells it."""
    try:
        text = Path("/proc/self/status").read_text("ascii")
    except OSError:
        return 0.0
    rows = dict(line.split(":", 1) for line in text.splitlines())
    return int(rows["RssAnon"].split()[0]) / 1024


def run(
    seed: int,
    frames: int,
    make: Callable[[int], Callable[[str], Target]],
    surprises: Surprises,
    *,
    shows: bool = False,
    warm: int = WARM_FRAMES,
) -> Result:
    """Give so many inputs. Raises Fault, which names seed and block: that block alone is tried again with
    the same seed, or the whole era when it needs what came before.
    """
    names = [name for name, (blocks, _) in SHARES.items() for _ in range(blocks)]
    result, begun, shown, block = Result(), time.monotonic(), 0.0, 0
    targets = make(0)
    while result.total < frames:
        if block and block % ERA_BLOCKS == 0:
            targets = make(block // ERA_BLOCKS)
        chance = Random(f"{seed}/{block}")
        name = chance.choice(names)
        count = min(SHARES[name][1], frames - result.total)
        try:
            targets(name).feed(count, chance)
            surprises.check()
        except Exception as error:
            raise Fault(f"{name}, seed {seed}, block {block}: {error!r}") from error
        result.inputs[name] += count
        block += 1
        if not result.warm_mib and result.total >= warm:
            result.warm_mib = resident_mib()
        result.last_mib = resident_mib()
        result.most_mib = max(result.most_mib, result.last_mib)
        if shows and time.monotonic() - shown > 1:
            shown = time.monotonic()
            _show(result.total, frames, shown - begun, result.last_mib)
    result.seconds = time.monotonic() - begun
    if shows:
        print(file=sys.stderr)
    return result


def _show(done: int, of: int, seconds: float, mib: float) -> None:
    bar = "#" * (30 * done // of)
    rate = done / max(seconds, 0.001)
    left = (of - done) / max(rate, 1)
    print(
        f"\r[{bar:<30}] {done:,} of {of:,} frames, {rate:,.0f}/s, {left:,.0f} s left, {mib:.0f} MiB",
        end="",
        file=sys.stderr,
        flush=True,
    )
