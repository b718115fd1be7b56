"""Linear attention by the gated delta rule: the speed of a Qwen 3.5, whose state is read and written at each token.

``OXILLAMA_BENCH_DELTA`` names the shape (default: qwen35-0.8b, about 0.8 GB as Q8_0), ``OXILLAMA_BENCH_FOLDER`` where
the models are kept, as in table.py.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import oxillama

from .shapes import _vocabulary
from .table import _Table

SHAPE = os.environ.get("OXILLAMA_BENCH_DELTA", "qwen35-0.8b")
RULE_DIM, TAPS = 128, 4


@dataclass(frozen=True)
class DeltaShape:
    """Hyper-parameters of a dense Qwen 3.5 with tied embeddings, three of four layers of which have the delta rule."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    rule_keys: int
    rule_heads: int
    ffn: int
    vocab: int = 32000
    head_dim: int = 256

    def matrices(self, attention: bool) -> dict[str, tuple[int, int]]:
        """Of one layer."""
        inner, q, kv = self.rule_heads * RULE_DIM, self.heads * self.head_dim, self.kv_heads * self.head_dim
        ffn = dict.fromkeys(("ffn_gate", "ffn_up"), (self.ffn, self.width)) | {"ffn_down": (self.width, self.ffn)}
        if attention:
            parts = {"attn_q": (2 * q, self.width), "attn_k": (kv, self.width), "attn_v": (kv, self.width)}
            return parts | {"attn_output": (self.width, q)} | ffn
        steps = dict.fromkeys(("ssm_alpha", "ssm_beta"), (self.rule_heads, self.width))
        parts = {"attn_qkv": (2 * self.rule_keys * RULE_DIM + inner, self.width), "attn_gate": (inner, self.width)}
        return parts | steps | {"ssm_out": (self.width, inner)} | ffn

    def others(self, attention: bool) -> dict[str, NDArray[np.float32]]:
        """Of one layer; forgetting and time steps as models are initialised."""
        random = np.random.default_rng(1)
        found = dict.fromkeys(("attn_norm.weight", "post_attention_norm.weight"), np.ones(self.width, np.float32))
        if attention:
            return found | {f"attn_{part}_norm.weight": np.ones(self.head_dim, np.float32) for part in "qk"}
        convolved = (2 * self.rule_keys + self.rule_heads) * RULE_DIM
        return found | {
            "ssm_conv1d.weight": random.standard_normal((convolved, TAPS), np.float32) * np.float32(0.3),
            "ssm_dt.bias": np.log(np.expm1(random.uniform(0.001, 0.1, self.rule_heads))).astype(np.float32),
            "ssm_a": -random.uniform(1, 16, self.rule_heads).astype(np.float32),
            "ssm_norm.weight": np.ones(RULE_DIM, np.float32),
        }

    @property
    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "context_length": 1 << 18,
            "embedding_length": self.width,
            "feed_forward_length": self.ffn,
            "block_count": self.layers,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e7,
            "rope.dimension_count": self.head_dim // 4,
            "full_attention_interval": 4,
            "ssm.conv_kernel": TAPS,
            "ssm.inner_size": self.rule_heads * RULE_DIM,
            "ssm.state_size": RULE_DIM,
            "ssm.time_step_rank": self.rule_heads,
            "ssm.group_count": self.rule_keys,
        }
        return {
            "general.architecture": "qwen35",
            "general.name": "random weights",
            **{f"qwen35.{key}": value for key, value in keys.items()},
            **_vocabulary(self.vocab),
        }


SHAPES = {
    "qwen35-0.8b": DeltaShape(24, 1024, 8, 2, 16, 16, 3584),
    "qwen35-2b": DeltaShape(24, 2048, 8, 2, 16, 16, 6144),
    "qwen35-4b": DeltaShape(32, 2560, 16, 4, 16, 32, 9216),
}


def make_delta(folder: Path, shape: str, type: str) -> Path:
    """The file ``folder/shape-type.gguf``, made if it is not there; `type` as `oxillama quantize` takes it."""
    path = folder / f"{shape}-{type}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if type != "F16":
        oxillama.gguf.quantize_file(make_delta(folder, shape, "F16"), path, type, num_threads=os.cpu_count() or 1)
        return path
    made, writer, random = SHAPES[shape], oxillama.gguf.GGUFWriter(path), np.random.default_rng(2)

    def halves(*size: int) -> NDArray[np.float16]:
        return (random.standard_normal(size, np.float32) * np.float32(0.02)).astype(np.float16)

    for key, value in made.metadata.items():
        writer.add(key, value)
    writer.add_tensor("token_embd.weight", halves(made.vocab, made.width))
    writer.add_tensor("output_norm.weight", np.ones(made.width, np.float32))
    once = {kind: {name: halves(*size) for name, size in made.matrices(kind).items()} for kind in (False, True)}
    for layer in range(made.layers):
        kind = layer % 4 == 3
        tensors = {f"{name}.weight": data for name, data in once[kind].items()} | made.others(kind)
        for name, data in tensors.items():
            writer.add_tensor(f"blk.{layer}.{name}", data)
    writer.write()
    return path


class Delta(_Table):
    """A prompt, and one token after another."""

    params = ("Q4_K_M", "Q8_0")
    param_names = ("type",)

    def setup(self, folder: str, type: str) -> None:
        self.open_file(make_delta(Path(folder), SHAPE, type))

    def track_prefill(self, folder: str, type: str) -> float:
        return self.prefill()

    def track_decode(self, folder: str, type: str) -> float:
        return self.decode()
