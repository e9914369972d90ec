"""Members of groups: the content of a client's heartbeat, conflicts between members, and owners of client
ids.

Each queue of a topic is given to a single member of a consumer group, so a member whose subscription differs
from the other members' skips that queue's messages for all of them. Two clients with the same id take
themselves for a single client and consume the same queues. Both conflicts lose messages, and neither is an
error of the protocol. Both are found at a member's heartbeat, logged once while they last, counted, and
reported to the client in the response to its heartbeat.

Replies of request-reply go to the connection of a client id. A client chooses its id, so any client may claim
any id. An id belongs to the account whose client brought it first: no other account gets it while that client
is connected, nor within `KEPT_MS` of its last heartbeat, when replies may still be on their way. But the
first client may be an impostor, after a restart of the broker or with a predictable id. So while clients of
two accounts have the same id, no reply goes to either. Without access control all clients are of the account
"".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from attrs import evolve, field

from rmq.broker.filtering.subscription import VERSION_AHEAD_MS, is_tag_type
from rmq.message import retry_topic
from rmq.protocol.bodies import GetConsumerListByGroupResponseBody

if TYPE_CHECKING:
    from attrs import define

    from rmq.broker.config import Settings
    from rmq.protocol.bodies import ConsumerData, SubscriptionData
    from rmq.protocol.command import Command

    Table = dict[tuple[str, str], set["MemberConnection"]]
else:
    from rmq.lazy_attrs import define


class MemberConnection(Protocol):
    """The connection of a member: a client's, or that of a door's peer (`rmq.broker.doors`)."""

    @property
    def peer_address(self) -> str:
        """``host:port`` of the other side."""

    @property
    def local_address(self) -> str:
        """``host:port`` of this side."""

    @property
    def state(self) -> dict[str, Any]:
        """Values kept with the connection, such as its account."""

    @property
    def is_closed(self) -> bool:
        """True if the connection has ended."""

    @property
    def is_busy(self) -> bool:
        """True if much waits to be sent."""

    def notify(self, command: Command, frame: bytes = b"") -> None:
        """Send a request, soon; `frame` is its frame, where it is made already."""

    def reply(self, response: Command) -> None:
        """Send a response, soon."""

    def write(self, frame: bytes) -> None:
        """Send an encoded response, soon; the peer of a door gets none."""

    def close(self, reason: str = ...) -> None:
        """End the connection, soon."""

    def finish(self, reason: str) -> None:
        """Same as `close`; the peer sees the end right behind the last byte."""

    def reset_on_close(self) -> None:
        """Show the peer a broken connection when this one is closed."""


Terms = tuple[str | None, tuple[tuple[str, str], ...]]


@define(eq=False)
class Member:
    """A client in a group, over a connection, member since `since_ms` and heard last at `heard_ms`, in ms of
    a clock that only goes forward; `stamp_ms` is the wall time of the last heartbeat.

    `terms` is the part on which all members of a consumer group must agree: the message model, and topic and
    expression of each subscription, without the group's retries, since a member's kind decides whether it
    reads them.
    """

    client_id: str
    language: str
    version: int
    connection: MemberConnection
    heard_ms: int
    since_ms: int
    stamp_ms: int
    terms: Terms = (None, ())


@define(eq=False)
class ConsumerGroup:
    """The members of a consumer group and their last subscriptions."""

    name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscriptions: dict[str, SubscriptionData] = field(factory=dict)
    members: dict[MemberConnection, Member] = field(factory=dict)
    """By connection, in order of arrival; `put` and `remove` change it, and keep the tables below with it, so
    that a heartbeat costs the same in a group of any size."""
    _by_terms: dict[Terms, dict[MemberConnection, Member]] = field(factory=dict, init=False)
    _by_id: dict[str, dict[MemberConnection, Member]] = field(factory=dict, init=False)
    """The members with an id; the member that was heard last is last."""
    _ids_text: bytes = field(default=b"", init=False)

    def put(self, member: Member) -> Member | None:
        """Take a member that was heard now; return the member that its connection was before."""
        connection = member.connection
        before = self.members.get(connection)
        self.members[connection] = member
        if before is not None and before.terms != member.terms:
            self._forget_terms(before)
        if before is not None and before.client_id != member.client_id:
            self._forget_id(before)
        self._by_terms.setdefault(member.terms, {})[connection] = member
        if member.client_id not in self._by_id:
            self._by_id[member.client_id] = {}
            self._ids_text = b""
        alike = self._by_id[member.client_id]
        alike.pop(connection, None)
        alike[connection] = member
        return before

    def remove(self, connection: MemberConnection) -> Member:
        """Forget a member. Raises KeyError for the connection of none."""
        member = self.members.pop(connection)
        self._forget_terms(member)
        self._forget_id(member)
        return member

    def _forget_terms(self, member: Member) -> None:
        alike = self._by_terms[member.terms]
        del alike[member.connection]
        if not alike:
            del self._by_terms[member.terms]

    def _forget_id(self, member: Member) -> None:
        alike = self._by_id[member.client_id]
        del alike[member.connection]
        if not alike:
            del self._by_id[member.client_id]
            self._ids_text = b""

    def with_id(self, client_id: str) -> dict[MemberConnection, Member]:
        """The members with a client id; the member that was heard last is last."""
        return self._by_id.get(client_id, {})

    @property
    def client_ids(self) -> list[str]:
        """The client ids of the members, in order of arrival, each once.

        A client that comes again before its old connection ends would else get two shares of the queues.
        """
        return list(self._by_id)

    @property
    def ids_text(self) -> bytes:
        """The client ids as the body of a response, made once for each change of them: all members ask for it
        every 20 s."""
        if not self._ids_text:
            self._ids_text = GetConsumerListByGroupResponseBody(self.client_ids).to_json()
        return self._ids_text

    def that_differs(self, member: Member) -> Member | None:
        """A member that wants something else, or by another model; None without one."""
        for terms, members in self._by_terms.items():  # the second or third has another one
            if terms != member.terms:
                for other in members.values():
                    if other.connection is not member.connection:
                        return other
        return None

    @property
    def announced(self) -> tuple[object, ...]:
        """The subscriptions of its members, in a form to compare."""
        return self.consume_type, self.message_model, self.consume_from_where, self.subscriptions

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take a member's subscriptions; return whether the group's topics have changed."""
        latest = {subscription.topic: subscription for subscription in subscriptions}
        changed = latest.keys() != self.subscriptions.keys()
        for topic, subscription in latest.items():
            known = self.subscriptions.get(topic)
            if known is not None and subscription.sub_version <= known.sub_version:
                latest[topic] = known
        self.subscriptions = latest
        return changed


