"""Adapters made by hand: GGUF files as llama.cpp's converter writes them, and PEFT folders."""

import json
import re

import numpy as np

import oxillama.gguf as gguf

# Tensors of more than one dimension that are no linear layers: norms by head, convolutions, states, factors, segments,
# shares of the token before, biases by distance; and what the first layer of RWKV-7 has no use for.
NOT_LINEAR = re.compile(
    r"norm|conv1d|conv\.conv|shortconv\.conv|ssm_a|ssm_d$|rope_|token_types|sinks|lerp|rel_b|blk\.0\.time_mix_v\d|\.bias$"
)
TABLES = ("token_embd.weight", "position_embd.weight")


def linear_shapes(path):
    """Shapes of every matrix and table of a model's file; a single row counts as one, too."""
    with gguf.open(path) as file:
        shapes = {name: t.shape for name, t in file.tensors.items() if not NOT_LINEAR.search(name)}
    return {
        name: (1, *shape) if len(shape) == 1 else shape
        for name, shape in shapes.items()
        if len(shape) > 1 or name.endswith(("inp_shexp.weight", "cls.output.weight"))
    }


def random_factors(shapes, rank, seed=0):
    """For each tensor (a, b): their product is about as large as half of the tiny models' weights."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, (*stack, n_out, n_in) in shapes.items():
        a = rng.standard_normal((*stack, rank, n_in)) / np.sqrt(n_in)
        b = 0.5 * rng.standard_normal((*stack, n_out, rank)) / np.sqrt(rank)
        found[name] = a.astype(np.float32), b.astype(np.float32)
    return found


def write_adapter(path, arch, factors, alpha=8.0, metadata=None, dtype=np.float32):
    """A GGUF adapter; tables stand the other way round, as the converter has them."""
    tensors = {}
    for name, (a, b) in factors.items():
        first, second = (b, a.T) if name in TABLES else (a, b)
        tensors[f"{name}.lora_a"] = np.ascontiguousarray(first, dtype)
        tensors[f"{name}.lora_b"] = np.ascontiguousarray(second, dtype)
    described = {
        "general.type": "adapter",
        "general.architecture": arch,
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
    }
    described |= metadata or {}
    gguf.write_gguf(path, {key: value for key, value in described.items() if value is not None}, tensors)
    return path


def merged_file(model, path, *changes):
    """The model's file in F32 with each ``(factors, scale)`` added to its weights, computed in double."""
    with gguf.open(model) as file:
        tensors = {name: np.array(t.dequantize(), np.float64) for name, t in file.tensors.items()}
        for factors, scale in changes:
            for name, (a, b) in factors.items():
                delta = scale * (b.astype(np.float64) @ a.astype(np.float64))
                tensors[name] += delta.reshape(tensors[name].shape)
        gguf.write_gguf(path, file.metadata, {name: t.astype(np.float32) for name, t in tensors.items()})
    return path


def write_safetensors(path, tensors, metadata=None):
    """``tensors``: arrays, or (dtype, shape, bytes)."""
    header, parts, end = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, t in tensors.items():
        dtype, shape, raw = t if isinstance(t, tuple) else (f"F{8 * t.itemsize}", t.shape, t.tobytes())
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + len(raw)]}
        parts.append(raw)
        end += len(raw)
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(parts))


def write_peft(folder, tensors, **config):
    """A folder with a configuration and ``base_model.model.``-tensors."""
    folder.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "x/y"} | config
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    write_safetensors(
        folder / "adapter_model.safetensors", {f"base_model.model.{k}": v for k, v in tensors.items()}, {"format": "pt"}
    )
    return folder
