"""ControllerEndpoint: admission and answers of a controller that is a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rmq.controller.config import ControllerConfig
from rmq.controller.requests import ControllerRequests, needs_secret
from rmq.errors import ResponseError
from rmq.metrics import Metric, connection_metrics, single
from rmq.plugin import Hooks
from rmq.protocol.auth.server_auth import ServerAuth
from rmq.protocol.codes import ResponseCode
from rmq.protocol.command import Command, check_body
from rmq.remoting.connection import Connection
from rmq.remoting.endpoint import Endpoint
from rmq.remoting.limits import MemoryBudget
from rmq.remoting.serving.acceptor import Acceptor
from rmq.server.deferred import DeferredSaves, error_response
from rmq.server.plugin_host import NoMessages, PluginHost, at_once
from rmq.shares import Gateways, by_account_and_address

log = logging.getLogger("rmq.controller")
_error_response = partial(error_response, log)


class ControllerEndpoint(Endpoint):
    """Endpoint of a controller: `requests` answers each admitted request.

    A request of a server must be signed with the cluster secret, if a secret is set; plug-ins admit the other
    requests. `on_pending()` is called when `deferred_saves` has a file to write; without `on_pending` files
    are written at once.
    """

    def __init__(
        self,
        config: ControllerConfig,
        requests: ControllerRequests,
        *,
        cluster: ServerAuth | None = None,
        acceptors: Mapping[str, Acceptor] | None = None,
        budget: MemoryBudget | None = None,
        on_pending: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self.requests = requests
        self.acceptors: dict[str, Acceptor] = dict(acceptors or {})
        self.budget = budget or MemoryBudget()
        self._cluster = cluster
        self._handlers: dict[int, Any] = dict(requests.handlers())
        self._hooks = Hooks()
        holders_of = by_account_and_address(Gateways(config.trusted_gateways))
        self.deferred_saves = DeferredSaves(self._respond, _error_response, on_pending, holders_of)

    def host(self, wall_ms: Callable[[], int]) -> PluginHost:
        """The controller as plug-ins see it."""
        until = "Expiry of the TLS certificate, in seconds since 1970; 0 without a certificate"

        def measured() -> list[Metric]:
            end = self.requests.certificate.end_seconds
            own = single("certificate_end_seconds", "gauge", until, end)
            return [own, *self.requests.metrics(), *connection_metrics(self.acceptors, self.budget)]

        metrics = at_once(measured)
        return PluginHost(self, NoMessages("controller"), now_ms=wall_ms, metrics=metrics)

    def use_plugins(self, hooks: Hooks) -> None:
        """Call the hooks of these plug-ins from now on. Raises PluginRefused when a hook claims a request
        code of the controller."""
        self._handlers = hooks.completing(self._handlers)
        self._hooks = hooks
        self.asks_early = bool(hooks.heads)

    def handle(self, requests: list[Command], connection: Connection) -> None:
        """Answer the requests of a chunk in order; some are answered later."""
        for request in requests:
            response = self.answer(request, connection)
            if response is not None:
                self._respond(request, response, connection)

    def _respond(self, request: Command, response: Command, connection: Connection) -> None:
        if not request.is_oneway:
            connection.reply(response)
        if self._hooks.responses:
            self._hooks.observe(self._hooks.responses, connection, request, response)

    def on_head(self, head: Command, body_bytes: int, connection: Connection) -> Command | None:
        """Decide by the header whether the controller reads a large body: None to read it, or the refusal."""
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
        """The response to a request; None when the response comes later."""
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
        except Exception as error:
            return _error_response(request, error, connection)

    def _is_signed(self, request: Command) -> bool:
        asks_accounts = bool(self._hooks.requests)
        return self._cluster is not None and needs_secret(request, asks_accounts=asks_accounts)
