"""Errors of the dashboard itself, and any error as a value: class, code, hint, and a status of HTTP."""

from __future__ import annotations

from typing import ClassVar, Final

from attrs import frozen

from rmq.errors import (
    NETWORK_ERRORS,
    AccessDenied,
    ConfigError,
    ConsumerNotOnline,
    InvalidName,
    LocalProtocolError,
    MessageIllegal,
    NoPermission,
    NoRoute,
    NotNameServers,
    QueryNotFound,
    RequestCodeNotSupported,
    RequestTimeout,
    RmqError,
    ServiceNotAvailable,
    SubscriptionGroupNotExist,
    SubscriptionNotExist,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotExist,
    Unreachable,
)


class DashboardError(RmqError):
    """An error of the dashboard; `status` is HTTP's."""

    status: ClassVar[int] = 400
    hint = "correct the request"


class BadRequest(DashboardError):
    """A parameter is missing, has a wrong value, or is not known."""


class NotConfirmed(DashboardError):
    """The repeated name does not match the object to delete."""

    hint = "type the name again, exactly as it is"


class LoginNeeded(DashboardError):
    """The request needs a login."""

    status = 401
    hint = "log in on the page, or send a token"


class LoginFailed(DashboardError):
    """The name or the secret is wrong."""

    status = 401
    hint = "check the name and the secret; after five failures a minute has to pass"


class NotVerified(DashboardError):
    """No server could check a secret."""

    status = 503
    hint = "wait for a broker, or log in by the roles file"


class Forbidden(DashboardError):
    """The role does not allow it, or the request does not come from a page of this dashboard."""

    status = 403
    hint = "log in with a role that may do this"


class Conflict(DashboardError):
    """The settings have changed since the caller saw them."""

    status = 409
    hint = "look at the present settings, and change them again"


class NotCleared(DashboardError):
    """The servers keep a list of an account that was to be emptied."""

    status = 501
    hint = "delete the account and create it again, or give an entry with DENY"


class UnknownCluster(DashboardError):
    """No cluster of this name is shown here."""

    status = 404

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no cluster {name!r} is shown here; known are {', '.join(known)}")
        self.hint = "open the start page"


class NotFound(DashboardError):
    """There is no such page."""

    status = 404
    hint = "open the start page"


class UnknownName(DashboardError):
    """The cluster has nothing of this name: no such broker, group, member, account, setting or job."""

    status = 404
    hint = "check the name; the list of its page has all names"


class NoAnswer(DashboardError):
    """A member of a group has not answered in time."""

    status = 504
    hint = "the member or its network hangs, or its client does not support the request; see the member's log"


class TooMany(DashboardError):
    """A limit on logins, on open streams or on jobs is reached."""

    status = 429
    hint = "wait, or close other pages"


class TooManyLogins(TooMany):
    """An address or a name has had too many failed logins."""

    hint = "wait, and check the name and the secret"


_STATUSES: Final = (
    ((AccessDenied, NoPermission), 403),
    ((NoRoute, QueryNotFound, TopicNotExist, ConsumerNotOnline), 404),
    ((SubscriptionGroupNotExist, SubscriptionNotExist), 404),
    ((ConfigError, InvalidName, LocalProtocolError, MessageIllegal, SubscriptionParseFailed), 400),
    ((RequestCodeNotSupported,), 501),
    ((SystemBusy, ServiceNotAvailable), 503),
    ((RequestTimeout,), 504),
    (NETWORK_ERRORS, 502),
)


@frozen
class Problem:
    """An error, as the API gives it. `name` is its class, `code` RocketMQ's response code (0: none)."""

    name: str
    code: int
    message: str
    hint: str
    broker: str = ""
    retriable: bool = False


@frozen
class ProblemBody:
    """The body of every answer that is an error."""

    error: Problem


def status_of(error: RmqError | OSError) -> int:
    """The status of HTTP for an error."""
    if isinstance(error, DashboardError):
        return error.status
    if isinstance(error, Unreachable | NotNameServers):
        return 502
    if isinstance(error, NoRoute) and error.refused:
        return 403
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), 502)


INTERNAL: Final = Problem(
    "InternalError",
    0,
    "internal error of the dashboard",
    "see its log, which has the traceback, and report it",
)
"""For an error that nobody has foreseen."""


def problem_of(error: RmqError | OSError) -> Problem:
    """The error as a value."""
    if not isinstance(error, RmqError):
        return Problem(type(error).__name__, 0, str(error), "see the dashboard's log")
    code = getattr(error, "code", 0)
    return Problem(
        type(error).__name__,
        code if isinstance(code, int) else 0,
        str(error),
        error.hint,
        error.broker,
        error.retriable,
    )
