"""Pages of the site: each stands in the navigation once, and says what the project's files say."""

import re
import xml.etree.ElementTree as ET

import pytest

from tests.site import pages as site
from tests.site.charts import KINDS, bars, measured, pictures
from tests.site.pages import GUIDES, ROOT, example_pages, for_site, manual, navigation, pages_of_site, stage


def entries(nav):
    return [path for section in nav for entry in next(iter(section.values())) for path in entry.values()]


@pytest.fixture(scope="module")
def pages():
    return pages_of_site()


def test_every_page_stands_in_the_navigation_once(pages):
    found = entries(navigation(pages))
    assert sorted(found) == sorted(pages)
    assert set(manual()) <= set(pages)


def test_sections_name_no_page_that_is_gone(pages):
    coming = ("oxillama/data/", "oxillama/ray/")  # of other packages: they have their place before they have a page
    named = [name for names in site.SECTIONS.values() for name in names]
    assert [name for name in named if name not in pages and not name.startswith(coming)] == []


def test_the_readme_of_a_new_package_is_a_guide(pages):
    more = {**pages, "oxillama/brand_new/README.md": "# Brand new\n"}
    found = next(section[GUIDES] for section in navigation(more) if GUIDES in section)
    assert {"Brand new": "oxillama/brand_new/README.md"} in found


def test_pages_of_asv_have_an_entry_where_they_are(pages):
    assert "perf/index.html" in entries(navigation(pages, perf=True))
    assert "perf/index.html" not in entries(navigation(pages))


def test_the_reference_of_the_server_is_that_of_its_tables(pages):
    rows = [line for line in manual()["oxillama/server/README.md"].split("## Tables")[1].splitlines() if "|" in line]
    assert len(rows) > 100
    assert [row for row in rows if row not in pages[site.TABLES]] == []
    assert "| field |" not in pages["oxillama/server/README.md"]


def test_an_example_is_shown_as_it_is():
    found = example_pages()
    assert len(found) >= 6
    for name, text in found.items():
        source = (ROOT / name).with_suffix(".py").read_text()
        assert f"```python\n{source}```" in text


def test_files_that_pages_link_to_stand_beside_them(tmp_path):
    stage(tmp_path)
    for name in ("kubernetes.yaml", "nginx.conf", "grafana.json", "Dockerfile"):
        file = f"oxillama/server/deploy/{name}"
        assert (tmp_path / file).read_bytes() == (ROOT / file).read_bytes()


@pytest.mark.parametrize(("text", "wanted"), [
    ("Text:\n- one\n- two", "Text:\n\n- one\n- two"),
    ("- one\n  goes on\n- two", "- one\n  goes on\n- two"),
    ("- one\n  - inner", "- one\n    - inner"),
    ("```\nText\n- no list\n```", "```\nText\n- no list\n```"),
    ("| a |\n|---|\n| - b |", "| a |\n|---|\n| - b |"),
])  # fmt: skip
def test_lists_may_follow_their_paragraph_at_once(text, wanted):
    assert for_site(text) == wanted


def test_a_page_without_its_mark_or_title_is_an_error():
    with pytest.raises(ValueError, match="From Python"):
        site._before("# Title\n", "\n## From Python", "pictures")
    with pytest.raises(ValueError, match="heading"):
        site.title("no heading\n")


def table_of_speed():
    """{row: {type: ratio}} of the table of asv_benchmarks/README.md."""
    text = manual()["asv_benchmarks/README.md"]
    head, _, *rows = re.search(r"^\| \| Q4_0.*?(?=\n\n)", text, re.DOTALL | re.MULTILINE)[0].splitlines()
    types = [cell.strip() for cell in head.split("|")[2:-1]]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    return {
        name: {kind: float(cell.rstrip("×")) for kind, cell in zip(types, ratios, strict=True) if cell}
        for name, *ratios in cells
    }


def test_recorded_ratios_are_those_of_the_manual():
    numbers = measured()
    assert {numbers[kind]["title"].lower(): numbers[kind]["ratios"] for kind in KINDS} == table_of_speed()
    text = manual()["asv_benchmarks/README.md"]
    assert f"{numbers['peer']} on {numbers['machine']}, {numbers['model']}, two threads" in text
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", numbers[kind]["recorded"]) for kind in KINDS)


def test_bars_are_as_long_as_their_ratios():
    ratios = {"A<B": 0.5, "C": 2.0, "D": 4.0}
    picture = ET.fromstring(bars(ratios, 4.0, 'said "so" & <more>'))
    space = "{http://www.w3.org/2000/svg}"
    widths = [float(bar.get("width")) for bar in picture.iter(f"{space}rect")]
    assert [width / widths[1] for width in widths] == [0.25, 1.0, 2.0]
    line = picture.find(f"{space}line")
    start = float(picture.find(f"{space}rect").get("x"))
    assert float(line.get("x1")) - start == widths[1] / 2  # the line is where 1 is
    texts = [text.text for text in picture.iter(f"{space}text")]
    assert texts == ["llama.cpp", "A<B", "0.5×", "C", "2×", "D", "4×"]
    assert picture.get("aria-label") == 'said "so" & <more>'


def test_there_are_three_pictures_with_their_dates(pages):
    assert pictures().count("<svg ") == 3
    for name in ("README.md", "asv_benchmarks/README.md"):
        assert pages[name].count("<figcaption>") == 3
        assert measured()["prefill"]["recorded"] in pages[name]
