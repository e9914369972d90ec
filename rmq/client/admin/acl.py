"""Acl: accounts and white addresses of brokers with RocketMQ 4.9's access control."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from attrs import field, frozen

from rmq.client.admin.cluster import Cluster, each
from rmq.errors import (
    NETWORK_ERRORS,
    RemoteProtocolError,
    RequestCodeNotSupported,
    RequestTimeout,
    ResponseError,
)
from rmq.protocol import json
from rmq.protocol.bodies import DataVersion
from rmq.protocol.codes import RequestCode, ResponseCode
from rmq.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
    encode,
)

NAMESRV_PATIENCE_SECONDS: Final = 1.0
"""Java's name servers do not answer at all to requests about accounts."""


@frozen
class AclVersion:
    """The version of a broker's access control file: a counter and the time of its last change."""

    cluster: str
    broker_name: str
    broker_address: str
    counter: int
    timestamp: int
    file: str = ""


@frozen
class AclAccount:
    """An account of access control. Permissions are ``topic=PUB|SUB`` and the like. `secret_key` is write
    only: a secret sent by a server is dropped. `proof` is required, shown, optional, or empty, which leaves
    the choice to the server. `quota` limits the messages and bytes that the account sends and receives in a
    second, as ``produceMessages=1000,consumeBytes=10m``. RocketMQ's servers have neither."""

    access_key: str
    secret_key: str = field(default="", repr=False)
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()
    proof: str = ""
    quota: str = ""


@frozen
class AclConfig:
    """The accounts of a broker, and addresses that need none."""

    global_white_addresses: tuple[str, ...]
    accounts: tuple[AclAccount, ...]


