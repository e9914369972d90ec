"""Reports combined from many responses: rates of topics, and exports as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from attrs import evolve, frozen

from rmq.client.admin.messages import Messages
from rmq.client.admin.topics import Topics
from rmq.errors import NoRoute, ResponseError
from rmq.message import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
)
from rmq.protocol.bodies import BrokerStatsData, SubscriptionGroupConfig, TopicConfig
from rmq.protocol.codes import MASTER_ID, VERSION, MQVersion

EXPORTED_SETTINGS: Final = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)
"""The settings of each master that RocketMQ's exportConfigs has."""


@frozen
class TopicRates:
    """A row of statsAll: a topic and a group that reads the topic; `group` is empty without readers. Rates
    are messages a second of the last minute; totals are of the last 24 hours."""

    topic: str
    group: str
    lag: int
    in_tps: float
    out_tps: float
    in_24h: int
    out_24h: int


Tree = dict[str, Any]
"""Maps, lists, texts and numbers, as JSON and YAML have them."""


class Reports(Topics, Messages):
    """Methods of `client.admin` that combine responses of several servers."""

    async def topic_rates(self, topic: str) -> list[TopicRates]:
        """Rates of a topic on all its masters, a row for each group that reads the topic; a row with an empty
        group without readers. Missing counters count as 0. Raises NoRoute."""
        route = await self.topic_route(topic)
        masters = [
            data.broker_addrs[MASTER_ID] for data in route.broker_datas if MASTER_ID in data.broker_addrs
        ]
        in_tps, in_day = await self._counted(masters, "TOPIC_PUT_NUMS", topic)
        rows = []
        for group in await self.groups_of_topic(topic):
            out_tps, out_day = await self._counted(masters, "GROUP_GET_NUMS", f"{topic}@{group}")
            rows.append(
                TopicRates(topic, group, await self._lag(group, topic), in_tps, out_tps, in_day, out_day)
            )
        return rows or [TopicRates(topic, "", 0, in_tps, 0.0, in_day, 0)]

    async def all_rates(self) -> list[TopicRates]:
        """`topic_rates` of every topic but retry topics and dead letters. A topic that is deleted during the
        call is left out."""
        rows: list[TopicRates] = []
        for topic in await self.topics():
            if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                try:
                    rows += await self.topic_rates(topic)
                except NoRoute:
                    continue
        return rows

    async def _counted(self, masters: Iterable[str], name: str, key: str) -> tuple[float, int]:
        """(messages a second, messages of 24 hours) over all masters."""
        tps, day = 0.0, 0
        for address in masters:
            try:
                data = await self.broker_stats(address, name, key)
            except ResponseError:  # not counted yet
                continue
            tps += data.stats_minute.tps
            day += day_sum(data)
        return tps, day

    async def _lag(self, group: str, topic: str) -> int:
        try:
            return (await self.consume_stats(group, topic)).lag
        except ResponseError:
            return 0

    # --- exports ---

    async def export_metadata(
        self, *, cluster: str = "", broker: str = "", special_topics: bool = False
    ) -> Tree:
        """The users' topics and groups of a broker, or summed up over the masters of a cluster, with
        RocketMQ's names of things; with `special_topics`, retry topics and dead letters too.
        """
        topics: dict[str, TopicConfig] = {}
        groups: dict[str, SubscriptionGroupConfig] = {}
        for address in await self.broker_addresses(cluster=cluster, broker=broker):
            system = set(await self.system_topics(address))
            for name, topic in (await self.topic_configs(address)).items():
                if name not in system and (special_topics or not name.startswith((RETRY_PREFIX, DLQ_PREFIX))):
                    topics[name] = _summed_topic(topics.get(name), topic)
            for name, group in (await self.group_configs(address, system=False)).items():
                groups[name] = _summed_group(groups.get(name), group)
        return {
            "topicConfigTable": {name: topic.to_value() for name, topic in sorted(topics.items())},
            "subscriptionGroupTable": {name: group.to_value() for name, group in sorted(groups.items())},
            "exportTime": self._session.now_ms(),
        }

    async def export_configs(self, cluster: str) -> Tree:
        """The size of a cluster, and of each master the settings that RocketMQ exports."""
        configs: Tree = {}
        masters = await self.broker_addresses(cluster=cluster)
        for address in masters:
            config = await self.broker_config(address)
            configs[config.get("brokerName", address)] = {
                name: config[name] for name in EXPORTED_SETTINGS if name in config
            }
        whole = await self.broker_addresses(cluster=cluster, slaves=True)
        scale = {
            "namesrvSize": len(self.name_servers),
            "masterBrokerSize": len(masters),
            "slaveBrokerSize": len(whole) - len(masters),
        }
        return {"brokerConfigs": configs, "clusterScale": scale}

    async def export_metrics(self, cluster: str) -> Tree:
        """Rates, totals, disks and clients of each master of a cluster, and the sums over all of them."""
        report: Tree = {}
        tps = dict.fromkeys(("normalInTps", "normalOutTps", "transInTps", "scheduleInTps"), 0.0)
        day = dict.fromkeys(
            ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum"), 0
        )
        for address in await self.broker_addresses(cluster=cluster):
            config = await self.broker_config(address)
            one = await self._metrics(address, config)
            report[config.get("brokerName", address)] = one
            quota = one["runtimeQuota"]
            tps = {name: value + quota["tps"][name] for name, value in tps.items()}
            day = {name: value + quota["oneDayNum"][name] for name, value in day.items()}
        total_tps = {f"total{name[:1].upper()}{name[1:]}": value for name, value in tps.items()}
        return {"evaluateReport": report, "totalData": {"totalTps": total_tps, "totalOneDayNum": day}}

    async def _metrics(self, address: str, config: dict[str, str]) -> Tree:
        metrics = await self.broker_runtime(address)
        groups = await self.group_configs(address, system=False)
        topics = await self.topic_configs(address, system=False)
        quota = {
            "diskRatio": _present(
                {name: metrics.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")}
            ),
            **await self._amounts(address, metrics),
            **_present({"messageAverageSize": metrics.get("putMessageAverageSize")}),
            "topicSize": len(topics),
            "groupSize": len(groups),
        }
        env = {
            "cpuNum": config.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": metrics.get("totalMemKBytes"),
        }
        version = {"rocketmqVersion": version_name(VERSION), "clientInfo": await self._clients(groups)}
        return {"runtimeEnv": _present(env), "runtimeQuota": quota, "runtimeVersion": version}

    async def _amounts(self, address: str, metrics: dict[str, str]) -> Tree:
        half_tps, half_day = await self._counted([address], "TOPIC_PUT_NUMS", TRANS_HALF_TOPIC)
        later_tps, later_day = await self._counted([address], "TOPIC_PUT_NUMS", SCHEDULE_TOPIC)
        return {
            "tps": {
                "normalInTps": first_number(metrics.get("putTps", "")),
                "normalOutTps": first_number(metrics.get("getTransferedTps", "")),
                "transInTps": half_tps,
                "scheduleInTps": later_tps,
            },
            "oneDayNum": {
                "normalOneDayInNum": _grown(metrics, "msgPutTotal"),
                "normalOneDayOutNum": _grown(metrics, "msgGetTotal"),
                "transOneDayInNum": half_day,
                "scheduleOneDayInNum": later_day,
            },
        }

    async def _clients(self, groups: Iterable[str]) -> list[str]:
        """Language and version of all members, as ``JAVA%V4_9_7``."""
        found: set[str] = set()
        for group in groups:
            try:
                members = (await self.consumer_connection(group)).connection_set
            except ResponseError:
                continue
            found.update(f"{one.language}%{version_name(one.version)}" for one in members)
        return sorted(found)


def day_sum(data: BrokerStatsData) -> int:
    """The count of 24 hours; for a younger broker, of its longest period."""
    return data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum


def first_number(text: str) -> float:
    """The first of several rates, that of the last 10 seconds; 0 without a number."""
    words = text.split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return 0.0


def version_name(version: int) -> str:
    """RocketMQ's name of a version number, such as V4_9_7."""
    try:
        return MQVersion(version).name
    except ValueError:
        return "HIGHER_VERSION" if version > max(MQVersion) else f"VERSION_{version}"


def _present(values: Tree) -> Tree:
    """The values that a broker has reported."""
    return {name: value for name, value in values.items() if value is not None}


def _grown(metrics: dict[str, str], name: str) -> int:
    """Growth of a total from yesterday's morning to today's."""
    today, yesterday = metrics.get(f"{name}TodayMorning", "0"), metrics.get(f"{name}YesterdayMorning", "0")
    return int(today) - int(yesterday)


def _summed_topic(known: TopicConfig | None, new: TopicConfig) -> TopicConfig:
    if known is None:
        return new
    return evolve(
        new,
        read_queue_nums=known.read_queue_nums + new.read_queue_nums,
        write_queue_nums=known.write_queue_nums + new.write_queue_nums,
    )


def _summed_group(
    known: SubscriptionGroupConfig | None, new: SubscriptionGroupConfig
) -> SubscriptionGroupConfig:
    if known is None:
        return new
    return evolve(new, retry_queue_nums=known.retry_queue_nums + new.retry_queue_nums)
