"""The names that programs import from `rocketmq.client`."""

from __future__ import annotations

from rmq.compat.rocketmq.consts import MessageProperty
from rmq.compat.rocketmq.consumers import PullConsumer, PushConsumer
from rmq.compat.rocketmq.messages import Message, ReceivedMessage, RecvMessage
from rmq.compat.rocketmq.producers import Producer, hashing_queue_selector
from rmq.compat.rocketmq.transactions import TransactionMQProducer
from rmq.compat.rocketmq.values import (
    ConsumeStatus,
    MessageModel,
    SendResult,
    SendStatus,
    TransactionStatus,
)

__all__ = [
    "ConsumeStatus",
    "Message",
    "MessageModel",
    "MessageProperty",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RecvMessage",
    "SendResult",
    "SendStatus",
    "TransactionMQProducer",
    "TransactionStatus",
    "hashing_queue_selector",
]
