"""The plug-in `metrics`: what Prometheus' own parser reads from it, and what a scrape may do wrong."""

from __future__ import annotations

import pathlib
import random
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import trio

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families
from rmq_metrics import MetricsPlugin
from rmq_metrics.process import ProcessMetrics

from rmq.broker.config import BrokerConfig
from rmq.broker.plugin_host import plugin_host
from rmq.broker.replication.failover.replica_manager import ReplicaIdentity, ReplicaManager
from rmq.broker.runtime import service
from rmq.broker.send_batches import CompiledBroker
from rmq.broker.tables.versioned import run_to_end
from rmq.client.observability.metrics import ClientMetrics
from rmq.controller.config import ControllerConfig
from rmq.controller.endpoint import ControllerEndpoint
from rmq.controller.requests import ControllerRequests
from rmq.errors import AccessDenied, ConfigError, PortInUse
from rmq.metrics import SECONDS, Histogram, Metric, single, text_of
from rmq.namesrv import service as namesrv_service
from rmq.namesrv.config import NamesrvConfig
from rmq.namesrv.handlers import NameServer
from rmq.namesrv.host import plugin_host as namesrv_host
from rmq.namesrv.kvconfigs import KvConfigs
from rmq.plugin import Asked, hooks_of
from rmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND
from rmq.protocol.command import Command
from rmq.remoting.endpoint import ClientOnlyEndpoint
from rmq.remoting.network import TcpNetwork
from rmq.remoting.pool import Pool
from rmq.remoting.transports.certificate import ServerCertificate
from rmq.server.health import Health
from rmq.server.pages import serve
from rmq.server.process import VERSION
from rmq.store.config import FlushDiskType, StoreConfig
from rmq.store.files.segments import Progress
from rmq.store.recovery import Recovery
from rmq.store.store import Store
from rmq.testing.disk import MemoryDisk
from tests.ports import free_ports
from tests.unit.broker.rig import Rig, pull, send
from tests.unit.plugins.scraping import said

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def rig_with_metrics(**settings: Any) -> tuple[Rig, MetricsPlugin]:
    rig = Rig(**{"metrics_port": 0} | settings)
    plugin = MetricsPlugin({}, plugin_host(rig.broker))
    rig.broker.use_plugins(hooks_of([("metrics", plugin)]))
    return rig, plugin


def written(metrics: list[Metric]) -> bytes:
    return run_to_end(text_of(metrics))


def scraped(plugin: MetricsPlugin) -> Samples:
    return samples(written(plugin.metrics()))


def scraped_queues(plugin: MetricsPlugin) -> Samples:
    return samples(written(run_to_end(plugin.host.metrics_in_slices(queues=True))))


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"rmq_{name}", tuple(sorted(labels.items()))]


def test_plain_sends_stay_with_the_compiled_engine() -> None:
    rig, _ = rig_with_metrics()  # with a look at each request a send costs ten times as much
    hooks = rig.broker.hooks
    assert (hooks.requests, hooks.heads, hooks.stored) == ((), (), ())
    if isinstance(rig.broker, CompiledBroker):
        assert rig.broker.lanes.is_open


def test_a_pull_takes_from_its_arrival_or_from_the_send_that_it_waited_for() -> None:
    now = [0.0]

    def work_clock() -> float:
        now[0] += 0.001
        return now[0]

    rig, plugin = rig_with_metrics(given={"work_clock": work_clock})
    rig.ask(send("Orders"))
    rig.one(pull("Orders"))
    assert 0 < value(scraped(plugin), "pull_seconds_sum") < 0.1
    for offset in range(1, 4):
        rig.ask(pull("Orders", offset, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND))
        now[0] += 100
        assert len(rig.ask(send("Orders", b"y" * 100))) == 2
        now[0] += 100
        rig.ask(send("Orders", queue_id=1))
    found = scraped(plugin)
    assert value(found, "pull_seconds_count") == 4
    assert 0 < value(found, "pull_seconds_sum") < 0.5


