"""Tokenizers for tests: from recorded vocabularies, and from small ones made on the spot."""

import base64
import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from oxillama.gguf import write_gguf
from oxillama.tokenizer import Tokenizer
from oxillama.tokenizer._texts import TokenTexts
from oxillama.tokenizer.token_bytes import BYTE_TO_CHAR

DATA = Path(__file__).parent / "data"
P = "tokenizer.ggml."

# Vocabularies cut down to the tokens that the recorded texts can reach, renumbered. The ids of ``cases`` are those of
# the models' original tokenizers, those of ``special_cases`` llama.cpp's, with BOS added and special tokens parsed.
RECORDED = (
    "bert-bge",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "phi-3",
    "qwen2",
    "starcoder",
)
# Vocabularies that sentencepiece trained, with the ids that it gives.
SENTENCEPIECE = ("sentencepiece_bpe", "sentencepiece_unigram", "sentencepiece_unigram_rules")


@cache
def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    meta = data["metadata"]
    if "charsmap" in data:
        meta[P + "precompiled_charsmap"] = np.frombuffer(base64.b64decode(data["charsmap"]), np.uint8)
    if P + "scores" in meta:
        meta[P + "scores"] = np.array(meta[P + "scores"], np.float32)
    return data


def file_bytes(metadata: Mapping[str, object]) -> bytes:
    """A GGUF file with this metadata and no tensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        write_gguf(path, metadata, {})
        return path.read_bytes()


def make(metadata: Mapping[str, object], **overrides: object) -> Tokenizer:
    """A tokenizer; ``overrides`` replace ``tokenizer.ggml.*`` keys, and None removes them."""
    merged = dict(metadata)
    for key, value in overrides.items():
        merged[P + key] = value
    return Tokenizer.from_gguf(file_bytes({key: value for key, value in merged.items() if value is not None}))


@cache
def tokenizer(name: str) -> Tokenizer:
    return make(recorded(name)["metadata"])


def byte_level(merges: list[str], extra: tuple[str, ...] = (), pre: str = "gpt-2") -> dict[str, object]:
    """Metadata of a ``gpt2`` vocabulary: the 256 bytes, what the merges make, and ``extra`` as control tokens."""
    tokens = list(BYTE_TO_CHAR.values())
    tokens += [token for token in dict.fromkeys(merge.replace(" ", "") for merge in merges) if token not in tokens]
    types = [1] * len(tokens) + [3] * len(extra)
    return {
        "general.architecture": "llama",
        P + "model": "gpt2",
        P + "pre": pre,
        P + "tokens": [*tokens, *extra],
        P + "token_type": types,
        P + "merges": merges,
    }


def by_score(pieces: list[str], scores: list[float], **flags: object) -> dict[str, object]:
    """Metadata of a ``llama`` vocabulary: <unk> <s> </s>, 256 byte tokens, then the pieces."""
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    return {
        "general.architecture": "llama",
        P + "model": "llama",
        P + "tokens": special + byte_tokens + pieces,
        P + "scores": np.array([0.0] * 259 + scores, np.float32),
        P + "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        **{P + key: value for key, value in flags.items()},
    }


def strings(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """A GGUF array of strings: bytes, and where each begins."""
    raw = [text.encode() for text in texts]
    payload = b"".join(len(text).to_bytes(8, "little") + text for text in raw)
    return np.frombuffer(payload, np.uint8), np.cumsum([0, *(8 + len(text) for text in raw)], dtype=np.int64)


def table(texts: list[str]) -> TokenTexts:
    return TokenTexts(*strings(texts))
