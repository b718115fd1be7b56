# cython: boundscheck=True, wraparound=True
"""Branch of a schema: a conjunction of keywords, with the known properties of its objects."""

cimport cython

from oxillama.grammar.json_schema.disjoint import scalars
from oxillama.grammar.json_schema.literals import ALL, OBJECT
from oxillama.grammar.json_schema.numbers import Numbers
from oxillama.grammar.json_schema.strings import Strings

from oxillama.grammar.json_schema.literal cimport Literal

cdef frozenset NOTHING = frozenset()
cdef object ANY_NUMBER = Numbers()
cdef object ANY_STRING = Strings()
cdef int ALL_TYPES = ALL
cdef int OBJECTS = OBJECT


# ---- what schemas say of properties


@cython.final
cdef class PropertyFacts:
    """Facts that a schema states of the properties of objects, found when first asked for: with no alternatives nothing
    asks. names: all allowed names, None for any. is_closed: it forbids others. size: number of its properties."""

    def __init__(self, Literal literal not None):
        self.literal = literal
        self.required = self.banned = NOTHING
        self.is_closed = (<dict> literal.schema).get("additionalProperties") is False

    cdef int examine(self) except -1:
        cdef dict schema = <dict> self.literal.schema
        if self.is_examined:
            return 0
        self.is_examined = True
        required = schema.get("required")
        if isinstance(required, list):
            self.required = frozenset([name for name in required if isinstance(name, str)])
        properties = schema.get("properties", {})
        if isinstance(properties, dict):
            self.size = 1 + len(<dict> properties)
            self.banned = frozenset([name for name, sub in (<dict> properties).items() if sub is False])
            if self.is_closed and not schema.get("patternProperties"):
                self.names = frozenset(properties)

    cdef frozenset its_spoken(self):
        """Properties that it names or requires."""
        cdef dict schema = <dict> self.literal.schema
        if self.known_spoken is None:
            lists = [schema[keyword] for keyword in ("required", "properties") if keyword in schema]
            found = [name for names in lists if isinstance(names, (list, dict)) for name in names]
            self.known_spoken = frozenset([name for name in found if isinstance(name, str)])
        return self.known_spoken

    cdef dict its_tags(self):
        """The values that properties may have if they are there, where they are listed."""
        if self.known_tags is None:
            self.known_tags = tags_of(<dict> self.literal.schema)
        return self.known_tags

    cdef frozenset its_values(self):
        """Each property with the keys of its schema (`value_keys`)."""
        if self.known_values is None:
            properties = (<dict> self.literal.schema).get("properties")
            found = properties.items() if isinstance(properties, dict) else ()
            base = self.literal.base
            self.known_values = frozenset([(name, key) for name, sub in found for key in value_keys(sub, base)])
        return self.known_values


cdef dict tags_of(dict schema):
    """The values that properties may have if they are there, where they are listed."""
    cdef dict found = {}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, sub in (<dict> properties).items():
            if isinstance(sub, dict) and ("const" in <dict> sub or "enum" in <dict> sub) and "$ref" not in <dict> sub:
                values = scalars(sub, None)
                if values is not None:
                    found[name] = values
    return found


cdef list value_keys(object schema, object base):
    """Keys of which two schemas have one in common if they are one object, or the same reference or simple type."""
    cdef list keys = [<Py_ssize_t> <void *> schema]
    if isinstance(schema, dict) and len(<dict> schema) == 1:
        for keyword in ("$ref", "type"):
            if keyword in <dict> schema:
                keys.append((base, keyword, repr(schema[keyword])))
    return keys


