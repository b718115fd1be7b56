"""API reference: every public name has its place, once."""

import importlib
from collections import Counter

import pytest

import oxillama as ox
import oxillama.compat
import oxillama.data
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


@pytest.mark.parametrize(
    "package", [ox, oxillama.server, oxillama.gguf, oxillama.compat, oxillama.data, oxillama.snapshot]
)
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
