"""A new honest client: what it must be able to do, whatever strangers do at the same time."""

from __future__ import annotations

import http.client
import os
import pathlib
import socket
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmq.broker.replication.sessions import (
    FRAME,
    GREETING_BYTES,
    PROOF_BYTES,
    REPORT,
    Challenge,
)
from rmq.protocol.auth.signature import Credentials, signed
from rmq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode
from tests.unit.broker.rig import pull, send

if TYPE_CHECKING:
    from .campaign import Target

SECONDS: Final = 5.0
"""For each of the things that a newcomer does."""
LARGE: Final = 3_000_000


def heartbeat_of(name: str, group: str = "readers") -> Command:
    """The heartbeat of a client that sends, and reads Orders as a member of a group, if one is given."""
    wanted = [SubscriptionData("Orders", "*", sub_version=time.time_ns() // 1_000_000)]
    members = [ConsumerData(group_name=group, subscription_data_set=wanted)] if group else []
    body = HeartbeatData(name, [ProducerData("writers")], members).to_json()
    return Command.request(RequestCode.HEART_BEAT, None, body)


class Newcomer:
    """A client that connects, joins a group, sends, and waits for messages; a slave; a probe. Each has so
    many `seconds` for each of its acts, and comes again after a failure, up to `tries` times."""

    def __init__(self, target: Target, seconds: float = SECONDS, tries: int = 1) -> None:
        self._target = target
        self._seconds = seconds
        self._tries = tries
        self.slowest_ms = 0.0

    def problems(self) -> list[str]:
        """The work that the newcomer could not do."""
        found = []
        work: list[tuple[str, Callable[[], None]]] = [
            ("connect, join a group, send and wait", self._works),
            ("send 3 MB", self._sends_much),
            ("probe", self._probes),
            ("follow", self._follows),
        ]
        for what, do in work:
            failures = []
            for _ in range(self._tries):
                if not (failure := self._failure(do)):
                    break
                failures.append(failure)
            else:
                found.append(f"a newcomer cannot {what}: {failures}"[:300])
        return found

    def _failure(self, do: Callable[[], None]) -> str:
        began = time.perf_counter()
        try:
            do()
        except (OSError, AssertionError, http.client.HTTPException) as error:
            return f"{type(error).__name__} {error}"
        finally:
            self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - began) * 1000)
        return ""

    def _dial(self, address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        link = socket.create_connection((host, int(port)), timeout=self._seconds)
        if self._target.ca and address != self._target.pages_address:
            link = ssl.create_default_context(cafile=self._target.ca).wrap_socket(link, server_hostname=host)
        return link

    def _ask(self, link: socket.socket, request: Command) -> Command:
        self._say(link, request)
        decoder = Decoder()
        while True:
            data = link.recv(1 << 18)
            assert data, "the connection ended"
            for answer in decoder.feed(data):
                if answer.opaque == request.opaque and answer.is_response:
                    return answer

    def _say(self, link: socket.socket, request: Command) -> None:
        if self._target.accounts:
            request = signed(request, Credentials("owner-app", self._target.accounts["owner-app"]))
        link.sendall(encode(request))

    def _works(self) -> None:
        with self._dial(self._target.address) as link:
            answer = self._ask(link, heartbeat_of(f"newcomer-{time.time_ns()}"))
            assert answer.code == 0, answer.remark
            answer = self._ask(link, send("Orders", b"newcomer", queue_id=1))
            assert answer.code == 0, answer.remark
            flags = PULL_SUBSCRIPTION | PULL_SUSPEND
            end = int(answer.ext["queueOffset"]) + 1_000_000
            waits = {"sys_flag": flags, "suspend_timeout_millis": 1, "consumer_group": "readers"}
            self._say(link, pull("Orders", end, queue_id=1, **waits))
            data = link.recv(1 << 16)
            (found,) = Decoder().feed(data)
            assert found.code != 2, found.remark

    def _sends_much(self) -> None:
        with self._dial(self._target.address) as link:
            began = time.monotonic()
            answer = self._ask(link, send("Orders", bytes(LARGE), queue_id=1))
            assert answer.code == 0, answer.remark
            assert time.monotonic() - began < self._seconds, f"it took {time.monotonic() - began:.1f} s"

    def _probes(self) -> None:
        host, _, port = self._target.pages_address.rpartition(":")
        for path in ("/healthz", "/ready"):
            connection = http.client.HTTPConnection(host, int(port), timeout=self._seconds / 2.5)
            connection.request("GET", path)
            status = connection.getresponse().status
            connection.close()
            assert status == 200, f"{path} is {status}"

    def _follows(self) -> None:
        with self._dial(self._target.ha_address) as link:
            if self._target.secret_file:
                secret = pathlib.Path(self._target.secret_file).read_bytes().strip()
                challenge = Challenge(secret, os.urandom(32), master=False)
                link.sendall(challenge.greeting)
                challenge.greeted(_exactly(link, GREETING_BYTES))
                link.sendall(challenge.proof())
                challenge.check(_exactly(link, PROOF_BYTES))
            link.sendall(REPORT.pack(0))
            FRAME.unpack(_exactly(link, FRAME.size))


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = link.recv(count - len(data))
        assert piece, "the master hung up"
        data += piece
    return data
