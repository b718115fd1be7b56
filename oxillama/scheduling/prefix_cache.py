"""Radix cache of KV blocks: sequences that begin alike share them."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from typing import cast

from oxillama.layer_state import first_read
from oxillama.scheduling.pools import SequencePool

__all__ = [
    "BLOCK",
    "LEAST_PART",
    "STATE",
    "WINDOWED",
    "PrefixKvCache",
    "PrefixNode",
    "n_common",
]

BLOCK, WINDOWED, STATE = range(3)  # kinds of what a node can have; a sequence's tables are in the same order
# Tokens of a block that is begun with a copy. A step that computes one token computes four in about the same time, and
# that of the smallest models takes no longer for them than the copy does.
LEAST_PART = 4


class PrefixNode:
    """One block of tokens that follows those of its parent. A child is found by its tokens, all of them compared.

    A tail has fewer tokens than a block holds, and neither children nor users: `match_partial` alone finds it.

    ids: by kind, what there is of it, -1 for nothing: the KV block of its tokens, that of layers with a window, and the
    slot with the recurrent state after them. A root has no parent, nothing of any kind, and for tokens its key.
    order: tokens of the children, sorted: what has most tokens in common with others stands beside their place.
    """

    __slots__ = ("children", "ids", "n_users", "order", "parent", "tokens")

    def __init__(self, parent: "PrefixNode | None", tokens: Hashable) -> None:
        self.parent = parent
        self.tokens = tokens
        self.ids = [-1] * 3
        self.children: dict[Hashable, PrefixNode] = {}
        self.order: list[tuple[int, ...]] = []
        self.n_users = 0

    def add_child(self, tokens: tuple[int, ...]) -> "PrefixNode":
        """A new node after this one."""
        node = self.children[tokens] = PrefixNode(self, tokens)
        insort(self.order, tokens)
        return node

    def remove_child(self, tokens: tuple[int, ...]) -> None:
        """Takes a node out."""
        del self.children[tokens]
        del self.order[bisect_left(self.order, tokens)]


class PrefixKvCache:
    """Blocks of tokens by what leads to them, with ids of `pool` as far as they are kept. It is one user of each id.

    Prefixes under different keys never match, even if their tokens are the same: a key names the adapters, the KV type
    and the salt that they were computed with. A sequence acquires a path, the nodes of its first blocks in order; they
    stay until it releases them. Of what no sequence uses, the least recently used is evicted first.

    KV blocks cover a path from its root on, so leaves are evicted first, and a node with its block. Windowed blocks and
    slots are evicted alone: a node may lack its own. A path is usable up to a node with all that the next token needs:
    its slot, where there are recurrent layers, and the blocks of the window before it.

    shares_parts: whether a sequence may continue within a block. Windowed blocks and recurrent states are shared whole.
    hit_tokens, miss_tokens: of the prompts that were looked up, tokens that need not be computed, and the rest.
    """

    def __init__(self, pool: SequencePool, block_size: int) -> None:
        self.pools = (pool.blocks, pool.windowed, pool.slots)
        self.window = pool.window
        self.shares_parts = pool.n_blocks > 0 and not (pool.window or pool.n_slots)
        self.block_size = block_size
        self.hit_tokens = 0
        self.miss_tokens = 0
        self._roots: dict[Hashable, PrefixNode] = {}

    @property
    def n_blocks(self) -> int:
        """KV blocks in the tree."""
        return self.pools[BLOCK].n_kept

    @property
    def n_idle(self) -> int:
        """KV blocks that `evict` can give back."""
        return self.pools[BLOCK].n_idle

    # ---- looking up

    def match(self, key: Hashable, tokens: Sequence[int], limit: int) -> list[PrefixNode]:
        """The longest path of whole blocks that begins tokens[:limit], usable or not. It isn't acquired by this."""
        path: list[PrefixNode] = []
        node, size = self._roots.get(key), self.block_size
        for end in range(size, limit + 1, size):
            node = node.children.get(tuple(tokens[end - size : end])) if node else None
            if node is None:
                break
            path.append(node)
        return path

    def n_usable(self, path: Sequence[PrefixNode]) -> int:
        """Nodes of a path that a sequence can begin with: the last one has all that the next token needs."""
        if not self.window and not self.pools[STATE].n:
            return len(path)
        usable, lacking = 0, 0  # the latter: nodes up to the last one without a block of windows
        for i, node in enumerate(path, 1):
            if self.window and node.ids[WINDOWED] < 0:
                lacking = i
            if self.first_windowed(i) >= lacking and (node.ids[STATE] >= 0 or not self.pools[STATE].n):
                usable = i
        return usable

    def first_windowed(self, n_blocks: int) -> int:
        """The first windowed block that a sequence needs to continue after n_blocks."""
        return first_read(n_blocks * self.block_size, self.window) // self.block_size if self.window else 0

    def find(self, key: Hashable, tokens: Sequence[int], limit: int) -> list[PrefixNode]:
        """The usable part of `match`."""
        path = self.match(key, tokens, limit)
        return path[: self.n_usable(path)]

    def match_partial(
        self, key: Hashable, path: Sequence[PrefixNode], tokens: Sequence[int], limit: int
    ) -> tuple[int, int]:
        """(KV block, n): what follows a path in tokens[:limit] begins with the first n tokens of that block.

        That block may be full or a tail. A sequence that continues there copies it.
        """
        parent = path[-1] if path else self._roots.get(key)
        if parent is None or not self.shares_parts:
            return -1, 0
        start = len(path) * self.block_size
        wanted, best, most = tuple(tokens[start : min(limit, start + self.block_size)]), -1, LEAST_PART - 1
        if len(wanted) <= most:
            return -1, 0
        i = bisect_left(parent.order, wanted)
        for theirs in parent.order[max(0, i - 1) : i + 1]:
            n = n_common(wanted, theirs)
            if n > most:
                best, most = parent.children[theirs].ids[BLOCK], n
        return (best, most) if best >= 0 else (-1, 0)

    # ---- references

    def acquire(self, path: Sequence[PrefixNode]) -> tuple[list[int], list[int]]:
        """Tables of a path, with a reference to each block and node: `release` and the pool's `free` drop them."""
        self.pin(path)
        blocks = [node.ids[BLOCK] for node in path] if self.pools[BLOCK].n else []
        self.pools[BLOCK].share(blocks)
        if not self.window:
            return blocks, []
        n_gone = self.first_windowed(len(path))
        windowed = [node.ids[WINDOWED] for node in path[n_gone:]]
        self.pools[WINDOWED].share(windowed)
        return blocks, [-1] * n_gone + windowed

    def pin(self, path: Sequence[PrefixNode]) -> None:
        """`acquire` of the nodes alone, for a sequence that shares the blocks already."""
        for node in path:
            node.n_users += 1

    def release(self, path: list[PrefixNode], n_kept: int = 0) -> None:
        """Drops the references to all but the first n_kept nodes; the caller frees their blocks as well."""
        while len(path) > n_kept:
            node = path.pop()
            node.n_users -= 1
            self._prune(node)

    def extend(self, key: Hashable, tokens: Sequence[int], path: list[PrefixNode], tables: Sequence[list[int]]) -> None:
        """Adds a block of tokens after `path`, and acquires it: table[len(path)] of each kind has its keys.

        If another sequence has entered that block before, its block takes the place in the table. It holds the same
        bits: a row of keys is a function of the tokens before it, however they were computed.
        """
        size, depth = self.block_size, len(path)
        parent = path[-1] if path else self._roots.get(key)
        if parent is None:
            parent = self._roots[key] = PrefixNode(None, key)
        block = tuple(tokens[depth * size : (depth + 1) * size])
        node = parent.children.get(block)
        if node is None:
            node = parent.add_child(block)
            if len(parent.order) > 1:
                self._drop_tails(parent, block)
        node.n_users += 1
        path.append(node)
        for kind, table in enumerate(tables):
            if table and table[depth] >= 0:
                self._merge(kind, node, table, depth)

    def _merge(self, kind: int, node: PrefixNode, table: list[int], depth: int) -> None:
        if node.ids[kind] < 0:
            self.add(kind, node, table[depth])
        elif node.ids[kind] != table[depth]:
            mine, table[depth] = table[depth], node.ids[kind]
            self.pools[kind].exchange(mine, table[depth])

    def keep_tail(self, key: Hashable, tokens: tuple[int, ...], path: Sequence[PrefixNode], block: int) -> None:
        """Adds the first rows of a KV block, those of `tokens` after `path`, unless another child begins with them.

        The block isn't full: a sequence that finds it continues in a copy, and so does one that still uses it. Fewer
        than LEAST_PART tokens are never found.
        """
        parent = path[-1] if path else self._roots.get(key)
        if parent is None:
            parent = self._roots[key] = PrefixNode(None, key)
        i = bisect_left(parent.order, tokens)
        if i == len(parent.order) or parent.order[i][: len(tokens)] != tokens:
            self.add(BLOCK, parent.add_child(tokens), block)
            self._drop_tails(parent, tokens)

    def _drop_tails(self, parent: PrefixNode, tokens: tuple[int, ...]) -> None:
        """Evicts idle tails with which the tokens of another child begin: it serves whatever they serve."""
        for n in range(LEAST_PART, len(tokens)):
            tail = parent.children.get(tokens[:n])
            if tail is not None and self.pools[BLOCK].users[tail.ids[BLOCK]] == 1:
                self._drop(BLOCK, tail)

    def add(self, kind: int, node: PrefixNode, i: int) -> None:
        """Gives a node an id of a kind that it lacks; the sequence keeps using it."""
        node.ids[kind] = i
        self.pools[kind].pin(i, node)

    # ---- room

    def evict(self, kind: int, n: int) -> int:
        """Evicts up to n ids that no sequence uses: how many."""
        pool = self.pools[kind]
        n = max(0, min(n, pool.n_idle))
        for _ in range(n):
            self._drop(kind, cast(PrefixNode, pool.lru()))
        return n

    def evict_id(self, kind: int, i: int) -> None:
        """Takes an id that a sequence uses out of the tree, if it is there."""
        node = self.pools[kind].owner_key(i)
        if node is not None:
            self._drop(kind, cast(PrefixNode, node))

    def clear(self) -> None:
        """Evicts everything that no sequence uses."""
        for kind, pool in enumerate(self.pools):
            self.evict(kind, pool.n_idle)

    def reset(self) -> None:
        """Forgets everything, when the ids are free and no sequence has a path any more."""
        self._roots = {}

    def _drop(self, kind: int, node: PrefixNode) -> None:
        """Takes an id out of the tree. A block goes after its children: a sequence that uses a child uses it too."""
        assert kind != BLOCK or not (node.children or node.n_users)
        for k in range(len(self.pools)) if kind == BLOCK else (kind,):
            if node.ids[k] >= 0:
                self.pools[k].unpin(node.ids[k])
                node.ids[k] = -1
        self._prune(node)

    def _prune(self, node: PrefixNode) -> None:
        """Removes a node without users, children and ids, and its ancestors that are left with nothing."""
        while not (node.n_users or node.children or max(node.ids) >= 0):
            parent = node.parent
            if parent is None:
                del self._roots[node.tokens]
                return
            parent.remove_child(cast(tuple[int, ...], node.tokens))
            node = parent

    # ---- tests

    def nodes(self) -> Iterator[PrefixNode]:
        """All but the roots."""
        todo = list(self._roots.values())
        while todo:
            children = todo.pop().children.values()
            yield from children
            todo.extend(children)

    def check_invariants(self) -> None:
        """Raises AssertionError unless nodes, users and ids agree. For tests: walks all."""
        assert all(root.children for root in self._roots.values()), "a root of nothing"
        for node in self.nodes():
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node
            assert node.order == sorted(cast(dict[tuple[int, ...], PrefixNode], node.children))
            assert node.n_users or node.children or max(node.ids) >= 0, "a node of no use"
            followed = sum(child.n_users for child in node.children.values())
            assert node.n_users >= followed, "a block is held without its beginning"
            assert (node.ids[BLOCK] >= 0) == (self.pools[BLOCK].n > 0), "a node with too much or too little"
            assert node.ids[BLOCK] < 0 or self.pools[BLOCK].n_users(node.ids[BLOCK]) > node.n_users
        for kind, pool in enumerate(self.pools):
            ids = [node.ids[kind] for node in self.nodes() if node.ids[kind] >= 0]
            assert len(ids) == len(set(ids)) == pool.n_kept, f"a {pool.noun} is in the tree twice, or was left behind"
            assert all(pool.owner_key(n.ids[kind]) is n for n in self.nodes() if n.ids[kind] >= 0)

    def __repr__(self) -> str:
        return (
            f"<PrefixKvCache {self.n_blocks} KV blocks, {self.n_idle} of them idle, {self.pools[STATE].n_kept} slots>"
        )


def n_common(a: "list[int] | tuple[int, ...] | array[int]", b: "list[int] | tuple[int, ...] | array[int]") -> int:
    """Length of the common prefix of two lists, tuples or arrays of tokens, both of one type.

    It compares slices, which is quicker than token by token.
    """
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
