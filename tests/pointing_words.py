"""Share of words in docstrings and pages that only point ("who", "what", "those", "it", "there"), by file.

A reader must look for the noun that such a word stands for. A file may have at most 5 %; the goal is 3 %.
`pointing_words.txt` lists the files that are above 5 %, with the share that they may have; it only shrinks.

    python -m tests.pointing_words             take the files off the list that are done
    python -m tests.pointing_words FILE...     show the docstrings or paragraphs of these with pointing words
"""

from __future__ import annotations

import ast
import math
import pathlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Final

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
LIST: Final = ROOT / "tests" / "pointing_words.txt"
FILE_SHARE: Final = 5.0
"""Percent that a file may have which is not in the list."""
FENCE: Final = re.compile(r"^ *```.*?^ *```", re.S | re.M)
POINTING: Final = re.compile(
    r"\b(who|what|whom|whose|those|it|them|they|he|one|ones|somebody|nobody|others|there|then|meanwhile"
    r"|anew|again|here)\b",
    re.IGNORECASE,
)


def docstrings(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


@cache
def counts() -> dict[str, tuple[int, int]]:
    """File -> its pointing words, and all words of its docstrings."""
    found = {}
    for folder in ("rmq", "plugins"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            texts = [text for _, text in docstrings(path)]
            if texts:
                pointing = sum(len(POINTING.findall(text)) for text in texts)
                found[str(path.relative_to(ROOT))] = pointing, sum(len(text.split()) for text in texts)
    return found


def prose(text: str) -> str:
    """The prose of a page: without blocks of code, and without the targets of links."""
    text = re.sub(r"`[^`\n]*`", "CODE", FENCE.sub("", text))
    return re.sub(r"\]\([^)]*\)", "]", text)


def page_counts() -> dict[str, tuple[int, int]]:
    """Page -> its pointing words, and all words of its prose."""
    found = {}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = prose(path.read_text("utf-8"))
        found[str(path.relative_to(ROOT))] = len(POINTING.findall(text)), len(text.split())
    return found


def page_shares() -> dict[str, float]:
    """Page -> percent of pointing words."""
    return {name: 100 * pointing / words for name, (pointing, words) in page_counts().items()}


def shares() -> dict[str, float]:
    """File -> percent of pointing words."""
    return {name: 100 * pointing / words for name, (pointing, words) in counts().items()}


def allowed() -> dict[str, float]:
    """The list: file -> percent that it may have."""
    rows = (line.split() for line in LIST.read_text("utf-8").splitlines() if line.strip())
    return {name: float(percent) for name, percent in rows}


def write() -> None:
    """Take the files off the list that have at most 5 % by now, and lower the figures of the others."""
    listed, now = allowed(), shares() | page_shares()
    kept = {
        name: min(percent, math.ceil(now[name] * 10) / 10)
        for name, percent in listed.items()
        if now.get(name, 0) > FILE_SHARE
    }
    LIST.write_text("".join(f"{name} {percent:g}\n" for name, percent in sorted(kept.items())), "utf-8")


def show(name: str) -> None:
    """Print the docstrings of a file, or the paragraphs of a page, that point, worst first."""
    if name.endswith(".md"):
        texts = list(enumerate(prose((ROOT / name).read_text("utf-8")).split("\n\n"), 1))
    else:
        texts = list(docstrings(ROOT / name))
    found = [(len(POINTING.findall(text)), line, text) for line, text in texts]
    for count, line, text in sorted(found, reverse=True):
        if count:
            print(f"{name}:{line}: {count}\n{POINTING.sub(lambda match: f'[{match[0]}]', text)}\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        show(name)
    if not sys.argv[1:]:
        write()
