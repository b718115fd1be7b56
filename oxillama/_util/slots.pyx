"""Quick construction of frozen dataclasses with slots.

Their `__init__` calls `object.__setattr__` for each field: more than a microsecond for a dozen. Compiled, since Python
has no quicker way past the frozen `__setattr__`.
"""

from dataclasses import MISSING as _MISSING, fields

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
    static PyObject *ox_empty(PyObject *type) {
        return PyType_GenericAlloc((PyTypeObject *)type, 0);
    }
    static void ox_fill_slot(PyObject *made, Py_ssize_t offset, PyObject *value) {
        *(PyObject **)((char *)made + offset) = value;
    }
    """
    Py_ssize_t ox_slot_offset(object descriptor)
    object ox_empty(object type)
    void ox_fill_slot(object made, Py_ssize_t offset, PyObject *value)

__all__ = ["SlotsMaker"]

cdef object MISSING = _MISSING

cdef enum:
    MOST_FIELDS = 32


cdef class SlotsMaker:
    """Makes instances of one frozen dataclass with slots from the values of some of its fields, in their order.

    Nothing is checked and no `__post_init__` runs: it is for code that knows what it gives.
    """

    cdef type _made
    cdef Py_ssize_t _n, _n_given
    cdef Py_ssize_t[MOST_FIELDS] _offsets
    cdef list _defaults        # of the fields that are not given, whose offsets come last
    cdef list _factories

    def __init__(self, type made, *given):
        """`given`: names of the fields whose values are given, the others have their defaults; none of them: all.

        Raises TypeError unless each field of `made`, at most 32, is a slot, given or with a default, and it has no
        `__post_init__`.
        """
        by_name = {field.name: field for field in fields(made)}
        names = list(given or by_name)
        self._made, self._n, self._n_given = made, len(by_name), len(names)
        if self._n > MOST_FIELDS or hasattr(made, "__post_init__"):
            raise TypeError(f"{made.__name__} has more than {MOST_FIELDS} fields, or a __post_init__")
        left = [name for name in by_name if name not in names]
        if len(names) + len(left) != self._n:
            raise TypeError(f"{given} are not fields of {made.__name__}, each once")
        for i, name in enumerate(names + left):
            self._offsets[i] = ox_slot_offset(getattr(made, name, MISSING))
            if self._offsets[i] < 0:
                raise TypeError(f"{made.__name__}.{name} is no slot: give the dataclass slots=True")
        self._defaults = [by_name[name].default for name in left]
        self._factories = [by_name[name].default_factory for name in left]
        for name, default, factory in zip(left, self._defaults, self._factories):
            if default is MISSING and factory is MISSING:
                raise TypeError(f"{made.__name__}.{name} has no default")

    def __call__(self, *values):
        """Raises TypeError for another number of values than fields are given."""
        cdef Py_ssize_t i
        if len(values) != self._n_given:
            raise TypeError(f"{self._made.__name__} is made of {self._n_given} values, not {len(values)}")
        made = ox_empty(self._made)
        for i in range(self._n):
            if i < self._n_given:
                value = values[i]
            else:
                value = self._defaults[i - self._n_given]
                if value is MISSING:
                    factory = self._factories[i - self._n_given]
                    value = [] if factory is list else factory()
            Py_INCREF(value)
            ox_fill_slot(made, self._offsets[i], <PyObject *> value)
        return made
