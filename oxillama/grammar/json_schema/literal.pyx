"""`Literal`: a schema that must hold, or must not; what `oxillama.grammar.json_schema` combines and asks for keys."""

cimport cython


@cython.final
@cython.freelist(256)
cdef class Literal:
    """A schema that must hold, or must not (`positive`). base: the URI that its references start from; path: the place
    in its document."""

    def __cinit__(self, object schema, bint positive, object base, object path):
        self.schema, self.positive, self.base, self.path = schema, positive, base, path

    @property
    def key(self):
        """Key that is equal for equal demands: schemas are compared by identity."""
        return self.its_key()

    cdef tuple its_key(self):
        if self.known_key is None:
            self.known_key = (<Py_ssize_t> <void *> self.schema, self.positive, self.base)
        return self.known_key

    def sub(self, object schema, *keys, bint positive=True):
        """A schema below this one."""
        cdef object path = self.path
        for key in keys:
            path = (path, key)
        return Literal(schema, positive, self.base, path)

    def of_sign(self, bint positive):
        """Literal of the same schema, which must hold, or must not."""
        return Literal(self.schema, positive, self.base, self.path)

    def at_base(self, object base):
        """Literal of the same schema, whose references start from another URI."""
        return Literal(self.schema, self.positive, base, self.path)

    def of_schema(self, object schema):
        """Another schema in the same place."""
        return Literal(schema, self.positive, self.base, self.path)

    def __eq__(self, other):
        if not isinstance(other, Literal):
            return NotImplemented
        return self.key == other.key and self.path == other.path

    def __hash__(self):
        return hash(self.key)
