"""Attacks that take places: from three addresses, over some thirty connections of each."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Final

from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND
from rmq.protocol.command import Command
from rmq.protocol.frames import encode
from tests.unit.broker.rig import pull, send

from .attacks import BUSY, SOURCES, TOPIC, Attacker, attack, heartbeat

CONNECTIONS: Final = 30
"""Of each address."""


def crowd(attacker: Attacker, count: int, address: str = "", *, tls: bool = True) -> list[socket.socket]:
    """Open this number of connections, from all addresses in turn; fewer if some are refused."""
    links = []
    for _ in range(count):
        try:
            links.append(attacker.dial(address, tls=tls))
            attacker.sent += 1
        except OSError:
            attacker.cut += 1
    return links


def in_silence(attacker: Attacker, address: str, count: int) -> None:
    """Keep so many connections, and say nothing; one that is cut off comes again."""
    links = crowd(attacker, count, address, tls=False)
    while attacker.left:
        for link in [one for one in links if is_cut(one)]:
            links.remove(link)
            link.close()
            attacker.cut += 1
        links += crowd(attacker, min(5, count - len(links)), address, tls=False)
        time.sleep(0.02)
    for link in links:
        link.close()


def is_cut(link: socket.socket) -> bool:
    """True if the other side has ended a silent connection."""
    if not select.select([link], [], [], 0)[0]:
        return False
    try:
        return not link.recv(1 << 16)
    except OSError:
        return True


@attack("20 silence at the port for slaves")
def silent_slaves(attacker: Attacker) -> None:
    in_silence(attacker, attacker.ha_address, 3 * CONNECTIONS)


@attack("20 silence at the port for pages")
def silent_probes(attacker: Attacker) -> None:
    in_silence(attacker, attacker.pages_address, 3 * CONNECTIONS)


@attack("20 silence at the port for clients")
def silent_clients(attacker: Attacker) -> None:
    in_silence(attacker, attacker.address, 600)


def through(
    attacker: Attacker, count: int, commands: Callable[[int], Iterator[Command]], *, batch: int, pause: float
) -> None:
    """Send over many connections, so much at a time, and read what comes."""
    links = crowd(attacker, count)
    sources = {link: commands(number) for number, link in enumerate(links)}
    waiting = dict.fromkeys(links, b"")
    for link in links:
        link.setblocking(False)
    while attacker.left and waiting:
        for link in list(waiting):
            with contextlib.suppress(*BUSY):
                try:
                    if not waiting[link]:
                        some = itertools.islice(sources[link], batch)
                        waiting[link] = b"".join(encode(attacker.sign(one)) for one in some)
                        attacker.sent += batch * bool(waiting[link])
                    if waiting[link]:
                        waiting[link] = waiting[link][link.send(waiting[link]) :]
                    while link.recv(1 << 16):
                        pass
                    raise ConnectionResetError("closed")
                except BUSY:
                    continue
                except OSError:
                    attacker.cut += 1
                    del waiting[link]
                    link.close()
        time.sleep(pause)
    for link in waiting:
        link.close()


@attack("21 all places of members")
def members(attacker: Attacker) -> None:
    def commands(number: int) -> Iterator[Command]:
        for part in range(8):
            names = tuple(f"m{number}-{part}-{one}" for one in range(200))
            yield heartbeat(f"c{number}", [], names)

    through(attacker, CONNECTIONS, commands, batch=1, pause=0.05)


@attack("21 all places of waiting pulls")
def pulls(attacker: Attacker) -> None:
    def commands(number: int) -> Iterator[Command]:
        for one in range(10_000):
            flags = PULL_SUBSCRIPTION | PULL_SUSPEND
            yield pull(TOPIC, 1 << 40, queue_id=one % 4, sys_flag=flags, suspend_timeout_millis=1 << 40)

    through(attacker, CONNECTIONS, commands, batch=16, pause=0.1)


@attack("22 unfinished frames of less than 1 MiB")
def unfinished(attacker: Attacker) -> None:
    """150 of them, each of which is there at once but for its end; one that is cut off comes again."""
    body = bytes(900_000)
    whole = encode(attacker.sign(send(TOPIC, body)))
    owed: dict[socket.socket, memoryview] = {}
    while attacker.left:
        for link in crowd(attacker, min(5, 150 - len(owed))):
            link.setblocking(False)
            owed[link] = memoryview(whole)[:-1000]
        for link in list(owed):
            try:
                while owed[link]:
                    owed[link] = owed[link][link.send(owed[link]) :]
                if is_cut(link):
                    raise ConnectionResetError("closed")
            except BUSY:
                continue
            except OSError:
                attacker.cut += 1
                del owed[link]
                link.close()
        time.sleep(0.005)
    for link in owed:
        link.close()


@attack("23 headers that cannot be read")
def damaged(attacker: Attacker) -> None:
    def pieces() -> Iterator[bytes]:
        for number in itertools.count():
            header = b'{"code":310,"opaque":%d,"extFields":{"a":' % (number % (1 << 30)) + b"[" * 2000
            attacker.sent += 1
            yield struct.pack(">iI", 4 + len(header), len(header)) + header

    attacker.pump(pieces)


assert SOURCES
