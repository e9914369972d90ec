"""Builds the site of the documentation, offline: build/docs holds the prepared pages, build/site the site.

python docs/make_site.py

The pages in docs/ are plain Markdown that a code host shows. On the site, a program for asyncio gets tabs
with its forms for trio and without async, pictures have a light and a dark form, and mkdocstrings makes the
reference of the API. Zensical builds the site from mkdocs.yml; a broken link ends the build with an error.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Final

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
PREPARED: Final = ROOT / "build" / "docs"
LEFT_OUT: Final = {".py", ".pyc"}
PROJECT_PAGES: Final = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
"""Pages at the top of the repository that become pages of the site, in the folder `project`."""

DOUBLED: Final = re.compile(
    r"^```python\n(?P<first>(?:(?!^```).*\n)*)```\n"
    r"(?P<others>(?:\n<details><summary>The same [^<]*</summary>\n\n"
    r"```python\n(?:(?!^```).*\n)*```\n\n</details>\n)*)",
    re.M,
)
OTHER: Final = re.compile(
    r"<details><summary>The same (?P<name>[^<]*)</summary>\n\n```python\n(?P<program>(?:(?!^```).*\n)*)```",
    re.M,
)
TABS: Final = {"on trio": "trio", "without async": "blocking", "on asyncio": "asyncio"}
ASYNC_ONLY: Final = re.compile(
    r"\brmq\.App\b|TaskGroup|create_task|asyncio\.(?!run\(|sleep\()|\.run\(\w+[,)](?<!main\(\))"
    r"|\.n?ack\(|\.pipeline\(|\btrace\.|\banyio\."
)
"""Parts of a program that have no counterpart in `rmq.client.blocking`."""
IMAGE: Final = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<path>[^)\s]+)\)")
LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
ENTRY: Final = re.compile(r"^(?P<marks>####?) (?P<name>[\w.]+)\n(?P<rest>(?:(?!^##).*\n)*)", re.M)
DARK_STYLE: Final = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n(?P<rules>.*?)\n\}\n", re.S)


def as_trio(program: str) -> str | None:
    """The form for trio of a program for asyncio; None where a word of asyncio has no plain counterpart."""
    if not re.search(r"^import asyncio$", program, re.M):
        return None
    made = re.sub(r"asyncio\.run\((\w+)\(\)\)", r"trio.run(\1)", program)
    made = made.replace("asyncio.TaskGroup()", "trio.open_nursery()")
    made = re.sub(r"tasks\.create_task\(([\w.]+)\(\)\)", r"tasks.start_soon(\1)", made)
    made = re.sub(r"tasks\.create_task\(([\w.]+)\(([^()]*)\)\)", r"tasks.start_soon(\1, \2)", made)
    made = re.sub(r"^import asyncio$", "import trio", made, flags=re.M)
    made = re.sub(r"asyncio\.timeout\(", "trio.fail_after(", made)
    made = re.sub(r"asyncio\.(sleep|Event)\(", r"trio.\1(", made)
    return None if "asyncio" in made or "create_task" in made else made


def as_blocking(program: str) -> str | None:
    """The form of a program for asyncio with `rmq.client.blocking`; None where it needs an event loop
    or calls without a blocking counterpart."""
    if not re.search(r"^import asyncio$", program, re.M) or "rmq.connect(" not in program:
        return None
    if ASYNC_ONLY.search(program):
        return None
    made = re.sub(r"asyncio\.run\((\w+\(\))\)", r"\1", program)
    made = made.replace("asyncio.sleep(", "time.sleep(")
    made = re.sub(r"\bawait anext\((\w+)\)", r"next(iter(\1))", made)
    made = re.sub(r"\basync (def|with|for) ", r"\1 ", made)
    made = re.sub(r"\bawait ", "", made)
    made = re.sub(r"\brmq\.(connect\(|Client\b|Producer\b)", r"blocking.\1", made)
    made = re.sub(r"^import asyncio\n", "import time\n" if "time.sleep(" in made else "", made, flags=re.M)
    imports = "import rmq\n" if "rmq." in made else ""
    made = re.sub(r"^import rmq$", f"{imports}from rmq.client import blocking", made, flags=re.M)
    return None if re.search(r"\basync|\banyio\b|\banext\b", made) else made.lstrip("\n")


def tabs(text: str) -> str:
    """Programs with several forms as tabs. A program for asyncio alone gets tabs for trio and without async,
    if it has these forms."""

    def replace(found: re.Match[str]) -> str:
        forms = {"asyncio": found["first"]}
        for other in OTHER.finditer(found["others"]):
            forms[TABS[other["name"]]] = other["program"]
        trio = as_trio(found["first"])
        if trio is not None:
            forms.setdefault("trio", trio)
        blocking = as_blocking(found["first"])
        if blocking is not None:
            forms.setdefault("blocking", blocking)
        if len(forms) == 1:
            return found[0]
        return "".join(_tab(*form) for form in sorted(forms.items(), key=_rank))

    return DOUBLED.sub(replace, text)


def _rank(form: tuple[str, str]) -> int:
    return ("asyncio", "trio", "blocking").index(form[0])


def _tab(name: str, program: str) -> str:
    lines = ["```python", *program.splitlines(), "```"]
    return f'=== "{name}"\n\n' + "".join(f"    {line}\n" if line else "\n" for line in lines) + "\n"


def pictures(text: str, exists: Callable[[str], bool]) -> str:
    """Each picture that has a light and a dark form in both forms; the site shows the fitting one. A page
    that has both forms itself shows the picture once."""

    def replace(found: re.Match[str]) -> str:
        path = found["path"]
        stem, _, suffix = path.rpartition(".")
        if stem.endswith("-dark") and f"({stem.removesuffix('-dark')}-light.{suffix})" in text:
            return ""
        if stem.endswith("-light") and exists(dark := f"{stem.removesuffix('-light')}-dark.{suffix}"):
            return _both(found["text"], path, dark)
        if suffix == "svg" and "drawn-" in stem:
            return _both(found["text"], f"{stem}-light.svg", f"{stem}-dark.svg")
        return found[0]

    return IMAGE.sub(replace, text)


def _both(text: str, light: str, dark: str) -> str:
    return f"![{text}]({light}#only-light) ![{text}]({dark}#only-dark)"


def drawing_forms(svg: str) -> tuple[str, str]:
    """The light and the dark form of a drawing whose style has a part for dark."""
    light = DARK_STYLE.sub("", svg)
    dark = DARK_STYLE.sub(lambda found: found["rules"] + "\n", svg)
    return light, dark


def links(text: str, page: pathlib.PurePosixPath) -> str:
    """Links that leave docs/: to a page of the site where there is one, else the path as text."""

    def replace(found: re.Match[str]) -> str:
        path = _normal(page.parent / found["path"])
        if path.parts[0] == "docs":
            return found[0]
        if str(path) in PROJECT_PAGES:
            folder = "../" * (len(page.parts) - 2) + "project/" if page.parts[0] == "docs" else ""
            return f"[{found['text']}]({folder}{path}{found['anchor'] or ''})"
        shown = found["text"] if str(path) in found["text"].strip("`") else f"{found['text']} (`{path}`)"
        return shown if path.parts[0] != ".." else found[0]

    return LINK.sub(replace, text)


def _normal(path: pathlib.PurePosixPath) -> pathlib.PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return pathlib.PurePosixPath(*parts) if parts else pathlib.PurePosixPath(".")


def generated_api(text: str) -> str:
    """The reference of the API with the entries of mkdocstrings in place of signatures and docstrings."""

    def replace(found: re.Match[str]) -> str:
        name, level = found["name"], len(found["marks"])
        full = name if level == 3 else f"rmq.{name}"
        if not re.search(r"^(?:async |await |class |\w+\.?\w*\()", found["rest"].partition("```text\n")[2]):
            return found[0]
        fields = re.findall(r"^- `.*\n", found["rest"], re.M) if level == 3 else []
        anchor = f'<span id="{name.lower().replace(".", "")}"></span>'
        options = f"    options:\n      heading_level: {level}\n      members: false\n"
        return f"{anchor}\n\n::: {full}\n{options}\n{''.join(fields)}\n"

    return ENTRY.sub(replace, text)


def prepared(page: str, text: str, exists: Callable[[str], bool]) -> str:
    """A page as the site takes it. `page` is its path in the repository."""
    if page.startswith("docs/reference/api/"):
        text = generated_api(text)
    return links(pictures(tabs(text), exists), pathlib.PurePosixPath(page))


def prepare() -> None:
    """Write the pages and pictures of the site to build/docs."""
    if PREPARED.exists():
        shutil.rmtree(PREPARED)
    for source in sorted(DOCS.rglob("*")):
        if source.is_dir() or source.suffix in LEFT_OUT or "__pycache__" in source.parts:
            continue
        target = PREPARED / source.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(_prepared_file(source), "utf-8")
        elif source.name.startswith("drawn-"):
            for form, svg in zip(("light", "dark"), drawing_forms(source.read_text("utf-8")), strict=True):
                target.with_name(f"{source.stem}-{form}.svg").write_text(svg, "utf-8")
        else:
            shutil.copyfile(source, target)
    _copy_project_pages()


def _prepared_file(source: pathlib.Path) -> str:
    def exists(path: str) -> bool:
        return (source.parent / path).exists()

    return prepared(source.relative_to(ROOT).as_posix(), source.read_text("utf-8"), exists)


def _copy_project_pages() -> None:
    folder = PREPARED / "project"
    folder.mkdir()
    for name in PROJECT_PAGES:
        if (ROOT / name).exists():
            text = links((ROOT / name).read_text("utf-8"), pathlib.PurePosixPath(name))
            (folder / name).write_text(re.sub(r"\]\(docs/", "](../", text), "utf-8")


def main() -> int:
    """Prepare and build; returns the exit status of the generator."""
    prepare()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
