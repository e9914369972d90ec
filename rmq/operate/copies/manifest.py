"""The YAML file of `rmq export` and `rmq import`: topics, groups, offsets and accounts of a cluster.

    version: 1
    brokers:
      broker-a: {cluster: DefaultCluster, replicas: 3}        # for `rmq doctor --expect`, not for the import
    topics:
      Orders: {read_queues: 8, write_queues: 8, perm: rw}     # the same on every master
      Old:
        brokers:                                              # differs, or not on all of them
          broker-a: {read_queues: 4, write_queues: 4, perm: r}
    groups:
      billing: {retry_max: 16}
    offsets:
      billing: {Orders: {broker-a: {0: 17, 1: 12}}}
    accounts:
      ops: {admin: true}                                      # never a secret

Fields with default values may be left out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import yaml
from attrs import define, field

from rmq.errors import ConfigError
from rmq.operate.topics import retention_of
from rmq.operate.values import perm_text

if TYPE_CHECKING:
    from rmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig

VERSION: Final = 1

TOPIC_FIELDS: Final[dict[str, Any]] = {
    "read_queues": 8,
    "write_queues": 8,
    "perm": "rw",
    "order": False,
    "filter_type": "SINGLE_TAG",
    "sys_flag": 0,
    "retention_ms": 0,
    "retention_bytes": 0,
}
GROUP_FIELDS: Final[dict[str, Any]] = {
    "consume": True,
    "consume_from_min": True,
    "broadcast": True,
    "retry_queues": 1,
    "retry_max": 16,
    "broker_id": 0,
    "which_broker_when_consume_slowly": 1,
    "notify_consumer_ids_changed": True,
}
ACCOUNT_FIELDS: Final[dict[str, Any]] = {
    "admin": False,
    "white_remote_address": "",
    "default_topic_perm": "",
    "default_group_perm": "",
    "topic_perms": [],
    "group_perms": [],
    "proof": "",
    "quota": "",
}
BROKER_FIELDS: Final[dict[str, Any]] = {"cluster": "DefaultCluster", "replicas": 1}
EVERYWHERE: Final = "*"
"""In place of a broker's name: every master."""

Settings = dict[str, Any]


@define
class Manifest:
    """Content of a file. `brokers`: name -> cluster, and number of brokers; `topics` and `groups`: name ->
    broker's name or `EVERYWHERE` -> all fields; `offsets`: group -> topic -> broker's name -> queue ->
    offset."""

    topics: dict[str, dict[str, Settings]] = field(factory=dict)
    groups: dict[str, dict[str, Settings]] = field(factory=dict)
    offsets: dict[str, dict[str, dict[str, dict[int, int]]]] = field(factory=dict)
    accounts: dict[str, Settings] = field(factory=dict)
    brokers: dict[str, Settings] = field(factory=dict)


# --- writing ---


def topic_settings(config: TopicConfig) -> Settings:
    """A topic's config in the form of the file; 0 for no limit of its own."""
    limits = [int(text) if text.isdecimal() else 0 for text in retention_of(config)]
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": perm_text(config.perm),
        "order": config.order,
        "filter_type": config.topic_filter_type,
        "sys_flag": config.topic_sys_flag,
        "retention_ms": limits[0],
        "retention_bytes": limits[1],
    }


def group_settings(config: SubscriptionGroupConfig) -> Settings:
    """A group's config in the form of the file."""
    return {
        "consume": config.consume_enable,
        "consume_from_min": config.consume_from_min_enable,
        "broadcast": config.consume_broadcast_enable,
        "retry_queues": config.retry_queue_nums,
        "retry_max": config.retry_max_times,
        "broker_id": config.broker_id,
        "which_broker_when_consume_slowly": config.which_broker_when_consume_slowly,
        "notify_consumer_ids_changed": config.notify_consumer_ids_changed_enable,
    }


def spread(found: Mapping[str, Settings], masters: Iterable[str]) -> dict[str, Settings]:
    """Settings by broker, as one entry for `EVERYWHERE` when all masters have the same settings."""
    values = list(found.values())
    if set(found) == set(masters) and all(value == values[0] for value in values):
        return {EVERYWHERE: values[0]}
    return dict(found)


