"""The image, built by buildah behind an index whose authority is one of its own, and run by podman."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.containers import DEPLOY, USER, build_context, dockerfile
from tests.system.deploy.engine import Engine, Index, engine, index, why_not

pytestmark = [pytest.mark.packages, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]
IMAGE = "localhost/rmq-test"
STRAY = ("secrets/ca.key", ".git/config", "rmq/protocol/_engine.of-another-machine.so")
"""Files of a checkout that an image must not have."""
RUN = ("--detach", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")


@pytest.fixture(scope="module")
def made() -> Iterator[Engine]:
    """An engine with the base image."""
    with engine() as one:
        one.import_base()
        yield one


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with index(tmp_path_factory.mktemp("authority")) as one:
        yield one


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A checkout, with what stands in one beside the sources."""
    build_context(folder := tmp_path_factory.mktemp("checkout"))
    shutil.copytree(DEPLOY / "docker", folder / "deploy" / "docker")
    for name in STRAY:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not for an image")
    return folder


@pytest.fixture(scope="module")
def behind(private: Index) -> tuple[str, ...]:
    """The options of a build behind the index."""
    secret = f"id=ca,src={private.authority}"
    return "--build-arg", f"PIP_INDEX_URL={private.url}", "--secret", secret


@pytest.fixture(scope="module")
def image(made: Engine, context: pathlib.Path, behind: tuple[str, ...]) -> str:
    made.build(context, IMAGE, "--format", "docker", *behind)
    return IMAGE


def inspected(made: Engine, kind: str, name: str) -> Any:
    (found,) = json.loads(made.podman(kind, "inspect", name))
    return found


def test_without_the_authority_the_build_ends_and_takes_nothing(
    made: Engine, private: Index, context: pathlib.Path, behind: tuple[str, ...]
) -> None:
    # The first build of all: buildah's layers do not tell a build with a secret from one without.
    said = made.build(context, f"{IMAGE}-none", *behind[:2], status=1)
    assert "CERTIFICATE_VERIFY_FAILED" in said, said[-8000:]
    assert private.refused
    assert private.asked == []


def test_with_it_all_packages_come_from_the_index(image: str, private: Index) -> None:
    """Those of the build, of rmq and of its extras."""
    asked = {path for path in private.asked if path.startswith("/simple/")}
    assert {f"/simple/{name}/" for name in ("hatchling", "cython", "trio", "lz4", "h2", "protobuf")} <= asked
    assert [path for path in private.asked if path.startswith("/files/") and ".whl" in path]


def test_the_image_has_the_user_and_the_health_check_of_the_dockerfile(made: Engine, image: str) -> None:
    found = inspected(made, "image", image)
    assert found["Config"]["User"] == f"{USER}:{USER}"
    assert found["Healthcheck"]["Test"][:3] == ["CMD", "python", "-c"]
    assert found["ManifestType"].startswith("application/vnd.docker.")


def test_an_image_of_oci_s_format_has_no_health_check(made: Engine, tmp_path: pathlib.Path) -> None:
    (line,) = [one for one in dockerfile() if one.startswith("HEALTHCHECK")]
    (folder := tmp_path / "deploy" / "docker").mkdir(parents=True)
    (folder / "Dockerfile").write_text(f"ARG PYTHON_IMAGE\nFROM ${{PYTHON_IMAGE}}\n{line}\n")
    for kind, words in (("docker", 4), ("oci", 0)):
        made.build(tmp_path, f"{IMAGE}-{kind}", "--format", kind)
        check = inspected(made, "image", f"{IMAGE}-{kind}").get("Healthcheck") or {}
        assert len(check.get("Test", ())) == words, check


def test_neither_the_authority_nor_files_beside_the_sources_are_in_a_layer(
    made: Engine, image: str, context: pathlib.Path, private: Index, behind: tuple[str, ...]
) -> None:
    made.build(context, f"{IMAGE}-stage", "--format", "docker", "--target", "build", *behind)
    line = private.authority.read_text().splitlines()[2].encode()
    for name in (image, f"{IMAGE}-stage"):
        root = pathlib.Path(made.podman("image", "mount", name).strip())
        assert (root / "opt" / "rmq" / "bin" / "rmq").exists()
        assert not [stray for stray in STRAY if (root / "src" / stray).exists()]
        held = [file for file in (root / "run").rglob("*") if file.is_file()]
        held += [file for file in (root / "opt" / "rmq").rglob("*") if file.is_file()]
        assert [file for file in held if line in file.read_bytes()] == []
        made.podman("image", "unmount", name)


