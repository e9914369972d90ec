"""Pages say the noun, are short where they promise to be, and keep their sentences short."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests import pointing_words

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCREENS = {"reliability.md", "performance.md", "security.md", "failover.md", "concepts.md"}
SCREEN_WORDS = 620
HOWTO_WORDS = 450
SENTENCE_WORDS = 32
SENTENCES = sorted([*(ROOT / "docs" / "howto").glob("*.md"), *(ROOT / "docs" / name for name in SCREENS)])


def test_pages_say_the_noun() -> None:
    allowed, shares = pointing_words.allowed(), pointing_words.page_shares()

    worse = {
        name: round(share, 1)
        for name, share in shares.items()
        if share > allowed.get(name, pointing_words.FILE_SHARE)
    }
    assert worse == {}, "say the noun: python -m tests.pointing_words FILE shows the words"


@pytest.mark.parametrize("name", sorted(SCREENS))
def test_a_page_of_promises_is_a_screen(name: str) -> None:
    assert _words(ROOT / "docs" / name) <= SCREEN_WORDS


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "howto").glob("*.md")), ids=lambda page: page.name)
def test_a_howto_is_short(page: pathlib.Path) -> None:
    assert _words(page) <= HOWTO_WORDS


@pytest.mark.parametrize("page", SENTENCES, ids=lambda page: page.name)
def test_sentences_are_short(page: pathlib.Path) -> None:
    text = pointing_words.prose(page.read_text("utf-8"))
    cells = [cell for line in re.split(r"\n\n|\n(?=[-|#])", text) for cell in line.split("|")]
    sentences = [one for cell in cells for one in re.split(r"(?<=[.:;!?])\s+", cell.strip())]
    assert [one for one in sentences if len(one.split()) > SENTENCE_WORDS] == []


def _words(page: pathlib.Path) -> int:
    return len(pointing_words.prose(page.read_text("utf-8")).split())