def text_of(manifest: Manifest) -> str:
    """The file's text, without fields at their defaults."""
    tree = {
        "version": VERSION,
        "brokers": manifest.brokers,
        "topics": {name: _written(places, TOPIC_FIELDS) for name, places in manifest.topics.items()},
        "groups": {name: _written(places, GROUP_FIELDS) for name, places in manifest.groups.items()},
        "offsets": manifest.offsets,
        "accounts": {name: _short(one, ACCOUNT_FIELDS, ()) for name, one in manifest.accounts.items()},
    }
    return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))


def _written(places: Mapping[str, Settings], known: Settings) -> Settings:
    if EVERYWHERE in places:
        return _short(places[EVERYWHERE], known, ("read_queues", "write_queues", "perm"))
    return {
        "brokers": {name: _short(one, known, ("read_queues", "write_queues")) for name, one in places.items()}
    }


def _short(settings: Settings, known: Settings, always: tuple[str, ...]) -> Settings:
    return {key: value for key, value in settings.items() if key in always or value != known[key]}


# --- reading ---


class Reader:
    """Reader of a file, which names the line of a fault."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        try:
            self.root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            raise ConfigError(
                "file", f"{source}{line}", f"YAML ({getattr(error, 'problem', error)})"
            ) from None

    def manifest(self) -> Manifest:
        """The whole file. Raises ConfigError with file and line."""
        top = self._fields(self.root, ("version", "brokers", "topics", "groups", "offsets", "accounts"))
        if "version" not in top or self._value(top["version"], int) != VERSION:
            raise self._wrong(self.root, "version", f"version: {VERSION} at the top")
        return Manifest(
            {name: self._places(node, TOPIC_FIELDS) for name, node in self._entries(top.get("topics"))},
            {name: self._places(node, GROUP_FIELDS) for name, node in self._entries(top.get("groups"))},
            {
                group: {
                    topic: {broker: self._offsets(ends) for broker, ends in self._entries(brokers)}
                    for topic, brokers in self._entries(topics)
                }
                for group, topics in self._entries(top.get("offsets"))
            },
            {name: self._settings(node, ACCOUNT_FIELDS) for name, node in self._entries(top.get("accounts"))},
            {name: self._settings(node, BROKER_FIELDS) for name, node in self._entries(top.get("brokers"))},
        )

    def _entries(self, node: yaml.Node | None) -> list[tuple[str, yaml.Node]]:
        """Names and nodes of a mapping; none when it is absent or empty."""
        if node is None or (isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~")):
            return []
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, "entry", "a mapping")
        entries = [(str(key.value), value) for key, value in node.value]
        for number, (key, _) in enumerate(node.value):
            if str(key.value) in {name for name, _ in entries[:number]}:
                raise self._wrong(key, str(key.value), "each name once")
        return entries

    def _fields(self, node: yaml.Node | None, known: Iterable[str]) -> dict[str, yaml.Node]:
        entries = dict(self._entries(node))
        for name in entries:
            if name not in known:
                (place,) = [key for key, _ in node.value if str(key.value) == name]  # type: ignore[union-attr]
                raise self._wrong(place, name, f"one of {', '.join(known)}")
        return entries

    def _places(self, node: yaml.Node, known: Settings) -> dict[str, Settings]:
        entries = dict(self._entries(node))
        if "brokers" not in entries:
            return {EVERYWHERE: self._settings(node, known)}
        self._fields(node, ("brokers",))
        return {name: self._settings(one, known) for name, one in self._entries(entries["brokers"])}

    def _settings(self, node: yaml.Node, known: Settings) -> Settings:
        given = self._fields(node, known)
        read = {name: self._value(one, type(known[name])) for name, one in given.items()}
        if "perm" in read and read["perm"] not in ("rw", "r", "w", "none"):
            raise self._wrong(given["perm"], "perm", "rw, r, w or none")
        return {**known, **read}

    def _offsets(self, node: yaml.Node) -> dict[int, int]:
        found: dict[int, int] = {}
        for name, value in self._entries(node):
            if not name.isdigit():
                raise self._wrong(value, name, "the number of a queue")
            found[int(name)] = self._value(value, int)
        return found

    def _value(self, node: yaml.Node, kind: type) -> Any:
        loader = yaml.SafeLoader("")
        value = loader.construct_object(node, deep=True)
        if type(value) is not kind:
            raise self._wrong(node, str(value), f"{kind.__name__} here")
        return value

    def _wrong(self, node: yaml.Node | None, what: str, expected: str) -> ConfigError:
        line = node.start_mark.line + 1 if node is not None else 1
        return ConfigError(what, "", expected, f"{self.source}:{line}")
