"""Protocol of `Llama` as its parts see it."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from oxillama.compat.one_sequence import OneSequence
from oxillama.engine import Engine
from oxillama.tokenizer import Tokenizer

__all__ = ["LlamaLike"]


class LlamaLike(Protocol):
    """Interface of `Llama` that completions, chats, embeddings and the functions of `llama_cpp` use."""

    vocabulary: Tokenizer
    model_path: str
    chat_format: Any
    n_batch: int
    logits_all: bool
    spm_infill: bool
    for_embedding: bool

    @property
    def engine(self) -> Engine: ...

    @property
    def penalty_window(self) -> int: ...

    @property
    def pooling(self) -> str: ...

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def lock(self) -> threading.RLock: ...

    @property
    def one_sequence(self) -> OneSequence: ...

    def n_ctx(self) -> int: ...

    def next_seed(self, given: Any) -> int | None: ...

    def keep_bounds(self) -> None: ...

    def draft_options(self) -> dict[str, Any]: ...

    def prompt_ids(self, text: str) -> list[int]: ...

    def checked_ids(self, name: str, ids: Any) -> list[int]: ...
