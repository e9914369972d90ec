"""Diagnosis of a cluster: facts in, findings out, each with a remedy. Pure; `rmq.operate.examination`
collects the facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmq.operate.controllers import REFUSES
from rmq.operate.diagnosis.brokers import clock_ahead_ms, findings_of_broker, findings_of_certificate
from rmq.operate.diagnosis.controllers import OTHERS_ACCEPT, findings_of_controllers
from rmq.operate.diagnosis.expected import findings_of_expectation
from rmq.operate.diagnosis.facts import BrokerFacts, Expectation, Facts, Finding, GroupFacts, Level
from rmq.operate.diagnosis.groups import findings_of_group
from rmq.operate.diagnosis.missing import findings_of_missing, findings_of_refused
from rmq.operate.diagnosis.sets import findings_of_set, findings_of_slaves
from rmq.protocol.codes import MASTER_ID

__all__ = [
    "BrokerFacts",
    "Expectation",
    "Facts",
    "Finding",
    "GroupFacts",
    "Level",
    "clock_ahead_ms",
    "diagnose",
    "findings_of_controllers",
]

SAME_IN_A_CLUSTER: Final = (
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
    "aclEnable",
    "enablePropertyFilter",
    "maxMessageSize",
    "messageDelayLevel",
    "durability",
)


def diagnose(facts: Facts) -> list[Finding]:
    """Judge the facts: problems first, then notes."""
    found = [
        *_name_server_findings(facts),
        *_certificate_findings(facts),
        *findings_of_missing(facts),
        *findings_of_refused(facts),
        *(finding for broker in facts.brokers for finding in findings_of_broker(broker)),
        *_cluster_findings(facts),
        *(
            findings_of_controllers(facts.controllers, facts.brokers, facts.unheard)
            if facts.controllers
            else ()
        ),
        *(findings_of_expectation(facts.expected) if facts.expected is not None else ()),
        *_account_findings(facts),
        *_topic_findings(facts),
        *(finding for group in facts.groups for finding in findings_of_group(group, facts)),
    ]
    return sorted(dict.fromkeys(found), key=lambda finding: finding.level != "wrong")


def _name_server_findings(facts: Facts) -> Iterator[Finding]:
    answers = [answer for answer in facts.name_servers.values() if isinstance(answer, list)]
    known = sorted({name for answer in answers for name in answer})
    for address, answer in facts.name_servers.items():
        where = f"name server {address}"
        if isinstance(answer, str):
            todo = "start it, or correct the address in -n or `rmq context`"
            yield Finding("wrong", where, answer, OTHERS_ACCEPT if answer.startswith(REFUSES) else todo)
            continue
        missing = [name for name in known if name not in answer]
        if missing:
            todo = "name all name servers in the brokers' namesrvAddr"
            yield Finding("wrong", where, f"does not know {', '.join(missing)}, which others know", todo)
    if answers and not known:
        todo = "start a broker with -n and the name servers' addresses"
        yield Finding("wrong", "cluster", "no broker is registered", todo)


def _certificate_findings(facts: Facts) -> Iterator[Finding]:
    """Findings about the certificates of name servers, and of controllers that are not name servers; a
    broker's certificate is judged with the broker."""
    ends = {f"name server {address}": end for address, end in facts.certificates.items()}
    for one in facts.controllers:
        if one.address not in facts.certificates:
            ends[f"controller {one.address}"] = one.certificate_end
    for where, end in ends.items():
        if end:
            yield from findings_of_certificate(where, end, facts.now_ms)


def _cluster_findings(facts: Facts) -> Iterator[Finding]:
    leading = facts.leading
    controlled = set() if leading is None else {one.name for one in leading.sets}
    names = {(broker.cluster, broker.name) for broker in facts.brokers}
    for cluster, name in sorted(names):
        ids = {one.broker_id for one in facts.brokers if (one.cluster, one.name) == (cluster, name)}
        same = [one for one in facts.brokers if (one.cluster, one.name) == (cluster, name)]
        yield from findings_of_slaves(same)
        yield from findings_of_set(same, is_controlled=name in controlled)
        if MASTER_ID not in ids:
            todo = "start the master again: until then nothing can be sent there"
            if any("setReplicas" in one.runtime for one in same):
                todo = "start an in-sync replica: `rmq controller status` shows replicas and elections"
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
                "note",
                f"topic {topic}",
                f"is only on {there[0]}: if that broker stops, producers cannot send",
                todo,
            )
