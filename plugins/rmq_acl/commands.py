"""The requests about accounts (50-54), which only administrators reach. Answers never hold a secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmq.errors import ResponseError
from rmq.plugin import Handler, Host, Peer
from rmq.protocol import json
from rmq.protocol.bodies import DataVersion
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
)
from rmq_acl.accounts import Account
from rmq_acl.edits import MASK, Edit, delete_account, set_global_white, split, update_account
from rmq_acl.files import AclFiles, State
from rmq_acl.permissions import NAMES
from rmq_acl.plainfile import AclFileError


class Commands:
    """Handlers of requests about accounts, from the files and changing them."""

    def __init__(self, files: AclFiles, host: Host) -> None:
        self._files = files
        self._host = host

    def handlers(self) -> Mapping[int, Handler]:
        """Request codes and their handlers."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self._on_update,
            RequestCode.DELETE_ACL_CONFIG: self._on_delete,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self._on_version,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self._on_global_white,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self._on_config,
        }

    def _on_update(self, request: Command, peer: Peer, now_ms: int) -> Command | None:
        header = request.read(CreateAccessConfigRequestHeader)
        path = self._files.path_of(header.access_key)
        what = f"account {header.access_key!r} was not changed"
        edit = update_account(header, request.ext)
        return self._change(request, peer, path, edit, _refusal(209, what))

    def _on_delete(self, request: Command, peer: Peer, now_ms: int) -> Command | None:
        name = request.read(DeleteAccessConfigRequestHeader).access_key
        path = self._files.path_of(name)
        refusal = _refusal(210, f"account {name!r} was not deleted")
        return self._change(request, peer, path, delete_account(name), refusal)

    def _on_global_white(self, request: Command, peer: Peer, now_ms: int) -> Command | None:
        """Set the global white addresses, in a file that is read already: no path of the sender's choice is
        written."""
        refusal = _refusal(211, "global white addresses were not changed")
        path = request.ext.get("aclFileFullPath") or str(self._files.main)
        if path != str(self._files.main) and path not in self._files.versions():
            raise refusal(f"{path[:200]} is none of {', '.join(self._files.versions())}")
        edit = set_global_white(split(request.ext.get("globalWhiteAddrs")))
        return self._change(request, peer, path, edit, refusal)

    def _change(
        self,
        request: Command,
        peer: Peer,
        path: str,
        edit: Edit,
        refusal: Callable[[object], ResponseError],
    ) -> Command | None:
        """The response once the file has the result of `edit`, and the accounts are in force. The file gets
        the wall time of its change: a name server's requests have the time of a clock that begins with the
        machine's start."""
        now_ms = self._host.now_ms()

        def write() -> tuple[State, ResponseError | None]:
            try:
                state = self._files.fresh()
            except AclFileError as error:
                raise refusal(error) from None
            try:
                return self._files.changed(state, path, edit, now_ms), None
            except (AclFileError, ValueError) as error:
                return state, refusal(error)

        def then(done: tuple[State, ResponseError | None]) -> Command:
            state, refused = done
            self._files.take(state)  # also when refused: another server may have changed these files
            self._host.shared_changed()
            if refused is not None:
                raise refused
            return request.reply()

        return self._host.answer_saved(request, peer, write, then)

    def _on_version(self, request: Command, peer: Peer, now_ms: int) -> Command:
        config, versions = self._host.config, self._files.versions()
        main = versions.get(str(self._files.main), DataVersion())
        header = GetBrokerAclConfigResponseHeader(
            main.to_json().decode(),
            json.dumps({path: version.to_value() for path, version in versions.items()}).decode(),
            broker_name=getattr(config, "broker_name", ""),
            broker_addr=self._host.address,
            cluster_name=getattr(config, "broker_cluster_name", ""),
        )
        return request.reply(header=header)

    def _on_config(self, request: Command, peer: Peer, now_ms: int) -> Command:
        accounts = self._files.accounts
        body = {
            "globalWhiteAddrs": [white.text for white in accounts.white],
            "plainAccessConfigs": [shown(account) for account in accounts.table.values()],
        }
        return request.reply(body=json.dumps(body))


def shown(account: Account) -> dict[str, Any]:
    """An account in the form of request 54's response, with a mask for its secret."""
    row: dict[str, Any] = {
        "accessKey": account.access_key,
        "admin": account.admin,
        "defaultGroupPerm": NAMES[account.default_group],
        "defaultTopicPerm": NAMES[account.default_topic],
        "groupPerms": _texts(account.groups),
        "secretKey": MASK,
        "topicPerms": _texts(account.topics),
        "whiteRemoteAddress": account.white.text,
    }
    own = {"proof": account.proof, "quota": account.quota_text}
    return row | {name: text for name, text in own.items() if text}


def _texts(owned: Mapping[str, int]) -> Sequence[str]:
    return [f"{name}={NAMES[permission]}" for name, permission in owned.items()]


def _refusal(code: int, what: str) -> Callable[[object], ResponseError]:
    return lambda why: ResponseError(int(ResponseCode(code)), f"{what}: {why}")
