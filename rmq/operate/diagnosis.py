"""Diagnosis of a cluster: facts in, findings out, each with a remedy. Pure; `examination` collects the
facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final, Literal

from attrs import Factory, define, frozen

from rmq.config import is_loopback
from rmq.protocol.codes import MASTER_ID

Level = Literal["wrong", "note"]

DISK_NOTE: Final = 0.75
DISK_WRONG: Final = 0.85
SKEW_MS: Final = 5_000
LAG_BYTES: Final = 64 << 20
"""A slave that lacks so much of its master's log is worth a look."""
CONTROLLER_SECONDS: Final = 10
"""Controllers answer several times a second, and elect anew within a few."""
CERTIFICATE_NOTE_DAYS: Final = 30
CERTIFICATE_WRONG_DAYS: Final = 7
SAME_IN_A_CLUSTER: Final = (
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "aclEnable",
    "enablePropertyFilter",
    "maxMessageSize",
    "messageDelayLevel",
    "durability",
)
_UPTIME: Final = re.compile(r"(\d+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")


@frozen
class Finding:
    """Something to know: `wrong` needs an act, a `note` is worth a look."""

    level: Level
    where: str
    what: str
    what_to_do: str

    @property
    def subject(self) -> tuple[str, str]:
        """Kind and name of the thing: ``("broker", "a")``, ``("group", "billing")``, ``("accounts", "")``."""
        kind, _, name = self.where.removesuffix(")").partition(" ")
        if kind == "name":
            return "name server", name.removeprefix("server ")
        return kind, name.partition(" (slave ")[0]


@define
class BrokerFacts:
    """Facts about a broker; `error` when it did not answer. Times are ms."""

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
        """Whether it is the master of its name."""
        return self.broker_id == MASTER_ID


@define
class GroupFacts:
    """Facts about a group: messages left, dead letters, members (None when not counted), and the
    subscriptions of each member."""

    name: str
    lag: int = 0
    members: int | None = 0
    dead_letters: int = 0
    error: str = ""
    subscriptions: Mapping[str, Mapping[str, str]] = Factory(dict)


@define
class Facts:
    """Facts about a cluster. `name_servers`: address -> the known brokers, or the error; `topics`: topic ->
    the masters that have it."""

    name_servers: Mapping[str, list[str] | str] = Factory(dict)
    brokers: list[BrokerFacts] = Factory(list)
    topics: Mapping[str, list[str]] = Factory(dict)
    groups: list[GroupFacts] = Factory(list)
    lag_limit: int = 10_000
    account_differences: list[str] = Factory(list)


def diagnose(facts: Facts) -> list[Finding]:
    """Judge the facts: findings that are wrong, then notes."""
    found = [
        *_name_server_findings(facts),
        *(finding for broker in facts.brokers for finding in _broker_findings(broker)),
        *_cluster_findings(facts),
        *_account_findings(facts),
        *_topic_findings(facts),
        *(finding for group in facts.groups for finding in _group_findings(group, facts.lag_limit)),
    ]
    return sorted(found, key=lambda finding: finding.level != "wrong")


def _name_server_findings(facts: Facts) -> Iterator[Finding]:
    answers = [answer for answer in facts.name_servers.values() if isinstance(answer, list)]
    known = sorted({name for answer in answers for name in answer})
    for address, answer in facts.name_servers.items():
        where = f"name server {address}"
        if isinstance(answer, str):
            yield Finding("wrong", where, answer, "start it, or correct the address in -n or `rmq context`")
            continue
        missing = [name for name in known if name not in answer]
        if missing:
            todo = "name all name servers in the brokers' namesrvAddr"
            yield Finding("wrong", where, f"does not know {', '.join(missing)}, which others know", todo)
    if answers and not known:
        todo = "start a broker with -n and the name servers' addresses"
        yield Finding("wrong", "cluster", "no broker is registered", todo)


