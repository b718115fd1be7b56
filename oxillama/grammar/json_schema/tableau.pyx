# cython: boundscheck=True, wraparound=True
"""Tableau: a schema as a list of branches, each a conjunction of keywords.

A demand is a conjunction of literals (a schema that must hold, or must not). This is a tableau: what has one way is
worked off first, then the alternatives (forks) in turn, the shortest list first, without those whose types are already
out. A branch that is left says which types there may be, and for each which schemas speak of it.
"""

cimport cython

from oxillama._util.freeing import empty
from oxillama.errors import GrammarError
from oxillama.grammar.json_schema.disjoint import Disjoint
from oxillama.grammar.json_schema.keywords import HANDLERS, OF_ARRAYS, OF_OBJECTS
from oxillama.grammar.json_schema.literals import OBJECT, TYPES, refusal
from oxillama.grammar.json_schema.negation import alternatives
from oxillama.grammar.json_schema.product import first_too_many
from oxillama.grammar.json_schema.unevaluated import KEYWORDS, Links, resolve

from oxillama.grammar.json_schema.branch cimport Branch, Fork, KnownProperties, PropertyFacts, Way
from oxillama.grammar.automata.budget cimport Budget
from oxillama.grammar.json_schema.literal cimport Literal

cdef enum:
    MAX_BRANCHES = 2048
    MAX_WORK = 20_000
    PROBED_SHARE = 8        # of the budget, a part that may be spent on finding that forks are independent
    PRODUCT_UNITS = 100     # of the budget, that a literal of the search takes, about
    LITERAL_UNITS = 10      # units of the budget for a literal
    ABOUT_ARRAYS = 1        # what a keyword is about, as bits
    ABOUT_OBJECTS = 2
    UNEVALUATED = 4

MAX_PROBES = 6              # branches of a demand whose forks may be found to be independent
cdef frozenset FORKING = frozenset(
    ("anyOf", "oneOf", "if", "not", "dependencies", "dependentSchemas", "dependentRequired")
)
cdef dict READERS = HANDLERS
cdef dict SUBJECTS = {
    keyword: (
        (keyword in OF_ARRAYS) * ABOUT_ARRAYS
        | (keyword in OF_OBJECTS) * ABOUT_OBJECTS
        | (keyword in KEYWORDS) * UNEVALUATED
    )
    for keyword in OF_ARRAYS | OF_OBJECTS | KEYWORDS
}
cdef Fork MET = Fork([Way([])])
cdef frozenset NOTHING = frozenset()
cdef str COMBINATIONS = "the schema, with all combinations of its alternatives,"
cdef int OBJECTS = OBJECT


@cython.final
cdef class Reading:
    """Facts that the keywords of a schema lead to. size: how many parts their values have; special: keywords among them
    name a resource, replace others, or need links. types: bits of the types of `type`, where that is all that it
    says."""

    cdef list handlers
    cdef Py_ssize_t size
    cdef bint special, of_arrays, of_objects
    cdef int types

    def __init__(self, object schema, object documents):
        self.handlers = []
        self.special = documents.id_key in <dict> schema or (documents.early and "$ref" in <dict> schema)
        for keyword in schema:
            handler = READERS.get(keyword)
            if handler is not None and (keyword != "required" or not is_names(schema[keyword])):
                self.handlers.append((keyword, handler))  # that of `required` looks for other items than names
            kind = SUBJECTS.get(keyword)
            if kind is not None:
                self.of_arrays = self.of_arrays or kind & ABOUT_ARRAYS
                self.of_objects = self.of_objects or kind & ABOUT_OBJECTS
                self.special = self.special or kind & UNEVALUATED
        kind = (<dict> schema).get("type")
        self.types = TYPES.get(kind, 0) if isinstance(kind, str) and kind != "integer" else 0
        self.size = size_of(<dict> schema)


cdef bint is_names(object value) except -1:
    if not isinstance(value, list):
        return False
    for name in <list> value:
        if type(name) is not str:
            return False
    return True


cdef Py_ssize_t size_of(dict schema) except -1:
    cdef Py_ssize_t size = 0
    for value in schema.values():
        if isinstance(value, (list, dict)):
            size += len(value)
    return size


