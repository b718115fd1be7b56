"""Tableau: a schema as a list of branches, each a conjunction of keywords.

A demand is a conjunction of literals (a schema that must hold, or must not). This is a tableau: what has one way is
worked off first, then the alternatives (forks) in turn, the shortest list first, without those whose types are already
out. A branch that is left says which types there may be, and for each which schemas speak of it.
"""

from collections.abc import Iterable

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Budget
from oxillama.grammar.json_schema.branch import Branch, Fork
from oxillama.grammar.json_schema.disjoint import Disjoint
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.keywords import HANDLERS, OF_ARRAYS, OF_OBJECTS
from oxillama.grammar.json_schema.literals import OBJECT, Literal, refusal
from oxillama.grammar.json_schema.negation import alternatives
from oxillama.grammar.json_schema.unevaluated import KEYWORDS, Links, resolve

__all__ = [
    "Tableau",
]

MAX_BRANCHES = 2048
MAX_WORK = 20_000
LITERAL_UNITS = 10  # units of the budget for a literal
COMBINATIONS = "the schema, with all combinations of its alternatives,"


class Tableau:
    """Expands demands into branches, for one document. narrow: for mode "generate"."""

    def __init__(self, documents: Documents, budget: Budget, narrow: bool = False) -> None:
        self.documents = documents
        self.budget = budget
        self.narrow = narrow
        self.disjoint = Disjoint(documents, budget)
        self.work = 0
        self.links: Links | None = None  # kept once a schema has an unevaluated keyword

    def branches(self, literals: Iterable[Literal]) -> list[Branch]:
        """All ways to meet a demand. Raises GrammarError for schemas that can't be honoured."""
        done: list[Branch] = []
        self.work = 0
        self.links = None
        todo = [(Branch(), list(literals))]
        while todo:
            branch, demands = todo.pop()
            self.settle(branch, demands)
            if not branch.types:
                continue
            if not branch.forks:
                if self.links is not None:
                    self.budget.spend(2 * len(branch.unevaluated) * len(self.links.parents), COMBINATIONS)
                    resolve(self.documents, branch, self.links)
                done.append(branch)
                continue
            fork = min(branch.forks, key=len)
            branch.forks.remove(fork)
            self.budget.spend(len(fork) * (4 + (len(branch.seen) + len(branch.objects)) // 16), COMBINATIONS)
            todo += [(branch.copy(), list(way)) for way in reversed(fork)]
            if len(done) + len(todo) > MAX_BRANCHES:
                raise self.too_many(fork[0][0])
        return done

    def too_many(self, literal: Literal) -> GrammarError:
        return refusal(literal.path, "schema", f"its alternatives have more than {MAX_BRANCHES} combinations")

    def settle(self, branch: Branch, demands: list[Literal]) -> None:
        """Adds all demands with one way. Forks that are left have at least two."""
        while True:
            while demands and branch.types:
                literal = demands.pop()
                if literal.key not in branch.seen:
                    branch.seen.add(literal.key)
                    self.work += 1
                    self.budget.spend(LITERAL_UNITS, COMBINATIONS)
                    if self.work > MAX_WORK:
                        raise self.too_many(literal)
                    self.add(branch, literal, demands)
            if not branch.types or not branch.forks:
                return
            forks = [self.possible(branch, fork) for fork in branch.forks]
            branch.forks = [fork for fork in forks if len(fork) > 1]
            if not all(forks):
                branch.types = 0
                return
            demands += [literal for fork in forks if len(fork) == 1 for literal in fork[0]]
            if not demands:
                return

    def possible(self, branch: Branch, fork: Fork) -> Fork:
        """The ways of a fork that the types allow; [[]] if one of them holds already."""
        self.budget.spend(2 * len(fork), COMBINATIONS)
        if self.links is None and any(all(literal.key in branch.seen for literal in way) for way in fork):
            return [[]]
        ways = [way for way in fork if all(self.disjoint.types(literal) & branch.types for literal in way)]
        if len(ways) < 2 or not branch.objects:
            return ways
        held = branch.held
        self.budget.spend(held.size // 4 + len(ways), COMBINATIONS)
        if self.links is None and branch.types == OBJECT and any(all(map(held.implies, way)) for way in ways):
            return [[]]
        return [way for way in ways if not any(map(held.excludes, way))]

    def add(self, branch: Branch, literal: Literal, demands: list[Literal]) -> None:
        """Adds a literal to a branch; its own demands are appended to `demands`, or to the forks."""
        schema = literal.schema
        if isinstance(schema, bool):
            if schema != literal.positive:
                branch.types = 0
            return
        if not isinstance(schema, dict):
            raise refusal(literal.path, "schema", f"it is an object or a boolean, not {type(schema).__name__}")
        if self.documents.id_key in schema:
            literal = literal._replace(base=self.documents.base_of(schema, literal.base))
        if not literal.positive:
            if isinstance(schema.get("oneOf"), list):
                self.budget.spend(len(schema["oneOf"]) ** 2, COMBINATIONS)
            branch.forks.append(alternatives(self.documents, literal))
            return
        if "$ref" in schema and self.documents.early:
            demands.append(self.documents.resolve(literal, "$ref"))
            return
        if self.links is None and not self.documents.early and any(keyword in schema for keyword in KEYWORDS):
            self.links = Links()
        n_demands, n_forks = len(demands), len(branch.forks)
        parts: list[list[Literal]] = []
        for keyword, value in schema.items():
            if isinstance(value, list | dict):
                self.budget.spend(len(value), COMBINATIONS)
            handler = HANDLERS.get(keyword)
            if handler is not None:
                parts.append([])
                handler(self, branch, keyword, literal, parts[-1])
        demands += [demand for part in reversed(parts) for demand in part]  # the first keyword's are taken first
        if not OF_ARRAYS.isdisjoint(schema):
            branch.arrays.append(literal)
        if not OF_OBJECTS.isdisjoint(schema):
            branch.objects.append(literal)
        if self.links is not None:
            for way in ([one] for one in demands[n_demands:]):
                self.links.add(literal, way)
            for way in (way for fork in branch.forks[n_forks:] for way in fork):
                self.links.add(literal, way)
