"""Namespaces: names of topics and groups as the cluster knows them, ``namespace%name``. Pure.

Retry and dead letter topics keep their prefix in front. System topics and groups are in no namespace.
"""

from __future__ import annotations

from typing import Final

from rmq.message import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS

SEPARATOR: Final = "%"


def wrapped(namespace: str, name: str) -> str:
    """`name` inside `namespace`; names that are in it already, and the system's, stay as they are."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, rest = _split(name)
    return name if rest.startswith(namespace + SEPARATOR) else f"{prefix}{namespace}{SEPARATOR}{rest}"


def unwrapped(namespace: str, name: str) -> str:
    """`name` without `namespace`, if it is in it."""
    if not namespace:
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_system(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith((SYSTEM_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX))
