"""Metadata: the key-value part of a GGUF file, with access by type."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, overload

from oxillama.errors import ConfigError, MissingKeyError
from oxillama.gguf.arrays import GGUFArray
from oxillama.gguf.entries import Entry, Value, make_entry
from oxillama.gguf.values import FLOATS, INTEGERS, ValueType, shown

__all__ = ["REQUIRED", "Metadata"]

T = TypeVar("T")


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()

_SCALARS: dict[str, frozenset[ValueType]] = {
    "str": frozenset({ValueType.STRING}),
    "int": frozenset(INTEGERS),
    "float": FLOATS | frozenset(INTEGERS),
    "bool": frozenset({ValueType.BOOL}),
}

# Keys whose values were used to read the file; another value would contradict the parsed file.
_STRUCTURAL = frozenset({"general.alignment", "split.no", "split.count", "split.tensors.count"})


class Metadata(Mapping[str, Value]):
    """Keys in file order; values are bool, int, float, str or `GGUFArray`.

    ``get_*`` give a value of one type: an absent key gives ``default``, or, where none was given, MissingKeyError, as
    does a key that holds another type or a value out of range, with or without a default.
    """

    def __init__(self, entries: Mapping[str, Entry], label: str = "metadata") -> None:
        self._entries = dict(entries)
        self._label = label

    def __getitem__(self, key: str) -> Value:
        return self.entry(key).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"<Metadata of {self._label}: {len(self)} keys>"

    def entry(self, key: str) -> Entry:
        """Value, stored type and bytes of a key."""
        try:
            return self._entries[key]
        except KeyError:
            raise MissingKeyError(f"{self._label}: metadata has no key {shown(key)}") from None

    def type_of(self, key: str) -> ValueType:
        """The stored type of a value; the type of an array's items is the array's ``item_type``."""
        return self.entry(key).type

    @property
    def arch(self) -> str:
        """``general.architecture``."""
        return self.get_str("general.architecture")

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: T) -> str | T: ...
    def get_str(self, key: str, default: Any = REQUIRED) -> Any:
        """A string."""
        return self._scalar(key, "str", default)

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: T) -> bool | T: ...
    def get_bool(self, key: str, default: Any = REQUIRED) -> Any:
        """A bool; integers are not taken for one."""
        return self._scalar(key, "bool", default)

    @overload
    def get_int(self, key: str, *, minimum: int | None = None, maximum: int | None = None) -> int: ...
    @overload
    def get_int(self, key: str, default: T, *, minimum: int | None = None, maximum: int | None = None) -> int | T: ...
    def get_int(
        self, key: str, default: Any = REQUIRED, *, minimum: int | None = None, maximum: int | None = None
    ) -> Any:
        """An integer of any stored width, within ``minimum`` and ``maximum`` (both included)."""
        return self._in_range(key, self._scalar(key, "int", default), minimum, maximum)

    @overload
    def get_float(self, key: str, *, minimum: float | None = None, maximum: float | None = None) -> float: ...
    @overload
    def get_float(
        self, key: str, default: T, *, minimum: float | None = None, maximum: float | None = None
    ) -> float | T: ...
    def get_float(
        self, key: str, default: Any = REQUIRED, *, minimum: float | None = None, maximum: float | None = None
    ) -> Any:
        """A finite number, as float, within ``minimum`` and ``maximum`` (both included)."""
        value = self._scalar(key, "float", default)
        if key not in self._entries:
            return value
        value = float(value)
        if not math.isfinite(value):
            raise MissingKeyError(f"{self._label}: key {shown(key)} is {value}; a finite number is needed")
        return self._in_range(key, value, minimum, maximum)

    @overload
    def get_array(self, key: str, kind: str | type) -> GGUFArray: ...
    @overload
    def get_array(self, key: str, kind: str | type, default: T) -> GGUFArray | T: ...
    def get_array(self, key: str, kind: str | type, default: Any = REQUIRED) -> Any:
        """An array whose items are of ``kind``: ``str``, ``int``, ``float`` (integers too) or ``bool``, or its name."""
        name = kind if isinstance(kind, str) else kind.__name__
        if name not in _SCALARS:
            raise ConfigError(f"kind={name!r}; one of {', '.join(_SCALARS)} is needed")
        if key not in self._entries:
            return self._absent(key, f"array of {name}", default)
        entry = self._entries[key]
        if not isinstance(entry.value, GGUFArray) or entry.value.item_type not in _SCALARS[name]:
            raise self._mistyped(key, entry, f"an array of {name}")
        return entry.value

    def replaced(self, overrides: Mapping[str, object]) -> "Metadata":
        """A copy with some values replaced or added.

        A value that replaces another is stored with the same type; a new one with that of `make_entry`.

        Raises:
            ConfigError: the value is of another type than the one it replaces or of one that GGUF doesn't have, or the
                key (``general.alignment``, ``split.*``) has already been used to read the file.
        """
        entries = dict(self._entries)
        for key, value in overrides.items():
            if not isinstance(key, str) or not key:
                raise ConfigError(f"overrides: key {shown(key)}; keys are strings that are not empty")
            if key in _STRUCTURAL:
                raise ConfigError(f"overrides: {key} says how the file is laid out and can't be replaced")
            old = entries.get(key)
            item_type = None if old is None else old.value.item_type if isinstance(old.value, GGUFArray) else old.type
            new = make_entry(f"overrides: {key}", value, item_type)
            if old is not None and new.type is not old.type:
                raise ConfigError(f"overrides: {key} holds {old.described()}, not {new.described()}: {shown(value)}")
            entries[key] = new
        return Metadata(entries, self._label)

    def _scalar(self, key: str, kind: str, default: Any) -> Any:
        entry = self._entries.get(key)
        if entry is None:
            return self._absent(key, kind, default)
        if entry.type not in _SCALARS[kind]:
            raise self._mistyped(key, entry, f"a {kind}")
        return entry.value

    def _absent(self, key: str, kind: str, default: Any) -> Any:
        if isinstance(default, _Required):
            raise MissingKeyError(f"{self._label}: metadata has no key {shown(key)} ({kind})")
        return default

    def _mistyped(self, key: str, entry: Entry, wanted: str) -> MissingKeyError:
        return MissingKeyError(
            f"{self._label}: key {shown(key)} holds {entry.described()} {shown(entry.value)}; {wanted} is needed"
        )

    def _in_range(self, key: str, value: Any, minimum: float | None, maximum: float | None) -> Any:
        if key not in self._entries:
            return value
        if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
            limits = [f"at least {minimum}"] if minimum is not None else []
            limits += [f"at most {maximum}"] if maximum is not None else []
            raise MissingKeyError(f"{self._label}: key {shown(key)} is {value}; {' and '.join(limits)} is needed")
        return value
