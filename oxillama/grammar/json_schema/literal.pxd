cimport cython


@cython.final
cdef class Literal:
    cdef readonly object schema, base, path
    cdef readonly bint positive
    cdef tuple known_key

    cdef tuple its_key(self)
