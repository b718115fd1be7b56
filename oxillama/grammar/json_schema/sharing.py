"""Sharing of equal sub-schemas: schemas written out in many places become one object.

The compiler knows schemas by identity: demands with the same schemas have one rule, and are expanded once. Documents
that other programs write repeat themselves a lot, and so would all combinations of their alternatives.
"""

from typing import Any

__all__ = ["shared"]

# Texts that say nothing about instances, in a schema; in a map of schemas these are names.
_NOTES = frozenset(("title", "description", "$comment", "markdownDescription"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))
_VALUES = frozenset(("const", "enum", "default", "examples"))
_TEXTS = frozenset((str,))


def shared(schema: Any) -> Any:
    """The schema with equal parts as the same object. Parts count as equal if they differ in titles and descriptions
    alone; the first of them remains. Numbers are equal if they are written alike, and objects if their keys have the
    same order. A schema that is too deep, or no tree, is returned as it is."""
    try:
        return _Sharing().of(schema, False, False)
    except RecursionError:
        return schema


class _Sharing:
    """Parts that were met: by their content, and by the object that they were read from, with whether notes count."""

    def __init__(self) -> None:
        self.parts: dict[object, Any] = {}
        self.read: dict[tuple[int, bool], Any] = {}

    def of(self, part: Any, is_map: bool, is_value: bool) -> Any:
        """The shared object of a dict or list. is_map: its keys are names; is_value: it is data and not a schema."""
        place = id(part), is_map or is_value
        found = self.read.get(place)
        if found is None:
            make = self._of_dict if isinstance(part, dict) else self._of_list
            found = self.read[place] = make(part, is_map, is_value) if type(part) in (dict, list) else part
        return found

    def _of_dict(self, part: Any, is_map: bool, is_value: bool) -> Any:
        exact = is_map or is_value
        key: list[object] = [exact]
        made = part  # copied when a part of it becomes another object
        for name, item in part.items():
            kind = type(item)
            if kind is str:
                if exact or name not in _NOTES:
                    key += (name, item)
            elif kind is dict or kind is list:
                found = self.of(item, not exact and name in _MAPS, is_value or (not is_map and name in _VALUES))
                key += (name, kind, id(found))
                if found is not item:
                    made = part.copy() if made is part else made
                    made[name] = found
            else:
                key += (name, kind, _scalar(item))
        return self.parts.setdefault(tuple(key), made)

    def _of_list(self, part: Any, is_map: bool, is_value: bool) -> Any:
        if set(map(type, part)) == _TEXTS:  # most lists, and some of thousands
            return self.parts.setdefault((_TEXTS, is_value, *part), part)
        key: list[object] = [list, is_value]
        made = part
        for i, item in enumerate(part):
            kind = type(item)
            if kind is dict or kind is list:
                found = self.of(item, False, is_value)
                key += (kind, id(found))
                if found is not item:
                    made = part.copy() if made is part else made
                    made[i] = found
            else:
                key += (kind, _scalar(item))
        return self.parts.setdefault(tuple(key), made)


def _scalar(item: object) -> object:
    """Key of a value within its type: 0.0 and -0.0 differ; of an unknown type each object is different."""
    if isinstance(item, str | int) or item is None:
        return item
    return repr(item) if isinstance(item, float) else id(item)
