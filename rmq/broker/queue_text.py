"""The bodies that have a row for each queue of a topic, written as text: a topic may have thousands of them,
and anybody may ask again and again. The text is that of the bodies in rmq.protocol.bodies.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmq.protocol import json


class QueueRows:
    """Rows of queues -> values, as they stand in an `offsetTable`."""

    def __init__(self, broker_name: str) -> None:
        self.size = 0
        """Characters of the text."""
        self._broker = json.dumps(broker_name).decode()
        self._parts: list[str] = []

    def add(self, topic: str, values: Iterable[str]) -> None:
        """Add the queues of a topic from 0 on, each with its value as JSON."""
        head = f'{{"brokerName":{self._broker},"queueId":'
        tail = f',"topic":{json.dumps(topic).decode()}}}:'
        rows = [f"{head}{queue_id}{tail}{value}" for queue_id, value in enumerate(values)]
        self.size += sum(map(len, rows)) + len(rows)
        self._parts += rows

    def text(self) -> str:
        """The rows as one JSON object, with Java's bare keys."""
        return "{" + ",".join(self._parts) + "}"


def topic_offset(low: int, end: int, time_ms: int) -> str:
    """A TopicOffset."""
    return f'{{"lastUpdateTimestamp":{time_ms},"maxOffset":{end},"minOffset":{low}}}'


def offset_wrapper(end: int, offset: int, time_ms: int) -> str:
    """An OffsetWrapper."""
    return f'{{"brokerOffset":{end},"consumerOffset":{offset},"lastTimestamp":{time_ms}}}'


def topic_stats(rows: QueueRows) -> bytes:
    """A TopicStatsTable."""
    return f'{{"offsetTable":{rows.text()}}}'.encode()


def consume_stats(rows: QueueRows, tps: float) -> str:
    """A ConsumeStats."""
    return f'{{"consumeTps":{json.dumps_java(tps).decode()},"offsetTable":{rows.text()}}}'


def consume_stats_list(groups: Iterable[tuple[str, list[str]]], address: str, total_diff: int) -> bytes:
    """A ConsumeStatsList of each group's ConsumeStats."""
    lists = ",".join(f"{{{json.dumps(group).decode()}:[{','.join(stats)}]}}" for group, stats in groups)
    return (
        f'{{"brokerAddr":{json.dumps(address).decode()},"consumeStatsList":[{lists}],"totalDiff":{total_diff}}}'
    ).encode()


def time_spans(topic: str, broker_name: str, spans: Iterable[tuple[int, int, int, int]]) -> bytes:
    """A QueryConsumeTimeSpanBody of the queues of a topic from 0 on: first, last and consumed time, delay."""
    head = f'"messageQueue":{{"brokerName":{json.dumps(broker_name).decode()},"queueId":'
    tail = f',"topic":{json.dumps(topic).decode()}}}'
    rows = ",".join(
        f'{{"consumeTimeStamp":{consumed},"delayTime":{delay},"maxTimeStamp":{last},'
        f'{head}{queue_id}{tail},"minTimeStamp":{first}}}'
        for queue_id, (first, last, consumed, delay) in enumerate(spans)
    )
    return f'{{"consumeTimeSpanSet":[{rows}]}}'.encode()
