"""Findings that a diagnosis makes of facts."""

from __future__ import annotations

import pytest
from attrs import evolve

from rmq.operate.controllers import ControllerState
from rmq.operate.diagnosis import BrokerFacts, Facts, Finding, GroupFacts, clock_ahead_ms, diagnose

NOW = 1_700_000_000_000
RUNTIME = {
    "bootTimestamp": str(NOW - 3_600_000),
    "runtime": "[ 0 days, 1 hours, 0 minutes, 0 seconds ]",
    "durability": "disk",
    "commitLogDiskRatio": "0.40",
    "commitLogDirCapacity": "Total : 10 GiB, Free : 6 GiB.",
}
BROKER = BrokerFacts("C", "broker-a", 0, "10.0.0.1:10911", runtime=RUNTIME, asked_at=NOW)


def of(broker: BrokerFacts) -> list[Finding]:
    return diagnose(Facts({"n:1": ["broker-a"]}, [broker]))


def runtime(**changes: str) -> BrokerFacts:
    return evolve(BROKER, runtime={**RUNTIME, **changes})


def test_nothing_wrong_is_no_finding() -> None:
    assert of(BROKER) == []


@pytest.mark.parametrize(
    ("broker", "level", "what"),
    [
        (
            evolve(BROKER, error="cannot connect"),
            "wrong",
            "registered as 10.0.0.1:10911, but: cannot connect",
        ),
        (runtime(commitLogDiskRatio="0.80"), "note", "its disk is 80% full"),
        (runtime(commitLogDiskRatio="0.90"), "wrong", "its disk is 90% full. Total : 10 GiB, Free : 6 GiB."),
        (runtime(bootTimestamp=str(NOW - 3_590_000)), "wrong", "its clock is 10 s ahead of"),
        (runtime(bootTimestamp=str(NOW - 3_660_000)), "wrong", "its clock is 60 s behind"),
        (runtime(subscriptionConflicts="2"), "wrong", "2 groups subscribe differently"),
        (runtime(clientIdConflicts="1"), "wrong", "1 client ids are used by two clients"),
        (runtime(replication="stopped: it lost its disk"), "wrong", "following its master: it lost its disk"),
        (runtime(replication="not connected"), "wrong", "copies nothing"),
        (runtime(replication="following", logAside="/s/aside"), "note", "kept in /s/aside"),
        (runtime(certificateEnd="2023-11-16T22:13:20+00:00"), "wrong", "ends on 2023-11-16, in 2 days"),
        (runtime(certificateEnd="2023-11-10T22:13:20+00:00"), "wrong", "has ended on 2023-11-10"),
        (runtime(certificateEnd="2023-12-04T22:13:20+00:00"), "note", "in 20 days"),
        (runtime(certificateEnd="next year"), "note", "cannot be read: next year"),
        (runtime(clientIdConflicts="many", commitLogDiskRatio="0.80"), "note", "80% full"),
        (runtime(durability="memory"), "note", "a power cut loses"),
        (runtime(hiddenMessages="T: 9 messages in queue 7"), "note", "no group has read: T: 9 messages in"),
        (evolve(BROKER, config={"autoCreateTopicEnable": "true"}), "note", "created on their first message"),
        (evolve(BROKER, config={"aclEnable": "false"}), "note", "no access control"),
    ],
)
def test_each_trouble_of_a_broker_is_named(broker: BrokerFacts, level: str, what: str) -> None:
    (found,) = of(broker)
    assert found.level == level
    assert what in found.what
    assert found.what_to_do


def test_the_certificates_of_name_servers_and_controllers_are_looked_at() -> None:
    ends = {"n:1": "2023-11-16T22:13:20+00:00", "n:2": ""}
    controllers = [
        ControllerState("n:1", is_leading=True, certificate_end=ends["n:1"]),
        ControllerState("c:1", certificate_end="2023-12-04T22:13:20+00:00"),
    ]
    facts = Facts(
        {"n:1": ["broker-a"], "n:2": ["broker-a"]},
        [BROKER],
        controllers=controllers,
        certificates=ends,
        now_ms=NOW,
    )
    found = [one for one in diagnose(facts) if "certificate" in one.what]
    assert [(one.level, one.where) for one in found] == [
        ("wrong", "name server n:1"),
        ("note", "controller c:1"),
    ]


def test_a_broker_that_only_this_machine_reaches_needs_no_accounts() -> None:
    assert of(evolve(BROKER, address="127.0.0.1:10911", config={"aclEnable": "false"})) == []


def test_the_clock_is_unknown_without_figures() -> None:
    assert clock_ahead_ms(evolve(BROKER, runtime={})) is None


def test_name_servers_that_know_different_brokers() -> None:
    found = diagnose(Facts({"n:1": ["broker-a"], "n:2": [], "n:3": "refused"}, [BROKER]))
    assert [(one.level, one.where) for one in found] == [
        ("wrong", "name server n:2"),
        ("wrong", "name server n:3"),
    ]
    assert diagnose(Facts({"n:1": []}))[0].what == "no broker is registered"


def test_a_broker_without_a_master_and_settings_that_differ() -> None:
    slave = evolve(BROKER, name="broker-b", broker_id=1)
    (found,) = diagnose(Facts({"n:1": ["broker-a", "broker-b"]}, [BROKER, slave]))
    assert found.what == "has slaves, but no master"

    pair = [
        evolve(BROKER, config={"maxMessageSize": "1"}),
        evolve(BROKER, name="broker-b", config={"maxMessageSize": "2"}),
    ]
    (found,) = diagnose(Facts({"n:1": ["broker-a", "broker-b"]}, pair))
    assert found.what == "maxMessageSize differs: broker-a=1, broker-b=2"


