"""Programs in Java on Qpid's JMS client: compiled once, in the cache of pytest."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parents[1] / "jms"


def libraries(request: pytest.FixtureRequest, name: str, pom: pathlib.Path) -> pathlib.Path:
    """A folder of the cache with the jars of a pom in `lib`. Skips without a JDK and Maven."""
    if any(shutil.which(tool) is None for tool in ("java", "javac", "mvn")):
        pytest.skip("needs a JDK (17 or later) and Maven")
    return filled(pathlib.Path(request.config.cache.mkdir(name)).resolve(), pom)


def filled(folder: pathlib.Path, pom: pathlib.Path) -> pathlib.Path:
    """A folder with the jars of a pom in `lib`, by Maven if they are not there."""
    if not (folder / "lib").exists():
        shutil.copy(pom, folder / "pom.xml")
        command = ["mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
        subprocess.run(command, cwd=folder, check=True)
    return folder


def compiled(
    request: pytest.FixtureRequest, program: str, name: str = "jms-clients", pom: str = "pom.xml"
) -> list[str]:
    """The command that runs a program of jms/, with the libraries of a pom of jms/."""
    return made(libraries(request, name, HERE / pom), HERE / f"{program}.java")


def made(folder: pathlib.Path, source: pathlib.Path) -> list[str]:
    """The command that runs a program in Java, compiled with the jars of a folder."""
    shutil.copy(source, folder)
    subprocess.run(["javac", "-cp", "lib/*", source.name], cwd=folder, check=True)
    return ["java", "-Xmx512m", "-cp", f"{folder}/lib/*:{folder}", source.stem]
