"""The results of `pip install` from the sources, with a C compiler and without: wheels are built as pip
builds them."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest

from tests.system.shell import ROOT

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("hatchling", "Cython", "setuptools")),
    reason="what builds is not installed: the extra `dev` has it",
)
COMPILER = shutil.which(os.environ.get("CC") or "cc")
HEADERS = pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
NO_COMPILER = {"CC": "there-is-no-compiler"}
WARNING = "rmq is built without its compiled engine"
STALE = "rmq/protocol/_engine.cpython-300-of-another-build.so"


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout in which somebody has left an engine that was built before."""
    tree = tmp_path / "tree"
    unwanted = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("rmq", "plugins", "examples/data"):
        shutil.copytree(ROOT / name, tree / name, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", ".gitignore"):
        shutil.copy(ROOT / name, tree / name)
    (tree / STALE).write_bytes(b"of other sources")
    return tree


def build(
    tree: pathlib.Path, how: str = "build_wheel", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call a hook of the build backend (PEP 517, PEP 660), as pip does; the result lies in `dist`."""
    (tree / "dist").mkdir(exist_ok=True)
    code = f"import hatchling.build as backend; print(backend.{how}('dist'))"
    known = {name: value for name, value in os.environ.items() if name != "RMQ_ENGINE"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env=known | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def wheel(tree: pathlib.Path) -> tuple[str, list[str]]:
    """The name of the only wheel, and the extension modules in it."""
    (made,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
    assert "rmq/protocol/engine.py" in names
    assert "rmq_acl/__init__.py" in names
    assert "rmq/cli/demo/orders.csv" in names
    return made.name, [name for name in names if name.endswith((".so", ".pyd"))]


def test_without_a_compiler_it_is_pure_and_says_so(tree: pathlib.Path) -> None:
    done = build(tree, **NO_COMPILER)
    assert done.returncode == 0, done.stderr
    assert WARNING in done.stdout + done.stderr
    assert "gcc, python3-dev" in done.stdout + done.stderr
    name, extensions = wheel(tree)
    assert name.endswith("-py3-none-any.whl")
    assert extensions == [], "the stale one went into a wheel for every machine"


def test_without_a_compiler_an_engine_that_is_asked_for_is_an_error(tree: pathlib.Path) -> None:
    done = build(tree, RMQ_ENGINE="compiled", **NO_COMPILER)
    assert done.returncode != 0
    assert "there-is-no-compiler" in done.stderr
    assert not list((tree / "dist").glob("*.whl"))


def test_pure_is_asked_for_and_nothing_is_said(tree: pathlib.Path) -> None:
    done = build(tree, RMQ_ENGINE="pure")
    assert (done.returncode, WARNING in done.stdout + done.stderr) == (0, False), done.stderr
    name, extensions = wheel(tree)
    assert (name.endswith("-py3-none-any.whl"), extensions) == (True, [])


def test_an_editable_install_without_a_compiler_is_pure_too(tree: pathlib.Path) -> None:
    done = build(tree, "build_editable", **NO_COMPILER)
    assert done.returncode == 0, done.stderr
    assert WARNING in done.stdout + done.stderr
    assert [path.name for path in (tree / "rmq/protocol").glob("*.so")] == [pathlib.Path(STALE).name]


def test_an_editable_install_lays_the_engine_beside_the_sources(
    tree: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("hatch_build", tree / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)

    def compiled(root: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
        (work / "engine.so").write_bytes(b"new")
        return work / "engine.so"

    monkeypatch.setattr(hooks, "compile_engine", compiled)
    monkeypatch.setenv("RMQ_ENGINE", "compiled")
    engine = tree / "rmq/protocol/engine.so"
    engine.write_bytes(b"old")
    with engine.open("rb") as mapped:  # as by a process that runs
        hook = hooks.EngineHook(str(tree), {}, None, None, str(tree / "dist"), "wheel")
        data = {"force_include": {}}
        hook.initialize("editable", data)
        hook.finalize("editable", data, "")
        assert (mapped.read(), engine.read_bytes()) == (b"old", b"new")
    assert data == {"force_include": {}}, "it is no part of an editable wheel"


@pytest.mark.skipif(not (COMPILER and HEADERS), reason="needs a C compiler and Python's headers")
def test_with_a_compiler_the_engine_is_in_the_wheel_and_nothing_of_the_build_in_the_sources(
    tree: pathlib.Path,
) -> None:
    before = {path for path in tree.rglob("*") if path.is_file()}
    done = build(tree, RMQ_ENGINE="compiled")
    assert done.returncode == 0, done.stderr
    name, extensions = wheel(tree)
    engine = f"rmq/protocol/_engine{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert (name.endswith("-any.whl"), extensions) == (False, [engine])
    made = {path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.name for path in made - before} == {name}

    with zipfile.ZipFile(tree / "dist" / name) as archive:
        archive.extractall(tree / "installed")
    look = "from rmq.protocol import engine; print(engine.NAME, engine.compiled.__file__)"
    for wanted in ("auto", "compiled"):
        seen = subprocess.check_output(
            [sys.executable, "-c", look],
            cwd=tree / "installed",
            env=os.environ | {"PYTHONPATH": "", "RMQ_ENGINE": wanted},
            text=True,
        )
        assert seen.split() == ["compiled", str(tree / "installed" / engine)]


def content(made: pathlib.Path) -> list[str]:
    """The names in a wheel or source distribution."""
    if made.suffix == ".whl":
        with zipfile.ZipFile(made) as archive:
            return sorted(archive.namelist())
    with tarfile.open(made) as archive:
        return sorted(name.partition("/")[2] for name in archive.getnames())


def test_the_source_distribution_has_what_a_wheel_is_built_of_and_no_tests(
    tree: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tree / "tests").mkdir()
    (tree / "tests" / "test_x.py").write_text("")
    assert build(tree, "build_sdist").returncode == 0
    assert build(tree, RMQ_ENGINE="pure").returncode == 0
    (made,) = (tree / "dist").glob("*.tar.gz")
    names = content(made)
    assert {name.partition("/")[0] for name in names} == {
        *(".gitignore", "LICENSE", "PKG-INFO", "README.md"),
        *("examples", "hatch_build.py", "plugins", "pyproject.toml", "rmq"),
    }
    assert not [name for name in names if name.endswith((".so", ".pyc"))]
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (again,) = (tmp_path / "unpacked").iterdir()
    assert build(again, RMQ_ENGINE="pure").returncode == 0
    (of_tree,), (of_sources,) = (tree / "dist").glob("*.whl"), (again / "dist").glob("*.whl")
    assert of_tree.read_bytes() == of_sources.read_bytes()


@pytest.mark.packages
@pytest.mark.skipif(not (COMPILER and HEADERS), reason="needs a C compiler and Python's headers")
def test_two_builds_are_the_same_byte_by_byte(tree: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """In folders of other names, at other times."""
    other = tmp_path / "quite-another-folder"
    shutil.copytree(tree, other)
    made = []
    for folder in (tree, other):
        assert build(folder, RMQ_ENGINE="compiled", SOURCE_DATE_EPOCH="1700000000").returncode == 0
        made += (folder / "dist").glob("*.whl")
    one, two = made
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()
