"""The brokers of `rmq broker --processes` and their parent process: a topic created by a send at one of them
is created at all, so that its messages use all cores.

Each broker has a channel to the parent process, a socket whose two ends are made before the broker is
started. The channel carries lines, each a word and JSON: `made TOPIC` from the broker whose send created the
topic, `make TOPIC` to the other brokers, and `has "NAME"` when such a broker has saved the topic. A broker
that is away gets the line when it is back.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
from collections.abc import AsyncIterator, Iterable, MutableMapping
from typing import TYPE_CHECKING, Final

import trio

from rmq.errors import RemoteProtocolError
from rmq.protocol.bodies import TopicConfig
from rmq.remoting.loop import Wakeup

if TYPE_CHECKING:
    from rmq.broker.broker import Broker

LINE: Final = "RMQ_BROKER_FAMILY"
"""In a broker's environment: the descriptor of its end of the line."""
SAVED_SECONDS: Final = 0.1
"""Seconds between two looks for saved topics."""
CHUNK_BYTES: Final = 1 << 16

log = logging.getLogger("rmq.family")


def line_of(environment: MutableMapping[str, str]) -> trio.SocketStream | None:
    """The end of the channel that this broker inherited; None without a channel."""
    number = environment.pop(LINE, "")
    if not number:
        return None
    os.set_inheritable(int(number), False)
    return _stream(socket.socket(fileno=int(number)))


def new_line() -> tuple[trio.SocketStream, socket.socket]:
    """Our end of a channel, and the end that a broker inherits. Raises OSError."""
    ours, theirs = socket.socketpair()
    return _stream(ours), theirs


def _stream(end: socket.socket) -> trio.SocketStream:
    return trio.SocketStream(trio.socket.from_stdlib_socket(end))


async def _lines(stream: trio.SocketStream) -> AsyncIterator[tuple[str, bytes]]:
    """Word and text of each line, until the other side has gone."""
    rest = b""
    while True:
        try:
            piece = await stream.receive_some(CHUNK_BYTES)
        except trio.BrokenResourceError:
            return
        if not piece:
            return
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            word, _, text = line.partition(b" ")
            yield word.decode(), text


class Sibling:
    """A broker's end of the channel: `join` the open broker, then `run` until the channel ends."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._broker: Broker | None = None
        self._is_open = trio.Event()
        self._alarm = Wakeup()
        self._made: list[bytes] = []
        self._adopted: set[str] = set()

    def join(self, broker: Broker) -> None:
        """This is the broker from now on."""
        self._broker = broker
        broker.topics.watch_made(self._on_made)
        self._is_open.set()

    async def run(self) -> None:
        """Forward topics created here to the sibling processes, and create the topics that they forward. Ends
        with the channel."""
        await self._is_open.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_topics)
            async for word, text in _lines(self._stream):
                if word == "make":
                    self._make(text)
            nursery.cancel_scope.cancel()

    def _on_made(self, topic: TopicConfig) -> None:
        self._made.append(topic.to_json())
        self._alarm.set()

    def _make(self, text: bytes) -> None:
        assert self._broker is not None
        try:
            topic = TopicConfig.from_json(text)
        except RemoteProtocolError as error:
            log.error("a topic of another broker of this service is not made: %s", error)
            return
        if not self._broker.is_slave:  # whose topics are its master's
            self._broker.topics.adopt(topic)
            if self._broker.wake.new_topics is not None:
                self._broker.wake.new_topics()
        self._adopted.add(topic.topic_name)
        self._alarm.set()

    async def _send_topics(self) -> None:
        while True:
            waits = trio.current_time() + SAVED_SECONDS if self._adopted else math.inf
            await self._alarm.wait(waits)
            assert self._broker is not None
            made, self._made = self._made, []
            saved = self._adopted - self._broker.topics.unsaved.keys()
            self._adopted -= saved
            lines = [b"made %b\n" % text for text in made]
            lines += [b"has %b\n" % json.dumps(name).encode() for name in saved]
            if not await _sent(self._stream, lines):
                return


class TopicFanout:
    """The parent's ends of all channels: which topics each broker must still get."""

    def __init__(self, names: Iterable[str]) -> None:
        self._missing: dict[str, dict[str, bytes]] = {name: {} for name in names}
        self._alarms = {name: Wakeup() for name in self._missing}

    def missing(self, name: str) -> list[str]:
        """The topics that this broker has not confirmed as saved."""
        return list(self._missing[name])

    async def serve(self, name: str, stream: trio.SocketStream) -> None:
        """Serve the channel of a broker that was just started, until the channel ends."""
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._send_topics, name, stream)
            async for word, text in _lines(stream):
                if word == "made":
                    self._made(name, text)
                elif word == "has":
                    self._missing[name].pop(json.loads(text), None)
            nursery.cancel_scope.cancel()

    def _made(self, name: str, text: bytes) -> None:
        topic = json.loads(text)["topicName"]
        for other, missing in self._missing.items():
            if other != name:
                missing[topic] = text
                self._alarms[other].set()

    async def _send_topics(self, name: str, stream: trio.SocketStream) -> None:
        known: dict[str, bytes] = {}
        self._alarms[name].set()
        while True:
            await self._alarms[name].wait()
            missing = self._missing[name]
            known = {topic: text for topic, text in known.items() if topic in missing}
            new = {topic: text for topic, text in missing.items() if topic not in known}
            known |= new
            if not await _sent(stream, [b"make %b\n" % text for text in new.values()]):
                return


async def _sent(stream: trio.SocketStream, lines: list[bytes]) -> bool:
    """True if the line still stands."""
    if lines:
        try:
            await stream.send_all(b"".join(lines))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
    return True
