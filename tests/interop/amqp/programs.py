"""Programs of other AMQP clients."""

from __future__ import annotations

import pathlib
import subprocess

SECONDS = 120.0


def said(command: list[str], folder: pathlib.Path | None = None) -> str:
    """The last line that a program prints."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    lines = ran.stdout.strip().splitlines()
    assert lines, ran.stderr[-2_000:]
    return lines[-1]
