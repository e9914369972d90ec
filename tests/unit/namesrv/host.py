"""A name server without connections: requests in, responses out."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import Lookup, NameServer
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.namesrv.masters import Masters
from rmq.protocol import headers
from rmq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.frames import Decoder, encode


class Peer:
    """The parts of a connection that a handler sees."""

    def __init__(self) -> None:
        self.peer_address = "10.0.0.1:5555"
        self.state: dict[str, Any] = {}
        self.replies: list[Command] = []
        self.closed_because = ""

    def reply(self, response: Command) -> None:
        self.replies += Decoder().feed(encode(response))

    def close(self, reason: str) -> None:
        self.closed_because = reason


class Host:
    """A name server with its clock and its peers in the hand of the test."""

    def __init__(self, on_pending: Callable[[], None] | None = None, **settings: Any) -> None:
        self.now_ms = 1_000
        self.saved: list[bytes] = []
        self.changes: list[dict[str, str]] = []
        self.lookups: list[Lookup] = []
        self.fails = False
        self.server = NameServer(
            NamesrvConfig(**settings),
            now_ms=lambda: self.now_ms,
            kv_configs=KvConfigs(self.save),
            save_settings=self.save_settings,
            on_lookup=self.look_up if settings.get("cluster_test") else None,
            masters=Masters(self.save, None, 0),
            on_pending=on_pending,
        )
        self.peer = Peer()

    def save(self, data: bytes) -> None:
        self.check()
        self.saved.append(data)

    def save_settings(self, changes: dict[str, str]) -> None:
        self.check()
        self.changes.append(changes)

    def check(self) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")

    def look_up(self, lookup: Lookup) -> bool:
        self.lookups.append(lookup)
        return len(self.lookups) < 3

    def ask(
        self,
        code: int,
        header: Any = None,
        body: bytes = b"",
        *,
        peer: Peer | None = None,
        version: int = 407,
        language: str = "JAVA",
    ) -> Command:
        request = Command.request(code, header, body)
        request.version, request.language = version, language
        peer = peer or self.peer
        self.server.handle(Decoder().feed(encode(request)), peer)  # type: ignore[arg-type]
        response = peer.replies.pop()
        assert response.opaque == request.opaque
        assert response.is_response
        return response

    def register(self, *topics: str, peer: Peer | None = None, version: int = 1, **header: Any) -> Command:
        body = registration(*topics, version=version)
        return self.ask(RequestCode.REGISTER_BROKER, broker(body, **header), body, peer=peer)


def registration(*topics: str, version: int = 1, compressed: bool = False) -> bytes:
    table = {topic: TopicConfig(topic, 4, 4) for topic in topics}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(1, version)))
    return body.encode(compressed=compressed)


def broker(body: bytes, **changes: Any) -> headers.RegisterBrokerRequestHeader:
    values = {
        "broker_name": "a",
        "broker_addr": "10.0.0.1:10911",
        "cluster_name": "C",
        "ha_server_addr": "10.0.0.1:10912",
        "broker_id": 0,
        "body_crc32": zlib.crc32(body) & 0x7FFF_FFFF,
    }
    return headers.RegisterBrokerRequestHeader(**(values | changes))


def route_of(response: Command) -> TopicRouteData:
    assert response.code == ResponseCode.SUCCESS, response.remark
    return TopicRouteData.from_json(response.body)
