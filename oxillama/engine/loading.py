"""From settings to the parts of an engine."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import oxillama.gguf as gguf
from oxillama.config import EngineConfig, RopeConfig, field_names
from oxillama.engine.embedding import read_pooling
from oxillama.engine.runner import Runner
from oxillama.engine.scheduler import MAX_RUNNING
from oxillama.engine.spans import RunnerLike
from oxillama.errors import ConfigError, GGUFError, LoadError
from oxillama.kernels._threads import default_num_threads
from oxillama.kv_cache.arrays import block_bytes, slot_bytes
from oxillama.kv_cache.shapes import LayerShape
from oxillama.kv_cache.state_slots import MAX_CHECKPOINTS, RUNNING_SLOTS
from oxillama.models import ModelSpec, load_model
from oxillama.tokenizer import Tokenizer

if TYPE_CHECKING:
    from oxillama.gguf import GGUFFile

__all__ = ["DEFAULT_CONTEXT", "EngineParts", "load_parts", "make_config", "shipped_model"]

# What is trained for 128k tokens still gets a cache of ordinary size unless asked otherwise.
DEFAULT_CONTEXT = 4096
# Requests of full context length that fit the KV cache side by side when no budget is given.
DEFAULT_CONCURRENCY = 4
# Recurrent slots for each of these: what it needs to run, and places to come back to.
REQUEST_SLOTS = RUNNING_SLOTS + MAX_CHECKPOINTS
# More slots than those of all sequences that can run at once are never needed, whatever the budget.
MAX_SLOTS = MAX_RUNNING * REQUEST_SLOTS


@dataclass
class EngineParts:
    """What an engine is made of; `load_parts` makes them of a file, and anything alike will do."""

    runner: RunnerLike
    tokenizer: Tokenizer
    spec: ModelSpec
    context_size: int
    n_blocks: int
    n_slots: int = 0
    pooling: str = "mean"
    metadata: Mapping[str, object] = field(default_factory=dict)


def shipped_model() -> str:
    """Path of the small model that comes with the package. Raises LoadError if this installation lacks it."""
    path = str(files("oxillama") / "data" / "default.gguf")
    if not os.path.exists(path):
        raise LoadError(f"the model that ships with the package is missing ({path}); give model_path")
    return path


def load_parts(config: EngineConfig) -> EngineParts:
    """Opens, checks and loads everything that `config` names. Raises LoadError and its children, or ConfigError."""
    source = shipped_model() if config.model_path is None else config.model_path
    file = gguf.open(source, overrides=config.overrides)
    with file:  # what was taken from it stays valid
        return _load(file, config)


def _load(file: GGUFFile, config: EngineConfig) -> EngineParts:
    num_threads = config.num_threads or default_num_threads()
    # Everything that can be wrong is found before the weights are read.
    if isinstance(config.rope, RopeConfig):
        file.override(config.rope.metadata(file.metadata.arch))
    spec = ModelSpec.read(file)
    context_size = choose_context(spec, config)
    pooling = read_pooling(file.metadata)
    n_blocks, n_slots = choose_sizes(spec.states, context_size, config)
    tokenizer = Tokenizer.from_gguf(file) if config.tokenizer_path is None else read_tokenizer(config.tokenizer_path)
    if tokenizer.n_vocab > spec.n_vocab:
        raise LoadError(
            f"the tokenizer has {tokenizer.n_vocab} tokens, but the model only {spec.n_vocab}: "
            f"they don't belong together{' (tokenizer_path)' if config.tokenizer_path else ''}"
        )
    return_freed_memory()
    model = load_model(file, repack=config.repack, num_threads=num_threads, context_size=context_size)
    runner = Runner(
        model,
        num_threads=num_threads,
        kv_type=config.kv_type,
        kv_block_size=config.kv_block_size,
        n_blocks=n_blocks,
        n_slots=n_slots,
    )
    return EngineParts(runner, tokenizer, spec, context_size, n_blocks, n_slots, pooling, file.metadata)


def return_freed_memory() -> None:
    """To the operating system, what building a tokenizer left behind: 20 MB of a vocabulary of 128 thousand tokens.

    glibc keeps freed memory for later allocations; ours to come are too large to be made of its pieces.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def read_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of another GGUF file. Raises LoadError for anything that is not one."""
    try:
        return Tokenizer.from_gguf(path)
    except GGUFError as error:
        raise GGUFError(f"tokenizer_path must be a GGUF file (convert it with its model): {error}") from error
    except LoadError as error:
        raise type(error)(f"tokenizer_path: {error}") from error


def choose_context(spec: ModelSpec, config: EngineConfig) -> int:
    """The context size in use.

    Raises ConfigError if more is asked for than the model was trained for, or than `config.rope` stretches it to, and
    for a `config.rope` that a model has no use for.
    """
    if config.rope is not None and spec.rope is None:
        raise ConfigError(f"rope must be left out: architecture {spec.arch} has no rotary embedding")
    if config.context_size is None:
        return min(spec.context_length, DEFAULT_CONTEXT)
    reach = spec.rope.reach if config.rope is not None and spec.rope is not None else 0
    if reach > spec.context_length and config.context_size > reach:
        raise ConfigError(f"context_size must be at most the {reach} tokens of rope, not {config.context_size}")
    if config.context_size > max(spec.context_length, reach):
        key = f"{spec.arch}.context_length"
        raise ConfigError(
            f"context_size must be at most the {spec.context_length} tokens that the model was trained for, not "
            f"{config.context_size}; to extend it nevertheless, pass overrides={{{key!r}: {config.context_size}}}"
        )
    return config.context_size


def choose_sizes(states: Sequence[LayerShape], context_size: int, config: EngineConfig) -> tuple[int, int]:
    """Numbers of KV blocks and of recurrent slots; 0 of what the model has no layers for.

    A budget is divided as the default is: blocks for a whole context to `REQUEST_SLOTS` slots. Raises ConfigError if it
    is less than the least that any request needs.
    """
    block, slot = block_bytes(states, config.kv_block_size, config.kv_type), slot_bytes(states)
    blocks = -(-context_size // config.kv_block_size) if block else 0
    slots = REQUEST_SLOTS if slot else 0
    if config.kv_budget is None or not block + slot:
        return DEFAULT_CONCURRENCY * blocks, DEFAULT_CONCURRENCY * slots
    least = block + (RUNNING_SLOTS * slot if slot else 0)
    if config.kv_budget < least:
        parts = [f"one block of {config.kv_block_size} tokens"] * bool(block) + ["two recurrent states"] * bool(slot)
        raise ConfigError(
            f"kv_budget must be at least {least} bytes, {' and '.join(parts)} for this model, not {config.kv_budget}"
        )
    n_slots = config.kv_budget * slots // (blocks * block + slots * slot)
    # At least one block must be left, which is less than the share of blocks where contexts are short.
    n_slots = max(RUNNING_SLOTS, min(n_slots, MAX_SLOTS, (config.kv_budget - block) // slot)) if slot else 0
    return (config.kv_budget - n_slots * slot) // block if block else 0, n_slots


def make_config(config: EngineConfig | None, fields: Mapping[str, Any]) -> EngineConfig:
    """`config` with `fields` replaced. Raises TypeError for an unknown field, ConfigError for its value."""
    names = field_names(EngineConfig)
    for name in fields:
        if name not in names:
            raise TypeError(f"unknown engine option {name!r}; options are {', '.join(names)}")
    if config is not None and not isinstance(config, EngineConfig):
        raise ConfigError(f"config must be an EngineConfig, not {type(config).__name__}; paths go to load()")
    return replace(config or EngineConfig(), **fields)
