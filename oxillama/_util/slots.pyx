"""Quick construction of frozen dataclasses with slots.

Their `__init__` calls `object.__setattr__` for each field: more than a microsecond for a dozen. Compiled, since Python
has no quicker way past the frozen `__setattr__`.
"""

from dataclasses import MISSING, fields

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

cdef extern from *:
    """
    #include <structmember.h>
    static Py_ssize_t ox_slot_offset(PyObject *descriptor) {
        PyMemberDef *member;
        if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type))
            return -1;
        member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }
    static void ox_fill_slot(PyObject *made, Py_ssize_t offset, PyObject *value) {
        *(PyObject **)((char *)made + offset) = value;
    }
    """
    Py_ssize_t ox_slot_offset(object descriptor)
    void ox_fill_slot(object made, Py_ssize_t offset, PyObject *value)

__all__ = ["SlotsMaker"]

cdef enum:
    MOST_FIELDS = 32


cdef class SlotsMaker:
    """Makes instances of one frozen dataclass with slots from the values of all of its fields, in their order.

    Nothing is checked and no `__post_init__` runs: it is for code that knows what it gives.
    """

    cdef type _made
    cdef Py_ssize_t _n
    cdef Py_ssize_t[MOST_FIELDS] _offsets

    def __init__(self, type made):
        """Raises TypeError unless each field of `made`, at most 32, is a slot and it has no `__post_init__`."""
        names = [field.name for field in fields(made)]
        self._made, self._n = made, len(names)
        if self._n > MOST_FIELDS or hasattr(made, "__post_init__"):
            raise TypeError(f"{made.__name__} has more than {MOST_FIELDS} fields, or a __post_init__")
        for i, name in enumerate(names):
            self._offsets[i] = ox_slot_offset(getattr(made, name, MISSING))
            if self._offsets[i] < 0:
                raise TypeError(f"{made.__name__}.{name} is no slot: give the dataclass slots=True")

    def __call__(self, *values):
        """Raises TypeError for another number of values than fields."""
        cdef Py_ssize_t i
        if len(values) != self._n:
            raise TypeError(f"{self._made.__name__} has {self._n} fields, not {len(values)}")
        made = self._made.__new__(self._made)
        for i in range(self._n):
            value = values[i]
            Py_INCREF(value)
            ox_fill_slot(made, self._offsets[i], <PyObject *> value)
        return made