def test_groups_behind_conflicting_and_with_dead_letters() -> None:
    groups = [
        GroupFacts("behind", lag=11, members=1),
        GroupFacts("left", lag=3),
        GroupFacts("split", members=2, subscriptions={"x": {"T": "a"}, "y": {"T": "b"}}),
        GroupFacts("same", members=2, subscriptions={"x": {"T": "a"}, "y": {"T": "a"}}),
        GroupFacts("dead", dead_letters=4),
    ]
    found = {one.where: one for one in diagnose(Facts(groups=groups, lag_limit=10))}
    assert {where: one.level for where, one in found.items()} == {
        "group behind": "wrong",
        "group split": "wrong",
        "group left": "note",
        "group dead": "note",
    }
    assert "gave up 4 messages" in found["group dead"].what


def test_groups_that_take_messages_one_by_one() -> None:
    brokers = [evolve(BROKER, config={"maxTakenMessagesOfGroup": "1000"})]
    groups = [
        GroupFacts("fine", lag=3, taken=800, oldest_ms=3_600_000, polls=1),
        GroupFacts("slow", members=1, taken=1, oldest_ms=2 * 3_600_000),
        GroupFacts("full", members=1, taken=901),
    ]
    found = diagnose(Facts({"n:1": ["broker-a"]}, brokers, groups=groups))
    assert [(one.level, one.where) for one in found] == [("wrong", "group full"), ("note", "group slow")]
    assert "901 messages" in found[0].what
    assert "120 min ago" in found[1].what


def test_a_controlled_set_that_nobody_can_take_over_is_told() -> None:
    def pair(master: dict[str, str], slave: dict[str, str]) -> list[tuple[str, str, str]]:
        known = {
            "controllerSilentSeconds": "0",
            "setReplicas": "1 2 3",
            "inSyncReplicas": "1 2 3",
            "setRefuses": "",
            "slaves": "1",
        }
        first = evolve(BROKER, runtime={**RUNTIME, **known, **master})
        follower = {**RUNTIME, **known, "replication": "following", **slave}
        second = evolve(BROKER, broker_id=2, address="10.0.0.2:10911", runtime=follower)
        facts = Facts({"n:1": ["broker-a"]}, [first, second])
        return [(one.level, one.where, one.what) for one in diagnose(facts)]

    assert pair({}, {}) == []
    assert pair({"inSyncReplicas": "1 3"}, {}) == [
        ("note", "broker broker-a", "has 2 of 3 replicas in sync; not in sync: 2")
    ]
    assert pair({"inSyncReplicas": "3"}, {}) == [
        (
            "wrong",
            "broker broker-a",
            "has 1 of 3 replicas in sync; not in sync: 1, 2: no failover is possible",
        )
    ]
    assert pair({"setRefuses": "2 replicas are in sync, minInSyncReplicas is 3"}, {}) == [
        ("wrong", "broker broker-a", "takes no messages: 2 replicas are in sync, minInSyncReplicas is 3")
    ]
    assert pair({}, {"diskHangs": "a sync has been under way for 9 s"}) == [
        (
            "wrong",
            "broker broker-a (slave 2)",
            "its disk does not answer: a sync has been under way for 9 s",
        )
    ]
    assert pair({}, {"controllerSilentSeconds": "60"}) == [
        (
            "wrong",
            "broker broker-a (slave 2)",
            "no controller that leads has answered it for 60 s: no replica would be elected",
        )
    ]


def test_refused_connections_and_full_tables_are_named() -> None:
    rows = {
        "connectionsRefused": "clients/address=5 clients/unproved=9 slaves/address=2 slaves/rate=1",
        "placesTaken": "waiting pulls: 60000 of 100000, 50000 of 10.0.0.1",
    }
    found = diagnose(Facts({"n:1": ["broker-a"]}, [evolve(BROKER, runtime={**RUNTIME, **rows})]))
    assert [(one.level, one.what) for one in found] == [
        ("note", f"since its start it has {what}")
        for what in (
            "refused connections by the limit of address: "
            "5 at the port for clients, 2 at the port for slaves",
            "closed connections without a valid request, to make room for others: 9 at the port for clients",
            "refused connections by the limit of rate: 1 at the port for slaves",
        )
    ] + [("note", f"half of the places or more are taken: {rows['placesTaken']}")]
    assert "trustedGateways" in found[0].what_to_do
    assert "handshakes" in found[2].what_to_do


def test_what_slaves_lack_is_told() -> None:
    def pair(master: dict[str, str], slave: dict[str, str]) -> list[tuple[str, str, str]]:
        ends = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(200 << 20)}
        first = evolve(BROKER, runtime={**RUNTIME, **ends, "slaves": "1", **master})
        follower = {**RUNTIME, **ends, "replication": "following", **slave}
        second = evolve(BROKER, broker_id=1, address="10.0.0.2:10911", runtime=follower)
        facts = Facts({"n:1": ["broker-a"]}, [first, second])
        return [(one.level, one.where, one.what) for one in diagnose(facts)]

    assert pair({}, {}) == []
    assert pair({"slaves": "0"}, {}) == [
        (
            "wrong",
            "broker broker-a",
            "has 1 registered slave, of which 0 linked to it: the rest copies nothing",
        )
    ]
    slave = "broker broker-a (slave 1)"
    assert pair({}, {"commitLogMaxOffset": str(100 << 20)}) == [
        ("note", slave, "lacks 100 MiB of its master's log")
    ]
    assert pair({}, {"commitLogMinOffset": str(188 << 20)}) == [
        ("wrong", slave, "its log begins 188 MiB after its master's: it lacks messages that the master has")
    ]
