"""Links of the pages lead to headings that exist, by the anchors of a code host; drawings are current."""

from __future__ import annotations

import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```.*?^ *```", re.S | re.M)
ROWS = re.compile(r"^\| ((?:`[\w/]+`(?:, )?)+) \|", re.M)
MODULES = {
    "client.md": ("rmq/client", "## The life of a send"),
    "remoting.md": ("rmq/remoting", "## A peer that"),
}
"""Pages whose first table lists modules: their folder, and the heading behind the table."""
FILES = re.compile(r"`((?:tests|rmq|benchmarks|deploy|plugins|examples)/[\w./-]+\.\w+)`")
TESTS = re.compile(r"`((?:unit|spark|stateful|interop)/[\w./-]+\.py)`")
LINK = re.compile(r"\]\((?P<path>[^)#\s:]*)#(?P<anchor>[^)\s]+)\)")


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        repeated = sum(1 for one in found if one == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", one))
        found.add(f"{anchor}-{repeated}" if repeated else anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: pathlib.Path) -> None:
    missing = []
    for link in LINK.finditer(FENCE.sub("", page.read_text("utf-8"))):
        target = page.parent / link["path"] if link["path"] else page
        if target.suffix == ".md" and link["anchor"] not in anchors(target):
            missing.append(link[0])
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_marks_of_a_merge(page: pathlib.Path) -> None:
    assert re.findall(r"^(?:<<<<<<<|=======|>>>>>>>)(?: .*)?$", page.read_text("utf-8"), re.M) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_rows_of_a_table_have_the_cells_of_its_head(page: pathlib.Path) -> None:
    wrong, cells = [], 0
    for line in FENCE.sub("", page.read_text("utf-8")).split("\n"):
        bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if bars and cells and bars != cells:
            wrong.append(line)
        cells = (cells or bars) if bars else 0
    assert wrong == []


def test_files_that_a_page_names_exist() -> None:
    missing = []
    for page in PAGES:
        if not page.name.startswith("add_"):  # these name the files to be written
            text = FENCE.sub("", page.read_text("utf-8"))
            names = [*FILES.findall(text), *(f"tests/{name}" for name in TESTS.findall(text))]
            missing += [f"{page.name}: {name}" for name in names if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize("page", MODULES)
def test_a_page_of_modules_lists_every_module_of_its_package(page: str) -> None:
    folder, heading = ROOT / MODULES[page][0], MODULES[page][1]
    table = (ROOT / "docs" / "design" / page).read_text("utf-8").split(heading)[0]
    listed = {name for row in ROWS.findall(table) for name in re.findall(r"`([\w/]+)`", row)}

    found = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py")}
    modules = {name for name in found if not name.endswith("__init__")}
    unknown = {name for name in listed if name not in modules and not (folder / name).is_dir()}
    missing = {
        name for name in modules if not any(name == one or name.startswith(one + "/") for one in listed)
    }
    assert (unknown, missing) == (set(), set())


def test_the_drawings_are_current() -> None:
    folder = ROOT / "docs" / "images"
    drawn = runpy.run_path(str(folder / "make_drawings.py"))["pictures"]()

    written = {path.name: path.read_text("utf-8") for path in folder.glob("drawn-*.svg")}
    assert written == drawn, "run docs/images/make_drawings.py"


def test_a_drawing_has_a_light_and_a_dark_form() -> None:
    site = runpy.run_path(str(ROOT / "docs" / "make_site.py"))
    svg = (ROOT / "docs" / "images" / "drawn-topic.svg").read_text("utf-8")

    light, dark = site["drawing_forms"](svg)

    assert "@media" in svg
    assert "@media" not in light + dark
    assert "#e4e7eb" in dark
    assert "#e4e7eb" not in light
