"""Export of parameters to a GGUF file: Q8_0 weights, F32 norms, and all metadata that a runtime needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from train_data import BOS, CHAT_TEMPLATE, END, EOS, SPECIAL_TOKENS
from train_model import Params, Shape

from oxillama.gguf import GGUFWriter

NORMAL, CONTROL = 1, 3  # tokenizer.ggml.token_type
MOSTLY_Q8_0 = 7  # general.file_type
QUANTIZATION_VERSION = 2
TYPES = {"tokenizer.ggml.token_type": "INT32", "general.sampling.top_k": "INT32"}  # others follow from the value

DESCRIPTIONS = {
    "default": "A very small model that tells short stories, adds small numbers and describes characters as JSON. "
    "It ships with oxillama so that the first command, the tests and the examples run offline. "
    "Trained from scratch by oxillama/shipped/train_default.py on synthetic text that the script writes itself "
    "({made}); no other data was used.",
    "draft": "A draft model for the default model of oxillama: it guesses that model's next tokens, for speculative "
    "decoding. Trained by oxillama/shipped/train_draft.py on text sampled from the default model, to give that model's "
    "probabilities ({made}); no other data was used.",
}

# Sampling defaults for programs that read them. Of 36 stories at 0.7, 0.8 and 1.0, all of which ended by themselves,
# 11, 6 and 6 % of the runs of six tokens had been in the same story before, and of 48 records 31, 31 and 30 were right
# (train_check.py); a repetition penalty of 1.1 changed nothing about stories, and cost a record or two. A draft has
# none: it draws as the request does that it guesses for.
SAMPLING: dict[str, dict[str, float]] = {
    "default": {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "draft": {},
}


def quantise_q8_0(weight: npt.NDArray[np.float32]) -> bytes:
    """Q8_0 blocks of 32 values: a float16 scale d = max|x| / 127, then 32 int8 values round(x / d)."""
    blocks = weight.astype(np.float32).reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    packed = np.empty(len(blocks), np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    packed["d"], packed["q"] = scale[:, 0].astype(np.float16), np.rint(blocks * inverse).astype(np.int8)
    return packed.tobytes()


def general_metadata(size: str, description: str) -> dict[str, object]:
    """The general.* keys."""
    return {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": f"oxillama {size}",
        "general.author": "the oxillama authors",
        "general.version": "1",
        "general.description": description,
        "general.license": "apache-2.0",
        "general.languages": ["en"],
        "general.tags": ["text-generation", "stories"],
    }


def sampling_metadata(size: str) -> dict[str, object]:
    """The general.sampling.* keys."""
    return {f"general.sampling.{key}": value for key, value in SAMPLING[size].items()}


def model_metadata(shape: Shape) -> dict[str, object]:
    """The llama.* keys."""
    return {
        "llama.vocab_size": shape.n_vocab,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.n_embd,
        "llama.block_count": shape.n_layers,
        "llama.feed_forward_length": shape.n_ff,
        "llama.attention.head_count": shape.n_heads,
        "llama.attention.head_count_kv": shape.n_kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": shape.norm_eps,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": shape.rope_base,
    }


def tokenizer_metadata(tokenizer: Tokenizer) -> dict[str, object]:
    """The tokenizer.* keys; "smollm" names the pre-tokenizer that ``train_data.train_tokenizer`` uses."""
    ids: dict[str, int] = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token in SPECIAL_TOKENS else NORMAL for token in tokens],
        "tokenizer.ggml.merges": [pair if isinstance(pair, str) else " ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": ids[BOS],
        "tokenizer.ggml.eos_token_id": ids[EOS],
        "tokenizer.ggml.eot_token_id": ids[END],
        "tokenizer.ggml.padding_token_id": ids[EOS],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def export_gguf(
    path: Path, size: str, shape: Shape, params: Params, vocabulary: Mapping[str, object], made: str
) -> None:
    """Write the model: matrices as Q8_0, vectors as F32.

    ``vocabulary`` has the tokenizer.* keys, ``made`` says by what run or runs, for the description.
    """
    metadata = general_metadata(size, DESCRIPTIONS[size].format(made=made)) | sampling_metadata(size)
    metadata |= model_metadata(shape) | dict(vocabulary)
    metadata |= {"general.file_type": MOSTLY_Q8_0, "general.quantization_version": QUANTIZATION_VERSION}
    writer = GGUFWriter(path)
    for key, value in metadata.items():
        writer.add(key, value, TYPES.get(key))
    for name, parameter in params.items():
        weight = parameter.detach().float().numpy()
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, quantise_q8_0(weight), shape=weight.shape, type="Q8_0")
    writer.write()
