"""The commands of `rmq admin` about messages, and commands that send and time messages."""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from rmq.cli.admin.command import (
    COUNT,
    NUMBER,
    Commands,
    as_time,
    cell_text,
    java_text,
    row,
    seconds_stamp,
    stamp,
)
from rmq.cli.latency import timed_send
from rmq.cli.output import echo
from rmq.client.admin.messages import TOOLS_GROUP
from rmq.client.session.routes import Route
from rmq.clock import wall_clock_ms
from rmq.errors import ConfigError, NoRoute, QueryNotFound
from rmq.message import TRACE_TOPIC, Message, MessageQueue, StoredMessage
from rmq.protocol.codes import PERM_WRITE
from rmq.protocol.trace import TraceContext, TraceType

if TYPE_CHECKING:
    from rmq.cli.target import Target
    from rmq.client.client import Client
    from rmq.client.produce.producer import Producer
    from rmq.client.reading.pull_consumer import PullConsumer
    from rmq.client.session.results import SendResult

COMMANDS = Commands()

PULL_MESSAGES = 32
PROBE_GROUP = "RMQ_PROBE"

topic_option = click.option("-t", "--topic", required=True, help="The topic.")
begin_option = click.option(
    "-b", "--beginTimestamp", "begin", callback=as_time, help="Stored at this time or later."
)
end_option = click.option("-e", "--endTimestamp", "end", callback=as_time, help="Stored before this time.")
charset_option = click.option("-c", "--charsetName", "charset", default="UTF-8", help="Of the bodies.")
expression_option = click.option(
    "-s", "--subExpression", "expression", default="*", help="Such as TagA || TagB."
)


# --- one message ---


@COMMANDS.add("queryMsgById")
@click.option("-i", "--msgId", "ids", required=True, help="Offset ids, separated by commas.")
@click.option("-g", "--consumerGroup", "group", help="With -d: deliver them to a member of this group.")
@click.option("-d", "--clientId", "client_id", help="With -g: that member.")
@click.option("-s", "--sendMessage", "send", type=bool, default=False, help="Send them again: true or false.")
@click.option("-u", "--unitName", "unit", help="Taken for the sake of scripts; units are not supported.")
async def query_by_id(
    client: Client, ids: str, group: str | None, client_id: str | None, send: bool, unit: str | None
) -> None:
    """Show messages by their offset ids; send or consume them once more."""
    for message_id in filter(None, (piece.strip() for piece in ids.split(","))):
        if group and client_id:
            echo(java_text(await client.admin.consume_directly(group, client_id, message_id)))
        elif send:
            await _send_again(client, await client.admin.view_message(message_id))
        else:
            await _print_message(client, await client.admin.view_message(message_id))


async def _send_again(client: Client, message: StoredMessage) -> None:
    echo(f"prepare resend msg. originalMsgId={message.offset_message_id}")
    again = Message(message.topic, message.body, tags=message.tags, keys=message.keys, flag=message.flag)
    async with client.producer("ReSendMsgById") as producer:
        echo(result_text(await producer.send(again)))


@COMMANDS.add("queryMsgByUniqueKey")
@topic_option
@click.option("-i", "--msgId", "message_id", required=True, help="The producer's id.")
@click.option("-a", "--showAll", "show_all", is_flag=True, help="All with this id, not only the first.")
@click.option("-g", "--consumerGroup", "group", help="With -d: deliver it to a member of this group.")
@click.option("-d", "--clientId", "client_id", help="With -g: that member.")
async def query_by_unique_key(
    client: Client, topic: str, message_id: str, show_all: bool, group: str | None, client_id: str | None
) -> None:
    """Show the messages with a producer's id; or let a member consume one of them again."""
    if group and client_id:
        echo(java_text(await client.admin.consume_directly(group, client_id, message_id, topic)))
        return
    found = (await client.admin.query_unique_key(topic, message_id)).messages
    if not found:
        raise QueryNotFound(None, f"no message of topic {topic} has the id {message_id}")
    for message in found if show_all else found[:1]:
        await _print_message(client, message)


@COMMANDS.add("queryMsgByOffset")
@topic_option
@click.option("-b", "--brokerName", "broker", required=True, help="The broker's name.")
@click.option("-i", "--queueId", "queue_id", type=NUMBER, required=True, help="The queue's number.")
@click.option("-o", "--offset", type=NUMBER, required=True, help="The offset in the queue.")
async def query_by_offset(client: Client, topic: str, broker: str, queue_id: int, offset: int) -> None:
    """Show the message at an offset of a queue."""
    await _print_message(client, await client.admin.message_at(MessageQueue(topic, broker, queue_id), offset))


