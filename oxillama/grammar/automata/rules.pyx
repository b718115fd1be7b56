"""`Rules`: a grammar as data, the form between any notation (GBNF, JSON schema) and the automaton.

An expression is an integer that one of the methods returned; it may be used any number of times, in any rule. All rules
are over bytes; `chars` takes alternatives of byte ranges, as UTF-8 divides a set of characters.

Counted repeats are copied out up to `copy_limit` states. Beyond that they are made of blocks whose number is counted in
binary by helper rules, so that a repeat of a thousand million costs a few dozen rules. With B copies to a block,
P(0) = x{B}, P(k+1) = P(k) P(k) count exactly; x{0,n} is "fewer than 2^k blocks, or 2^k blocks and then x{0,n - 2^k B}",
which never has more than about log2(n/B) readings alive at once.
"""

from libc.stdint cimport int32_t, int64_t

from oxillama.errors import GrammarError
from oxillama.grammar.automata.budget cimport Budget
from oxillama.grammar.automata.spelling cimport escapes, utf8
from oxillama.grammar.automata.turns cimport turn
from oxillama.grammar.automata.vectors cimport drop, push, reserve

MAX_COUNT = 10**18
TOO_MANY = "a grammar of so many parts"

cdef enum:
    MAX_SIZE = 1 << 28
    RULE_SIZE = 4
    MAX_TOKEN = 1 << 30
    MOST_KEPT = 1 << 15         # sequences of a set of characters that is looked for: hashing more takes milliseconds


