"""Request signing: decides whether a request needs a proof, and whether a proof is new rather than a replay.
See rmq.protocol.auth.signature.

A session's numbers grow, so a number that is not above its last was used before. Forgotten sessions leave the
time of their last request: an unknown session must begin after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import define, field

from rmq.errors import AccessDenied
from rmq.protocol.auth.signature import MARK_LENGTH, NONCE, SESSION_LENGTH, TIME, WINDOW_MS
from rmq_acl.accounts import OPTIONAL, REQUIRED, SHOWN, Account

SESSIONS_MAX: Final = 10_000
"""Sessions of one account that are remembered."""
START_SLACK_MS: Final = 60_000
"""Age before the start, in ms, above which a signed request may have been accepted by the previous
process."""

_SESSION: Final = slice(MARK_LENGTH, MARK_LENGTH + SESSION_LENGTH)
_COUNT: Final = slice(MARK_LENGTH + SESSION_LENGTH + 1, None)
_DIGITS_MAX: Final = 18


@define
class _Sessions:
    """Requests of an account: session -> its last number and time, the least recently used first."""

    table: OrderedDict[str, tuple[int, int]] = field(factory=OrderedDict)
    begins_ms: int = 0

    def takes(self, session: str, count: int, time_ms: int) -> bool:
        last = self.table.get(session)
        if last is None:
            if time_ms <= self.begins_ms:
                return False
            if len(self.table) >= SESSIONS_MAX:
                _, (_, until_ms) = self.table.popitem(last=False)
                self.begins_ms = max(self.begins_ms, until_ms)
        elif count <= last[0]:
            return False
        else:
            time_ms = max(time_ms, last[1])
            self.table.move_to_end(session)
        self.table[session] = (count, time_ms)
        return True


class SignedRequests:
    """The sessions of all accounts. `now_ms` is wall time.

    `admins_must`: an administrator whose entry does not say `proof` must prove its requests.
    """

    def __init__(self, now_ms: Callable[[], int], *, admins_must: bool = False) -> None:
        self._now_ms = now_ms
        self._admins_must = admins_must
        self._begin_ms = now_ms() - START_SLACK_MS
        self._sessions: dict[str, _Sessions] = {}

    def mode(self, account: Account) -> str:
        """The proof required of an account: by its entry, else by the profile."""
        return account.proof or (REQUIRED if account.admin and self._admins_must else OPTIONAL)

    def check_needed(self, account: Account) -> None:
        """Check whether a RocketMQ client's signature is enough for a request of an account. Raises
        AccessDenied if it is not."""
        mode = self.mode(account)
        if mode == REQUIRED or (mode == SHOWN and account.access_key in self._sessions):
            remark = (
                f"accessKey={account.access_key} must prove its requests (proof: {mode}), and a client of "
                "RocketMQ cannot: use rmq's, or `rmq acl set --proof optional`"
            )
            raise AccessDenied(remark=remark)

    def check_new(self, account: Account, ext: Mapping[str, str]) -> None:
        """Check the proof of a request. Raises AccessDenied unless it is recent and was never used."""
        nonce, time_ms = ext.get(NONCE, ""), _number(ext.get(TIME, ""))
        count = _number(nonce[_COUNT])
        if not nonce.startswith(account.key.mark) or min(count, time_ms) < 0:
            raise AccessDenied(remark=f"{NONCE} or {TIME} of a proved request has another form than rmq's")
        age_ms = self._now_ms() - time_ms
        if not -WINDOW_MS <= age_ms <= WINDOW_MS:
            remark = (
                f"the request was signed {age_ms / 1000:.0f} s ago by this server's clock, and "
                f"{WINDOW_MS // 1000} s are allowed: compare the clocks of client and server"
            )
            raise AccessDenied(remark=remark)
        sessions = self._sessions.get(account.access_key)
        if sessions is None:
            sessions = self._sessions[account.access_key] = _Sessions(begins_ms=self._begin_ms)
        if not sessions.takes(nonce[_SESSION], count, time_ms):
            remark = "the request was sent before, or signed before this server was started: it is refused"
            raise AccessDenied(remark=remark)

    def taking_signed(self, account: Account) -> Callable[[], None] | None:
        """`check_needed` for requests that need nothing more; None for a refusal."""
        try:
            self.check_needed(account)
        except AccessDenied:
            return None
        return _nothing

    def taking(self, account: Account, proofs: Sequence[tuple[str, str]]) -> Callable[[], None] | None:
        """`check_new` for proofs by their nonces and times, all with right signatures. Return the function
        that records them, to be called before the next check. None when a proof is refused, or needs a check
        of its own."""
        mark, session = account.key.mark, proofs[0][0][_SESSION]
        now_ms, before, latest_ms = self._now_ms(), -1, 0
        for nonce, time in proofs:
            count, time_ms = _number(nonce[_COUNT]), _number(time)
            if (
                not nonce.startswith(mark)
                or nonce[_SESSION] != session
                or count <= before
                or time_ms < 0
                or not -WINDOW_MS <= now_ms - time_ms <= WINDOW_MS
            ):
                return None
            before, latest_ms = count, max(latest_ms, time_ms)
        sessions = self._sessions.get(account.access_key)
        last = None if sessions is None else sessions.table.get(session)
        if sessions is None or last is None:
            return None  # a session begins with a request that is checked by itself
        first = _number(proofs[0][0][_COUNT])
        if first <= last[0]:
            return None

        def take() -> None:
            sessions.takes(session, before, latest_ms)

        return take

    def forget_others(self, names: Mapping[str, object]) -> None:
        """Forget the sessions of removed accounts, after a new read of the accounts."""
        for name in self._sessions.keys() - names.keys():
            del self._sessions[name]


def _number(text: str) -> int:
    return int(text) if len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit() else -1


def _nothing() -> None:
    pass