async def _print_message(client: Client, message: StoredMessage) -> None:
    """A message in full; its body goes into a file of its own; and its state in each group."""
    keys = " ".join(message.keys)
    rows = {
        "OffsetID": message.offset_message_id,
        "Topic": message.topic,
        "Tags": f"[{java_text(message.tags)}]",
        "Keys": f"[{keys or 'null'}]",
        "Queue ID": message.queue_id,
        "Queue Offset": message.queue_offset,
        "CommitLog Offset": message.physical_offset,
        "Reconsume Times": message.reconsume_times,
        "Born Timestamp": stamp(message.born_timestamp),
        "Store Timestamp": stamp(message.store_timestamp),
        "Born Host": message.born_host,
        "Store Host": message.store_host,
        "System Flag": message.sys_flag,
        "Properties": cell_text(message.properties),
        "Message Body Path": _body_file(message),
    }
    for name, value in rows.items():
        echo(f"{name + ':':<20} {cell_text(value)}")
    echo("\n")
    tracks = await client.admin.message_tracks(message)
    if not tracks:
        echo("WARN: No Consumer")
    for track in tracks:
        echo(
            f"MessageTrack [consumerGroup={track.group}, trackType={track.state}, "
            f"exceptionDesc={track.detail or 'null'}]"
        )


def _body_file(message: StoredMessage) -> pathlib.Path:
    """The body in a new folder that only this user can read."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rmq-body-"))
    path = folder / message.offset_message_id
    path.write_bytes(message.body)
    return path


@COMMANDS.add("queryMsgByKey")
@topic_option
@click.option("-k", "--msgKey", "key", required=True, help="The key.")
async def query_by_key(client: Client, topic: str, key: str) -> None:
    """Find messages by a key."""
    found = (await client.admin.query_message(topic, key)).messages
    if not found:
        raise QueryNotFound(None, f"no message of topic {topic} has the key {key}")
    widths = (-50, 4, 40)
    row(widths, "#Message ID", "#QID", "#Offset")
    for message in found:
        row(widths, message.message_id, message.queue_id, message.queue_offset)


# --- traces ---


@COMMANDS.add("queryMsgTraceById")
@click.option("-i", "--msgId", "message_id", required=True, help="The producer's id.")
@click.option("-t", "--traceTopic", "topic", default=TRACE_TOPIC, help="The topic of traces.")
async def query_trace(client: Client, message_id: str, topic: str) -> None:
    """Show the times of a message's send and deliveries, with producer and consumers."""
    trace = await client.admin.trace(message_id, topic=topic)
    if not trace.events:
        raise QueryNotFound(None, f"topic {topic} has no trace of {message_id}")
    sent = [event for event in trace.events if event.type in (TraceType.PUB, TraceType.END_TRANSACTION)]
    taken = [event for event in trace.events if event.type is TraceType.SUB_AFTER]
    # The row after consuming lacks time and place: these are in the row before.
    before = {event.request_id: event for event in trace.events if event.type is TraceType.SUB_BEFORE}
    for event in sent:
        _print_trace(("#Type", "#ProducerGroup", "#ClientHost", "#SendTime"), [("Pub", event, event)])
    groups: dict[str, list[tuple[str, TraceContext, TraceContext]]] = {}
    for event in taken:
        first = before.get(event.request_id, event)
        groups.setdefault(event.group or first.group, []).append(("Sub", event, first))
    for events in groups.values():
        _print_trace(("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime"), events)


def _print_trace(heads: Sequence[str], events: list[tuple[str, TraceContext, TraceContext]]) -> None:
    widths = (-10, -20, -20, -20, -10, -10)
    row(widths, *heads, "#CostTimes", "#Status")
    for kind, event, first in events:
        host = event.beans[0].client_host or first.beans[0].client_host
        when = seconds_stamp(event.timestamp_ms or first.timestamp_ms)
        status = "success" if event.success else "failed"
        group = event.group or first.group
        row(widths, kind, group, host, when, f"{event.cost_ms}ms", status)
    echo()


# --- many messages ---


