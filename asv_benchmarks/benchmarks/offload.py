"""Weights that come and go: time of a token, and of reading what it needs."""

import os
import time

import oxillama

from .common import model_path, tokens


class Offload:
    """Decoding with a part of the weights in memory. The file is in the system's page cache, unless ``direct``."""

    params = ((0.25, 0.5, 0.9), (False, True))
    param_names = ("share", "direct")
    timeout = 600

    def setup(self, share: float, direct: bool) -> None:
        with oxillama.load(model_path(), context_size=256) as engine:
            most = engine.memory_bytes()["weights"]
        policy = oxillama.OffloadPolicy(budget=int(most * share), direct=direct)
        self.engine = oxillama.load(model_path(), context_size=256, offload=policy)
        self.prompt = tokens(self.engine, 8)
        self.engine.prefill(self.prompt)

    def teardown(self, share: float, direct: bool) -> None:
        self.engine.close()

    def time_token(self, share: float, direct: bool) -> None:
        self.engine.forward_one(self.prompt[0])
        self.engine.truncate(len(self.prompt))

    def peakmem_tokens(self, share: float, direct: bool) -> None:
        for token in self.prompt:
            self.engine.forward_one(token)

    def track_part_of_the_bandwidth(self, share: float, direct: bool) -> float:
        """Bytes read for tokens, by the seconds that these took and by what the file alone is read with; the best of
        five, since other work on the machine only slows either down."""
        best = 0.0
        for _ in range(5):
            before, began = self.engine.offload_counts()["bytes"], time.perf_counter()
            for token in self.prompt[:4]:
                self.engine.forward_one(token)
            seconds = time.perf_counter() - began
            self.engine.truncate(len(self.prompt))
            read = self.engine.offload_counts()["bytes"] - before
            best = max(best, read / seconds / bandwidth(direct))
        return best


def bandwidth(direct: bool) -> float:
    """Bytes per second of reading the model's file once, in large pieces."""
    import mmap

    from oxillama.engine.loading import shipped_model

    fd = os.open(model_path() or shipped_model(), os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if direct else 0))
    piece = mmap.mmap(-1, 4 << 20)
    piece.write(bytes(len(piece)))
    try:
        offset, began = 0, time.perf_counter()
        while n := os.preadv(fd, [piece], offset):
            offset += n
            if n % 4096:
                break
        return offset / (time.perf_counter() - began)
    finally:
        os.close(fd)
