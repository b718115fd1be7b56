from fractions import Fraction

from oxillama.grammar.json_schema.literals import Key, Literal
from oxillama.grammar.json_schema.numbers import Numbers
from oxillama.grammar.json_schema.strings import Strings

class PropertyFacts:
    literal: Literal
    def __init__(self, literal: Literal) -> None: ...

class Claim:
    def __init__(self, literal: Literal) -> None: ...

class KnownProperties:
    facts: tuple[PropertyFacts, ...]
    required: frozenset[str]
    names: frozenset[str] | None
    banned: frozenset[str]
    size: int
    def __init__(self, facts: tuple[PropertyFacts, ...], before: KnownProperties | None = None) -> None: ...
    def contradicts(self, way: Way) -> bool: ...
    def both(self, other: KnownProperties) -> KnownProperties: ...
    def excludes(self, claim: Claim) -> bool: ...
    def lacks(self, names: frozenset[str]) -> bool: ...

class Way:
    literals: list[Literal]
    keys: frozenset[Key]
    def __init__(self, literals: list[Literal]) -> None: ...
    @property
    def claims(self) -> list[Claim]: ...
    @property
    def absent(self) -> frozenset[str] | None: ...

class Fork:
    ways: list[Way]
    n: int
    def __init__(self, ways: list[Way], origin: Fork | None = None) -> None: ...

class Branch:
    types: int
    numbers: Numbers
    values: frozenset[Fraction] | None
    without: frozenset[Fraction]
    written: dict[Fraction, str]
    strings: Strings
    arrays: tuple[Literal, ...]
    objects: tuple[Literal, ...]
    facts: tuple[PropertyFacts, ...]
    any_order: bool
    unevaluated: tuple[Literal, ...]
    forks: list[Fork]
    added: list[Fork]
    fresh: list[Key]
    seen: set[Key]
    @property
    def held(self) -> KnownProperties: ...
    def copy(self) -> Branch: ...
