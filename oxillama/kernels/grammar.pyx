"""`Masks`: which tokens of a vocabulary may come next, as sets of bits.

A mask is put together from the states on top of the stacks. For each state there is an *entry*, computed once: the
tokens that it allows whatever lies below, and the places in the trie where its rule may end in the middle of a token
(*escapes*). Only the few tokens below these places depend on the rest of the stacks, and are walked for each node. (The
division into tokens that the top decides and others is that of Dong et al. 2024, XGrammar; here entries are made when
first needed.) Entries of rules that don't lead back to themselves are shared by all grammars over a vocabulary, under
a signature of what the rule is compiled to: a string is a string in every schema.

Whole masks are kept by node. All caches are bounded, and what they give doesn't depend on what is in them.
"""

import array
import hashlib

from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcmp, memset

from oxillama.errors import GrammarError
from oxillama.kernels._vectors cimport Ints, drop, push
from oxillama.kernels.grammar_automaton cimport Automaton
from oxillama.kernels.grammar_stacks cimport Stacks
from oxillama.kernels.grammar_trie cimport PLAIN_CHARS, TokenTrie, Trie

cdef enum:
    MUCH_BELOW = 20000          # nodes of the trie below escapes: from here on, walking whole stacks costs less
    MANY_NODES = 8              # different nodes after one plain character

# UTF-8 (RFC 3629, section 4) as an automaton: phase, low, high, next phase. A plain character begins and ends in 0.
UTF8 = (
    (0, 0x20, 0x21, 0), (0, 0x23, 0x5B, 0), (0, 0x5D, 0x7E, 0),
    (0, 0xC2, 0xDF, 1), (0, 0xE0, 0xE0, 4), (0, 0xE1, 0xEC, 2), (0, 0xED, 0xED, 5), (0, 0xEE, 0xEF, 2),
    (0, 0xF0, 0xF0, 6), (0, 0xF1, 0xF3, 3), (0, 0xF4, 0xF4, 7),
    (3, 0x80, 0xBF, 2), (6, 0x90, 0xBF, 2), (7, 0x80, 0x8F, 2),
    (2, 0x80, 0xBF, 1), (4, 0xA0, 0xBF, 1), (5, 0x80, 0x9F, 1),
    (1, 0x80, 0xBF, 0),
)


cdef inline void set_bit(uint32_t *bits, int32_t i) noexcept nogil:
    bits[i >> 5] |= <uint32_t> 1 << (i & 31)


