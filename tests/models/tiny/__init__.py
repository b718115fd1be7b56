"""Tiny random models of every architecture, in any shape, as llama.cpp's converter would write them."""

import zlib

import numpy as np

import oxillama.gguf as gguf

from . import delta, encoders, gemma4, indexed, kda, minimax, relatives, rwkv, sparse, t5, table
from .recipes import Recipe
from .shape import Shape

__all__ = ["RECIPES", "Recipe", "Shape", "tiny"]

FAMILIES = (table, relatives, sparse, encoders, gemma4, delta, kda, minimax, rwkv, indexed, t5)
RECIPES = {name: recipe for family in FAMILIES for name, recipe in family.RECIPES.items()}


def tiny(name, folder, shape=None, *, seed=0):
    """Writes a file of a recipe (most have the name of their architecture) and returns its path."""
    recipe = RECIPES[name]
    s = recipe.shape(shape or Shape())
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    shapes = recipe.top(s)
    for i in range(s.n_layers):
        shapes |= {f"blk.{i}.{part}": dims for part, dims in recipe.layer(s, i).items()}
    metadata = {"general.architecture": recipe.arch}
    metadata |= {f"{recipe.arch}.{key}": value for key, value in recipe.all_keys(s).items()}
    metadata |= recipe.bare(s)
    path = folder / f"{name}-{seed}.gguf"
    tensors = {part: gained(recipe, part, values(part, dims, rng)) for part, dims in shapes.items()}
    gguf.write_gguf(path, metadata, tensors)
    return path


def gained(recipe, part, x):
    return x * np.float32(recipe.gains.get(part.removesuffix(".weight").rpartition(".")[2], 1.0))


def values(name, shape, rng):
    """Of a size that keeps every part of the model in the logits: scores that matter, decays neither 0 nor 1."""
    x = rng.standard_normal(shape)
    if "norm" in name and not name.endswith("bias"):
        x = 1 + 0.3 * x
    elif name.endswith("ssm_a"):
        x = -np.exp(x)
    elif name.endswith("ssm_dt.bias"):
        x = x - 2
    elif name.startswith("rope_"):
        x = 1 + abs(x)
    elif name.endswith(("bias", "exp_probs_b")) or "conv1d" in name or "conv.conv" in name:
        x = 0.4 * x
    elif len(shape) > 1:
        x = gain(name) * x / np.sqrt(shape[-1])
    return x.astype(np.float32)


def gain(name):
    """Routers choose experts that are no near ties."""
    return 2.0 if "ffn_gate_inp." in name else 1.0
