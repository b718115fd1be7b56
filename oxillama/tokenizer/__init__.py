"""Tokenizers from GGUF metadata, and token streams."""

from oxillama.tokenizer.stream import TokenStream
from oxillama.tokenizer.tokenizer import Tokenizer

__all__ = ["TokenStream", "Tokenizer"]
