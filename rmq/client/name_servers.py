"""NameServers: asks for routes, at one name server as long as it answers, at the others when it does
not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmq.errors import (
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    NoRoute,
    RemoteProtocolError,
    RequestTimeout,
    ResponseError,
    for_code,
)
from rmq.protocol.bodies import TopicList, TopicRouteData
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.remoting.pool import Pool

log = logging.getLogger(__name__)

UNREACHABLE = (ConnectFailed, ConnectionLost, RequestTimeout)
"""What says nothing about the request itself: another server may answer it."""

FAILURES = (*UNREACHABLE, NoRoute, ResponseError, RemoteProtocolError)
"""What a background loop logs and tries again at its next turn."""


def parse_name_servers(text: str | Sequence[str]) -> list[str]:
    """``"a:9876;b:9876"`` or a list of addresses as a list. Raises ConfigError when there is none."""
    pieces = text.replace(",", ";").split(";") if isinstance(text, str) else list(text)
    addresses = [piece.strip() for piece in pieces if piece.strip()]
    if not addresses:
        raise ConfigError("namesrv", text, "at least one name server as host:port, such as 127.0.0.1:9876")
    return addresses


class NameServers:
    """The name servers of a client. They do not know of each other, so each may know other topics."""

    def __init__(self, pool: Pool, addresses: Sequence[str], first: int = 0) -> None:
        self.addresses = list(addresses)
        self._pool = pool
        self._at = first % len(self.addresses)

    async def route(self, topic: str, timeout: float) -> TopicRouteData:
        """The route of `topic`. Each server may take `timeout` seconds.

        Raises NoRoute, with all that were asked and why each had no answer. Cancelled: nothing is left
        behind.
        """
        failures: list[str] = []
        refused = False
        count = len(self.addresses)
        for address in [self.addresses[(self._at + step) % count] for step in range(count)]:
            request = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            try:
                response = await self._pool.call(address, request, timeout)
                if response.code == ResponseCode.SUCCESS:
                    return TopicRouteData.from_json(response.body)
            except (*UNREACHABLE, RemoteProtocolError) as error:
                log.info("name server %s: %s", address, error)
                failures.append(str(error))
                self._at += 1
                continue
            if response.code != ResponseCode.TOPIC_NOT_EXIST:
                failures.append(str(for_code(response.code, response.remark, address)))
                refused = refused or response.code == ResponseCode.NO_PERMISSION
        raise no_route(topic, self.addresses, "; ".join(failures), refused=refused)

    async def topics(self, timeout: float) -> list[str]:
        """The names of all topics that the first name server to answer knows. Raises as `route`."""
        failures: list[str] = []
        refused = False
        count = len(self.addresses)
        for address in [self.addresses[(self._at + step) % count] for step in range(count)]:
            request = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            try:
                response = await self._pool.call(address, request, timeout)
            except UNREACHABLE as error:
                failures.append(str(error))
                continue
            if response.code == ResponseCode.SUCCESS:
                return TopicList.from_json(response.body).topic_list
            failures.append(str(for_code(response.code, response.remark, address)))
            refused = refused or response.code == ResponseCode.NO_PERMISSION
        raise no_route("(list of topics)", self.addresses, "; ".join(failures), refused=refused)


def no_route(topic: str, asked: Sequence[str], detail: str, *, refused: bool = False) -> NoRoute:
    """A NoRoute whose traceback also shows what to do."""
    error = NoRoute(topic, asked, detail, refused=refused)
    error.add_note(error.hint)
    return error
