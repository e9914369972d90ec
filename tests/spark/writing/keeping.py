"""Brokers that keep idempotent sends, and the bodies that they have."""

from __future__ import annotations

from rmq.client import blocking

KEEPS = {"idempotentSendKeepTime": "3600000"}


def bodies(names: str, topic: str) -> list[str]:
    """The bodies of a topic, of all its brokers."""
    with blocking.connect(names) as client, client.pull_consumer("tests") as consumer:
        found = []
        for queue in consumer.message_queues(topic):
            at, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while at < end:
                messages = consumer.pull(queue, at).messages
                found += [message.body.decode() for message in messages]
                at = messages[-1].queue_offset + 1
        return found
