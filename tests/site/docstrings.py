"""Docstrings of the house as Markdown: an extension of griffe, which reads the sources for the site."""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import griffe

from oxillama._util.settings import described, settings_of
from tests.site.reference import PAGES

__all__ = ["PlainDocstrings", "as_markdown"]

# Where the description of a name may begin: a line's start, or after the end of a sentence or clause.
_BEGINS = r"(?:(?<=\. )|(?<=; )|(?<=\) )|^)"
_NAMES = r"\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*"
_LINES = re.compile(r"(?:\A|[.:;]\n|\n\n)\s*([a-z_]\w*(?:, [a-z_]\w*)*): ")
_FENCE = "```"
# Options that have a place of their own in the reference.
DESCRIBED = {f"oxillama.{name}" for page in PAGES for name in page.names}


def as_markdown(text: str, names: set[str]) -> str:
    """A docstring's text, in which descriptions `name: ...` of `names` are items of a list, and examples are code."""
    # A name that begins a line after the end of a sentence is described there, whatever the code says.
    names = names | {name for found in _LINES.findall(text) for name in found.split(", ")}
    blocks = re.split(r"\n{2,}", text.strip("\n"))
    return "\n\n".join(_block(block, names) for block in blocks)


def _block(block: str, names: set[str]) -> str:
    lines = block.split("\n")
    if lines[0].lstrip().startswith(">>>"):
        return "\n".join([f"{_FENCE}pycon", *(line.strip() for line in lines), _FENCE])
    if all(line.startswith("    ") for line in lines):  # a table or a tree, drawn with spaces
        return "\n".join([f"{_FENCE}text", *(line[4:] for line in lines), _FENCE])
    if re.match(r"\s*([-*|#]|\d+\.) ?", lines[0]):
        return block
    return _described(" ".join(line.strip() for line in lines), names)


def _described(paragraph: str, names: set[str]) -> str:
    """A paragraph, cut before each description of a name."""

    def item(found: re.Match[str]) -> str:
        listed = found[1].split(", ")
        if not names.issuperset(name.lstrip("*") for name in listed):
            return found[0]
        return "\n- " + ", ".join(f"`{name}`" for name in listed) + ": "

    text = re.sub(rf"{_BEGINS}({_NAMES}): ", item, paragraph)
    first, *items = text.split("\n")
    cleaned = [re.sub(r";\s*$", ".", line).strip() for line in items]
    return "\n\n".join(part for part in (first.strip(), "\n".join(cleaned)) if part)


def names_of(thing: Any) -> set[str]:
    """Names that a docstring of an object may describe: its parameters, or its fields and those of its __init__."""
    if thing.is_function:
        return {parameter.name.lstrip("*") for parameter in thing.parameters}
    if not thing.is_class:
        return set()
    found = {name for name in thing.members if not name.startswith("__")}
    if (init := thing.members.get("__init__")) is not None and init.is_function:
        found |= {parameter.name.lstrip("*") for parameter in init.parameters} - {"self"}
        found |= set(re.findall(r"self\.(\w+)", "".join(init.lines)))
    return found


def keywords_of(thing: Any) -> str:
    """What the keywords mean that `oxillama._util.signatures.takes` gives a function, or where that is said."""
    for decorator in thing.decorators if thing.is_function else ():
        if found := re.match(r"takes\(([\w.]+), ([\w.]+)", str(decorator.value)):
            options, checked = (_target(thing.module, name) for name in found.groups())
            if checked.canonical_path in DESCRIBED:
                return f"\n\nKeywords: those of {_link(options)}, described in {_link(checked)}."
            return "\n\nKeywords:\n\n" + as_markdown(_meanings(checked), names_of(checked) | set(options.members))
    return ""


def _target(module: griffe.Module, name: str) -> Any:
    """The object that a name of a module stands for."""
    found: Any = module[name]
    return found.final_target if found.is_alias else found


def _link(thing: Any) -> str:
    path = thing.canonical_path
    return f"[`{thing.name}`][{path}]" if path in DESCRIBED else f"`{thing.name}`"


def _meanings(checked: Any) -> str:
    """A docstring after its first paragraph, up to what is raised: as `takes` shows it in `help`."""
    _, _, meanings = (checked.docstring.value if checked.docstring else "").partition("\n\n")
    return re.split(r"\bRaises ", meanings)[0].strip()


class PlainDocstrings(griffe.Extension):
    """Rewrites every docstring when its object has been read."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """After the whole package: a class has its members then."""
        for thing in [*_documented(pkg)]:
            if thing.is_class and any(str(one.value).startswith("settings(") for one in thing.decorators):
                _as_composed(thing)
        texts = [
            (thing, as_markdown(thing.docstring.value, names_of(thing)) + keywords_of(thing))
            for thing in _documented(pkg)
        ]
        for thing, text in texts:
            thing.docstring.value = text
        for thing in [*_functions(pkg)]:
            _as_called(thing)


def _functions(thing: Any) -> Iterator[Any]:
    for member in thing.members.values():
        if member.is_alias:
            continue
        if member.is_function:
            yield member
        yield from _functions(member)


def _as_called(function: Any) -> None:
    """Shows a function in the form that its decorator gives it: a lazy value, or keywords of a table."""
    decorators = [str(decorator.value) for decorator in function.decorators]
    if "lazy" in decorators:
        value = griffe.Attribute(function.name, annotation=function.returns, docstring=function.docstring)
        value.labels.add("property")
        function.parent.set_member(function.name, value)
    elif any(text.startswith("keywords(") for text in decorators):
        function.parameters = _parameters(function)


def _as_composed(settings: Any) -> None:
    """Shows a class of settings with the meanings and the defaults of its fields, as `help` does."""
    known = settings_of(getattr(importlib.import_module(settings.module.path), settings.name))
    settings.docstring.value = settings.docstring.value.replace("{fields}", described(known))
    defaults = {name: repr(one.default) for name, one in known.items()}
    for name, default in defaults.items():
        if name in settings.members:  # else it is of a class that this one inherits from
            settings.members[name].value = default
    init = settings.members.get("__init__")
    for parameter in init.parameters if init is not None else ():
        if parameter.name in defaults:
            parameter.default = defaults[parameter.name]


def _parameters(function: Any) -> griffe.Parameters:
    """The parameters that `inspect.signature` tells; the package is imported for it."""
    found: Any = importlib.import_module(function.module.path)
    for part in function.path.removeprefix(f"{function.module.path}.").split("."):
        found = getattr(found, part)
    return griffe.Parameters(
        *(
            griffe.Parameter(
                one.name,
                kind=griffe.ParameterKind(one.kind.description),
                default=None if one.default is one.empty else repr(one.default),
            )
            for one in inspect.signature(found).parameters.values()
        )
    )


def _documented(thing: Any) -> Iterator[Any]:
    """The objects below one, itself too, that have a docstring."""
    if thing.docstring is not None:
        yield thing
    for member in thing.members.values():
        if not member.is_alias:
            yield from _documented(member)
