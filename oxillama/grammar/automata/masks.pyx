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

from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcpy, memset

from blake3 import blake3

from oxillama.errors import GrammarError
from oxillama.grammar.automata.automaton cimport CONTROL_BUT, EXCEPTED, Automaton, excepted
from oxillama.grammar.automata.stacks cimport Stacks
from oxillama.grammar.automata.trie cimport TokenTrie
from oxillama.grammar.automata.turns cimport give_way, turn
from oxillama.grammar.automata.vectors cimport Ints, drop, push
from oxillama.grammar.automata.walk cimport MUCH_BELOW, Walk
from oxillama.kernels cimport _masks

cdef extern from *:
    int popcount "__builtin_popcountll"(unsigned long long) noexcept nogil
    int lowest "__builtin_ctz"(unsigned int) noexcept nogil

cdef enum:
    WORDS = -1                  # how a mask is packed; other than this, see `pack`
    TOPS_PER_TURN = 64
    RULES_PER_TURN = 64
    SIGNED = 1 << 16            # integers that are hashed at a time
    DIGEST = 20                 # bytes of a signature

cdef inline void set_bit(uint32_t *bits, int32_t i) noexcept nogil:
    bits[i >> 5] |= <uint32_t> 1 << (i & 31)


cdef inline int count_bits(const uint32_t *bits, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef int total = 0
    for i in range(n):
        total += popcount(bits[i])
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
            if token == CONTROL_BUT:
                continue
            token = token if token >= 0 else token - EXCEPTED if excepted(token) else ~token
            if token >= trie.n_vocab:
                raise GrammarError(f"the grammar refers to token {token}; the vocabulary is 0..{trie.n_vocab - 1}")
            if token in trie.end_ids and self.automaton.token.at[i] >= 0:
                raise GrammarError(
                    f"the grammar refers to token {token}, which ends a text: it comes where the root rule may end"
                )
        self._scratch = array.array("I", bytes(4 * trie.n_words))
        cdef uint32_t[::1] scratch = self._scratch
        self.scratch = &scratch[0]
        self.walk = Walk(stacks, trie)

    def mask(self, int32_t node, uint32_t[::1] out not None):
        """Sets bit t % 32 of word t // 32 for each token t that may follow, clears all others; returns how many may.

        out: uint32 [ceil(n_vocab / 32)]. End tokens may follow where the text may end.
        """
        if out.shape[0] != self.trie.n_words:
            raise GrammarError(f"the mask must have {self.trie.n_words} words of 32 bits, not {out.shape[0]}")
        self.stacks.check(node)
        self.stacks.begin()
        known = self._whole.get(node)
        if known is None:
            memset(&out[0], 0, 4 * self.trie.n_words)
            self.level = 0
            self.fill_mask(node, &out[0])
            known = (self.pack(&out[0], self.level), count_bits(&out[0], self.trie.n_words))
            self._whole[node] = known
            self._whole_bytes += len(known[0])
            while self._whole_bytes > self.limit:
                self._whole_bytes -= len(self._whole.pop(next(iter(self._whole)))[0])
        else:
            self.unpack(known[0], &out[0], True)
        return known[1]

    @property
    def n_bytes(self):
        """Bytes of both caches."""
        return self._whole_bytes + self._tops_bytes

    def forget(self):
        """Empties the caches; needed after `Stacks.compact`."""
        self._whole.clear()
        self._whole_bytes = 0
        self._tops.clear()
        self._tops_bytes = 0

    cdef int fill_mask(self, int32_t node, uint32_t *out) except -1:
        cdef Stacks s = self.stacks
        cdef Py_ssize_t i, w
        cdef list entries = []
        for i in range(s.at.at[node], s.at.at[node + 1]):
            if i % TOPS_PER_TURN == TOPS_PER_TURN - 1:
                give_way()
            self.token_masks(s.top.at[i], out)
            if not entries or entries[len(entries) - 1] is not None:
                entries.append(self.top_entry(s.top.at[i]))
        if entries and entries[len(entries) - 1] is None:
            self.level = max(self.level, self.walk.whole(node, out, False))
        else:
            for i in range(len(entries)):
                self.top_mask(entries[i], s.below.at[s.at.at[node] + i], out)
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
            if excepted(token):
                continue
            if token == CONTROL_BUT:
                for w in range(self.trie.n_words):
                    self.scratch[w] = self.trie.control_bits[w]
                while e + 1 < a.token_at.at[state + 1] and excepted(a.token.at[e + 1]):
                    e += 1
                    token = a.token.at[e] - EXCEPTED
                    self.scratch[token >> 5] &= ~(<uint32_t> 1 << (token & 31))
                for w in range(self.trie.n_words):
                    out[w] |= self.scratch[w]
                continue
            token = ~token
            before = out[token >> 5]
            for w in range(self.trie.n_words):
                out[w] |= self.trie.not_end_bits[w]
            out[token >> 5] &= before | ~(<uint32_t> 1 << (token & 31))
        return 0

    # ---- what the top of a stack decides

    cdef int top_mask(self, tuple entry, int32_t below, uint32_t *out) except -1:
        """Adds an entry, and what it says must be walked, on top of the stacks of `below`."""
        cdef int32_t after
        cdef Py_ssize_t i
        cdef const int32_t[::1] escapes
        self.unpack(entry[0], out, False)
        if entry[1] is not None:
            after = self.stacks.pop(below)
            if self.stacks.at.at[after] < self.stacks.at.at[after + 1]:
                escapes = entry[1]
                for i in range(0, escapes.shape[0], 2):
                    self.walk.below(escapes[i], escapes[i + 1], after, out)
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
        cdef Walk w = self.walk
        cdef int level
        memset(self.scratch, 0, 4 * self.trie.n_words)
        level = w.whole(self.stacks.single(state, 1), self.scratch, True)
        if w.n_below > MUCH_BELOW:
            return None
        escapes = None
        if w.escapes.n:
            escapes = array.array("i", (<char *> w.escapes.at)[:4 * w.escapes.n])
        return (self.pack(self.scratch, level), escapes)

    cdef object signature(self, int32_t item):
        """Equal for rules of any grammars that are compiled to the same; None for rules that lead back to themselves.

        Names states by their distance from the rule's first one, and callees by their own signatures.
        """
        cdef list todo = [item]
        cdef set begun = set()                  # open, as long as they have no signature
        cdef dict known = self._signatures
        cdef int32_t rule
        cdef Py_ssize_t n_passed = 0
        while todo:
            rule = todo[len(todo) - 1]
            n_passed += 1
            if not n_passed % RULES_PER_TURN:
                give_way()
            if rule not in known and rule not in begun:
                begun.add(rule)
                callees = self._callees(rule)
                if any([c in begun and c not in known for c in callees]):
                    known[rule] = None
                todo.extend([c for c in callees if c not in begun and c not in known])
                continue
            todo.pop()
            if rule not in known:
                known[rule] = self._sign(rule)
        return known[item]

    def _callees(self, int32_t item):
        cdef Automaton a = self.automaton
        cdef Py_ssize_t c
        cdef Py_ssize_t first = a.item_first.at[item], last = a.item_first.at[item + 1]
        cdef set callees = set()
        for c in range(a.call_at.at[first], a.call_at.at[last]):
            turn(c)
            callees.add(a.item.at[a.call_start.at[c]])
        return callees

    def _sign(self, int32_t item):
        cdef Automaton a = self.automaton
        cdef Py_ssize_t e, q, i
        cdef int32_t first = a.item_first.at[item]
        cdef bytes callee
        cdef Ints words = Ints(NULL, 0, 0)
        digest = blake3()
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
                    for i in range(DIGEST // 4):
                        push(&words, (<const int32_t *> <const char *> callee)[i])
                if words.n >= SIGNED:
                    digest.update((<char *> words.at)[:4 * words.n])
                    words.n = 0
                    give_way()
            digest.update((<char *> words.at)[:4 * words.n])
        finally:
            drop(&words)
        return digest.digest(DIGEST)

    # ---- masks in little memory

    cdef object pack(self, const uint32_t *bits, int level):
        """A ready set and the ids of the others, or all words where these take less.

        Both begin with an integer: the level of the ready set (0: the empty one), or WORDS.
        """
        cdef Py_ssize_t w, n = self.trie.n_words
        cdef const uint32_t *ready = self.trie.level + max(level, 0) * n
        cdef uint32_t word
        cdef Ints ids = Ints(NULL, 0, 0)
        try:
            push(&ids, max(level, 0))
            for w in range(n):
                word = bits[w] & ~ready[w]
                if word and ids.n > n:
                    ids.at[0] = WORDS
                    return (<const char *> ids.at)[:4] + (<const char *> bits)[:4 * n]
                while word:
                    push(&ids, w << 5 | lowest(word))
                    word &= word - 1
            return (<const char *> ids.at)[:4 * ids.n]
        finally:
            drop(&ids)

    cdef int unpack(self, object packed, uint32_t *out, bint alone) except -1:
        """Adds packed tokens to a mask; `alone`: and takes all others away."""
        cdef const unsigned char *data = packed
        cdef const int32_t *words = <const int32_t *> data
        cdef const uint32_t *ready = <const uint32_t *> (words + 1)
        cdef Py_ssize_t i, n = self.trie.n_words
        if words[0] != WORDS:
            ready = self.trie.level + words[0] * n
            self.level = max(self.level, words[0])
        if alone:
            memcpy(out, ready, 4 * n)
        elif words[0]:
            for i in range(n):
                out[i] |= ready[i]
        if words[0] != WORDS:
            for i in range(1, len(packed) // 4):
                set_bit(out, words[i])
        return 0


def apply_mask(float[::1] logits not None, const uint32_t[::1] mask not None):
    """Sets the logits of tokens whose bit is clear, and of those beyond the mask, to minus infinity."""
    cdef const uint32_t *words = &mask[0] if mask.shape[0] else NULL
    if logits.shape[0]:
        with nogil:
            _masks.apply_mask(&logits[0], logits.shape[0], words, mask.shape[0])