def test_its_servers_run_are_healthy_and_stop_at_a_signal(made: Engine, image: str) -> None:
    """Read-only, without a capability, in a network of their own that has nothing but loopback."""
    made.podman("run", *RUN, "--network", "none", "--name", "namesrv", image, "namesrv")
    beside = ("--network", "container:namesrv")
    broker = ("broker", "-n", "127.0.0.1:9876", "--set", "metricsPort=5558")
    made.podman("run", *RUN, *beside, "--name", "broker", image, *broker)
    made.wait_until(lambda: made.is_healthy("namesrv"))

    def rmq(*words: str) -> str:
        return made.podman("exec", "--env", "RMQ_NAMESRV_ADDR=127.0.0.1:9876", "broker", "rmq", *words)

    made.wait_until(lambda: "rmq 0.1" in rmq("cluster", "list"))
    rmq("topic", "create", "Orders")
    rmq("pub", "Orders", "paid 42")
    assert "paid 42" in rmq("sub", "Orders", "--group", "readers", "--from", "earliest", "--max", "1")
    assert made.podman("exec", "broker", "id", "-u").strip() == str(USER)
    assert "Read-only file system" in made.podman("exec", "broker", "touch", "/opt/rmq/written", status=1)
    for name in ("broker", "namesrv"):
        made.podman("stop", "--time", "60", name)
        state = inspected(made, "container", name)["State"]
        assert (state["Status"], state["ExitCode"]) == ("exited", 0), made.podman("logs", name)


class Composed:
    """A file of compose, started from an image that was built before."""

    def __init__(self, made: Engine, file: str, image: str) -> None:
        self._made = made
        words = ["podman-compose", "--podman-path", str(made.podman_program())]
        self._words = [*words, "--file", str(DEPLOY / "compose" / f"{file}.yaml")]
        self._environment = {**os.environ, "RMQ_IMAGE": image}
        self.containers: dict[str, str] = {}
        """The container of each service."""

    def run(self, *words: str) -> None:
        subprocess.run([*self._words, *words], env=self._environment, check=True, timeout=600)

    def start(self) -> None:
        """Start all services; without systemd podman runs no health check by itself, so none is waited for
        but here."""
        self.run("up", "--detach", "--no-build")
        rows = json.loads(self._made.podman("ps", "--all", "--format", "json"))
        label = "com.docker.compose.service"
        self.containers = {row["Labels"][label]: row["Names"][0] for row in rows if label in row["Labels"]}
        for name in self.containers.values():
            self._made.wait_until(lambda name=name: self._made.is_healthy(name))


@pytest.mark.skipif(shutil.which("podman-compose") is None, reason="no podman-compose here (PyPI)")
def test_podman_runs_the_set_with_controllers_of_compose(made: Engine, image: str) -> None:
    """A message, the master's death, the election, the next message, the master's return, a clean stop."""
    if made.podman("info", "--format", "{{.Host.NetworkBackend}}").strip() != "netavark":
        pytest.skip("no netavark here (Debian's packages netavark and aardvark-dns)")
    composed = Composed(made, "failover", image)
    names = "namesrv-1:9876;namesrv-2:9876;namesrv-3:9876"

    def rmq(*words: str, status: int | None = 0) -> str:
        command = ("exec", composed.containers["namesrv-1"], "rmq", *words, "-n", names)
        return made.podman(*command, status=status)

    try:
        composed.start()
        assert len(composed.containers) == 7
        made.wait_until(lambda: rmq("cluster", "list", status=None).count("rmq 0.1") == 3)
        rmq("topic", "create", "Orders")
        rmq("pub", "Orders", "paid 42")
        made.podman("kill", composed.containers["broker-a-1"])
        inside = ("exec", composed.containers["namesrv-1"], "rmq")
        made.wait_until(lambda: made.succeeds(*inside, "pub", "Orders", "paid 43", "-n", names))
        read = rmq("sub", "Orders", "--group", "readers", "--from", "earliest", "--max", "2")
        assert all(body in read for body in ("paid 42", "paid 43")), read
        made.podman("start", composed.containers["broker-a-1"])
        made.wait_until(lambda: made.is_healthy(composed.containers["broker-a-1"]))
        composed.run("stop", "--timeout", "60")
        for name in composed.containers.values():
            state = inspected(made, "container", name)["State"]
            assert (state["Status"], state["ExitCode"]) == ("exited", 0), (name, made.podman("logs", name))
    finally:
        composed.run("down", "--volumes", "--timeout", "5")
