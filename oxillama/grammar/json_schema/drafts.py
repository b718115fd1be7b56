"""Drafts of JSON Schema: the draft of a schema, and the keywords of each draft.

Keywords of another draft are asserted like those of the schema's own draft, since the schema's author meant something
by them. But their negation, in `not` or `oneOf`, implies nothing: so no value passes that the draft itself refuses.
"""

from typing import Any

__all__ = ["DRAFTS", "FOREIGN", "draft_of"]

DRAFTS = (4, 7, 2020)
_SINCE_2019 = frozenset((
    "prefixItems", "minContains", "maxContains", "dependentRequired", "dependentSchemas", "unevaluatedItems",
    "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
))  # fmt: skip
# Draft 6 added these, and draft 7 the last three.
_SINCE_6 = frozenset(("const", "contains", "propertyNames", "if", "then", "else"))
FOREIGN: dict[int | None, frozenset[str]] = {
    4: _SINCE_2019 | _SINCE_6,
    7: _SINCE_2019,
    2020: frozenset(("dependencies",)),
    None: frozenset(("dependencies",)),
}


def draft_of(schema: Any) -> int | None:
    """The draft that `$schema` names, or the nearest one; None if it names none."""
    name = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(name, str):
        return None
    if "draft-03" in name or "draft-04" in name:
        return 4
    if "draft-06" in name or "draft-07" in name:
        return 7
    return 2020 if "draft/2019-09" in name or "draft/2020-12" in name else None
