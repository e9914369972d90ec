"""SigningPool: a pool whose requests carry the account's signature."""

from __future__ import annotations

from typing import Any

from rmq.protocol.command import Command
from rmq.protocol.signature import Credentials, signed
from rmq.remoting.pool import Pool


class SigningPool(Pool):
    """Signs what it sends; otherwise a Pool."""

    def __init__(self, credentials: Credentials, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._credentials = credentials

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        return await super().call(address, signed(command, self._credentials), timeout)

    async def notify(self, address: str, command: Command, timeout: float = 3.0) -> None:
        await super().notify(address, signed(command, self._credentials), timeout)
