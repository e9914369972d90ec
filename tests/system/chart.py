"""The Helm chart as it comes out for some sets of values. `python -m tests.system.chart` writes it anew.

What comes out is kept in tests/golden/chart, so that machines without helm test it too; its first line says
by which state of the chart it was made.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tests.system.containers import DEPLOY, Container

CHART: Final = DEPLOY / "helm" / "rmq"
GOLDEN: Final = pathlib.Path(__file__).resolve().parents[1] / "golden" / "chart"
KUBERNETES: Final = "1.31"
VALUES: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "secure": (
        "secure.enabled=true",
        "broker.durability=replicated",
        "broker.external.enabled=true",
        "broker.advertisedHost=$(POD_NAME).example.org",
        "broker.env.RMQ_LOG_LEVEL=DEBUG",
        "serviceMonitor.enabled=true",
        "proxy.enabled=true",
        "antiAffinity=required",
    ),
    "failover": (
        "secure.enabled=true",
        "broker.failover=true",
        "namesrv.replicas=3",
        "broker.slaves=2",
        "broker.minInSyncReplicas=2",
    ),
}


def digest() -> str:
    """Of all files of the chart."""
    files = sorted(file for file in CHART.rglob("*") if file.is_file())
    parts = [file.relative_to(CHART).as_posix().encode() + b"\0" + file.read_bytes() for file in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def rendered(name: str, *more: str) -> str:
    """The output of helm for the chart with a set of VALUES. Raises CalledProcessError when helm refuses
    them."""
    options = [word for text in (*VALUES[name], *more) for word in ("--set", text)]
    command = ["helm", "template", "one", CHART, "-n", "mq", "--kube-version", KUBERNETES, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.yaml").read_text()


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of Kubernetes in a text."""
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [one for one in objects(golden(name)) if one["kind"] == kind]


def containers(name: str) -> Iterator[Container]:
    """The pods of all StatefulSets and Deployments as Kubernetes would start them."""
    for stateful in [*of_kind(name, "StatefulSet"), *of_kind(name, "Deployment")]:
        (container,) = stateful["spec"]["template"]["spec"]["containers"]
        for number in range(stateful["spec"]["replicas"]):
            pod = f"{stateful['metadata']['name']}-{number}"
            fields = {"metadata.name": pod, "metadata.labels['apps.kubernetes.io/pod-index']": str(number)}
            environment: dict[str, str] = {}
            for one in container["env"]:
                value = one.get("value") or fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
                environment[one["name"]] = re.sub(
                    r"\$\((\w+)\)", lambda found, known=environment: known[found[1]], value
                )
            service = stateful["spec"].get("serviceName", stateful["metadata"]["name"])
            host = f"{pod}.{service}.mq.svc.cluster.local"
            yield Container(host, container["args"], environment)


def main() -> None:
    if shutil.which("helm") is None:
        raise SystemExit("no helm here: go install helm.sh/helm/v3/cmd/helm@latest")
    for name in VALUES:
        (GOLDEN / f"{name}.yaml").write_text(f"# {digest()}\n{rendered(name)}")


if __name__ == "__main__":
    main()