def test_what_went_in_and_out_is_counted() -> None:
    rig, plugin = rig_with_metrics()
    for _ in range(3):
        rig.one(send("Orders", b"x" * 100))
    rig.one(pull("Orders", consumer_group="g"))
    found = scraped(plugin)
    assert value(found, "messages_in_total", topic="Orders") == 3
    assert value(found, "bytes_in_total", topic="Orders") > 300
    assert value(found, "messages_out_total", topic="Orders", group="g") == 3
    assert value(found, "send_write_seconds_count") == 3
    assert value(found, "pull_seconds_count") == 1
    assert value(found, "topic_messages", topic="Orders") == 3
    assert value(scraped_queues(plugin), "queue_max_offset", topic="Orders", queue="0") == 3
    assert value(found, "commitlog_bytes") == rig.store.max_physical_offset > 300
    assert value(found, "disk_used_ratio") < 1
    assert value(found, "store_writable") == 1


def test_lag_follows_and_is_never_negative() -> None:
    rig, plugin = rig_with_metrics()
    for _ in range(5):
        rig.one(send("Orders"))
    for _ in range(3):
        rig.one(send("Orders", queue_id=1))
    offsets, labels = rig.broker.offsets, {"group": "g", "topic": "Orders"}
    for offset, lag in ((0, 5), (2, 3), (5, 0), (99, 0), (-1, 5)):
        offsets.put("g", "Orders", {0: offset, 1: 1})  # as a slave copies it, unchecked
        assert value(scraped(plugin), "consumer_lag_messages", **labels) == lag + 2
        queues = scraped_queues(plugin)
        assert value(queues, "consumer_lag_messages", **labels) == lag + 2
        assert value(queues, "consumer_lag_queue_messages", **labels, queue="0") == lag
        assert value(queues, "consumer_lag_queue_messages", **labels, queue="1") == 2
    offsets.put("g", "Gone", {0: 7})
    assert value(scraped(plugin), "consumer_lag_messages", group="g", topic="Gone") == 0


def test_no_figure_is_negative_and_all_are_described() -> None:
    rig, plugin = rig_with_metrics()
    rig.one(send("Orders"))
    text = written(run_to_end(plugin.host.metrics_in_slices(queues=True))).decode()
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert all(sample.value >= 0 for sample in family.samples), family.name
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) > 30


def a_control() -> ReplicaManager:
    """Of a broker that has not found its set yet."""
    file = ReplicaIdentity(MemoryDisk(), "/store", random.Random(1))
    return ReplicaManager(
        BrokerConfig(), file, address="a:1", ha_address="a:2", is_founder=True, clock=lambda: 7.0
    )


def test_the_page_lists_every_figure() -> None:
    _, plugin = rig_with_metrics()
    page = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text("utf-8")
    listed = set(re.findall(r"`rmq_(\w+?)(?:_total)?`", page))
    made = {metric.name for metric in plugin.metrics()}
    made |= {metric.name for metric in run_to_end(plugin.host.metrics_in_slices(queues=True))}
    made |= {metric.name for metric in ClientMetrics().collect()}
    made |= {metric.name for metric in a_control().metrics()}
    made |= {metric.name for metric in ControllerRequests(lambda: 0.0).metrics()}
    assert listed == made | {
        *("namesrv_brokers", "namesrv_topics", "namesrv_missing", "namesrv_refused"),
        *("proxy_calls", "proxy_clients", "proxy_groups", "proxy_producers"),
    }


def test_refusals_are_counted_by_reason() -> None:
    rig, plugin = rig_with_metrics()
    rig.one(Command.request(9999))
    rig.one(pull("NoSuchTopic", consumer_group="g"))
    rig.one(pull("NoSuchTopic", consumer_group="g"))
    found = scraped(plugin)
    assert value(found, "refusals_total", request="other", reason="REQUEST_CODE_NOT_SUPPORTED") == 1
    assert value(found, "refusals_total", request="PULL_MESSAGE", reason="TOPIC_NOT_EXIST") == 2


