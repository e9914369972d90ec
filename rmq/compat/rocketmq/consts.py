"""MessageProperty: RocketMQ's own properties of messages, under the names of `rocketmq.consts`."""

from __future__ import annotations

from enum import Enum

from rmq import message


class MessageProperty(Enum):
    """Names of properties, for `ReceivedMessage.get_property`."""

    TRACE_SWITCH = message.PROPERTY_TRACE_SWITCH
    MSG_REGION = message.PROPERTY_MSG_REGION
    KEYS = message.PROPERTY_KEYS
    TAGS = message.PROPERTY_TAGS
    WAIT_STORE_MSG_OK = message.PROPERTY_WAIT_STORE
    DELAY_TIME_LEVEL = message.PROPERTY_DELAY_LEVEL
    RETRY_TOPIC = message.PROPERTY_RETRY_TOPIC
    REAL_TOPIC = message.PROPERTY_REAL_TOPIC
    REAL_QUEUE_ID = message.PROPERTY_REAL_QUEUE_ID
    TRANSACTION_PREPARED = message.PROPERTY_TRANSACTION_PREPARED
    PRODUCER_GROUP = message.PROPERTY_PRODUCER_GROUP
    MIN_OFFSET = message.PROPERTY_MIN_OFFSET
    MAX_OFFSET = message.PROPERTY_MAX_OFFSET
    BUYER_ID = "BUYER_ID"
    ORIGIN_MESSAGE_ID = message.PROPERTY_ORIGIN_MESSAGE_ID
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    RECONSUME_TIME = message.PROPERTY_RECONSUME_TIME
    UNIQ_CLIENT_MESSAGE_ID_KEYIDX = message.PROPERTY_UNIQUE_KEY
    MAX_RECONSUME_TIMES = message.PROPERTY_MAX_RECONSUME_TIMES
    CONSUME_START_TIMESTAMP = message.PROPERTY_CONSUME_START_TIME
