"""The overview of a cluster."""

from __future__ import annotations

from collections.abc import Mapping

import rmq
from rmq.errors import ConnectionLost, NoPermission, RmqError, for_code
from rmq.operate.overview import overview
from rmq.protocol.bodies import BrokerData, ClusterReport
from rmq.testing.cluster import Cluster

from ..conftest import send


async def test_each_broker_has_its_figures(cluster: Cluster, client: rmq.Client) -> None:
    await send(client, "Orders", 5)
    seen = await overview(client.admin)
    assert [(one.name, one.role, one.broker_id) for one in seen.brokers] == [
        ("a", "master", 0),
        ("b", "master", 0),
    ]
    assert sum(one.messages_today or 0 for one in seen.brokers) == 5
    assert all(one.kind.startswith("rmq ") and one.version.startswith("V4_9") for one in seen.brokers)
    assert all(one.disk_ratio is not None and one.started_at_ms for one in seen.brokers)
    assert (seen.clusters, seen.name_servers) == (("DefaultCluster",), (cluster.namesrv_address,))
    assert [(one.name, one.master is not None, one.epoch) for one in seen.sets] == [
        ("a", True, None),
        ("b", True, None),
    ]


async def test_a_cluster_that_is_not_known_has_no_brokers(client: rmq.Client) -> None:
    assert (await overview(client.admin, "elsewhere")).brokers == ()


class Answers:
    """A cluster that answers with given metrics, or fails."""

    name_servers = ("n:1",)

    def __init__(self, brokers: Mapping[int, Mapping[str, str] | RmqError]) -> None:
        self.brokers = brokers

    async def cluster_report(self) -> ClusterReport:
        addresses = {number: f"h{number}:1" for number in self.brokers}
        return ClusterReport({"s": BrokerData("C", "s", addresses)}, {"C": ["s"]})

    async def broker_runtime(self, address: str) -> Mapping[str, str]:
        answer = self.brokers[int(address[1])]
        if isinstance(answer, RmqError):
            raise answer
        return answer


async def test_a_set_under_controllers_has_epoch_replicas_and_lag() -> None:
    answers = Answers(
        {
            0: {
                "commitLogMaxOffset": "1000",
                "slaves": "2",
                "controllerEpoch": "7",
                "setReplicas": "1 2 3",
                "inSyncReplicas": "1 2",
                "setRefuses": "",
                "controllerSilentSeconds": "1",
            },
            1: {"commitLogMaxOffset": "900", "replication": "following"},
            2: {"replication": "not connected"},
        }
    )
    seen = await overview(answers)  # type: ignore[arg-type]
    (one,) = seen.sets
    assert (one.epoch, one.replicas, one.in_sync, one.refuses) == (7, (1, 2, 3), (1, 2), "")
    assert one.controller_silent_s == 1
    assert [(broker.link, broker.lag_bytes) for broker in one.brokers] == [
        ("2 slaves", None),
        ("following", 100),
        ("not connected", None),
    ]


async def test_a_broker_that_cannot_be_reached_has_an_error_and_the_others_their_figures() -> None:
    answers = Answers({0: {"putTps": "1.0"}, 1: ConnectionLost("h1:1")})
    master, slave = (await overview(answers)).brokers  # type: ignore[arg-type]
    assert (master.error, master.in_tps) == (None, 1.0)
    assert "h1:1" in (slave.error or "")
    assert (slave.is_refused, slave.in_tps) == (False, None)


async def test_an_account_that_may_not_ask_is_told_apart_from_a_dead_broker() -> None:
    refusal = for_code(16, "account x is no administrator")
    assert isinstance(refusal, NoPermission)
    (one,) = (await overview(Answers({0: refusal}))).brokers  # type: ignore[arg-type]
    assert one.is_refused
    assert "no administrator" in (one.error or "")


async def test_javas_broker_without_our_figures_is_shown() -> None:
    metrics = {"brokerVersionDesc": "V4_9_7", "putTps": "1.5 1.0 0.5", "msgPutTotalTodayNow": "9"}
    (one,) = (await overview(Answers({0: metrics}))).brokers  # type: ignore[arg-type]
    assert (one.kind, one.version, one.in_tps, one.messages_today) == ("java", "V4_9_7", 1.5, 9)
    assert (one.log_end, one.started_at_ms, one.link) == (None, None, "")
