"""Registration of a broker at name servers: its requests, and the effects of the responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import evolve

from rmq.errors import for_code
from rmq.protocol.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmq.protocol.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from rmq.protocol.command import Command
from rmq.protocol.fields import encode
from rmq.protocol.headers import (
    ALL_TOPICS,
    SET_EPOCH,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from rmq.protocol.record import crc32

if TYPE_CHECKING:
    from datetime import datetime

    from rmq.broker.config import Settings
    from rmq.broker.tables.topics import Topics

PLAIN_BYTES: Final = 8 << 20
"""A longer body is compressed: no name server takes a frame of more than 16 MiB, and all since 4.1 know the
compressed form. It lacks the flags of topics, so it is not used without need."""
SMALL_BYTES: Final = 64 << 10
BYTES_A_SECOND: Final = 1 << 20
PAUSE_MAX: Final = 10.0


class Registration:
    """Requests by which a broker registers at name servers, and the effects of their responses. `address` and
    `ha_address` are the addresses for clients and slaves.

    `sign` signs requests to other servers of the cluster, if a cluster secret is set. `epoch` is the epoch of
    a master that controllers have elected.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        *,
        address: str,
        ha_address: str,
        sign: Callable[[Command], Command],
        epoch: int = 0,
    ) -> None:
        self._settings = settings
        self.sign = sign
        self.address = address
        self._topics = topics
        self._ha_address = ha_address
        self.master_address = ""
        self.master_ha_address = ""
        """Addresses at which a slave's master answers requests and hands out its log, as name servers say."""
        self._epoch = epoch
        self.period = settings.broker.register_period
        """Seconds between registrations."""
        self.certificate_end: datetime | None = None
        """Until when the TLS certificate that clients are shown is valid; None without one."""
        self.known_by: dict[str, bool] = {}
        """True if each name server took the last registration."""
        self._body = b""
        self._is_compressed = False
        self._body_of: tuple[DataVersion, int] | None = None
        self._permission = settings.broker.broker_permission  # as told
        settings.watch(self._check_permission)

    def valid_until(self, end: datetime | None) -> None:
        """The TLS certificate shown to clients is valid until `end`; None without a certificate."""
        self.certificate_end = end

    @property
    def pause(self) -> float:
        """Seconds to wait after a registration, by its size, so that topics created one after the other are
        sent together. 0 for a small registration: a consumer may look for the new topic at once."""
        size = len(self._body)
        return min(PAUSE_MAX, size / BYTES_A_SECOND) if size > SMALL_BYTES else 0.0

    @property
    def version(self) -> DataVersion:
        """The version of the content of `register`."""
        return self._topics.data_version

    def register(self) -> Command:
        """REGISTER_BROKER with all topics; the body is made once for each version."""
        config = self._settings.broker
        body = self._encoded()
        header = RegisterBrokerRequestHeader(
            config.broker_name,
            self.address,
            config.broker_cluster_name,
            self._ha_address,
            config.broker_id,
            self._is_compressed,
            crc32(body),
        )
        fields = {**encode(header), ALL_TOPICS: "true"}
        if self._epoch:
            fields[SET_EPOCH] = str(self._epoch)
        return self.sign(Command.request(RequestCode.REGISTER_BROKER, fields, body))

    def unregister(self) -> Command:
        """UNREGISTER_BROKER."""
        config = self._settings.broker
        header = UnRegisterBrokerRequestHeader(
            config.broker_name, self.address, config.broker_cluster_name, config.broker_id
        )
        return self.sign(Command.request(RequestCode.UNREGISTER_BROKER, header))

    def query_version(self) -> Command:
        """QUERY_DATA_VERSION: whether the name server has the content of `register`."""
        config = self._settings.broker
        header = QueryDataVersionRequestHeader(
            config.broker_name, self.address, config.broker_cluster_name, config.broker_id
        )
        return self.sign(Command.request(RequestCode.QUERY_DATA_VERSION, header, self.version.to_json()))

    def is_stale(self, response: Command) -> bool:
        """True if the answer to `query_version` asks for a registration. Anything unclear does."""
        if response.code != ResponseCode.SUCCESS:
            return True
        if response.read(QueryDataVersionResponseHeader).changed:
            return True
        return not response.body or DataVersion.from_json(response.body) != self.version

    def registered(self, response: Command, *, take_order: bool) -> None:
        """Check the answer to `register`, and take over which topics are ordered if `take_order`.

        Raises ResponseError when the name server refused, RemoteProtocolError, and StoreError.
        """
        if response.code != ResponseCode.SUCCESS:
            raise for_code(response.code, response.remark)
        answered = response.read(RegisterBrokerResponseHeader)
        self.master_address = answered.master_addr or self.master_address
        self.master_ha_address = answered.ha_server_addr or self.master_ha_address
        if take_order and response.body:
            self._topics.set_ordered(KVTable.from_json(response.body).table)

    def _check_permission(self) -> None:
        # Name servers take topics, and with them permissions, only with a version that they do not have.
        if self._permission != self._settings.broker.broker_permission:
            self._permission = self._settings.broker.broker_permission
            self._topics.renew()

    def _encoded(self) -> bytes:
        key = self.version, self._settings.broker.broker_permission
        if self._body_of != key:
            self._is_compressed, self._body = self._settings.broker.compressed_register, b""
            if not self._is_compressed:
                self._body = self._plain()
                self._is_compressed = len(self._body) > PLAIN_BYTES
            if self._is_compressed:
                wrapper = TopicConfigSerializeWrapper(self._registered_topics(), self.version)
                self._body = RegisterBrokerBody(wrapper).encode(compressed=True)
            self._body_of = key
        return self._body

    def _plain(self) -> bytes:
        table = self._registered_topics()
        if table is not self._topics.table:
            return RegisterBrokerBody(TopicConfigSerializeWrapper(table, self.version)).encode()
        none = TopicConfigSerializeWrapper({}, self.version)  # the text of all topics is there
        return RegisterBrokerBody(none).encode().replace(none.to_json(), self._topics.to_json(), 1)

    def _registered_topics(self) -> dict[str, TopicConfig]:
        """The topics with their permissions, unless the broker as a whole has less."""
        perm, all_of_it = self._settings.broker.broker_permission, PERM_READ | PERM_WRITE
        table = self._topics.table
        if perm & all_of_it == all_of_it:
            return table
        return {name: evolve(topic, perm=perm) for name, topic in table.items()}
