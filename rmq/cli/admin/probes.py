"""The commands of `rmq admin` that send messages and time them."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from rmq.cli.admin.command import COUNT, NUMBER, Commands, java_text, row, say
from rmq.cli.output import echo
from rmq.client.routes import Route
from rmq.errors import ConfigError, RmqError
from rmq.message import Message

if TYPE_CHECKING:
    from rmq.client.client import Client
    from rmq.client.outgoing import SendResult
    from rmq.client.producer import Producer
    from rmq.message import MessageQueue

COMMANDS = Commands()

PROBE_GROUP = "RMQ_PROBE"


def result_text(result: SendResult) -> str:
    """A result as Java's toString writes it."""
    return (
        f"SendResult [sendStatus={result.status}, msgId={result.message_id}, "
        f"offsetMsgId={result.offset_message_id}, messageQueue={java_text(result.message_queue)}, "
        f"queueOffset={result.queue_offset}]"
    )


@COMMANDS.add("sendMsgStatus")
@click.option(
    "-b", "--brokerName", "broker", required=True, help="The broker's name: every broker has a topic of it."
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
            say(f"rt={round((time.perf_counter() - began) * 1000)}ms, SendResult={result_text(result)}")


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
    say(f"Avg RT: {_average(elapsed):.2f}")


async def _timed(producer: Producer, message: Message, queue: MessageQueue | None) -> tuple[bool, float]:
    """(whether it was stored, ms)."""
    began = time.perf_counter()
    try:
        await producer.send(message, queue=queue)
    except RmqError as error:
        echo(f"rmq: {error}", err=True)
        return False, (time.perf_counter() - began) * 1000
    return True, (time.perf_counter() - began) * 1000


def _average(elapsed: list[float]) -> float:
    """The first one is left out: it also makes the connection."""
    rest = elapsed[1:] or elapsed
    return sum(rest) / len(rest)


@COMMANDS.add("clusterRT")
@click.option("-a", "--amount", type=COUNT, default=100, help="Messages for each broker.")
@click.option("-s", "--size", type=NUMBER, default=128, help="Bytes of a message.")
@click.option("-c", "--cluster", help="Only this cluster.")
@click.option("-p", "--printLog", "as_log", type=bool, default=False, help="One line of fields with |.")
@click.option("-m", "--machineRoom", "room", default="noname", help="A name for those lines.")
@click.option("-i", "--interval", type=COUNT, default=10, help="Seconds between rounds.")
@click.option("--rounds", type=COUNT, help="Stop after so many.  [default: never]")
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
        say("|".join((f"{datetime.now():%Y-%m-%d %H:%M:%S}", room, *place, str(round(average)))))
