"""Who sent a command: the account whose signature it carries. Pure; the name server and tests use it too."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from rmq.errors import AccessDenied
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq.protocol.signature import ACCESS_KEY, SIGNATURE, signature
from rmq_acl.accounts import Account, Accounts
from rmq_acl.addresses import host_of

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Java clients before 4.9 leave this field of QUERY_MESSAGE out of what they sign; later ones do not."""


@frozen
class Sender:
    """Who a command is from: an account, or None for a white address; and whether a signature proves it."""

    account: Account | None
    signed: bool

    @property
    def name(self) -> str:
        """The account, for a log."""
        return "(white address)" if self.account is None else self.account.access_key


def verify(command: Command, accounts: Accounts) -> Account:
    """The account that signed a command. Raises AccessDenied, whose remark is Java's."""
    account, ext = _claimed(command, accounts), command.ext
    if not _is_signed(command, ext, account.secret_key):
        raise AccessDenied(remark=f"Check signature failed for accessKey={account.access_key}")
    return account


def identify(command: Command, accounts: Accounts, peer: str) -> Sender:
    """Who sent a command from the address `peer`; raises AccessDenied when that is nobody.

    An address of the global white list needs no account, one of an account's own list no signature; `signed`
    is False for both, unless they bring one that holds.
    """
    if accounts.white and accounts.is_white(host_of(peer)):
        return _white_sender(command, accounts)
    account = _claimed(command, accounts)
    if _is_signed(command, command.ext, account.secret_key):
        return Sender(account, True)
    if host_of(peer) in account.white:
        return Sender(account, False)
    raise AccessDenied(remark=f"Check signature failed for accessKey={account.access_key}")


def _white_sender(command: Command, accounts: Accounts) -> Sender:
    """From a white address anything goes that needs no administrator; who signs may be one."""
    try:
        return Sender(verify(command, accounts), True)
    except AccessDenied:
        return Sender(None, False)


def _claimed(command: Command, accounts: Accounts) -> Account:
    name = command.ext.get(ACCESS_KEY)
    if name is None:
        raise AccessDenied(remark="No accessKey is configured")
    account = accounts.table.get(name)
    if account is None:
        raise AccessDenied(remark=f"No acl config for {name[:128]}")
    return account


def _is_signed(command: Command, ext: Mapping[str, str], secret: str) -> bool:
    given = ext.get(SIGNATURE)
    if not given:
        return False
    if _same(given, signature(ext, command.body, secret)):
        return True
    if command.code != RequestCode.QUERY_MESSAGE or UNIQUE_KEY_QUERY not in ext:
        return False
    shorter = {name: value for name, value in ext.items() if name != UNIQUE_KEY_QUERY}
    return _same(given, signature(shorter, command.body, secret))


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode())
