"""Findings about a broker by itself: disk, clock, settings, certificate, its link to its master."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from rmq.config import is_loopback
from rmq.operate.diagnosis.facts import BrokerFacts, Finding, Level, where_is
from rmq.printable import counted
from rmq.protocol.codes import PERM_READ, PERM_WRITE

DISK_NOTE: Final = 0.75
DISK_WRONG: Final = 0.85
SKEW_MS: Final = 5_000
CERTIFICATE_NOTE_DAYS: Final = 30
CERTIFICATE_WRONG_DAYS: Final = 7
DESCRIPTORS_NOTE: Final = 8_192
DESCRIPTORS_WRONG: Final = 1_024
"""Open files below which a broker has too few: one with a few hundred queues and clients needs more."""
DELETED: Final = "DELETED OR REPLACED"
"""Words in the state of a broker whose log file was removed while it runs."""
_COUNT: Final = re.compile(r"[0-9]{1,18}")
_UPTIME: Final = re.compile(r"(\d+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")


def findings_of_broker(broker: BrokerFacts) -> Iterator[Finding]:
    """Problems of a broker in its own report."""
    where = where_is(broker)
    if broker.error:
        todo = "check that it runs, and that brokerIP1 can be reached from here"
        yield Finding("wrong", where, f"registered as {broker.address}, but: {broker.error}", todo)
        return
    yield from _disk(where, broker)
    yield from _takes_no_messages(where, broker)
    yield from _descriptors(where, broker)
    yield from _refusals(where, broker)
    if hangs := broker.runtime.get("diskHangs", ""):
        todo = "look at the disk, and at the kernel's log: no sync ends and none fails"
        yield Finding("wrong", where, f"its disk does not answer: {hangs}", todo)
    ahead = clock_ahead_ms(broker)
    if ahead is not None and abs(ahead) > SKEW_MS:
        what = (
            f"its clock is {abs(ahead) / 1000:.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
        )
        yield Finding(
            "wrong",
            where,
            what,
            "synchronise both clocks with a time server: delays, retention and traces depend on them",
        )
    for key, what, todo in (
        (
            "subscriptionConflicts",
            "groups subscribe differently on several members",
            "see `rmq group members GROUP`",
        ),
        (
            "clientIdConflicts",
            "client ids are used by two clients at once",
            "give each client its own id",
        ),
    ):
        text = broker.runtime.get(key, "")
        count = int(text) if _COUNT.fullmatch(text) else 0
        if count:
            yield Finding("wrong", where, f"{count} {what}: messages are lost or late", todo)
    if broker.is_master and (hidden := broker.runtime.get("hiddenMessages", "")):
        todo = (
            "`rmq topic update TOPIC --read-queues N` gives a topic its queues back, so that "
            "consumers read them"
        )
        yield Finding("note", where, f"topics hide messages that no group has read: {hidden}", todo)
    yield from _certificate(where, broker)
    yield from _replication(where, broker)
    yield from _pitfalls(where, broker)


def _disk(where: str, broker: BrokerFacts) -> Iterator[Finding]:
    try:
        ratio = float(broker.runtime.get("commitLogDiskRatio", "0"))
    except ValueError:
        return
    if ratio >= DISK_NOTE:
        free = broker.runtime.get("commitLogDirCapacity", "").strip()
        todo = "free some room, lower fileReservedTime, or `rmq broker clean --logs`"
        level: Level = "wrong" if ratio >= DISK_WRONG else "note"
        yield Finding(level, where, f"its disk is {ratio:.0%} full. {free}".strip(), todo)


def _replication(where: str, broker: BrokerFacts) -> Iterator[Finding]:
    state, aside = broker.runtime.get("replication", ""), broker.runtime.get("logAside", "")
    stopped = state.removeprefix("stopped: ")
    if stopped != state:
        todo = "its log is kept: see `Master and slaves` in docs/operations.md"
        yield Finding("wrong", where, f"it has stopped following its master: {stopped}", todo)
    elif state == "not connected":
        todo = (
            "check that its master runs, and that it can reach the master's HA port (listenPort + 1); "
            "see its log"
        )
        yield Finding("wrong", where, "it is not connected to its master: it copies nothing", todo)
    if aside:
        todo = (
            "remove the folder when you do not need its messages; without room for another one, a slave stops"
        )
        yield Finding("note", where, f"an earlier log is kept in {aside}", todo)


def _pitfalls(where: str, broker: BrokerFacts) -> Iterator[Finding]:
    config = broker.config
    if broker.vip_error:
        todo = "open the port (listenPort - 2), or set vipChannelEnabled=false: Java clients may use it"
        yield Finding("note", where, f"its VIP port cannot be used from here: {broker.vip_error}", todo)
    level = broker.runtime.get("durability") or config.get("durability")
    if level == "memory":
        todo = "set durability=disk, or replicated, if a power cut may lose nothing"
        yield Finding("note", where, "durability is memory: a power cut loses the last half second", todo)
    if config.get("autoCreateTopicEnable") == "true":
        todo = "set autoCreateTopicEnable=false and make topics with `rmq topic create`"
        yield Finding("note", where, "topics are created on their first message, on one broker only", todo)
    if config.get("aclEnable") == "false" and not is_loopback(broker.address.rpartition(":")[0]):
        todo = "set aclEnable=true, and tlsMode=enforcing"
        yield Finding(
            "note", where, "no access control: every client on the network may read and write", todo
        )


def clock_ahead_ms(broker: BrokerFacts) -> int | None:
    """The seconds by which a broker's clock is ahead of ours, by its start and age; None when unknown."""
    match = _UPTIME.search(broker.runtime.get("runtime", ""))
    started = broker.runtime.get("bootTimestamp", "")
    if match is None or not started.isdigit():
        return None
    days, hours, minutes, seconds = map(int, match.groups())
    age_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    return int(started) + age_ms - broker.asked_at


