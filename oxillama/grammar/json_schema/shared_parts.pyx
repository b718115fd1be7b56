"""`Sharing`: JSON data whose equal parts are one object; the loops of `oxillama.grammar.json_schema.sharing`."""

from oxillama.errors import GrammarError

cdef frozenset TEXTS = frozenset((str,))

cdef enum:
    MAX_DEPTH = 400     # a level takes some hundred bytes of the C stack
    PARTS_PER_TURN = 1 << 10    # after which other threads have a turn


cdef class Sharing:
    """Parts that were met: by their content, and by the object that they were read from, with whether notes count.

    notes: keys whose texts don't count in a schema; maps: keys of dicts whose keys are names; values: keys of data.
    """

    cdef dict parts
    cdef dict read, read_exact
    cdef frozenset notes, maps, values
    cdef int depth, until_turn

    def __init__(self, frozenset notes not None, frozenset maps not None, frozenset values not None):
        self.notes, self.maps, self.values = notes, maps, values
        self.parts, self.read, self.read_exact = {}, {}, {}
        self.until_turn = PARTS_PER_TURN

    cpdef object of(self, object part, bint is_map, bint is_value):
        """The shared object of a dict or list. is_map: its keys are names; is_value: it is data and not a schema.
        Raises RecursionError for one that is too deep."""
        cdef dict read = self.read_exact if is_map or is_value else self.read
        cdef object place = <Py_ssize_t> <void *> part
        found = read.get(place)
        if found is not None:
            return found
        if self.depth >= MAX_DEPTH:
            raise RecursionError("the schema is too deep")
        self.depth += 1
        self.until_turn -= 1
        if self.until_turn < 0:
            self.until_turn = PARTS_PER_TURN
            with nogil:
                pass
        if type(part) is dict:
            found = self.of_dict(<dict> part, is_map, is_value)
        elif type(part) is list:
            found = self.of_list(<list> part, is_value)
        else:
            refuse_reserved(part)
            found = part
        self.depth -= 1
        read[place] = found
        return found

    cdef object of_dict(self, dict part, bint is_map, bint is_value):
        cdef bint exact = is_map or is_value
        cdef list key = [exact]
        cdef dict made = part           # copied when a part of it becomes another object
        for name, item in part.items():
            if isinstance(name, str) and is_reserved(name):
                raise reserved()
            kind = type(item)
            if kind is str:
                if exact or name not in self.notes:
                    key.append(name)
                    key.append(item)
                continue
            key.append(name)
            key.append(kind)
            if kind is dict or kind is list:
                found = self.of(
                    item, not exact and name in self.maps, is_value or (not is_map and name in self.values)
                )
                key.append(<Py_ssize_t> <void *> found)
                if found is not item:
                    if made is part:
                        made = part.copy()
                    made[name] = found
            else:
                key.append(scalar(item))
        return self.parts.setdefault(tuple(key), made)

    cdef object of_list(self, list part, bint is_value):
        cdef list key
        cdef list made = part
        cdef Py_ssize_t i
        if set(map(type, part)) == TEXTS:       # most lists, and some of thousands
            return self.parts.setdefault((TEXTS, is_value, *part), part)
        key = [list, is_value]
        for i in range(len(part)):
            item = part[i]
            kind = type(item)
            key.append(kind)
            if kind is dict or kind is list:
                found = self.of(item, False, is_value)
                key.append(<Py_ssize_t> <void *> found)
                if found is not item:
                    if made is part:
                        made = part.copy()
                    made[i] = found
            else:
                key.append(scalar(item))
        return self.parts.setdefault(tuple(key), made)


cdef inline bint is_reserved(name):
    return len(name) > 0 and name[0] == "\0"


cdef object reserved():
    return GrammarError("a key that begins with a zero byte (\\u0000) is not supported in a schema")


def refuse_reserved(schema):
    """Raises GrammarError for a key that begins with a zero byte, as those of the compiler's own schemas do, at any
    depth of a schema that may contain itself."""
    cdef set met = set()
    cdef list todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, (dict, list)) and id(part) not in met:
            met.add(id(part))
            if isinstance(part, dict) and any([isinstance(name, str) and is_reserved(name) for name in part]):
                raise reserved()
            todo.extend(part.values() if isinstance(part, dict) else part)


cdef inline object scalar(object item):
    """Key of a value within its type: 0.0 and -0.0 differ; of an unknown type each object is different."""
    if item is None or isinstance(item, (str, int)):
        return item
    if isinstance(item, (dict, list)):      # of a type of its own, which isn't shared
        refuse_reserved(item)
    return repr(item) if isinstance(item, float) else <Py_ssize_t> <void *> item
