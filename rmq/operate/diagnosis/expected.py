"""Findings about a cluster that lacks parts of its export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rmq.operate.copies.manifest import EVERYWHERE, Settings
from rmq.operate.diagnosis.facts import Expectation, Finding
from rmq.printable import counted

IMPORT = "`rmq import FILE` restores it; if the change is intended, write a new file with `rmq export`"


def findings_of_expectation(expected: Expectation) -> Iterator[Finding]:
    """Brokers, topics, groups, accounts and messages of the export that the cluster lacks now."""
    yield from _brokers(expected)
    for kind, exported, there in (
        ("topic", expected.manifest.topics, expected.present.topics),
        ("group", expected.manifest.groups, expected.present.groups),
    ):
        for name, places in exported.items():
            for broker, settings in _by_broker(places, expected.manifest.brokers or expected.masters).items():
                if broker in expected.masters:
                    now = _by_broker(there.get(name, {}), expected.masters).get(broker)
                    yield from _compared(kind, name, broker, settings, now)
    for where, problem in expected.problems.items():
        yield Finding("wrong", where, f"not checked: {problem}", "see the brokers first")
    for name in () if "accounts" in expected.problems else expected.manifest.accounts:
        if name not in expected.present.accounts:
            yield Finding("wrong", f"account {name}", "is not there", "`rmq acl add` makes it")
    yield from _offsets(expected)


def _brokers(expected: Expectation) -> Iterator[Finding]:
    for name, exported in expected.manifest.brokers.items():
        there = expected.present.brokers.get(name)
        if there is None:
            todo = "start it, or write a new file with `rmq export`"
            yield Finding("wrong", f"broker {name}", "is expected, and no name server knows it", todo)
        elif there["replicas"] < exported["replicas"]:
            what = f"has {there['replicas']} of {counted(exported['replicas'], 'broker')} of this name"
            yield Finding("wrong", f"broker {name}", what, "start the others")


def _by_broker(places: Mapping[str, Settings], brokers: Iterable[str]) -> dict[str, Settings]:
    if EVERYWHERE in places:
        return dict.fromkeys(brokers, places[EVERYWHERE])
    return dict(places)


def _compared(
    kind: str, name: str, broker: str, exported: Settings, now: Settings | None
) -> Iterator[Finding]:
    if now is None:
        yield Finding("wrong", f"{kind} {name}", f"ought to be on {broker}, and is not", IMPORT)
    elif changed := [key for key, value in exported.items() if now.get(key, value) != value]:
        each = ", ".join(f"{key} is {now[key]}, was {exported[key]}" for key in changed)
        yield Finding("wrong", f"{kind} {name}", f"differs on {broker}: {each}", IMPORT)


def _offsets(expected: Expectation) -> Iterator[Finding]:
    """Queues that end before the exported offset of a group: their broker has lost messages, or all of its
    store."""
    for group, topics in expected.manifest.offsets.items():
        for topic, brokers in topics.items():
            ends = expected.ends.get(topic, {})
            for broker, offsets in brokers.items():
                for queue, offset in offsets.items():
                    end = ends.get((broker, queue))
                    if end is not None and end < offset:
                        what = f"queue {queue} of {topic} on {broker} ends at {end}, and it was at {offset}"
                        todo = "was the store deleted or put back? See `Restore` in docs/runbooks.md"
                        yield Finding("wrong", f"group {group}", what, todo)