@cython.final
cdef class KnownProperties:
    """Properties of an object that are known from the schemas that hold. names: all allowed names, None for any.

    size: number of properties of all schemas.
    """

    def __init__(self, tuple facts not None, KnownProperties before=None):
        """before: of the first of the schemas. A branch asks at each of its forks, and has few new ones then."""
        cdef PropertyFacts one
        cdef Py_ssize_t i, n_before = 0
        self.facts = facts
        self.required = self.banned = NOTHING
        if before is not None:
            n_before = len(before.facts)
            self.required, self.banned = before.required, before.banned
            self.size, self.names = before.size, before.names
            if before.known_tags is not None:
                self.known_tags = common_tags(before.known_tags, facts[n_before:])
        for i in range(n_before, len(facts)):
            one = facts[i]
            one.examine()
            if one.required:
                self.required = self.required | one.required
            if one.banned:
                self.banned = self.banned | one.banned
            self.size += one.size
            if one.names is not None:
                self.names = one.names if self.names is None else self.names & one.names

    cdef frozenset its_values(self):
        """Each property with the keys of its schemas."""
        if self.known_values is None:
            if self.parts is not None:
                self.known_values = NOTHING.union(*[(<KnownProperties> one).its_values() for one in self.parts])
            else:
                self.known_values = NOTHING.union(*[(<PropertyFacts> one).its_values() for one in self.facts])
        return self.known_values

    cdef dict its_tags(self):
        """The values that properties may have by all schemas, where they are listed."""
        if self.known_tags is None:
            self.known_tags = common_tags({}, self.facts if self.parts is None else self.parts)
        return self.known_tags

    cdef frozenset impossible(self):
        """Properties that can't have any value."""
        if self.known_impossible is None:
            self.known_impossible = frozenset([name for name, values in self.its_tags().items() if not values])
        return self.known_impossible

    cdef bint is_contradictory(self) except -1:
        """Whether a required property can't have any value."""
        return not self.required.isdisjoint(self.impossible())

    cpdef bint contradicts(self, Way way) except -1:
        """Whether a required property can't have any of the values that a way lists for it."""
        cdef dict tags
        way.examine()
        if not way.known_required.isdisjoint(self.impossible()):
            return True
        tags = self.its_tags()
        for name, values in way.known_tags:
            known = tags.get(name)
            if known is not None and known.isdisjoint(values):
                if name in self.required or name in way.known_required:
                    return True
        return False

    def both(self, KnownProperties other not None):
        """Conjunction of two lists of schemas."""
        cdef KnownProperties found = KnownProperties(())
        found.required, found.banned = self.required | other.required, self.banned | other.banned
        found.size, found.names = self.size + other.size, self.names
        if other.names is not None:
            found.names = other.names if self.names is None else self.names & other.names
        found.parts = (self, other)
        return found

    cpdef bint excludes(self, Claim claim) except -1:
        """Whether a synthetic schema of objects can't hold: a required property would be forbidden, or have a forbidden
        value, or be absent."""
        if claim.besides is not None:
            return self.names is not None and self.names <= claim.besides | self.banned
        return (
            not claim.required.isdisjoint(self.banned)
            or not claim.required.isdisjoint(self.impossible())
            or (self.names is not None and not claim.required <= self.names)
            or not claim.absent.isdisjoint(self.required)
            or (bool(claim.other_values) and not self.its_values().isdisjoint(claim.other_values))
        )

    cpdef bint lacks(self, frozenset names) except -1:
        """Whether none of these properties may be there."""
        return (names if self.names is None else names & self.names) <= self.banned


cdef dict common_tags(dict known, tuple more):
    """The values that properties may have by all of these; `known` itself if none lists any more."""
    cdef dict found = known
    cdef dict tags
    for one in more:
        is_one = isinstance(one, PropertyFacts)
        tags = (<PropertyFacts> one).its_tags() if is_one else (<KnownProperties> one).its_tags()
        if tags and found is known:
            found = known.copy()
        for name, values in tags.items():
            found[name] = found[name] & values if name in found else values
    return found


# ---- alternatives


@cython.final
cdef class Claim:
    """Claim of a synthetic schema of objects. besides: names that the required property without a name doesn't have,
    None if there is no such property; other_values: each property that must be there with the keys of a schema that it
    must not meet."""

    def __init__(self, Literal literal not None):
        cdef dict schema = <dict> literal.schema
        cdef dict properties = schema.get("properties", {})
        self.besides = schema["\0property"][2] if "\0property" in schema else None
        self.required = frozenset(schema.get("required", ()))
        self.absent = frozenset([name for name, sub in properties.items() if sub is False])
        self.other_values = NOTHING
        if "required" in schema:
            negated = [
                (name, sub) for name, sub in properties.items() if isinstance(sub, dict) and sub.keys() == {"not"}
            ]
            self.other_values = frozenset(
                [(name, key) for name, sub in negated for key in value_keys(sub["not"], literal.base)]
            )


@cython.final
cdef class Way:
    """A conjunction of literals, one alternative of a fork. keys: of its literals.

    What the checks of branches ask of it again and again is found when it is first asked for, since most forks are
    decided by the types alone. claims: of its synthetic schemas of objects. absent: the properties that it says are
    absent, if it says nothing else; None otherwise. tags: properties with the values that it lists for them, if they
    are there; required: properties that must be.
    """

    def __init__(self, list literals not None):
        self.literals = literals
        self.keys = frozenset([(<Literal> literal).its_key() for literal in literals])

    @property
    def claims(self):
        self.examine()
        return self.known_claims

    @property
    def absent(self):
        self.examine()
        return self.known_absent

    cdef int examine(self) except -1:
        cdef Literal one
        cdef list synthetic, plain
        if self.is_examined:
            return 0
        synthetic = [one for one in self.literals if one.positive and is_synthetic(one.schema)]
        self.known_claims = [Claim(one) for one in synthetic if one.schema["\0types"] == OBJECTS]
        if len(synthetic) == len(self.literals) and all([says_absent(<dict> one.schema) for one in synthetic]):
            self.known_absent = frozenset([name for one in synthetic for name in one.schema["properties"]])
        # Drafts may ignore what is beside a reference.
        plain = [
            one.schema
            for one in self.literals
            if one.positive and isinstance(one.schema, dict) and "$ref" not in <dict> one.schema
        ]
        self.known_tags = [pair for schema in plain for pair in tags_of(<dict> schema).items()]
        lists = [schema["required"] for schema in plain if isinstance(schema.get("required"), list)]
        self.known_required = frozenset([name for names in lists for name in names if isinstance(name, str)])
        self.is_examined = True
        return 0


