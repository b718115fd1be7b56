"""Which model is measured, and with what."""

import os

import oxillama

STORY = "Once upon a time there was a little fox who lived under the old oak tree at the edge of the village. "


def model_path() -> str | None:
    """The file that OXILLAMA_BENCH_MODEL names; None is the shipped model."""
    return os.environ.get("OXILLAMA_BENCH_MODEL") or None


def load_engine(*, repack: bool = True, packed: bool = False, prefix_cache: bool = True) -> oxillama.Engine:
    threads = os.environ.get("OXILLAMA_BENCH_THREADS")
    num_threads = int(threads) if threads else None
    return oxillama.load(model_path(), num_threads=num_threads, repack=repack, packed=packed, prefix_cache=prefix_cache)


def tokens(engine: oxillama.Engine, n: int) -> list[int]:
    """A prompt of n tokens of ordinary text."""
    once = engine.tokenize(STORY, add_special=False)
    return (once * (n // len(once) + 1))[:n]