def test_codes_that_nobody_knows_are_counted_as_one() -> None:
    """300,000 of them were a label each, and no scrape came to its end any more."""
    rig, plugin = rig_with_metrics()
    before = len(scraped(plugin))
    for code in range(20_000, 21_000):
        rig.one(Command.request(code))
    found = scraped(plugin)
    assert value(found, "refusals_total", request="other", reason="REQUEST_CODE_NOT_SUPPORTED") == 1_000
    assert len(found) == before + 1


def test_refusals_of_other_plugins_count_too() -> None:
    class Closed(MetricsPlugin):
        def on_request(self, peer: object, command: Command) -> None:
            raise AccessDenied(remark="no")

    rig = Rig()
    plugin = Closed({}, plugin_host(rig.broker))
    rig.broker.use_plugins(hooks_of([("closed", plugin)]))
    rig.one(send("Orders"))
    assert value(scraped(plugin), "refusals_total", request="SEND_MESSAGE_V2", reason="NO_PERMISSION") == 1


def test_histograms_are_cumulative_and_hold_every_value() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.0001, 0.00011, 3.0, 11.0, 11.0):
        histogram.observe(seconds)
    histogram.observe(0.5, times=4)
    found = samples(written([single("t_seconds", "histogram", "t", histogram)]))
    assert value(found, "t_seconds_bucket", le="0.0001") == 2
    assert value(found, "t_seconds_bucket", le="0.00025") == 3
    assert value(found, "t_seconds_bucket", le="0.5") == 7
    assert value(found, "t_seconds_bucket", le="10.0") == 8
    assert value(found, "t_seconds_bucket", le="+Inf") == value(found, "t_seconds_count") == 10
    assert value(found, "t_seconds_sum") == pytest.approx(27.00021)
    assert list(SECONDS) == sorted(SECONDS)


def test_labels_may_hold_anything() -> None:
    strange = 'a"b\\c\nd'
    metric = Metric("things", "gauge", "t", [((strange,), 1)], ("which",))
    assert value(samples(written([metric])), "things", which=strange) == 1


def test_the_process_is_measured_too() -> None:
    found = samples(ProcessMetrics().text())
    assert found["process_resident_memory_bytes", ()] > 1_000_000
    assert found["process_open_fds", ()] > 0


# --- over HTTP ---


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq.plugin._installed", lambda: {"metrics": lambda: MetricsPlugin})


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[MetricsPlugin, str]]:
    _, plugin = rig_with_metrics(**settings)
    listener = await TcpNetwork().listen("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, listener, plugin.pages())
        yield plugin, listener.address
        nursery.cancel_scope.cancel()


async def test_a_scrape() -> None:
    async with serving() as (_, address):
        answer = await said(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"text/plain; version=0.0.4" in head
    assert ("rmq_held_pulls", ()) in samples(body)


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /other HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", b"405"),
        (b"\x00\x00\x00\x10nonsense\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 100_000, b"431"),
    ],
)
async def test_other_requests_get_an_error_and_nothing_else(request_text: bytes, status: bytes) -> None:
    async with serving() as (_, address):
        answer = await said(address, request_text)
        assert answer.split()[1:2] in ([status], [])  # a peer that sends too much may see a reset only
        assert b"rmq_" not in answer
        assert b" 200 " in await said(address, b"GET /metrics HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (b"Authorization: Bearer a-token-of-20-letters", b"200"),
        (b"authorization: bearer  a-token-of-20-letters ", b"200"),
        (b"Authorization: Bearer a-token-of-20-letter", b"401"),
        (b"Authorization: Basic a-token-of-20-letters", b"401"),
        (b"Authorization: \xff", b"401"),
        (b"X: y", b"401"),
    ],
)
async def test_a_token_opens_the_page(tmp_path: Any, given: bytes, status: bytes) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-20-letters\n")
    file.chmod(0o600)
    async with serving(metrics_token_file=str(file)) as (_, address):
        answer = await said(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + given + b"\r\n\r\n")
    assert answer.split()[1] == status
    assert (b"rmq_" in answer) == (status == b"200")
    assert (b"WWW-Authenticate: Bearer" in answer) == (status == b"401")


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("short")
    for name in ("token", "none"):
        with pytest.raises(ConfigError, match="metricsTokenFile"):
            rig_with_metrics(metrics_token_file=str(tmp_path / name))


