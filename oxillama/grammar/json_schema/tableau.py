"""Tableau: a schema as a list of branches, each a conjunction of keywords.

A demand is a conjunction of literals (a schema that must hold, or must not). This is a tableau: what has one way is
worked off first, then the alternatives (forks) in turn, the shortest list first, without those whose types are already
out. A branch that is left says which types there may be, and for each which schemas speak of it.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Any

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Budget
from oxillama.grammar.json_schema.branch import Branch, Fork, Key, PropertyFacts, Way, Ways
from oxillama.grammar.json_schema.disjoint import Disjoint
from oxillama.grammar.json_schema.documents import Documents
from oxillama.grammar.json_schema.keywords import HANDLERS, OF_ARRAYS, OF_OBJECTS
from oxillama.grammar.json_schema.literals import OBJECT, Literal, refusal
from oxillama.grammar.json_schema.negation import alternatives
from oxillama.grammar.json_schema.product import Examined, first_too_many
from oxillama.grammar.json_schema.unevaluated import KEYWORDS, Links, resolve

__all__ = [
    "Tableau",
]

MAX_BRANCHES = 2048
MAX_WORK = 20_000
MAX_PROBES = 6  # branches of a demand whose forks may be found to be independent
PROBED_SHARE = 8  # of the budget, a part that may be spent on finding that beside it
PRODUCT_UNITS = 100  # of the budget, that a literal of the search takes, about
LITERAL_UNITS = 10  # units of the budget for a literal
FORKING = frozenset(("anyOf", "oneOf", "if", "not", "dependencies", "dependentSchemas", "dependentRequired"))
MET = Fork([Way([])])
_N_WAYS = attrgetter("n")
COMBINATIONS = "the schema, with all combinations of its alternatives,"


class _Reading:
    """What the keywords of a schema lead to. size: how many parts their values have; special: keywords among them name
    a resource, replace others, or need links."""

    __slots__ = ("handlers", "of_arrays", "of_objects", "size", "special")

    def __init__(self, schema: dict[str, Any], documents: Documents) -> None:
        self.special = (
            documents.id_key in schema or (documents.early and "$ref" in schema) or not KEYWORDS.isdisjoint(schema)
        )
        found = [keyword for keyword in schema if keyword in HANDLERS]
        if "required" in found and _is_names(schema["required"]):
            found.remove("required")  # its handler looks for others
        self.handlers = [(keyword, HANDLERS[keyword]) for keyword in found]
        self.size = _size(schema)
        self.of_arrays = not OF_ARRAYS.isdisjoint(schema)
        self.of_objects = not OF_OBJECTS.isdisjoint(schema)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(type(name) is str for name in value)


def _size(schema: dict[str, Any]) -> int:
    return sum([len(value) for value in schema.values() if isinstance(value, list | dict)])


class Tableau:
    """Expands demands into branches, for one document. narrow: for mode "generate"."""

    def __init__(self, documents: Documents, budget: Budget, narrow: bool = False) -> None:
        self.documents = documents
        self.budget = budget
        self.probing = Budget(max(1, budget.limit // PROBED_SHARE))  # for all probes together
        self.narrow = narrow
        self.disjoint = Disjoint(documents, budget)
        self.work = 0
        self.readings: dict[int, _Reading] = {}  # by the identity of schemas, which the documents keep
        self.facts: dict[Key, PropertyFacts] = {}
        self.forks: dict[tuple[object, ...], Fork] = {}
        self.examined: list[Examined] | None = None  # what `possible` answers, while it is asked for
        self.links: Links | None = None  # kept once a schema has an unevaluated keyword

    def branches(self, literals: Iterable[Literal]) -> list[Branch]:
        """All ways to meet a demand. Raises GrammarError for schemas that can't be honoured."""
        done: list[Branch] = []
        self.work = 0
        self.links = None
        n_probes = MAX_PROBES
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
            if n_probes and self.links is None:
                n_probes -= 1
                self.find_too_many(branch, len(done) + len(todo))
            fork = min(branch.forks, key=_N_WAYS)
            at = branch.forks.index(fork)
            branch.forks = branch.forks[:at] + branch.forks[at + 1 :]
            self.budget.spend(fork.n * (4 + (len(branch.seen) + len(branch.objects)) // 16), COMBINATIONS)
            if len(done) + len(todo) + fork.n > MAX_BRANCHES:
                raise self.too_many(fork.ways[0].literals[0])
            todo += [(branch.copy(), way.literals[:]) for way in fork.ways[:0:-1]]
            todo.append((branch, fork.ways[0].literals[:]))
        return done

    def find_too_many(self, branch: Branch, n_known: int) -> None:
        """Raises GrammarError, as the search for all branches would, if the forks are independent and too many."""
        budget, work, found = self.budget, self.work, None
        self.budget = self.disjoint.budget = self.probing  # the search itself hasn't done this work
        with suppress(GrammarError):  # the search meets it in its turn
            found = first_too_many(branch, n_known, MAX_BRANCHES, self.probe)
        self.budget = self.disjoint.budget = budget
        is_linked, self.links = self.links is not None, None
        self.work, self.examined = work, None
        # What the search would do until then must not meet another limit before.
        if found is not None and not is_linked:
            fork, n_literals = found
            if work + n_literals <= MAX_WORK and PRODUCT_UNITS * n_literals <= budget.limit - budget.spent:
                raise self.too_many(fork.ways[0].literals[0])

    def probe(self, branch: Branch, literals: list[Literal]) -> list[Examined]:
        """Adds literals to a branch, and returns the forks that were held against it."""
        self.examined = []
        self.settle(branch, literals)
        return self.examined

    def combinations(self, literals: Iterable[Literal]) -> int:
        """A guess at the number of branches of a demand, as the number of bits of it; 0 for what can't be known yet."""
        bits = 0
        with suppress(GrammarError):
            for literal in literals:
                for part in self.disjoint.parts(literal):
                    schema = part.schema
                    if isinstance(schema, dict) and not FORKING.isdisjoint(schema):
                        bits += sum(
                            len(schema[keyword]).bit_length() if isinstance(schema[keyword], list) else 1
                            for keyword in FORKING
                            if keyword in schema
                        )
        return bits

    def spend(self, schema: dict[str, Any]) -> None:
        """Takes what a schema with one branch costs off the budget."""
        self.budget.spend(LITERAL_UNITS + _size(schema), COMBINATIONS)

    def too_many(self, literal: Literal) -> GrammarError:
        return refusal(literal.path, "schema", f"its alternatives have more than {MAX_BRANCHES} combinations")

    def settle(self, branch: Branch, demands: list[Literal]) -> None:
        """Adds all demands with one way. Forks that are left have at least two."""
        while True:
            while demands and branch.types:
                literal = demands.pop()
                key = literal.key
                if key not in branch.seen:
                    branch.seen.add(key)
                    branch.fresh.append(key)
                    self.work += 1
                    self.budget.spend(LITERAL_UNITS, COMBINATIONS)
                    if self.work > MAX_WORK:
                        raise self.too_many(literal)
                    self.add(branch, literal, demands)
            if not branch.types or not (branch.forks or branch.added):
                return
            self.check(branch, demands)
            if not demands:
                return

    def check(self, branch: Branch, demands: list[Literal]) -> None:
        """Drops the ways of forks that can't hold any more, and the forks that are met; demands what has one way left.
        Of the forks that were checked before, only those are looked at that new literals may concern."""
        if branch.types & OBJECT and branch.objects and branch.held.is_contradictory:
            branch.types &= ~OBJECT
        touched, fresh = branch.touched(), branch.fresh
        self.budget.spend(len(branch.forks), COMBINATIONS)
        left, single, is_dead = [], [], False
        unchanged = len(branch.forks)
        for i, fork in enumerate(branch.forks + branch.added):
            names = fork.names
            if (
                i >= unchanged
                or touched is None
                or names is None
                or not (names.isdisjoint(touched) and fork.keys.isdisjoint(fresh))
            ):
                fork = self.possible(branch, fork)
            if fork.n > 1:
                left.append(fork)
            elif fork.n:
                single.append(fork)
            else:
                is_dead = True
        branch.added, branch.fresh, branch.checked = [], [], (branch.types, len(branch.objects))
        branch.forks = left
        if is_dead:
            branch.types = 0
            return
        for fork in single:
            demands += fork.ways[0].literals

    def possible(self, branch: Branch, fork: Fork) -> Fork:
        """The ways of a fork that the types allow; one without literals if any of them holds already."""
        self.budget.spend(2 * fork.n, COMBINATIONS)
        types, seen = branch.types, branch.seen
        if self.links is None:
            for way in fork.ways:
                if way.keys <= seen:
                    return MET
        ways = fork.fitting.get(types)
        if ways is None:
            ways = [way for way in fork.ways if all(self.disjoint.types(one) & types for one in way.literals)]
            fork.fitting[types] = ways
        if len(ways) > 1 and branch.objects:
            held = branch.held
            self.budget.spend(held.size // 4 + len(ways), COMBINATIONS)
            if fork.has_claims:
                if self.links is None and types == OBJECT:
                    for way in ways:
                        if way.absent is not None and held.lacks(way.absent):
                            return MET
                ways = [way for way in ways if not (way.claims and any(map(held.excludes, way.claims)))]
            if fork.has_tags and types == OBJECT:
                ways = [way for way in ways if not (way.tags and held.contradicts(way))]
        if self.examined is not None:
            self.examined.append((fork, ways, branch.facts))
        return fork if len(ways) == fork.n else Fork(ways, fork)

    def facts_of(self, literal: Literal) -> PropertyFacts:
        found = self.facts.get(literal.key)
        if found is None:
            found = self.facts[literal.key] = PropertyFacts(literal)
        return found

    def fork(self, literal: Literal, tag: object, ways: Ways | Callable[[], Ways]) -> Fork:
        """A fork of a literal, made once in this document. tag: which of its forks; ways: or a function that makes them
        when they are first needed."""
        key = (literal.key, tag, self.links is None)
        found = self.forks.get(key)
        if found is None:
            found = self.forks[key] = Fork([Way(way) for way in (ways() if callable(ways) else ways)])
        return found

    def add(self, branch: Branch, literal: Literal, demands: list[Literal]) -> None:
        """Adds a literal to a branch; its own demands are appended to `demands`, or to the forks."""
        schema = literal.schema
        reading = self.readings.get(id(schema)) if literal.positive else None
        if reading is None or reading.special:
            if isinstance(schema, bool):
                if schema != literal.positive:
                    branch.types = 0
                return
            if not isinstance(schema, dict):
                raise refusal(literal.path, "schema", f"it is an object or a boolean, not {type(schema).__name__}")
            if self.documents.id_key in schema:
                literal = literal.at_base(self.documents.base_of(schema, literal.base))
            if not literal.positive:
                self.negate(branch, literal)
                return
            if "$ref" in schema and self.documents.early:
                demands.append(self.documents.resolve(literal, "$ref"))
                return
            if self.links is None and not self.documents.early and not KEYWORDS.isdisjoint(schema):
                self.links = Links()
            reading = self.readings[id(schema)] = _Reading(schema, self.documents)
        n_demands, n_forks = len(demands), len(branch.added)
        self.budget.spend(reading.size, COMBINATIONS)
        parts: list[list[Literal]] = []
        part: list[Literal] = []
        for keyword, handler in reading.handlers:
            handler(self, branch, keyword, literal, part)
            if part:
                parts.append(part)
                part = []
        demands += [demand for part in reversed(parts) for demand in part]  # the first keyword's are taken first
        if reading.of_arrays:
            branch.arrays += (literal,)
        if reading.of_objects:
            branch.objects += (literal,)
            branch.facts += (self.facts_of(literal),)
        if self.links is not None:
            for way in ([one] for one in demands[n_demands:]):
                self.links.add(literal, way)
            for way in (way.literals for fork in branch.added[n_forks:] for way in fork.ways):
                self.links.add(literal, way)

    def negate(self, branch: Branch, literal: Literal) -> None:
        """Adds a schema that must not hold: the fork of the ways not to meet it."""
        schema = literal.schema
        if isinstance(schema.get("oneOf"), list):
            self.budget.spend(len(schema["oneOf"]) ** 2, COMBINATIONS)
        branch.added.append(self.fork(literal, "not", lambda: alternatives(self.documents, literal)))
