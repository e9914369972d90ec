"""`client.admin` for scripts, without async: each method of `rmq.client.admin.Admin` under its own name, with
the same arguments and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal

from rmq.client import admin as async_admin
from rmq.client.portal import wait_for

P = ParamSpec("P")
T = TypeVar("T")


class _Waiting(Generic[P, T]):
    """A method of the async Admin as one that waits for its answer."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, admin: Admin, kind: type[Admin]) -> Callable[P, T]:
        return partial(wait_for, admin.portal, partial(self._method, admin.inner))


class Admin:
    """See `rmq.client.admin.Admin`."""

    def __init__(self, portal: BlockingPortal, inner: async_admin.Admin) -> None:
        self.portal = portal
        self.inner = inner

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers that this client knows."""
        return self.inner.name_servers

    topics = _Waiting(async_admin.Admin.topics)
    system_topics = _Waiting(async_admin.Admin.system_topics)
    topic_clusters = _Waiting(async_admin.Admin.topic_clusters)
    topic_stats = _Waiting(async_admin.Admin.topic_stats)
    topic_configs = _Waiting(async_admin.Admin.topic_configs)
    topic_config = _Waiting(async_admin.Admin.topic_config)
    create_topic = _Waiting(async_admin.Admin.create_topic)
    put_topic = _Waiting(async_admin.Admin.put_topic)
    set_topic_perm = _Waiting(async_admin.Admin.set_topic_perm)
    delete_topic = _Waiting(async_admin.Admin.delete_topic)
    order_conf = _Waiting(async_admin.Admin.order_conf)
    put_order_conf = _Waiting(async_admin.Admin.put_order_conf)
    delete_order_conf = _Waiting(async_admin.Admin.delete_order_conf)
    topic_exists = _Waiting(async_admin.Admin.topic_exists)

    groups = _Waiting(async_admin.Admin.groups)
    group_configs = _Waiting(async_admin.Admin.group_configs)
    group_config = _Waiting(async_admin.Admin.group_config)
    create_group = _Waiting(async_admin.Admin.create_group)
    put_group = _Waiting(async_admin.Admin.put_group)
    delete_group = _Waiting(async_admin.Admin.delete_group)
    groups_of_topic = _Waiting(async_admin.Admin.groups_of_topic)
    consumer_connection = _Waiting(async_admin.Admin.consumer_connection)
    producer_connection = _Waiting(async_admin.Admin.producer_connection)
    producers = _Waiting(async_admin.Admin.producers)
    consumer_running_info = _Waiting(async_admin.Admin.consumer_running_info)
    consumer_status = _Waiting(async_admin.Admin.consumer_status)

    consume_stats = _Waiting(async_admin.Admin.consume_stats)
    consumer_progress = _Waiting(async_admin.Admin.consumer_progress)
    broker_consume_stats = _Waiting(async_admin.Admin.broker_consume_stats)
    consume_time_span = _Waiting(async_admin.Admin.consume_time_span)
    reset_offset = _Waiting(async_admin.Admin.reset_offset)
    skip_accumulated = _Waiting(async_admin.Admin.skip_accumulated)
    set_offsets = _Waiting(async_admin.Admin.set_offsets)
    clone_offsets = _Waiting(async_admin.Admin.clone_offsets)

    broker_runtime = _Waiting(async_admin.Admin.broker_runtime)
    broker_config = _Waiting(async_admin.Admin.broker_config)
    update_broker_config = _Waiting(async_admin.Admin.update_broker_config)
    broker_stats = _Waiting(async_admin.Admin.broker_stats)
    broker_offsets = _Waiting(async_admin.Admin.broker_offsets)
    clean_expired_queues = _Waiting(async_admin.Admin.clean_expired_queues)
    delete_expired_logs = _Waiting(async_admin.Admin.delete_expired_logs)
    clean_unused_topics = _Waiting(async_admin.Admin.clean_unused_topics)
    wipe_write_perm = _Waiting(async_admin.Admin.wipe_write_perm)
    add_write_perm = _Waiting(async_admin.Admin.add_write_perm)
    namesrv_config = _Waiting(async_admin.Admin.namesrv_config)
    update_namesrv_config = _Waiting(async_admin.Admin.update_namesrv_config)
    kv_config = _Waiting(async_admin.Admin.kv_config)
    kv_configs = _Waiting(async_admin.Admin.kv_configs)
    put_kv_config = _Waiting(async_admin.Admin.put_kv_config)
    delete_kv_config = _Waiting(async_admin.Admin.delete_kv_config)

    view_message = _Waiting(async_admin.Admin.view_message)
    message_at = _Waiting(async_admin.Admin.message_at)
    query_message = _Waiting(async_admin.Admin.query_message)
    query_unique_key = _Waiting(async_admin.Admin.query_unique_key)
    trace = _Waiting(async_admin.Admin.trace)
    message_tracks = _Waiting(async_admin.Admin.message_tracks)
    consume_directly = _Waiting(async_admin.Admin.consume_directly)
    resume_check = _Waiting(async_admin.Admin.resume_check)
    consume_queue = _Waiting(async_admin.Admin.consume_queue)

    topic_rates = _Waiting(async_admin.Admin.topic_rates)
    all_rates = _Waiting(async_admin.Admin.all_rates)
    export_metadata = _Waiting(async_admin.Admin.export_metadata)
    export_configs = _Waiting(async_admin.Admin.export_configs)
    export_metrics = _Waiting(async_admin.Admin.export_metrics)

    acl_versions = _Waiting(async_admin.Admin.acl_versions)
    acl_config = _Waiting(async_admin.Admin.acl_config)
    acl_servers = _Waiting(async_admin.Admin.acl_servers)
    acl_put_account = _Waiting(async_admin.Admin.acl_put_account)
    acl_delete_account = _Waiting(async_admin.Admin.acl_delete_account)
    acl_set_white_addresses = _Waiting(async_admin.Admin.acl_set_white_addresses)

    cluster_info = _Waiting(async_admin.Admin.cluster_info)
    topic_route = _Waiting(async_admin.Admin.topic_route)
    broker_addresses = _Waiting(async_admin.Admin.broker_addresses)
