"""Facts about a model's file, as lists of models tell them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """Facts of a model's file.

    n_bytes: its size. digest: equal for files with equal ends and tensors. modified: nanoseconds since 1970.
    context_length: tokens of a request, of a loaded model; else those that it was trained with.
    """

    family: str = ""
    n_parameters: int | None = None
    quantization: str = ""
    n_bytes: int = 0
    digest: str = ""
    modified: int = 0
    context_length: int | None = None
    embedding_length: int | None = None
    capabilities: tuple[str, ...] = ()
