"""Operation: the decorator, the arguments checked by their types, and the call with role and audit line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_type_hints

import msgspec
from attrs import field, frozen

from rmq.client.admin import Admin
from rmq.client.client import Client
from rmq.client.settings.target import Target
from rmq.dashboard.access.audit import AuditLog
from rmq.dashboard.access.roles import Role
from rmq.dashboard.access.sessions import Identity
from rmq.dashboard.clusters import Cache
from rmq.dashboard.errors import BadRequest, Forbidden, LoginNeeded
from rmq.dashboard.jobs import Jobs, Progress
from rmq.errors import RmqError
from rmq.operate.controllers import Controllers, opened
from rmq.protocol.auth.signature import Credentials
from rmq.remoting.network import Network

if TYPE_CHECKING:
    from rmq.dashboard.history.history import History

RunBlocking = Callable[..., Awaitable[Any]]
Again = Callable[[Progress, str, dict[str, Any]], Awaitable[Any]]
Method = Literal["GET", "POST", "PUT", "DELETE"]
R = TypeVar("R")

HELD_SECONDS: Final = 2.0
LARGE_HELD_SECONDS: Final = 10.0
"""For how long answers about the whole cluster are shared among viewers; large ones for longer."""


@frozen
class Call:
    """The context of an operation: a client with the caller's account, and the dashboard's parts.

    `progress` takes the steps of a long operation; `again` performs another operation as the same caller,
    `opened` is the same call for a stream, which outlives this one.
    """

    client: Client
    cache: Cache = field(repr=False)
    cluster: str
    identity: Identity
    history: History = field(repr=False)
    audit: AuditLog = field(repr=False)
    now_ms: Callable[[], int] = field(repr=False)
    jobs: Jobs = field(repr=False)
    again: Again = field(repr=False)
    opened: Callable[[], AbstractAsyncContextManager[Call]] = field(repr=False)
    run_blocking: RunBlocking = field(repr=False)
    progress: Progress = field(factory=Progress)
    address: str = ""
    target: Target | None = field(default=None, repr=False)
    credentials: Credentials | None = field(default=None, repr=False)
    network: Network | None = field(default=None, repr=False)
    is_current: Callable[[], bool] = field(default=lambda: True, repr=False)
    """False when the login of the caller has ended, or its role has changed: a stream ends then."""

    def controllers(self, addresses: Sequence[str]) -> AbstractAsyncContextManager[Controllers]:
        """The controllers at these addresses, with the caller's account."""
        tls = self.target.tls if self.target is not None else None
        return opened(addresses, credentials=self.credentials, tls=tls, network=self.network)

    @property
    def admin(self) -> Admin:
        """The administrator's part of the client."""
        return self.client.admin

    async def held(self, name: str, fetch: Callable[[], Awaitable[R]], seconds: float = HELD_SECONDS) -> R:
        """An answer about the whole cluster, shared among viewers for so long."""
        return await self.cache.get(name, seconds, fetch)


@frozen
class Operation:
    """One act. `path` is below a cluster's; `arguments` is the type that a request is read into."""

    name: str
    method: Method
    path: str
    role: Role
    summary: str
    tag: str
    function: Callable[..., Awaitable[Any]]
    arguments: type[msgspec.Struct]
    result: Any
    is_long: bool = False
    """True if it may run as a job."""
    media: tuple[str, ...] = ()
    """The media types of a stream; none for a result in JSON."""

    @property
    def changes(self) -> bool:
        """True if it changes something: then it is written to the audit log."""
        return self.method != "GET"

    @property
    def path_names(self) -> list[str]:
        """The arguments in the path."""
        return re.findall(r"{(\w+)}", self.path)


OPERATIONS: Final[dict[str, Operation]] = {}
"""All operations by name; modules of this folder fill it when they are imported."""


def operation(
    method: Method,
    path: str,
    role: Role = Role.READER,
    *,
    is_long: bool = False,
    media: tuple[str, ...] = (),
) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Awaitable[R]]]:
    """Register an async function `act(call, *, ...)` as an operation. The first line of its docstring is the
    summary; its module's name is the tag."""

    def register(function: Callable[..., Awaitable[R]]) -> Callable[..., Awaitable[R]]:
        hints = get_type_hints(function, include_extras=True)
        fields: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                continue
            kind = hints[parameter.name]
            if parameter.default is inspect.Parameter.empty:
                fields.append((parameter.name, kind))
            else:
                fields.append((parameter.name, kind, parameter.default))
        name = function.__name__
        title = "".join(word.title() for word in name.split("_"))
        arguments = msgspec.defstruct(f"{title}Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        text = inspect.getdoc(function) or ""
        OPERATIONS[name] = Operation(
            name,
            method,
            path,
            role,
            " ".join(text.split("\n\n")[0].split()),
            function.__module__.rpartition(".")[2],
            function,
            arguments,
            hints["return"],
            is_long,
            media,
        )
        return function

    return register


async def perform(call: Call, name: str, given: Mapping[str, Any]) -> Any:
    """Check the role and the arguments, act, and write the audit line of a change. Raises LoginNeeded,
    Forbidden, BadRequest, and what the operation raises."""
    found = OPERATIONS[name]
    check_role(call.identity, found.role)
    values = arguments_of(found, given)
    if not found.changes:
        return await found.function(call, **values)
    outcome = "cancelled"
    try:
        result = await found.function(call, **values)
        outcome = "done"
    except (RmqError, OSError) as error:
        outcome = f"{type(error).__name__}: {error}"
        raise
    except Exception as error:
        outcome = f"failed: {type(error).__name__}"
        raise
    finally:
        call.cache.clear()
        identity = call.identity
        call.audit.write(
            identity.name,
            identity.role.label,
            call.address,
            call.cluster,
            name,
            values,
            outcome,
            identity.kind,
        )
    return result


def arguments_of(found: Operation, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a request with their types and defaults. Raises BadRequest."""
    try:
        arguments = msgspec.convert(dict(given), found.arguments, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(_words(str(error))) from None
    return {key: getattr(arguments, key) for key in arguments.__struct_fields__}


def check_role(identity: Identity, needed: Role) -> None:
    """Raises LoginNeeded or Forbidden when the role is not enough; a change needs a login in any case."""
    if needed > Role.READER and not identity.is_logged_in:
        raise LoginNeeded(f"this needs the role {needed.label}: log in first")
    if identity.role < needed:
        raise Forbidden(f"this needs the role {needed.label}; {identity.name} is {identity.role.label}")


def _words(text: str) -> str:
    """A message of msgspec with the argument's name as people know it."""
    place = re.search(r" - at `\$\.?(.*)`$", text)
    if place is None:
        return text
    return f"{place[1] or 'the request'}: {text[: place.start()]}"