cdef bint is_synthetic(object schema) except -1:
    return isinstance(schema, dict) and "\0types" in <dict> schema


cdef bint says_absent(dict schema) except -1:
    if schema.keys() != {"\0types", "properties"}:
        return False
    for sub in (<dict> schema["properties"]).values():
        if sub is not False:
            return False
    return True


@cython.final
cdef class Fork:
    """Alternatives, of which one must hold.

    keys: of all their literals. names: properties that synthetic schemas among these name; None for any. fitting:
    by the bits of types, the ways that these allow; as far as it was asked for. has_claims: some way has a synthetic
    schema of objects, or says that properties are absent. has_tags: some way lists values of a property.
    """

    def __init__(self, list ways not None, Fork origin=None):
        """origin: a fork that these ways are left of. Its keys and names are kept, which is more than is needed."""
        self.ways = ways
        self.n = len(ways)
        self.origin = origin if origin is None or origin.origin is None else origin.origin
        self.fitting = {}

    cdef int examine(self) except -1:
        """Finds whether there are claims and tags."""
        cdef Way way
        if self.is_examined:
            return 0
        if self.origin is not None:
            self.origin.examine()
            self.has_claims, self.has_tags = self.origin.has_claims, self.origin.has_tags
        else:
            for way in self.ways:
                way.examine()
                self.has_claims = self.has_claims or way.known_claims or way.known_absent is not None
                self.has_tags = self.has_tags or way.known_tags
        self.is_examined = True
        return 0

    cdef int name(self) except -1:
        """Finds keys and names."""
        cdef Way way
        if self.is_named:
            return 0
        if self.origin is not None:
            self.origin.name()
            self.known_keys, self.known_names = self.origin.known_keys, self.origin.known_names
        else:
            self.known_keys = NOTHING.union(*[way.keys for way in self.ways])
            self.known_names = names_of(self.ways)
        self.is_named = True
        return 0


cdef frozenset names_of(list ways):
    cdef set found = set()
    cdef Way way
    cdef Literal literal
    for way in ways:
        for literal in way.literals:
            if literal.positive and is_synthetic(literal.schema):
                if "\0property" in <dict> literal.schema:
                    return None
                found.update((<dict> literal.schema).get("required", ()))
                found.update((<dict> literal.schema).get("properties", ()))
    return frozenset(found)


# ---- branches


@cython.final
cdef class Branch:
    """A conjunction of keywords.

    types: bits of the allowed types. numbers, strings: the demands on these. values: the only allowed numbers, without:
    excluded ones, written: spellings of listed ones. arrays, objects: the schemas about these. unevaluated: schemas
    with a keyword of that name. forks: alternatives that are still open, a list that never changes in place, so that
    copies share it. added: forks that weren't held against the branch yet. seen: literals that hold; fresh: those of
    them that came since the forks were held against the branch. facts: what each of `objects` says of properties.
    checked: types and number of objects then.
    """

    def __cinit__(self):
        self.types = self.checked_types = ALL_TYPES
        self.numbers, self.strings = ANY_NUMBER, ANY_STRING
        self.without = NOTHING
        self.written = {}
        self.arrays = self.objects = self.facts = self.unevaluated = ()
        self.forks, self.added, self.fresh = [], [], []

    def __init__(self):
        self.seen = set()

    @property
    def held(self):
        """The known properties."""
        return self.its_known()

    cdef KnownProperties its_known(self):
        if self.known is None or len(self.known.facts) != len(self.facts):
            self.known = KnownProperties(self.facts, self.known)
        return self.known

    cdef object touched(self):
        """Properties that objects which came since the forks were checked speak of; None if anything may matter."""
        cdef PropertyFacts one
        if self.checked_types != self.types:
            return None
        if self.checked_objects == len(self.objects):
            return NOTHING
        more = self.facts[self.checked_objects:]
        for one in more:
            if one.is_closed:
                return None
        if len(more) == 1:
            return (<PropertyFacts> more[0]).its_spoken()
        return NOTHING.union(*[(<PropertyFacts> one).its_spoken() for one in more])

    cpdef Branch copy(self):
        cdef Branch other = Branch.__new__(Branch)
        other.types, other.numbers, other.values, other.without = self.types, self.numbers, self.values, self.without
        other.written, other.strings, other.any_order = self.written, self.strings, self.any_order
        other.checked_types, other.checked_objects = self.checked_types, self.checked_objects
        other.arrays, other.objects, other.facts = self.arrays, self.objects, self.facts
        other.unevaluated, other.forks, other.known = self.unevaluated, self.forks, self.known
        other.added, other.fresh = self.added[:], self.fresh[:]
        other.seen = self.seen.copy()
        return other
