"""Models of real shapes with random weights: speed does not depend on values."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import oxillama


@dataclass(frozen=True)
class Shape:
    """Hyper-parameters of a Llama with tied embeddings."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Of one layer."""
        kv = self.width // self.heads * self.kv_heads
        return {
            "attn_q": (self.width, self.width),
            "attn_k": (kv, self.width),
            "attn_v": (kv, self.width),
            "attn_output": (self.width, self.width),
            "ffn_gate": (self.ffn, self.width),
            "ffn_up": (self.ffn, self.width),
            "ffn_down": (self.width, self.ffn),
        }


SHAPES = {
    "llama3.2-1b": Shape(16, 2048, 32, 8, 8192, 128256),
    "llama-160m": Shape(12, 768, 12, 12, 3072, 32000),
    "llama-260k": Shape(5, 64, 8, 4, 172, 512),
}


def make_model(folder: Path, shape: str, type: str) -> Path:
    """The file ``folder/shape-type.gguf``, made if it is not there; `type` as `oxillama quantize` takes it."""
    path = folder / f"{shape}-{type}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if type in ("F16", "F32"):
            _write(path, SHAPES[shape], np.float16 if type == "F16" else np.float32)
        else:
            oxillama.gguf.quantize_file(make_model(folder, shape, "F16"), path, type, num_threads=os.cpu_count() or 1)
    return path


def _write(path: Path, shape: Shape, dtype: type[np.float16] | type[np.float32]) -> None:
    writer = oxillama.gguf.GGUFWriter(path)
    for key, value in _metadata(shape).items():
        writer.add(key, value)
    random = np.random.default_rng(1)

    def matrix(*size: int) -> NDArray[Any]:
        values: NDArray[np.float32] = random.standard_normal(size, np.float32) * np.float32(0.02)
        return values.astype(dtype)

    once = {name: matrix(*size) for name, size in shape.matrices.items()}  # every layer has the same
    writer.add_tensor("token_embd.weight", matrix(shape.vocab, shape.width))
    writer.add_tensor("output_norm.weight", np.ones(shape.width, np.float32))
    for layer in range(shape.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(shape.width, np.float32))
        for name, data in once.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", data)
    writer.write()


def _metadata(shape: Shape) -> dict[str, object]:
    llama: dict[str, object] = {
        "context_length": 8192,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.width // shape.heads,
        "rope.freq_base": 500000.0,
        "vocab_size": shape.vocab,
    }
    return {
        "general.architecture": "llama",
        "general.name": "random weights",
        **{f"llama.{key}": value for key, value in llama.items()},
        **_vocabulary(shape.vocab),
    }


def _vocabulary(n: int) -> dict[str, object]:
    """Bytes, letters and numbered words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    types = [2, 3, 3] + [6] * 256 + [1] * (n - 259)
    tokens += [f"\u2581w{i}" for i in range(n - len(tokens))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.arange(0, -n, -1).astype(np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
