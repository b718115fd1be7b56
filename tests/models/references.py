"""Models of other implementations, by name: their tokens, and what we compute from these."""

from pathlib import Path

import numpy as np

import oxillama.gguf as gguf
from oxillama.core.runner import Runner
from oxillama.kernels.batch import Span
from oxillama.kv_cache.arrays import slot_bytes
from oxillama.layer_state import source_positions
from oxillama.models import load_model
from tests.models.naive.t5 import n_source

DATA = Path(__file__).parent.parent / "data"
MODELS = sorted(p.stem for p in (DATA / "models").glob("*.gguf"))
QUANTIZED = sorted(p.stem for p in (DATA / "quantized").glob("*.gguf"))
TOKENS = np.random.default_rng(0).integers(0, 131, 40).tolist()


def passes(spec, tokens, chunk, block=16):
    """(tokens, position of the first, rows that are wanted, tokens that an encoder reads) of each pass.

    The tokens come in chunks; an encoder takes its own whole, which are all, or those before a decoder's.
    """
    if not spec.causal:
        chunk = len(tokens)
    n = 0 if spec.decoder_start is None else n_source(tokens)
    first = source_positions(n, block)
    if n:
        yield tokens[:n] + [0] * (first - n), 0, "none", n
    for start in range(0, len(tokens) - n, chunk):
        yield tokens[n + start : n + start + chunk], first + start, "all", n


def logits(path, tokens, *, threads=2, kv_type="f32", kv_block_size=16, chunk=None, repack=True, portable=False):
    """Every position's logits, the prompt taken in chunks; hidden states of an encoder, which takes it whole."""
    with gguf.open(path) as file:
        model = load_model(file, num_threads=threads, repack=repack, portable=portable)
    n_blocks = -(-len(tokens) // kv_block_size) + 1
    n_slots = 3 if slot_bytes(model.spec.states) else 0
    runner = Runner(
        model, num_threads=threads, kv_type=kv_type, kv_block_size=kv_block_size, n_blocks=n_blocks, n_slots=n_slots
    )
    table = list(reversed(range(n_blocks)))
    forward = forward_of(runner)
    parts = []
    for i, (part, start, want, n) in enumerate(passes(model.spec, tokens, chunk or len(tokens), kv_block_size)):
        slots = ((i - 1) % n_slots if i else -1, i % n_slots) if n_slots else None
        parts.append(forward([Span(part, start, table, want, slots, n_source=n)]).copy())
    return np.concatenate(parts)


def forward_of(runner):
    """Logits, or hidden states of a model that has none."""
    spec = runner.model.spec
    return runner.forward if spec.causal or spec.denoises else runner.hidden


def path_of(name):
    folder = "models" if name in MODELS else "quantized"
    return DATA / folder / f"{name}.gguf"


def tokens_of(name):
    return np.load(path_of(name).with_suffix(".npz"))["tokens"].tolist()


def rewritten(path, tmp_path, keys=None, tensors=None):
    """A file with other keys (None: without it) and further tensors."""
    with gguf.open(path) as file:
        metadata = dict(file.metadata) | (keys or {})
        merged = {t.name: np.array(t.dequantize()) for t in file.tensors.values()} | (tensors or {})
        gguf.write_gguf(tmp_path / "changed.gguf", {k: v for k, v in metadata.items() if v is not None}, merged)
    return tmp_path / "changed.gguf"


def load(path):
    with gguf.open(path) as file:
        return load_model(file)
