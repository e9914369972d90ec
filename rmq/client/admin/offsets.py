"""Offsets: how far groups are, and setting them elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from rmq.client.admin.calls import offline
from rmq.client.admin.groups import Groups
from rmq.client.admin.values import GroupProgress, OffsetReset, QueueProgress
from rmq.client.pull import first_since
from rmq.errors import ConfigError, ConsumerNotOnline, NoRoute
from rmq.message import MessageQueue
from rmq.protocol.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    ResetOffsetBody,
    TopicStatsTable,
)
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CloneGroupOffsetRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

TO_THE_END = -1
"""The timestamp that stands for the end of every queue."""


class Offsets(Groups):
    """What `client.admin` does with the offsets of consumer groups."""

    async def consume_stats(self, group: str, topic: str = "") -> GroupProgress:
        """How far a group is, in all topics or one. A broker that has nothing of the group adds no rows.
        Raises ConsumerNotOnline when no broker has any.
        """
        whole = ConsumeStats()
        for address in (await self._brokers_of_group(group)).values():
            part = await self._consume_stats(address, group, topic)
            whole.offset_table.update(part.offset_table)
            whole.consume_tps += part.consume_tps
        if not whole.offset_table:
            raise ConsumerNotOnline(None, f"no broker has offsets of group {group}: has it consumed yet?")
        return GroupProgress(group, _rows(whole), whole.consume_tps)

    async def consumer_progress(self, group: str, topic: str = "") -> list[QueueProgress]:
        """The queues of a group, by topic, broker and number. Raises as `consume_stats`."""
        return (await self.consume_stats(group, topic)).queues

    async def broker_consume_stats(
        self, broker: str, *, ordered: bool = False, timeout: float = 0
    ) -> list[GroupProgress]:
        """The progress of all groups on one broker; `ordered` only in ordered topics. `timeout` in seconds: a
        broker with many groups may need long.
        """
        address = await self._broker_address(broker)
        header = GetConsumeStatsInBrokerHeader(ordered)
        answer = await self._ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header, timeout=timeout)
        listed = ConsumeStatsList.from_json(answer.body).consume_stats_list
        return [
            GroupProgress(
                group, [row for one in stats for row in _rows(one)], sum(one.consume_tps for one in stats)
            )
            for table in listed
            for group, stats in table.items()
        ]

    async def consume_time_span(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """For each queue, when its first and last message and the last one that the group consumed were
        stored, and by how many ms it is late. Raises NoRoute.
        """
        header = QueryConsumeTimeSpanRequestHeader(topic, group)
        spans: list[QueueTimeSpan] = []
        for address in (await self._brokers_of(topic)).values():
            answer = await self._ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            spans += QueryConsumeTimeSpanBody.from_json(answer.body).consume_time_span_set
        return spans

    # --- setting ---

    async def reset_offset(
        self, group: str, topic: str, timestamp: int, *, force: bool = True, cpp: bool = False
    ) -> list[OffsetReset]:
        """Let a group go on from the first messages stored at `timestamp` (ms) or later; -1 is the end.

        Members that are connected are told by the broker and take the offsets at once; without members the
        stored offsets are set. Without `force`, a queue is only ever set back. `cpp` asks for the form that
        members written in C++ read. Raises NoRoute.
        """
        done: list[OffsetReset] = []
        for address in (await self._brokers_of(topic)).values():
            before = await self._positions(address, group, topic)
            try:
                after = await self._reset_members(
                    address, ResetOffsetRequestHeader(topic, group, timestamp, force), cpp
                )
            except ConsumerNotOnline:
                after = await self._reset_stored(address, group, before, timestamp, force)
            unknown = QueueProgress(MessageQueue(topic, "", 0), 0, 0, 0)
            for queue, offset in sorted(after.items()):
                was = before.get(queue, unknown)
                done.append(OffsetReset(queue, was.broker_offset, was.consumer_offset, offset))
        return done

    async def skip_accumulated(self, group: str, topic: str, *, force: bool = True) -> list[OffsetReset]:
        """Let a group go on at the end of every queue: what it has not consumed, it never will."""
        return await self.reset_offset(group, topic, TO_THE_END, force=force)

    async def set_offsets(
        self, group: str, offsets: Mapping[MessageQueue, int], *, online: bool = False
    ) -> None:
        """Set the stored offsets of a group, queue by queue.

        Members that are connected do not see it and soon store their own, so it is refused with ConfigError
        while there are any, unless `online` says that this is wanted. Raises NoRoute.
        """
        if not online and await self._is_online(group):
            raise ConfigError(
                "group", group, "a group without connected members (stop them, or reset by time)"
            )
        addresses: dict[str, str] = {}
        for topic in {queue.topic for queue in offsets}:
            addresses.update(await self._brokers_of(topic))
        for queue, offset in offsets.items():
            if queue.broker_name not in addresses:
                raise NoRoute(queue.topic, self.name_servers, f"broker {queue.broker_name} does not have it")
            await self._set_offset(addresses[queue.broker_name], group, queue, offset)

    async def clone_offsets(
        self, source: str, target: str, topic: str = "", *, unsubscribed: bool = True
    ) -> None:
        """Let group `target` begin where `source` is, in one topic or all; without `unsubscribed`, only in
        topics that `source` is subscribed to now, if it is connected. Raises ConsumerNotOnline when no broker
        knows the source.
        """
        header = CloneGroupOffsetRequestHeader(source, target, topic or None, unsubscribed)
        addresses = (await self._brokers_of_group(source)).values()
        if not addresses:
            raise offline(source)
        for address in addresses:
            await self._ask(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def _consume_stats(self, address: str, group: str, topic: str) -> ConsumeStats:
        header = GetConsumeStatsRequestHeader(group, topic or None)
        answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, header)
        return ConsumeStats.from_json(answer.body)

    async def _is_online(self, group: str) -> bool:
        try:
            await self.consumer_connection(group)
        except ConsumerNotOnline:
            return False
        return True

    async def _positions(self, address: str, group: str, topic: str) -> dict[MessageQueue, QueueProgress]:
        """Where the group is in the topic's queues of one broker; at the beginning where it never was."""
        rows = _rows(await self._consume_stats(address, group, topic))
        known = {row.message_queue: row for row in rows if row.message_queue.topic == topic}
        if known:
            return known
        header = GetTopicStatsInfoRequestHeader(topic)
        answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
        table = TopicStatsTable.from_json(answer.body).offset_table
        return {
            queue: QueueProgress(queue, ends.max_offset, ends.min_offset, 0) for queue, ends in table.items()
        }

    async def _reset_members(
        self, address: str, header: ResetOffsetRequestHeader, cpp: bool
    ) -> dict[MessageQueue, int]:
        request = Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        if cpp:
            request.language = "CPP"
        answer = await self._send(address, request)
        return ResetOffsetBody.from_json(answer.body).offset_table

    async def _reset_stored(
        self,
        address: str,
        group: str,
        before: Mapping[MessageQueue, QueueProgress],
        timestamp: int,
        force: bool,
    ) -> dict[MessageQueue, int]:
        after = {}
        for queue, row in before.items():
            target = row.broker_offset
            if timestamp != TO_THE_END:
                target = await first_since(self._session, group, queue, timestamp)
            if force or target <= row.consumer_offset:
                await self._set_offset(address, group, queue, target)
                after[queue] = target
            else:
                after[queue] = row.consumer_offset
        return after

    async def _set_offset(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            group, queue.topic, queue.queue_id, offset, queue.broker_name
        )
        await self._ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)


def _rows(stats: ConsumeStats) -> list[QueueProgress]:
    return [
        QueueProgress(queue, row.broker_offset, row.consumer_offset, row.last_timestamp)
        for queue, row in sorted(stats.offset_table.items())
    ]
