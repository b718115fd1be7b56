"""Tokenizers from GGUF metadata, token streams and chat templates."""

from oxillama.tokenizer.chat_template import ChatTemplate
from oxillama.tokenizer.stream import TokenStream
from oxillama.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "TokenStream", "Tokenizer"]
