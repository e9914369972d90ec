"""Authentication of a connection's requests: signatures, proofs, and the throttle of guesses together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rmq.errors import AccessDenied
from rmq.plugin import ACCOUNT, Peer, Run
from rmq.protocol.auth.signature import ACCESS_KEY, PROOF, SIGNATURE
from rmq.protocol.command import Command
from rmq_acl.accounts import Account, Accounts
from rmq_acl.addresses import host_of
from rmq_acl.login_throttle import LoginThrottle
from rmq_acl.request_signing import SignedRequests
from rmq_acl.verify import Sender, Unproved, by_address, holding, identify, is_login

_PROVED: Final = "proved account"
"""The key of `Peer.state` for the account of a connection's last valid signature."""


class Authentication:
    """Authentication of requests. `now_ms` is wall time, `clock` returns seconds. `admins_must`: see
    `SignedRequests`."""

    def __init__(self, now_ms: Callable[[], int], clock: Callable[[], float], *, admins_must: bool) -> None:
        self.proofs = SignedRequests(now_ms, admins_must=admins_must)
        self._guesses = LoginThrottle(clock)

    def of(self, peer: Peer, command: Command, accounts: Accounts) -> Sender:
        """The sender of a command; the connection keeps its account. Raises AccessDenied."""
        state, name = peer.state, command.ext.get(ACCESS_KEY)
        if name is None or state.get(_PROVED) == name:
            sender = self._identified(peer, command, accounts)
        else:
            sender = self._new(peer, command, name, accounts)
        if sender.account is not None:
            state[ACCOUNT] = name
        return sender

    def login(self, peer: Peer, user: str, secret: str, signed: bytes | None, accounts: Accounts) -> None:
        """Let a door's peer work for an account that it proves: by its secret, or by the signature of
        `signed`. Failures count like wrong signatures of requests. Raises AccessDenied."""
        host = host_of(peer.peer_address)
        self._guesses.check(host, user)
        if not is_login(accounts, user, secret, signed):
            self._guesses.failed(host, user)
            raise Unproved(user, known=user in accounts.table)
        peer.state[ACCOUNT] = user

    def of_run(self, peer: Peer, run: Run, account: Account) -> Callable[[], None] | None:
        """The sender that `of` would record for sends under this account's name; None when `of` must check
        them: the connection has not proved the account yet, a signature is wrong, or a proof is not new."""
        state = peer.state
        if state.get(_PROVED) != account.access_key or not (signed := holding(run, account)):
            return None
        nonces = [(nonce, time) for _, _, nonce, time in signed if nonce]
        if nonces and len(nonces) < len(signed):
            return None  # signatures beside proofs: the one that comes first counts
        take = self.proofs.taking(account, nonces) if nonces else self.proofs.taking_signed(account)
        if take is None:
            return None

        def note() -> None:
            state[ACCOUNT] = account.access_key
            take()

        return note

    def _new(self, peer: Peer, command: Command, name: str, accounts: Accounts) -> Sender:
        """The sender on a connection that has shown no valid signature of this account yet."""
        host, address = host_of(peer.peer_address), peer.peer_address
        shows = SIGNATURE in command.ext or PROOF in command.ext
        try:
            if shows:
                self._guesses.check(host, name)
        except AccessDenied:
            unsigned = by_address(name, accounts, address)
            if unsigned is None:
                raise
            return unsigned
        sender = self._identified(peer, command, accounts)
        if sender.is_signed:
            peer.state[_PROVED] = name
        elif shows:
            self._guesses.failed(host, name)
        return sender

    def _identified(self, peer: Peer, command: Command, accounts: Accounts) -> Sender:
        try:
            return identify(command, accounts, peer.peer_address, self.proofs)
        except Unproved:
            peer.state.pop(_PROVED, None)
            self._guesses.failed(host_of(peer.peer_address), command.ext[ACCESS_KEY])
            raise