def _takes_no_messages(where: str, broker: BrokerFacts) -> Iterator[Finding]:
    if reason := broker.runtime.get("takesNoMessages", ""):
        todo = "see `Disk full` in docs/runbooks.md; its log says when it accepts messages again"
        if DELETED in reason:
            todo = "let its messages be consumed before you stop it; then see `Restore` in docs/runbooks.md"
        yield Finding("wrong", where, f"takes no messages: {reason}", todo)
    text = broker.config.get("brokerPermission", "")
    permission = int(text) if text.isdecimal() else PERM_READ | PERM_WRITE
    if broker.is_master and not permission & PERM_WRITE:
        todo = f"`rmq broker undrain {broker.name}` to let it accept messages again"
        what = f"accepts no messages: brokerPermission is {permission}, as a drain leaves it"
        yield Finding("wrong", where, what, todo)
    elif broker.is_master and not permission & PERM_READ:
        todo = f"`rmq broker config set brokerPermission=6 --broker {broker.name}`"
        yield Finding("wrong", where, f"hands out no messages: brokerPermission is {permission}", todo)


def _descriptors(where: str, broker: BrokerFacts) -> Iterator[Finding]:
    text = broker.runtime.get("descriptorLimit", "")
    if not text.isdecimal() or int(text) >= DESCRIPTORS_NOTE:
        return
    level: Level = "wrong" if int(text) < DESCRIPTORS_WRONG else "note"
    what = f"it may open {text} files and connections only: clients are refused beyond that"
    yield Finding(level, where, what, "raise LimitNOFILE of its unit, or `ulimit -n`, to 65536 or more")


REMEDIES: Final = {
    "address": "name balancers and gateways in trustedGateways; else a client leaves connections open",
    "connections": "raise maxConnections, of slaves haMaxConnections",
    "rate": "handshakes of an address fail: check TLS and accounts; maxNewConnectionsPerAddress limits them",
    "descriptors": "raise the limit of open files: LimitNOFILE of a unit, or ulimit -n",
    "unproved": "peers connect and send nothing: block them by a firewall",
}
"""Reason for refused connections -> remedy."""


def _refusals(where: str, broker: BrokerFacts) -> Iterator[Finding]:
    """Connections and places that limits have refused, or will refuse soon."""
    counts: dict[str, list[str]] = {}
    for row in broker.runtime.get("connectionsRefused", "").split():
        place, _, count = row.partition("=")
        port, _, reason = place.partition("/")
        counts.setdefault(reason, []).append(f"{count} at the port for {port}")
    for reason, some in counts.items():
        what = "closed connections without a valid request, to make room for others"
        if reason != "unproved":
            what = f"refused connections by the limit of {reason}"
        todo = REMEDIES.get(reason, "see rmq_connections_refused_total in docs/metrics.md")
        yield Finding("note", where, f"since its start it has {what}: {', '.join(some)}", todo)
    if crowd := broker.runtime.get("placesTaken", ""):
        todo = (
            "the address with the most connections keeps others out: see `Limits` in docs/design/security.md"
        )
        yield Finding("note", where, f"half of the places or more are taken: {crowd}", todo)


def _certificate(where: str, broker: BrokerFacts) -> Iterator[Finding]:
    text = broker.runtime.get("certificateEnd", "")
    if not text:
        return
    yield from findings_of_certificate(where, text, broker.asked_at)


def findings_of_certificate(where: str, text: str, now_ms: int) -> Iterator[Finding]:
    """Judge the end of a server's certificate, a time in ISO 8601."""
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        todo = "look at the certificate itself: `openssl s_client -connect HOST:PORT`"
        yield Finding("note", where, f"the end of its TLS certificate cannot be read: {text:.40}", todo)
        return
    days = (end.timestamp() * 1000 - now_ms) / 86_400_000
    if days < CERTIFICATE_NOTE_DAYS:
        level: Level = "wrong" if days < CERTIFICATE_WRONG_DAYS else "note"
        left = counted(round(days), "day")
        when = f"ends on {end.date()}, in {left}" if days >= 0 else f"has ended on {end.date()}"
        todo = "replace the file: the server reads it without a restart"
        yield Finding(level, where, f"its TLS certificate {when}", todo)
