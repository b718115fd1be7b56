"""Docstrings as Markdown: descriptions of names are lists, examples are code, and signatures are those of calls."""

import pytest

pytest.importorskip("griffe")
import griffe

from oxillama.compat.llama import CONSTRUCTOR
from tests.site.docstrings import PlainDocstrings, as_markdown


@pytest.mark.parametrize(("text", "wanted"), [
    ("Noun phrase.", "Noun phrase."),
    ("Noun.\n\na: one thing.\nb: another\n    thing; c: a third.",
     "Noun.\n\n- `a`: one thing.\n- `b`: another thing.\n- `c`: a third."),
    ("a, b: both. Raises ValueError: never.", "- `a`, `b`: both. Raises ValueError: never."),
    ("Text. d: is no name of it.", "Text. d: is no name of it."),
    ("Text.\nd: is one.", "Text.\n\n- `d`: is one."),
    (">>> f(1)\n2", "```pycon\n>>> f(1)\n2\n```"),
    ("Tree:\n\n    x  1\n      y", "Tree:\n\n```text\nx  1\n  y\n```"),
    ("| a | b |\n|---|---|", "| a | b |\n|---|---|"),
    ("One\nline: of text.", "One line: of text."),
])  # fmt: skip
def test_docstrings_become_markdown(text, wanted):
    assert as_markdown(text, {"a", "b", "c"}) == wanted


SOURCE = '''
from oxillama._util.lazy import lazy
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

    @lazy
    def late(self) -> int:
        """Computed when it is asked for."""
'''


def test_names_are_those_of_parameters_fields_and_keywords(tmp_path):
    (tmp_path / "planted.py").write_text(SOURCE)
    extensions = griffe.load_extensions(PlainDocstrings)
    module = griffe.load("planted", search_paths=[tmp_path], extensions=extensions, allow_inspection=False)
    assert module["Thing"].docstring.value == "A thing.\n\n- `size`: of it.\n- `free`: memory."
    assert module["Thing.call"].docstring.value == (
        "Calls.\n\n- `x`: a value; y: no parameter.\n\nKeywords:\n\n- `n`: how many."
    )
    late = module["Thing.late"]
    assert (late.is_attribute, late.docstring.value) == (True, "Computed when it is asked for.")


@pytest.mark.long
def test_functions_of_tables_have_the_signature_of_the_table():
    package = griffe.load("oxillama", extensions=griffe.load_extensions(PlainDocstrings), allow_inspection=False)
    parameters = package["compat.llama.Llama.__init__"].parameters
    assert [p.name for p in parameters] == ["self", *(keyword.name for keyword in CONSTRUCTOR)]
    assert parameters["n_ctx"].default == "512"
    assert parameters["model_path"].default is None
