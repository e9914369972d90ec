"""The server with the rights of a door's peer, for servers that store no messages: name servers and
controllers.

Accounts, deferred calls and the configuration are available; a function that concerns messages or groups is
refused. A door of such a server serves a protocol of its own over the texts of its plug-in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from rmq.doors import DoorHost
from rmq.errors import ResponseError, for_code
from rmq.protocol.codes import ResponseCode
from rmq.server.deferred import DeferredCalls
from rmq.shares import Gateways, HoldersOf, by_account_and_address

if TYPE_CHECKING:
    from rmq.plugin import Hooks
    from rmq.server.settings import ServerSettings


class Stream(Protocol):
    """The connection of a door, as its host uses it."""

    peer_address: str
    local_address: str
    state: dict[str, Any]
    has_proved: bool


class ServerOfDoors:
    """A server with doors: `title` names it in refusals, `hooks()` gives its plug-ins, `calls` are the
    deferred calls of all peers, `now_ms` is the wall clock."""

    def __init__(
        self,
        title: str,
        config: ServerSettings,
        hooks: Callable[[], Hooks],
        calls: DeferredCalls,
        now_ms: Callable[[], int],
    ) -> None:
        self.title = title
        self.config = config
        self.hooks = hooks
        self.calls = calls
        self.now_ms = now_ms
        self.holders_of: HoldersOf = by_account_and_address(Gateways(config.trusted_gateways))


class ServerDoorPeer:
    """The `rmq.doors.DoorHost` of one connection."""

    def __init__(self, server: ServerOfDoors, door: str, stream: Stream) -> None:
        self._server = server
        self._stream = stream
        self.peer_address, self.local_address = stream.peer_address, stream.local_address
        self.state = stream.state
        self.now_ms = server.now_ms
        self._soon: set[Callable[[], None]] = set()

    @property
    def config(self) -> ServerSettings:
        """The configuration of the server."""
        return self._server.config

    @property
    def has_accounts(self) -> bool:
        """Same as `rmq.doors.DoorHost.has_accounts`."""
        return self._server.hooks().has_accounts

    def authenticate(self, user: str, secret: str, *, signed: bytes | None = None) -> None:
        """Same as `rmq.doors.DoorHost.authenticate`."""
        self._server.hooks().authenticate(self, user, secret, signed)
        self._stream.has_proved = True

    def may(self, action: str, name: str) -> bool:
        """Same as `rmq.doors.DoorHost.may`."""
        return self._server.hooks().may(self, action, name)

    def defer(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Same as `rmq.doors.DoorHost.defer`."""
        self._stream.has_proved = True
        return self._server.calls.add(self, self._server.holders_of(self), seconds, call)

    def turn(self, work: Callable[[], None]) -> None:
        """Same as `rmq.doors.DoorHost.turn`."""
        work()

    def soon(self, call: Callable[[], None]) -> None:
        """Same as `rmq.doors.DoorHost.soon`: by the loop that makes deferred calls; at once when too many
        wait."""
        if call in self._soon:
            return
        try:
            self._server.calls.add(self, self._server.holders_of(self), 0.0, partial(self._call_soon, call))
        except ResponseError:
            call()
        else:
            self._soon.add(call)

    def _call_soon(self, call: Callable[[], None]) -> None:
        self._soon.discard(call)
        call()

    def closed(self) -> None:
        """Forget the calls of a connection that has ended."""
        self._server.calls.on_close(self)

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        """The functions that need messages or groups: each refuses. Raises AttributeError for other names."""
        if not hasattr(DoorHost, name):
            raise AttributeError(f"a host of doors has no {name}")

        def refuse(*given: object, **named: object) -> NoReturn:
            remark = f"{name}: a {self._server.title} stores no messages and has no groups"
            raise for_code(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

        return refuse
