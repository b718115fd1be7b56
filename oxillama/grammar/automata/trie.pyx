"""`TokenTrie`: a vocabulary by the bytes of its tokens, built once per tokenizer and shared by all grammars.

Tokens whose text is *plain*, whole characters without quotes, backslashes and control characters, have a trie of their
own, and ready sets by their length: most of a vocabulary, and what the inside of a string in JSON and most programming
languages allows. Where a grammar allows any plain character, or any up to some number, it never looks at these tokens
one by one.

Tokens of whole characters also stand in a trie by *shape*, which has one letter for all of a-z, one each for A-Z, 0-9
and all characters beyond ASCII, and tells the rest apart. A vocabulary of 128,000 tokens has 5,000 shapes, whose trie
is thirty times smaller than that of the texts: a grammar that treats letters alike walks through the small one.
"""

import array

from libc.stdint cimport int32_t, uint8_t, uint32_t

from oxillama.errors import GrammarError
from oxillama.grammar.automata.vectors cimport Ints, drop, fill, push

cdef enum:
    MAX_TOKEN_BYTES = 1 << 16


def plain_length(bytes text not None):
    """Characters of a plain token, or 0 if it isn't one or is too long."""
    cdef uint8_t byte
    for byte in text:
        if byte < 0x20 or byte == 0x22 or byte == 0x5C or byte == 0x7F:
            return 0
    try:
        n = len(text.decode())
    except UnicodeDecodeError:
        return 0
    return n if n <= PLAIN_CHARS else 0


def shape_of(bytes text not None):
    """One byte for each character, equal for what shapes don't tell apart; None for what isn't whole characters."""
    cdef bytearray out = bytearray()
    cdef uint8_t byte
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    for byte in text:
        if byte < 0x80 or byte >= 0xC0:
            out.append(shape_class(byte))
    return bytes(out)


