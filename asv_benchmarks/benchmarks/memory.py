"""Memory at its highest."""

from .common import load_engine, tokens


class Memory:
    """Resident bytes of the process: interpreter, mapped file, packed weights, KV cache, workspace."""

    params = (True, False)
    param_names = ("repack",)

    def peakmem_load(self, repack: bool) -> None:
        load_engine(repack=repack).close()

    def peakmem_generate(self, repack: bool) -> None:
        with load_engine(repack=repack) as engine:
            engine.generate(tokens(engine, 128), max_tokens=32, ignore_eos=True, seed=1)


def track_engine_bytes() -> int:
    """What the engine says that it holds."""
    with load_engine() as engine:
        return sum(engine.memory_bytes().values())


track_engine_bytes.unit = "bytes"  # type: ignore[attr-defined]
