"""The manifests of Spark's pages: of kinds that fit each other, and valid where a validator is installed."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from typing import Any

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]


PAGES = ("spark_scale.md", "spark_jobs.md")


def objects(page: str) -> list[dict[str, Any]]:
    """The Kubernetes objects of a page."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    return [one for block in blocks for one in yaml.safe_load_all(block) if "apiVersion" in one]


def test_the_driver_is_found_by_its_executors() -> None:
    by_kind = {one["kind"]: one for one in objects("spark_scale.md")}
    pod = by_kind["Deployment"]["spec"]["template"]
    assert by_kind["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["serviceAccountName"] == by_kind["ServiceAccount"]["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    conf = dict(one.removeprefix("--conf=").split("=", 1) for one in container["args"] if "--conf=" in one)
    ports = {port["name"]: port["port"] for port in by_kind["Service"]["spec"]["ports"]}
    named = (conf["spark.driver.port"], conf["spark.driver.blockManager.port"])
    assert named == (str(ports["driver"]), str(ports["blocks"]))
    assert conf["spark.driver.host"].split(".")[0] == by_kind["Service"]["metadata"]["name"]
    # Kubernetes deletes executors of a lost driver if they know its pod.
    assert conf["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)"
    (name,) = (one for one in container["env"] if one["name"] == "POD_NAME")
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


@pytest.mark.skipif(
    shutil.which("kubernetes-validate") is None, reason="no kubernetes-validate here (nox -s packages)"
)
@pytest.mark.parametrize("page", PAGES)
def test_kubernetes_takes_the_manifest(page: str, tmp_path: pathlib.Path) -> None:
    found = objects(page)
    assert any(one["kind"] == "Deployment" for one in found)
    (file := tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(found))
    command = ["kubernetes-validate", "--strict", "-k", "1.34", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
