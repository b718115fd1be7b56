"""Models without attention: the speed of a Mamba-2, whose state is read and written at each token.

``OXILLAMA_BENCH_MAMBA2`` names the shape (default: mamba2-130m, made in seconds; mamba2-1.3b takes about 1 GB as
Q4_K_M), ``OXILLAMA_BENCH_FOLDER`` where the models are kept, as in table.py.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import oxillama

from .shapes import _vocabulary
from .table import _Table

SHAPE = os.environ.get("OXILLAMA_BENCH_MAMBA2", "mamba2-130m")


@dataclass(frozen=True)
class Mamba2Shape:
    """Hyper-parameters of a Mamba-2 with tied embeddings, as its authors published them."""

    layers: int
    width: int
    heads: int
    vocab: int = 50288
    state: int = 128
    taps: int = 4

    @property
    def inner(self) -> int:
        return 2 * self.width

    @property
    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Of one layer; forgetting and time steps as models are initialised."""
        random = np.random.default_rng(1)

        def values(*size: int) -> NDArray[np.float32]:
            return random.standard_normal(size, np.float32) * np.float32(0.02)

        convolved = self.inner + 2 * self.state
        return {
            "attn_norm.weight": np.ones(self.width, np.float32),
            "ssm_in.weight": values(self.inner + convolved + self.heads, self.width),
            "ssm_conv1d.weight": values(convolved, self.taps),
            "ssm_conv1d.bias": values(convolved),
            "ssm_dt.bias": np.log(np.expm1(random.uniform(0.001, 0.1, self.heads))).astype(np.float32),
            "ssm_a": -random.uniform(1, 16, (self.heads, 1)).astype(np.float32),
            "ssm_d": np.ones((self.heads, 1), np.float32),
            "ssm_norm.weight": np.ones((1, self.inner), np.float32),
            "ssm_out.weight": values(self.width, self.inner),
        }

    @property
    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "context_length": 1 << 20,
            "embedding_length": self.width,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "block_count": self.layers,
            "ssm.conv_kernel": self.taps,
            "ssm.inner_size": self.inner,
            "ssm.state_size": self.state,
            "ssm.time_step_rank": self.heads,
            "ssm.group_count": 1,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "vocab_size": self.vocab,
        }
        return {
            "general.architecture": "mamba2",
            "general.name": "random weights",
            **{f"mamba2.{key}": value for key, value in keys.items()},
            **_vocabulary(self.vocab),
        }


SHAPES = {"mamba2-130m": Mamba2Shape(24, 768, 24), "mamba2-1.3b": Mamba2Shape(48, 2048, 64)}


def make_mamba2(folder: Path, shape: str, type: str) -> Path:
    """The file ``folder/shape-type.gguf``, made if it is not there; `type` as `oxillama quantize` takes it."""
    path = folder / f"{shape}-{type}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if type != "F16":
        source = make_mamba2(folder, shape, "F16")
        oxillama.gguf.quantize_file(source, path, type, num_threads=os.cpu_count() or 1)
        return path
    writer = oxillama.gguf.GGUFWriter(path)
    for key, value in SHAPES[shape].metadata.items():
        writer.add(key, value)
    table = np.random.default_rng(2).standard_normal((SHAPES[shape].vocab, SHAPES[shape].width), np.float32)
    writer.add_tensor("token_embd.weight", (table * np.float32(0.02)).astype(np.float16))
    writer.add_tensor("output_norm.weight", np.ones(SHAPES[shape].width, np.float32))
    once = SHAPES[shape].tensors
    for layer in range(SHAPES[shape].layers):
        for name, data in once.items():
            halves = data.ndim == 2 and name.endswith(("_in.weight", "_out.weight"))
            writer.add_tensor(f"blk.{layer}.{name}", data.astype(np.float16) if halves else data)
    writer.write()
    return path


class Mamba2(_Table):
    """A prompt, and one token after another."""

    params = ("Q4_K_M", "Q8_0")
    param_names = ("type",)

    def setup(self, folder: str, type: str) -> None:
        self.open_file(make_mamba2(Path(folder), SHAPE, type))

    def track_prefill(self, folder: str, type: str) -> float:
        return self.prefill()

    def track_decode(self, folder: str, type: str) -> float:
        return self.decode()