cdef class Rules:
    """Rules over bytes, under construction. `names` are those of the rules, in order of their ids.

    copy_limit: states that a counted repeat may be copied out to. `automata`: of rules that are linked. budget: the
    work that making expressions, and compiling them, may take; a new one for None.
    """

    def __cinit__(self, int32_t copy_limit=1 << 14, Budget budget=None):
        self.copy_limit = max(copy_limit, 8)
        self.budget = Budget() if budget is None else budget
        self.names = []
        self._memo = {}
        self._repeats = {}
        self.automata = {}

    def __dealloc__(self):
        drop(&self.kind)
        drop(&self.a)
        drop(&self.b)
        drop(&self.pool)
        drop(&self.size)
        drop(&self.body)

    cdef int add(self, int kind, int32_t a, int32_t b, int64_t size) except -1:
        cdef Py_ssize_t n = self.kind.n + 1
        self.budget.spend(1, TOO_MANY)
        reserve(&self.kind, n)              # all the memory first: no expression is there in part
        reserve(&self.a, n)
        reserve(&self.b, n)
        reserve(&self.size, n)
        push(&self.kind, kind)
        push(&self.a, a)
        push(&self.b, b)
        push(&self.size, min(size, <int64_t> MAX_SIZE))
        return self.kind.n - 1

    cdef int check(self, int32_t expr) except -1:
        if not 0 <= expr < self.kind.n:
            raise IndexError(f"there is no expression {expr}")
        return 0

    cdef int group(self, int kind, object items) except -1:
        cdef Py_ssize_t start = self.pool.n
        cdef int64_t size = 1
        cdef int32_t item = -1
        cdef int n = 0
        for x in items:
            item = x
            self.check(item)
            push(&self.pool, item)
            size += self.size.at[item]
            turn(n)
            n += 1
        self.budget.spend(n >> 3, TOO_MANY)
        if n == 1:
            self.pool.n = start
            return item
        return self.add(kind, start, n, size)

    cdef int two(self, int kind, int32_t first, int32_t second) except -1:
        """`group` of two."""
        cdef Py_ssize_t start = self.pool.n
        self.check(first)
        self.check(second)
        push(&self.pool, first)
        push(&self.pool, second)
        return self.add(kind, start, 2, 1 + self.size.at[first] + self.size.at[second])

    def range(self, int low, int high):
        """One byte from low to high."""
        if not 0 <= low <= high <= 255:
            raise IndexError(f"{low}..{high} is no range of bytes")
        return self.add(RANGE, low, high, 1)

    def literal(self, bytes text not None):
        """Expression of these bytes, one after the other."""
        cdef Py_ssize_t start = self.pool.n
        cdef Py_ssize_t n = len(text)
        cdef Py_ssize_t i
        cdef const unsigned char *at = text
        self.budget.spend(n >> 4, TOO_MANY)
        reserve(&self.pool, start + n)
        for i in range(n):
            push(&self.pool, at[i])
            turn(i)
        return self.add(LITERAL, start, len(text), len(text) + 1)

    cdef int put_sequences(self, tuple sequences) except -1:
        cdef int low, high, n = 0
        for sequence in sequences:
            turn(n)
            n += 1
            push(&self.pool, len(sequence))
            for low, high in sequence:
                if not 0 <= low <= high <= 255:
                    raise IndexError(f"{low}..{high} is no range of bytes")
                push(&self.pool, low << 8 | high)
        return 0

    def chars(self, tuple sequences not None):
        """Any of the sequences, each a tuple of (low, high) for one byte after the other; none matches nothing."""
        cdef Py_ssize_t start = self.pool.n
        cdef bint kept = len(sequences) <= MOST_KEPT
        known = self._memo.get(sequences) if kept else None
        if known is not None:
            return known
        self.budget.spend(len(sequences), TOO_MANY)
        self.put_sequences(sequences)
        expr = self.add(CHARS, start, len(sequences), 1 + len(sequences))
        if kept:
            self._memo[sequences] = expr
        return expr

    def characters(self, tuple ascii not None, tuple beyond not None, bint escaped=False):
        """`chars` of these sequences, and behind them those of characters beyond ASCII: UTF-8, or what follows the
        backslash of JSON's escapes. beyond: sorted ranges that don't touch, without surrogates."""
        cdef Py_ssize_t start = self.pool.n
        cdef Py_ssize_t at
        cdef int32_t low, high
        cdef int n = len(ascii)
        known = self._memo.get((ascii, beyond, escaped))
        if known is not None:
            return known
        self.put_sequences(ascii)
        at = self.pool.n
        for low, high in beyond:
            if not 0x80 <= low <= high <= 0x10FFFF or (low < 0xE000 and high >= 0xD800):
                raise IndexError(f"{low}..{high} is no range of characters beyond ASCII")
            if escaped:
                escapes(&self.pool, low, high)
            else:
                utf8(&self.pool, low, high)
        while at < self.pool.n:
            at += 1 + self.pool.at[at]
            n += 1
        self.budget.spend(n, TOO_MANY)
        expr = self.add(CHARS, start, n, 1 + n)
        self._memo[ascii, beyond, escaped] = expr
        return expr

    def sequences(self, int32_t expr):
        """The sequences of an expression that `chars` or `characters` returned."""
        cdef Py_ssize_t at, k
        self.check(expr)
        if self.kind.at[expr] != CHARS:
            raise IndexError(f"{expr} is no set of characters")
        at = self.a.at[expr]
        found = []
        for _ in range(self.b.at[expr]):
            found.append(tuple([
                (self.pool.at[k] >> 8, self.pool.at[k] & 255) for k in range(at + 1, at + 1 + self.pool.at[at])
            ]))
            at += 1 + self.pool.at[at]
        return tuple(found)

    def seq(self, items):
        """One after the other; none at all is the empty text."""
        return self.group(SEQ, items)

    def alt(self, items):
        """Any of them; none at all matches nothing, not even the empty text."""
        return self.group(ALT, items)

    def repeat(self, int32_t expr, least, most=None):
        """`expr` from `least` to `most` times; None: without limit. Raises GrammarError for more than MAX_COUNT."""
        self.check(expr)
        if least < 0 or (most is not None and most < least):
            raise IndexError(f"{least} to {most} times")
        for count in (least, most or 0):
            if count > MAX_COUNT:
                raise GrammarError(f"a repeat of {count} times is more than the limit of {MAX_COUNT}: leave it open")
        expr, least, most = self._folded(expr, least, most)
        if least == 1 and most == 1:
            return expr
        times = max(least, most or 0, 1)
        if times > 1 and (self.size.at[expr] + RULE_SIZE) * times > self.copy_limit:
            made = self._count(expr, least, most)
        else:
            start = self.pool.n
            push(&self.pool, least)
            push(&self.pool, -1 if most is None else most)
            made = self.add(REPEAT, expr, start, (self.size.at[expr] + 1) * times + 1)
        self._repeats[made] = expr, least, most
        return made

    def graph(self, int n, edges, finals, common=(), int n_common=0):
        """Ways from node 0 of `n` to any of `finals`, along edges (node, expression, node); the first `n_common` nodes
        have all those of `common` (expression, node) as well."""
        cdef Py_ssize_t start = self.pool.n
        cdef int source, target, node
        cdef int32_t expr
        cdef int64_t size = n
        push(&self.pool, n)
        push(&self.pool, 0)
        for source, expr, target in edges:
            self.check(expr)
            if not (0 <= source < n and 0 <= target < n):
                raise IndexError(f"{source} or {target} is none of {n} nodes")
            push(&self.pool, source)
            push(&self.pool, expr)
            push(&self.pool, target)
            size += self.size.at[expr]
            turn(self.pool.n // 3)
        if not 0 <= n_common <= n:
            raise IndexError(f"{n_common} of {n} nodes can't have edges in common")
        for expr, target in common:
            self.check(expr)
            if not 0 <= target < n:
                raise IndexError(f"{target} is none of {n} nodes")
            for source in range(n_common):
                push(&self.pool, source)
                push(&self.pool, expr)
                push(&self.pool, target)
                turn(source)
            size += self.size.at[expr] * n_common
        self.pool.at[start + 1] = (self.pool.n - start - 2) // 3
        self.budget.spend((self.pool.n - start) >> 3, TOO_MANY)
        for node in finals:
            if not 0 <= node < n:
                raise IndexError(f"{node} is none of {n} nodes")
            push(&self.pool, node)
        return self.add(GRAPH, start, self.pool.n - start, size)

    cdef int table(self, const Ints *edges, const Ints *final) except -1:
        """`graph` of edges one behind the other; final: of each node whether a way may end there."""
        cdef Py_ssize_t start = self.pool.n
        cdef Py_ssize_t i
        cdef int64_t size = final.n
        push(&self.pool, final.n)
        push(&self.pool, edges.n // 3)
        for i in range(edges.n):
            push(&self.pool, edges.at[i])
            turn(i)
            if i % 3 == 1:
                size += self.size.at[edges.at[i]]
        self.budget.spend((self.pool.n - start) >> 3, TOO_MANY)
        for i in range(final.n):
            if final.at[i]:
                push(&self.pool, i)
        return self.add(GRAPH, start, self.pool.n - start, size)

    def _folded(self, expr, least, most):
        """A repeat of a repeat as one, where all counts in between can be had: (x{0,3}){2,4} is x{0,12}."""
        if expr not in self._repeats:
            return expr, least, most
        inner, low, high = self._repeats[expr]
        if not (low <= 1 or least == most) or 0 in (high, most):
            return expr, least, most
        top = None if high is None or most is None else high * most
        if low * least > MAX_COUNT or (top or 0) > MAX_COUNT:
            return expr, least, most
        return inner, low * least, top

    def _count(self, expr, least, most):
        """A repeat that is too large to copy out: exact blocks, then the optional rest."""
        cdef int32_t size = self.size.at[<int32_t> expr]
        if size > self.copy_limit // 64:
            expr, size = self.rule(self._helper(expr)), 1
        block = max(1, self.copy_limit // 8 // (size + RULE_SIZE))
        powers = [self._helper(self.repeat(expr, block, block))]
        while block << len(powers) <= max(least, most or 0):
            power = self.rule(powers[len(powers) - 1])
            powers.append(self._helper(self.seq((power, power))))
        exact = self._exactly(expr, least, block, powers)
        if most is None:
            return self.seq((exact, self.repeat(expr, 0)))
        return self.seq((exact, self._at_most(expr, most - least, block, powers)))

    def _exactly(self, expr, n, block, powers):
        parts = [self.rule(powers[k]) for k in range(len(powers)) if n // block >> k & 1]
        return self.seq((*parts, self.repeat(expr, n % block, n % block)))

    def _at_most(self, expr, n, block, powers):
        """x{0,n}. `fewer[k]` is x{0, 2^k block - 1}."""
        fewer = [self.repeat(expr, 0, block - 1)]
        for k in range(len(powers) - 1):
            last = self.rule(self._helper(fewer[k]))
            fewer[k] = last
            fewer.append(self.alt((last, self.seq((self.rule(powers[k]), last)))))
        steps = []
        while n >= block:
            k = ((n + 1) // block).bit_length() - 1 if (n + 1) // block else 0
            k = min(k, len(powers) - 1)
            if n + 1 == block << k:
                steps.append((k, None))
                n = 0
                break
            steps.append((k, powers[k]))
            n -= block << k
        whole = bool(steps) and steps[len(steps) - 1][1] is None
        rest = self.repeat(expr, 0, n) if not whole else fewer[steps.pop()[0]]
        for k, power in reversed(steps):
            rest = self.alt((fewer[k], self.seq((self.rule(power), self.rule(self._helper(rest))))))
        return rest

    def _helper(self, expr):
        rule = self.new_rule("")
        self.define(rule, expr)
        return rule

    cpdef int new_rule(self, str name) except -1:
        """A rule to be defined; helpers have no name. Returns its id."""
        if name is None:
            raise TypeError("a rule's name must be a str")
        reserve(&self.body, self.body.n + 1)
        self.names.append(name)
        push(&self.body, -1)
        return self.body.n - 1

    cpdef int define(self, int32_t rule, int32_t expr) except -1:
        self.check(expr)
        if not 0 <= rule < self.body.n:
            raise IndexError(f"there is no rule {rule}")
        self.body.at[rule] = expr
        return 0

    def linked(self, str name not None, automaton not None):
        """A rule that was compiled before, for other rules. Returns its id. `automaton` must take at least one byte."""
        rule = self.new_rule(name)
        self.link(rule, automaton)
        return rule

    def link(self, int32_t rule, automaton not None):
        """Defines a rule as one that was compiled before, for other rules; it must take at least one byte."""
        if automaton.nullable:
            raise IndexError("what may be empty can't be linked")
        # Stands for it in the nfa: some byte, and too large to be copied.
        self.define(rule, self.add(RANGE, 0, 255, MAX_SIZE))
        self.automata[rule] = automaton

    def linked_by(self, int32_t expr):
        """The automaton of the rule that an expression calls and does nothing else, if that is linked; or None."""
        self.check(expr)
        return self.automata.get(self.a.at[expr]) if self.kind.at[expr] == RULE else None

    cpdef int rule(self, int32_t rule, int calls=0) except -1:
        """Whatever the rule with this id matches; it may be defined later. calls: 0 for a copy of a small rule in
        loops, 1 for a call where a repeat is counted, 2 for a call everywhere."""
        if not 0 <= rule < self.body.n:
            raise IndexError(f"there is no rule {rule}")
        return self.add(RULE, rule, calls, 1)

    def token(self, int32_t token, bint negated=False):
        """One whole token: the one with this id, or any other one that doesn't end the text."""
        if token < 0:
            raise IndexError(f"there is no token {token}")
        return self.add(TOKEN, token, negated, 1)

    def control(self, but=()):
        """One whole token that is no text, but for these and for those that end the text."""
        cdef Py_ssize_t start = self.pool.n
        tokens = tuple(sorted(set(but)))
        known = self._memo.get(("control", tokens))
        if known is not None:
            return known
        for token in tokens:
            if not 0 <= token < MAX_TOKEN:
                raise IndexError(f"there is no token {token}")
        self.budget.spend(len(tokens), TOO_MANY)
        for token in tokens:
            push(&self.pool, token)
        expr = self.add(CONTROL, start, len(tokens), 1)
        self._memo["control", tokens] = expr
        return expr

    def is_defined(self, int32_t rule):
        return 0 <= rule < self.body.n and self.body.at[rule] >= 0
