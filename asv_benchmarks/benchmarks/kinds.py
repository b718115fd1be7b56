"""Models of about 1 GB of each kind of layer, with random weights, from the recipes that the tests have.

llama.cpp loads them too: they have the tensors and keys that its converter writes, and a vocabulary. Needs a checkout,
whose `tests` folder has the recipes.
"""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import oxillama

ROOT = Path(__file__).parents[2]

# Fields of tests.models.tiny.Shape, by recipe; heads of 128 unless said otherwise.
KINDS: dict[str, dict[str, int]] = {
    "qwen35": {"n_layers": 24, "n_heads": 8, "n_kv_heads": 2, "head_dim": 256, "n_ff": 6144, "n_ssm_heads": 16},
    "qwen35moe": {"n_heads": 8, "n_kv_heads": 2, "head_dim": 256, "n_ff": 544, "n_ssm_heads": 16, "n_experts": 32},
    "gemma4": {"n_layers": 24, "n_heads": 8, "n_kv_heads": 2, "head_dim": 256, "n_ff": 6144, "window": 512},
    "kimi-linear": {"n_kv_heads": 16, "rank": 512, "n_ff": 800, "n_experts": 32, "n_used": 4},
    "rwkv7": {"n_layers": 20, "n_heads": 32, "head_dim": 64, "n_ff": 8192},
    "llama4": {"n_layers": 8, "n_ff": 3072, "n_experts": 8, "n_used": 1},
    "apertus": {"n_layers": 20, "n_ff": 8192},
    "minimax-m2": {"n_ff": 544, "n_experts": 32},
    "minimax-01": {"n_layers": 8, "n_ff": 544, "n_experts": 32},
    "minimax-m3": {"n_ff": 544, "n_experts": 32, "n_chosen": 256},
    "glm-dsa": {"n_ff": 544, "n_experts": 32, "rank": 512, "n_groups": 4, "n_chosen": 128},
    "hrm_text": {"n_layers": 24, "n_ff": 6144},
    "nemotron_h_moe": {"n_layers": 24, "n_ff": 1536, "n_experts": 16, "n_used": 4, "n_ssm_heads": 64, "ssm_dim": 64},
}
COMMON = {
    "n_layers": 16, "n_embd": 2048, "n_heads": 16, "n_kv_heads": 4, "head_dim": 128, "n_used": 8, "n_vocab": 32000,
    "context": 8192, "ssm_dim": 128, "n_state": 128, "n_groups": 16,
}  # fmt: skip
GROUPS = {"nemotron_h_moe": 8}  # of Mamba-2
RANKS = {"w": 64, "a": 64, "v": 32, "g": 128}  # of RWKV-7's small matrices


def make_kind(folder: Path, kind: str, type: str) -> Path:
    """The file ``folder/kind-type.gguf``, made if it is not there; `type` as `oxillama quantize` takes it."""
    path = folder / f"{kind}-{type}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        halves = folder / f"{kind}-F16.gguf"
        _write(halves, kind)
        oxillama.gguf.quantize_file(halves, path, type, num_threads=2)
        halves.unlink()
    return path


def _write(path: Path, kind: str) -> None:
    sys.path.insert(0, str(ROOT))
    tiny: Any = import_module("tests.models.tiny")
    tiny.rwkv.RANKS.update(RANKS)
    recipe, size = tiny.RECIPES[kind], COMMON | {"n_groups": GROUPS.get(kind, COMMON["n_groups"])} | KINDS[kind]
    s = recipe.shape(replace(tiny.Shape(), **size))
    writer, random = oxillama.gguf.GGUFWriter(path), np.random.default_rng(1)
    once: dict[tuple[str, tuple[int, ...]], NDArray[Any]] = {}
    keys = {f"{recipe.arch}.{key}": value for key, value in recipe.all_keys(s).items()}
    for key, value in ({"general.architecture": recipe.arch} | keys | _vocabulary(s.n_vocab) | recipe.bare(s)).items():
        writer.add(key, value)

    def tensor(name: str, dims: tuple[int, ...]) -> NDArray[Any]:
        x: NDArray[np.float32] = tiny.gained(recipe, name, tiny.values(name, dims, random))
        return x.astype(np.float16) if x.ndim > 1 and x.size > 100_000 else x

    for name, dims in recipe.top(s).items():
        writer.add_tensor(name, tensor(name, dims))
    for i in range(s.n_layers):
        for part, dims in recipe.layer(s, i).items():
            if (part, dims) not in once:  # every layer has the same
                once[part, dims] = tensor(part, dims)
            writer.add_tensor(f"blk.{i}.{part}", once[part, dims])
    writer.write()


def _vocabulary(n: int) -> dict[str, Any]:
    from oxillama.tokenizer.token_bytes import BYTE_TO_CHAR

    characters = list(BYTE_TO_CHAR.values())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": characters + [f"w{i}" for i in range(n - len(characters))],
        "tokenizer.ggml.token_type": np.ones(n, np.int32),
        "tokenizer.ggml.merges": ["w 0"],
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.eos_token_id": np.uint32(1),
    }
