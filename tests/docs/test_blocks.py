"""Every block of Python on every page can be compiled, also those that no test runs."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest

from tests.docs.blocks import ROOT

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
BLOCK = re.compile(r"^(?P<indent> *)```(?:python|py)\n(?P<block>.*?)^(?P=indent)```", re.S | re.M)


@pytest.mark.parametrize("page", sorted(str(page.relative_to(ROOT)) for page in PAGES))
def test_the_blocks_of_a_page_can_be_compiled(page: str) -> None:
    for found in BLOCK.finditer((ROOT / page).read_text("utf-8")):
        code = textwrap.dedent(found["block"])
        compile(code, page, "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
