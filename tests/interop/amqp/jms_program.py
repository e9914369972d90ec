"""Programs in Java on Qpid's JMS client: compiled once, in the cache of pytest."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parents[1] / "jms"


def libraries(request: pytest.FixtureRequest, name: str, pom: pathlib.Path) -> pathlib.Path:
    """A folder of the cache with the jars of a pom in `lib`. Skips without a JDK and Maven."""
    maven = shutil.which("mvn")
    if shutil.which("java") is None or shutil.which("javac") is None or maven is None:
        pytest.skip("needs a JDK (17 or later) and Maven")
    folder = pathlib.Path(request.config.cache.mkdir(name)).resolve()
    if not (folder / "lib").exists():
        shutil.copy(pom, folder / "pom.xml")
        command = [maven, "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=folder, check=True)
    return folder


def compiled(
    request: pytest.FixtureRequest, program: str, name: str = "jms-clients", pom: str = "pom.xml"
) -> list[str]:
    """The command that runs a program of jms/, with the libraries of a pom of jms/."""
    folder = libraries(request, name, HERE / pom)
    shutil.copy(HERE / f"{program}.java", folder)
    subprocess.run(["javac", "-cp", "lib/*", f"{program}.java"], cwd=folder, check=True)
    return ["java", "-Xmx256m", "-cp", f"{folder}/lib/*:{folder}", program]