def with_past_versions(subscriptions: Iterable[SubscriptionData], now_ms: int) -> list[SubscriptionData]:
    """The same subscriptions; a version that is further ahead than `VERSION_AHEAD_MS` is made now's."""
    latest = now_ms + VERSION_AHEAD_MS
    return [one if one.sub_version <= latest else evolve(one, sub_version=now_ms) for one in subscriptions]


def terms_of(consumer: ConsumerData) -> Terms:
    """The `terms` of a Member, from its heartbeat."""
    retries = retry_topic(consumer.group_name)
    subscribed = (
        (
            one.topic,
            one.sub_string
            if is_tag_type(one.expression_type)
            else f"{one.expression_type}: {one.sub_string}",
        )
        for one in consumer.subscription_data_set
        if one.topic != retries
    )
    return consumer.message_model, tuple(sorted(subscribed))


REFUSED_MAX: Final = 1_000
"""Refused clients that are remembered; of more, some are logged again."""

log = logging.getLogger("rmq.broker")


class Conflicts:
    """The conflicts of the connected groups. `found` counts all that there ever were."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.found = 0
        # (group, "") or (group, client id) -> the connections that are told so
        self._subscriptions: Table = {}
        self._ids: Table = {}
        self._refused: set[tuple[str, MemberConnection]] = set()

    @property
    def subscriptions(self) -> int:
        """Groups whose members have different subscriptions now."""
        return len(self._subscriptions)

    @property
    def client_ids(self) -> int:
        """Client ids that are used by two connections of a group now."""
        return len(self._ids)

    def refusal(self, group: ConsumerGroup, member: Member) -> str | None:
        """Why a member may not join or stay, where such are rejected; of two, the one that came first may."""
        if not self._settings.broker.reject_subscription_conflicts:
            return None
        text, key = self._refusal(group, member), (group.name, member.connection)
        if text is None:
            self._refused.discard(key)
        elif key not in self._refused:
            if len(self._refused) >= REFUSED_MAX:
                self._refused.clear()
            self._refused.add(key)
            self.found += 1
            log.warning("%s; %s is refused", text, member.client_id)
        return text

    def _refusal(self, group: ConsumerGroup, member: Member) -> str | None:
        other = group.that_differs(member)
        if other is not None:
            return _differs(group, member, other)
        twin = _twin(group, member)
        return None if twin is None or member.since_ms < twin.since_ms else _is_twice(group, member, twin)

    def look(self, group: ConsumerGroup, member: Member) -> str:
        """Check a member after its heartbeat; return the warning for it, empty without a conflict."""
        other, twin = group.that_differs(member), _twin(group, member)
        texts = []
        if other is None:
            _forget(self._subscriptions, (group.name, ""), member)
        else:
            texts.append(_differs(group, member, other))
            self._note(self._subscriptions, (group.name, ""), member, texts[-1])
        if twin is None:
            _forget(self._ids, (group.name, member.client_id), member)
        else:
            texts.append(_is_twice(group, member, twin))
            self._note(self._ids, (group.name, member.client_id), member, texts[-1])
        return "; ".join(texts)

    def left(self, group: str, member: Member) -> None:
        """A member has gone, and its part in a conflict with it."""
        _forget(self._subscriptions, (group, ""), member)
        _forget(self._ids, (group, member.client_id), member)

    def _note(self, table: Table, key: tuple[str, str], member: Member, text: str) -> None:
        if key not in table:
            self.found += 1
            log.warning("%s", text)
        table.setdefault(key, set()).add(member.connection)


def _forget(table: Table, key: tuple[str, str], member: Member) -> None:
    noted = table.get(key)
    if noted is not None:
        noted.discard(member.connection)
        if not noted:
            del table[key]
            log.info("group %s %s: the conflict is over", *key)


def _twin(group: ConsumerGroup, member: Member) -> Member | None:
    """A living member with the same id; None without such a member.

    A client that has lost its connection may come back before the broker drops the old connection, so the
    older member of the two must have been heard since the newer member came.
    """
    for other in reversed(group.with_id(member.client_id).values()):
        if other.connection is not member.connection:
            if other.heard_ms <= member.since_ms:
                return None
            if other.since_ms <= member.since_ms or other.since_ms < member.heard_ms:
                return other
    return None


def _differs(group: ConsumerGroup, member: Member, other: Member) -> str:
    return (
        f"group {group.name}: {member.client_id} and {other.client_id} subscribe differently, "
        f"messages will be missed: {_text(member)} and {_text(other)}"
    )


def _text(member: Member) -> str:
    model, wants = member.terms
    return f"{dict(wants)} {model or ''}".rstrip()


def _is_twice(group: ConsumerGroup, member: Member, twin: Member) -> str:
    places = f"{member.connection.peer_address} and {twin.connection.peer_address}"
    return (
        f"group {group.name}: client id {member.client_id} is used by two clients, at {places}: they will "
        "consume the same queues; give each its own instance name"
    )


KEPT_MS: Final = 300_000
LEFT_MAX: Final = 1_000
"""Ids of clients that have left, for each account; of more, the oldest is free again."""


class ClientIds:
    """Client ids of producers, by their owners."""

    def __init__(self) -> None:
        self._live: dict[str, tuple[MemberConnection, str]] = {}
        self._others: dict[
            str, set[MemberConnection]
        ] = {}  # id -> connections of other accounts that want it, too
        self._left: dict[str, tuple[str, int]] = {}  # id -> account, until when
        self._left_by: dict[str, dict[str, None]] = {}  # account -> its ids in `_left`, oldest first

    def connection(self, client_id: str) -> MemberConnection | None:
        """The connection of a client that has producers; None without one, and while another account wants
        the id."""
        live = self._live.get(client_id)
        return None if live is None or client_id in self._others else live[0]

    def is_disputed(self, client_id: str) -> bool:
        """True if clients of several accounts are connected that have this id."""
        return client_id in self._others

    def owner(self, client_id: str, now_ms: int) -> str | None:
        """The account that an id belongs to; None when it is free."""
        live = self._live.get(client_id)
        if live is not None:
            return live[1]
        account, until = self._left.get(client_id, ("", -1))
        return account if now_ms < until else None

    def claim(self, client_id: str, connection: MemberConnection, account: str, now_ms: int) -> bool:
        """Give an id to a connection; False when the id belongs to another account, which keeps it,
        disputed."""
        if self.owner(client_id, now_ms) not in (None, account):
            self._others.setdefault(client_id, set()).add(connection)
            return False
        self._withdraw(client_id, connection)
        self._forget(client_id)
        self._live[client_id] = (connection, account)
        return True

    def leave(self, client_id: str, connection: MemberConnection, heard_ms: int) -> None:
        """A connection ends, or has no producers any more; `heard_ms` is when its last heartbeat came."""
        self._withdraw(client_id, connection)
        live = self._live.get(client_id)
        if live is None or live[0] is not connection:
            return
        del self._live[client_id]
        account = live[1]
        self._left[client_id] = (account, heard_ms + KEPT_MS)
        ids = self._left_by.setdefault(account, {})
        ids[client_id] = None
        if len(ids) > LEFT_MAX:
            self._forget(next(iter(ids)))

    def _withdraw(self, client_id: str, connection: MemberConnection) -> None:
        others = self._others.get(client_id)
        if others is not None:
            others.discard(connection)
            if not others:
                del self._others[client_id]

    def _forget(self, client_id: str) -> None:
        left = self._left.pop(client_id, None)
        if left is not None:
            ids = self._left_by[left[0]]
            del ids[client_id]
            if not ids:
                del self._left_by[left[0]]
