"""Automata with empty moves, one per rule, whose edges may call other rules; and what must be known of them.

Everything works with worklists of its own: nesting and chains of any depth take memory, never the C stack.

*Called rules take at least one byte.* Where a rule may match nothing (`nullable`), its caller may also go past
the call. So a parser never calls and returns in place, and calls at one position end, unless a rule begins with itself:
those rules are converted by `left_recursion`.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

from oxillama.errors import GrammarError
from oxillama.grammar.automata.rules cimport ALT, CHARS, CONTROL, GRAPH, LITERAL, RANGE, REPEAT, RULE, SEQ, TOKEN, Rules
from oxillama.grammar.automata.turns cimport give_way, turn
from oxillama.grammar.automata.vectors cimport Ints, Map, drop, fill, forget, get, pair_key, push, put, reserve

TOO_LARGE = "the grammar"

cdef enum:
    MAX_STATES = 4000000
    PER_UNIT = 32               # states and edges for a unit of the budget
    LIVE_PER_UNIT = 6           # of one grammar, for a unit of what is left: they are in memory at once, 20 bytes each
    LOOP_COPY = 160             # states of a rule that loops may hold a copy of
    TINY = 10                   # and of one that is copied anywhere
    MAX_COPIES = 1 << 14        # copies times states


cdef object too_large():
    return GrammarError(
        f"the grammar needs more than {MAX_STATES} states, or {MAX_CONVERTED} moves where rules begin with each other: "
        "repeat less, or make these groups of rules smaller"
    )


cdef class Nfa:
    """Automata of the rules that `root` leads to."""

    def __init__(self, Rules rules not None, int32_t root):
        cdef Ints todo = Ints(NULL, 0, 0)
        cdef int32_t rule
        self.rules = rules
        self.most = LIVE_PER_UNIT * <Py_ssize_t> rules.budget.left
        fill(&self.start, rules.body.n, -1)
        fill(&self.end, rules.body.n, -1)
        self.find_inlined(root)
        try:
            self.use(root, &todo)
            while todo.n:
                todo.n -= 1
                rule = todo.at[todo.n]
                self.expand(rules.body.at[rule], self.start.at[rule], self.end.at[rule], &todo)
                give_way()          # a large rule may have taken a while
        finally:
            drop(&todo)
        self.find_nullable()
        self.find_good()

    cdef int settle(self) except -1:
        """Pays for all states and edges."""
        return self.rules.budget.spend((self.head.n + self.to.n) // PER_UNIT, TOO_LARGE)

    def __dealloc__(self):
        drop(&self.head)
        drop(&self.next)
        give_way()
        drop(&self.kind)
        drop(&self.value)
        give_way()
        drop(&self.to)
        drop(&self.start)
        drop(&self.end)
        drop(&self.inlined)
        drop(&self.nullable)
        drop(&self.fruitful)
        drop(&self.good)
        drop(&self.recipe)
        drop(&self.recipe_of)

    cdef int32_t state(self) except -1:
        if self.head.n >= MAX_STATES:
            raise too_large()
        if self.head.n + self.to.n >= self.most:
            self.rules.budget.spend(self.rules.budget.left + 1, TOO_LARGE)
        push(&self.head, -1)
        turn(self.head.n)
        return self.head.n - 1

    cdef int edge(self, int32_t source, int kind, int32_t value, int32_t target) except -1:
        if self.to.n >= 4 * MAX_STATES:
            raise too_large()
        if self.head.n + self.to.n >= self.most:
            self.rules.budget.spend(self.rules.budget.left + 1, TOO_LARGE)
        if self.to.n == self.to.room:           # of these four the same number is there, and room for it
            reserve(&self.kind, self.to.n + 1)
            reserve(&self.value, self.to.n + 1)
            reserve(&self.next, self.to.n + 1)
            reserve(&self.to, self.to.n + 1)
        self.kind.at[self.to.n] = kind
        self.value.at[self.to.n] = value
        self.to.at[self.to.n] = target
        self.next.at[self.to.n] = self.head.at[source]
        self.head.at[source] = self.to.n
        self.to.n += 1
        self.kind.n = self.value.n = self.next.n = self.to.n
        turn(self.to.n)
        return 0

    # ---- expressions to states

    cdef int use(self, int32_t rule, Ints *todo) except -1:
        if self.start.at[rule] < 0:
            self.start.at[rule] = self.state()
            self.end.at[rule] = self.state()
            push(todo, rule)
        return 0

    cdef int expand(self, int32_t expr, int32_t source, int32_t target, Ints *todo) except -1:
        """Puts an expression between two states. `times`: copies of loops around it, 0 where there is no loop."""
        cdef Ints tasks = Ints(NULL, 0, 0)
        cdef int32_t *t
        try:
            push(&tasks, expr)
            push(&tasks, source)
            push(&tasks, target)
            push(&tasks, 0)
            while tasks.n:
                tasks.n -= 4
                t = tasks.at + tasks.n
                self.one(&tasks, t[0], t[1], t[2], t[3], todo)
        finally:
            drop(&tasks)
        return 0

    cdef int one(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times, Ints *todo) except -1:
        cdef Rules r = self.rules
        cdef int kind = r.kind.at[expr]
        cdef int32_t a = r.a.at[expr]
        cdef int32_t b = r.b.at[expr]
        cdef int32_t here = source
        cdef int32_t following, i
        if kind == RANGE:
            return self.edge(source, BYTES, a << 8 | b, target)
        if kind == CHARS:
            return self.chars(expr, source, target)
        if kind == TOKEN:
            return self.edge(source, NOT_TOKEN if b else ONE_TOKEN, a, target)
        if kind == CONTROL:
            return self.edge(source, NO_TEXT, expr, target)
        if kind == REPEAT:
            return self.repeat(tasks, expr, source, target, times)
        if kind == GRAPH:
            return self.graph(tasks, expr, source, target, times)
        if kind == RULE:
            i = self.inlined.at[a]
            if b == 2 or (b == 1 and times > 1):
                i = 0
            if 0 < i <= TINY or (i and times and <int64_t> i * times <= MAX_COPIES):
                return self.task(tasks, r.body.at[a], source, target, times)
            self.use(a, todo)
            return self.edge(source, CALL, a, target)
        if kind == ALT:
            for i in range(b):
                self.task(tasks, r.pool.at[a + i], source, target, times)
                turn(i)
            return 0
        if b == 0:
            return self.edge(source, EPS, 0, target)
        for i in range(b):
            following = target if i == b - 1 else self.state()
            if kind == LITERAL:
                self.edge(here, BYTES, r.pool.at[a + i] << 8 | r.pool.at[a + i], following)
            else:
                self.task(tasks, r.pool.at[a + i], here, following, times)
            here = following
            turn(i)
        return 0

    cdef int task(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1:
        push(tasks, expr)
        push(tasks, source)
        push(tasks, target)
        push(tasks, times)
        return 0

    cdef int chars(self, int32_t expr, int32_t source, int32_t target) except -1:
        """Sequences of byte ranges with equal ends share the states of these ends."""
        cdef int32_t *edge
        cdef int32_t i, at, n_states, n_edges, base
        fill(&self.recipe_of, expr + 1, -1)
        if self.recipe_of.at[expr] < 0:
            self.recipe_of.at[expr] = self.chars_recipe(expr)
        at = self.recipe_of.at[expr]
        n_states, n_edges = self.recipe.at[at], self.recipe.at[at + 1]
        at += 2
        base = self.head.n
        for _ in range(n_states):
            self.state()
        for i in range(n_edges):
            edge = self.recipe.at + at + 3 * i
            self.edge(
                base + edge[0] if edge[0] >= 0 else source, BYTES, edge[1], base + edge[2] if edge[2] >= 0 else target
            )
        return 0

    cdef int32_t chars_recipe(self, int32_t expr) except -1:
        """A place in `recipe`. There are numbers of states and edges, and (source, range, target) of each edge; -1 is
        either end of the whole.

        Kept, since a counted repeat copies the same characters many times.
        """
        cdef Rules r = self.rules
        cdef int32_t at = r.a.at[expr]
        cdef int32_t here, n, i, known, n_shared = 0
        cdef uint64_t key
        cdef Py_ssize_t start = self.recipe.n
        cdef Map shared = Map(NULL, NULL, 0, 0)     # range, state behind it: the state before it
        push(&self.recipe, 0)
        push(&self.recipe, 0)
        try:
            for _ in range(r.b.at[expr]):
                n = r.pool.at[at]
                here = -1
                for i in range(n, 0, -1):
                    key = pair_key(r.pool.at[at + i], here)
                    known = get(&shared, key) if i > 1 else -1
                    if known >= 0:
                        here = known
                        continue
                    push(&self.recipe, n_shared if i > 1 else -1)
                    push(&self.recipe, r.pool.at[at + i])
                    push(&self.recipe, here)
                    if i > 1:
                        put(&shared, key, n_shared)
                        here = n_shared
                        n_shared += 1
                at += n + 1
        finally:
            forget(&shared)
        self.recipe.at[start] = n_shared
        self.recipe.at[start + 1] = (self.recipe.n - start - 2) // 3
        return start

    cdef int repeat(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1:
        cdef Rules r = self.rules
        cdef int32_t inner = r.a.at[expr]
        cdef int32_t least = r.pool.at[r.b.at[expr]]
        cdef int32_t most = r.pool.at[r.b.at[expr] + 1]
        cdef int32_t here = source
        cdef int32_t following
        times = min(max(times, 1) * max(least, most, 1), <int32_t> MAX_COPIES)
        for _ in range(least):
            following = self.state()
            self.task(tasks, inner, here, following, times)
            here = following
        if most < 0:
            following = self.state()
            self.edge(here, EPS, 0, following)
            self.task(tasks, inner, following, following, times)
            return self.edge(following, EPS, 0, target)
        for _ in range(least, most):
            following = self.state()
            self.edge(here, EPS, 0, target)
            self.task(tasks, inner, here, following, times)
            here = following
        return self.edge(here, EPS, 0, target)

    cdef int graph(self, Ints *tasks, int32_t expr, int32_t source, int32_t target, int32_t times) except -1:
        """A state for each node; the first one is new too, since ways may lead back to it."""
        cdef Rules r = self.rules
        cdef int32_t at = r.a.at[expr]
        cdef int32_t n = r.pool.at[at]
        cdef int32_t edges_end = at + 2 + 3 * r.pool.at[at + 1]
        cdef int32_t first = self.state()
        cdef int32_t i
        for _ in range(1, n):
            self.state()
        self.edge(source, EPS, 0, first)
        for i in range(at + 2, edges_end, 3):
            self.task(tasks, r.pool.at[i + 1], first + r.pool.at[i], first + r.pool.at[i + 2], times)
            turn(i)
        for i in range(edges_end, at + r.b.at[expr]):
            self.edge(first + r.pool.at[i], EPS, 0, target)
        return 0

    # ---- rules that are copied instead of called

    cdef int references(self, int32_t rule, Ints *out) except -1:
        """The rules that a rule names, each occurrence; every expression is looked at once."""
        cdef Rules r = self.rules
        cdef Ints tasks = Ints(NULL, 0, 0)
        cdef int32_t expr, i
        cdef Py_ssize_t n_seen = 0
        out.n = 0
        try:
            push(&tasks, r.body.at[rule])
            while tasks.n:
                tasks.n -= 1
                expr = tasks.at[tasks.n]
                turn(n_seen)
                n_seen += 1
                if r.kind.at[expr] == RULE:
                    push(out, r.a.at[expr])
                elif r.kind.at[expr] == REPEAT:
                    push(&tasks, r.a.at[expr])
                elif self.looked_at.at[expr] == rule:
                    continue
                elif r.kind.at[expr] == GRAPH:
                    self.looked_at.at[expr] = rule
                    for i in range(r.pool.at[r.a.at[expr] + 1]):
                        push(&tasks, r.pool.at[r.a.at[expr] + 3 + 3 * i])
                        turn(i)
                elif r.kind.at[expr] == SEQ or r.kind.at[expr] == ALT:
                    self.looked_at.at[expr] = rule
                    for i in range(r.b.at[expr]):
                        push(&tasks, r.pool.at[r.a.at[expr] + i])
                        turn(i)
        finally:
            drop(&tasks)
        return 0

    cdef int find_inlined(self, int32_t root) except -1:
        """Sizes, callees first; a rule that may lead back to itself gets none."""
        cdef Rules r = self.rules
        cdef Ints out = Ints(NULL, 0, 0)
        cdef int32_t rule, callee, i
        cdef int64_t size
        cdef Py_ssize_t n_done = 0
        fill(&self.inlined, r.body.n, -1)          # not seen; -2: open
        fill(&self.looked_at, r.kind.n, -1)
        stack = [root]
        lists = {}
        try:
            while stack:
                turn(n_done)
                n_done += 1
                rule = stack[len(stack) - 1]
                if r.body.at[rule] < 0:
                    raise GrammarError(f"the rule {r.names[rule]!r} is used but never defined")
                if self.inlined.at[rule] == -1:
                    self.inlined.at[rule] = -2
                    self.references(rule, &out)
                    lists[rule] = called = []
                    for i in range(out.n):
                        called.append(out.at[i])
                        if self.inlined.at[out.at[i]] == -1:
                            stack.append(out.at[i])
                        turn(i)
                    continue
                stack.pop()
                if self.inlined.at[rule] != -2:
                    continue
                size = r.size.at[r.body.at[rule]]
                for callee in lists.pop(rule):
                    # An open callee leads back here. One such rule on every circle is enough to end the copying.
                    size += LOOP_COPY if self.inlined.at[callee] == -2 else max(self.inlined.at[callee], 1) - 1
                self.inlined.at[rule] = size if size <= LOOP_COPY else 0
        finally:
            drop(&out)
            drop(&self.looked_at)
        return 0

    # ---- what can be empty, and what can end

    cdef int find_nullable(self) except -1:
        """Spreads over empty moves from every rule's start; a call opens once its rule is found to be nullable."""
        cdef Py_ssize_t n_seen = 0
        cdef Ints todo = Ints(NULL, 0, 0)
        cdef Ints reached = Ints(NULL, 0, 0)
        cdef Ints owner = Ints(NULL, 0, 0)
        cdef int32_t rule, s, e
        waiting = {}
        try:
            fill(&self.nullable, self.rules.body.n, 0)
            fill(&reached, self.head.n, 0)
            fill(&owner, self.head.n, -1)
            for rule in range(self.rules.body.n):
                if self.start.at[rule] >= 0:
                    owner.at[self.end.at[rule]] = rule
                    reached.at[self.start.at[rule]] = 1
                    push(&todo, self.start.at[rule])
            while todo.n:
                todo.n -= 1
                s = todo.at[todo.n]
                rule = owner.at[s]
                if rule >= 0 and not self.nullable.at[rule]:
                    self.nullable.at[rule] = 1
                    for e in waiting.pop(rule, ()):
                        if not reached.at[e]:
                            reached.at[e] = 1
                            push(&todo, e)
                e = self.head.at[s]
                while e >= 0:
                    turn(n_seen)
                    n_seen += 1
                    if self.kind.at[e] == CALL and not self.nullable.at[self.value.at[e]]:
                        waiting.setdefault(self.value.at[e], []).append(self.to.at[e])
                    elif self.kind.at[e] in (EPS, CALL) and not reached.at[self.to.at[e]]:
                        reached.at[self.to.at[e]] = 1
                        push(&todo, self.to.at[e])
                    e = self.next.at[e]
        finally:
            drop(&todo)
            drop(&reached)
            drop(&owner)
        return 0

    cdef int find_good(self) except -1:
        """Spreads backwards from every rule's end; a call counts once its rule is found to match anything at all."""
        cdef Py_ssize_t n_seen = 0
        cdef Ints todo = Ints(NULL, 0, 0)
        cdef Ints into = Ints(NULL, 0, 0)
        cdef Ints back = Ints(NULL, 0, 0)       # of each edge: its source, and the edge before it into its target
        cdef Ints owner = Ints(NULL, 0, 0)
        cdef int32_t rule, s, e
        waiting = {}
        try:
            fill(&self.good, self.head.n, 0)
            fill(&self.fruitful, self.rules.body.n, 0)
            fill(&into, self.head.n, -1)
            fill(&owner, self.head.n, -1)
            fill(&back, 2 * self.to.n, -1)
            for s in range(self.head.n):
                e = self.head.at[s]
                while e >= 0:
                    turn(n_seen)
                    n_seen += 1
                    back.at[2 * e] = s
                    back.at[2 * e + 1] = into.at[self.to.at[e]]
                    into.at[self.to.at[e]] = e
                    e = self.next.at[e]
            for rule in range(self.rules.body.n):
                if self.start.at[rule] >= 0:
                    owner.at[self.start.at[rule]] = rule
                    self.good.at[self.end.at[rule]] = 1
                    push(&todo, self.end.at[rule])
            while todo.n:
                todo.n -= 1
                s = todo.at[todo.n]
                rule = owner.at[s]
                if rule >= 0 and not self.fruitful.at[rule]:
                    self.fruitful.at[rule] = 1
                    for e in waiting.pop(rule, ()):
                        if not self.good.at[e]:
                            self.good.at[e] = 1
                            push(&todo, e)
                e = into.at[s]
                while e >= 0:
                    turn(n_seen)
                    n_seen += 1
                    if self.kind.at[e] == CALL and not self.fruitful.at[self.value.at[e]]:
                        waiting.setdefault(self.value.at[e], []).append(back.at[2 * e])
                    elif not self.good.at[back.at[2 * e]]:
                        self.good.at[back.at[2 * e]] = 1
                        push(&todo, back.at[2 * e])
                    e = back.at[2 * e + 1]
        finally:
            drop(&todo)
            drop(&into)
            drop(&back)
            drop(&owner)
        return 0
