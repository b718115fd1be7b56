"""Prompt templates: text with columns in braces, as `str.format_map` writes it, without attributes or indices."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any

from oxillama.data.columns import is_null
from oxillama.errors import ConfigError

__all__ = ["Template"]


class Template:
    """A text with columns in braces: "Summarise: {text}". `{n:.2f}` and `{name!r}` format a cell; `{{` is a brace.

    columns: those that it names. Raises ConfigError for what isn't such a text.
    """

    def __init__(self, name: str, text: Any) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"{name} must be text, not {type(text).__name__}")
        try:
            fields = [(field, spec) for _, field, spec, _ in Formatter().parse(text) if field is not None]
        except ValueError as error:
            raise ConfigError(f"{name} can't be read ({error}): a brace of the text is written twice, {{{{") from None
        for field, spec in fields:
            _check_field(name, field, spec or "")
        self.text = text
        self.columns = tuple(dict.fromkeys(field for field, _ in fields))

    def fill(self, row: Mapping[str, Any]) -> str | None:
        """The text of a row; None if a cell of it is null, or all of them are empty.

        Raises ConfigError for a cell that a format doesn't fit.
        """
        cells = {name: row[name] for name in self.columns}
        if any(map(is_null, cells.values())) or (cells and all(cell == "" for cell in cells.values())):
            return None
        try:
            return self.text.format_map(cells)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the template {self.text!r:.60} doesn't fit the row: {error}") from None


def _check_field(name: str, field: str, spec: str) -> None:
    if not field:
        raise ConfigError(f"{name} must name a column in braces, as in {{text}}, not {{}}")
    if "." in field or "[" in field:
        raise ConfigError(
            f"{name} must have names of columns in braces, without attributes or indices, not {{{field}}}: make a "
            "column of the part"
        )
    if "{" in spec:
        raise ConfigError(f"{name} must have plain formats, not one with braces in it: {{{field}:{spec}}}")