cdef class Tableau:
    """Expands demands into branches, for one document. narrow: for mode "generate"."""

    cdef readonly object documents, disjoint
    cdef readonly Budget budget, probing
    cdef readonly bint narrow
    cdef readonly Py_ssize_t work
    cdef readonly object links          # kept once a schema has an unevaluated keyword
    cdef dict readings                  # by the identity of schemas, which the documents keep
    cdef dict facts, forks, types
    cdef list examined                  # what `possible` answers, while it is asked for

    def __init__(self, object documents, Budget budget not None, bint narrow=False):
        self.documents = documents
        self.budget = budget
        self.probing = Budget(max(1, budget.limit // PROBED_SHARE))  # for all probes together
        self.narrow = narrow
        self.disjoint = Disjoint(documents, budget)
        self.types = self.disjoint.known_types
        self.readings, self.facts, self.forks = {}, {}, {}

    def branches(self, literals):
        """All ways to meet a demand. Raises GrammarError for schemas that can't be honoured."""
        cdef list done = []
        cdef list todo = [(Branch(), list(literals))]
        cdef Py_ssize_t n_probes = MAX_PROBES
        self.work = 0
        self.links = None
        try:
            while todo:
                self.branch_out(done, todo, &n_probes)
        except GrammarError:
            empty(todo, done)   # thousands of branches with their facts
            raise
        return done

    cdef int branch_out(self, list done, list todo, Py_ssize_t *n_probes) except -1:
        """Follows one branch to where it is done, or to the ways of its shortest fork."""
        cdef Branch branch
        cdef Fork fork
        cdef Way way
        cdef Py_ssize_t at
        branch, demands = <tuple> todo.pop()
        self.settle(branch, <list> demands)
        if not branch.types:
            return 0
        if not branch.forks:
            if self.links is not None:
                self.budget.spend(2 * len(branch.unevaluated) * len(self.links.parents), COMBINATIONS)
                resolve(self.documents, branch, self.links)
            done.append(branch)
            return 0
        if n_probes[0] and self.links is None:
            n_probes[0] -= 1
            self.find_too_many(branch, len(done) + len(todo))
        at = shortest(branch.forks)
        fork = branch.forks[at]
        branch.forks = branch.forks[:at] + branch.forks[at + 1:]
        self.budget.spend(fork.n * (4 + (len(branch.seen) + len(branch.objects)) // 16), COMBINATIONS)
        if len(done) + len(todo) + fork.n > MAX_BRANCHES:
            raise self.too_many((<Way> fork.ways[0]).literals[0])
        for way in fork.ways[:0:-1]:
            todo.append((branch.copy(), way.literals[:]))
        way = fork.ways[0]
        todo.append((branch, way.literals[:]))
        return 0

    cdef int find_too_many(self, Branch branch, Py_ssize_t n_known) except -1:
        """Raises GrammarError, as the search for all branches would, if the forks are independent and too many."""
        cdef Budget budget = self.budget
        cdef Py_ssize_t work = self.work
        cdef bint is_linked
        found = None
        self.budget = self.disjoint.budget = self.probing  # the search itself hasn't done this work
        try:
            found = first_too_many(branch, n_known, MAX_BRANCHES, self.probe)
        except GrammarError:  # the search meets it in its turn
            pass
        self.budget = self.disjoint.budget = budget
        is_linked, self.links = self.links is not None, None
        self.work, self.examined = work, None
        # What the search would do until then must not meet another limit before.
        if found is not None and not is_linked:
            fork, n_literals = found
            if work + n_literals <= MAX_WORK and PRODUCT_UNITS * n_literals <= budget.limit - budget.spent:
                raise self.too_many(fork.ways[0].literals[0])
        return 0

    def probe(self, Branch branch not None, list literals not None):
        """Adds literals to a branch, and returns the forks that were held against it."""
        self.examined = []
        self.settle(branch, literals)
        return self.examined

    def drop(self):
        """Frees what was kept, piece by piece."""
        self.disjoint.drop()
        empty(self.readings, self.facts, self.forks)

    def combinations(self, literals):
        """A guess at the number of branches of a demand, as the number of bits of it; 0 for what can't be known yet."""
        cdef Literal part
        bits = 0
        try:
            for literal in literals:
                for part in self.disjoint.parts(literal):
                    schema = part.schema
                    if isinstance(schema, dict) and not FORKING.isdisjoint(schema):
                        for keyword in FORKING:
                            if keyword in <dict> schema:
                                value = schema[keyword]
                                bits += len(value).bit_length() if isinstance(value, list) else 1
        except GrammarError:
            pass
        return bits

    def spend(self, schema):
        """Takes what a schema with one branch costs off the budget."""
        self.budget.spend(LITERAL_UNITS + size_of(<dict> schema), COMBINATIONS)

    cdef object too_many(self, Literal literal):
        return refusal(literal.path, "schema", f"its alternatives have more than {MAX_BRANCHES} combinations")

    cdef int settle(self, Branch branch, list demands) except -1:
        """Adds all demands with one way. Forks that are left have at least two."""
        cdef Literal literal
        cdef tuple key
        while True:
            while demands and branch.types:
                literal = demands.pop()
                key = literal.its_key()
                if key not in branch.seen:
                    branch.seen.add(key)
                    branch.fresh.append(key)
                    self.work += 1
                    self.budget.spend(LITERAL_UNITS, COMBINATIONS)
                    if self.work > MAX_WORK:
                        raise self.too_many(literal)
                    self.add(branch, literal, demands)
            if not branch.types or not (branch.forks or branch.added):
                return 0
            self.check(branch, demands)
            if not demands:
                return 0

    cdef int check(self, Branch branch, list demands) except -1:
        """Drops the ways of forks that can't hold any more, and the forks that are met; demands what has one way left.
        Of the forks that were checked before, only those are looked at that new literals may concern."""
        cdef list left = [], single = []
        cdef bint is_dead = False
        cdef Py_ssize_t i, unchanged = len(branch.forks)
        cdef Fork fork
        cdef object touched = None
        if branch.types & OBJECTS and branch.objects and branch.its_known().is_contradictory():
            branch.types &= ~OBJECTS
        if unchanged:
            touched = branch.touched()
        self.budget.spend(unchanged, COMBINATIONS)
        for i in range(unchanged + len(branch.added)):
            fork = branch.forks[i] if i < unchanged else branch.added[i - unchanged]
            if i >= unchanged or touched is None or is_concerned(fork, <frozenset> touched, branch.fresh):
                fork = self.possible(branch, fork)
            if fork.n > 1:
                left.append(fork)
            elif fork.n:
                single.append(fork)
            else:
                is_dead = True
        branch.added, branch.fresh = [], []
        branch.checked_types, branch.checked_objects = branch.types, len(branch.objects)
        branch.forks = left
        if is_dead:
            branch.types = 0
            return 0
        for fork in single:
            demands += (<Way> fork.ways[0]).literals
        return 0

    cdef Fork possible(self, Branch branch, Fork fork):
        """The ways of a fork that the types allow; one without literals if any of them holds already."""
        cdef list ways
        cdef Way way
        cdef KnownProperties held
        self.budget.spend(2 * fork.n, COMBINATIONS)
        if self.links is None:
            for way in fork.ways:
                if len(way.keys) <= len(branch.seen) and way.keys <= branch.seen:
                    return MET
        found = fork.fitting.get(branch.types)
        if found is None:
            found = fork.fitting[branch.types] = [way for way in fork.ways if self.allows(way, branch.types)]
        ways = <list> found
        if len(ways) > 1 and branch.objects:
            held = branch.its_known()
            self.budget.spend(held.size // 4 + len(ways), COMBINATIONS)
            fork.examine()
            if fork.has_claims:
                if self.links is None and branch.types == OBJECTS:
                    for way in ways:
                        way.examine()
                        if way.known_absent is not None and held.lacks(way.known_absent):
                            return MET
                ways = [way for way in ways if not is_excluded(way, held)]
            if fork.has_tags and branch.types == OBJECTS:
                ways = [way for way in ways if not is_contradicted(way, held)]
        if self.examined is not None:
            self.examined.append((fork, ways, branch.facts))
        return fork if len(ways) == fork.n else Fork(ways, fork)

    cdef bint allows(self, Way way, int types) except -1:
        """Whether values of these types may meet all literals of a way."""
        cdef Literal literal
        for literal in way.literals:
            known = self.types.get(literal.its_key())
            if not <int> (self.disjoint.types(literal) if known is None else known) & types:
                return False
        return True

    cdef PropertyFacts facts_of(self, Literal literal):
        cdef tuple key = literal.its_key()
        found = self.facts.get(key)
        if found is None:
            found = self.facts[key] = PropertyFacts(literal)
        return <PropertyFacts> found

    def fork(self, Literal literal not None, object tag, object ways):
        """A fork of a literal, made once in this document. tag: which of its forks; ways: lists of literals, or a
        function that makes them when they are first needed."""
        cdef tuple key = (literal.its_key(), tag, self.links is None)
        found = self.forks.get(key)
        if found is None:
            found = self.forks[key] = Fork([Way(way) for way in (ways() if callable(ways) else ways)])
        return found

    cdef int add(self, Branch branch, Literal literal, list demands) except -1:
        """Adds a literal to a branch; its own demands are appended to `demands`, or to the forks."""
        cdef Reading reading = None
        cdef Py_ssize_t n_demands = len(demands), n_forks = len(branch.added)
        if literal.positive:
            reading = self.readings.get(<Py_ssize_t> <void *> literal.schema)
        if reading is None or reading.special:
            literal = self.of_its_own(branch, literal, demands)
            if literal is None:
                return 0
            reading = self.readings.get(<Py_ssize_t> <void *> literal.schema)
            if reading is None:
                reading = Reading(literal.schema, self.documents)
                self.readings[<Py_ssize_t> <void *> literal.schema] = reading
        self.budget.spend(reading.size, COMBINATIONS)
        self.handle(branch, literal, reading, demands)
        if reading.of_arrays:
            branch.arrays += (literal,)
        if reading.of_objects:
            branch.objects += (literal,)
            branch.facts += (self.facts_of(literal),)
        if self.links is not None:
            for way in [[one] for one in demands[n_demands:]]:
                self.links.add(literal, way)
            for one in branch.added[n_forks:]:
                for each in (<Fork> one).ways:
                    self.links.add(literal, (<Way> each).literals)
        return 0

    cdef int handle(self, Branch branch, Literal literal, Reading reading, list demands) except -1:
        """Adds the keywords of a schema. The demands of the first are taken first: they come last."""
        cdef list parts = None, part = []
        for keyword, handler in reading.handlers:
            if keyword == "type" and reading.types:
                branch.types &= reading.types
                continue
            handler(self, branch, keyword, literal, part)
            if part:
                if parts is None:
                    parts = []
                parts.append(part)
                part = []
        if parts is not None:
            for part in reversed(parts):
                demands += part
        return 0

    cdef Literal of_its_own(self, Branch branch, Literal literal, list demands):
        """A literal with the base that it names, of which the keywords are still to be added; None for one that is
        done: a boolean, one that must not hold, a reference that replaces all else."""
        schema = literal.schema
        if isinstance(schema, bool):
            if schema != literal.positive:
                branch.types = 0
            return None
        if not isinstance(schema, dict):
            raise refusal(literal.path, "schema", f"it is an object or a boolean, not {type(schema).__name__}")
        if self.documents.id_key in <dict> schema:
            literal = literal.at_base(self.documents.base_of(schema, literal.base))
        if not literal.positive:
            self.negate(branch, literal)
            return None
        if "$ref" in <dict> schema and self.documents.early:
            demands.append(self.documents.resolve(literal, "$ref"))
            return None
        if self.links is None and not self.documents.early and not KEYWORDS.isdisjoint(schema):
            self.links = Links()
        return literal

    cdef int negate(self, Branch branch, Literal literal) except -1:
        """Adds a schema that must not hold: the fork of the ways not to meet it."""
        schema = literal.schema
        listed = (<dict> schema).get("oneOf")
        if isinstance(listed, list):
            self.budget.spend(len(listed) ** 2, COMBINATIONS)
        found = self.forks.get((literal.its_key(), "not", self.links is None))
        if found is None:
            found = self.fork(literal, "not", alternatives(self.documents, literal))
        branch.added.append(found)
        return 0


cdef Py_ssize_t shortest(list forks) except -1:
    """The place of the first of the forks with the fewest ways."""
    cdef Py_ssize_t i, found = 0
    for i in range(1, len(forks)):
        if (<Fork> forks[i]).n < (<Fork> forks[found]).n:
            found = i
    return found


cdef bint is_concerned(Fork fork, frozenset touched, list fresh) except -1:
    """Whether new literals, or what they say of properties, may matter to a fork."""
    fork.name()
    return fork.known_names is None or not (fork.known_names.isdisjoint(touched) and fork.known_keys.isdisjoint(fresh))


cdef bint is_excluded(Way way, KnownProperties held) except -1:
    way.examine()
    for claim in way.known_claims:
        if held.excludes(claim):
            return True
    return False


cdef bint is_contradicted(Way way, KnownProperties held) except -1:
    way.examine()
    return bool(way.known_tags) and held.contradicts(way)
