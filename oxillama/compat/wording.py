"""Errors of the engine with the keywords of the replaced package in place of the engine's own."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from oxillama.errors import OxiLlamaError

__all__ = ["WORDS", "own_words", "renamed", "reworded"]

F = TypeVar("F", bound=Callable[..., Any])

# What the engine calls it -> what `Llama` calls it. Phrases are for remedies that `Llama` has no keyword for.
WORDS = {
    "context_size": "n_ctx",
    "num_threads": "n_threads",
    "prefill_chunk_size": "n_batch",
    "kv_type": "type_k and type_v",
    "overrides": "kv_overrides",
    "rope.scaling": "rope_scaling_type",
    "rope.factor": "rope_freq_scale",
    "rope.freq_base": "rope_freq_base",
    "rope.original_context": "yarn_orig_ctx",
    **{f"rope.{name}": f"yarn_{name}" for name in ("ext_factor", "attn_factor", "beta_fast", "beta_slow")},
    "rope must be left out": "rope_scaling_type, rope_freq_scale and rope_freq_base must be left out",
    "repetition_penalty": "repeat_penalty",
    "repetition_penalty_window": "last_n_tokens_size",
    "logits_processors": "logits_processor",
    "num_speculative": "num_pred_tokens",
    "give another pooling": "give another pooling_type",
    "lower kv_budget, context_size or kv_block_size": "lower n_ctx",
    "lower max_tokens or raise kv_budget": "lower max_tokens",
    "give tokenizer_path, a GGUF file that does": "give a GGUF file that does",
    "prompt_logprobs": "logprobs with echo",
    "truncate() or reset() the session": "reset() it",
}
_FOUND = re.compile("|".join(rf"(?<![\w.]){re.escape(word)}(?!\w)" for word in sorted(WORDS, key=len, reverse=True)))


def reworded(message: str) -> str:
    """A message of the engine with the keywords of `Llama`."""
    return _FOUND.sub(lambda found: WORDS[found.group()], message)


@contextmanager
def renamed() -> Iterator[None]:
    """A block whose errors name the keywords of `Llama`. They stay the errors that they are."""
    try:
        yield
    except OxiLlamaError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (reworded(error.args[0]), *error.args[1:])
        raise


def own_words(method: F) -> F:
    """A decorator: the errors of a method, and of the generator that it returns, name the keywords of `Llama`."""

    @functools.wraps(method)
    def call(*args: Any, **given: Any) -> Any:
        with renamed():
            found = method(*args, **given)
        return _pieces(found) if isinstance(found, Generator) else found

    return call  # type: ignore[return-value]


def _pieces(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    with renamed():
        return (yield from generator)
