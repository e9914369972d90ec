"""The Helm chart: what it makes for Kubernetes fits together, is strict, and names settings that there are.

With helm (`nox -s packages`) it is rendered anew, linted, and values that do not fit are refused.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from rmq.broker.config import BrokerConfig
from rmq.broker.runtime import failover_service
from rmq.config import describe, load
from rmq.controller.config import own_address
from rmq.namesrv.config import NamesrvConfig
from rmq.proxy.config import ProxyConfig
from rmq.remoting.transports.tls import TlsConfig
from rmq.store.config import StoreConfig
from tests.system.chart import CHART, VALUES, containers, digest, golden, objects, of_kind, rendered
from tests.system.containers import USER, image_environment

needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="no helm here (nox -s packages)")
each = pytest.mark.parametrize("name", list(VALUES))


PROXIED = "secure"
"""The values with proxies."""


def pods(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The pods of all StatefulSets and Deployments, each with its container."""
    kinds = [*of_kind(name, "StatefulSet"), *of_kind(name, "Deployment")]
    specs = [one["spec"]["template"]["spec"] for one in kinds]
    return [(spec, spec["containers"][0]) for spec in specs]


@each
def test_what_is_kept_was_made_of_this_chart(name: str) -> None:
    """After a change of the chart: `python -m tests.system.chart`."""
    assert golden(name).splitlines()[0] == f"# {digest()}"


@each
def test_no_pod_is_root_or_writes_outside_of_its_volumes(name: str) -> None:
    assert len(pods(name)) == (4 if name == PROXIED else 3)
    for spec, container in pods(name):
        assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (USER, True)
        assert spec["automountServiceAccountToken"] is False
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        paths = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert paths == {"/data", "/tmp"}
        volumes = {volume["name"] for volume in spec["volumes"]} | {"data"}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@each
def test_probes_and_ports_are_those_of_the_image(name: str) -> None:
    for _, container in pods(name):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert str(ports["metrics"]) == image_environment()["RMQ_METRICS_PORT"]
        probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
        assert {probe["port"] for probe in probes.values()} == {"metrics"}
        assert [probe["path"] for probe in probes.values()] == ["/healthz", "/healthz", "/ready"]
        if "clients" in ports:
            port = BrokerConfig().listen_port
            assert [ports["vip"], ports["clients"], ports["ha"]] == [port - 2, port, port + 1]
        elif "grpc" in ports:
            assert ports["grpc"] == ProxyConfig().listen_port
        else:
            assert ports["namesrv"] == NamesrvConfig().listen_port


