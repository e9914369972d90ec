"""Acl: accounts and white addresses of brokers that guard themselves as RocketMQ 4.9 does."""

from __future__ import annotations

from typing import Any

from rmq.client.admin.calls import Calls, each
from rmq.client.admin.values import AclAccount, AclConfig, AclVersion
from rmq.errors import RemoteProtocolError
from rmq.protocol import json
from rmq.protocol.bodies import DataVersion
from rmq.protocol.codes import RequestCode
from rmq.protocol.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)


class Acl(Calls):
    """What `client.admin` does with access control; for accounts that are admins only."""

    async def acl_versions(self, *, cluster: str = "", broker: str = "") -> list[AclVersion]:
        """The version of each broker's accounts; slaves among them. One row for each file."""
        versions = []
        for address in await self.broker_addresses(cluster=cluster, broker=broker, slaves=True):
            answer = await self._ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
            versions += _versions(answer.read(GetBrokerAclConfigResponseHeader))
        return versions

    async def acl_config(self, broker: str) -> AclConfig:
        """The accounts of one broker, without their secrets, even where the broker tells them."""
        address = await self._broker_address(broker)
        answer = await self._ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        value: Any = json.loads(answer.body) if answer.body else {}
        if not isinstance(value, dict):
            raise RemoteProtocolError(f"{address}: a JSON object with accounts expected")
        accounts = [_account(row) for row in value.get("plainAccessConfigs") or () if isinstance(row, dict)]
        return AclConfig(_texts(value.get("globalWhiteAddrs")), tuple(accounts))

    async def acl_put_account(self, account: AclAccount, *, cluster: str = "", broker: str = "") -> list[str]:
        """Make an account or change it, on a broker or on all brokers of a cluster (slaves too: they do not
        copy it). What is empty in `account` stays as it is. Returns the addresses.
        """
        header = CreateAccessConfigRequestHeader(
            account.access_key,
            account.secret_key or None,
            account.white_remote_address or None,
            account.admin,
            account.default_topic_perm or None,
            account.default_group_perm or None,
            ",".join(account.topic_perms) or None,
            ",".join(account.group_perms) or None,
        )
        return await self._change_acl(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header, cluster, broker)

    async def acl_delete_account(self, access_key: str, *, cluster: str = "", broker: str = "") -> list[str]:
        """Remove an account from a broker or from all brokers of a cluster. Returns the addresses."""
        header = DeleteAccessConfigRequestHeader(access_key)
        return await self._change_acl(RequestCode.DELETE_ACL_CONFIG, header, cluster, broker)

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

        addresses = await self.broker_addresses(cluster=cluster, broker=broker, slaves=True)
        return list(await each(addresses, change))


def _versions(header: GetBrokerAclConfigResponseHeader) -> list[AclVersion]:
    """Java's brokers since 4.9.3 name each file; older ones only give the version of the one file."""
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
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