@COMMANDS.add("printMsg")
@topic_option
@charset_option
@expression_option
@begin_option
@end_option
@click.option("-d", "--printBody", "print_body", type=bool, default=True, help="Bodies too: true or false.")
async def print_messages(
    client: Client,
    topic: str,
    begin: int | None,
    end: int | None,
    charset: str,
    expression: str,
    print_body: bool,
) -> None:
    """Print the messages of a topic, queue by queue."""
    async with client.pull_consumer(TOOLS_GROUP) as consumer:
        for queue in await consumer.message_queues(topic):
            first, last = await _bounds(consumer, queue, begin, end)
            echo(f"minOffset={first}, maxOffset={last}, {java_text(queue)}")
            async for message in _between(consumer, queue, first, last, expression):
                _print_line(message, charset if print_body else None)
            echo("-" * 56)


@COMMANDS.add("printMsgByQueue")
@topic_option
@click.option("-a", "--brokerName", "broker", required=True, help="The broker's name.")
@click.option("-i", "--queueId", "queue_id", type=NUMBER, required=True, help="The queue's number.")
@charset_option
@expression_option
@begin_option
@end_option
@click.option("-p", "--printMsg", "print_all", type=bool, default=False, help="Print them: true or false.")
@click.option("-d", "--printBody", "print_body", type=bool, default=False, help="Bodies too: true or false.")
@click.option("-f", "--calculate", "count_tags", type=bool, default=False, help="Count tags: true or false.")
async def print_queue(
    client: Client,
    topic: str,
    broker: str,
    queue_id: int,
    begin: int | None,
    end: int | None,
    **how: str,
) -> None:
    """Print the messages of a queue, or count them by tag."""
    queue = MessageQueue(topic, broker, queue_id)
    tags: Counter[str] = Counter()
    async with client.pull_consumer(TOOLS_GROUP) as consumer:
        first, last = await _bounds(consumer, queue, begin, end)
        async for message in _between(consumer, queue, first, last, how["expression"]):
            tags[message.tags or ""] += 1
            if how["print_all"]:
                _print_line(message, how["charset"] if how["print_body"] else None)
    if how["count_tags"]:
        for tag, count in tags.most_common():
            if tag:
                echo(f"Tag: {cell_text(tag):<30} Count: {count}")


async def _bounds(
    consumer: PullConsumer, queue: MessageQueue, begin: int | None, end: int | None
) -> tuple[int, int]:
    """The offsets between two times: from the first on, before the last."""
    first = await consumer.min_offset(queue) if begin is None else await consumer.search_offset(queue, begin)
    last = await consumer.max_offset(queue) if end is None else await consumer.search_offset(queue, end)
    return first, last


async def _between(
    consumer: PullConsumer, queue: MessageQueue, first: int, last: int, expression: str = "*"
) -> AsyncIterator[StoredMessage]:
    offset = first
    while offset < last:
        count = min(PULL_MESSAGES, last - offset)
        found = await consumer.pull(queue, offset, max_messages=count, expression=expression)
        for message in found.messages:
            if message.queue_offset < last:
                yield message
        if found.next_offset <= offset:
            return
        offset = found.next_offset


def _print_line(message: StoredMessage, charset: str | None) -> None:
    """A message in a line; without `charset` its body is left out."""
    body = "NOT PRINT BODY"
    if charset:
        try:
            body = message.body.decode(charset, "backslashreplace")
        except LookupError:
            raise ConfigError("charsetName", charset, "a character set such as UTF-8 or GBK") from None
    queue = f"queueId={message.queue_id}, queueOffset={message.queue_offset}"
    echo(
        f"MSGID: {message.message_id} MessageExt [brokerName={message.broker_name}, {queue}, "
        f"storeSize={message.size}, sysFlag={message.sys_flag}, bornTimestamp={message.born_timestamp}, "
        f"bornHost=/{message.born_host}, storeTimestamp={message.store_timestamp}, "
        f"storeHost=/{message.store_host}, msgId={message.offset_message_id}, "
        f"commitLogOffset={message.physical_offset}, bodyCRC={message.body_crc}, "
        f"reconsumeTimes={message.reconsume_times}, topic={message.topic}, "
        f"properties={cell_text(message.properties)}] BODY: {cell_text(body)}"
    )


