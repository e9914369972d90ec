"""Facts about a cluster, and findings about the facts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from attrs import Factory, define, frozen

from rmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from rmq.operate.controllers import ControllerState
    from rmq.operate.copies.manifest import Manifest
    from rmq.protocol.bodies import MissingBroker, RefusedBroker

Level = Literal["wrong", "note"]


@frozen
class Finding:
    """A result of a diagnosis: `wrong` needs an act, a `note` is information."""

    level: Level
    where: str
    what: str
    what_to_do: str

    @property
    def subject(self) -> tuple[str, str]:
        """Kind and name of the object: ``("broker", "a")``, ``("group", "billing")``, ``("accounts",
        "")``."""
        kind, _, name = self.where.removesuffix(")").partition(" ")
        if kind == "name":
            return "name server", name.removeprefix("server ")
        return kind, name.partition(" (slave ")[0]


@define
class BrokerFacts:
    """Facts about a broker; `error` without an answer. Times are ms."""

    cluster: str
    name: str
    broker_id: int
    address: str
    error: str = ""
    vip_error: str = ""
    runtime: Mapping[str, str] = Factory(dict)
    config: Mapping[str, str] = Factory(dict)
    asked_at: int = 0

    @property
    def is_master(self) -> bool:
        """True if it is the master of its name."""
        return self.broker_id == MASTER_ID


@define
class GroupFacts:
    """Facts about a group: its backlog, dead letters, members (None when not counted), and the subscriptions
    of each member. `taken` is the number of messages in flight by per-message delivery, at the broker with
    most of them; `oldest_ms` is the age of the oldest lease; `polls` is the number of waiting takes."""

    name: str
    lag: int = 0
    members: int | None = 0
    dead_letters: int = 0
    error: str = ""
    subscriptions: Mapping[str, Mapping[str, str]] = Factory(dict)
    taken: int = 0
    oldest_ms: int = 0
    polls: int = 0


@frozen
class Expectation:
    """An exported cluster, and the same part of the present cluster. `masters` are the names of the masters
    that answered: topics and groups are known of these masters only. `ends`: topic -> (broker, queue) -> the
    end of that queue, of topics with exported offsets. `problems`: part -> the reason why it is not
    known."""

    manifest: Manifest
    present: Manifest
    masters: Collection[str]
    ends: Mapping[str, Mapping[tuple[str, int], int]] = Factory(dict)
    problems: Mapping[str, str] = Factory(dict)


@define
class Facts:
    """Facts about a cluster. `name_servers`: address -> the known brokers, or the error; `topics`: topic ->
    the masters with the topic. `controllers` are the states of controllers, `missing` the brokers that left
    without a drain, `refused` the brokers that name servers refuse, `expected` an export to compare with.
    `unheard` are replicas that the controllers count as dead, and that answered.
    `certificates`: name server -> the end of its certificate in ISO 8601, to compare with `now_ms`."""

    name_servers: Mapping[str, list[str] | str] = Factory(dict)
    brokers: list[BrokerFacts] = Factory(list)
    topics: Mapping[str, list[str]] = Factory(dict)
    groups: list[GroupFacts] = Factory(list)
    lag_limit: int = 10_000
    account_differences: list[str] = Factory(list)
    controllers: Sequence[ControllerState] = ()
    missing: Sequence[MissingBroker] = ()
    refused: Sequence[RefusedBroker] = ()
    expected: Expectation | None = None
    unheard: Sequence[BrokerFacts] = ()
    certificates: Mapping[str, str] = Factory(dict)
    now_ms: int = 0

    @property
    def leading(self) -> ControllerState | None:
        """The controller that leads."""
        return next((one for one in self.controllers if one.is_leading), None)


def where_is(broker: BrokerFacts) -> str:
    """The place of a broker for the output."""
    return place_of(broker.name, broker.broker_id)


def place_of(name: str, broker_id: int) -> str:
    """A broker's name and id for the column of places."""
    return f"broker {name}" + ("" if broker_id == MASTER_ID else f" (slave {broker_id})")
