"""Unread messages: the backlog of a group in each queue, and the messages that a topic hides when it gets
fewer queues.

A topic that gets fewer queues to read (readQueueNums) keeps the messages of the removed queues in the log,
but no consumer is given these queues, and a pull of such a queue is refused. So the broker includes them in
each backlog, and warns an administrator before they are hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rmq.printable import counted

if TYPE_CHECKING:
    from rmq.broker.state import Tables
    from rmq.protocol.bodies import TopicConfig
    from rmq.store.store import Store

LOOKS_MAX: Final = 100_000
"""Pairs of a group and a queue that are looked at to answer one change of a topic: some 100 ms."""
GROUPS_NAMED: Final = 10
TOPICS_NAMED: Final = 10


def unread(store: Store, topic: str, queue_id: int, offset: int) -> int:
    """The number of remaining messages of a queue from `offset` on."""
    return max(0, store.max_offset(topic, queue_id) - max(0, offset, store.min_offset(topic, queue_id)))


def queue_end(store: Store, topic: TopicConfig) -> int:
    """The number after the highest queue of a topic that its table or its messages name."""
    return max(topic.read_queue_nums, topic.write_queue_nums, store.queue_end(topic.topic_name))


def kept_beyond(store: Store, topic: str, queues: int) -> Iterator[int]:
    """The queues from number `queues` on that hold messages, read or not."""
    for queue_id in range(queues, store.queue_end(topic)):
        if unread(store, topic, queue_id, 0):
            yield queue_id


def hidden_by(store: Store, tables: Tables, topic: str, queues: int) -> str:
    """Unread messages that a topic would hide with only so many queues to read, as text; empty for none.

    Of a topic that no group reads every message counts.
    """
    beyond = list(kept_beyond(store, topic, queues))
    groups = sorted(tables.offsets.groups_of(topic) | tables.clients.groups_of(topic))
    if not beyond:
        return ""
    if not groups:
        count = sum(unread(store, topic, queue_id, 0) for queue_id in beyond)
        return f"{counted(count, 'message')} in {_named(beyond)} that no group has read"
    texts, looks = [], 0
    for group in groups:
        offsets = tables.offsets.of(group, topic)
        left = {queue_id: unread(store, topic, queue_id, offsets.get(queue_id, 0)) for queue_id in beyond}
        with_some = [queue_id for queue_id, count in left.items() if count]
        if with_some:
            unread_now = counted(sum(left.values()), "unread message")
            texts.append(f"{unread_now} of group {group} in {_named(with_some)}")
        looks += len(beyond)
        if len(texts) >= GROUPS_NAMED or looks >= LOOKS_MAX:
            texts.append("maybe those of more groups")
            break
    return ", ".join(texts) if texts and texts != ["maybe those of more groups"] else ""


def hidden_now(store: Store, tables: Tables) -> dict[str, str]:
    """The topics that hide unread messages, with the numbers and queues, as text; at most `TOPICS_NAMED`. The
    lag of a group includes its messages in such queues."""
    found: dict[str, str] = {}
    for name, topic in tables.topics.table.items():
        if store.queue_end(name) <= topic.read_queue_nums or tables.topics.is_system(name):
            continue
        beyond = list(kept_beyond(store, name, topic.read_queue_nums))
        if beyond and not (tables.offsets.groups_of(name) or tables.clients.groups_of(name)):
            count = sum(unread(store, name, queue_id, 0) for queue_id in beyond)
            found[name] = f"{counted(count, 'message')} in {_named(beyond)}"
            if len(found) >= TOPICS_NAMED:
                break
    return found


def _named(queues: list[int]) -> str:
    """Queues as text: "queue 3", "queues 2 to 7", "6 queues between 2 and 9"."""
    first, last = queues[0], queues[-1]
    if first == last:
        return f"queue {first}"
    if len(queues) == last - first + 1:
        return f"queues {first} to {last}"
    return f"{len(queues)} queues between {first} and {last}"
