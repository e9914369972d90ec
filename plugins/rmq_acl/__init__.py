"""Access control as a plug-in: `aclEnable=true` in the configuration of a broker or of a name server.

Accounts stand in plain_acl.yml, as in RocketMQ (`plainfile`, `files`). A request is refused unless a
signature proves its account (`verify`) and one table allows the request to the account (`rules`). See
docs/security.md.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import anyio

from rmq.errors import AccessDenied, RemoteProtocolError
from rmq.message import TRACE_TOPIC
from rmq.plugin import ACCOUNT, JOIN, PUBLISH, SUBSCRIBE, Handler, Host, Peer, Plugin, Run
from rmq.protocol.auth.quota import Quota
from rmq.protocol.auth.signature import ACCESS_KEY, PROOF, SIGNATURE
from rmq.protocol.command import Command
from rmq.remoting.limits import AddressRate
from rmq.server.profile import SECURE
from rmq_acl.accounts import Account
from rmq_acl.addresses import host_of
from rmq_acl.audit import Audit
from rmq_acl.authentication import Authentication
from rmq_acl.commands import Commands
from rmq_acl.files import KEPT, AclFiles, State, find
from rmq_acl.permissions import PUB, SUB
from rmq_acl.rules import GROUP, TOPIC, TRACE_CODES, Level, check, has_rights, is_free_trace, may
from rmq_acl.verify import by_address

__all__ = ["AclPlugin"]

POLL_SECONDS: Final = 1.0
"""Seconds between two looks at the files of accounts."""
TRACE_BYTES: Final = 16 << 10
TRACE_BURST_SECONDS: Final = 60.0
"""Traces in a second, and seconds for which they are saved up, of an account without other permissions: every
account may write traces."""
ADMITTED_MAX: Final = 16
"""Administrators' requests that are remembered until they are answered: some answers wait for a written
file."""

_NEEDS: Final = {PUBLISH: (TOPIC, PUB), SUBSCRIBE: (TOPIC, SUB), JOIN: (GROUP, SUB)}
"""Action of a door's peer -> kind and permission."""

log = logging.getLogger("rmq.acl")


