"""Tokenizers on bytes: of the model's file, or of the package `transformers`."""

from __future__ import annotations

import abc
from typing import Any, Protocol, Self

from oxillama.errors import TokenizerError
from oxillama.tokenizer import Tokenizer

__all__ = ["BaseLlamaTokenizer", "LlamaHFTokenizer", "LlamaTokenizer"]


class BaseLlamaTokenizer(abc.ABC):
    """Base of tokenizers: UTF-8 to token ids, and back."""

    @abc.abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids. add_bos: with what the model begins texts with. special: control tokens are read in the text."""
        raise NotImplementedError

    @abc.abstractmethod
    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """UTF-8. prev_tokens: what they follow. special: with the text of control tokens."""
        raise NotImplementedError


class _HasVocabulary(Protocol):
    vocabulary: Tokenizer


class LlamaTokenizer(BaseLlamaTokenizer):
    """The tokenizer of a model's file."""

    def __init__(self, llama: _HasVocabulary) -> None:
        self._vocabulary = llama.vocabulary

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        if not isinstance(text, bytes | bytearray):
            raise TokenizerError(f"text must be bytes, not {type(text).__name__}: encode it as UTF-8")
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"text must be UTF-8: byte {error.start} is not") from None
        return self._vocabulary.encode(decoded, add_bos, special)

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        begins = bool(tokens) and tokens[0] == self._vocabulary.bos_id
        return self._vocabulary.decode_bytes(tokens, skip_special=not special, continuation=not begins)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """`tokenize` of a str."""
        return self.tokenize(text.encode(), add_bos, special)

    def decode(self, tokens: list[int]) -> str:
        """`detokenize` as a str, without parts of characters."""
        return self.detokenize(tokens).decode("utf-8", "ignore")

    @classmethod
    def from_ggml_file(cls, path: str) -> Self:
        """The tokenizer of a GGUF file, without its weights."""
        made = cls.__new__(cls)
        made._vocabulary = Tokenizer.from_gguf(path)
        return made


class LlamaHFTokenizer(BaseLlamaTokenizer):
    """A tokenizer of the package `transformers`."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self.hf_tokenizer = hf_tokenizer

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        ids: list[int] = self.hf_tokenizer.encode(text.decode("utf-8", "ignore"), add_special_tokens=special)
        return ids

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        before = list(prev_tokens or ())
        both = self._decoded([*before, *tokens], special)
        return both[len(self._decoded(before, special)) :] if before else both

    def _decoded(self, ids: list[int], special: bool) -> bytes:
        text: str = self.hf_tokenizer.decode(ids, skip_special_tokens=not special)
        return text.encode("utf-8", "ignore")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str) -> LlamaHFTokenizer:
        """The tokenizer of a repository or a folder. Raises ImportError without `transformers`."""
        from transformers import AutoTokenizer  # type: ignore[import-not-found, unused-ignore]

        return cls(AutoTokenizer.from_pretrained(pretrained_model_name_or_path=pretrained_model_name_or_path))
