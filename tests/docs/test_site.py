"""The pages of the site: what docs/make_site.py makes of the pages in docs/, and that each has its place."""

from __future__ import annotations

import pathlib
import re
import runpy

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^ *```.*?^ *```", re.S | re.M)
SITE = runpy.run_path(str(ROOT / "docs" / "make_site.py"))

PROGRAM = """import asyncio

import rmq


async def main() -> None:
    done = asyncio.Event()
    async with rmq.connect() as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.ready())
        tasks.create_task(client.ready(1))
        await asyncio.sleep(1)


asyncio.run(main())
"""


def test_a_program_for_asyncio_gets_its_form_for_trio() -> None:
    made = SITE["as_trio"](PROGRAM)

    assert "trio.open_nursery() as tasks" in made
    assert "tasks.start_soon(client.ready)" in made
    assert "tasks.start_soon(client.ready, 1)" in made
    assert "trio.run(main)\n" in made
    assert "asyncio" not in made
    compile(made, "made", "exec")


@pytest.mark.parametrize("program", ["import trio\n", "import rmq\n", "import asyncio\n\nasyncio.gather()\n"])
def test_other_programs_get_none(program: str) -> None:
    assert SITE["as_trio"](program) is None


def test_a_program_for_asyncio_gets_its_form_without_async() -> None:
    program = (
        "import asyncio\n\nimport rmq\n\n\nasync def main() -> None:\n"
        "    async with rmq.connect() as client, client.consumer('g', {'T': '*'}) as consumer:\n"
        "        await asyncio.sleep(1)\n        async with await anext(consumer) as message:\n"
        "            print(message.body)\n\n\nasyncio.run(main())\n"
    )
    made = SITE["as_blocking"](program)
    assert made == (
        "import time\n\nfrom rmq.client import blocking\n\n\ndef main() -> None:\n"
        "    with blocking.connect() as client, client.consumer('g', {'T': '*'}) as consumer:\n"
        "        time.sleep(1)\n        with next(iter(consumer)) as message:\n"
        "            print(message.body)\n\n\nmain()\n"
    )


@pytest.mark.parametrize(
    "part",
    ["asyncio.Event()", "rmq.App()", "await consumer.run(handle)", "await message.ack()", "anyio.Event()"],
)
def test_a_program_that_needs_a_loop_has_no_form_without_async(part: str) -> None:
    program = f"import asyncio\n\nimport rmq\n\nasync with rmq.connect() as client:\n    {part}\n"
    assert SITE["as_blocking"](program) is None


def test_doubled_blocks_become_tabs() -> None:
    def folded(name: str, program: str) -> str:
        return f"\n<details><summary>The same {name}</summary>\n\n```python\n{program}```\n\n</details>\n"

    page = "Before.\n\n```python\nimport asyncio\n```\n"
    page += folded("without async", "a = 1\n") + folded("on trio", "import trio\n\nb = 2\n") + "\nAfter.\n"

    made = SITE["tabs"](page)

    assert re.findall(r'^=== "(\w+)"$', made, re.M) == ["asyncio", "trio", "blocking"]
    assert "    import trio\n\n    b = 2\n" in made
    assert "details" not in made
    assert made.startswith("Before.\n\n=== ")
    assert made.endswith("\nAfter.\n")


def test_a_block_without_a_loop_stays() -> None:
    page = "```python\nimport rmq\n```\n"
    assert SITE["tabs"](page) == page


def test_pictures_of_two_forms_are_both_in_the_page() -> None:
    made = SITE["pictures"](
        "![a](images/a-light.png) ![b](images/drawn-b.svg) ![c](c.png)", lambda path: True
    )

    assert made == (
        "![a](images/a-light.png#only-light) ![a](images/a-dark.png#only-dark) "
        "![b](images/drawn-b-light.svg#only-light) ![b](images/drawn-b-dark.svg#only-dark) ![c](c.png)"
    )


def test_a_page_with_both_forms_of_a_picture_shows_it_once() -> None:
    made = SITE["pictures"]("![a](a-light.png)\n\n![a, dark](a-dark.png) ![b](b-dark.png)", lambda path: True)

    assert made == "![a](a-light.png#only-light) ![a](a-dark.png#only-dark)\n\n ![b](b-dark.png)"


def test_links_out_of_the_docs_lead_to_pages_of_the_site_or_are_text() -> None:
    text = "[rules](../../CONTRIBUTING.md#tests), [errors](../../rmq/errors.py), [a](../app.md#b), [x](https://x.org)"

    made = SITE["links"](text, pathlib.PurePosixPath("docs/design/tasks.md"))

    assert (
        made
        == "[rules](../project/CONTRIBUTING.md#tests), errors (`rmq/errors.py`), [a](../app.md#b), [x](https://x.org)"
    )


def test_links_of_the_site_lead_to_pages_of_the_site(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SITE["prepare"].__globals__, "PREPARED", tmp_path / "docs")
    SITE["prepare"]()

    missing = [
        f"{page.relative_to(tmp_path)}: {path}"
        for page in (tmp_path / "docs").rglob("*.md")
        for path in re.findall(r"\]\(([^)#\s:]+)[^):]*\)", FENCE.sub("", page.read_text("utf-8")))
        if not (page.parent / path).exists()
    ]
    assert missing == []
    assert (tmp_path / "docs" / "images" / "drawn-topic-dark.svg").exists()


def test_each_page_has_its_place_in_the_navigation() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        entries = entry.values() if isinstance(entry, dict) else entry
        return [page for one in entries for page in pages(one)]  # type: ignore[attr-defined]

    named = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    project = {f"project/{name}" for name in SITE["PROJECT_PAGES"] if (ROOT / name).exists()}
    assert len(named) == len(set(named))
    assert set(named) == docs | project


def test_the_site_asks_no_other_host() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))

    assert config["theme"]["font"] is False
    assert not [name for name in ("extra_javascript", "repo_url", "extra") if name in config]