class Acl(Cluster):
    """Access control methods of `client.admin`; for admin accounts only.

    Servers do not copy accounts from each other: a change goes to masters and slaves, and to name servers
    that keep accounts, unless a broker is given.
    """

    async def acl_servers(self, *, cluster: str = "", broker: str = "", answering: bool = False) -> list[str]:
        """The addresses of all servers at which accounts are changed. With `answering`, name servers that do
        not answer are left out; otherwise their silence is an error."""
        found = await self.broker_addresses(cluster=cluster, broker=broker, slaves=True)
        for name_server in [] if broker else self.name_servers:
            try:
                if await self._keeps(name_server):
                    found.append(name_server)
            except NETWORK_ERRORS:
                if not answering:
                    raise
        return found

    async def _keeps(self, name_server: str) -> bool:
        """True if a name server keeps accounts. Raises the errors of the network when it does not answer
        anything, NoPermission when it refuses this account, and other refusals."""
        try:
            return await self._has_accounts(name_server)
        except RequestTimeout:
            # Java's name servers do not answer. A server that hangs answers nothing else, either.
            await self._ask(name_server, RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            return await self._has_accounts(name_server)  # it may have been busy the first time
        except RequestTimeout:
            return False

    async def _has_accounts(self, name_server: str) -> bool:
        code = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
        try:
            await self._ask(name_server, code, timeout=NAMESRV_PATIENCE_SECONDS)
        except RequestCodeNotSupported:
            return False
        return True

    async def acl_versions(self, *, cluster: str = "", broker: str = "") -> list[AclVersion]:
        """The versions of all brokers' accounts, slaves included, with a row for each file."""
        versions = []
        for address in await self.broker_addresses(cluster=cluster, broker=broker, slaves=True):
            answer = await self._ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
            versions += _versions(answer.read(GetBrokerAclConfigResponseHeader))
        return versions

    async def acl_config(self, broker: str) -> AclConfig:
        """The accounts of a broker, without their secrets, even if the broker sends them."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        value: Any = json.loads(answer.body) if answer.body else {}
        if not isinstance(value, dict):
            raise RemoteProtocolError(f"{address}: a JSON object with accounts expected")
        accounts = [_account(row) for row in value.get("plainAccessConfigs") or () if isinstance(row, dict)]
        return AclConfig(_texts(value.get("globalWhiteAddrs")), tuple(accounts))

    async def acl_put_account(
        self, account: AclAccount, *, cluster: str = "", broker: str = "", clear: Collection[str] = ()
    ) -> list[str]:
        """Create or change an account. Empty fields of `account` stay unchanged, unless `clear` has their
        names: `white_remote_address`, `topic_perms`, `group_perms`, `proof`, `quota` (Java's brokers cannot
        clear any). Return the addresses."""
        header = encode(account_header(account, clear))
        header = {**header, **own_fields(account, clear)}  # RocketMQ ignores these
        return await self._change_acl(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header, cluster, broker)

    async def acl_delete_account(self, access_key: str, *, cluster: str = "", broker: str = "") -> list[str]:
        """Remove an account from all servers that have it. Return their addresses; raises the last refusal
        when no server had the account."""
        header, failure = DeleteAccessConfigRequestHeader(access_key), None
        removed = []
        for address in await self.acl_servers(cluster=cluster, broker=broker):
            try:
                await self._ask(address, RequestCode.DELETE_ACL_CONFIG, header)
                removed.append(address)
            except ResponseError as error:
                if error.code != ResponseCode.DELETE_ACL_CONFIG_FAILED or await self._has(
                    address, access_key
                ):
                    raise
                failure = error
        if failure is not None and not removed:
            raise failure
        return removed

    async def _has(self, address: str, access_key: str) -> bool:
        """True if a server has an account; servers of one machine may share a file."""
        return any(one.access_key == access_key for one in (await self.acl_config(address)).accounts)

    async def acl_set_white_addresses(
        self, addresses: list[str], *, cluster: str = "", broker: str = "", file: str = ""
    ) -> list[str]:
        """Set the addresses that need no account, such as ``10.10.103.*``. `file` names one of several
        account files of a Java broker. Returns the brokers' addresses.
        """
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(",".join(addresses), file)
        return await self._change_acl(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header, cluster, broker)

    async def _change_acl(self, code: RequestCode, header: Any, cluster: str, broker: str) -> list[str]:
        async def change(address: str) -> None:
            await self._ask(address, code, header)

        return list(await each(await self.acl_servers(cluster=cluster, broker=broker), change))


def account_header(account: AclAccount, clear: Collection[str] = ()) -> CreateAccessConfigRequestHeader:
    """The request for an account: an empty field is omitted, so that it stays unchanged, unless `clear` has
    its name."""

    def field(name: str, text: str) -> str | None:
        return text if text or name in clear else None

    return CreateAccessConfigRequestHeader(
        account.access_key,
        account.secret_key or None,
        field("white_remote_address", account.white_remote_address),
        account.admin,
        account.default_topic_perm or None,
        account.default_group_perm or None,
        field("topic_perms", ",".join(account.topic_perms)),
        field("group_perms", ",".join(account.group_perms)),
    )


def own_fields(account: AclAccount, clear: Collection[str] = ()) -> dict[str, str]:
    """The fields of the same request that only rmq knows."""
    given = {"proof": account.proof, "quota": account.quota}
    return {name: text for name, text in given.items() if text or name in clear}


def _versions(header: GetBrokerAclConfigResponseHeader) -> list[AclVersion]:
    """The versions in a response: Java's brokers since 4.9.3 name each file; older brokers only give the
    version of their single file."""
    files: Any = json.loads(header.all_acl_file_version) if header.all_acl_file_version else {}
    if not isinstance(files, dict) or not files:
        files = {"": json.loads(header.version)}
    rows = []
    for file, value in sorted(files.items()):
        version = DataVersion.from_json(value) if isinstance(value, str) else DataVersion.from_value(value)
        rows.append(
            AclVersion(
                header.cluster_name,
                header.broker_name,
                header.broker_addr,
                version.counter,
                version.timestamp,
                file,
            )
        )
    return rows


def _account(row: dict[str, Any]) -> AclAccount:
    return AclAccount(
        str(row.get("accessKey") or ""),
        white_remote_address=str(row.get("whiteRemoteAddress") or ""),
        admin=row.get("admin") is True,
        default_topic_perm=str(row.get("defaultTopicPerm") or ""),
        default_group_perm=str(row.get("defaultGroupPerm") or ""),
        topic_perms=_texts(row.get("topicPerms")),
        group_perms=_texts(row.get("groupPerms")),
        proof=str(row.get("proof") or ""),
        quota=str(row.get("quota") or ""),
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