cdef inline int count_bits(const uint32_t *bits, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t x
    cdef int total = 0
    for i in range(n):
        x = bits[i]
        x = x - (x >> 1 & 0x55555555)
        x = (x & 0x33333333) + (x >> 2 & 0x33333333)
        total += ((x + (x >> 4) & 0x0F0F0F0F) * <uint32_t> 0x01010101) >> 24
    return total


cdef class Masks:
    """Masks of one grammar over one vocabulary. `limit`: bytes of each of its caches.

    Raises GrammarError for references to tokens that the vocabulary doesn't have, or that end a text.
    """

    def __init__(self, Stacks stacks not None, TokenTrie trie not None, Py_ssize_t limit=1 << 24):
        cdef Py_ssize_t i
        cdef int32_t token
        self.stacks, self.trie, self.limit = stacks, trie, limit
        self.automaton = stacks.automaton
        self._whole, self._tops, self._signatures = {}, {}, {}
        for i in range(self.automaton.token.n):
            token = self.automaton.token.at[i]
            token = token if token >= 0 else ~token
            if token >= trie.n_vocab:
                raise GrammarError(f"the grammar refers to token {token}; the vocabulary is 0..{trie.n_vocab - 1}")
            if token in trie.end_ids and self.automaton.token.at[i] >= 0:
                raise GrammarError(
                    f"the grammar refers to token {token}, which ends a text: it comes where the root rule may end"
                )
        self._scratch = array.array("I", bytes(4 * trie.n_words))
        self._path = array.array("i", bytes(4 * (trie.max_depth + 1)))
        cdef uint32_t[::1] scratch = self._scratch
        cdef int32_t[::1] path = self._path
        self.scratch, self.path = &scratch[0], &path[0]
        self.find_steps()

    def __dealloc__(self):
        drop(&self.escapes)
        drop(&self.level)
        drop(&self.following)
        drop(&self.open)
        drop(&self.steps)

    cdef int find_steps(self) except -1:
        """(phase, class of bytes, next phase) for everything that a plain character may consist of, each once."""
        cdef int phase, low, high, to, byte, before
        seen = set()
        for phase, low, high, to in UTF8:
            before = -1
            for byte in range(low, high + 1):
                if self.automaton.class_of[byte] == before:
                    continue
                before = self.automaton.class_of[byte]
                if (phase, before, to) not in seen:
                    seen.add((phase, before, to))
                    push(&self.steps, phase)
                    push(&self.steps, before)
                    push(&self.steps, to)
        return 0

    def mask(self, int32_t node, uint32_t[::1] out not None):
        """Sets bit t % 32 of word t // 32 for each token t that may follow, clears all others; returns how many may.

        out: uint32 [ceil(n_vocab / 32)]. End tokens may follow where the text may end.
        """
        if out.shape[0] != self.trie.n_words:
            raise GrammarError(f"the mask must have {self.trie.n_words} words of 32 bits, not {out.shape[0]}")
        self.stacks.check(node)
        self.stacks.begin()
        known = self._whole.get(node)
        memset(&out[0], 0, 4 * self.trie.n_words)
        if known is None:
            self.fill_mask(node, &out[0])
            known = (self.pack(&out[0]), count_bits(&out[0], self.trie.n_words))
            self._whole[node] = known
            self._whole_bytes += len(known[0])
            while self._whole_bytes > self.limit:
                self._whole_bytes -= len(self._whole.pop(next(iter(self._whole)))[0])
        else:
            self.unpack(known[0], &out[0])
        return known[1]

    def forget(self):
        """Empties the caches; needed after `Stacks.compact`."""
        self._whole.clear()
        self._whole_bytes = 0
        self._tops.clear()
        self._tops_bytes = 0

    cdef int fill_mask(self, int32_t node, uint32_t *out) except -1:
        cdef Stacks s = self.stacks
        cdef Py_ssize_t i, w
        for i in range(s.at.at[node], s.at.at[node + 1]):
            self.top_mask(s.top.at[i], s.below.at[i], out)
            self.token_masks(s.top.at[i], out)
        if s.ends.at[node]:
            for w in range(self.trie.n_words):
                out[w] |= self.trie.end_bits[w]
        return 0

    cdef int token_masks(self, int32_t state, uint32_t *out) except -1:
        """Tokens that the grammar names."""
        cdef Automaton a = self.automaton
        cdef uint32_t before
        cdef Py_ssize_t e, w
        cdef int32_t token
        for e in range(a.token_at.at[state], a.token_at.at[state + 1]):
            token = a.token.at[e]
            if token >= 0:
                set_bit(out, token)
                continue
            token = ~token
            before = out[token >> 5]
            for w in range(self.trie.n_words):
                out[w] |= self.trie.not_end_bits[w]
            out[token >> 5] &= before | ~(<uint32_t> 1 << (token & 31))
        return 0

    # ---- what the top of a stack decides

    cdef int top_mask(self, int32_t state, int32_t below, uint32_t *out) except -1:
        cdef int32_t after
        cdef Py_ssize_t i
        cdef const int32_t[::1] escapes
        entry = self.top_entry(state)
        if entry is None:
            return self.walk_all(self.stacks.single(state, below), out, False)
        self.unpack(entry[0], out)
        if entry[1] is not None:
            after = self.stacks.pop(below)
            if self.stacks.at.at[after] < self.stacks.at.at[after + 1]:
                escapes = entry[1]
                for i in range(escapes.shape[0]):
                    self.walk(escapes[i] & 1, after, escapes[i] >> 1, out, False)
        return 0

    cdef object top_entry(self, int32_t state):
        """(packed tokens, escapes or None), or None for a state whose rule may end almost anywhere."""
        cdef int32_t item
        known = self._tops.get(state, self)
        if known is not self:
            return known
        item = self.automaton.item.at[state]
        signature = self.signature(item)
        key = (signature, state - self.automaton.item_first.at[item])
        known = None if signature is None else self.trie.shared.get(key)
        if known is not None:
            return self._keep(state, known[0])
        entry = self.make_entry(state)
        if signature is not None:
            self.trie.remember(key, entry, self._size(entry), 4 * self.limit)
        return self._keep(state, entry)

    def _size(self, entry):
        return 64 if entry is None else 128 + len(entry[0]) + (len(entry[1]) * 4 if entry[1] is not None else 0)

    def _keep(self, state, entry):
        self._tops[state] = entry
        self._tops_bytes += self._size(entry)
        while self._tops_bytes > self.limit:
            self._tops_bytes -= self._size(self._tops.pop(next(iter(self._tops))))
        return entry

    cdef object make_entry(self, int32_t state):
        self.escapes.n = 0
        self.n_below = 0
        memset(self.scratch, 0, 4 * self.trie.n_words)
        self.walk_all(self.stacks.single(state, 1), self.scratch, True)
        if self.n_below > MUCH_BELOW:
            return None
        escapes = None
        if self.escapes.n:
            escapes = array.array("i", (<char *> self.escapes.at)[:4 * self.escapes.n])
        return (self.pack(self.scratch), escapes)

    cdef object signature(self, int32_t item):
        """Equal for rules of any grammars that are compiled to the same; None for rules that lead back to themselves.

        Names states by their distance from the rule's first one, and callees by their own signatures.
        """
        cdef list todo = [item]
        cdef int32_t rule
        while todo:
            rule = todo[len(todo) - 1]
            if self._signatures.get(rule, self) is self:
                self._signatures[rule] = 0      # open
                callees = self._callees(rule)
                if any(self._signatures.get(c) == 0 for c in callees):
                    self._signatures[rule] = None
                todo.extend(c for c in callees if c not in self._signatures)
                continue
            todo.pop()
            if self._signatures[rule] == 0:
                self._signatures[rule] = self._sign(rule)
        return self._signatures[item]

    def _callees(self, int32_t item):
        cdef Automaton a = self.automaton
        cdef Py_ssize_t c
        first, last = a.item_first.at[item], a.item_first.at[item + 1]
        return {a.item.at[a.call_start.at[c]] for c in range(a.call_at.at[first], a.call_at.at[last])}

    def _sign(self, int32_t item):
        cdef Automaton a = self.automaton
        cdef Py_ssize_t e, q
        cdef int32_t first = a.item_first.at[item]
        cdef Ints words = Ints(NULL, 0, 0)
        digest = hashlib.blake2b(digest_size=20)
        try:
            for q in range(first, a.item_first.at[item + 1]):
                push(&words, a.final.at[q])
                push(&words, a.edge_at.at[q + 1] - a.edge_at.at[q])
                push(&words, a.call_at.at[q + 1] - a.call_at.at[q])
                for e in range(a.edge_at.at[q], a.edge_at.at[q + 1]):
                    push(&words, a.edge_range.at[e])
                    push(&words, a.edge_to.at[e] - first)
                for e in range(a.call_at.at[q], a.call_at.at[q + 1]):
                    push(&words, a.call_to.at[e] - first)
                    callee = self._signatures[a.item.at[a.call_start.at[e]]]
                    if not callee:
                        return None
                    digest.update(callee)
            digest.update((<char *> words.at)[:4 * words.n])
        finally:
            drop(&words)
        return digest.digest()

    # ---- walks through the trie

    cdef int walk_all(self, int32_t node, uint32_t *out, bint escaping) except -1:
        """All tokens that lead from a node to anywhere; `escaping`: notes where its stack may be empty."""
        cdef int levels = self.plain_levels(node, escaping)
        cdef const uint32_t *ready
        cdef Py_ssize_t w
        if levels < 0:
            self.walk(0, node, 0, out, escaping)
        elif levels > 0:
            ready = self.trie.level + levels * self.trie.n_words
            for w in range(self.trie.n_words):
                out[w] |= ready[w]
        return self.walk(1, node, 0, out, escaping)

    cdef int walk(self, int which, int32_t node, int32_t above, uint32_t *out, bint escaping) except -1:
        """The tokens strictly below `above` in one of the tries."""
        cdef Stacks s = self.stacks
        cdef Trie *t = &self.trie.trie[which]
        cdef Py_ssize_t n_classes = self.automaton.n_classes
        cdef const uint8_t *class_of = self.automaton.class_of
        cdef int32_t *path = self.path
        cdef int32_t i = above + 1
        cdef int32_t last = t.skip.at[above]
        cdef int32_t here, token, c
        cdef int32_t depth = t.depth.at[above]
        path[depth] = node
        while i < last:
            depth = t.depth.at[i]
            node = path[depth - 1]
            c = class_of[t.byte.at[i]]
            here = s.row.at[node]
            if here >= 0:
                here = s.table.at[here * n_classes + c]
            if here < 0:
                here = s.cached_step(node, c)
            if here == 0:
                i = t.skip.at[i]
                continue
            path[depth] = here
            token = t.token.at[i]
            while token >= 0:
                set_bit(out, token)
                token = self.trie.next.at[token]
            if escaping and s.ends.at[here] and i + 1 < t.skip.at[i]:
                push(&self.escapes, i << 1 | which)
                self.n_below += t.skip.at[i] - i
                if self.n_below > MUCH_BELOW:
                    break
            i += 1
        return 0

    # ---- ready sets

    cdef int plain_levels(self, int32_t node, bint escaping) except -2:
        """k if exactly the plain texts of at most k characters may follow (PLAIN_CHARS: or more); -1: no such k."""
        cdef int k, status
        cdef Py_ssize_t i
        self.level.n = 0
        push(&self.level, node)
        for k in range(PLAIN_CHARS):
            self.following.n = 0
            status = 0
            for i in range(self.level.n):
                status |= self.plain_character(self.level.at[i], escaping)
            if status == 1:
                return k
            if status != 2:
                return -1
            if self.following.n == self.level.n and not memcmp(self.following.at, self.level.at, 4 * self.level.n):
                return PLAIN_CHARS
            self.level, self.following = self.following, self.level
        return PLAIN_CHARS

    cdef int plain_character(self, int32_t node, bint escaping) except -1:
        """What one plain character after a node can be: 1 none, 2 any, 3 or 4 neither. Adds to `following`."""
        cdef int status = 0
        cdef Py_ssize_t i = 0
        cdef Py_ssize_t step
        self.open.n = 0                         # (phase, node) to be continued
        push(&self.open, 0)
        push(&self.open, node)
        while i < self.open.n:
            for step in range(0, self.steps.n, 3):
                if self.steps.at[step] == self.open.at[i]:
                    status |= self.plain_step(step, self.open.at[i + 1], escaping)
            if status & 4 or status == 3 or self.open.n > 16 * MANY_NODES:
                return 4
            i += 2
        return status

    cdef int plain_step(self, Py_ssize_t step, int32_t node, bint escaping) except -1:
        """The same for one class of bytes in one phase of a character."""
        cdef int32_t after = self.stacks.cached_step(node, self.steps.at[step + 1])
        cdef int32_t phase = self.steps.at[step + 2]
        cdef Py_ssize_t i
        if after == 0:
            return 1 if self.steps.at[step] == 0 else 4
        if escaping and self.stacks.ends.at[after]:
            return 4
        if phase == 0:
            for i in range(self.following.n):
                if self.following.at[i] == after:
                    return 2
            push(&self.following, after)
            return 2 if self.following.n <= MANY_NODES else 4
        for i in range(0, self.open.n, 2):
            if self.open.at[i] == phase and self.open.at[i + 1] == after:
                return 2
        push(&self.open, phase)
        push(&self.open, after)
        return 2

    # ---- masks in little memory

    cdef object pack(self, const uint32_t *bits):
        """The words, or the ids where these take less."""
        cdef Py_ssize_t w, n = self.trie.n_words
        cdef int count = count_bits(bits, n)
        cdef uint32_t word
        cdef Ints ids = Ints(NULL, 0, 0)
        if count >= n:
            return (<const char *> bits)[:4 * n]
        try:
            for w in range(n):
                word = bits[w]
                while word:
                    push(&ids, w << 5 | lowest(word))
                    word &= word - 1
            return (<const char *> ids.at)[:4 * ids.n]
        finally:
            drop(&ids)

    cdef int unpack(self, object packed, uint32_t *out) except -1:
        """Adds packed tokens to a mask."""
        cdef const unsigned char *data = packed
        cdef Py_ssize_t i, n = len(packed) // 4
        cdef const uint32_t *words = <const uint32_t *> data
        if n == self.trie.n_words:
            for i in range(n):
                out[i] |= words[i]
        else:
            for i in range(n):
                set_bit(out, words[i])
        return 0


cdef inline int lowest(uint32_t word) noexcept nogil:
    return count_bits_of((word & (~word + 1)) - 1)


cdef inline int count_bits_of(uint32_t word) noexcept nogil:
    return count_bits(&word, 1)


def apply_mask(float[::1] logits not None, const uint32_t[::1] mask not None):
    """Sets the logits of tokens whose bit is clear, and of those beyond the mask, to minus infinity."""
    cdef Py_ssize_t i, w, n = logits.shape[0]
    cdef float banned = -float("inf")
    cdef uint32_t word
    with nogil:
        for w in range((n + 31) // 32):
            word = mask[w] if w < mask.shape[0] else 0
            if word != <uint32_t> 0xFFFFFFFF:              # most words are all set or all clear
                for i in range(32 * w, min(32 * w + 32, n)):
                    logits[i] = logits[i] if word >> (i & 31) & 1 else banned
