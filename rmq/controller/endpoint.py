"""ControllerEndpoint: who may ask a controller that is a process of its own, and who answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from rmq.controller.config import ControllerConfig
from rmq.controller.requests import ControllerRequests, needs_secret
from rmq.errors import LocalProtocolError, RemoteProtocolError, ResponseError
from rmq.message import Message
from rmq.metrics import Metric, connection_metrics
from rmq.plugin import Hooks, OnAppended, Peer
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command, check_body
from rmq.protocol.server_auth import ServerAuth
from rmq.remoting.acceptor import Acceptor
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import Budget

T = TypeVar("T")

log = logging.getLogger("rmq.controller")


class ControllerEndpoint(Endpoint):
    """Admits requests as a name server does: those of servers by the cluster secret where there is one, the
    others by the plugins; then `requests` answers."""

    def __init__(
        self,
        config: ControllerConfig,
        requests: ControllerRequests,
        *,
        cluster: ServerAuth | None = None,
        acceptors: Mapping[str, Acceptor] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.config = config
        self.requests = requests
        self.acceptors: Mapping[str, Acceptor] = acceptors or {}
        self.budget = budget or Budget()
        self._cluster = cluster
        self._handlers: dict[int, Any] = dict(requests.handlers())
        self._hooks = Hooks()

    def host(self, wall_ms: Callable[[], int]) -> ControllerHost:
        """What plugins see of it."""
        return ControllerHost(self, wall_ms)

    def use_plugins(self, hooks: Hooks) -> None:
        """Call these hooks from now on. Raises PluginRefused when they answer what the controller does."""
        self._handlers = hooks.completing(self._handlers)
        self._hooks = hooks
        self.asks_early = bool(hooks.heads)

    def handle(self, requests: list[Command], connection: Connection) -> None:
        """Answer the requests of one chunk in order; some are answered later."""
        for request in requests:
            response = self.answer(request, connection)
            if response is not None and not request.is_oneway:
                connection.reply(response)
            if response is not None and self._hooks.responses:
                self._hooks.observe(self._hooks.responses, connection, request, response)

    def on_head(self, head: Command, body_bytes: int, connection: Connection) -> Command | None:
        """Whether the large body of a command whose header is here shall come: None, or the refusal."""
        if head.is_response:
            return head.reply(ResponseCode.SYSTEM_ERROR)
        try:
            check_body(head.code, body_bytes, 0)
            if not self._is_signed(head):
                self._hooks.foresee(connection, head)
        except ResponseError as error:
            return head.reply(error.code, error.remark)
        return None

    def answer(self, request: Command, connection: Connection) -> Command | None:
        """The response to one request; None when it comes later."""
        try:
            check_body(request.code, len(request.body), 0)
            if self._is_signed(request):
                assert self._cluster is not None
                self._cluster.check(request)
            elif self._hooks.requests:
                self._hooks.admit(connection, request)
            handler = self._handlers.get(request.code)
            if handler is None:
                remark = f" request type {request.code} not supported by a controller"
                return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            found: Command | None = handler(request, connection, 0)
            return found
        except ResponseError as error:
            log.warning("refused request %d of %s: %s", request.code, connection.peer_address, error.remark)
            return request.reply(error.code, error.remark)
        except RemoteProtocolError as error:
            log.warning("bad request %d of %s: %s", request.code, connection.peer_address, error)
            return request.reply(ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            log.exception("request %d of %s failed", request.code, connection.peer_address)
            return request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _is_signed(self, request: Command) -> bool:
        asks_accounts = bool(self._hooks.requests)
        return self._cluster is not None and needs_secret(request, asks_accounts=asks_accounts)


class ControllerHost:
    """The `rmq.plugin.Host` of a controller: it stores no message."""

    def __init__(self, endpoint: ControllerEndpoint, wall_ms: Callable[[], int]) -> None:
        self._endpoint = endpoint
        self.now_ms = wall_ms

    @property
    def config(self) -> ControllerConfig:
        """The controller's configuration."""
        return self._endpoint.config

    @property
    def address(self) -> str:
        """Empty: no client is told a controller's address."""
        return ""

    def put(self, message: Message, on_done: OnAppended | None = None) -> None:
        """Raises LocalProtocolError."""
        raise LocalProtocolError("a controller stores no messages")

    def topic_of(self, physical_offset: int) -> str | None:
        """None: a controller stores no message."""
        return None

    def answer_saved(
        self, request: Command, peer: Peer, write: Callable[[], T], then: Callable[[T], Command]
    ) -> Command:
        """The answer; the file is written at once."""
        return then(write())

    def save(
        self, write: Callable[[], T], then: Callable[[T], None], fail: Callable[[Exception], None]
    ) -> None:
        """The file is written at once."""
        try:
            then(write())
        except Exception as error:
            fail(error)

    def shared_changed(self) -> None:
        """Nothing: controllers agree on broker sets only."""

    def stats(self) -> Mapping[str, str]:
        """Empty: brokerStatus is a broker's."""
        return {}

    def metrics(self) -> list[Metric]:
        """Whether it leads, how much it keeps, and its connections."""
        endpoint = self._endpoint
        return [*endpoint.requests.metrics(), *connection_metrics(endpoint.acceptors, endpoint.budget)]

    def metrics_in_slices(self, *, queues: bool = False) -> Generator[None, None, list[Metric]]:
        """The same; there are no queues here."""
        yield
        return self.metrics()
