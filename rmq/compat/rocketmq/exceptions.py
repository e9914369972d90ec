"""Exceptions, under the names of `rocketmq.exceptions`.

Each has a text with the fault, and its `__cause__` is the error of the client (`rmq.RmqError`), if there is
one.
"""

from __future__ import annotations


class RocketMQException(Exception):
    """Base of all exceptions of this package; itself for a wrong setting, or a call at the wrong time."""


class NullPointerException(RocketMQException):
    """Never raised here: the name is for programs that catch it."""


class MallocFailed(RocketMQException):
    """Never raised here: the name is for programs that catch it."""


class ProducerException(RocketMQException):
    """Base of a producer's exceptions; itself for a message of a transaction that could not be stored."""


class ProducerStartFailed(ProducerException):
    """A producer has no name server address, or an invalid setting."""


class ProducerSendSyncFailed(ProducerException):
    """`send_sync` or `send_batch` failed."""


class ProducerSendOnewayFailed(ProducerException):
    """`send_oneway` or `send_oneway_orderly` failed before the message was sent."""


class ProducerSendOrderlyFailed(ProducerException):
    """`send_orderly` or `send_orderly_with_sharding_key` failed."""


class ProducerSendAsyncFailed(ProducerException):
    """A `send_async` failed: the argument of its exception callback. `error` is a code of RocketMQ's
    responses, -1 without a response; `type` is the class of the client's error; `file` and `line` are empty.
    """

    def __init__(self, msg: str, error: int = -1, file: str = "", line: int = 0, type: str = "") -> None:
        super().__init__(msg)
        self.error = error
        self.file = file
        self.line = line
        self.type = type


class ConsumerException(RocketMQException):
    """Base of a consumer's exceptions."""


class PushConsumerStartFailed(ConsumerException):
    """A push consumer has no subscription, no name server address, or an invalid setting."""


class PullConsumerStartFailed(ConsumerException):
    """A pull consumer has no name server address, or an invalid setting."""


class PullConsumerFetchMQFailed(ConsumerException):
    """The queues of the topic could not be found."""


class PullConsumerFetchMessageFailed(ConsumerException):
    """A pull failed."""