cdef class TokenTrie:
    """texts: the bytes of each token; None or nothing for tokens that are no text. end_ids: tokens that end a text.

    Raises GrammarError if there are no tokens, an id is out of range or a token is longer than 65,536 bytes.
    """

    def __reduce__(self):
        return type(self), (self.texts, tuple(sorted(self.end_ids)))

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __init__(self, texts, end_ids=()):
        cdef Py_ssize_t token, k
        cdef list kinds = [[], [], []]
        cdef list shapes = [{}, {}]
        # No comprehension: where memory runs out, Cython 3.3 gives up the item twice.
        self.texts = []
        for text in texts:
            self.texts.append(bytes(text) if text else None)
        self.n_vocab = len(self.texts)
        self.n_words = (self.n_vocab + 31) // 32
        self.end_ids = frozenset(end_ids)
        self.shared = {}
        if not self.n_vocab:
            raise GrammarError("the vocabulary is empty")
        for token in self.end_ids:
            if not 0 <= token < self.n_vocab:
                raise GrammarError(f"end token {token} is outside the vocabulary 0..{self.n_vocab - 1}")
            self.texts[token] = None
        self._levels = array.array("I", bytes(4 * (PLAIN_CHARS + 1) * self.n_words))
        self._end_bits = array.array("I", bytes(4 * self.n_words))
        self._other_bits = array.array("I", bytes(4 * self.n_words))
        self._control_bits = array.array("I", bytes(4 * self.n_words))
        cdef uint32_t[::1] levels = self._levels
        cdef uint32_t[::1] end = self._end_bits
        cdef uint32_t[::1] other = self._other_bits
        cdef uint32_t[::1] control = self._control_bits
        self.level, self.end_bits, self.not_end_bits = &levels[0], &end[0], &other[0]
        self.control_bits = &control[0]
        for token, text in enumerate(self.texts):
            if text is None:
                continue
            if len(text) > MAX_TOKEN_BYTES:
                raise GrammarError(f"token {token} has {len(text)} bytes, more than {MAX_TOKEN_BYTES}")
            self.max_depth = max(self.max_depth, <int> len(text))
            n = plain_length(text)
            shape = shape_of(text)
            which = 2 if shape is None else n == 0
            kinds[which].append((text, token))
            if shape is not None:
                shapes[which].setdefault(shape, []).append(token)
            for k in range(n if n else PLAIN_CHARS + 1, PLAIN_CHARS + 1):
                levels[k * self.n_words + (token >> 5)] |= <uint32_t> 1 << (token & 31)
        for token in range(self.n_vocab):
            if token in self.end_ids:
                end[token >> 5] |= <uint32_t> 1 << (token & 31)
            else:
                other[token >> 5] |= <uint32_t> 1 << (token & 31)
                if self.texts[token] is None:
                    control[token >> 5] |= <uint32_t> 1 << (token & 31)
        fill(&self.next, self.n_vocab, -1)
        for which in range(3):
            self.build(which, kinds[which])
        self.blob = b"".join(filter(None, self.texts))
        push(&self.start, 0)
        for text in self.texts:
            push(&self.start, self.start.at[self.start.n - 1] + (len(text) if text else 0))
        for which in range(2):
            self.build_shapes(which, shapes[which])

    def __dealloc__(self):
        cdef int i
        drop(&self.next)
        drop(&self.start)
        for i in range(3):
            drop(&self.trie[i].byte)
            drop(&self.trie[i].depth)
            drop(&self.trie[i].skip)
            drop(&self.trie[i].token)
        for i in range(2):
            drop(&self.shapes[i].cls)
            drop(&self.shapes[i].depth)
            drop(&self.shapes[i].skip)
            drop(&self.shapes[i].above)
            drop(&self.shapes[i].first)
            drop(&self.shapes[i].token)

    cdef int build(self, int which, list tokens) except -1:
        cdef Trie *t = &self.trie[which]
        cdef Ints path = Ints(NULL, 0, 0)
        cdef Py_ssize_t i, same
        cdef int32_t token
        cdef bytes text
        cdef bytes before = b""
        tokens.sort()
        try:
            push(&t.byte, 0)
            push(&t.depth, 0)
            push(&t.skip, 0)
            push(&t.token, -1)
            push(&path, 0)
            for text, token in tokens:
                same = 0
                while same < len(before) and same < len(text) and before[same] == text[same]:
                    same += 1
                self.close_to(t, &path, same)
                for i in range(same, len(text)):
                    push(&path, t.byte.n)
                    push(&t.byte, text[i])
                    push(&t.depth, i + 1)
                    push(&t.skip, 0)
                    push(&t.token, -1)
                i = path.at[len(text)]
                self.next.at[token] = t.token.at[i]
                t.token.at[i] = token
                before = text
            self.close_to(t, &path, -1)
        finally:
            drop(&path)
        return 0

    cdef int close_to(self, Trie *t, Ints *path, Py_ssize_t depth) except -1:
        while path.n > depth + 1:
            path.n -= 1
            t.skip.at[path.at[path.n]] = t.byte.n
        return 0

    cdef int build_shapes(self, int which, dict tokens) except -1:
        """`tokens`: those of each shape."""
        cdef Shapes *t = &self.shapes[which]
        cdef Ints path = Ints(NULL, 0, 0)
        cdef Ints exact = Ints(NULL, 0, 0)      # along the path: the only text of this shape, as a node of `trie`
        cdef Py_ssize_t i, same
        cdef int32_t token
        cdef bytes shape
        cdef bytes before = b""
        try:
            self.add_shape(t, 0, 0, -1)
            push(&path, 0)
            push(&exact, 0)
            for shape in sorted(tokens):
                same = 0
                while same < len(before) and same < len(shape) and before[same] == shape[same]:
                    same += 1
                while path.n > same + 1:
                    path.n -= 1
                    t.skip.at[path.at[path.n]] = t.cls.n
                exact.n = path.n
                for i in range(same, len(shape)):
                    push(&path, t.cls.n)
                    self.add_shape(t, shape[i], i + 1, exact.at[i])
                    push(&exact, self.child(which, exact.at[i], shape[i]))
                for token in tokens[shape]:
                    push(&t.token, token)
                before = shape
            while path.n:
                path.n -= 1
                t.skip.at[path.at[path.n]] = t.cls.n
            push(&t.first, t.token.n)
        finally:
            drop(&path)
            drop(&exact)
        return 0

    cdef int add_shape(self, Shapes *t, int cls, int32_t depth, int32_t above) except -1:
        push(&t.cls, cls)
        push(&t.depth, depth)
        push(&t.skip, 0)
        push(&t.above, above)
        push(&t.first, t.token.n)
        return 0

    cdef int32_t child(self, int which, int32_t above, uint8_t cls) except -2:
        """The node for one more character, or -1 if the class has several."""
        cdef Trie *t = &self.trie[which]
        cdef int32_t i = above + 1
        if above < 0 or cls >= 0x80 or cls in (LOWER, UPPER, DIGIT):
            return -1
        while t.byte.at[i] != cls:
            i = t.skip.at[i]
        return i

    def text(self, int32_t token):
        """Bytes of a token, or None if it is no text. Raises GrammarError for an id outside the vocabulary."""
        if not 0 <= token < self.n_vocab:
            raise GrammarError(f"token {token} is outside the vocabulary 0..{self.n_vocab - 1}")
        return self.texts[token]

    def remember(self, key, entry, Py_ssize_t size, Py_ssize_t limit):
        """Keeps a mask for other grammars; the oldest leave when they take more than `limit` bytes together."""
        self.shared[key] = (entry, size)
        self.shared_bytes += size
        while self.shared_bytes > limit:
            oldest = next(iter(self.shared))
            self.shared_bytes -= self.shared.pop(oldest)[1]