@COMMANDS.add("consumeMessage")
@topic_option
@click.option("-b", "--brokerName", "broker", help="The broker's name.")
@click.option("-i", "--queueId", "queue_id", type=NUMBER, help="The queue's number; needs -b.")
@click.option("-o", "--offset", type=NUMBER, help="The first offset; needs -i.")
@click.option(
    "-g", "--consumerGroup", "group", default=TOOLS_GROUP, help="As this group; nothing is committed."
)
@click.option("-c", "--MessageNumber", "count", type=COUNT, default=128, help="Largest number.")
@click.option("-s", "--beginTimestamp", "begin", callback=as_time, help="Stored at this time or later.")
@click.option("-e", "--endTimestamp", "end", callback=as_time, help="Stored before this time.")
async def consume_messages(
    client: Client,
    topic: str,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    group: str,
    count: int,
    **times: int | None,
) -> None:
    """Read messages of a topic, or of a queue, oldest first; offsets stay unchanged."""
    _check_place(broker, queue_id, offset)
    begin, end = _check_times(times["begin"], times["end"])
    async with client.pull_consumer(group) as consumer:
        queues = [
            queue for queue in await consumer.message_queues(topic) if broker in (None, queue.broker_name)
        ]
        if queue_id is not None and broker is not None:
            queues = [MessageQueue(topic, broker, queue_id)]
        for queue in queues:
            first, last = await _bounds(consumer, queue, begin, end)
            first = max(first, offset or 0)
            if last - first > count:
                echo(f"The older {count} message of the {queue.queue_id} queue will be provided")
                last = first + count
            async for message in _between(consumer, queue, first, last):
                echo("Consume ok")
                _print_line(message, "UTF-8")
                count -= 1
            if count <= 0:
                return


def _check_place(broker: str | None, queue_id: int | None, offset: int | None) -> None:
    if queue_id is not None and not broker:
        raise click.UsageError("Please set the brokerName before queueId!")
    if offset is not None and queue_id is None:
        raise click.UsageError("Please set queueId before offset!")


def _check_times(begin: int | None, end: int | None) -> tuple[int | None, int | None]:
    now = wall_clock_ms()
    for name, value in (("beginTimestamp", begin), ("endTimestamp", end)):
        if value is not None and value > now:
            raise click.UsageError(f"Please set the {name} before now!")
    if begin is not None and end is not None and begin > end:
        raise click.UsageError("Please make sure that the beginTimestamp is not after the endTimestamp")
    return begin, end


# --- sending ---


@COMMANDS.add("sendMessage", connected=False)
@topic_option
@click.option("-p", "--body", required=True, help="The body, as text.")
@click.option("-k", "--key", "keys", default="", help="Its keys, separated by blanks.")
@click.option("-c", "--tags", help="Its tag.")
@click.option("-b", "--broker", help="Send it to this broker.")
@click.option("-i", "--qid", "queue_id", type=NUMBER, help="Send it to this queue; needs -b.")
@click.option("-m", "--msgTraceEnable", "trace", type=bool, default=False, help="Trace it: true or false.")
async def send_message(
    target: Target, topic: str, body: str, broker: str | None, queue_id: int | None, trace: bool, **texts: str
) -> None:
    """Send a message."""
    from rmq.client.observability.trace import MessageTrace

    if queue_id is not None and not broker:
        raise click.UsageError("Broker name must be set if the queue is chosen!")
    message = Message(topic, body.encode(), tags=texts["tags"], keys=texts["keys"])
    async with target.connect(plugins=(MessageTrace(),) if trace else ()) as client:
        queue = await _chosen_queue(client, topic, broker, queue_id) if broker else None
        async with client.producer("RMQ_ADMIN") as producer:
            result = await producer.send(message, queue=queue)
    widths = (-32, -4, -20, -34)
    row(widths, "#Broker Name", "#QID", "#Send Result", "  #MsgId")
    queue = result.message_queue
    row(widths, queue.broker_name, queue.queue_id, result.status, f"  {result.message_id}")


async def _chosen_queue(client: Client, topic: str, broker: str, queue_id: int | None) -> MessageQueue:
    """The queue of the options; without a number the broker's first. Raises NoRoute."""
    for data in (await client.admin.topic_route(topic)).queue_datas:
        if data.broker_name == broker and data.perm & PERM_WRITE:
            return MessageQueue(topic, broker, queue_id or 0)
    raise NoRoute(topic, client.admin.name_servers, f"broker {broker} has no queue of it that can be written")


# --- probes ---


def result_text(result: SendResult) -> str:
    """A result as Java's toString writes it."""
    return (
        f"SendResult [sendStatus={result.status}, msgId={result.message_id}, "
        f"offsetMsgId={result.offset_message_id}, messageQueue={java_text(result.message_queue)}, "
        f"queueOffset={result.queue_offset}]"
    )


