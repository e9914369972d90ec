"""Connected clients: producers and consumers by group, and the subscriptions of the consumers of a group.

Clients send them by heartbeat every 30 s. When the members or the topics of a consumer group change, all its
members are notified at once, so that they rebalance without waiting for their next round. A member that was
silent for two minutes is removed; a member whose connection ends is removed at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from rmq.broker.filtering.subscription import is_tag_type
from rmq.broker.membership.heartbeat_json import read_heartbeat
from rmq.broker.membership.known_subscriptions import KnownSubscriptions
from rmq.broker.membership.members import (
    ClientIds,
    Conflicts,
    ConsumerGroup,
    Member,
    terms_of,
    with_past_versions,
)
from rmq.broker.membership.notices import Notices
from rmq.errors import InvalidName, for_code
from rmq.message import TEXT_LENGTH_MAX, retry_topic, validate_group, validate_text
from rmq.plugin import account_of
from rmq.printable import printable
from rmq.protocol import bodies
from rmq.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmq.protocol.codes import TOPIC_UNIT_SUB, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    WARNING,
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetProducerConnectionListRequestHeader,
    UnregisterClientRequestHeader,
)
from rmq.protocol.json import count_values
from rmq.server.log_limit import leaves_out
from rmq.shares import Holders, Shares

if TYPE_CHECKING:
    from rmq.broker.config import Settings
    from rmq.broker.filtering.filters import FilterTable
    from rmq.broker.membership.members import MemberConnection
    from rmq.broker.tables.groups import Groups
    from rmq.broker.tables.topics import Topics

SILENT_MS: Final = 120_000
SCAN_MS: Final = 10_000
LOOKS: Final = 2_000
"""Connections that one call of `expire` looks at: some 5 ms of work."""
GROUPS_OF_A_CONNECTION: Final = 4_096
SUBSCRIPTIONS_OF_A_HEARTBEAT: Final = 4_096
GROUP_NAME: Final = b'"groupName"'
"""Each group of a heartbeat has it; in a text it would be escaped."""
VALUES_OF_A_GROUP: Final = 40
"""JSON values for each group that a heartbeat may have: six of its own, ten of each of its two subscriptions,
and some tags."""
GROUPS_SAID: Final = 5
"""Groups of a heartbeat that have a line each in the log: writing it costs as much as all else."""

DISCONNECTED: Final = "%s of %s group %s is disconnected"
SUBSCRIBES: Final = "consumer %s of group %s at %s subscribes to %s"

log = logging.getLogger("rmq.broker")


class Clients:
    """The tables of connected clients. `clock` (seconds, only forward) decides which clients are silent. The
    wall time of requests may be set, and is only shown."""

    def __init__(
        self,
        settings: Settings,
        *,
        groups: Groups,
        topics: Topics,
        filters: FilterTable,
        clock: Callable[[], float],
        on_deadline: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.silent_ms = SILENT_MS
        self._looks: Iterator[MemberConnection] = iter(())  # connections that `expire` has still to look at
        self._longest = 0  # when the member that has been silent for longest was heard
        self._groups = groups
        self._topics = topics
        self._filters = filters
        self._consumers: dict[str, ConsumerGroup] = {}
        self.known_subscriptions = KnownSubscriptions(self._consumers, clock)
        self.notices = Notices(settings, groups, self._consumers, clock=clock, on_deadline=on_deadline)
        self._producers: dict[str, dict[MemberConnection, Member]] = {}
        self._of_connection: dict[MemberConnection, set[tuple[str, str]]] = {}
        self.shares = Shares(settings.broker.max_group_members)
        self._holders: dict[MemberConnection, Holders] = {}  # of those with memberships
        self._ids = ClientIds()
        self.conflicts = Conflicts(settings)

    def handlers(self) -> dict[int, Callable[[Command, Any, int], Command | None]]:
        """The handlers of this part, by request code."""
        return {
            RequestCode.HEART_BEAT: self._on_heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._on_unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._on_consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self._on_check,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._on_consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._on_producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self._on_all_producers,
        }

    # --- the tables ---

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """A consumer group that has members, or None."""
        return self._consumers.get(group)

    def consumer_ids(self, group: str) -> list[str]:
        """The client ids of a consumer group, in order of arrival, each once."""
        known = self._consumers.get(group)
        return [] if known is None else known.client_ids

    def only_member(self, group: str, client_id: str) -> Member | None:
        """The member of a consumer group that has a client id; None when several connections have it."""
        known = self._consumers.get(group)
        members = () if known is None else known.with_id(client_id).values()
        return next(iter(members)) if len(members) == 1 else None

    def producers(self, group: str) -> list[Member]:
        """The members of a producer group, in order of arrival."""
        return list(self._producers.get(group, {}).values())

    def counts(self) -> list[tuple[str, str, int]]:
        """(producer or consumer, group, members) of all groups that have members."""
        consumers = [("consumer", name, len(group.members)) for name, group in self._consumers.items()]
        return consumers + [("producer", name, len(members)) for name, members in self._producers.items()]

    def producer_connection(self, client_id: str) -> MemberConnection | None:
        """The connection of a client that has producers; None without one, and while clients of several
        accounts have the id."""
        return self._ids.connection(client_id)

    def is_disputed(self, client_id: str) -> bool:
        """True if clients of several accounts are connected that have this id."""
        return self._ids.is_disputed(client_id)

    def is_anothers(self, client_id: str, connection: MemberConnection) -> bool:
        """True if a client id belongs to another account than the one that the connection works for."""
        return self._ids.owner(client_id, self._ms()) not in (None, account_of(connection))

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The subscription of a group to a topic, or None."""
        known = self._consumers.get(group)
        return None if known is None else known.subscriptions.get(topic)

    def is_subscribed(self, group: str, topic: str) -> bool:
        """False only when the group has members and none of them wants the topic."""
        known = self._consumers.get(group)
        return known is None or not known.subscriptions or topic in known.subscriptions

    def groups_of(self, topic: str) -> set[str]:
        """The connected consumer groups that subscribe to a topic."""
        return {name for name, group in self._consumers.items() if topic in group.subscriptions}

    # --- coming ---

    def heartbeat(
        self, data: HeartbeatData, connection: MemberConnection, language: str, version: int, now: int
    ) -> set[str]:
        """Take a client's heartbeat; return the consumer groups that it changed, whose members were notified.
        Creates the retry topic of each group.

        Raises ResponseError for an impossible group name and past `GROUPS_OF_A_CONNECTION` groups, with
        nothing changed; StoreError when the topic cannot be saved.
        """
        self._check(data, connection)
        if connection.is_closed:
            return set()
        stamp_ms, now = now, self._ms()
        members = [
            Member(
                data.client_id,
                language,
                version,
                connection,
                now,
                _since(self._consumers.get(consumer.group_name), data.client_id, connection, now),
                stamp_ms,
                terms_of(consumer),
            )
            for consumer in data.consumer_data_set
        ]
        self._admit(data, members)
        changed: dict[str, Member] = {}
        for consumer, member in zip(data.consumer_data_set, members, strict=True):
            self._make_retry_topic(consumer, self._settings.holders_of(connection))
            if self._join(consumer, member):
                changed[consumer.group_name] = member
                self.notices.changed(consumer.group_name)
        if changed:
            _log_joined(changed)
        replaced = []
        for producer in data.producer_data_set:
            member = Member(data.client_id, language, version, connection, now, now, stamp_ms)
            members_of = self._producers.setdefault(producer.group_name, {})
            before = members_of.get(connection)
            if _is_renamed(before, member, producer.group_name):
                replaced.append(before)
            members_of[connection] = member
            self._remember(connection, "producer", producer.group_name)
        if replaced:
            self._release(connection, replaced)
        if data.producer_data_set:
            self._claim(data.client_id, connection, now)
        return set(changed)

    def _release(self, connection: MemberConnection, replaced: Iterable[Member]) -> None:
        """Forget client ids of producers that no group has any longer."""
        groups = [group for kind, group in self._of_connection[connection] if kind == "producer"]
        used = {self._producers[group][connection].client_id for group in groups}
        for member in replaced:
            if member.client_id not in used:
                self._ids.leave(member.client_id, connection, member.heard_ms)

    def _claim(self, client_id: str, connection: MemberConnection, now: int) -> None:
        account = account_of(connection)
        if not self._ids.claim(client_id, connection, account, now):
            log.warning(
                "client id %s belongs to account %s, and %s of account %s has it too: no answer to a request"
                " of either is passed on until one of them leaves or has another id",
                client_id,
                self._ids.owner(client_id, now) or "-",
                connection.peer_address,
                account or "-",
            )

    def check_size(self, body: bytes) -> None:
        """Raises ResponseError for the body of a heartbeat that would take the loop too long, before it is
        decoded: that costs some 5 us a group, and 15 more if the group is new.
        """
        most = self._settings.broker.max_groups_of_heartbeat
        count, values = body.count(GROUP_NAME), count_values(body)
        if count > most:
            what = f"{count} groups, maxGroupsOfHeartbeat of this broker is {most}"
        elif values > most * VALUES_OF_A_GROUP:
            what = f"{values} values of JSON, {most * VALUES_OF_A_GROUP} are the most"
            what += f" ({VALUES_OF_A_GROUP} for each group of maxGroupsOfHeartbeat)"
        else:
            return
        raise for_code(
            ResponseCode.SYSTEM_ERROR,
            f"this heartbeat has {what}: give some of its producers and consumers a client of their own "
            "(an instance name), or raise the setting",
        )

    def _check(self, data: HeartbeatData, connection: MemberConnection) -> None:
        subscription_count = sum(len(consumer.subscription_data_set) for consumer in data.consumer_data_set)
        if subscription_count > SUBSCRIPTIONS_OF_A_HEARTBEAT:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"client {printable(data.client_id[:TEXT_LENGTH_MAX])} names {subscription_count} "
                f"subscriptions in one heartbeat, at most {SUBSCRIPTIONS_OF_A_HEARTBEAT} are allowed",
            )
        try:
            validate_text("client id", data.client_id)
            for producer in data.producer_data_set:
                validate_text("producer group", producer.group_name)
            for consumer in data.consumer_data_set:
                validate_group(consumer.group_name)
                for subscription in consumer.subscription_data_set:
                    validate_text("topic", subscription.topic)
        except InvalidName as error:
            who = printable(data.client_id[:TEXT_LENGTH_MAX])
            raise for_code(ResponseCode.SYSTEM_ERROR, f"client {who}: {error}") from None
        names = {("consumer", consumer.group_name) for consumer in data.consumer_data_set}
        names |= {("producer", producer.group_name) for producer in data.producer_data_set}
        mine = self._of_connection.get(connection, set())
        count = len(names | mine)
        if count > GROUPS_OF_A_CONNECTION:
            raise for_code(
                ResponseCode.SYSTEM_ERROR,
                f"client {data.client_id} names {count} groups on one connection, "
                f"at most {GROUPS_OF_A_CONNECTION} are allowed",
            )
        self.shares.most = self._settings.broker.max_group_members
        new = count - len(mine)
        if new and (full := self.shares.full(self._holders_of(connection), new)):
            raise for_code(
                ResponseCode.SYSTEM_BUSY,
                f"client {data.client_id} is refused in {new} groups: of the members of groups "
                f"(maxGroupMembers) {full}",
            )

    def _holders_of(self, connection: MemberConnection) -> Holders:
        """The holders under which the connection's memberships count: its holders at its first membership."""
        return self._holders.get(connection) or self._settings.holders_of(connection)

    def _admit(self, data: HeartbeatData, members: list[Member]) -> None:
        """Refuse the client as a whole if it does not fit the members of any of its groups."""
        for consumer, member in zip(data.consumer_data_set, members, strict=True):
            group = self._consumers.get(consumer.group_name)
            refusal = None if group is None else self.conflicts.refusal(group, member)
            if refusal is not None:
                self._leave(member.connection, "consumer", consumer.group_name)
                raise for_code(
                    ResponseCode.SYSTEM_ERROR, f"{refusal}; rejectSubscriptionConflicts is set on the broker"
                )

    def warning(self, data: HeartbeatData, connection: MemberConnection) -> str:
        """The warning to a client after its heartbeat; empty without one."""
        texts = []
        for consumer in data.consumer_data_set:
            group = self._consumers[consumer.group_name]
            texts.append(self.conflicts.look(group, group.members[connection]))
            if consumer.unit_mode:
                texts.append(f"group {group.name}: unit mode is ignored by this broker")
        if data.producer_data_set and self.is_anothers(data.client_id, connection):
            texts.append(
                f"client id {data.client_id} belongs to a client of another account, and no answer to a "
                "request of either is passed on; give each client its own instance name"
            )
        return "; ".join(filter(None, texts))

    def _make_retry_topic(self, consumer: ConsumerData, maker: Holders) -> None:
        config = self._groups.get(consumer.group_name, maker, logs=False)
        if config is not None:
            sys_flag = TOPIC_UNIT_SUB if consumer.unit_mode else 0
            topic = retry_topic(consumer.group_name)
            self._topics.foresee_retry(topic, config.retry_queue_nums, sys_flag, maker=maker)

    def _join(self, consumer: ConsumerData, member: Member) -> bool:
        known = self._consumers.get(consumer.group_name)
        announced = None if known is None else known.announced
        group = known or ConsumerGroup(consumer.group_name)
        self._consumers[group.name] = group
        group.consume_type = consumer.consume_type
        group.message_model = consumer.message_model
        group.consume_from_where = consumer.consume_from_where
        before = group.put(member)
        if _is_renamed(before, member, group.name):
            self.conflicts.left(group.name, before)
        is_new = before is None
        subscriptions = with_past_versions(consumer.subscription_data_set, member.stamp_ms)
        is_changed = group.subscribe(subscriptions)
        self._filters.register(group.name, subscriptions, self._holders_of(member.connection))
        self._remember(member.connection, "consumer", group.name)
        if group.announced != announced:
            self.known_subscriptions.changed(group.name)
        if is_new and consumer.unit_mode:
            log.warning("group %s: unit mode is ignored", group.name)
        return is_new or is_changed

    def _remember(self, connection: MemberConnection, kind: str, group: str) -> None:
        mine = self._of_connection.setdefault(connection, set())
        if (kind, group) not in mine:
            mine.add((kind, group))
            self.shares.add(self._holders.setdefault(connection, self._holders_of(connection)))

    # --- leaving ---

    def unregister(
        self,
        connection: MemberConnection,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        """Remove a client from a producer and a consumer group, and notify the remaining consumers."""
        for kind, group in (("producer", producer_group), ("consumer", consumer_group)):
            if group is not None and self._leave(connection, kind, group):
                log.info("%s leaves %s group %s", connection.peer_address, kind, group)

    def on_close(self, connection: MemberConnection) -> None:
        """The connection has ended: its clients leave all their groups."""
        for kind, group in sorted(self._of_connection.get(connection, ())):
            self._leave(connection, kind, group, is_cut=True)
            if not leaves_out(log, DISCONNECTED):
                log.info(DISCONNECTED, connection.peer_address, kind, group)

    def expire(self, now: int) -> int:
        """Drop members silent for `silent_ms`, and close connections with no other member left. A call looks
        at `LOOKS` connections; returns when to come again, at once for the next ones; in ms of `clock`."""
        if not length_hint(self._looks):
            self.known_subscriptions.expire(now)
            self._looks, self._longest = iter(list(self._of_connection)), now
        for connection in islice(self._looks, LOOKS):
            memberships = self._of_connection.get(connection, ())  # none: it has left since
            heard = {one: self._members(*one)[connection].heard_ms for one in memberships}
            silent = [one for one, heard_ms in heard.items() if now - heard_ms > self.silent_ms]
            for kind, group in sorted(silent):
                log.warning("%s of %s group %s is silent", connection.peer_address, kind, group)
                self._leave(connection, kind, group)
            if silent and connection not in self._of_connection:
                connection.close("no heartbeat")
            self._longest = min(self._longest, *(ms for one, ms in heard.items() if one not in silent), now)
        if length_hint(self._looks):
            return now
        return max(now + SCAN_MS, self._longest + self.silent_ms + 1)

    def _ms(self) -> int:
        return round(self._clock() * 1000)

    def _members(self, kind: str, group: str) -> dict[MemberConnection, Member]:
        return self._consumers[group].members if kind == "consumer" else self._producers[group]

    def _leave(self, connection: MemberConnection, kind: str, group: str, *, is_cut: bool = False) -> bool:
        """Take a connection out of a group; return whether it was a member. An empty group is removed;
        `is_cut`: the member may come back."""
        memberships = self._of_connection.get(connection, set())
        if (kind, group) not in memberships:
            return False
        memberships.discard((kind, group))
        self.shares.give(self._holders[connection])
        if not memberships:
            del self._of_connection[connection]
            del self._holders[connection]
        members = self._members(kind, group)
        member = self._consumers[group].remove(connection) if kind == "consumer" else members.pop(connection)
        if kind == "consumer":
            self.conflicts.left(group, member)
        elif is_cut or not self._is_producer(connection, member.client_id):
            self._ids.leave(member.client_id, connection, member.heard_ms)
        if kind == "consumer" and members:
            self.notices.changed(group)
        elif kind == "consumer":
            left = self._consumers.pop(group)
            if is_cut:
                self.known_subscriptions.left(left)
            self.known_subscriptions.changed(group)
            self._filters.unregister(group)
        elif not members:
            del self._producers[group]
        return True

    def _is_producer(self, connection: MemberConnection, client_id: str) -> bool:
        """True if a producer group has a connection's client of this id."""
        return any(
            kind == "producer" and self._producers[group][connection].client_id == client_id
            for kind, group in self._of_connection.get(connection, ())
        )

    # --- requests ---

    def _on_heartbeat(self, request: Command, connection: Any, now: int) -> Command:
        data = read_heartbeat(request.body)
        self.heartbeat(data, connection, request.language, request.version, now)
        warning = "" if connection.is_closed else self.warning(data, connection)
        return request.reply(header={WARNING: warning} if warning else None)

    def _on_unregister(self, request: Command, connection: Any, now: int) -> Command:
        header = request.read(UnregisterClientRequestHeader)
        self.unregister(
            connection, producer_group=header.producer_group, consumer_group=header.consumer_group
        )
        return request.reply(header={})

    def _on_consumer_list(self, request: Command, connection: Any, now: int) -> Command:
        group = request.read(GetConsumerListByGroupRequestHeader).consumer_group
        known = self._consumers.get(group)
        if known is None:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return request.reply(header={}, body=known.ids_text)

    def _on_check(self, request: Command, connection: Any, now: int) -> Command:
        subscription = bodies.CheckClientRequestBody.from_request(request.body).subscription_data
        if subscription is not None and not is_tag_type(subscription.expression_type):
            if not self._settings.broker.enable_property_filter:
                raise for_code(
                    ResponseCode.SYSTEM_ERROR,
                    f"The broker does not support consumer to filter message by "
                    f"{subscription.expression_type}; set enablePropertyFilter=true on the broker",
                )
            self._filters.compiled(subscription, connection.peer_address)
        return request.reply()

    def _on_consumer_connections(self, request: Command, connection: Any, now: int) -> Command:
        name = request.read(GetConsumerConnectionListRequestHeader).consumer_group
        group = self._consumers.get(name)
        if group is None:
            raise for_code(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = bodies.ConsumerConnection(
            _connections(group.members.values()),
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return request.reply(body=body.to_json())

    def _on_producer_connections(self, request: Command, connection: Any, now: int) -> Command:
        name = request.read(GetProducerConnectionListRequestHeader).producer_group
        members = self.producers(name)
        if not members:
            raise for_code(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return request.reply(body=bodies.ProducerConnection(_connections(members)).to_json())

    def _on_all_producers(self, request: Command, connection: Any, now: int) -> Command:
        return request.reply(body=_producer_table(self._producers).to_json())


def _since(group: ConsumerGroup | None, client_id: str, connection: MemberConnection, now: int) -> int:
    """Time at which a client joined a group: now, if it was not a member."""
    known = None if group is None else group.members.get(connection)
    return known.since_ms if known is not None and known.client_id == client_id else now


def _is_renamed(before: Member | None, member: Member, group: str) -> TypeGuard[Member]:
    """True if the connection of a member was another member of the group before."""
    if before is None or before.client_id == member.client_id:
        return False
    log.warning("%s of group %s is now %s", before.client_id, group, member.client_id)
    return True


def _log_joined(changed: dict[str, Member]) -> None:
    names = list(changed)
    for name in names[:GROUPS_SAID]:
        if not leaves_out(log, SUBSCRIBES):
            member = changed[name]
            place, wants = member.connection.peer_address, dict(member.terms[1])
            log.info(SUBSCRIBES, member.client_id, name, place, wants)
    if len(names) > GROUPS_SAID:
        more = ", ".join(names[GROUPS_SAID:])
        log.info("and consumers of %d more groups: %s", len(names) - GROUPS_SAID, more)


def _producer_table(producers: dict[str, dict[MemberConnection, Member]]) -> bodies.ProducerTableInfo:
    return bodies.ProducerTableInfo(
        {group: list(map(_producer_info, members.values())) for group, members in producers.items()}
    )


def _connections(members: Iterable[Member]) -> list[bodies.Connection]:
    return [
        bodies.Connection(member.client_id, member.connection.peer_address, member.language, member.version)
        for member in members
    ]


def _producer_info(member: Member) -> bodies.ProducerInfo:
    return bodies.ProducerInfo(
        member.client_id, member.connection.peer_address, member.language, member.version, member.stamp_ms
    )
