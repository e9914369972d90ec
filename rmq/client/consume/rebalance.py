"""Rebalance: the division of queues among the members of a group. Pure.

A strategy is a function of (queues, clients, client): all queues of a topic, all client ids of the group, and
a client; it returns this client's queues. Every member computes it from the same sorted lists, so all must
use the same strategy; each gives the result of RocketMQ's strategy of that name, queue by queue. A client
that is not in the list gets no queues.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rmq.message import MessageQueue, average_share

if TYPE_CHECKING:
    from attrs import frozen
else:
    from rmq.lazy_attrs import frozen

T = TypeVar("T")

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def in_short(queues: Iterable[MessageQueue]) -> str:
    """Queues of one topic for a log: ``queues 0-3, 5 of broker-a and 0-1 of broker-b``."""
    by_broker: dict[str, list[int]] = {}
    for queue in sorted(queues):
        by_broker.setdefault(queue.broker_name, []).append(queue.queue_id)
    parts = []
    for broker, ids in by_broker.items():
        runs: list[list[int]] = []
        for one in ids:
            if runs and one == runs[-1][-1] + 1:
                runs[-1][1:] = [one]
            else:
                runs.append([one])
        texts = ("-".join(map(str, run)) for run in runs)
        parts.append(f"{', '.join(texts)} of {broker}")
    return f"queues {' and '.join(parts)}" if parts else "none"


def averagely(queues: Sequence[MessageQueue], clients: Sequence[str], client: str) -> list[MessageQueue]:
    """Equal shares of neighbouring queues; the first clients get the odd ones. RocketMQ's default."""
    if client not in clients:
        return []
    return [queues[place] for place in average_share(len(queues), len(clients), clients.index(client))]


def averagely_by_circle(
    queues: Sequence[MessageQueue], clients: Sequence[str], client: str
) -> list[MessageQueue]:
    """Queues are given to the clients in turn: with n clients, every n-th queue to the same one."""
    return list(queues[clients.index(client) :: len(clients)]) if client in clients else []


def consistent_hash(
    queues: Sequence[MessageQueue], clients: Sequence[str], client: str, *, points: int = 10
) -> list[MessageQueue]:
    """Clients and queues lie on a ring of MD5 hashes; a queue goes to the next client on it.

    Few queues move when a client joins or leaves; shares are less even. `points` is a client's number of
    places on the ring.
    """
    if client not in clients:
        return []
    ring = {_hash(f"{member}-{index}"): member for member in clients for index in range(points)}
    places = sorted(ring)
    return [queue for queue in queues if places and ring[_next(places, _hash(_text(queue)))] == client]


def _next(places: Sequence[int], place: int) -> int:
    return places[bisect_left(places, place) % len(places)]


def _hash(text: str) -> int:
    # As Java's ConsistentHashRouter: the first four bytes of the digest. `_text` is Java's toString of a
    # queue, which is its key in Java: members in Java and Python must compute the same shares.
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def machine_room(rooms: Iterable[str]) -> Strategy:
    """Only queues of brokers named ``room@name`` with a room of `rooms` are consumed, in equal shares. The
    odd queues at the end go to the first clients."""
    return partial(_machine_room, frozenset(rooms))


def _machine_room(
    rooms: frozenset[str], queues: Sequence[MessageQueue], clients: Sequence[str], client: str
) -> list[MessageQueue]:
    if client not in clients:
        return []
    here = [queue for queue in queues if _room_of(queue.broker_name) in rooms]
    index = clients.index(client)
    share = len(here) // len(clients)
    odd = here[share * len(clients) :]
    return here[index * share : (index + 1) * share] + odd[index : index + 1]


def _room_of(broker_name: str) -> str | None:
    room, *rest = broker_name.split("@")
    return room if len(rest) == 1 else None


def machine_room_nearby(
    inner: Strategy, broker_room: Callable[[MessageQueue], str], client_room: Callable[[str], str]
) -> Strategy:
    """Queues go, by `inner`, to the clients of their own room; queues of a room without clients go to all.

    `broker_room` and `client_room` return the rooms; an empty answer is a ValueError.
    """
    return partial(_machine_room_nearby, inner, broker_room, client_room)


def _machine_room_nearby(
    inner: Strategy,
    broker_room: Callable[[MessageQueue], str],
    client_room: Callable[[str], str],
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    client: str,
) -> list[MessageQueue]:
    if client not in clients:
        return []
    queues_in = _grouped(queues, broker_room)
    clients_in = _grouped(clients, client_room)
    home = client_room(client)
    result = inner(queues_in[home], clients_in[home], client) if home in queues_in else []
    # In the order of Java's TreeMap, as all members must go through the rooms alike.
    for room in sorted(queues_in.keys() - clients_in.keys()):
        result += inner(queues_in[room], clients, client)
    return result


def _grouped(items: Sequence[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise ValueError(f"no machine room for {item}")
        rooms.setdefault(room, []).append(item)
    return rooms


def by_config(mine: Iterable[MessageQueue]) -> Strategy:
    """The configured queues of this client, whatever the other clients do."""
    chosen = list(mine)
    return lambda queues, clients, client: list(chosen)


@frozen
class Change:
    """Change of an assignment of a topic: queues to begin with, queues to give up."""

    added: list[MessageQueue]
    removed: list[MessageQueue]


def difference(held: Iterable[MessageQueue], assigned: Iterable[MessageQueue]) -> Change:
    """The change from the held queues to the assigned queues, in sorted order."""
    # Sets, because a strategy of the application's own may name a queue twice, which must be pulled once.
    before, after = set(held), set(assigned)
    return Change(added=sorted(after - before), removed=sorted(before - after))


def plan(
    strategy: Strategy,
    queues: Iterable[MessageQueue],
    clients: Iterable[str],
    client: str,
    held: Iterable[MessageQueue],
) -> Change:
    """The steps of a member for a topic: sort queues and clients, as every member must, divide the queues by
    `strategy`, and compare with the held queues."""
    return difference(held, strategy(sorted(queues), sorted(set(clients)), client))
