"""SigningPool: a pool whose requests carry the account's signature and proof."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rmq.protocol.command import Command
from rmq.protocol.proof import Prover
from rmq.protocol.signature import Credentials
from rmq.remoting.pool import Pool


class SigningPool(Pool):
    """Signs what it sends, each connection as a session of its own; otherwise a Pool."""

    def __init__(self, credentials: Credentials, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._credentials = credentials

    def signer(self) -> Callable[[Command], Command] | None:
        """A new session."""
        return Prover(self._credentials, lambda: time.time_ns() // 1_000_000)
