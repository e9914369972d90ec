"""A real name server and broker in a thread of the test's process, and messages to send to it."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

import trio

from rmq import embedded
from rmq.client import blocking
from rmq.message import Message, MessageQueue

START_SECONDS = 60

T = TypeVar("T")


class Pair:
    """A name server and a broker that run, and a client of them."""

    def __init__(self, system: embedded.System, token: trio.lowlevel.TrioToken) -> None:
        self.names = system.namesrv_address
        self.system = system
        self._token = token

    def make_topic(self, topic: str, queues: int) -> None:
        """Make a topic, or change its number of queues."""
        trio.from_thread.run(self.system.create_topic, topic, queues, trio_token=self._token)

    def send(
        self, topic: str, count: int, *, first: int = 0, queues: int = 2, broker: str = "", **more: Any
    ) -> None:
        """Send `count` messages "b<number>" in turn to the queues of the topic on one broker."""
        with blocking.connect(self.names) as client, client.producer("tests") as producer:
            for queue_id in range(queues):
                mine = range(first + (queue_id - first) % queues, first + count, queues)
                queue = MessageQueue(topic, broker or self.broker, queue_id)
                if messages := [Message(topic, b"b%d" % number, **more) for number in mine]:
                    producer.send_batch(messages, queue=queue)

    @property
    def broker(self) -> str:
        return str(embedded.SETTINGS["brokerName"])

    def options(self, topic: str, **more: object) -> dict[str, str]:
        """Options of a read or write."""
        return {"nameServer": self.names, "topic": topic, **{key: str(value) for key, value in more.items()}}


@contextmanager
def running(
    folder: pathlib.Path, *, settings: Mapping[str, str] | None = None, **ports: int
) -> Iterator[Pair]:
    """Run a pair over a folder for the length of the block."""
    with _in_thread(lambda: embedded.open(folder, settings=settings, **ports)) as (system, token):
        yield Pair(system, token)


@contextmanager
def counting(pair: Pair) -> Iterator[Callable[[str], int]]:
    """The number of messages of a topic, asked by one client: name servers accept a limited number of
    connections a second."""
    with blocking.connect(pair.names) as client, client.pull_consumer("tests") as consumer:
        yield lambda topic: sum(consumer.max_offset(queue) for queue in consumer.message_queues(topic))


@contextmanager
def another_broker(
    pair: Pair, folder: pathlib.Path, name: str, more: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run one more broker at a pair's name server for the length of the block; gives its address."""
    settings = {**(more or {}), "brokerName": name, "namesrvAddr": pair.names, "brokerIP1": "127.0.0.1"}
    settings.setdefault("listenPort", "0")
    configs = embedded._broker_configs(folder, settings)
    with _in_thread(lambda: embedded._broker(*configs, settings, None, {})) as (address, _):
        yield address


@contextmanager
def _in_thread(
    enter: Callable[[], AbstractAsyncContextManager[T]],
) -> Iterator[tuple[T, trio.lowlevel.TrioToken]]:
    """Hold an async context manager open in an event loop of its own for the length of the block."""
    started = threading.Event()
    found: list[tuple[T, trio.lowlevel.TrioToken]] = []
    ended: list[BaseException] = []
    stop: list[Callable[[], None]] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with enter() as entered:
                token = trio.lowlevel.current_trio_token()
                found.append((entered, token))
                stop.append(lambda: token.run_sync_soon(scope.cancel))
                started.set()
                await trio.sleep_forever()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            ended.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(START_SECONDS)
    try:
        if ended:
            raise ended[0]
        yield found[0]
    finally:
        for one in stop:
            one()
        thread.join(START_SECONDS)
