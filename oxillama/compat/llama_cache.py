"""Caches of states by token ids. The engine shares beginnings of prompts by itself and needs none of them."""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from oxillama._util.checks import check_int
from oxillama.errors import ConfigError

__all__ = ["BaseLlamaCache", "LlamaCache", "LlamaDiskCache", "LlamaRAMCache"]

CAPACITY = 2 << 30


class BaseLlamaCache(abc.ABC):
    """Base of caches: a mapping from token ids to a `LlamaState` that begins like them."""

    def __init__(self, capacity_bytes: int = CAPACITY) -> None:
        self.capacity_bytes = check_int("capacity_bytes", capacity_bytes, 0, 1 << 62)

    @property
    @abc.abstractmethod
    def cache_size(self) -> int:
        """Bytes of all states."""
        raise NotImplementedError

    @abc.abstractmethod
    def __getitem__(self, key: Sequence[int]) -> Any:
        raise NotImplementedError

    @abc.abstractmethod
    def __contains__(self, key: Sequence[int]) -> bool:
        raise NotImplementedError

    @abc.abstractmethod
    def __setitem__(self, key: Sequence[int], value: Any) -> None:
        raise NotImplementedError


class LlamaRAMCache(BaseLlamaCache):
    """States in memory; the least recently used go when they are more than `capacity_bytes`."""

    def __init__(self, capacity_bytes: int = CAPACITY) -> None:
        super().__init__(capacity_bytes)
        self.cache_state: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    @property
    def cache_size(self) -> int:
        return sum(state.llama_state_size for state in list(self.cache_state.values()))

    def _find_longest_prefix_key(self, key: tuple[int, ...]) -> tuple[int, ...] | None:
        best, length = None, 0
        for known in list(self.cache_state):  # other threads may share the cache
            common = next((i for i, (a, b) in enumerate(zip(known, key, strict=False)) if a != b), None)
            common = min(len(known), len(key)) if common is None else common
            if common > length:
                best, length = known, common
        return best

    def __getitem__(self, key: Sequence[int]) -> Any:
        known = self._find_longest_prefix_key(tuple(key))
        if known is None:
            raise KeyError("Key not found")
        found = self.cache_state[known]
        with suppress(KeyError):  # another thread has given it up
            self.cache_state.move_to_end(known)
        return found

    def __contains__(self, key: object) -> bool:
        return isinstance(key, Sequence) and self._find_longest_prefix_key(tuple(key)) is not None

    def __setitem__(self, key: Sequence[int], value: Any) -> None:
        self.cache_state.pop(tuple(key), None)
        self.cache_state[tuple(key)] = value
        with suppress(KeyError):  # another thread has given up the last one
            while self.cache_state and self.cache_size > self.capacity_bytes:
                self.cache_state.popitem(last=False)


LlamaCache = LlamaRAMCache


class LlamaDiskCache(LlamaRAMCache):
    """Refused: files of the replaced package's cache are pickles, which run what they hold (CVE-2025-69872)."""

    def __init__(self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = CAPACITY) -> NoReturn:
        raise ConfigError(
            "LlamaDiskCache is refused: it reads pickles. Beginnings of prompts are cached in memory by themselves; "
            "Llama.save_state() and oxillama.Engine.snapshot() write what can be read safely"
        )
