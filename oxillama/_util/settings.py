"""Settings: fields of dataclasses, each declared once with its default, its meaning and its check."""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from oxillama._util.checks import check_bool, check_choice, check_float, check_int, suggests_fields
from oxillama.errors import ConfigError

__all__ = ["Setting", "check_fields", "described", "setting", "settings", "settings_of"]

T = TypeVar("T")
C = TypeVar("C", bound=type)
Check = Callable[[str, Any], Any]  # (name, value): the value as it is kept; raises ConfigError

WIDTH = 120  # columns of a docstring


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a settings class.

    name, default: of the field. shown: its name in errors. kind: its type as it is written, without `| None`.
    text: its meaning, whole. brief: the same in a few words, for flags and tables.
    least, most: of a number; above: more than `least`. choices: of a text. check: of what these don't tell.
    size: a number of bytes. metavar: its value in the help of a flag. secret: not shown.
    """

    text: str
    brief: str = ""
    least: float = 0
    most: float = math.inf
    above: bool = False
    choices: tuple[str, ...] = ()
    check: Check | None = None
    size: bool = False
    metavar: str = ""
    secret: bool = False
    name: str = ""
    shown: str = ""
    default: Any = None
    kind: str = ""

    @property
    def item(self) -> type | None:
        """The type of a list's items as they are typed; None for what is no list."""
        found = re.match(r"(?:Iterable|Sequence|tuple)\[(\w+)", self.kind.replace("collections.abc.", ""))
        return None if found is None else {"int": int, "str": str}.get(found[1])

    def checked(self, value: Any) -> Any:
        """The value as it is kept. Raises ConfigError, which names the field, for one that it can't have."""
        shown = self.shown
        if self.check is not None:
            return self.check(shown, value)
        if self.choices:
            return check_choice(shown, value, self.choices)
        if self.kind == "int":
            return check_int(shown, value, int(self.least), int(self.most))
        if self.kind == "float":
            return check_float(shown, value, self.least, self.most, above=self.above)
        return _CHECKS[self.kind](shown, value)


def setting(default: T, text: str, *, brief: str = "", least: float = 0, most: float = math.inf, above: bool = False,
            choices: tuple[str, ...] = (), check: Check | None = None, size: bool = False, metavar: str = "",
            secret: bool = False) -> T:  # fmt: skip
    """A field of a settings class, with all that help, checks, flags and tables need; `Setting` says what they mean."""
    known = Setting(text, brief or text.removesuffix("."), least, most, above, choices, check, size, metavar, secret)
    found: T = field(default=default, repr=not secret, metadata={"setting": known})
    return found


def _text(shown: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{shown} must be a text, not {value!r:.60}")
    if value == "":
        raise ConfigError(f"{shown} is empty: give a value, or leave it out")
    _check_null(shown, value)
    return value


def _texts(shown: str, value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(one, str) and one for one in found):
        raise ConfigError(f"{shown} must be texts, not {value!r:.60}")
    for one in found:
        _check_null(shown, one)
    return tuple(found)


def _check_null(shown: str, value: str) -> None:
    if "\0" in value:
        raise ConfigError(f"{shown} has a null character: {value!r:.60}")


_CHECKS: dict[str, Check] = {"bool": check_bool, "str": _text, "tuple[str, ...]": _texts}
_DECLARED: dict[type, dict[str, Setting]] = {}


def settings(prefix: str = "") -> Callable[[C], C]:
    """Decorator of a frozen dataclass whose fields are settings: `check_fields` checks them, its docstring has their
    meanings in place of the line `{fields}`, and an unknown keyword is a TypeError that names the nearest field.

    prefix: before the name of a field in errors.
    """

    def decorate(cls: C) -> C:
        known = {one.name: _declared(one, prefix) for one in fields(cls) if "setting" in one.metadata}
        _DECLARED[cls] = known
        if cls.__doc__:  # there are none with -OO
            cls.__doc__ = inspect.cleandoc(cls.__doc__).replace("{fields}", described(known))
        return suggests_fields(cls)

    return decorate


def _declared(one: Any, prefix: str) -> Setting:
    written = (
        one.type if isinstance(one.type, str) else one.type.__name__ if isinstance(one.type, type) else str(one.type)
    )
    kind = written.removesuffix(" | None")
    known: Setting = replace(one.metadata["setting"], name=one.name, shown=prefix + one.name, default=one.default,
                             kind=kind)  # fmt: skip
    if known.check is None and not known.choices and kind not in (*_CHECKS, "int", "float"):
        raise TypeError(f"{one.name} is a {kind}, which needs a check of its own")
    return known


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a class, by name, in order."""
    return _DECLARED[cls]


def check_fields(config: Any) -> None:
    """Checks the settings of a frozen dataclass that aren't its defaults, and keeps them as their checks return them.

    None stands for the default. Raises ConfigError, which names the field, its value and its range.
    """
    for name, one in _DECLARED[type(config)].items():
        value = getattr(config, name)
        if value is not one.default:
            object.__setattr__(config, name, one.default if value is None else one.checked(value))


def described(known: dict[str, Setting]) -> str:
    """The lines of a docstring that say what settings mean."""
    return "\n".join(
        textwrap.fill(f"{name}: {one.text}", WIDTH - 4, subsequent_indent="    ", break_long_words=False,
                      break_on_hyphens=False)
        for name, one in known.items()
    )  # fmt: skip