def _broker_findings(broker: BrokerFacts) -> Iterator[Finding]:
    where = _where(broker)
    if broker.error:
        todo = "is it running, and is brokerIP1 an address that can be reached from here?"
        yield Finding("wrong", where, f"registered as {broker.address}, but: {broker.error}", todo)
        return
    yield from _disk(where, broker)
    if hangs := broker.runtime.get("diskHangs", ""):
        todo = "look at the disk, and at the kernel's log: no sync ends and none fails"
        yield Finding("wrong", where, f"its disk does not answer: {hangs}", todo)
    ahead = clock_ahead_ms(broker)
    if ahead is not None and abs(ahead) > SKEW_MS:
        what = (
            f"its clock is {abs(ahead) / 1000:.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
        )
        yield Finding(
            "wrong", where, what, "let both follow a time server: delays, retention and traces go by it"
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
            "give each client an id of its own",
        ),
    ):
        count = int(broker.runtime.get(key, "0") or 0)
        if count:
            yield Finding("wrong", where, f"{count} {what}: messages are lost or late", todo)
    if broker.is_master and (hidden := broker.runtime.get("hiddenMessages", "")):
        todo = "`rmq topic update TOPIC --read-queues N` gives a topic its queues back, to have them read"
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
        todo = "is its master up, and can it reach the master's HA port (listenPort + 1)? Its log says more"
        yield Finding("wrong", where, "it is not connected to its master: it copies nothing", todo)
    if aside:
        todo = "remove the folder when its messages are not needed any more; another one will not be made"
        yield Finding("note", where, f"an earlier log of it is kept in {aside}", todo)


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
        yield Finding("note", where, "topics are made on their first message, on one broker only", todo)
    if config.get("aclEnable") == "false" and not is_loopback(broker.address.rpartition(":")[0]):
        todo = "set aclEnable=true, and tlsMode=enforcing"
        yield Finding("note", where, "anybody who reaches it may read and write: no access control", todo)


def clock_ahead_ms(broker: BrokerFacts) -> int | None:
    """The seconds by which a broker's clock is ahead of ours, by its start and age; None when unknown."""
    match = _UPTIME.search(broker.runtime.get("runtime", ""))
    started = broker.runtime.get("bootTimestamp", "")
    if match is None or not started.isdigit():
        return None
    days, hours, minutes, seconds = map(int, match.groups())
    age_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    return int(started) + age_ms - broker.asked_at


def _cluster_findings(facts: Facts) -> Iterator[Finding]:
    names = {(broker.cluster, broker.name) for broker in facts.brokers}
    for cluster, name in sorted(names):
        ids = {one.broker_id for one in facts.brokers if (one.cluster, one.name) == (cluster, name)}
        same = [one for one in facts.brokers if (one.cluster, one.name) == (cluster, name)]
        yield from _slave_findings(same)
        yield from _set_findings(same)
        if MASTER_ID not in ids:
            todo = "start the master again: until then nothing can be sent there"
            if any("setReplicas" in one.runtime for one in same):
                todo = "start one that is in sync: `rmq controller status` shows who is, and who is elected"
            yield Finding("wrong", f"broker {name}", "has slaves, but no master", todo)
    for cluster in sorted({cluster for cluster, _ in names}):
        masters = [one for one in facts.brokers if one.cluster == cluster and one.is_master and one.config]
        for key in SAME_IN_A_CLUSTER:
            values = {one.name: one.config.get(key, "") for one in masters}
            if len(set(values.values())) > 1:
                what = (
                    f"{key} differs: {', '.join(f'{name}={value}' for name, value in sorted(values.items()))}"
                )
                yield Finding(
                    "note", f"cluster {cluster}", what, "let all brokers of a cluster have the same"
                )


def _slave_findings(brokers: list[BrokerFacts]) -> Iterator[Finding]:
    """Slaves that lack topics or groups of their master. `brokers` are the brokers of a name."""
    master = next((one for one in brokers if one.is_master and one.runtime), None)
    slaves = [one for one in brokers if not one.is_master and one.runtime]
    if master is None:
        return
    linked = master.runtime.get("slaves", "")
    if linked.isdecimal() and int(linked) < len(slaves):
        todo = "do they ask for this master's HA port, with its secret? Their logs say more"
        what = f"{len(slaves)} slaves are registered, but {linked} are linked to it: they copy nothing"
        yield Finding("wrong", f"broker {master.name}", what, todo)
    for slave in slaves:
        where = f"broker {slave.name} (slave {slave.broker_id})"
        lacks = _offset(master, "commitLogMaxOffset") - _offset(slave, "commitLogMaxOffset")
        if lacks > LAG_BYTES:
            todo = "is it just copying? `rmq cluster list` shows whether it comes nearer"
            yield Finding("note", where, f"lacks {lacks >> 20} MiB of its master's log", todo)
        above = _offset(slave, "commitLogMinOffset") - _offset(master, "commitLogMinOffset")
        if above > 0:
            todo = (
                "see `Seed a slave` in docs/runbooks.md, or wait until the master's older files have expired"
            )
            what = f"its log begins {above >> 20} MiB after its master's: it has not all that the master has"
            yield Finding("wrong", where, what, todo)