@COMMANDS.add("sendMsgStatus")
@click.option(
    "-b",
    "--brokerName",
    "broker",
    required=True,
    help="The broker's name, which is also the name of a topic.",
)
@click.option("-s", "--messageSize", "size", type=NUMBER, default=128, help="Bytes of a message.")
@click.option("-c", "--count", type=COUNT, default=50, help="Messages.")
async def send_status(client: Client, broker: str, size: int, count: int) -> None:
    """Send messages to a broker, and print the time and the result of each."""
    async with client.producer(PROBE_GROUP) as producer:
        await producer.send(Message(broker, b"a" * 16))
        for _ in range(count):
            began = time.perf_counter()
            result = await producer.send(Message(broker, b"a" * size))
            echo(f"rt={round((time.perf_counter() - began) * 1000)}ms, SendResult={result_text(result)}")


@COMMANDS.add("checkMsgSendRT")
@click.option("-t", "--topic", required=True, help="The topic.")
@click.option("-a", "--amount", type=COUNT, default=100, help="Messages.")
@click.option("-s", "--size", type=NUMBER, default=128, help="Bytes of a message.")
async def check_send(client: Client, topic: str, amount: int, size: int) -> None:
    """Send messages to a topic's queues in turn, and print the time of each and their average."""
    queues = Route.of(topic, await client.admin.topic_route(topic)).publish_queues
    if not queues:
        raise ConfigError("topic", topic, "a topic that can be written")
    widths = (-32, -4, -20, -8)
    row(widths, "#Broker Name", "#QID", "#Send Result", "  #RT")
    elapsed: list[float] = []
    async with client.producer(PROBE_GROUP) as producer:
        for number in range(amount):
            queue = queues[number % len(queues)]
            good, ms = await _timed(producer, Message(topic, b"a" * size), queue)
            elapsed.append(ms)
            row(widths, queue.broker_name, queue.queue_id, good, f"  {round(ms)}")
    echo(f"Avg RT: {_average(elapsed):.2f}")


async def _timed(producer: Producer, message: Message, queue: MessageQueue | None) -> tuple[bool, float]:
    """(true if it was stored, ms)."""
    ms, error = await timed_send(producer, message, queue)
    if error is not None:
        echo(f"rmq: {error}", err=True)
    return error is None, ms


def _average(elapsed: list[float]) -> float:
    """The average without the first send, which also opens the connection."""
    rest = elapsed[1:] or elapsed
    return sum(rest) / len(rest)


@COMMANDS.add("clusterRT")
@click.option("-a", "--amount", type=COUNT, default=100, help="Messages for each broker.")
@click.option("-s", "--size", type=NUMBER, default=128, help="Bytes of a message.")
@click.option("-c", "--cluster", help="Only this cluster.")
@click.option("-p", "--printLog", "as_log", type=bool, default=False, help="One line of fields with |.")
@click.option("-m", "--machineRoom", "room", default="noname", help="Machine room in these lines.")
@click.option("-i", "--interval", type=COUNT, default=10, help="Seconds between rounds.")
@click.option("--rounds", type=COUNT, help="Number of rounds.  [default: no limit]")
async def cluster_times(
    client: Client, cluster: str | None, as_log: bool, room: str, rounds: int | None, **numbers: int
) -> None:
    """Time sends to every broker, round after round."""
    import trio

    if not as_log:
        row((-24, -24, -8, -16, -16), "#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount")
    done = 0
    async with client.producer(PROBE_GROUP) as producer:
        while True:
            table = (await client.admin.cluster_info()).cluster_addr_table
            if cluster is not None and cluster not in table:
                raise ConfigError("cluster", cluster, f"one of {sorted(table)}")
            for name in sorted(table) if cluster is None else [cluster]:
                for broker in sorted(table[name]):
                    message = Message(broker, b"a" * numbers["size"])
                    tries = [await _timed(producer, message, None) for _ in range(numbers["amount"])]
                    _print_times(tries, (name, broker), room if as_log else None)
            done += 1
            if done == rounds:
                return
            await trio.sleep(numbers["interval"])


def _print_times(tries: list[tuple[bool, float]], place: tuple[str, str], room: str | None) -> None:
    average = _average([ms for _, ms in tries])
    good = sum(stored for stored, _ in tries)
    if room is None:
        row((-24, -24, -8, -16, -16), *place, average, good, len(tries) - good)
    else:
        echo("|".join((f"{datetime.now():%Y-%m-%d %H:%M:%S}", room, *place, str(round(average)))))
