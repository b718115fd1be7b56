"""Links of a site: what leads nowhere, and what comes from another host, is found; and the site has neither."""

import pytest

from tests.site.links import faults

GOOD = '<a href="b.html#there">b</a><a href="#here">h</a><h1 id="here">x</h1><a href="https://example.org/x">out</a>'
OTHER = '<h2 id="there">y</h2><img src="p/q.png"><link rel="canonical" href="https://example.org/">'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p/q.png").write_bytes(b"")
    (tmp_path / "a.html").write_text(GOOD)
    (tmp_path / "b.html").write_text(OTHER)
    return tmp_path


def test_links_that_lead_somewhere(folder):
    assert faults(folder) == []


@pytest.mark.parametrize(("html", "fault"), [
    ('<a href="c.html">c</a>', "c.html links to gone.html"),
    ('<a href="b.html#nowhere">b</a>', "nowhere, which is not there"),
    ('<a href="#nowhere">b</a>', "nowhere, which is not there"),
    ('<img src="gone.png">', "gone.png, which is not there"),
    ('<script src="https://cdn.example.org/x.js"></script>', "from another host"),
    ('<link rel="stylesheet" href="//cdn.example.org/x.css">', "from another host"),
    ('<iframe src="http://example.org"></iframe>', "from another host"),
])  # fmt: skip
def test_what_is_wrong_is_found(folder, html, fault):
    (folder / "c.html").write_text(html.replace('"c.html"', '"gone.html"'))
    (found,) = faults(folder)
    assert found.startswith("c.html")
    assert fault in found


@pytest.mark.long
def test_the_site_is_built_strictly(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    from mkdocs.exceptions import Abort

    from tests.site import __main__ as command
    from tests.site.pages import stage

    benchmarks = {"a.time_b": {"unit": "seconds", "points": [[3, 0.5]]}}
    history = {"machine": "here", "hash_length": 4, "commits": {"3": "aaaa"}, "benchmarks": benchmarks}
    assert command.build(tmp_path / "site", history) == []
    assert "a.time_b" in (tmp_path / "site/perf/index.html").read_text()
    assert 'href="perf/index.html"' in (tmp_path / "site/index.html").read_text()
    assert (tmp_path / "site/reference/engine.html").read_text().count("oxillama.Engine.generate") > 1

    def broken(folder):
        pages = stage(folder)
        (folder / "oxillama/README.md").write_text("# Architecture\n\n[gone](nowhere.md)\n")
        return pages

    monkeypatch.setattr(command, "stage", broken)
    with pytest.raises(Abort):
        command.build(tmp_path / "broken")
