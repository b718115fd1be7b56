r"""Sets of characters by name, as `\p{...}` of a pattern has them: general categories of Unicode.

They are those of the Unicode version that Python knows (`unicodedata.unidata_version`).
"""

from functools import lru_cache

from oxillama.grammar.automata.spelling import category_runs
from oxillama.grammar.automaton import MAX_CHAR, Range, character_ranges

__all__ = ["category_ranges"]

# PropertyValueAliases.txt of the Unicode Character Database, gc.
_NAMES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Combining_Mark": "M", "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc", "Enclosing_Mark": "Me", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd",
    "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe", "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf", "Other_Punctuation": "Po", "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk", "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Surrogate": "Cs",
    "Private_Use": "Co", "Unassigned": "Cn",
}  # fmt: skip
_SHORT = frozenset(_NAMES.values())
# All but these are looked at: ideographs and syllables of Unicode 13 and before. No version has had characters in
# planes 4 to 13 or most of plane 14. Planes 15 and 16 are for private use, all but their last two code points.
_UNIFORM = (
    ("Lo", 0x3400, 0x4DB5), ("Lo", 0x4E00, 0x9FCC), ("Lo", 0xAC00, 0xD7A3), ("Cs", 0xD800, 0xDFFF),
    ("Co", 0xE000, 0xF8FF), ("Lo", 0x20000, 0x2A6D6), ("Lo", 0x2A700, 0x2B734), ("Lo", 0x2B740, 0x2B81D),
    ("Lo", 0x2B820, 0x2CEA1), ("Lo", 0x2CEB0, 0x2EBE0), ("Lo", 0x30000, 0x3134A), ("Cn", 0x40000, 0xDFFFF),
    ("Cn", 0xE1000, 0xEFFFF), ("Co", 0xF0000, 0xFFFFD), ("Cn", 0xFFFFE, 0xFFFFF), ("Co", 0x100000, 0x10FFFD),
    ("Cn", 0x10FFFE, MAX_CHAR),
)  # fmt: skip


def category_ranges(name: str) -> tuple[Range, ...] | None:
    """The characters of a property: `Lu`, `Uppercase_Letter`, `gc=Lu`, `Any`, `ASCII`. None for an unknown one."""
    if name == "Any":
        return character_ranges((), True)
    if name == "ASCII":
        return ((0, 0x7F),)
    if name == "Assigned":
        return character_ranges(_of_category("Cn"), True)
    prefix, equals, value = name.partition("=")
    if equals and prefix not in ("gc", "General_Category"):
        return None
    short = _NAMES.get(value if equals else name, value if equals else name)
    return _of_category(short) if short in _SHORT else None


@lru_cache(maxsize=64)
def _of_category(short: str) -> tuple[Range, ...]:
    wanted = ("Lu", "Ll", "Lt") if short == "LC" else (short,)
    return character_ranges(tuple(r for name, runs in _runs().items() if name.startswith(wanted) for r in runs))


@lru_cache(maxsize=1)
def _runs() -> dict[str, list[Range]]:
    """Runs of characters of each two-letter category: one pass over Unicode, when first needed."""
    runs: dict[str, list[Range]] = {}
    first = 0
    for name, low, high in _UNIFORM:
        for category, begin, last in (*category_runs(first, low), (name, low, high)):
            runs.setdefault(category, []).append((begin, last))
        first = high + 1
    return runs
