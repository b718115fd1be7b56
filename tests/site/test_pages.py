"""Pages of the site: each stands in the navigation once, and says what the project's files say."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from tests.site import __main__ as command
from tests.site import pages as site
from tests.site import perf
from tests.site.charts import KINDS, bars, measured, pictures
from tests.site.curves import curve, growth, picture, ticks
from tests.site.pages import GUIDES, ROOT, example_pages, for_site, manual, navigation, pages_of_site, stage
from tests.site.perf import history_of, kept_history, speed_page


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
    assert "perf/index.md" in entries(navigation(pages, perf=True))
    assert "perf/index.md" not in entries(navigation(pages))


COMMITS = {"3": "aaaa0000", "7": "bbbb0000"}


def publish(folder, **changes):
    """A folder as `asv publish` leaves it."""
    names = {"a.time_b": "seconds", "a.track_c": "tokens/s", "a.time_never": "seconds"}
    index = {
        "hash_length": 4,
        "revision_to_hash": {**COMMITS, "9": "cccc0000"},
        "benchmarks": {name: {"unit": unit} for name, unit in names.items()},
        "machines": {"here": {"cpu": "a <CPU>", "num_cpu": "2"}},
        **changes,
    }
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "graphs/summary").mkdir(parents=True, exist_ok=True)
    for name, values in (("a.time_b", [[3, 0.5], [7, 0.25]]), ("a.track_c", [[3, None], [7, 40.0]])):
        (folder / f"graphs/summary/{name}.json").write_text(json.dumps(values))


def test_the_page_of_commits_has_what_asv_published(tmp_path):
    publish(tmp_path)
    page = speed_page(history_of(tmp_path))
    assert "| `a.time_b` | seconds | 0.5 | 0.25 | 0.50× | aaaa to bbbb |" in page
    assert "| `a.track_c` | tokens/s | 40 | 40 | 1.00× | bbbb to bbbb |" in page
    assert "(2 CPUs, a &lt;CPU&gt;)" in page
    assert page.count("<svg ") == 2
    assert "a.time_never" not in page


def test_what_asv_published_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(perf, "HISTORY", tmp_path / "history.json")
    monkeypatch.setattr(perf, "COMMITS", tmp_path / "commits.txt")
    publish(tmp_path)
    perf.COMMITS.write_text("aaaa0000\nbbbb0000\n")
    perf.main([str(tmp_path)])
    assert kept_history(perf.HISTORY) == history_of(tmp_path)
    assert kept_history(perf.HISTORY)["commits"] == COMMITS
    assert len(perf.HISTORY.read_text().splitlines()) == 12
    perf.COMMITS.write_text("aaaa0000\ncccc0000\n")
    with pytest.raises(SystemExit):
        perf.main([str(tmp_path)])
    assert "nothing of cccc0000" in capsys.readouterr().err


def test_the_record_of_the_tree_has_the_commits_that_it_lists():
    history = kept_history()
    assert set(perf.COMMITS.read_text().split()) <= set(history["commits"].values())
    assert speed_page(history).count("<svg ") == len(history["benchmarks"])


def test_a_folder_of_speed_that_is_named_is_there(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mkdocs")
    built = []
    monkeypatch.setattr(command, "build", lambda folder, history: built.append(history))

    def refused(message, *arguments):
        with pytest.raises(SystemExit) as ended:
            command.main([str(tmp_path / "site"), *arguments])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err

    refused(f"{tmp_path / 'nowhere/index.json'} is not what `asv publish` writes", "--perf", str(tmp_path / "nowhere"))
    (tmp_path / "index.json").write_text("{}")
    refused("it has no benchmarks, revision_to_hash", "--perf", str(tmp_path))
    publish(tmp_path, machines={"here": {}, "there": {}})
    refused("results of 2 machines", "--perf", str(tmp_path))
    publish(tmp_path, benchmarks={})
    refused("no benchmark that was measured", "--perf", str(tmp_path))
    publish(tmp_path)
    command.main([str(tmp_path / "site"), "--perf", str(tmp_path)])
    monkeypatch.setattr(command, "kept_history", lambda: kept_history(tmp_path / "history.json"))
    command.main([str(tmp_path / "site")])  # what isn't named may be missing
    assert built == [history_of(tmp_path), None]
    (tmp_path / "history.json").write_text("[]")
    refused("is not what `python -m tests.site.perf` writes: it has no machine")


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
    for name, count in (("README.md", 3), ("asv_benchmarks/README.md", 3 + len(growth()))):
        assert pages[name].count("<figcaption>") == count
        assert measured()["prefill"]["recorded"] in pages[name]


def test_points_of_a_curve_lie_where_their_values_say():
    lines = {"A<B": [[0, 1.0], [128, 0.5], [512, 0.25]], "C": [[0, 1.0], [512, 2.0]]}
    drawn = ET.fromstring(curve(lines, "depth", "speed", "said"))
    space = "{http://www.w3.org/2000/svg}"
    first, second = [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in drawn.iter(f"{space}polyline")
    ]
    assert [x for x, _ in first] == [first[0][0], (first[0][0] + first[2][0]) / 2, first[2][0]]
    assert (first[0], first[2][0]) == (second[0], second[1][0])  # both lines have one axis
    zero = 2 * first[1][1] - first[0][1]
    assert [(zero - y) / (zero - first[0][1]) for _, y in (*first, *second)] == [1, 0.5, 0.25, 1, 2]
    texts = [text.text for text in drawn.iter(f"{space}text")]
    assert {"A<B", "C", "speed", "depth", "0", "128", "512", "0×", "2×"} <= set(texts)
    with pytest.raises(ValueError, match="room for 4"):
        curve({name: [[0, 1]] for name in "abcde"}, "x", "y", "said")


@pytest.mark.parametrize("top", [0.09, 0.31, 1, 1.01, 4.9, 37, 99, 512])
def test_ticks_reach_the_top_and_are_few(top):
    found = ticks(top)
    assert found[-2] < top <= found[-1] + 1e-9
    assert found[0] == 0
    assert len(found) <= 7


def test_every_recorded_curve_begins_with_one_and_says_when_and_where():
    for found in growth().values():
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["recorded"])
        assert found["machine"]
        assert found["title"] in picture(found)
        for points in found["lines"].values():
            assert points[0][1] == 1
            assert [x for x, _ in points] == sorted({x for x, _ in points})
