"""Installs the package with each extra alone into an empty environment, and imports the modules that need it.

    python deploy/packages/try_extras.py                # pure, and with the engine where it can be
    python deploy/packages/try_extras.py --pure --extra grpc

One environment of the package alone is made first: no module that an extra is for may be needed there.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = {
    "": "rmq rmq.cli rmq.client.blocking rmq.client.admin rmq.compat.rocketmq.client rmq.testing.cluster"
    " rmq.broker.runtime.service rmq.namesrv.service rmq.controller.service rmq.operate.migration.look"
    " rmq_acl rmq_trace",
    "fast": "msgspec",
    "codecs": "lz4.frame zstandard",
    "otel": "opentelemetry.trace rmq.client.observability.otel rmq_otel",
    "metrics": "prometheus_client rmq.client.observability.prometheus rmq_metrics",
    "protobuf": "google.protobuf",
    "grpc": "h2 hpack google.protobuf rmq_grpc rmq.proxy.__main__",
    "amqp": "proton rmq_amqp",
    "dashboard": "starlette hypercorn jinja2 rmq.dashboard.app rmq.dashboard.serve",
    "dashboard-oidc": "joserfc httpx2 rmq.dashboard.access.oidc",
    "spark": "pyspark pyarrow rmq.spark",
}
"""Extra -> modules that are imported with it alone; "" is the package without any."""
UNTRIED = {"test", "dev"}
"""Extras for those who work on rmq."""


def check_modules() -> None:
    """End with the extras that have no modules here."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    if extras - UNTRIED != set(MODULES) - {""}:
        sys.exit(f"extras and MODULES differ: {sorted(extras - UNTRIED ^ (set(MODULES) - {''}))}")


def run(*command: str, where: pathlib.Path = ROOT) -> None:
    """Run a program outside of the sources. Ends with its error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def wheel(folder: pathlib.Path, engine: str) -> pathlib.Path:
    """A wheel with the engine, or a pure one."""
    os.environ["RMQ_ENGINE"] = engine
    run(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), ".")
    (made,) = folder.glob("*.whl")
    return made


def attempt(made: pathlib.Path, extra: str, engine: str) -> None:
    """Install and import. Ends with what failed."""
    with tempfile.TemporaryDirectory(prefix="rmq-extra-") as name:
        folder = pathlib.Path(name)
        run(sys.executable, "-m", "venv", name)
        inside = str(folder / ("Scripts" if sys.platform == "win32" else "bin") / "python")
        run(inside, "-m", "pip", "install", "-q", f"{made}[{extra}]" if extra else str(made))
        modules = MODULES[extra].split()
        code = (
            f"import {', '.join(modules)}\nfrom rmq.protocol import engine\nassert engine.NAME == {engine!r}"
        )
        run(inside, "-c", code, where=folder)
        run(inside, "-m", "pip", "check", where=folder)
    print(f"{engine}: {extra or 'no extra'}: {', '.join(modules)}", flush=True)


def main() -> None:
    """Try all that is asked for."""
    parser = argparse.ArgumentParser(description="Try each extra alone.")
    parser.add_argument("--pure", action="store_true", help="Only without the compiled engine.")
    parser.add_argument("--extra", action="append", help="Only this extra; may be repeated.")
    given = parser.parse_args()
    check_modules()
    has_compiler = sys.platform == "win32" or shutil.which(os.environ.get("CC") or "cc") is not None
    for engine in ["pure"] if given.pure or not has_compiler else ["compiled", "pure"]:
        with tempfile.TemporaryDirectory(prefix="rmq-wheel-") as name:
            made = wheel(pathlib.Path(name), engine)
            for extra in given.extra or MODULES:
                attempt(made, extra, engine)


if __name__ == "__main__":
    main()
