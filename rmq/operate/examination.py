"""Examination of a cluster: collects the facts that `diagnosis` judges, from name servers, brokers, groups
and accounts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from attrs import Factory, evolve, frozen

from rmq.clock import wall_clock_ms
from rmq.errors import (
    NETWORK_ERRORS,
    ConsumerNotOnline,
    NoPermission,
    NoRoute,
    RequestCodeNotSupported,
    ResponseError,
    RmqError,
    TopicNotExist,
    Unreachable,
)
from rmq.message import dlq_topic
from rmq.operate.accounts import differences
from rmq.operate.controllers import REFUSES, Controllers
from rmq.operate.copies.manifest import Manifest, group_settings, topic_settings
from rmq.operate.copies.transfer import accounts, broker_entries, queue_ends
from rmq.operate.diagnosis import BrokerFacts, Expectation, Facts, GroupFacts
from rmq.operate.several import ask_each
from rmq.protocol.bodies import ClusterReport

if TYPE_CHECKING:
    from rmq.client.admin import Admin
    from rmq.client.client import Client
    from rmq.operate.controllers import ControllerState
    from rmq.operate.copies.manifest import Settings
    from rmq.operate.overview import Overview
    from rmq.protocol.bodies import MissingBroker, RefusedBroker

Connect = Callable[[str], AbstractAsyncContextManager["Client"]]
"""A client of these name servers, several joined by ``;``."""
Step = Callable[[int], object]
"""Called with the number of parts done since the last call."""

PARTS: Final = 5
"""Parts of an examination: name servers, brokers, topics, groups, controllers."""
VIP_PORT_DISTANCE: Final = 2


def _skip(count: int) -> None:
    return


async def examine(
    connect: Connect,
    name_servers: Sequence[str],
    *,
    lag_limit: int = 10_000,
    controllers: Sequence[str] = (),
    expected: Manifest | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    step: Step = _skip,
) -> Facts:
    """Collect all facts; a server or member that does not answer is a fact, not an error.

    `lag_limit` is the backlog from which a group counts as wrong; `step` is called as `PARTS` get done. In a
    group with several members each member is asked for its subscriptions. Controllers are the given ones,
    name servers that are controllers, and those in the settings of brokers. `expected` is an exported cluster
    to compare with. Raises NoPermission: an account that is no administrator would get findings without a
    fault.
    """
    reports = {address: await _name_server(connect, address) for address in name_servers}
    _raise_if_all_refuse(list(reports.values()))
    answers: dict[str, list[str] | str] = {
        address: sorted(report.broker_addr_table) if isinstance(report, ClusterReport) else _why(report)
        for address, report in reports.items()
    }
    missing, refused = _merged([one for one in reports.values() if isinstance(one, ClusterReport)])
    ends = {
        address: one.certificate_end for address, one in reports.items() if isinstance(one, ClusterReport)
    }
    facts = Facts(
        answers,
        lag_limit=lag_limit,
        missing=missing,
        refused=refused,
        certificates=ends,
        now_ms=now_ms(),
    )
    step(1)
    alive = [address for address, answer in answers.items() if isinstance(answer, list)]
    if not alive:
        return facts
    async with connect(";".join(alive)) as client:
        facts, tables = await _cluster(client.admin, facts, now_ms, step)
        facts = evolve(facts, controllers=await _controllers(client.admin, facts, controllers))
        facts = evolve(facts, unheard=await _unheard(client.admin, facts, now_ms))
        if expected is not None:
            facts = evolve(facts, expected=await _expectation(client.admin, expected, tables))
    step(1)
    return facts


def facts_of(seen: Overview, lags: dict[str, int], *, asked_at: int, lag_limit: int = 10_000) -> Facts:
    """The facts in an overview, with the backlog of each group: no further request is sent.

    Settings, members, dead letters and topics are not included. A group with a backlog up to `lag_limit` is
    no finding, since its members are not known. A broker that refuses the account is left out: its state is
    not known.
    """
    brokers = [
        BrokerFacts(
            one.cluster,
            one.name,
            one.broker_id,
            one.address,
            error=one.error or "",
            runtime=one.runtime,
            asked_at=asked_at,
        )
        for one in seen.brokers
        if not one.is_refused
    ]
    known = sorted({one.name for one in seen.brokers})
    groups = [GroupFacts(name, lag, members=None) for name, lag in lags.items()]
    names = dict.fromkeys(seen.name_servers, known)
    return Facts(names, brokers, {}, groups, lag_limit, missing=seen.missing, refused=seen.refused)


def _raise_if_all_refuse(answers: Sequence[object]) -> None:
    """Raise NoPermission if nobody answers anything else: an account that is no administrator would get
    findings without a fault. A server that refuses an account which others accept has one, such as a wrong
    clock."""
    refusals = [one for one in answers if isinstance(one, NoPermission)]
    if refusals and len(refusals) == len(answers):
        raise refusals[0]


def _why(problem: NoPermission | str) -> str:
    """The reason for a missing answer."""
    return problem if isinstance(problem, str) else f"{REFUSES}{problem.remark or problem}"


async def _name_server(connect: Connect, address: str) -> ClusterReport | NoPermission | str:
    """The brokers that a name server knows, or the reason for a missing answer."""
    try:
        async with connect(address) as client:
            return await client.admin.cluster_report()
    except NoPermission as error:
        return error
    except Unreachable as error:  # by the only address that was asked
        return f"does not answer: {'; '.join(map(str, error.causes.values()))}"
    except RmqError as error:
        return str(error)


def _merged(reports: Sequence[ClusterReport]) -> tuple[list[MissingBroker], list[RefusedBroker]]:
    """Missing and refused brokers of all name servers, each once. A broker that one of them knows is not
    missing."""
    there = {
        address
        for report in reports
        for data in report.broker_addr_table.values()
        for address in data.broker_addrs.values()
    }
    missing: dict[str, MissingBroker] = {}
    refused: dict[str, RefusedBroker] = {}
    for report in reports:
        for one in report.missing_brokers:
            if one.broker_addr not in there:
                missing.setdefault(one.broker_addr, one)
        for refusal in report.refused_brokers:
            refused.setdefault(refusal.broker_addr, refusal)
    return list(missing.values()), list(refused.values())


@frozen
class _Tables:
    """The brokers' topics and groups as an export writes them: name -> broker -> settings."""

    masters: list[str]
    topics: dict[str, dict[str, Settings]] = Factory(dict)
    groups: dict[str, dict[str, Settings]] = Factory(dict)


