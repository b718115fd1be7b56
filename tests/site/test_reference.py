"""API reference: every public name has its place, once, and docstrings become Markdown."""

import importlib
from collections import Counter

import pytest

import oxillama as ox
import oxillama.compat
import oxillama.gguf
import oxillama.server
import oxillama.snapshot
from tests.site.reference import PAGES, reference_pages

NAMES = [name for page in PAGES for name in page.names]


def target(name):
    """The object of a path from the package."""
    found = ox
    path = "oxillama"
    for part in name.split("."):
        path = f"{path}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(path)
    return found


@pytest.mark.parametrize("package", [ox, oxillama.server, oxillama.gguf, oxillama.compat, oxillama.snapshot])
def test_every_public_name_has_a_place(package):
    described = {id(target(name)) for name in NAMES}
    public = {name: getattr(package, name) for name in package.__all__ if name not in ("gguf", "snapshot")}
    assert [name for name, value in public.items() if id(value) not in described] == []


def test_every_error_has_a_place():
    (page,) = (page for page in PAGES if page.name == "errors")
    assert set(page.names) == set(ox.errors.__all__)


def test_no_name_has_two_places():
    assert [name for name, n in Counter(NAMES).items() if n > 1] == []


def test_pages_have_their_names():
    text = "".join(reference_pages().values())
    assert [name for name in NAMES if f"\n::: oxillama.{name}\n" not in text] == []


griffe = pytest.importorskip("griffe")


@pytest.mark.parametrize(("text", "wanted"), [
    ("Noun phrase.", "Noun phrase."),
    ("Noun.\n\na: one thing.\nb: another\n    thing; c: a third.",
     "Noun.\n\n- `a`: one thing.\n- `b`: another thing.\n- `c`: a third."),
    ("a, b: both. Raises ValueError: never.", "- `a`, `b`: both. Raises ValueError: never."),
    ("Text. d: is no name of it.", "Text. d: is no name of it."),
    (">>> f(1)\n2", "```pycon\n>>> f(1)\n2\n```"),
    ("Tree:\n\n    x  1\n      y", "Tree:\n\n```text\nx  1\n  y\n```"),
    ("| a | b |\n|---|---|", "| a | b |\n|---|---|"),
    ("One\nline: of text.", "One line: of text."),
])  # fmt: skip
def test_docstrings_become_markdown(text, wanted):
    from tests.site.docstrings import as_markdown

    assert as_markdown(text, {"a", "b", "c"}) == wanted


SOURCE = '''
from oxillama._util.signatures import takes

class Checked:
    """Checked.

    n: how many. Raises ValueError.
    """
    n: int

class Options:
    n: int

class Thing:
    """A thing.

    size: of it. free: memory.
    """
    free: int

    def __init__(self, size):
        """Makes one."""

    @takes(Options, Checked)
    def call(self, x, **options):
        """Calls.

        x: a value; y: no parameter.
        """
'''


def test_names_are_those_of_parameters_fields_and_keywords(tmp_path):
    from tests.site.docstrings import PlainDocstrings

    (tmp_path / "planted.py").write_text(SOURCE)
    extensions = griffe.load_extensions(PlainDocstrings)
    module = griffe.load("planted", search_paths=[tmp_path], extensions=extensions, allow_inspection=False)
    assert module["Thing"].docstring.value == "A thing.\n\n- `size`: of it.\n- `free`: memory."
    assert module["Thing.call"].docstring.value == (
        "Calls.\n\n- `x`: a value; y: no parameter.\n\nKeywords:\n\n- `n`: how many."
    )
