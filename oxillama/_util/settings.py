"""Settings: fields of dataclasses, each declared once with its default, its meaning and its check."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from oxillama._util.checks import check_bool, check_choice, check_float, check_int, suggests_fields
from oxillama.errors import ConfigError

__all__ = ["Setting", "check_fields", "described", "setting", "settings", "settings_of"]

T = TypeVar("T")
C = TypeVar("C", bound=type)
Check = Callable[[str, Any], Any]  # (name, value): the value as it is kept; raises ConfigError


def unchecked(shown: str, value: Any) -> Any:
    """Stands for the check that the kind of a field makes."""
    return value


# Lines of a docstring of 120 columns within a class, and those that go on with one, which are indented once more.
_FIRST, _NEXT = (re.compile(rf"\S.{{0,{width - 1}}}(?!\S)|\S+") for width in (116, 112))


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a settings class.

    name, default: of the field. shown: its name in errors. kind: its type as it is written, without `| None`.
    text: its meaning, whole. brief: the same in a few words, for flags and tables.
    least, most: of a number; above: more than `least`. choices: of a text. check: (shown, value) -> the value as it is
        kept; by the kind of the field, its bounds and choices where none is given.
    size: a number of bytes. metavar: its value in the help of a flag. secret: not shown. ids: it has token ids.
    group: the field that it belongs to; without one, itself. idle: its value with which its group does nothing.
    """

    text: str
    brief: str = ""
    least: float = 0
    most: float = math.inf
    above: bool = False
    choices: tuple[str, ...] = ()
    check: Check = unchecked
    size: bool = False
    metavar: str = ""
    secret: bool = False
    ids: bool = False
    group: str = ""
    idle: float | None = None
    name: str = ""
    shown: str = ""
    default: Any = None
    kind: str = ""

    @property
    def item(self) -> type | None:
        """The type of a list's items as they are typed; None for what is no list."""
        found = re.match(r"(?:Iterable|Sequence|tuple)\[(\w+)", self.kind.replace("collections.abc.", ""))
        return None if found is None else {"int": int, "str": str}.get(found[1])


def setting(default: T, text: str, *, brief: str = "", least: float = 0, most: float = math.inf, above: bool = False,
            choices: tuple[str, ...] = (), check: Check = unchecked, size: bool = False, metavar: str = "",
            secret: bool = False, ids: bool = False, group: str = "", idle: float | None = None) -> T:  # fmt: skip
    """A field of a settings class, with all that help, checks, flags and tables need; `Setting` says what they mean."""
    brief = brief or text.removesuffix(".")
    known = Setting(text, brief, least, most, above, choices, check, size, metavar, secret, ids, group, idle)
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


def settings(prefix: str = "", *, suggests: bool = True) -> Callable[[C], C]:
    """Decorator of a frozen dataclass whose fields are settings: `check_fields` checks them, its docstring has their
    meanings in place of the line `{fields}`, and an unknown keyword is a TypeError that names the nearest field.

    prefix: before the name of a field in errors. suggests: False for a class that no caller of the package makes.
    """

    def decorate(cls: C) -> C:
        known = {one.name: _declared(one, prefix) for one in fields(cls) if "setting" in one.metadata}
        _DECLARED[cls] = known
        if cls.__doc__:  # there are none with -OO
            cls.__doc__ = inspect.cleandoc(cls.__doc__).replace("{fields}", described(known))
        return suggests_fields(cls) if suggests else cls

    return decorate


def _declared(one: Any, prefix: str) -> Setting:
    written = (
        one.type if isinstance(one.type, str) else one.type.__name__ if isinstance(one.type, type) else str(one.type)
    )
    kind = written.removesuffix(" | None")
    known: Setting = one.metadata["setting"]
    check = _check_of(one.name, kind, known) if known.check is unchecked else known.check
    group = known.group or one.name
    return replace(
        known, name=one.name, shown=prefix + one.name, default=one.default, kind=kind, check=check, group=group
    )


def _check_of(name: str, kind: str, known: Setting) -> Check:
    """The check that the kind of a field, its bounds and choices make. Raises TypeError where they make none."""
    if known.choices:
        return partial(check_choice, choices=known.choices)
    if kind == "int":
        if known.most == math.inf:
            raise TypeError(f"{name} is an int, which needs the most that it can be")
        return partial(check_int, minimum=int(known.least), maximum=int(known.most))
    if kind == "float":
        return partial(check_float, minimum=known.least, maximum=known.most, above=known.above)
    if kind not in _CHECKS:
        raise TypeError(f"{name} is a {kind}, which needs a check of its own")
    return _CHECKS[kind]


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a class, or of the one that it inherits them from, by name, in order."""
    return next(_DECLARED[one] for one in cls.__mro__ if one in _DECLARED)


def check_fields(config: Any) -> None:
    """Checks the settings of a frozen dataclass that aren't its defaults, and keeps them as their checks return them.

    None stands for the default. Raises ConfigError, which names the field, its value and its range.
    """
    known = _DECLARED.get(type(config)) or settings_of(type(config))
    for name, one in known.items():
        value = getattr(config, name)
        if value is not one.default:
            object.__setattr__(config, name, one.default if value is None else one.check(one.shown, value))


def described(known: dict[str, Setting]) -> str:
    """The lines of a docstring that say what settings mean."""
    return "\n".join(_filled(f"{name}: {one.text}") for name, one in known.items())


def _filled(text: str) -> str:
    """A text in lines; `textwrap.fill` is slow to import and to run, and every command needs this."""
    first = _FIRST.match(text)
    assert first is not None
    return "\n    ".join([first[0].rstrip(), *(line.rstrip() for line in _NEXT.findall(text, first.end()))])
