"""Python functions as tools: their descriptions, made of name, docstring and annotations."""

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from oxillama.chat.annotations import Annotations, NotDescribed, first_paragraph, object_schema, with_default
from oxillama.errors import ConfigError

__all__ = ["DescribedFunction", "described_function", "described_tools"]

REMEDY = "or give a description of it, {'type': 'function', 'function': {'name': ..., 'parameters': ...}}"
_SECTION = re.compile(r"^(?:Args|Arguments|Parameters|Params):\s*$")
_ITEM = re.compile(r"^(?P<indent>\s*)\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)$")
_FIELD = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)$")


class DescribedFunction(NamedTuple):
    """A function with its description as `Engine.chat` takes it, and what makes its arguments of a call's."""

    function: Callable[..., Any]
    description: dict[str, Any]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]


def described_tools(tools: Any) -> Any:
    """Tools of `Engine.chat` with descriptions in the place of functions; anything else as it is.

    Raises ConfigError, which names the function and its parameter, for one that can't be described.
    """
    if callable(tools) and not isinstance(tools, Sequence | Mapping):
        raise ConfigError(f"tools must be a list, not a function: give [{getattr(tools, '__name__', 'it')}]")
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes) or not any(map(_is_function, tools)):
        return tools
    return [described_function(tool).description if _is_function(tool) else tool for tool in tools]


def _is_function(tool: Any) -> bool:
    return callable(tool) and not isinstance(tool, Mapping)


def described_function(function: Callable[..., Any]) -> DescribedFunction:
    """A function as a tool.

    The first paragraph of the docstring describes it, the lines of "Args:" its parameters; annotations become a
    schema, and a parameter with a default may be left out. Raises ConfigError for what can't be described.
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier() or inspect.isclass(function):
        raise ConfigError(f"a tool must be a function with a name, not {function!r:.80}: write one with def, {REMEDY}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the parameters of {name}() can't be read: {error}: write it with def, {REMEDY}") from None
    text = inspect.getdoc(function) if function.__doc__ else None
    said, annotations = _said(text), Annotations()
    properties, reads, required = {}, {}, []
    for one in parameters:
        schema, read = _parameter(function, one, annotations)
        if described := said.get(one.name):
            schema = {**schema, "description": described}
        properties[one.name] = schema
        if read is not None:
            reads[one.name] = read
        if one.default is one.empty:
            required.append(one.name)
    schema = object_schema(properties, required)
    if annotations.definitions:
        schema["$defs"] = annotations.definitions
    own = {"name": name, **({"description": first} if (first := first_paragraph(text)) else {}), "parameters": schema}

    def made(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {key: reads[key](value) if key in reads else value for key, value in arguments.items()}

    return DescribedFunction(function, {"type": "function", "function": own}, made)


def _parameter(
    function: Callable[..., Any], one: inspect.Parameter, annotations: Annotations
) -> tuple[dict[str, Any], Callable[[Any], Any] | None]:
    """The schema of a parameter, and what makes its value of a JSON value."""
    place = f"the parameter {one.name} of {function.__name__}()"
    if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
        what = "takes no keyword" if one.kind is one.POSITIONAL_ONLY else "takes any number of values"
        raise ConfigError(f"{place} {what}: leave it out, {REMEDY}")
    if one.annotation is one.empty:
        raise ConfigError(f"{place} has no annotation: write its type, such as {one.name}: str, {REMEDY}")
    holder = SimpleNamespace(__annotations__={one.name: one.annotation})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        hint = typing.get_type_hints(holder, names, include_extras=True)[one.name]
    except Exception as error:  # whatever evaluating an annotation raises
        raise ConfigError(
            f"{place} has an annotation that can't be read: {error}: name types of the function's module, {REMEDY}"
        ) from None
    try:
        found = annotations.of(hint)
    except NotDescribed as error:
        raise ConfigError(
            f"{place} can't be described: {error}: use str, int, float, bool, list, dict, Literal, Enum, unions, "
            f"dataclasses or TypedDict, {REMEDY}"
        ) from None
    return with_default(found.schema, ... if one.default is one.empty else one.default), found.read


def _said(text: str | None) -> dict[str, str]:
    """Descriptions of parameters in a docstring: lines of "Args:" by name, or of `:param name:`."""
    found: dict[str, list[str]] = {}
    inside, first, indent, lines = False, False, 0, found.setdefault("", [])
    for n, line in enumerate((text or "").splitlines()):
        if _SECTION.match(line):
            inside, indent, first, lines = True, 0, n == 0, []  # behind a first line, the others have no indent
            continue
        item, own = _FIELD.match(line), _ITEM.match(line)
        outside = not line[:1].isspace() and not (inside and first and own)
        if line.strip() and outside:
            inside = False
        if item is None and inside and own and (not indent or len(own["indent"]) <= indent):
            item, indent = own, len(own["indent"])
        if item is not None:
            lines = found.setdefault(item["name"], [])
        elif not line.strip() or outside:
            lines = []
        lines.append(item["text"].strip() if item is not None else line.strip())
    return {name: " ".join(filter(None, lines)) for name, lines in found.items() if name}
