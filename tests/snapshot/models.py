"""Small models of other implementations, by name, and comparisons of engines."""

from pathlib import Path
from unittest.mock import patch

import numpy as np

import oxillama as ox
from oxillama.core import loading
from oxillama.tokenizer import TokenStream
from tests.fakes import FakeTokenizer

MODELS = Path(__file__).parents[1] / "data" / "models"
ENCODERS = (
    "bert",
    "bert-pairs",
    "eurobert",
    "gemma-embedding",
    "jina-bert-v2",
    "jina-bert-v3",
    "llama-embed",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "roberta-ranker",
    "t5encoder",
)
DENOISERS = ("dream", "llada", "rnd1")
ENCODER_DECODERS = ("t5", "t5-flan", "umt5")
WITHOUT_SESSIONS = ENCODERS + DENOISERS + ENCODER_DECODERS
DECODERS = sorted(path.stem for path in MODELS.glob("*.gguf") if path.stem not in WITHOUT_SESSIONS)
# One of each kind of state and attention.
KINDS = (
    "llama",
    "gemma3",
    "mamba",
    "mamba2",
    "jamba",
    "falcon-h1",
    "lfm2",
    "deepseek2",
    "gpt-oss",
    "bloom",
    "qwen2moe",
    "qwen35",
    "glm-dsa",
    "minimax-m3",
)


def path_of(name):
    return str(MODELS / f"{name}.gguf")


class Letters(FakeTokenizer):
    """For models that come without a tokenizer: a letter for each token; none ends the text."""

    n_vocab = 64
    eog_ids = frozenset()

    def token_bytes(self, token):
        return b"%c" % (97 + token % 26)

    def stream(self, *, skip_special=False, shown=()):
        return TokenStream(self.token_bytes)


def tokenizer_of(file, found=loading.own_tokenizer):
    return found(file) if "tokenizer.ggml.model" in file.metadata else Letters()


def load(name, **fields):
    with patch("oxillama.core.loading.own_tokenizer", tokenizer_of):
        return ox.load(path_of(name), **{"num_threads": 1, **fields})


def tokens_of(engine, n, seed=0):
    return np.random.default_rng(seed).integers(3, engine.n_vocab, n).tolist()


def same(a, b):
    return a.dtype == b.dtype and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def told(chunks):
    """What a caller sees of them."""
    return [(c.text, c.token_ids, c.finish_reason, c.logprobs, c.prompt_logprobs, c.tool_calls) for c in chunks]
