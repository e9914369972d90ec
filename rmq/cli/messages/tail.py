"""`rmq tail`: look at a topic, live, without being a member of any group."""

from __future__ import annotations

import heapq
import re
from collections import deque
from typing import TYPE_CHECKING

import click
from attrs import define, field, frozen

from rmq.cli.completion import complete_topic
from rmq.cli.messages.sub import expression, filter_options
from rmq.cli.output import Style, echo, print_message, style_option
from rmq.cli.target import Target, first_error, run, target_options
from rmq.cli.values import as_position
from rmq.operate.values import Position

if TYPE_CHECKING:
    import trio

    from rmq.client.consume.subscription import Sql
    from rmq.client.reading.pull_consumer import PullConsumer
    from rmq.message import MessageQueue, StoredMessage

GROUP = "TOOLS_CONSUMER"
"""A group for tools that every broker has from its start; no offset of it is ever stored."""
WAIT_SECONDS = 15.0
LOOK_AGAIN_SECONDS = 10.0
RETRY_SECONDS = 3.0
BATCH = 32


@frozen
class TailOptions:
    """Topic, range, and output format of the command."""

    topic: str
    start: Position
    selected: str | Sql
    grep: re.Pattern[bytes] | None
    end: Position | None
    """The end of the range; None: no end."""
    style: Style


@define
class Tail:
    """State of one run: the followed queues, and the number of messages that may still be printed."""

    options: TailOptions
    consumer: PullConsumer
    nursery: trio.Nursery
    left: int | None
    queues: set[MessageQueue] = field(factory=set)
    spans: list[Span] = field(factory=list)
    """The parts of the queues to read, if the range has an end."""


@define(eq=False)
class Span:
    """A queue from `at` to `end`, and the messages of a pull that are not printed yet."""

    queue: MessageQueue
    at: int
    end: int
    waiting: deque[StoredMessage] = field(factory=deque)


def _pattern(
    context: click.Context, parameter: click.Parameter, given: str | None
) -> re.Pattern[bytes] | None:
    try:
        return re.compile(given.encode("utf-8", "surrogateescape")) if given else None
    except re.error as error:
        raise click.BadParameter(f"{given!r} is no regular expression: {error}") from None


grep_option = click.option("--grep", callback=_pattern, metavar="REGEX", help="Only bodies that have this.")


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "--from", "start", callback=as_position, default="last", show_default=True, help="Where to begin."
)
@filter_options
@grep_option
@click.option("--max", "most", type=click.IntRange(1), help="End after this number of messages.")
@click.option("--no-follow", is_flag=True, help="Stop at the present end; sorted by time.")
@click.option("--to", "end", callback=as_position, help="As --no-follow, and end at this time.")
@style_option("line")
@target_options
def tail(
    target: Target,
    topic: str,
    start: Position,
    tags: str | None,
    sql: str | None,
    grep: re.Pattern[bytes] | None,
    most: int | None,
    no_follow: bool,
    end: Position | None,
    output: Style,
) -> None:
    """Show the messages of TOPIC as they arrive, from its end on.

    The command joins no group and stores no offset, so consumers are not affected. --from takes earliest,
    latest, -10m or a date and time. Messages of one queue come in order; with --no-follow or --to messages of
    all queues come in the order in which they were stored. Dead letters: rmq tail %DLQ%billing.
    """
    end = end or ("last" if no_follow else None)
    options = TailOptions(topic, start, expression(tags, sql), grep, end, output)
    run(show_messages, target, options, most)


async def show_messages(target: Target, options: TailOptions, most: int | None) -> None:
    """Print the messages that `options` select, at most `most`. Raises as a pull consumer."""
    import trio

    async with target.connect() as client, client.pull_consumer(GROUP) as consumer:
        with first_error():
            async with trio.open_nursery() as nursery:
                state = Tail(options, consumer, nursery, most)
                await _begin(state, options.start)
                while options.end is None:
                    await trio.sleep(LOOK_AGAIN_SECONDS)
                    await _begin(state, "first")  # queues that the topic got since
            await _print_by_time(state)


async def _begin(state: Tail, start: Position) -> None:
    """Start a task for each new queue: it follows the queue, or finds its end."""
    for queue in await state.consumer.message_queues(state.options.topic):
        if queue not in state.queues:
            state.queues.add(queue)
            at = await _offset_at(state.consumer, queue, start)
            if state.options.end is None:
                state.nursery.start_soon(_follow, state, queue, at)
                continue
            span = Span(queue, at, await _offset_at(state.consumer, queue, state.options.end))
            state.spans.append(span)
            state.nursery.start_soon(_read_more, state, span)


async def _offset_at(consumer: PullConsumer, queue: MessageQueue, start: Position) -> int:
    if start == "first":
        return await consumer.min_offset(queue)
    if start == "last":
        return await consumer.max_offset(queue)
    return await consumer.search_offset(queue, start)


# --- to an end ---


async def _read_more(state: Tail, span: Span) -> None:
    """Pull until the queue has messages to print, or is at its end."""
    while not span.waiting and span.at < span.end:
        found = await state.consumer.pull(
            span.queue, span.at, max_messages=BATCH, expression=state.options.selected
        )
        if not found.messages:
            return
        span.at = found.next_offset
        span.waiting += [message for message in found.messages if message.queue_offset < span.end]


async def _print_by_time(state: Tail) -> None:
    """Print the messages of the spans, in the order of their storage."""
    following = [(_stored(span), number) for number, span in enumerate(state.spans) if span.waiting]
    heapq.heapify(following)
    while following and state.left != 0:
        _, number = following[0]
        span = state.spans[number]
        _offer(state, span.waiting.popleft())
        await _read_more(state, span)
        if span.waiting:
            heapq.heapreplace(following, (_stored(span), number))
        else:
            heapq.heappop(following)


def _stored(span: Span) -> int:
    return span.waiting[0].store_timestamp


# --- without an end ---


async def _follow(state: Tail, queue: MessageQueue, at: int) -> None:
    """Print the messages of a queue as they arrive; pulls to a broker that is away are repeated."""
    import trio

    from rmq.errors import ConnectFailed, ConnectionLost, RequestTimeout, SystemBusy

    while True:
        try:
            found = await state.consumer.pull(
                queue, at, max_messages=BATCH, expression=state.options.selected, wait=WAIT_SECONDS
            )
        except (ConnectFailed, ConnectionLost, RequestTimeout, SystemBusy) as error:
            echo(f"rmq tail: {queue.broker_name}/{queue.queue_id}: {error}; trying again", err=True)
            await trio.sleep(RETRY_SECONDS)
            continue
        at = found.next_offset
        waiting = deque(found.messages)
        del found
        while waiting:
            _offer(state, waiting.popleft())  # with its body, which may be much larger decompressed


def _offer(state: Tail, message: StoredMessage) -> None:
    """Print a message that --grep selects; the last of --max ends the run."""
    if state.left == 0 or (state.options.grep and not state.options.grep.search(message.body)):
        return
    try:
        print_message(message, state.options.style)
    except BrokenPipeError:
        state.left = 0  # the tasks of the other queues must print no more
        raise
    if state.left is not None:
        state.left -= 1
        if state.left == 0:
            state.nursery.cancel_scope.cancel()