async def _cluster(
    admin: Admin, facts: Facts, now_ms: Callable[[], int], step: Step
) -> tuple[Facts, _Tables]:
    places = [
        BrokerFacts(data.cluster, name, broker_id, address)
        for name, data in sorted((await admin.cluster_info()).broker_addr_table.items())
        for broker_id, address in sorted(data.broker_addrs.items())
    ]
    seen = await ask_each(range(len(places)), lambda number: _broker(admin, places[number], now_ms))
    _raise_if_all_refuse(list(seen.values()))
    brokers = [
        evolve(places[number], error=_why(one)) if isinstance(one, NoPermission) else one
        for number, one in seen.items()
    ]
    step(1)
    masters: list[BrokerFacts] = []
    tables = _Tables([])
    for number, broker in enumerate(brokers):
        if not broker.is_master or broker.error:
            continue
        try:
            topics_there = await admin.topic_configs(broker.address, system=False)
            groups_there = await admin.group_configs(broker.address, system=False)
        except RmqError as error:  # it has fallen silent since
            brokers[number] = evolve(broker, error=f"its topics and groups are not known: {error}")
            continue
        masters.append(broker)
        tables.masters.append(broker.name)
        for topic, config in topics_there.items():
            tables.topics.setdefault(topic, {})[broker.name] = topic_settings(config)
        for group, setting in groups_there.items():
            tables.groups.setdefault(group, {})[broker.name] = group_settings(setting)
    differing: list[str] = []
    if any(broker.config.get("aclEnable") == "true" for broker in brokers):
        differing = await _account_differences(admin)
    step(1)
    addresses = [broker.address for broker in masters]
    seen_groups = list((await ask_each(tables.groups, lambda name: _group(admin, name, addresses))).values())
    step(1)
    topics = {name: list(places) for name, places in tables.topics.items()}
    found = evolve(facts, brokers=brokers, topics=topics, groups=seen_groups, account_differences=differing)
    return found, tables


async def _controllers(admin: Admin, facts: Facts, given: Sequence[str]) -> Sequence[ControllerState]:
    """The states of the known controllers. Name servers that are not controllers are left out, unless a
    controller counts them as members."""
    settings = [one.config.get("controllerAddr", "") for one in facts.brokers]
    named = list(dict.fromkeys([*given, *(one for text in settings for one in text.split(";") if one)]))
    servers = [address for address in facts.name_servers if address not in named]
    states = await Controllers([*named, *servers], admin.call).states()
    return [one for one in states if not (one.address in servers and one.error)]


async def _unheard(admin: Admin, facts: Facts, now_ms: Callable[[], int]) -> list[BrokerFacts]:
    """The replicas that the leading controller counts as dead, and that answer all the same, such as a broker
    with a wrong clock, whose signatures nobody accepts."""
    registered = {broker.address for broker in facts.brokers}
    places = [
        BrokerFacts(one.cluster, one.name, replica.number, replica.address)
        for one in (facts.leading.sets if facts.leading is not None else ())
        for replica in one.replicas
        if replica.lives is False and replica.address not in registered
    ]

    async def look(number: int) -> BrokerFacts | None:
        place, asked_at = places[number], now_ms()
        try:
            runtime = await admin.broker_runtime(place.address)
        except ResponseError as error:
            return evolve(place, error=error.remark or str(error))
        except RmqError:
            return None
        return evolve(place, runtime=runtime, asked_at=asked_at)

    seen = await ask_each(range(len(places)), look)
    return [one for one in seen.values() if one is not None]


