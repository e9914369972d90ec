"""Facts about a cluster before a migration, and findings about the facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import Factory, define, field, frozen

from rmq.operate.overview import Overview
from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rmq.protocol.fields import Body

Level = Literal["stop", "act", "note"]
LEVELS: tuple[Level, ...] = ("stop", "act", "note")


@frozen
class Finding:
    """A difference: `stop` prevents the move of the cluster in its present state, `act` needs work before or
    during the move, a `note` is information."""

    level: Level
    where: str
    what: str
    what_to_do: str


@define
class StaticTopic(Body):
    """The mapping of a static topic at a broker; only its name is read."""

    topic: str = ""


@define
class TopicTable(Body):
    """The topics of a broker in the form of RocketMQ 5.x, with the mappings of its static topics."""

    topic_config_table: dict[str, TopicConfig] = field(factory=dict)
    topic_queue_mapping_detail_map: dict[str, StaticTopic] | None = None


@define
class BrokerTables:
    """Tables of one broker: settings, all topics, static topics, groups, and the numbers of messages in some
    topics of RocketMQ's own. `error` is the reason for missing tables."""

    name: str
    address: str
    is_java: bool
    version: str
    is_master: bool
    config: Mapping[str, str] = Factory(dict)
    topics: Mapping[str, TopicConfig] = Factory(dict)
    static_topics: tuple[str, ...] = ()
    groups: Mapping[str, SubscriptionGroupConfig] = Factory(dict)
    stored: Mapping[str, int] = Factory(dict)
    error: str = ""

    @property
    def is_5(self) -> bool:
        """True for a broker of RocketMQ 5.x."""
        return self.is_java and self.version.startswith("V5")


@frozen
class ClientKind:
    """Clients of one language and version, with some of their groups."""

    language: str
    version: str
    groups: tuple[str, ...]


@define
class MigrationFacts:
    """A cluster: `brokers`, `clients`, groups with an SQL92 subscription (`sql_groups`), broadcasting groups,
    and the keys of the order configs of the name servers."""

    seen: Overview
    brokers: list[BrokerTables] = Factory(list)
    clients: list[ClientKind] = Factory(list)
    sql_groups: tuple[str, ...] = ()
    broadcasting_groups: tuple[str, ...] = ()
    order_topics: tuple[str, ...] = ()
