"""Verification of a command: the account whose signature it carries. Pure; also for the name server and
tests."""

from __future__ import annotations

import hmac
import secrets
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import frozen

from rmq.errors import AccessDenied
from rmq.plugin import Run
from rmq.protocol.auth.signature import ACCESS_KEY, PROOF, SIGNATURE, Key, order_of, proof, signature_of
from rmq.protocol.codes import RequestCode
from rmq.protocol.command import Command
from rmq_acl.accounts import Account, Accounts
from rmq_acl.addresses import host_of
from rmq_acl.request_signing import SignedRequests

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""A field of QUERY_MESSAGE that Java clients before 4.9 do not sign; later clients do."""

_NOBODY: Final = Account("", secrets.token_hex())
"""Stands for a missing account, so that the time of an answer does not show its absence."""


class Unproved(AccessDenied):
    """A signature is wrong, or the account is unknown: the sender gets the same text for both, `reason` is
    for the audit log."""

    def __init__(self, name: str, *, known: bool) -> None:
        super().__init__(remark=f"Check signature failed for accessKey={name[:128]}")
        self.reason = self.remark if known else f"No acl config for {name[:128]}"


@frozen
class Sender:
    """Sender of a command: an account, or None for a white address; `signed` is true if a signature proves
    the account."""

    account: Account | None
    is_signed: bool

    @property
    def name(self) -> str:
        """The account, for a log."""
        return "(white address)" if self.account is None else self.account.access_key


def identify(command: Command, accounts: Accounts, peer: str, proofs: SignedRequests) -> Sender:
    """The sender of a command from the address `peer`; raises AccessDenied for an unknown sender.

    An address of the global white list needs no account, an address of an account's own list no signature;
    `signed` is False for both, unless they bring a right signature.
    """
    try:
        return Sender(_signer(command, accounts, proofs), True)
    except AccessDenied as refusal:
        unsigned = by_address(command.ext.get(ACCESS_KEY), accounts, peer)
        if unsigned is None or (unsigned.account is not None and not isinstance(refusal, Unproved)):
            raise
        return unsigned


def by_address(name: str | None, accounts: Accounts, peer: str) -> Sender | None:
    """The sender of an unsigned command, by the address `peer`: any sender from a global white address, the
    given account from a white address of its own. Else None."""
    host = host_of(peer)
    if accounts.white and accounts.is_white(host):
        return Sender(None, False)
    account = accounts.table.get(name or "")
    return Sender(account, False) if account is not None and host in account.white else None


def _signer(command: Command, accounts: Accounts, proofs: SignedRequests) -> Account:
    """The account that signed a command. Raises AccessDenied, Unproved when the signature is wrong."""
    ext = command.ext
    name = ext.get(ACCESS_KEY)
    if name is None:
        raise AccessDenied(remark="No accessKey is configured")
    account = accounts.table.get(name, _NOBODY)
    order, given = order_of(ext), ext.get(PROOF)
    if given is not None:
        holds = _same(given, proof(order, ext, command, account.key))
    else:
        holds = _is_signed_as_by_java(command, ext, account.key)
    if not holds or account is _NOBODY:
        raise Unproved(name, known=account is not _NOBODY)
    if given is not None:
        proofs.check_new(account, ext)
    else:
        proofs.check_needed(account)
    if not order.is_kept:
        order.keep()
    return account


def holding(run: Run, account: Account) -> list[tuple[bytes, bytes, str, str]]:
    """The content of `run.signed`, if each signature or proof is valid by the account's secret; else
    nothing."""
    key, signed = account.key, run.signed()
    mark = key.mark.encode()
    for content, given, nonce, _ in signed:
        digest = key.sha256() if nonce else key.sha1()
        digest.update(content)
        if not hmac.compare_digest(given, b64encode(digest.digest())) or (not nonce and mark in content):
            return []
    return signed


def is_login(accounts: Accounts, user: str, secret: str, signed: bytes | None) -> bool:
    """True if a secret, or the signature of `signed` under it, is that of an account."""
    account = accounts.table.get(user, _NOBODY)
    expected = account.secret_key if signed is None else signature_of(signed, account.key)
    return _same(secret, expected) and account is not _NOBODY


def _is_signed_as_by_java(command: Command, ext: Mapping[str, str], key: Key) -> bool:
    given = ext.get(SIGNATURE)
    if not given:
        return False
    for signed in _as_signed(command, ext):
        content = order_of(signed).content(signed, command.body)
        if _same(given, signature_of(content, key)):
            # A proved request whose fields were given other names, to hide its proof.
            return key.mark.encode() not in content
    return False


def _as_signed(command: Command, ext: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """The header in each form that a client may have signed."""
    yield ext
    if command.code == RequestCode.QUERY_MESSAGE and UNIQUE_KEY_QUERY in ext:
        yield {name: value for name, value in ext.items() if name != UNIQUE_KEY_QUERY}
    as_sent = command.ext_as_sent()
    if as_sent is not None:
        yield as_sent


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode(errors="surrogatepass"))
