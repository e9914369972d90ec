"""The command line of the examples: the address of a name server, and the event loop to run on."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable

import anyio


def run(main: Callable[[str], Awaitable[None]]) -> None:
    """Run `main(namesrv)` on the event loop of `--loop`. In an application with one loop this line is
    `trio.run(main, namesrv)` or `asyncio.run(main(namesrv))`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("namesrv", nargs="?", default="127.0.0.1:9876", help="HOST:PORT of a name server")
    parser.add_argument("--loop", choices=("trio", "asyncio"), default="trio")
    given = parser.parse_args()
    anyio.run(main, given.namesrv, backend=given.loop)
