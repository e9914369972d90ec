"""Login sessions: in memory only, bounded, and forgotten after a time without requests."""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from attrs import define, field, frozen

from rmq.dashboard.access.roles import Role
from rmq.protocol.auth.signature import Credentials
from rmq.shares import by_address

IDLE_SECONDS: Final = 30 * 60
LONGEST_SECONDS: Final = 12 * 3600
SESSIONS_MAX: Final = 1000
SESSIONS_OF_ONE: Final = 50
"""Sessions of one identity."""
NOTICES_MAX: Final = 8


@frozen
class Identity:
    """The person or program of a request.

    `kind` is account (of the cluster), user or token (of the roles file), link (of the start) or anonymous.
    Requests to the cluster carry `credentials`; with `own` unset they carry those of the dashboard itself.
    """

    name: str
    role: Role
    kind: str
    cluster: str = ""
    """An account is one of this cluster only; empty: of all."""
    credentials: Credentials | None = field(default=None, repr=False)
    own: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for each login of one user or account."""
        return self.kind, self.name, self.cluster

    @property
    def is_confined(self) -> bool:
        """True if the identity sees only its own changes and jobs, as an account of the cluster that is no
        administrator. Changes of others name topics and groups that such an account may not see."""
        return not self.own and self.role < Role.ADMIN

    @property
    def is_logged_in(self) -> bool:
        """True if it has proved its name."""
        return self.kind != "anonymous"


@frozen
class Notice:
    """A line for the next page of a session: the outcome of a change."""

    text: str
    level: str = "done"


@define(eq=False)
class Session:
    """One login."""

    id: str
    identity: Identity
    csrf: str
    began: float
    seen: float
    notices: deque[Notice] = field(factory=lambda: deque(maxlen=NOTICES_MAX))

    def is_csrf(self, token: str) -> bool:
        """True if a form's token is this session's."""
        return hmac.compare_digest(self.csrf.encode(), token.encode())

    def touch(self, now: float) -> None:
        """Note a request."""
        self.seen = now

    def become(self, identity: Identity) -> None:
        """Take the role of now."""
        self.identity = identity


class Sessions:
    """All sessions. `now` is monotonic, in seconds. Over `SESSIONS_OF_ONE` the idlest session of the same
    identity ends, so that nobody ends the sessions of others; over `SESSIONS_MAX` the idlest session of
    all."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._table: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def begin(self, identity: Identity) -> Session:
        """Make a session, under a new id."""
        now = self._now()
        session = Session(secrets.token_urlsafe(32), identity, secrets.token_urlsafe(32), now, now)
        mine = [one.id for one in self._table.values() if one.identity.key == identity.key]
        if len(mine) >= SESSIONS_OF_ONE:
            del self._table[mine[0]]
        self._table[session.id] = session
        while len(self._table) > SESSIONS_MAX:
            self._table.popitem(last=False)
        return session

    def find(self, session_id: str) -> Session | None:
        """The session of a cookie, unless it has ended."""
        session = self._table.get(session_id)
        if session is None:
            return None
        now = self._now()
        if now - session.seen > IDLE_SECONDS or not self.has(session):
            del self._table[session_id]
            return None
        session.touch(now)
        self._table.move_to_end(session_id)
        return session

    def has(self, session: Session) -> bool:
        """True if a session has not ended; no request was made, and it may be idle."""
        is_young = self._now() - session.began <= LONGEST_SECONDS
        return self._table.get(session.id) is session and is_young

    def end(self, session_id: str) -> None:
        """Log out."""
        self._table.pop(session_id, None)


ATTEMPTS: Final = 5
"""Failed logins of an address."""
ATTEMPTS_OF_A_NAME: Final = 60
"""Failed logins for a name, from all addresses. A stranger does not lock the user out by a few attempts."""
WINDOW_SECONDS: Final = 60.0
PLACES_MAX: Final = 4096


Place = tuple[str, int]
"""The place of a login, an address or a name, and the failures that it may have."""


def place_of_address(address: str) -> Place:
    """The place of an IPv4 address, or of an IPv6 network of 64 bits."""
    holders = _holders_of(f"[{address}]:0" if ":" in address else f"{address}:0")
    return f"address {holders[0] if holders else address}", ATTEMPTS


def place_of_name(name: str) -> Place:
    """The place of a user or account."""
    return f"name {name}", ATTEMPTS_OF_A_NAME


_holders_of = by_address()


class LoginLimit:
    """Counts failed logins by place, an address or a name: after so many within `WINDOW_SECONDS`, more are
    refused. It remembers at most `PLACES_MAX` places; the oldest are forgotten first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failures: OrderedDict[Place, deque[float]] = OrderedDict()

    def wait_seconds(self, *places: Place) -> float:
        """Seconds that a login from these places has to wait; 0: none."""
        return max((self._wait(place) for place in places), default=0.0)

    def _wait(self, place: Place) -> float:
        times = self._failures.get(place)
        if not times or len(times) < place[1]:
            return 0.0
        return max(times[0] + WINDOW_SECONDS - self._now(), 0.0)

    def failed(self, *places: Place) -> None:
        """Note a failure."""
        for place in places:
            times = self._failures.setdefault(place, deque(maxlen=place[1]))
            times.append(self._now())
            self._failures.move_to_end(place)
        while len(self._failures) > PLACES_MAX:
            self._failures.popitem(last=False)

    def succeeded(self, *places: Place) -> None:
        """Take the last failure of each place back, which was noted before the check: a right login between
        wrong logins does not buy more attempts."""
        for place in places:
            if times := self._failures.get(place):
                times.pop()
