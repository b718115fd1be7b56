"""Weights that come and go: time of a token, and of reading what it needs."""

import mmap
import os
import time

import oxillama
from oxillama.core.loading import shipped_model

from .common import model_path, tokens

BLOCK = 1 << 20


class Offload:
    """Decoding with a part of the weights in memory, and the file in the page cache, or read past it ("direct"), or
    taken out of it before each token ("cold")."""

    params = ((0.25, 0.5, 0.9), ("cached", "cold", "direct"))
    param_names = ("share", "mode")
    timeout = 600

    def setup(self, share: float, mode: str) -> None:
        with oxillama.load(model_path(), context_size=256) as engine:
            most = engine.memory_bytes()["weights"]
        policy = oxillama.OffloadPolicy(budget=int(most * share), direct=mode == "direct")
        self.engine = oxillama.load(model_path(), context_size=256, offload=policy)
        self.prompt = tokens(self.engine, 8)
        self.engine.prefill(self.prompt)

    def teardown(self, share: float, mode: str) -> None:
        self.engine.close()

    def time_token(self, share: float, mode: str) -> None:
        prepare(mode)
        self.engine.forward_one(self.prompt[0])
        self.engine.truncate(len(self.prompt))

    def peakmem_tokens(self, share: float, mode: str) -> None:
        for token in self.prompt:
            self.engine.forward_one(token)

    def track_part_of_the_bandwidth(self, share: float, mode: str) -> float:
        """Bytes read for a token per second of it, as a part of what plain reading of the file gives, before and after
        it; the best of some, since other work on the machine only slows either down."""
        found = []
        for _ in range(12):
            before = bandwidth(mode)
            prepare(mode)
            n_bytes, began = self.engine.offload_counts()["bytes"], time.perf_counter()
            self.engine.forward_one(self.prompt[0])
            seconds = time.perf_counter() - began
            n_bytes = self.engine.offload_counts()["bytes"] - n_bytes
            self.engine.truncate(len(self.prompt))
            found.append(n_bytes / seconds / max(before, bandwidth(mode)))
        return max(found)


def prepare(mode: str) -> None:
    """Takes the file out of the page cache, if it should not be there."""
    if mode == "cold":
        with open(model_path() or shipped_model(), "rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bandwidth(mode: str) -> float:
    """Bytes per second of reading the model's file once, in the same mode, into memory that stays in a core's cache."""
    prepare(mode)
    flags = getattr(os, "O_DIRECT", 0) if mode == "direct" else 0
    fd = os.open(model_path() or shipped_model(), os.O_RDONLY | flags)
    piece = mmap.mmap(-1, BLOCK)
    piece.write(bytes(BLOCK))
    try:
        offset, began = 0, time.perf_counter()
        while n := os.preadv(fd, [piece], offset):
            offset += n
            if n % 4096:
                break
        return offset / (time.perf_counter() - began)
    finally:
        os.close(fd)
