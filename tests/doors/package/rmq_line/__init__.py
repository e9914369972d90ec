"""A line protocol for rmq, as a plug-in of a third party.

    LOGIN user secret   OK | ERR reason
    PUB topic body      OK id | ERR reason, once the message is as safe as the broker's settings ask
    SUB group topic     OK, then MSG topic queue offset body for each message
    ACK topic queue offset   ACKED topic queue offset | ERR reason, once it is as safe
    PING                PONG

A message without acknowledgement comes again after a connection ends. `linePort` is its own port; that for
clients takes what begins with `LINE` and a line's end. When the broker stops, the last line is BYE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rmq import Message, StoredMessage
from rmq.errors import RmqError
from rmq.plugin import Appended, Door, DoorHost, DoorStream, Plugin, ReadRequest, ReadResult

WINDOW = 16
"""Messages of one queue that are not acknowledged yet."""


class LinePlugin(Plugin):
    """Opens the door."""

    def doors(self) -> Sequence[Door]:
        port = self.config.get("linePort")
        return [
            Door(
                name="line",
                port=None if port is None else int(port),
                first_bytes=b"LINE\n",
                serve=lambda stream, host: Session(stream, host).run(),
                goodbye=lambda stream: b"BYE\n",
                websocket=True,
            )
        ]


class Queue:
    """One queue of a subscription: `next` is the offset to read, `open` are those to be acknowledged."""

    def __init__(self, group: str, topic: str, number: int, next_offset: int) -> None:
        self.group, self.topic, self.number, self.next = group, topic, number, next_offset
        self.open: set[int] = set()
        self.is_reading = False
        self.is_mine = True


class Session:
    """One connection."""

    def __init__(self, stream: DoorStream, host: DoorHost) -> None:
        self.stream, self.host = stream, host
        self.queues: dict[tuple[str, int], Queue] = {}
        self.topics: dict[str, list[str]] = {}

    async def run(self) -> None:
        commands: dict[str, Callable[[str], None]] = {
            "LINE": lambda rest: None,
            "PING": lambda rest: self.say("PONG"),
            "LOGIN": self.login,
            "PUB": self.publish,
            "SUB": self.subscribe,
            "ACK": self.acknowledge,
        }
        while (line := await self.stream.receive_until(b"\n", 65_536)) is not None:
            word, _, rest = line.decode("utf-8", "replace").rstrip("\r").partition(" ")
            try:
                commands.get(word, self.unknown)(rest)
            except (RmqError, ValueError) as error:
                self.say(f"ERR {error}")

    def say(self, line: str) -> None:
        self.stream.write(line.replace("\n", " ").encode() + b"\n")

    def unknown(self, rest: str) -> None:
        raise ValueError("no such command; there are LOGIN, PUB, SUB, ACK and PING")

    def login(self, rest: str) -> None:
        user, _, secret = rest.partition(" ")
        self.host.authenticate(user, secret)
        self.say("OK")

    def publish(self, rest: str) -> None:
        topic, _, body = rest.partition(" ")
        self.host.append(Message(topic, body.encode()), self.published)

    def published(self, outcome: Appended) -> None:
        self.say(f"OK {outcome.message_id}" if outcome.error is None else f"ERR {outcome.error}")

    def subscribe(self, rest: str) -> None:
        group, topic = rest.split(" ")
        topics = [*self.topics.get(group, ()), topic]
        self.host.join(group, f"line@{self.stream.peer_address}", dict.fromkeys(topics, "*"), self.shared)
        self.topics[group] = topics
        self.say("OK")
        self.shared(group)

    def shared(self, group: str) -> None:
        """Read the queues that are this member's now, and no others."""
        for topic in self.topics[group]:
            mine = self.host.share(group, topic)
            for key, queue in list(self.queues.items()):
                if key[0] == topic and queue.group == group and key[1] not in mine:
                    queue.is_mine = False
                    del self.queues[key]
            for number in mine:
                if (topic, number) not in self.queues:
                    at = self.host.position(group, topic, number)
                    first = self.host.bounds(topic, number)[0] if at < 0 else at
                    queue = self.queues[topic, number] = Queue(group, topic, number, first)
                    self.read(queue)

    def read(self, queue: Queue) -> None:
        if queue.is_mine and not queue.is_reading and len(queue.open) < WINDOW:
            queue.is_reading = True
            wanted = ReadRequest(queue.group, queue.topic, queue.number, queue.next, WINDOW - len(queue.open))
            self.host.hold(wanted, partial(self.found, queue), 20.0)

    def found(self, queue: Queue, result: ReadResult | RmqError) -> None:
        queue.is_reading = False
        if isinstance(result, RmqError):
            self.say(f"ERR {result}")
            self.host.defer(1.0, partial(self.read, queue))
        elif queue.is_mine:
            queue.next = result.next_offset
            for message in result.messages:
                self.deliver(queue, message)
            self.read(queue)

    def deliver(self, queue: Queue, message: StoredMessage) -> None:
        queue.open.add(message.queue_offset)
        place = f"{queue.topic} {queue.number} {message.queue_offset}"
        self.say(f"MSG {place} {message.body.decode('utf-8', 'replace')}")

    def acknowledge(self, rest: str) -> None:
        topic, number, offset = rest.split(" ")
        queue = self.queues.get((topic, int(number)))
        if queue is not None and int(offset) in queue.open:
            queue.open.remove(int(offset))
            done = min(queue.open, default=queue.next)
            self.host.commit(queue.group, topic, queue.number, done, partial(self.acknowledged, rest))
            self.read(queue)

    def acknowledged(self, rest: str, error: RmqError | None) -> None:
        self.say(f"ACKED {rest}" if error is None else f"ERR {error}")
