"""The pages that say how to add something: each is done on a copy, as it is written."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "design"
STEP = re.compile(
    r"\*\*`(?P<file>[^`\n]+)`\*\*, (?:(?P<where>after|before) `(?P<anchor>[^`\n]+)`|at the end|a new file):\n"
    r"\n(?P<indent> *)```\w+\n(?P<text>.*?)\n *```",
    re.S,
)


def follow(page: str, folder: pathlib.Path) -> int:
    """Do what a page says in a folder; returns the number of its edits."""
    steps = list(STEP.finditer((PAGES / page).read_text("utf-8")))
    for step in steps:
        text = textwrap.indent(step["text"], "").replace("\n" + step["indent"], "\n")
        text = text.removeprefix(step["indent"]) + "\n"
        path = folder / step["file"]
        if step["where"] is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            before = path.read_text("utf-8") if path.exists() else ""
            path.write_text(before + text, "utf-8")
            continue
        lines = path.read_text("utf-8").splitlines(keepends=True)
        begins = [number for number, line in enumerate(lines) if line.startswith(step["anchor"])]
        at = [number for number in begins if lines[number].rstrip("\n") == step["anchor"]] or begins
        assert len(at) == 1, f"{page}: {step['file']} has {len(at)} lines that begin {step['anchor']!r}"
        lines.insert(at[0] + (step["where"] == "after"), text)
        path.write_text("".join(lines), "utf-8")
    return len(steps)


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the sources, the plug-ins and the tests."""
    for name in ("rmq", "plugins", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", "golden", "images", "*.pyc")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "tests" / "golden").symlink_to(ROOT / "tests" / "golden")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(folder: pathlib.Path, *arguments: str) -> str:
    """Run Python in the copy; its output."""
    paths = os.pathsep.join([str(folder), str(folder / "plugins"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_a_request_is_answered_and_has_a_rule(copy: pathlib.Path) -> None:
    assert follow("add_request.md", copy) == 7
    text = """
        from rmq.protocol.codes import BROKER_TIME
        from rmq.protocol.command import Command
        from rmq.protocol.headers import BrokerTimeResponseHeader
        from tests.unit.broker.rig import Rig
        rig = Rig()
        answer = rig.one(Command.request(BROKER_TIME))
        print(answer.code, answer.ext["time"] == str(rig.broker.now_ms()))
    """
    assert run(copy, "-c", textwrap.dedent(text)) == "0 True\n"
    assert run(copy, "-c", "import rmq_acl.rules as one; print(19_090 in one.RULES)") == "True\n"
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/protocol/test_codes.py")


def test_a_setting_is_read_documented_and_changed(copy: pathlib.Path) -> None:
    assert follow("add_setting.md", copy) == 2
    text = """
        from rmq.broker.config import BrokerConfig
        from rmq.config import evolve
        from tests.unit.broker.rig import Rig
        rig = Rig(greeting_text="servus")
        changed = evolve(BrokerConfig(), {"greetingText": "ahoi"})
        print(rig.broker.settings.broker.greeting_text, changed.greeting_text)
    """
    assert run(copy, "-c", textwrap.dedent(text)) == "servus ahoi\n"
    run(copy, "docs/reference/make_settings.py")
    assert "| `greetingText` | `greeting_text` | `hello` | R |" in (
        copy / "docs" / "reference" / "settings.md"
    ).read_text("utf-8")


def test_a_plugin_is_loaded_and_counts(copy: pathlib.Path) -> None:
    assert follow("add_plugin.md", copy) == 2
    text = """
        import trio
        from rmq import Message
        from rmq.plugin import Asked
        from rmq.testing import Cluster

        async def main():
            async with Cluster("a", plugins=("tally",), plugin_settings={"tallyTopics": "5"}) as cluster:
                async with cluster.connect() as client, client.producer("p") as producer:
                    for _ in range(3):
                        await producer.send(Message("Orders", b"x"))
                ((_, plugin),) = cluster["a"].server.hooks.plugins
                print((await plugin.pages()["/tally"](Asked(b"", {}))).body, plugin.most)

        trio.run(main)
    """
    assert run(copy, "-c", textwrap.dedent(text)) == "b'Orders 3\\n' 5\n"


def test_a_client_option_is_a_keyword_and_an_environment_variable(copy: pathlib.Path) -> None:
    assert follow("add_client_option.md", copy) == 3
    text = """
        import os
        from rmq.client.config import ClientConfig
        os.environ["RMQ_ROUTE_JITTER_MS"] = "7"
        configs = ClientConfig(route_jitter_ms=5), ClientConfig.from_environment()
        print(*(config.route_jitter_ms for config in configs))
    """
    assert run(copy, "-c", textwrap.dedent(text)) == "5 7\n"
    run(copy, "docs/reference/make_settings.py")
    assert "`route_jitter_ms`" in (copy / "docs" / "reference" / "settings.md").read_text("utf-8")


def test_a_command_prints_what_operate_returns(copy: pathlib.Path) -> None:
    assert follow("add_command.md", copy) == 2
    assert "List the names of all brokers" in run(copy, "-m", "rmq", "cluster", "--help")
    text = """
        import trio
        from rmq.operate.names import broker_names
        from rmq.testing import Cluster

        async def main():
            async with Cluster("b", "a") as cluster, cluster.connect() as client:
                print(await broker_names(client.admin))

        trio.run(main)
    """
    assert run(copy, "-c", textwrap.dedent(text)) == "['a', 'b']\n"


def test_every_page_stands_in_the_index() -> None:
    index = (PAGES / "README.md").read_text("utf-8")
    assert [page.name for page in PAGES.glob("add_*.md") if f"({page.name})" not in index] == []
