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
    """Hyper-parameters of a Llama with tied embeddings, or with experts of a Qwen3."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    experts: int = 0
    used: int = 0

    @property
    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Of one layer."""
        kv = self.width // self.heads * self.kv_heads
        attention: dict[str, tuple[int, ...]] = {
            "attn_q": (self.width, self.width),
            "attn_k": (kv, self.width),
            "attn_v": (kv, self.width),
            "attn_output": (self.width, self.width),
        }
        if not self.experts:
            return attention | {
                "ffn_gate": (self.ffn, self.width),
                "ffn_up": (self.ffn, self.width),
                "ffn_down": (self.width, self.ffn),
            }
        return attention | {
            "ffn_gate_inp": (self.experts, self.width),
            "ffn_gate_exps": (self.experts, self.ffn, self.width),
            "ffn_up_exps": (self.experts, self.ffn, self.width),
            "ffn_down_exps": (self.experts, self.width, self.ffn),
        }

    @property
    def norms(self) -> dict[str, int]:
        """Of one layer."""
        head = self.width // self.heads
        return {"attn_norm": self.width, "ffn_norm": self.width} | (
            {"attn_q_norm": head, "attn_k_norm": head} if self.experts else {}
        )


SHAPES = {
    "llama3.2-1b": Shape(16, 2048, 32, 8, 8192, 128256),
    # Two of its layers: what contexts of tens of thousands of tokens cost a layer is known in minutes.
    "llama3.2-1b-2layer": Shape(2, 2048, 32, 8, 8192, 4096),
    "qwen3moe-1.7b": Shape(16, 1024, 16, 4, 512, 32000, experts=64, used=8),
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
    if shape.experts:
        once["ffn_gate_inp"] = once["ffn_gate_inp"].astype(np.float32)  # as files have it
    writer.add_tensor("token_embd.weight", matrix(shape.vocab, shape.width))
    writer.add_tensor("output_norm.weight", np.ones(shape.width, np.float32))
    for layer in range(shape.layers):
        for name, width in shape.norms.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
        for name, data in once.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", data)
    writer.write()


def _metadata(shape: Shape) -> dict[str, object]:
    arch = "qwen3moe" if shape.experts else "llama"
    values: dict[str, object] = {
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
    if shape.experts:
        values |= {
            "attention.key_length": shape.width // shape.heads,
            "attention.value_length": shape.width // shape.heads,
            "expert_count": shape.experts,
            "expert_used_count": shape.used,
            "expert_feed_forward_length": shape.ffn,
        }
    return {
        "general.architecture": arch,
        "general.name": "random weights",
        **{f"{arch}.{key}": value for key, value in values.items()},
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
