"""A tiny diffusion model with the tokens of the shipped model, one of which is its mask."""

import numpy as np

import oxillama.gguf as gguf
from oxillama.core.loading import shipped_model
from tests.models.tiny import Shape, tiny

MASK = 7


def denoiser(folder):
    """Writes the file and returns its path."""
    with gguf.open(shipped_model()) as shipped:
        tokens = {key: shipped.metadata[key] for key in shipped.metadata if key.startswith("tokenizer.")}
        shape = Shape(n_vocab=shipped.tensors["token_embd.weight"].shape[0])
    with gguf.open(tiny("dream", folder, shape)) as file:
        metadata = dict(file.metadata) | tokens | {"tokenizer.ggml.mask_token_id": MASK}
        tensors = {name: np.array(t.dequantize()) for name, t in file.tensors.items()}
        gguf.write_gguf(folder / "denoiser.gguf", metadata, tensors)
    return folder / "denoiser.gguf"