def test_who_starts_a_service_is_told_where_figures_are_read(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("a-token-of-20-letters")
    told = [
        rig_with_metrics(metrics_port=5557, **settings)[1].listens()["metrics"]
        for settings in (
            {},
            {"metrics_address": "0.0.0.0"},
            {"metrics_address": "0.0.0.0", "metrics_token_file": str(tmp_path / "token")},
        )
    ]
    assert told == ["127.0.0.1:5557", "0.0.0.0:5557, for anybody (metricsTokenFile)", "0.0.0.0:5557"]


async def test_peers_that_say_nothing_are_dropped(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as (_, address):
        host, _, port = address.rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
        assert await stream.receive_some() == b""


async def test_who_scrapes_at_once_gets_one_page(autojump_clock: trio.testing.MockClock) -> None:
    _, plugin = rig_with_metrics()
    made = 0
    read = plugin.host.metrics_in_slices

    def counted(*, queues: bool = False) -> Any:
        nonlocal made
        made += 1
        return read(queues=queues)

    plugin.host.metrics_in_slices = counted  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(plugin.page, Asked(b"", {}))
    assert made == 1
    await trio.sleep(1)
    await plugin.page(Asked(b"", {}))
    assert made == 2
    assert b"rmq_queue_max_offset" not in (await plugin.page(Asked(b"x=y", {}))).body
    assert b"rmq_queue_max_offset" in (await plugin.page(Asked(b"x=y&queues=true", {}))).body


async def test_a_whole_broker_serves_it(tmp_path: Any, installed: None) -> None:
    config = BrokerConfig(listen_port=0, metrics_port=0, plugins=("metrics",), vip_channel_enabled=False)
    files = {"max_hash_slot_num": 64, "max_index_num": 1024, "mapped_file_size_commit_log": 1 << 20}
    store = StoreConfig(store_path_root_dir=str(tmp_path), flush_disk_type=FlushDiskType.SYNC_FLUSH, **files)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        also: dict[str, str] = {}
        addresses = await nursery.start(partial(service.run, config, store, stop=stop, also=also))
        async with Pool(TcpNetwork(), ClientOnlyEndpoint()) as pool:
            await pool.call(addresses[0], send("Orders"), 5)
            address = also["health"].split("/")[2]
            answer = await said(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        stop.set()
    found = samples(answer.partition(b"\r\n\r\n")[2])
    assert value(found, "connections") == 1
    assert value(found, "flush_seconds_count") >= 1
    assert value(found, "flush_wait_seconds_count") == 1
    assert value(found, "commitlog_unflushed_bytes") == 0


# --- health ---


def broker_files(tmp_path: Any) -> StoreConfig:
    files = {"max_hash_slot_num": 64, "max_index_num": 1024, "mapped_file_size_commit_log": 1 << 20}
    return StoreConfig(store_path_root_dir=str(tmp_path), **files)


class SlowDisk:
    """Holds up the opening of stores in the middle of it, as a long log does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.release = threading.Event(), threading.Event()
        load = Store._load

        def slow(store: Store, progress: Progress, rebuild: bool) -> Recovery:
            self.began.set()
            while not self.release.wait(0.001):
                progress("log", 40, 100)
            return load(store, progress, rebuild)

        monkeypatch.setattr(Store, "_load", slow)


GET_READY, GET_HEALTH = (b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in (b"/ready", b"/healthz"))


async def test_probes_are_answered_while_the_store_is_opened(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, installed: None
) -> None:
    slow = SlowDisk(monkeypatch)
    monkeypatch.setattr("rmq.broker.runtime.startup.PROGRESS_SECONDS", 0.0)
    port, _, metrics_port = free_ports(3)  # slaves come in beside the first
    config = BrokerConfig(
        listen_port=port, metrics_port=metrics_port, plugins=("metrics",), vip_channel_enabled=False
    )
    probed, stop = f"127.0.0.1:{metrics_port}", trio.Event()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(service.run, config, broker_files(tmp_path), stop=stop))
            await trio.to_thread.run_sync(slow.began.wait)
            assert b" 200 " in await said(probed, GET_HEALTH)
            answer = await said(probed, GET_READY)
            while b"log, 40 %" not in answer:  # the first line of progress comes in a moment
                answer = await said(probed, GET_READY)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"store: it is being opened: log, 40 % (40 of 100)" in answer
            with pytest.raises(OSError, match="all attempts to connect"):
                await said(f"127.0.0.1:{port}", b"x")  # refused, not taken and kept waiting
            with pytest.raises(PortInUse, match="metricsPort"):
                await service.run(config, broker_files(tmp_path / "other"))
            slow.release.set()
            while b" 200 " not in answer:
                answer = await said(probed, GET_READY)
            stop.set()
    assert answer.endswith(b"ready\n")


async def test_an_opening_can_be_stopped(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, stop = SlowDisk(monkeypatch), trio.Event()
    config = BrokerConfig(listen_port=0, vip_channel_enabled=False)
    started: list[list[str]] = []

    async def run(store: StoreConfig) -> None:
        started.append(await nursery.start(partial(service.run, config, store, stop=stop)))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, broker_files(tmp_path))
            await trio.to_thread.run_sync(slow.began.wait)
            stop.set()
        assert started == [[]]
        slow.release.set()
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            await run(broker_files(tmp_path))  # nobody has the folder
            stop.set()
    assert started[1]


async def test_a_broker_is_not_ready_before_it_is_registered(tmp_path: Any) -> None:
    (port,), health, stop = free_ports(1), Health(), trio.Event()
    config = BrokerConfig(listen_port=0, vip_channel_enabled=False, namesrv_addr=f"127.0.0.1:{port}")
    lacking: list[dict[str, str]] = []

    def on_opened(broker: Any) -> None:
        lacking.append(dict(health.lacking))

    run = partial(service.run, config, broker_files(tmp_path), health=health, stop=stop, on_opened=on_opened)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(namesrv_service.run, NamesrvConfig(listen_port=port)))
            await nursery.start(run)
            assert lacking == [{"name servers": "not registered yet"}]
            assert health.is_ready
            stop.set()
            nursery.cancel_scope.cancel()


async def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Any, installed: None) -> None:
    (port,), stop = free_ports(1), trio.Event()
    config = BrokerConfig(
        listen_port=0,
        metrics_port=0,
        plugins=("metrics",),
        vip_channel_enabled=False,
        namesrv_addr=f"127.0.0.1:{port}",
    )
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            also: dict[str, str] = {}
            await nursery.start(partial(service.run, config, broker_files(tmp_path), stop=stop, also=also))
            probed = also["health"].split("/")[2]
            answer = await said(probed, GET_READY)
            assert b" 503 " in answer
            assert f"name servers: registered at none of 127.0.0.1:{port}".encode() in answer
            names = NamesrvConfig(listen_port=port)
            await nursery.start(partial(namesrv_service.run, names))
            while b" 200 " not in answer:
                answer = await said(probed, GET_READY)
            stop.set()
            nursery.cancel_scope.cancel()


def test_a_controller_says_when_its_certificate_ends() -> None:
    certificate = ServerCertificate(end=datetime(2027, 1, 1, tzinfo=UTC))
    requests = ControllerRequests(lambda: 0.0, certificate=certificate)
    plugin = MetricsPlugin({}, ControllerEndpoint(ControllerConfig(), requests).host(lambda: 0))
    assert value(scraped(plugin), "certificate_end_seconds") == 1_798_761_600
    assert requests.status()["certificateEnd"] == "2027-01-01T00:00:00+00:00"


def test_a_name_server_says_its_version_and_when_its_certificate_ends() -> None:
    certificate = ServerCertificate(end=datetime(2027, 1, 1, tzinfo=UTC))
    kv_configs = KvConfigs(lambda data: None)
    server = NameServer(NamesrvConfig(), now_ms=lambda: 0, kv_configs=kv_configs, certificate=certificate)
    plugin = MetricsPlugin({}, namesrv_host(server, lambda: 0))
    found = scraped(plugin)
    assert value(found, "build_info", version=VERSION) == 1
    assert value(found, "certificate_end_seconds") == 1_798_761_600