@each
def test_services_lead_to_pods_and_sets_to_services(name: str) -> None:
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind(name, "StatefulSet")]
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(name, "Service")}
    for one in of_kind(name, "StatefulSet"):
        service = services[one["spec"]["serviceName"]]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"] is True
        wanted = one["spec"]["selector"]["matchLabels"]
        assert service["selector"] == wanted
        assert [wanted.items() <= found.items() for found in labels].count(True) == 1, "one set, its own pods"
        (claim,) = one["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["name"] == "data"
    pod_names = {container.name.partition(".")[0] for container in containers(name)}
    assert ("one-rmq-proxy" in services) == (name == PROXIED)
    external = [
        spec
        for service, spec in services.items()
        if spec.get("clusterIP") != "None" and service != "one-rmq-proxy"
    ]
    aimed = {spec["selector"]["statefulset.kubernetes.io/pod-name"] for spec in external}
    brokers = {pod for pod in pod_names if "namesrv" not in pod and "proxy" not in pod}
    assert aimed == (brokers if name == "secure" else set())


@each
def test_one_name_server_and_one_broker_at_a_time_may_be_taken_away(name: str) -> None:
    sets = [one["spec"]["template"]["metadata"]["labels"] for one in of_kind(name, "StatefulSet")]
    assert sorted(one["rmq/group"] for one in sets) == ["broker", "broker", "namesrv"]
    budgets = [one["spec"] for one in of_kind(name, "PodDisruptionBudget")]
    assert [one["maxUnavailable"] for one in budgets] == [1] * (2 if name == "default" else 3)
    sets += [one["spec"]["template"]["metadata"]["labels"] for one in of_kind(name, "Deployment")]
    for labels in sets:  # a pod that two budgets select cannot be evicted
        wanted = [one["selector"]["matchLabels"] for one in budgets]
        assert [one.items() <= labels.items() for one in wanted].count(True) == 1


def test_a_set_has_one_founder_and_three_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {one.name.partition(".")[0]: one for one in containers("failover")}
    assert sorted(found) == [
        *(f"one-rmq-namesrv-{number}" for number in range(3)),
        *(f"one-rmq-set-{which}-{number}" for which in range(2) for number in range(3)),
    ]
    names = ";".join(
        f"one-rmq-namesrv-{number}.one-rmq-namesrv.mq.svc.cluster.local:9876" for number in range(3)
    )
    for pod, one in found.items():
        monkeypatch.undo()
        for key, value in one.environment.items():
            monkeypatch.setenv(key, value)
        if list(one.command) == ["namesrv"]:
            config = load(NamesrvConfig)
            assert config.controllers == names
            assert own_address(config, config.bind_address, config.listen_port)[0] == f"{one.name}:9876"
            continue
        broker, store = load(BrokerConfig), load(StoreConfig)
        failover_service.check(broker, store)
        assert broker.broker_name == pod.rpartition("-")[0]
        assert broker.broker_id == int(pod.rpartition("-")[2]), "only number 0 may begin the set"
        assert (broker.controller_addr, broker.min_in_sync_replicas) == (names, 2)
        assert broker.ha_host == one.name
    for one in of_kind("failover", "StatefulSet"):
        assert one["spec"]["podManagementPolicy"] == "Parallel"


@pytest.mark.parametrize("name", ["default", "secure"])
def test_settings_are_known_and_make_masters_with_their_slaves(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        one.name
        for cls in (BrokerConfig, StoreConfig, NamesrvConfig, ProxyConfig, TlsConfig)
        for one in describe(cls)
    }
    found: dict[str, BrokerConfig] = {}
    hosts = {container.name for container in containers(name)}
    for container in containers(name):
        for key in container.environment:
            assert not key.startswith("RMQ_") or key.removeprefix("RMQ_").lower() in known, key
        if list(container.command) == ["broker"]:
            monkeypatch.undo()
            for key, value in container.environment.items():
                monkeypatch.setenv(key, value)
            config = load(BrokerConfig)
            assert config.ha_host == container.name, "slaves dial masters inside"
            assert set(re.findall(r"([^:;]+):9876", config.namesrv_addr)) < hosts
            found[container.name.partition(".")[0]] = config
    assert {pod: (config.broker_name, config.broker_id) for pod, config in found.items()} == {
        "one-rmq-broker-0": ("one-rmq-broker-0", 0),
        "one-rmq-broker-1": ("one-rmq-broker-1", 0),
        "one-rmq-slave-1-0": ("one-rmq-broker-0", 1),
        "one-rmq-slave-1-1": ("one-rmq-broker-1", 1),
    }
    roles = {one.name.partition(".")[0]: one.environment.get("RMQ_BROKER_ROLE") for one in containers(name)}
    master = "SYNC_MASTER" if name == "secure" else "ASYNC_MASTER"
    assert [roles[pod] for pod in sorted(found)] == [master, master, "SLAVE", "SLAVE"]
    addresses = [config.broker_ip1 for pod, config in sorted(found.items()) if "broker" in pod]
    told = ["one-rmq-broker-0.example.org", "one-rmq-broker-1.example.org"]
    assert addresses == (told if name == "secure" else sorted(host for host in hosts if "-broker-" in host))


@each
def test_only_brokers_reach_the_port_for_slaves_and_only_pods_the_others(name: str) -> None:
    policies = {
        one["spec"]["podSelector"]["matchLabels"]["rmq/group"]: one for one in of_kind(name, "NetworkPolicy")
    }
    assert set(policies) == {"namesrv", "broker"} | ({"proxy"} if name == PROXIED else set())
    everywhere = [{"namespaceSelector": {}}]
    for group, policy in policies.items():
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        own = policy["spec"]["podSelector"]["matchLabels"]
        rules = {
            port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]
        }
        ports = {
            port["name"]
            for one in [*of_kind(name, "StatefulSet"), *of_kind(name, "Deployment")]
            if one["spec"]["template"]["metadata"]["labels"]["rmq/group"] == group
            for port in one["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        assert set(rules) == ports
        assert rules["metrics"] == everywhere
        assert rules.get("ha", [{"podSelector": {"matchLabels": own}}]) == [
            {"podSelector": {"matchLabels": own}}
        ]
        of_clients = rules[{"broker": "clients", "proxy": "grpc"}.get(group, "namesrv")]
        assert of_clients is None if (group, name) == ("broker", "secure") else of_clients[1:] == everywhere


def test_services_for_clients_outside_keep_the_clients_addresses() -> None:
    external = [
        one["spec"] for one in of_kind("secure", "Service") if one["spec"].get("type") == "LoadBalancer"
    ]
    assert external
    assert {spec["externalTrafficPolicy"] for spec in external} == {"Local"}


def test_every_value_that_templates_read_is_there_and_described() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    text = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    read = set(re.findall(r"[.$]Values\.([\w.]+)", text)) | set(re.findall(r"\$values\.([\w.]+)", text))
    assert len(read) > 20
    for path in read:
        at: Any = values
        for word in path.split("."):
            assert word in at, f"values.yaml does not have {path}"
            at = at[word]
    for top in values:
        assert any(path.split(".")[0] == top for path in read), f"nothing reads {top}"


@needs_helm
@each
def test_helm_makes_what_is_kept(name: str) -> None:
    assert golden(name).partition("\n")[2] == rendered(name)


SET = "broker.failover=true,namesrv.replicas=3,secure.enabled=true"
SOME = (
    "image.tag=v9",
    "secure.enabled=true",
    SET,
    "broker.failover=true,namesrv.replicas=5,broker.openControllers=true,broker.masters=4",
    f"{SET},broker.external.enabled=true,broker.slaves=2",
    "broker.durability=replicated",
    "broker.slaves=0",
    "antiAffinity=required",
    "networkPolicy.enabled=false,podDisruptionBudget.enabled=false",
    "serviceMonitor.enabled=true,broker.slaves=3",
    f"{SET},proxy.enabled=true,proxy.replicas=3,proxy.service.type=LoadBalancer",
)


@needs_helm
@pytest.mark.parametrize("values", SOME)
def test_sets_of_values_make_objects_that_fit(values: str) -> None:
    subprocess.run(
        ["helm", "lint", "--strict", CHART, "--set", values], check=True, stdout=subprocess.DEVNULL
    )
    found = objects(rendered("default", values))
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names)
    pods, labels = set(), []
    for one in found:
        if one["kind"] == "StatefulSet":
            pods |= {f"{one['metadata']['name']}-{number}" for number in range(one["spec"]["replicas"])}
            labels.append(one["spec"]["template"]["metadata"]["labels"])
            assert ("Service", one["spec"]["serviceName"]) in names
        elif one["kind"] == "Deployment":
            labels.append(one["spec"]["template"]["metadata"]["labels"])
    for one in found:
        if one["kind"] == "Service":
            selector = one["spec"]["selector"]
            pod = selector.get("statefulset.kubernetes.io/pod-name")
            assert pod in pods if pod else any(selector.items() <= of.items() for of in labels)
    assert all(len(name) <= 63 for _, name in names)


@needs_helm
def test_helm_lints_the_chart() -> None:
    subprocess.run(["helm", "lint", "--strict", CHART], check=True)


@needs_helm
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("broker.masters=0", "broker"),
        ("broker.failover=true", "needs namesrv.replicas of 3 or 5"),
        ("broker.failover=true,namesrv.replicas=4", "needs namesrv.replicas of 3 or 5"),
        ("broker.failover=true,namesrv.replicas=3", "set secure.enabled=true"),
        (
            "broker.failover=true,namesrv.replicas=3,secure.enabled=true,broker.slaves=0",
            "nobody could take over",
        ),
        (
            "broker.failover=true,namesrv.replicas=3,secure.enabled=true,broker.minInSyncReplicas=3",
            "more than the replicas of a set",
        ),
        ("broker.durabilty=disk", "durabilty"),
        ("broker.durability=safe", "durability"),
        ("namesrv.replicas=none", "replicas"),
        ("antiAffinity=maybe", "antiAffinity"),
    ],
)
def test_values_that_do_not_fit_are_refused(change: str, complaint: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        rendered("default", change)
    assert complaint in caught.value.stderr


@needs_helm
def test_replicated_without_a_slave_is_refused() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        rendered("default", "broker.durability=replicated", "broker.slaves=0")
    assert "needs broker.slaves of 1 or more" in caught.value.stderr


@needs_helm
def test_brokers_that_everybody_reaches_without_accounts_are_said_twice() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        rendered("default", "broker.external.enabled=true")
    assert "set secure.enabled=true, or broker.external.openToEverybody=true" in caught.value.stderr
    said_twice = rendered("default", "broker.external.enabled=true", "broker.external.openToEverybody=true")
    assert said_twice.count("externalTrafficPolicy: Local") == 4


def test_proxies_ask_the_brokers_by_an_account_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = [one for one in containers(PROXIED) if list(one.command) == ["proxy"]]
    assert [one.name.partition(".")[0] for one in proxies] == ["one-rmq-proxy-0", "one-rmq-proxy-1"]
    for key, value in proxies[0].environment.items():
        monkeypatch.setenv(key, value)
    config = load(ProxyConfig)
    assert (config.plugins, config.profile) == (("grpc", "metrics"), "secure")
    assert (config.proxy_access_key, config.proxy_secret_file) == ("grpc-proxy", "/etc/rmq/proxy.secret")
    names = {one.name for one in containers(PROXIED) if list(one.command) == ["namesrv"]}
    assert set(re.findall(r"([^:;]+):9876", config.namesrv_addr)) == names


@needs_helm
def test_proxies_that_everybody_reaches_without_accounts_are_said_twice() -> None:
    wide = ("proxy.enabled=true", "proxy.service.type=NodePort")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        rendered("default", *wide)
    assert "set secure.enabled=true, or proxy.service.openToEverybody=true" in caught.value.stderr
    assert "type: NodePort" in rendered("default", *wide, "proxy.service.openToEverybody=true")


@needs_helm
def test_a_service_of_the_cluster_alone_has_no_traffic_policy() -> None:
    assert "externalTrafficPolicy" not in rendered("secure", "broker.external.type=ClusterIP")


needs_schemas = pytest.mark.skipif(
    shutil.which("kubernetes-validate") is None, reason="no kubernetes-validate here (nox -s packages)"
)


def check_schemas(text: str, version: str, folder: pathlib.Path) -> None:
    """Check objects by the schemas of a version of Kubernetes, which have no ServiceMonitor."""
    own = [one for one in objects(text) if one["kind"] != "ServiceMonitor"]
    (file := folder / "objects.yaml").write_text(yaml.safe_dump_all(own))
    told = subprocess.run(
        ["kubernetes-validate", "--strict", "-k", version, file], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout
    assert (told.stdout + told.stderr).count(" passed ") == len(own)


@needs_schemas
@each
@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_kubernetes_takes_the_objects(name: str, version: str, tmp_path: pathlib.Path) -> None:
    check_schemas(golden(name), version, tmp_path)


@needs_helm
@needs_schemas
@pytest.mark.parametrize("values", SOME)
def test_kubernetes_takes_the_objects_of_sets_of_values(values: str, tmp_path: pathlib.Path) -> None:
    check_schemas(rendered("default", values), "1.31", tmp_path)
