cimport cython

from oxillama.grammar.json_schema.literal cimport Literal


@cython.final
cdef class PropertyFacts:
    cdef readonly Literal literal
    cdef frozenset required, names, banned
    cdef bint is_closed, is_examined
    cdef Py_ssize_t size
    cdef frozenset known_spoken, known_values
    cdef dict known_tags

    cdef int examine(self) except -1
    cdef frozenset its_spoken(self)
    cdef dict its_tags(self)
    cdef frozenset its_values(self)


@cython.final
cdef class KnownProperties:
    cdef readonly tuple facts
    cdef readonly frozenset required, names, banned
    cdef readonly Py_ssize_t size
    cdef tuple parts
    cdef frozenset known_values, known_impossible
    cdef dict known_tags

    cdef frozenset its_values(self)
    cdef dict its_tags(self)
    cdef frozenset impossible(self)
    cdef bint is_contradictory(self) except -1
    cpdef bint contradicts(self, Way way) except -1
    cpdef bint excludes(self, Claim claim) except -1
    cpdef bint lacks(self, frozenset names) except -1


@cython.final
cdef class Claim:
    cdef frozenset absent, besides, other_values, required


@cython.final
cdef class Way:
    cdef readonly list literals
    cdef readonly frozenset keys
    cdef bint is_examined
    cdef list known_claims, known_tags
    cdef frozenset known_absent, known_required

    cdef int examine(self) except -1


@cython.final
cdef class Fork:
    cdef readonly list ways
    cdef readonly Py_ssize_t n
    cdef Fork origin
    cdef dict fitting
    cdef bint is_examined, is_named
    cdef bint has_claims, has_tags
    cdef frozenset known_keys, known_names

    cdef int examine(self) except -1
    cdef int name(self) except -1


@cython.final
cdef class Branch:
    cdef public int types
    cdef public object numbers, strings, values
    cdef public frozenset without
    cdef public dict written
    cdef public tuple arrays, objects, facts, unevaluated
    cdef public bint any_order
    cdef public list forks, added, fresh
    cdef public set seen
    cdef int checked_types
    cdef Py_ssize_t checked_objects
    cdef KnownProperties known

    cdef KnownProperties its_known(self)
    cdef object touched(self)
    cpdef Branch copy(self)
