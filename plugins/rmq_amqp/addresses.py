"""Addresses: the names of queues and topics as clients of AMQP use them, and the topics behind them."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from rmq.errors import InvalidName, InvalidType
from rmq.message import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, validate_topic
from rmq_amqp.conditions import INVALID_FIELD, Refused

QUEUE: Final = 0
TOPIC: Final = 1
_PREFIXES: Final = {"queue://": QUEUE, "topic://": TOPIC}


def destination(address: str, capabilities: list[str]) -> tuple[int, str]:
    """The kind of an address, QUEUE or TOPIC, and the topic behind the address.

    Raises Refused for a name that applications may not use.
    """
    kind = TOPIC if "topic" in capabilities else QUEUE
    for prefix, meaning in _PREFIXES.items():
        if address.startswith(prefix):
            kind, address = meaning, address[len(prefix) :]
    return kind, topic_of(address)


def topic_of(name: str) -> str:
    """The topic of a queue's or topic's name: the name itself, with characters that RocketMQ does not allow
    percent-encoded. Raises Refused."""
    topic = encoded(name)
    try:
        validate_topic(topic)
    except (InvalidName, InvalidType) as error:
        raise Refused(INVALID_FIELD, f"{error}; choose another name for the queue or topic") from None
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX):
        raise Refused(INVALID_FIELD, f"{topic} is a topic of the system; choose another name")
    return topic


def encoded(name: str) -> str:
    """A name in the characters that RocketMQ allows."""
    return quote(name, safe="%|").replace(".", "%2E").replace("~", "%7E")
