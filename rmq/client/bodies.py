"""Bodies of messages as values for an app's handler, and the treatment of invalid bodies."""

from __future__ import annotations

import logging
from typing import Any, Final, Literal, get_args

from attrs import define

from rmq.client.codec import Codec
from rmq.client.consume.retry import Retry
from rmq.errors import ConfigError, InvalidBody
from rmq.message import StoredMessage
from rmq.protocol.properties import reason_of

log = logging.getLogger(__name__)

OnInvalid = Literal["dead-letter", "retry", "raise"]
FIRST_INVALID: Final = 10
"""Number of a consumer's first bodies that may all be invalid before its model counts as wrong."""


def check_on_invalid(value: object) -> None:
    """Raises ConfigError unless the value is an `OnInvalid`."""
    if value not in get_args(OnInvalid):
        raise ConfigError("on_invalid", value, "'dead-letter', 'retry' or 'raise'")


@define(eq=False)
class Bodies:
    """Decoder of the bodies that one consumer gets."""

    codec: Codec[Any]
    group: str
    on_invalid: OnInvalid = "dead-letter"
    _invalid: int = 0
    _has_read: bool = False

    def read(self, message: StoredMessage) -> Any:
        """The value of a message's body.

        For an invalid body, by `on_invalid`: raises Retry, to the dead letters (another delivery would fail
        the same way); the codec's own error, so that the message is retried; or InvalidBody, which ends the
        consumer. When the first `FIRST_INVALID` bodies are all invalid, raises InvalidBody, so that a wrong
        model does not move a whole topic to the dead letters.
        """
        try:
            value = self.codec.decode(message.body)
        except Exception as error:
            self._refuse(message, error)
            raise
        self._has_read = True
        return value

    def _refuse(self, message: StoredMessage, error: Exception) -> None:
        reason = reason_of(error)
        if not self._has_read and message.reconsume_times == 0:
            self._invalid += 1
        text = f"{self.group}: the body of message {message.message_id} does not fit the model: {reason}"
        if self.on_invalid == "raise":
            raise InvalidBody(text) from error
        if self._invalid >= FIRST_INVALID and not self._has_read:
            raise InvalidBody(
                f"{text}; all {self._invalid} bodies so far were invalid: check the model and the topic. "
                "The consumer stops"
            ) from error
        if self.on_invalid == "dead-letter":
            log.error("%s", text)
            raise Retry(reason, delay_level=-1) from error