async def _expectation(admin: Admin, manifest: Manifest, tables: _Tables) -> Expectation:
    info = await admin.cluster_info()
    present = Manifest(tables.topics, tables.groups, brokers=broker_entries(info))
    problems: dict[str, str] = {}
    if manifest.accounts:
        for address in await admin.acl_servers(answering=True):
            try:
                present.accounts = await accounts(admin, address)
            except RmqError as error:  # the next server may answer
                problems["accounts"] = str(error)
            else:
                problems.pop("accounts", None)
                break
    topics = sorted({topic for found in manifest.offsets.values() for topic in found})

    async def ends_of(topic: str) -> dict[tuple[str, int], int]:
        try:
            return await queue_ends(admin, topic)
        except RmqError as error:
            problems[f"topic {topic}"] = str(error)
            return {}

    ends = await ask_each(topics, ends_of)
    return Expectation(manifest, present, tables.masters, ends, problems)


async def _broker(admin: Admin, place: BrokerFacts, now_ms: Callable[[], int]) -> BrokerFacts | NoPermission:
    try:
        asked_at = now_ms()
        runtime = await admin.broker_runtime(place.address)
        config = await admin.broker_config(place.address)
        vip_error = await _vip_error(admin, place.address, config)
    except NoPermission as error:
        return error
    except RmqError as error:
        return evolve(place, error=str(error))
    return evolve(place, vip_error=vip_error, runtime=runtime, config=config, asked_at=asked_at)


async def _account_differences(admin: Admin) -> list[str]:
    """Differences between the accounts of the servers that answer."""
    found = {}
    problems = []
    for address in await admin.acl_servers(answering=True):
        try:
            found[address] = await admin.acl_config(address)
        except (*NETWORK_ERRORS, RequestCodeNotSupported):
            pass  # a server that is away, or that lacks access control, has a finding of its own
        except RmqError as error:
            problems.append(f"were not checked at {address}: {error}; see this server first")
    return [*differences(found), *problems]


async def _vip_error(admin: Admin, address: str, config: Mapping[str, str]) -> str:
    """The error of the broker's second port, which some Java clients prefer; empty when the port works."""
    host, _, port = address.rpartition(":")
    if config.get("vipChannelEnabled") != "true" or config.get("listenPort") != port:
        return ""  # a port that the system chose has no second port beside it
    try:
        await admin.broker_runtime(f"{host}:{int(port) - VIP_PORT_DISTANCE}")
    except RmqError as error:
        return str(error)
    return ""


async def _group(admin: Admin, name: str, masters: Sequence[str]) -> GroupFacts:
    """A group's lag, dead letters, members and their subscriptions; `error` is the reason when a part is
    missing."""
    dead = lag = 0
    ids: list[str] = []
    subscriptions: dict[str, dict[str, str]] = {}
    problem = ""
    try:
        dead = await dead_letter_count(admin, name)
        with contextlib.suppress(ConsumerNotOnline):
            lag = (await admin.consume_stats(name)).lag
        ids = [one.client_id for one in (await admin.consumer_connection(name)).connection_set]
        if len(ids) > 1:
            asked = await ask_each(ids, lambda client_id: _subscriptions_of(admin, name, client_id))
            subscriptions = {member: subscribed for member, subscribed in asked.items() if subscribed}
    except ConsumerNotOnline:
        pass
    except RmqError as error:
        problem = str(error)
    found = GroupFacts(name, lag, len(ids), dead, problem, subscriptions)
    for address in masters:
        try:
            figures = await admin.delivery_figures(address, name)
        except RequestCodeNotSupported:  # RocketMQ's brokers may not know the request
            continue
        except RmqError as error:
            found.error = found.error or str(error)
            continue
        found.taken = max(found.taken, figures.taken + figures.waiting)
        found.oldest_ms = max(found.oldest_ms, figures.oldest_ms)
        found.polls += figures.polls
    return found


async def dead_letter_count(admin: Admin, group: str) -> int:
    """Count the dead letters of a group that are still kept."""
    try:
        stats = await admin.topic_stats(dlq_topic(group))
    except (NoRoute, TopicNotExist):
        return 0
    return sum(ends.max_offset - ends.min_offset for ends in stats.values())


async def _subscriptions_of(admin: Admin, group: str, client_id: str) -> dict[str, str]:
    """The subscriptions of a member, by its own report; none when it does not answer."""
    try:
        info = await admin.consumer_running_info(group, client_id)
    except RmqError:
        return {}
    return {data.topic: data.sub_string for data in info.subscription_set}
