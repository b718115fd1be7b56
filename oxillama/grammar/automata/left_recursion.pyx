"""`LeftRecursion`: rules that begin with themselves, directly, through others, or behind something that may be empty.

`convert` is the left-corner transform of Rosenkrantz and Lewis (1970) on automata: begin with what any rule of the
group can begin with, and climb; having completed rule B, go on behind any place where a rule of the group begins with
B.
"""

from libc.stdint cimport int32_t

from oxillama.grammar.automata.nfa cimport CALL, EPS, MAX_CONVERTED, TAKEN, Nfa, too_large
from oxillama.grammar.automata.turns cimport turn
from oxillama.grammar.automata.vectors cimport Ints, drop, fill, push


cdef class LeftRecursion:
    """The groups of rules of an `Nfa` that begin with each other."""

    def __init__(self, Nfa nfa not None):
        self.nfa = nfa
        self.find_recursive()

    def __dealloc__(self):
        drop(&self.recursive)

    cdef int left_calls(self, int32_t rule, Ints *out, Ints *seen, int32_t mark) except -1:
        """The calls that a rule may begin with, as edges. Leaves `mark` in `seen` at the states before any byte."""
        cdef Nfa nfa = self.nfa
        cdef Ints todo = Ints(NULL, 0, 0)
        cdef int32_t s, e, kind
        cdef Py_ssize_t n_seen = 0
        out.n = 0
        try:
            push(&todo, nfa.start.at[rule])
            seen.at[nfa.start.at[rule]] = mark
            while todo.n:
                todo.n -= 1
                s = todo.at[todo.n]
                e = nfa.head.at[s]
                while e >= 0:
                    turn(n_seen)
                    n_seen += 1
                    kind = nfa.kind.at[e]
                    if kind == CALL and nfa.fruitful.at[nfa.value.at[e]] and nfa.good.at[nfa.to.at[e]]:
                        push(out, e)
                    if kind == EPS or (kind == CALL and nfa.nullable.at[nfa.value.at[e]]):
                        if seen.at[nfa.to.at[e]] != mark and nfa.good.at[nfa.to.at[e]]:
                            seen.at[nfa.to.at[e]] = mark
                            push(&todo, nfa.to.at[e])
                    e = nfa.next.at[e]
        finally:
            drop(&todo)
        return 0

    cdef int find_recursive(self) except -1:
        """Groups of rules that begin with each other: strongly connected components, by Tarjan's algorithm."""
        cdef Nfa nfa = self.nfa
        cdef Ints seen = Ints(NULL, 0, 0)
        cdef Ints out = Ints(NULL, 0, 0)
        cdef Ints index = Ints(NULL, 0, 0)
        cdef Ints low = Ints(NULL, 0, 0)
        cdef int32_t n = nfa.rules.body.n
        cdef int32_t first, rule, callee, member, i
        cdef int32_t count = 0
        cdef Py_ssize_t n_seen = 0
        path, open_rules = [], []
        lists = {}
        try:
            fill(&self.recursive, n, -1)
            fill(&seen, nfa.head.n, -1)
            fill(&index, n, -1)
            fill(&low, n, -1)
            for first in range(n):
                if nfa.start.at[first] < 0 or index.at[first] >= 0:
                    continue
                path.append(first)
                while path:
                    turn(n_seen)
                    n_seen += 1
                    rule = path[len(path) - 1]
                    if index.at[rule] < 0:
                        index.at[rule] = low.at[rule] = count
                        count += 1
                        open_rules.append(rule)
                        self.left_calls(rule, &out, &seen, rule)
                        lists[rule] = called = set()
                        for i in range(out.n):
                            called.add(nfa.value.at[out.at[i]])
                            turn(i)
                        if rule in lists[rule]:
                            self.recursive.at[rule] = rule
                        lists[rule] = iter(lists[rule])
                    for callee in lists[rule]:
                        turn(n_seen)
                        n_seen += 1
                        if index.at[callee] < 0:
                            path.append(callee)
                            break
                        if low.at[callee] < n:      # still open
                            low.at[rule] = min(low.at[rule], low.at[callee])
                    else:
                        path.pop()
                        del lists[rule]
                        if path:
                            callee = path[len(path) - 1]
                            low.at[callee] = min(low.at[callee], low.at[rule])
                        if low.at[rule] == index.at[rule]:
                            member = open_rules.pop()
                            alone = member == rule
                            while True:
                                low.at[member] = n
                                if not alone:
                                    self.recursive.at[member] = rule
                                if member == rule:
                                    break
                                member = open_rules.pop()
        finally:
            drop(&seen)
            drop(&out)
            drop(&index)
            drop(&low)
        return 0

    cdef list group(self, int32_t rule):
        """(rule, start, end) of all rules of a rule's group, as they were before any was converted."""
        cdef Nfa nfa = self.nfa
        cdef int32_t r
        if self.groups is None:
            self.groups = {}
            for r in range(nfa.rules.body.n):
                turn(r)
                if self.recursive.at[r] >= 0:
                    known = self.groups.setdefault(self.recursive.at[r], [])
                    known.append((r, nfa.start.at[r], nfa.end.at[r]))
        return self.groups[self.recursive.at[rule]]

    cdef int convert(self, int32_t goal) except -1:
        """Gives `goal` a start and an end in a copy of its group where nothing begins with a rule of the group.

        Each state has a copy for before the first byte, where such calls are left out, and one for afterwards.
        """
        cdef Nfa nfa = self.nfa
        cdef int32_t group = self.recursive.at[goal]
        cdef int32_t rule, start, end, s, here, e
        cdef bint begun
        cdef Py_ssize_t n_seen = 0
        cdef dict copies = {}
        cdef dict ends = {}
        cdef dict completed = {}
        cdef list todo = []
        members = self.group(goal)
        first, last = nfa.state(), nfa.state()
        for rule, start, end in members:
            completed[rule] = nfa.state()
            ends[end] = completed[rule]
            nfa.edge(first, EPS, 0, self.copy(start, False, copies, todo))
        nfa.edge(completed[goal], EPS, 0, last)
        while todo:
            s, begun = todo.pop()
            here = copies[s, begun]
            if begun and s in ends:
                nfa.edge(here, EPS, 0, ends[s])
            e = nfa.head.at[s]
            while e >= 0:
                turn(n_seen)
                n_seen += 1
                if nfa.good.at[nfa.to.at[e]]:
                    self.copy_edge(e, here, begun, group, copies, completed, todo)
                e = nfa.next.at[e]
        nfa.start.at[goal] = first
        nfa.end.at[goal] = last
        fill(&nfa.good, nfa.head.n, 1)
        return 0

    cdef int32_t copy(self, int32_t s, bint begun, dict copies, list todo) except -1:
        known = copies.get((s, begun))
        if known is None:
            known = copies[s, begun] = self.nfa.state()
            todo.append((s, begun))
        return known

    cdef int copy_edge(
        self, int32_t e, int32_t here, bint begun, int32_t group, dict copies, dict completed, list todo
    ) except -1:
        cdef Nfa nfa = self.nfa
        cdef int kind = nfa.kind.at[e]
        cdef int32_t value = nfa.value.at[e]
        cdef int32_t to = nfa.to.at[e]
        self.converted += 1
        nfa.rules.budget.spend(1, "a group of rules that begin with each other")
        if self.converted > MAX_CONVERTED:
            raise too_large()
        if kind == EPS:
            return nfa.edge(here, EPS, 0, self.copy(to, begun, copies, todo))
        if kind == CALL and not begun and nfa.nullable.at[value]:
            nfa.edge(here, EPS, 0, self.copy(to, False, copies, todo))
        if kind == CALL and not nfa.fruitful.at[value]:
            return 0
        to = self.copy(to, True, copies, todo)
        if kind == CALL and not begun and self.recursive.at[value] == group:
            return nfa.edge(completed[value], EPS, 0, to)
        # The way past a call that may be empty doesn't lead behind the first byte.
        return nfa.edge(here, TAKEN if kind == CALL and not begun else kind, value, to)