def _set_findings(brokers: list[BrokerFacts]) -> Iterator[Finding]:
    """Problems of a set with controllers. `brokers` are the brokers of a name."""
    for broker in brokers:
        silent = broker.runtime.get("controllerSilentSeconds", "")
        if silent.isdecimal() and int(silent) > CONTROLLER_SECONDS:
            what = f"no controller that leads has answered it for {silent} s: nobody would be elected"
            todo = "`rmq controller status --all` shows which of them run"
            yield Finding("wrong", _where(broker), what, todo)
    master = next((one for one in brokers if one.is_master and "setReplicas" in one.runtime), None)
    if master is None:
        return
    if refusal := master.runtime.get("setRefuses", ""):
        todo = "see `rmq controller status`"
        yield Finding("wrong", _where(master), f"takes no messages: {refusal}", todo)
    replicas, in_sync = (master.runtime.get(key, "").split() for key in ("setReplicas", "inSyncReplicas"))
    if absent := [number for number in replicas if number not in in_sync]:
        level: Level = "wrong" if len(in_sync) == 1 else "note"
        what = f"{len(in_sync)} of {len(replicas)} replicas are in sync; not in sync: {', '.join(absent)}"
        if level == "wrong":
            what += ": nobody can take over"
        todo = "start those, or `rmq controller remove` who is gone for good: `rmq controller status`"
        yield Finding(level, _where(master), what, todo)


def _where(broker: BrokerFacts) -> str:
    return f"broker {broker.name}" + ("" if broker.is_master else f" (slave {broker.broker_id})")


def _offset(broker: BrokerFacts, name: str) -> int:
    text = broker.runtime.get(name, "")
    return int(text) if text.isdecimal() else 0


def _certificate(where: str, broker: BrokerFacts) -> Iterator[Finding]:
    text = broker.runtime.get("certificateEnd", "")
    if not text:
        return
    end = datetime.fromisoformat(text)
    days = (end.timestamp() * 1000 - broker.asked_at) / 86_400_000
    if days < CERTIFICATE_NOTE_DAYS:
        level: Level = "wrong" if days < CERTIFICATE_WRONG_DAYS else "note"
        when = f"ends on {end.date()}, in {days:.0f} days" if days >= 0 else f"has ended on {end.date()}"
        todo = "put a new one in its place: it is read again without a restart"
        yield Finding(level, where, f"its TLS certificate {when}", todo)


def _account_findings(facts: Facts) -> Iterator[Finding]:
    for line in facts.account_differences:
        what, _, todo = line.partition("; ")
        yield Finding("wrong", "accounts", what, todo)


def _topic_findings(facts: Facts) -> Iterator[Finding]:
    masters = sorted({one.name for one in facts.brokers if one.is_master})
    if len(masters) < 2:
        return
    for topic, there in sorted(facts.topics.items()):
        if len(there) == 1:
            todo = f"`rmq topic update {topic}` puts it on every master"
            yield Finding(
                "note", f"topic {topic}", f"is only on {there[0]}: if that stops, nobody can send", todo
            )


def _group_findings(group: GroupFacts, limit: int) -> Iterator[Finding]:
    where = f"group {group.name}"
    if group.error:
        yield Finding(
            "note", where, f"could not be looked at in full: {group.error}", "see the brokers first"
        )
    if group.lag and group.members == 0:
        todo = f"start a consumer, or `rmq group delete {group.name}` if nobody needs it"
        level: Level = "wrong" if group.lag > limit else "note"
        yield Finding(level, where, f"has {group.lag} messages left, and no member is connected", todo)
    elif group.lag > limit:
        todo = f"add members, or see what they wait for: `rmq group members {group.name} --stack`"
        yield Finding("wrong", where, f"has {group.lag} messages left", todo)
    if len({tuple(sorted(wanted.items())) for wanted in group.subscriptions.values()}) > 1:
        what = "; ".join(
            f"{member}: {dict(wanted)}" for member, wanted in sorted(group.subscriptions.items())
        )
        todo = "let all members subscribe to the same: messages are lost until then"
        yield Finding("wrong", where, f"members subscribe differently: {what}", todo)
    if group.dead_letters:
        todo = f"`rmq tail %DLQ%{group.name} --from earliest` shows them"
        yield Finding("note", where, f"{group.dead_letters} messages were given up after all retries", todo)
