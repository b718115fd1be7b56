from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oxillama.kernels.batch import Batch
from oxillama.kernels.rows import Rows

KV_TYPES: dict[str, int]

def kv_bytes(kv_type: str, block_tokens: int, k_dim: int, v_dim: int) -> tuple[int, int]: ...

class KvSlab:
    k: NDArray[np.uint8]
    v: NDArray[np.uint8]
    kv_type: str
    n_blocks: int
    n_heads: int
    k_dim: int
    v_dim: int
    block_tokens: int
    windowed: bool
    def __init__(
        self,
        kv_type: str,
        n_blocks: int,
        n_heads: int,
        block_tokens: int,
        k_dim: int,
        v_dim: int | None = None,
        windowed: bool = False,
    ) -> None: ...

class Attention:
    scale: float
    softcap: float
    window: int
    causal: bool
    chunked: bool
    slopes: NDArray[np.float32] | None
    sinks: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    def __init__(
        self,
        scale: float,
        *,
        window: int = 0,
        softcap: float = 0.0,
        slopes: NDArray[Any] | Sequence[float] | None = None,
        sinks: NDArray[Any] | Sequence[float] | None = None,
        bias: NDArray[Any] | Sequence[Sequence[float]] | None = None,
        causal: bool = True,
        chunked: bool = False,
    ) -> None: ...

def store(k: Rows, v: Rows | None, slab: KvSlab, batch: Batch) -> None: ...
def attend(q: Rows, slab: KvSlab, batch: Batch, rule: Attention) -> Rows: ...
def attend_source(q: Rows, slab: KvSlab, batch: Batch, rule: Attention) -> Rows: ...
def flash_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    num_heads: int,
    head_dim: int,
    softmax_scale: float | None = None,
    causal: bool = True,
    num_threads: int | None = None,
) -> NDArray[np.float32]: ...
