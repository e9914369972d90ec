"""The host of a name server's plug-ins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rmq.metrics import Metric, connection_metrics, single
from rmq.server.plugin_host import NoMessages, PluginHost, at_once
from rmq.server.process import VERSION

if TYPE_CHECKING:
    from rmq.namesrv.handlers import NameServer


def plugin_host(server: NameServer, wall_ms: Callable[[], int]) -> PluginHost:
    """The host of a name server's plug-ins."""
    metrics = at_once(partial(metrics_of, server))
    return PluginHost(server, NoMessages("name server"), now_ms=wall_ms, metrics=metrics)


def metrics_of(server: NameServer) -> list[Metric]:
    """Metrics of a name server: the sizes of its tables, and its connections."""
    routes = server.routes
    brokers = sum(len(broker.broker_addrs) for broker in routes.cluster_info().broker_addr_table.values())
    topics = len(routes.topics().topic_list)
    about = "Always 1: the version that this name server is"
    until = "Expiry of the TLS certificate, in seconds since 1970; 0 without a certificate"
    missing = Counter((one.cluster, one.broker_name) for one in server.missing_brokers())
    refused = Counter((one.cluster, one.broker_name) for one in server.refused_brokers())
    labels = ("cluster", "broker")
    return [
        Metric("build_info", "gauge", about, [((VERSION,), 1)], ("version",)),
        single("certificate_end_seconds", "gauge", until, server.certificate.end_seconds),
        single("namesrv_brokers", "gauge", "Brokers that are registered, slaves too", brokers),
        single("namesrv_topics", "gauge", "Topics that have a route", topics),
        Metric(
            "namesrv_missing",
            "gauge",
            "Brokers of a name that left without a drain, until they are back or forgotten",
            list(missing.items()),
            labels,
        ),
        Metric(
            "namesrv_refused",
            "gauge",
            "Brokers of a name whose registration was refused lately",
            list(refused.items()),
            labels,
        ),
        *server.controller_metrics(),
        *connection_metrics(server.acceptors, server.budget),
    ]