class AclPlugin(Plugin):
    """The gate: raises AccessDenied for a request that is not allowed."""

    def __init__(self, config: Mapping[str, str], host: Host) -> None:
        super().__init__(config, host)
        settings = host.config
        self.files = AclFiles(find(settings.acl_file, settings.config_store_path, os.environ))
        self.files.load()
        self.audit = Audit(settings.acl_audit_file, time.monotonic)
        self._commands = Commands(self.files, host)
        self._senders = Authentication(host.now_ms, time.monotonic, admins_must=settings.profile == SECURE)
        self._admitted: deque[Command] = deque(maxlen=ADMITTED_MAX)
        self._traces = AddressRate(TRACE_BYTES, TRACE_BURST_SECONDS)  # by accounts

    def on_request(self, peer: Peer, command: Command) -> None:
        """Let a request through, or refuse it with AccessDenied."""
        try:
            sender = self._senders.of(peer, command, self.files.accounts)
            level = check(command, sender, self.host.topic_of)
            self._check_traces(command, sender.account)
        except AccessDenied as error:
            self.audit.refused(peer.peer_address, command, getattr(error, "reason", error.remark))
            raise
        except (RemoteProtocolError, ValueError) as error:  # a header that is not text
            self.audit.refused(peer.peer_address, command, "its header cannot be read")
            raise AccessDenied(remark="the header cannot be read, so it has no valid signature") from error
        if level is Level.ADMIN:
            self._admitted.append(command)
            self.audit.admin(peer.peer_address, command)

    def _check_traces(self, command: Command, account: Account | None) -> None:
        """Limit the traces of an account without other permissions. Raises AccessDenied."""
        if account is None or command.code not in TRACE_CODES or not is_free_trace(account, command):
            return
        if not self._traces.take(account.access_key, time.monotonic(), len(command.body)):
            raise AccessDenied(
                remark=f"accessKey={account.access_key} may do nothing, and has sent more than {TRACE_BYTES} "
                "bytes of traces in a second"
            )

    def on_run(self, peer: Peer, run: Run) -> Callable[[], None] | None:
        """Let sends of an account through, if each has a valid signature and the account may send to its
        topic."""
        accounts, name = self.files.accounts, run.account
        if name is None:
            sender = by_address(None, accounts, peer.peer_address)
            return _nothing if sender is not None and sender.account is None else None
        account = accounts.table.get(name)
        topics = run.topics()
        if account is None or not all(may(account, TOPIC, topic, PUB) for topic in topics):
            return None
        if TRACE_TOPIC in topics and not has_rights(account):
            return None  # each is counted
        if account.quota is not None and account.quota.limits_produce:
            return None
        return self._senders.of_run(peer, run, account)

    def on_head(self, peer: Peer, command: Command) -> None:
        """Refuse unsigned requests at once; a signature is checked when the body has arrived."""
        try:
            ext = command.ext
        except (RemoteProtocolError, ValueError):
            ext = {}
        name = ext.get(ACCESS_KEY)
        if name is not None and (SIGNATURE in ext or PROOF in ext):
            return
        if by_address(name, self.files.accounts, peer.peer_address) is None:
            self.on_request(peer, command)

    def may_publish(self, peer: Peer, topic: str) -> bool:
        """True if the account of a connection may send to a topic, according to the present files."""
        accounts, name = self.files.accounts, peer.state.get(ACCOUNT)
        if name is None:
            return accounts.is_white(host_of(peer.peer_address))
        account = accounts.table.get(name)
        return account is not None and may(account, TOPIC, topic, PUB)

    def may_act_for(self, peer: Peer, account: str) -> bool:
        """True if a connection works for that account, for an administrator, or from a white address."""
        accounts, name = self.files.accounts, peer.state.get(ACCOUNT)
        if name is None:
            return accounts.is_white(host_of(peer.peer_address))
        mine = accounts.table.get(name)
        return mine is not None and (name == account or mine.is_unlimited)

    def quota(self, account: str) -> Quota | None:
        """The quota of an account, according to the present files."""
        found = self.files.accounts.table.get(account)
        return None if found is None else found.quota

    def authenticate(self, peer: Peer, user: str, secret: str, signed: bytes | None) -> None:
        """Let a door's peer work for an account, or refuse it with AccessDenied."""
        try:
            self._senders.login(peer, user, secret, signed, self.files.accounts)
        except AccessDenied as error:
            self.audit.login_refused(peer.peer_address, user, getattr(error, "reason", error.remark))
            raise

    def authenticate_certificate(self, peer: Peer, name: str) -> None:
        """Let a door's peer work for the account of its certificate's name, or refuse it with
        AccessDenied."""
        if name not in self.files.accounts.table:
            self.audit.login_refused(peer.peer_address, name, "no account has the name of the certificate")
            raise AccessDenied(remark=f"no account has the name of the certificate, {name}")
        peer.state[ACCOUNT] = name

    def may(self, peer: Peer, action: str, name: str) -> bool:
        """True if the account of a door's peer has a right, by the present files; without an account, if its
        address is white."""
        accounts, user = self.files.accounts, peer.state.get(ACCOUNT)
        if user is None:
            return accounts.is_white(host_of(peer.peer_address))
        account = accounts.table.get(user)
        if account is None or (name == TRACE_TOPIC and not has_rights(account)):
            return False
        kind, needed = _NEEDS[action]
        return may(account, kind, name, needed)

    def on_response(self, peer: Peer, command: Command, response: Command) -> None:
        """Record that an administrator's request has failed."""
        if response.code and any(command is admitted for admitted in self._admitted):
            self.audit.admin(peer.peer_address, command, f"failed with code {response.code}")

    def handlers(self) -> Mapping[int, Handler]:
        """The requests about accounts, 50-54."""
        return self._commands.handlers()

    def shared(self) -> bytes:
        """The files of accounts."""
        return self.files.shared()

    def take_shared(self, text: bytes) -> None:
        """Take the master's files of accounts, once they are written locally."""
        self.host.save(partial(self.files.following, text), self._followed, _refused)

    def _followed(self, state: State | None) -> None:
        if state is not None:
            self.files.take(state)
            self._changed()
            log.warning(
                "took the master's accounts; the accounts from before are in %s%s", self.files.main, KEPT
            )

    def _changed(self) -> None:
        self._senders.proofs.forget_others(self.files.accounts.table)
        self.host.shared_changed()

    async def run(self) -> None:
        """Read the accounts again when a file has changed."""
        while True:
            await anyio.sleep(POLL_SECONDS)
            if self.files.poll():
                self._changed()


def _nothing() -> None:
    pass


def _refused(error: Exception) -> None:
    log.error("cannot take the master's accounts, keeping our own: %s", error)
