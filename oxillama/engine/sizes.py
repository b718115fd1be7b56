"""How much of what sequences keep an engine has room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oxillama.config import EngineConfig
from oxillama.engine.scheduler import MAX_RUNNING
from oxillama.engine.windows import n_alive
from oxillama.errors import ConfigError
from oxillama.kv_cache.arrays import block_bytes, slot_bytes
from oxillama.kv_cache.shapes import LayerShape, largest_window
from oxillama.kv_cache.state_slots import MAX_CHECKPOINTS, RUNNING_SLOTS
from oxillama.models import ModelSpec

__all__ = ["CacheSizes", "choose_sizes", "kept_bytes", "step_tokens"]

# Requests of full context length that fit the KV cache side by side when no budget is given.
DEFAULT_CONCURRENCY = 4
# Recurrent slots for each of these: what it needs to run, and places to come back to.
REQUEST_SLOTS = RUNNING_SLOTS + MAX_CHECKPOINTS
# More slots than those of all sequences that can run at once are never needed, whatever the budget.
MAX_SLOTS = MAX_RUNNING * REQUEST_SLOTS

MAX_BLOCKS = (1 << 31) - 1  # ids of a kind

# Part of the memory for weights that the forward pass may take beside, and tokens of a step in any case: of fewer each
# would have all weights read for itself.
FORWARD_PART = 16
LEAST_STEP = 64


class CacheSizes(NamedTuple):
    """Numbers of KV blocks and recurrent slots; 0 of what the model has no layers for.

    n_windowed: blocks of layers that see no more than `window` tokens; 0 if these have the others' blocks.
    """

    n_blocks: int
    n_slots: int
    n_windowed: int = 0
    window: int = 0


def choose_sizes(states: Sequence[LayerShape], context_size: int, config: EngineConfig) -> CacheSizes:
    """As many of each kind as requests of a whole context need, in proportion.

    A budget is divided as the default is: blocks for a whole context to `REQUEST_SLOTS` slots, and of layers with a
    window what a step can read. Raises ConfigError if it is less than the least that any request needs.
    """
    need, least, sizes = _request_needs(states, context_size, config)
    if config.kv_budget is None or not any(sizes):
        return _sizes(states, [DEFAULT_CONCURRENCY * n for n in need])
    least_bytes = sum(n * size for n, size in zip(least, sizes, strict=True))
    if config.kv_budget < least_bytes:
        tokens = f"one block of {config.kv_block_size} tokens"
        parts = [tokens] * any(least[:2]) + ["two recurrent states"] * bool(least[2])
        raise ConfigError(
            f"kv_budget must be at least {least_bytes} bytes, {' and '.join(parts)} for this model, not "
            f"{config.kv_budget}"
        )
    numbers = _divide(config.kv_budget, need, least, sizes)
    if max(numbers) > MAX_BLOCKS:
        most = MAX_BLOCKS * min(size for size in sizes if size)
        raise ConfigError(f"kv_budget must be at most about {most} bytes for this model, not {config.kv_budget}")
    return _sizes(states, numbers)


def _request_needs(
    states: Sequence[LayerShape], context_size: int, config: EngineConfig
) -> tuple[list[int], list[int], list[int]]:
    """Of blocks, windowed blocks and slots: how many a request of a whole context needs, any request, and their bytes.

    A window that reaches nearly as far as a context gives nothing back: its layers are as those without.
    """
    size, kv_type, window = config.kv_block_size, config.kv_type, largest_window(states)
    blocks = -(-context_size // size)
    windowed = n_alive(window, size, config.prefill_chunk_size) + 1 if window else 0
    if 0 < windowed < blocks:
        groups = [block_bytes(states, size, kv_type, windowed=w) for w in (False, True)]
    else:
        groups = [block_bytes(states, size, kv_type), 0]
    sizes = [*groups, slot_bytes(states)]
    need = [n * (size > 0) for n, size in zip((blocks, windowed, REQUEST_SLOTS), sizes, strict=True)]
    least = [n * (size > 0) for n, size in zip((1, 1, RUNNING_SLOTS), sizes, strict=True)]
    return need, least, sizes


def _divide(budget: int, need: list[int], least: list[int], sizes: list[int]) -> list[int]:
    """In proportion to the need, each at least the least; what is left over goes to the kind that grows with texts."""
    whole = sum(n * size for n, size in zip(need, sizes, strict=True))
    numbers = list(least)
    left = budget - sum(n * size for n, size in zip(least, sizes, strict=True))
    for i in (2, 1, 0):  # slots, windows, blocks
        if not sizes[i]:
            continue
        more = max(0, min(budget * need[i] // whole - least[i], left // sizes[i]))
        if i == 2:
            more = min(more, MAX_SLOTS - least[i])
        if not any(sizes[:i]) and i < 2:
            more = left // sizes[i]
        numbers[i] += more
        left -= more * sizes[i]
    return numbers


def _sizes(states: Sequence[LayerShape], numbers: list[int]) -> CacheSizes:
    n_blocks, n_windowed, n_slots = numbers
    return CacheSizes(n_blocks, n_slots, n_windowed, largest_window(states) if n_windowed else 0)


def kept_bytes(states: Sequence[LayerShape]) -> tuple[int, int]:
    """What is kept of a request: bytes of each token in f16, and of all recurrent states together."""
    tokens = EngineConfig().kv_block_size
    return block_bytes(states, tokens, "f16") // tokens, REQUEST_SLOTS * slot_bytes(states)


def step_tokens(spec: ModelSpec, configured: int, budget: int | None) -> int:
    """Tokens of a step: as configured; fewer beside weights with a budget, so that its memory is small against that.

    A token takes floats for the residual stream, its norms and products, for queries, keys, values and what attention
    makes of them, for two hidden layers of a feed-forward part, and a quarter of all that in 8 bits. Each expert that
    it uses has hidden layers and a result of its own; recurrent mixers have about five rows of twice the width.
    """
    if budget is None:
        return configured
    heads = spec.n_heads * (spec.head_dim + spec.v_head_dim)
    hidden, experts = 2 * spec.n_ff, spec.experts
    if experts is not None:
        hidden = max(hidden, experts.n_used * (2 * experts.n_ff + spec.n_embd) + 2 * experts.n_ff_shared)
    recurrent = 10 * spec.n_embd if slot_bytes(spec.states) else 0
    floats = 5 * spec.n_embd + heads + spec.n_kv_heads * (spec.head_dim + spec.v_head_dim) + hidden + recurrent
    return min(configured, max(LEAST_STEP, budget // FORWARD_PART // (5 * max(floats, 1))))
