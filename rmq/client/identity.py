"""Who a client is: its address, its id."""

from __future__ import annotations

import ipaddress
import os
import random
import socket


def local_address(toward: str) -> str:
    """This machine's IP address as seen on the way to `toward` (``host:port``); nothing is sent."""
    host = toward.rpartition("://")[2].rpartition(":")[0].strip("[]")
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:  # a name: looking it up could take long, so take the way to anywhere
        host, version = "192.0.2.1", 4
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host, 9))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return "127.0.0.1"


def new_client_id(address: str, chance: random.Random) -> str:
    """``IP@PID#random``: two clients in containers may have the same address and process id, never the same
    id.
    """
    return f"{address}@{os.getpid()}#{chance.getrandbits(64):016x}"
