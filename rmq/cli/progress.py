"""Progress of long work, on the error output, and only when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Step = Callable[[int], None]
"""Told how many more are done."""


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Step]:
    """A bar for `total` things (None: nobody knows how many). It is gone when the block ends."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
