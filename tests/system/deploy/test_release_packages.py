"""The packages of a release, built twice: the same bytes, and what an installer checks."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.system.shell import ROOT

TOOLS = ("build", "auditwheel", "cyclonedx_py")
SCRIPT = ROOT / "deploy" / "packages" / "build_packages.py"

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(sys.platform != "linux", reason="manylinux wheels are built on Linux"),
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, TOOLS)), reason="build, auditwheel or cyclonedx-bom is missing"
    ),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """The folders of two builds."""
    made = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder in made:
        subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return made


def test_two_builds_of_all_packages_are_the_same_byte_by_byte(packages: list[pathlib.Path]) -> None:
    one, two = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in packages)
    assert one.keys() == two.keys()
    assert [name for name in sorted(one) if one[name] != two[name]] == []


def test_each_file_has_its_hash_and_installers_take_it(
    packages: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    folder = packages[0]
    sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert {path.name for path in folder.iterdir()} == {"SHA256SUMS", *sums}
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    (wheel,) = folder.glob("rmq-*manylinux*.whl")
    (wanted := tmp_path / "wanted.txt").write_text(f"{wheel} --hash=sha256:{sums[wheel.name]}\n")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "--target"]
    subprocess.run([*install, str(tmp_path / "there"), "-r", str(wanted)], check=True)
    look = "from rmq.protocol import engine; print(engine.NAME)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "there"), "RMQ_ENGINE": "compiled"}
    seen = subprocess.check_output([sys.executable, "-c", look], cwd=tmp_path, env=environment, text=True)
    assert seen.strip() == "compiled"
    wanted.write_text(f"{wheel} --hash=sha256:{'0' * 64}\n")
    shutil.rmtree(tmp_path / "there")
    refused = subprocess.run(
        [*install, str(tmp_path / "there"), "-r", str(wanted)], capture_output=True, text=True, check=False
    )
    assert "DO NOT MATCH THE HASHES" in refused.stderr


def test_wheels_are_manylinux_and_sources_have_no_tests(packages: list[pathlib.Path]) -> None:
    folder = packages[0]
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    assert [path.name.partition("-")[0] for path in wheels] == ["rmq", "rmq_client"]
    assert [path.name.partition("-")[0] for path in sources] == ["rmq", "rmq_client"]
    assert all("manylinux" in path.name for path in wheels)
    names = [name for path in wheels for name in zipfile.ZipFile(path).namelist()]
    for path in sources:
        with tarfile.open(path) as archive:
            names += [name.partition("/")[2] for name in archive.getnames()]
    assert [name for name in names if name.startswith("tests/") or "/test_" in name] == []


def test_the_bill_of_materials_names_each_package_with_its_version(packages: list[pathlib.Path]) -> None:
    (bill,) = packages[0].glob("*.cdx.json")
    table = json.loads(bill.read_text())
    assert table["bomFormat"] == "CycloneDX"
    assert table["metadata"]["component"]["name"] == "rmq"
    versions = {one["name"].lower().replace("_", "-"): one.get("version") for one in table["components"]}
    assert {"trio", "anyio", "attrs", "click", "prometheus-client", "lz4"} <= versions.keys()
    assert all(versions.values())
    assert all(one.get("purl", "pkg:").startswith("pkg:") for one in table["components"])
