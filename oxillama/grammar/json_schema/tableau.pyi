from collections.abc import Callable, Iterable
from typing import Any

from oxillama.grammar.automaton import Budget
from oxillama.grammar.json_schema.branch import Branch, Fork
from oxillama.grammar.json_schema.disjoint import Disjoint
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.literals import Literal, Ways
from oxillama.grammar.json_schema.product import Examined
from oxillama.grammar.json_schema.unevaluated import Links

MAX_PROBES: int

class Reading:
    def __init__(self, schema: object, documents: Documents) -> None: ...

class Tableau:
    documents: Documents
    disjoint: Disjoint
    budget: Budget
    probing: Budget
    narrow: bool
    work: int
    every_fork: bool
    links: Links | None
    def __init__(self, documents: Documents, budget: Budget, narrow: bool = False) -> None: ...
    def branches(self, literals: Iterable[Literal]) -> list[Branch]: ...
    def probe(self, branch: Branch, literals: list[Literal]) -> list[Examined]: ...
    def combinations(self, literals: Iterable[Literal]) -> int: ...
    def spend(self, schema: dict[str, Any]) -> None: ...
    def fork(self, literal: Literal, tag: object, ways: Ways | Callable[[], Ways]) -> Fork: ...
