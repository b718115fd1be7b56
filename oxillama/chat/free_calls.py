"""Grammars of calls whose arguments may be any object, in the formats that don't write them as JSON."""

from typing import Any

from oxillama.chat.grammar_parts import Parts
from oxillama.chat.shapes import Braces, CallFormat, NestedTags, PythonCall, Tagged
from oxillama.chat.tagged_grammar import text_value
from oxillama.chat.value_grammar import BracesValues, PythonValues
from oxillama.sampler_config import SchemaMode

__all__ = ["ANY_OBJECT", "free_call"]

ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}
MAX_KEY = 64


def free_call(parts: Parts, name: str, calls: CallFormat, mode: SchemaMode, known: Any) -> int:
    """A call of a tool from its name to its last argument, with any arguments in any order.

    known: the schema of the arguments, to which they aren't held, but whose names tell a parser where values end.
    """
    shape = calls.shape
    if isinstance(shape, PythonCall):
        return _python(parts, name, mode)
    if isinstance(shape, Braces):
        values = BracesValues(parts, ANY_OBJECT, mode, shape.quote)
        return parts.rules.seq((parts.text(name), values.object(ANY_OBJECT, 0)))
    if isinstance(shape, Tagged):
        return _tagged(parts, name, calls, shape, known)
    assert isinstance(shape, NestedTags)
    # Tags within tags nest as the text has them: what each holds is any text, with the format's own mark.
    anything = parts.rules.repeat(parts.rules.alt((parts.mark(shape.mark), parts.any_byte())), 0)
    return parts.rules.seq((parts.text(name), parts.mark(shape.head_end), anything))


def _python(parts: Parts, name: str, mode: SchemaMode) -> int:
    rules, values = parts.rules, PythonValues(parts, ANY_OBJECT, mode)
    pair = parts.shared(rules.seq((parts.hole("key"), parts.text("="), values.value(True))))
    more = rules.repeat(rules.seq((parts.text(","), parts.gap(), pair)), 0)
    return rules.seq((parts.text(f"{name}("), parts.maybe(rules.seq((pair, more))), parts.text(")")))


def _tagged(parts: Parts, name: str, calls: CallFormat, shape: Tagged, known: Any) -> int:
    rules = parts.rules
    separating = tuple((ord(c), ord(c)) for c in sorted('\n "<=>'))
    key = rules.repeat(parts.characters(separating, True), 1, MAX_KEY)
    last = shape.key_end[-1] if shape.key_end else ""
    tail = parts.mark(last.rstrip("\n")) if isinstance(last, str) else rules.seq(())
    head = (parts.gap(), parts.mark(shape.begin), key, parts.pattern(shape.key_end[:-1], {}), tail)
    argument = rules.seq((*head, parts.text(shape.trail), text_value(parts, calls, known)))
    return rules.seq((parts.text(name), parts.pattern(shape.head_end, {}), rules.repeat(parts.shared(argument), 0)))
