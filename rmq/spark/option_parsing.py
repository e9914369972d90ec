"""Conversion of Spark's texts, by names in any case, to the values of a class of options.

The module does not know the meaning of an option: only its names, including those of other sources, and the
message for an unknown name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import attrs

from rmq.config import java_key, load
from rmq.errors import ConfigError

_ALSO_CALLED: Final = {
    "startingoffsetsbytimestampstrategy": "timestampStrategy",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "namesrvaddr": "nameServer",
}
_HINTS: Final = {
    "path": 'the topic as an option: .option("topic", "Orders").load(), as for .load("Orders")',
    "kafka.bootstrap.servers": "the option nameServer: RocketMQ's name servers, as host:9876;host:9876",
}
"""Options of other sources, and Spark's options for `.load("Orders")` and `.save("Orders")`."""
_CLIENT_PREFIX: Final = "client."
_SPARKS_OWN: Final = {"checkpointlocation", "queryname", "outputmode"}

C = TypeVar("C")


def load_options(cls: type[C], given: Mapping[str, str], source: str = "rmq") -> C:
    """The options of a class, by their names in any case. Raises ConfigError."""
    names = {java_key(field).lower(): java_key(field) for field in attrs.fields(cls)}  # type: ignore[arg-type]
    arguments: dict[str, str] = {}
    settings: dict[str, str] = {}
    for key, value in given.items():
        lowered = key.lower()
        name = names.get(lowered) or (_ALSO_CALLED.get(lowered) if source == "rmq" else None)
        if name is not None and name.lower() in names and name != "client":
            arguments[name] = value
        elif source == "rmq" and lowered.startswith(_CLIENT_PREFIX):
            settings[key[len(_CLIENT_PREFIX) :]] = value
        elif source == "rmq" and lowered in _HINTS:
            raise ConfigError(f"option {key}", value, _HINTS[lowered])
        elif lowered not in _SPARKS_OWN or source != "rmq":
            raise ConfigError(f"option {key}", "***", known_options(source, key, names.values()))
    try:
        found = load(cls, arguments=arguments, environment={})
        return attrs.evolve(found, client=_client_settings(settings)) if settings else found  # type: ignore[misc]
    except ConfigError as error:
        raise ConfigError(error.key, error.value, error.expected, f"an option of {source}") from None


def _client_settings(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The settings of the client by their keys; Spark gives them in lower case. Raises ConfigError."""
    from rmq.client.config import ClientConfig

    keys = {java_key(field).lower(): java_key(field) for field in attrs.fields(ClientConfig)}
    keys |= {field.name: java_key(field) for field in attrs.fields(ClientConfig)}
    for name in given:
        if name.lower() not in keys:
            raise ConfigError(
                f"{_CLIENT_PREFIX}{name}", "***", known_options("the client", name, set(keys.values()))
            )
    found = {keys[name.lower()]: value for name, value in given.items()}
    load(ClientConfig, arguments=found, environment={})  # raises for an invalid value
    return tuple(sorted(found.items()))


def names_in(text: str) -> tuple[str, ...]:
    """The names of a text that separates them by commas, each once."""
    return tuple(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))


def known_options(source: str, given: str, names: Iterable[str]) -> str:
    """The expected names in place of an unknown option: the most similar names, and all names."""
    lowered = {name.lower(): name for name in names}
    close = [lowered[name] for name in difflib.get_close_matches(given.lower(), lowered)]
    meant = f"{' or '.join(close)}, or another " if close else "an "
    return f"{meant}option of {source}: {', '.join(lowered.values())}"
