"""How a consumer takes part in its group."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from rmq.client.rebalance import Strategy
from rmq.errors import ConfigError

OnError = Literal["retry", "raise"]
"""What becomes of a handler's exception: the message is sent back, or that and the exception is let out."""


@frozen
class ConsumerOptions:
    """How a consumer takes part; see `Client.consumer`."""

    consume_from: str | int
    broadcasting: bool
    on_error: OnError
    strategy: Strategy
    max_reconsume_times: int | None = None
    auto_commit: bool = True

    def __attrs_post_init__(self) -> None:
        if isinstance(self.consume_from, str) and self.consume_from not in ("first", "last"):
            raise ConfigError("consume_from", self.consume_from, "'first', 'last' or a time in ms since 1970")
        if self.on_error not in ("retry", "raise"):
            raise ConfigError("on_error", self.on_error, "'retry' or 'raise'")
