"""What was computed of earlier prompts and answers, to begin others with: a radix tree over blocks of tokens."""

from collections.abc import Hashable, Sequence

from oxillama.kv_cache.block_pool import KvCachePool

__all__ = ["PrefixKvCache", "PrefixNode"]


class PrefixNode:
    """One block of tokens that follows those of its parent. A child is found by its tokens, all of them compared.

    A root has no parent, no block (-1), and its key in the place of tokens.
    """

    __slots__ = ("block", "children", "n_users", "parent", "tokens")

    def __init__(self, parent: "PrefixNode | None", tokens: Hashable, block: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.children: dict[Hashable, PrefixNode] = {}
        self.n_users = 0


class PrefixKvCache:
    """Full KV blocks by the tokens that lead to them. It is one user of each; sequences that share them are others.

    Beginnings under different keys are strangers, even if their tokens are the same: a key says with what weights and
    for whom they were computed. A sequence holds a path, the nodes of its first blocks in order: as long as it does,
    those stay. Of the others the one goes first that was left alone for the longest time, ends before beginnings.

    hit_tokens, miss_tokens: of the prompts that were looked up, those that needn't be computed, and the rest.
    """

    def __init__(self, pool: KvCachePool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.n_blocks = 0
        self.hit_tokens = 0
        self.miss_tokens = 0
        self._roots: dict[Hashable, PrefixNode] = {}
        # Nodes that no sequence holds. Paths are left deepest node first, so a node comes after all that follow it.
        self._idle: dict[PrefixNode, None] = {}

    @property
    def n_idle(self) -> int:
        """Blocks that `evict` can give back."""
        return len(self._idle)

    def find(self, key: Hashable, tokens: Sequence[int], limit: int) -> list[PrefixNode]:
        """The longest path of full blocks that begins tokens[:limit]. It is not held by this."""
        path: list[PrefixNode] = []
        node, size = self._roots.get(key), self.block_size
        for end in range(size, limit + 1, size):
            node = node.children.get(tuple(tokens[end - size : end])) if node else None
            if node is None:
                break
            path.append(node)
        return path

    def hold(self, path: Sequence[PrefixNode]) -> list[int]:
        """The blocks of a path, which stay until it is left and they are freed."""
        for node in path:
            if not node.n_users:
                del self._idle[node]
            node.n_users += 1
        blocks = [node.block for node in path]
        self.pool.share(blocks)
        return blocks

    def leave(self, path: list[PrefixNode], n_kept: int = 0) -> None:
        """The end of `hold` for all but the first n_kept nodes; the caller frees their blocks as well."""
        while len(path) > n_kept:
            node = path.pop()
            node.n_users -= 1
            if not node.n_users:
                self._idle[node] = None

    def extend(self, key: Hashable, tokens: Sequence[int], path: list[PrefixNode], table: list[int]) -> None:
        """Adds a block of tokens after `path`, which begins them, and holds it: table[len(path)] has its keys.

        If another sequence was quicker, its block takes that place in the table. It holds the same bits: a row of keys
        is a function of the tokens before it, however they were computed.
        """
        size, depth = self.block_size, len(path)
        parent = path[-1] if path else self._roots.get(key)
        if parent is None:
            parent = self._roots[key] = PrefixNode(None, key, -1)
        block = tuple(tokens[depth * size : (depth + 1) * size])
        node = parent.children.get(block)
        if node is None:
            node = parent.children[block] = PrefixNode(parent, block, table[depth])
            node.n_users = 1
            self.n_blocks += 1
            self.pool.share([node.block])
        else:
            mine = table[depth]
            table[depth] = self.hold([node])[0]
            self.pool.free([mine])
        path.append(node)

    def evict(self, n: int) -> int:
        """Lets go of up to n blocks that no sequence holds: how many."""
        n = max(0, min(n, len(self._idle)))
        for _ in range(n):
            node = next(iter(self._idle))
            del self._idle[node]
            parent = node.parent
            assert parent is not None
            assert not node.children
            del parent.children[node.tokens]
            if parent.parent is None and not parent.children:
                del self._roots[parent.tokens]
            self.pool.free([node.block])
        self.n_blocks -= n
        return n

    def clear(self) -> None:
        """Lets go of every block that no sequence holds."""
        self.evict(len(self._idle))

    def check_invariants(self) -> None:
        """Raises AssertionError unless counts, users and blocks agree. For tests: walks all."""
        found, todo = [], list(self._roots.values())
        while todo:
            node = todo.pop()
            for tokens, child in node.children.items():
                assert child.parent is node
                assert child.tokens == tokens
                assert node.block < 0 or child.n_users <= node.n_users, "a block is held without its beginning"
                found.append(child)
                todo.append(child)
        assert len(found) == self.n_blocks
        assert {n for n in found if not n.n_users} == set(self._idle)
        blocks = [n.block for n in found]
        assert len(set(blocks)) == len(blocks), "a block is in the tree twice"
        assert all(self.pool.n_users(n.block) == 1 for n in self._idle), "a block that is in use passes for idle"
        for node in found:
            assert self.pool.n_users(node.block) > node.n_users, "a block has fewer users than its node"

    def __repr__(self) -> str:
        return f"<PrefixKvCache {self.n_blocks} KV blocks, {self.n_idle} of them idle>"
