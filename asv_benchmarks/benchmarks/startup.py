"""What it costs before the first token: import and load."""

import os
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

from .common import load_engine, model_path


def timeraw_import() -> str:
    """In a fresh interpreter."""
    return "import oxillama"


def timeraw_import_engine() -> str:
    return "from oxillama import Engine"


def timeraw_first_token() -> str:
    """Of a process that has imported nothing."""
    return f"import oxillama; oxillama.load({model_path()!r}).generate('Once', max_tokens=1)"


class LoadPacked:
    """The same with packed weights: found in the cache, and made for it."""

    timeout = 600

    def setup(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        os.environ["OXILLAMA_CACHE"] = self.folder.name
        load_engine(packed=True).close()

    def teardown(self) -> None:
        del os.environ["OXILLAMA_CACHE"]
        self.folder.cleanup()

    def time_load_packed(self) -> None:
        load_engine(packed=True).close()

    def time_load_packed_paged(self) -> None:
        import oxillama

        oxillama.load(model_path(), packed=True, offload=1 << 30).close()

    def time_pack(self) -> None:
        from oxillama.models.packed import Cache

        Cache.default().clear()
        load_engine(packed=True).close()


class Vocabulary:
    """A tokenizer of 128 thousand tokens and the first text that it cuts.

    Tokens are merged by a list or by their scores, or those of the best sum of scores are found.
    """

    params = ("merges", "scores", "unigram")
    param_names = ("by",)
    timeout = 300

    def setup(self, by: str) -> None:
        from oxillama.gguf import write_gguf
        from oxillama.tokenizer.token_bytes import BYTE_TO_CHAR

        letters = "abcdefghijklmnopqrstuvwxyz"
        pairs = [a + b for a, b in product(letters, repeat=2)]
        words = [a + b for a, b in product(pairs, repeat=2)][:127_000]
        halves = [f"{w[0]} {w[1]}" for w in pairs] + [f"{w[:2]} {w[2:]}" for w in words]
        tokens = [*BYTE_TO_CHAR.values(), *pairs, *words]
        metadata = {
            "general.architecture": "llama",
            "tokenizer.ggml.model": {"merges": "gpt2", "scores": "llama", "unigram": "t5"}[by],
            "tokenizer.ggml.pre": "llama-bpe",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.array([2, *[1] * (len(tokens) - 1)], np.int32),
            "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.merges": halves,
        }
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "vocabulary.gguf"
        write_gguf(self.path, metadata, {})

    def teardown(self, by: str) -> None:
        self.folder.cleanup()

    def time_tokenizer(self, by: str) -> None:
        from oxillama.tokenizer import Tokenizer

        Tokenizer.from_gguf(self.path).encode("once upon a time")


class Load:
    """From a file in the page cache to an engine that can be asked."""

    timeout = 600

    def setup(self) -> None:
        load_engine().close()

    def time_load(self) -> None:
        load_engine().close()

    def time_load_mapped(self) -> None:
        load_engine(repack=False).close()

    def time_open_file(self) -> None:
        import oxillama.gguf
        from oxillama.core.loading import shipped_model

        oxillama.gguf.open(model_path() or shipped_model()).close()
